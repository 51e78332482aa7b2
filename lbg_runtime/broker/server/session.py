"""One client's conversation with the broker: frames become calls to the engine, effects become frames. No I/O.

Called only by its connection. Its answers wait in its outbox; effects, including those for other clients, are handed to
`carry_out` in the engine's order. A `ProtocolError` that leaves it ends the connection and nothing else.

More than 400 lines, as this is the one place that knows all that a client can ask: a few lines for each kind of frame.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import assert_never

from lbg_runtime.broker.engine.answers import Introduction, SettledRange
from lbg_runtime.broker.engine.effects import (
    ActivityChanged,
    CarryOut,
    ClientEnded,
    ClientId,
    DeliverDirect,
    DeliverRun,
    Effect,
    FlowEnded,
    FlowId,
    Published,
)
from lbg_runtime.broker.engine.engine import DEFAULT_VPN, Engine
from lbg_runtime.broker.engine.settings import LARGEST_MESSAGE_BYTES, Permission
from lbg_runtime.broker.server.endpoints import told_of, wished_settings
from lbg_runtime.broker.server.login import (
    REFUSED_LOGIN_BODY,
    VIRTUAL_ROUTER,
    inbox_of,
    login_body,
    who_is,
)
from lbg_runtime.broker.server.outbox import Outbox
from lbg_runtime.broker.server.replay_start import replay_start
from lbg_runtime.broker.server.transactions import TransactionDesk
from lbg_runtime.model.errors import BrokerRefusal, ProtocolError
from lbg_runtime.model.ids import DeliveryId, QueueName
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.smf.assured_ctrl import (
    AckOutcome,
    Bind,
    ClientAck,
    CloseFlow,
    CreateQueue,
    DeleteQueue,
    FlowChange,
    OpenFlow,
    Unbind,
    UnknownRequest,
    bound_flow_body,
    created_queue_body,
    flow_body,
    flow_change_body,
    named_queue_body,
    opened_flow_body,
    publisher_ack_body,
    read_assured,
)
from lbg_runtime.smf.assured_items import AssuredKind, assured_body
from lbg_runtime.smf.client_ctrl import (
    LOGIN,
    ClientItem,
    ClientKind,
    LoginRequest,
    client_name_of,
    decode_client_ctrl,
    encode_client_ctrl,
    read_login,
    remark,
)
from lbg_runtime.smf.endpoint import NO_WISHES
from lbg_runtime.smf.frame import Frame, FrameReader, Protocol, decode_frame, encode_frame, protocol_of
from lbg_runtime.smf.message import read_published
from lbg_runtime.smf.response import OK, Response, answer
from lbg_runtime.smf.smp import SubscriptionKind, SubscriptionRequest, decode_subscription, encode_subscription
from lbg_runtime.smf.text import close_text

OnLogin = Callable[[ClientId], None]
"""Called after a successful login, before any effect of it is carried out."""

_LOGIN_LIMIT_BYTES = 64 * 1024
_FRAME_LIMIT_BYTES = LARGEST_MESSAGE_BYTES + 64 * 1024
_CONTROL_LIMIT_BYTES = 256 * 1024
"""The longest frame that is no message: 13,000 ranges of an acknowledgement. It is read piece by piece while all others
wait."""
_MOST_WORK = 2_000
"""Messages published, and what they lead to, that one call of `receive` carries out: some 20 ms, as each costs about 10
us. More than any window, so that who waits for confirms is never cut short."""
# A plain number, looked up once: it is needed for every message.
_MESSAGE = int(Protocol.MESSAGE)
_KEEP_ALIVE = encode_frame(Frame(Protocol.KEEP_ALIVE))
_TEMPORARY_PREFIX = f"#P2P/QTMP/{VIRTUAL_ROUTER}/"

_OUTCOMES = {
    AckOutcome.ACCEPTED: Outcome.ACCEPTED,
    AckOutcome.FAILED: Outcome.FAILED,
    AckOutcome.RELEASED: Outcome.FAILED,
    AckOutcome.REJECTED: Outcome.REJECTED,
}


@dataclass(slots=True)
class _ConsumerFlow:
    """A bound flow: whether its client is told of activity, and the window that it said last."""

    wants_changes: bool
    window: int


@dataclass(slots=True)
class _PublisherFlow:
    """A flow that publishes."""

    window: int
    """As it was asked for: a client goes by the answer, even if its application wanted less."""
    last_answered_id: int
    """Everything up to it was accepted or refused."""
    last_taken_id: int
    """The message that the next one must say it follows: the last one that was accepted or refused here, or that the
    client had an answer for before."""


class Session:
    """The state of one connection, from its first byte to its last."""

    def __init__(
        self,
        engine: Engine,
        carry_out: CarryOut,
        on_login: OnLogin,
        anonymous_name: str,
        address_of_peer: str = "",
        name_on_certificate: str | None = None,
    ) -> None:
        """`name_on_certificate`: that on the verified certificate that the peer presented; None if there is none."""
        self.outbox = Outbox()
        self.client: ClientId | None = None
        """Set by a successful login."""
        self.login: LoginRequest | None = None
        """The client's login request, successful or not."""
        self.end_reason: str | None = None
        """Set when the connection is to be closed once the outbox is written."""
        self.has_more = False
        """Whether frames have come that wait for another call of `receive`."""
        self._work_count = 0
        self._engine = engine
        self._carry_out = carry_out
        self._on_login = on_login
        self._anonymous_name = anonymous_name
        self._address_of_peer = address_of_peer
        self._name_on_certificate = name_on_certificate
        self._now_s = 0
        """Unix time at which the current bytes came; the same for all messages in them."""
        self._reader = FrameReader(_LOGIN_LIMIT_BYTES)
        self._consumers: dict[int, _ConsumerFlow] = {}
        self._publishers: dict[int, _PublisherFlow] = {}
        self._unacked_publishers: set[int] = set()
        self._transactions = TransactionDesk(engine)
        self.withholds_acks = False
        """Set by a fault switch: publishers are not told of accepted messages."""

    @property
    def client_name(self) -> str | None:
        """The client's name, or None before its login."""
        return None if self.login is None else self.login.client_name

    @property
    def compresses(self) -> bool:
        """Whether both sides compress what follows, as the client asked when it logged in."""
        return self.client is not None and self.login is not None and self.login.wants_compression

    @property
    def ended(self) -> bool:
        """Whether the connection is to be closed."""
        return self.end_reason is not None

    def give_acks(self) -> None:
        """Stop withholding acknowledgements, and send those withheld."""
        self.withholds_acks = False
        self._acknowledge_published()

    def receive(self, data: bytes) -> None:
        """Take bytes from the client; raises `ProtocolError`. Does nothing once the session has ended.

        If it `has_more` afterwards, let the other connections have their turn, and call it again, without bytes.
        """
        self._reader.feed(data)
        self._now_s = int(self._engine.surroundings.wall_s())
        self._work_count = 0
        self.has_more = False
        while self.end_reason is None and (raw := self._reader.next_frame()) is not None:
            self._handle(raw)
            if self._work_count >= _MOST_WORK:
                self.has_more = True
                break
        self._acknowledge_published()

    def apply(self, effects: Iterable[Effect]) -> None:
        """Carry out effects of the engine that are for this client, in order."""
        for effect in effects:
            match effect:
                case DeliverRun():
                    self.outbox.put_deliveries(effect)
                case DeliverDirect():
                    self.outbox.put_direct(effect)
                case ActivityChanged(flow=flow, active=active):
                    consumer = self._consumers.get(flow)
                    if consumer is not None and consumer.wants_changes:
                        self._tell(flow_change_body(FlowChange(flow, active)), None)
                case FlowEnded(flow=flow, text=text):
                    self._transactions.end_consumer(flow)
                    if self._consumers.pop(flow, None) is not None:
                        self._tell(flow_body(AssuredKind.UNBIND, flow), Response(503, text))
                case ClientEnded(text=text):
                    self.end_reason = text
                case _:
                    assert_never(effect)

    # -- frames

    def _handle(self, raw: bytes) -> None:
        protocol = protocol_of(raw)
        if self.client is None:
            if protocol != Protocol.CLIENT_CTRL:
                raise ProtocolError(f"protocol {protocol:#x} before the login", 1)
            self._log_in(decode_frame(raw))
        elif protocol == _MESSAGE:
            self._publish(self.client, raw)
        elif len(raw) > _CONTROL_LIMIT_BYTES:
            raise ProtocolError(f"a frame of {len(raw)} bytes that is no message", 8)
        elif protocol == Protocol.ASSURED_CTRL:
            self._handle_assured(self.client, decode_frame(raw))
        elif protocol == Protocol.ASSURED_PASS_THROUGH:
            self._control_transaction(self.client, decode_frame(raw))
        elif protocol == Protocol.KEEP_ALIVE:
            self.outbox.put(_KEEP_ALIVE)
        elif protocol == Protocol.SUBSCRIPTION:
            self._handle_subscription(self.client, decode_frame(raw))
        elif protocol == Protocol.CLIENT_CTRL:
            self._update(self.client, decode_frame(raw))
        else:
            raise ProtocolError(f"protocol {protocol:#x} is not spoken here", 1)

    def _handle_assured(self, client: ClientId, frame: Frame) -> None:
        request = read_assured(frame.body)
        match request:
            case ClientAck():
                self._acknowledge(request)
            case Bind():
                refused = assured_body(AssuredKind.BIND)
                self._answer_refusals(frame, refused, lambda: self._bind(client, request, frame.tag))
            case Unbind():
                self._unbind(request, frame.tag)
            case OpenFlow():
                refused = assured_body(AssuredKind.OPEN_FLOW)
                self._answer_refusals(frame, refused, lambda: self._open(client, request, frame.tag))
            case CloseFlow(flow_id):
                self._close(flow_id, frame.tag)
            case CreateQueue(queue):
                refused = named_queue_body(AssuredKind.CREATE, queue)
                self._answer_refusals(frame, refused, lambda: self._create(client, request, frame.tag))
            case DeleteQueue(queue):
                refused = named_queue_body(AssuredKind.DELETE, queue)
                self._answer_refusals(frame, refused, lambda: self._delete(client, request, frame.tag))
            case FlowChange():
                pass  # The client's answer to ours. Answering it starts a loop that ends in a crash of the client.
            case UnknownRequest(AssuredKind.TRANSACTION):
                self._control_transaction(client, frame)
            case UnknownRequest(kind):
                self._tell(assured_body(kind), Response(400, "Not Supported"), frame.tag)
            case _:
                assert_never(request)

    def _answer_refusals(self, frame: Frame, body: bytes, act: Callable[[], None]) -> None:
        try:
            act()
        except BrokerRefusal as refusal:
            self._tell(body, Response.of(refusal), frame.tag)

    def _tell(self, body: bytes, response: Response | None, tag: bytes | None = None) -> None:
        self.outbox.put(answer(Protocol.ASSURED_CTRL, body, response, tag))

    # -- login

    def _log_in(self, frame: Frame) -> None:
        message = decode_client_ctrl(frame.body)
        if message.kind != LOGIN:
            raise ProtocolError(f"client control {message.kind} before the login")
        request = read_login(frame, message)
        request = replace(
            request,
            client_name=request.client_name or self._anonymous_name,
            vpn=request.vpn or DEFAULT_VPN,
        )
        self.login = request
        try:
            client, effects = self._connect(request)
        except BrokerRefusal as refusal:
            response = Response.of(refusal)
            self.outbox.put(answer(Protocol.CLIENT_CTRL, REFUSED_LOGIN_BODY, response, frame.tag))
            self.end_reason = refusal.text
            return
        self.client = client
        self._on_login(client)
        self._reader.limit_bytes = _FRAME_LIMIT_BYTES
        body = login_body(request, self._engine.profile_of(client))
        self.outbox.put(answer(Protocol.CLIENT_CTRL, body, OK, frame.tag))
        self._carry_out(effects)

    def _connect(self, request: LoginRequest) -> tuple[ClientId, list[Effect]]:
        if request.wants_plain_text:
            # Let in, it would end its TLS, and never learn why the connection ends with it.
            raise BrokerRefusal(403, "TLS Downgrade Not Supported")
        accounts = self._engine.administration.accounts(request.vpn)
        username, password = who_is(request, accounts, self._name_on_certificate)
        introduction = Introduction(
            request.software_version, request.software_date, request.platform, request.user, request.description
        )
        return self._engine.connect(
            request.vpn, username, password, request.client_name, self._address_of_peer, introduction
        )

    def _update(self, client: ClientId, frame: Frame) -> None:
        message = decode_client_ctrl(frame.body)
        response = OK
        items: tuple[ClientItem, ...] = ()
        try:
            if self.login is not None and (value := message.find(ClientKind.CLIENT_NAME)) is not None:
                name = client_name_of(value)
                self._engine.rename(client, name)
                self.login = replace(self.login, client_name=name)
                # Without it the client would go on without an inbox.
                items = (ClientItem(ClientKind.INBOX, close_text(inbox_of(name))),)
            if (description := message.find(ClientKind.DESCRIPTION)) is not None:
                self._engine.describe(client, remark(description))
        except BrokerRefusal as refusal:
            response = Response.of(refusal)
        body = encode_client_ctrl(replace(message, items=items, mark=0))
        self.outbox.put(answer(Protocol.CLIENT_CTRL, body, response, frame.tag))

    # -- subscriptions

    def _handle_subscription(self, client: ClientId, frame: Frame) -> None:
        request = decode_subscription(frame.body)
        response = OK
        try:
            self._subscribe(client, request)
        except BrokerRefusal as refusal:
            response = Response.of(refusal)
        if request.answer_wanted:
            body = encode_subscription(request)
            self.outbox.put(answer(Protocol.SUBSCRIPTION, body, response, frame.tag))

    def _subscribe(self, client: ClientId, request: SubscriptionRequest) -> None:
        queue = QueueName(request.holder)
        match request.kind:
            case SubscriptionKind.ADD:
                self._engine.subscribe(client, request.topic)
            case SubscriptionKind.REMOVE:
                self._engine.unsubscribe(client, request.topic)
            case SubscriptionKind.ADD_TO_QUEUE:
                self._engine.subscribe_queue(client, queue, request.topic)
            case SubscriptionKind.REMOVE_FROM_QUEUE:
                self._engine.unsubscribe_queue(client, queue, request.topic)
            case SubscriptionKind.ADD_TO_CLIENT | SubscriptionKind.REMOVE_FROM_CLIENT:
                raise BrokerRefusal(403, "Permission Not Allowed")
            case _:
                assert_never(request.kind)

    # -- publishing

    def _open(self, client: ClientId, request: OpenFlow, tag: bytes | None) -> None:
        if request.transacted:
            self._open_transacted(client, request, tag)
            return
        opened = self._engine.open_publisher(client, request.name, request.last_acked_id)
        # After a new life of the broker, a client goes on with its own numbers.
        last_taken_id = max(opened.last_answered_id, request.last_acked_id)
        self._publishers[opened.flow] = _PublisherFlow(request.window, opened.last_answered_id, last_taken_id)
        body = opened_flow_body(opened.flow, opened.name, opened.last_answered_id, window=request.window)
        self._tell(body, OK, tag)

    def _open_transacted(self, client: ClientId, request: OpenFlow, tag: bytes | None) -> None:
        self._transactions.check(request.session_id)
        flow = self._engine.open_transacted_publisher(client)
        self._transactions.add_publisher(request.session_id, flow)
        self._tell(opened_flow_body(flow, "", 0, session_id=request.session_id), OK, tag)

    def _close(self, flow: int, tag: bytes | None) -> None:
        self._acknowledge_published()
        if self._publishers.pop(flow, None) is not None:
            self._unacked_publishers.discard(flow)
            self._engine.close_publisher(FlowId(flow))
        else:
            self._transactions.close_publisher(flow)
        self._tell(flow_body(AssuredKind.CLOSE_FLOW, flow), OK, tag)

    def _control_transaction(self, client: ClientId, frame: Frame) -> None:
        found = self._transactions.answer(client, frame.body)
        self.outbox.put(answer(Protocol(frame.protocol), found.body, found.response, frame.tag))
        self._carry_out(found.effects)

    def _publish(self, client: ClientId, raw: bytes) -> None:
        frame = read_published(raw)
        relay = frame.relay
        message = Published(frame.topic, relay, relay.size_bytes, self._now_s)
        if not frame.assured:
            effects = self._engine.publish_direct(client, message)
            self._work_count += 1 + len(effects)
            self._carry_out(effects)
            return
        flow, message_id = frame.flow_id, frame.message_id
        publisher = self._publishers.get(flow)
        if publisher is None:
            if not self._transactions.hold(flow, message_id, message):
                raise ProtocolError(f"a message on flow {flow}, which is not open")
            return
        if message_id <= publisher.last_answered_id:
            # Sent again while its answer, whatever it is, was in transit on this connection.
            self._unacked_publishers.add(flow)
            return
        if frame.previous_id not in (None, publisher.last_taken_id):
            # A client that could not write all it had to leaves messages out, goes on behind them, and sends all of
            # them again. An answer to this one would confirm what has not come.
            self._unacked_publishers.add(flow)
            return
        try:
            effects = self._engine.publish(FlowId(flow), message_id, message)
        except BrokerRefusal as refusal:
            self._refuse_published(flow, message_id, Response.of(refusal))
            return
        publisher.last_answered_id = publisher.last_taken_id = message_id
        self._unacked_publishers.add(flow)
        self._work_count += 1 + len(effects)
        self._carry_out(effects)

    def _acknowledge_published(self) -> None:
        if self.withholds_acks:
            return
        # Always with a response: once anything on the connection was refused, a client takes an acknowledgement without
        # one for a refusal.
        for flow in sorted(self._unacked_publishers):
            publisher = self._publishers[flow]
            self._tell(publisher_ack_body(flow, publisher.last_answered_id, publisher.window), OK)
        self._unacked_publishers.clear()

    def _refuse_published(self, flow: int, message_id: int, response: Response) -> None:
        # Acknowledgements are cumulative, so earlier ones must be sent before this id is refused.
        self._acknowledge_published()
        publisher = self._publishers[flow]
        publisher.last_answered_id = publisher.last_taken_id = message_id
        self._tell(publisher_ack_body(flow, message_id, publisher.window), response)

    # -- consuming

    def _bind(self, client: ClientId, request: Bind, tag: bytes | None) -> None:
        if not request.queue:
            raise BrokerRefusal(503, "Unknown Durable Topic Endpoint")
        if request.no_local:
            raise BrokerRefusal(400, "No Local Not Supported")
        if request.transacted:
            self._transactions.check(request.session_id)
        last_received_id = request.last_received_id
        temporary = not request.durable or request.queue.startswith(_TEMPORARY_PREFIX)
        # If a durable queue exists, the client's wishes only repeat what it was told of the queue before.
        wishes = request.wishes if temporary else NO_WISHES
        bound, effects = self._engine.bind(
            client,
            QueueName(request.queue),
            last_received_id=None if last_received_id is None else DeliveryId(last_received_id),
            browser=request.browser,
            create_temporary=temporary,
            temporary_settings=wished_settings(wishes, durable=False),
            selector=request.selector,
            replay=None if request.replay is None else replay_start(request.replay),
            partition_group=request.partition_group,
        )
        if request.transacted:
            self._transactions.add_consumer(request.session_id, bound.flow)
        self._consumers[bound.flow] = _ConsumerFlow(request.wants_changes, request.window)
        body = bound_flow_body(
            bound.flow,
            told_of(request.queue, bound.settings, bound.permission),
            active=bound.active if request.wants_changes else None,
            max_unacked=bound.settings.max_unacked_per_flow,
            spooler=self._engine.spooler,
            partition_group=bound.partition_group,
        )
        self._tell(body, OK, tag)
        self._carry_out(effects)
        if request.window > 0:
            self._carry_out(self._engine.open_window(bound.flow, DeliveryId(0), request.window))

    def _acknowledge(self, request: ClientAck) -> None:
        consumer = self._consumers.get(request.flow_id)
        if consumer is None:
            return  # The flow ended while the acknowledgement was in transit.
        flow = FlowId(request.flow_id)
        if request.ranges:
            ranges = [
                SettledRange(DeliveryId(entry.first), DeliveryId(entry.last), _OUTCOMES[entry.outcome])
                for entry in request.ranges
            ]
            self._carry_out(self._engine.settle(flow, ranges))
        if request.window is not None:
            consumer.window = request.window
        # One that does not say what was received leaves that as it was, as an old id does.
        self._carry_out(self._engine.open_window(flow, DeliveryId(request.received_id or 0), consumer.window))

    def _unbind(self, request: Unbind, tag: bytes | None) -> None:
        known = self._consumers.pop(request.flow_id, None) is not None
        self._transactions.end_consumer(FlowId(request.flow_id))
        effects = self._engine.unbind(FlowId(request.flow_id)) if known else []
        # The answer first: the flow that takes over is told after this one has been told that it ended.
        self._tell(flow_body(AssuredKind.UNBIND, request.flow_id), OK, tag)
        self._carry_out(effects)

    def _create(self, client: ClientId, request: CreateQueue, tag: bytes | None) -> None:
        _check_name(request.queue)
        settings = wished_settings(request.wishes, durable=request.durable)
        self._engine.provision(client, QueueName(request.queue), settings)
        self._tell(created_queue_body(told_of(request.queue, settings, Permission.DELETE)), OK, tag)

    def _delete(self, client: ClientId, request: DeleteQueue, tag: bytes | None) -> None:
        _check_name(request.queue)
        effects = self._engine.deprovision(client, QueueName(request.queue))
        self._tell(named_queue_body(AssuredKind.DELETE, request.queue), OK, tag)
        self._carry_out(effects)


def _check_name(queue: str) -> None:
    if not queue:
        # A topic endpoint, which has its name elsewhere.
        raise BrokerRefusal(400, "Not Supported")
