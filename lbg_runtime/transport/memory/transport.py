"""A transport on a `MemoryBroker` in the same process: a broker's semantics without sockets, threads or real time."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum

from lbg_runtime.broker.engine.effects import (
    ActivityChanged,
    ClientEnded,
    ClientId,
    Deliver,
    DeliverDirect,
    FlowEnded,
    FlowId,
    SingleEffect,
)
from lbg_runtime.broker.engine.engine import DEFAULT_VPN
from lbg_runtime.broker.engine.matching.subscriptions import topic_of
from lbg_runtime.broker.engine.settings import QueueSettings
from lbg_runtime.model.errors import (
    NOT_CONNECTED,
    BindFailed,
    BrokerRefusal,
    ConnectFailed,
    PublishFailed,
    PublishRefused,
    RequestRefused,
    SubscribeFailed,
    TransportError,
)
from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.model.message import Message
from lbg_runtime.model.topic import matches
from lbg_runtime.transport.base import (
    MAX_TOGETHER,
    ConnectionSink,
    DirectSink,
    FlowSink,
    IsLast,
    answer,
    too_many_together,
)
from lbg_runtime.transport.memory.broker import MemoryBroker
from lbg_runtime.transport.memory.browse import MemoryBrowse
from lbg_runtime.transport.memory.flow import HandleState, MemoryFlow, message_of
from lbg_runtime.transport.memory.publisher import MemoryPublisher, published

RECONNECT_WAIT_S = 1.0
"""The wait after the broker itself closed the connection, and between attempts that the broker refuses."""

PERMANENT_REFUSALS = frozenset({"Unknown Queue", "Permission Not Allowed"})
"""Texts of refused binds for which waiting will not help."""


class SessionState(Enum):
    NEW = "new"
    OPEN = "open"
    """It stays OPEN while its connection is lost."""
    CLOSED = "closed"


class MemoryTransport:
    """`Transport`, `Browser` and `Messenger` of one member or publisher; also the faults that a test can inject."""

    def __init__(
        self,
        broker: MemoryBroker,
        client_name: str,
        *,
        username: str = "member",
        password: str = "",
        ack_delay_s: float = 0.0,
    ) -> None:
        """`ack_delay_s` imitates the official client's ack timer: acceptances leave that late, or before an unbind."""
        self._broker = broker
        self._client_name = client_name
        self._username = username
        self._password = password
        self._ack_delay_s = ack_delay_s
        self._state = SessionState.NEW
        self._client: ClientId | None = None
        """None while there is no connection."""
        self._publisher = MemoryPublisher(broker)
        self._handles: list[MemoryFlow] = []
        self._by_flow: dict[FlowId, MemoryFlow] = {}
        self._browses: dict[FlowId, MemoryBrowse] = {}
        self._direct: list[tuple[str, DirectSink]] = []
        self._reconnect_timer: asyncio.TimerHandle | None = None
        self._watcher: ConnectionSink | None = None
        self._refusal: str | None = None
        """The broker's answer to the last attempt to reconnect."""
        self.may_reconnect = True
        """Set to False to keep this client, and no other, from restoring a broken connection."""

    # -- Transport

    async def open(self) -> None:
        if self._state is not SessionState.NEW:
            raise ConnectFailed("memory", "a transport is opened once", permanent=True)
        if not self._broker.is_reachable:
            raise ConnectFailed("memory", "nothing listens there")
        try:
            self._connect()
        except BrokerRefusal as refusal:
            raise ConnectFailed("memory", refusal.text, permanent=True) from refusal

    async def close(self) -> None:
        self.kill()

    async def bind(self, queue: QueueName, epoch: Epoch, sink: FlowSink) -> MemoryFlow:
        # The one suspension point comes first: a cancelled bind has bound nothing.
        await asyncio.sleep(0)
        if self._client is None:
            raise BindFailed(queue, NOT_CONNECTED)
        # Dead handles are dropped when new ones come: rebind cycles must not fill the memory.
        self._handles = [handle for handle in self._handles if handle.state is not HandleState.DEAD]
        self._by_flow = {handle.flow_id: handle for handle in self._handles if handle.flow_id is not None}
        flow = MemoryFlow(self._broker, queue, epoch, sink, self._ack_delay_s)
        try:
            self._bind(self._client, flow)
        except BrokerRefusal as refusal:
            raise BindFailed(queue, refusal.text, permanent=refusal.text in PERMANENT_REFUSALS) from refusal
        self._handles.append(flow)
        return flow

    async def provision(self, queue: QueueName, subscriptions: Sequence[str]) -> None:
        client, engine = self._client_to("provision", queue), self._broker.engine
        try:
            with _tolerated("Endpoint Already Exists"):
                engine.provision(client, queue, QueueSettings())
            for subscription in subscriptions:
                with _tolerated("Subscription Already Exists"):
                    engine.subscribe_queue(client, queue, subscription)
        except BrokerRefusal as refusal:
            raise RequestRefused(f"provision {queue}", refusal.text) from refusal

    async def has_queue(self, queue: QueueName) -> bool:
        self._client_to("look for", queue)
        return queue in self._broker.engine.queue_names(DEFAULT_VPN)

    async def browse(self, queue: QueueName, quiet_s: float, is_last: IsLast | None = None) -> list[Message]:
        browse = MemoryBrowse(self._broker.engine, self._client_to("browse", queue), queue)
        self._browses[browse.flow_id] = browse
        try:
            return await browse.read(quiet_s, is_last)
        finally:
            self._browses.pop(browse.flow_id, None)
            browse.close()

    # -- Messenger

    def send(self, message: Message) -> asyncio.Future[None]:
        if self._state is not SessionState.OPEN:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            future.set_exception(PublishFailed(message.topic, "the transport is not open"))
            return future
        return self._publisher.send(message)

    def send_together(self, messages: Sequence[Message]) -> asyncio.Future[None]:
        """See `Messenger.send_together`; answered one turn of the loop later."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        topic = messages[0].topic
        error: PublishFailed | None = None
        if self._client is None:
            error = PublishFailed(topic, NOT_CONNECTED)
        elif len(messages) > MAX_TOGETHER:
            error = PublishRefused(topic, too_many_together(len(messages)))
        else:
            transactions = self._broker.engine.transactions
            try:
                self._broker.post(transactions.commit(self._client, [published(each) for each in messages], ()))
            except PublishRefused as refusal:
                error = refusal
            except BrokerRefusal as refusal:
                error = PublishRefused(topic, refusal.text)
        asyncio.get_running_loop().call_soon(answer, future, error)
        return future

    def send_direct(self, message: Message) -> None:
        if self._client is not None:
            with suppress(BrokerRefusal, PublishRefused):
                self._broker.post(self._broker.engine.publish_direct(self._client, published(message)))

    def watch_connection(self, sink: ConnectionSink) -> None:
        self._watcher = sink
        self._tell_watcher()

    async def subscribe(self, subscription: str, sink: DirectSink) -> None:
        if self._client is None:
            raise SubscribeFailed(subscription, NOT_CONNECTED)
        try:
            self._subscribe(self._client, subscription)
        except BrokerRefusal as refusal:
            raise SubscribeFailed(subscription, refusal.text, permanent=True) from refusal
        if (subscription, sink) not in self._direct:
            self._direct.append((subscription, sink))

    # -- Connection

    @property
    def is_connected(self) -> bool:
        return self._client is not None

    @property
    def why_away(self) -> str | None:
        return None if self.is_connected else self._refusal

    # -- faults, for tests

    def drop_connection(self, reconnect_after_s: float) -> None:
        """Break the connection; it comes back by itself after this long, with every live handle bound again.

        Messages in transit are lost with it and are delivered again. Does nothing while there is no connection.
        """
        if self._client is None:
            return
        client, self._client = self._client, None
        self._refusal = None
        self._by_flow.clear()
        self._end_browses()
        self._broker.detach(client)
        self._publisher.away()
        for handle in self._handles:
            handle.away()
        self._tell_watcher()
        self._reconnect_later(reconnect_after_s)

    def kill(self) -> None:
        """End as a killed process does: the connection is gone, nothing is flushed, no sink is called again."""
        client, self._client = self._client, None
        self._state = SessionState.CLOSED
        if self._reconnect_timer is not None:
            self._reconnect_timer.cancel()
        for handle in self._handles:
            handle.die()
        self._handles.clear()
        self._by_flow.clear()
        self._end_browses()
        self._direct.clear()
        self._watcher = None
        self._publisher.close()
        if client is not None:
            self._broker.detach(client)

    # -- the session

    def _client_to(self, what: str, queue: QueueName) -> ClientId:
        if self._client is None:
            raise TransportError(f"cannot {what} {queue}: {NOT_CONNECTED}")
        return self._client

    def _connect(self) -> None:
        client, effects = self._broker.engine.connect(DEFAULT_VPN, self._username, self._password, self._client_name)
        self._client = client
        self._state = SessionState.OPEN
        self._broker.attach(client, self._take)
        self._broker.post(effects)
        # The official client's order: publisher flow, direct subscriptions, binds.
        self._publisher.connected(client)
        for subscription in dict(self._direct):
            # The official client ignores such a refusal, too.
            with suppress(BrokerRefusal):
                self._subscribe(client, subscription)
        for handle in self._handles:
            if handle.state is HandleState.AWAY:
                try:
                    self._bind(client, handle)
                except BrokerRefusal as refusal:
                    handle.end(refusal.text)
        self._tell_watcher()

    def _end_browses(self) -> None:
        for browse in self._browses.values():
            browse.end("the connection was lost")
        self._browses.clear()

    def _tell_watcher(self) -> None:
        if self._watcher is not None:
            self._watcher(self.is_connected)

    def _reconnect(self) -> None:
        self._reconnect_timer = None
        if not (self._broker.is_reachable and self.may_reconnect):
            self._reconnect_later(RECONNECT_WAIT_S)
            return
        try:
            self._connect()
        except BrokerRefusal as refusal:
            self._refusal = refusal.text
            self._reconnect_later(RECONNECT_WAIT_S)

    def _reconnect_later(self, delay_s: float) -> None:
        self._reconnect_timer = asyncio.get_running_loop().call_later(delay_s, self._reconnect)

    def _bind(self, client: ClientId, handle: MemoryFlow) -> None:
        answer, effects = self._broker.engine.bind(
            client, handle.queue, last_received_id=handle.last_received_id, partition_group=handle.partition_group
        )
        handle.partition_group = answer.partition_group
        self._by_flow[answer.flow] = handle
        if answer.active:
            # On the wire the answer itself says so; here it must come before the messages that the open window lets in.
            self._broker.post([ActivityChanged(client, answer.flow, active=True)])
        self._broker.post(effects)
        handle.bound(answer.flow)

    def _subscribe(self, client: ClientId, subscription: str) -> None:
        with _tolerated("Subscription Already Exists"):
            self._broker.engine.subscribe(client, subscription)

    def _take(self, effect: SingleEffect) -> None:
        match effect:
            case Deliver() | ActivityChanged():
                if effect.flow in self._by_flow:
                    self._by_flow[effect.flow].take(effect)
                elif effect.flow in self._browses:
                    self._browses[effect.flow].take(effect)
            case FlowEnded():
                handle = self._by_flow.pop(effect.flow, None)
                if handle is not None:
                    handle.end(effect.text)
                elif effect.flow in self._browses:
                    self._browses[effect.flow].end(effect.text)
            case DeliverDirect():
                message = message_of(effect.message)
                for subscription, sink in self._direct:
                    if matches(topic_of(subscription), message.topic):
                        sink(message)
            case ClientEnded():
                self.drop_connection(RECONNECT_WAIT_S)


@contextmanager
def _tolerated(text: str) -> Iterator[None]:
    try:
        yield
    except BrokerRefusal as refusal:
        if refusal.text != text:
            raise
