"""The transacted sessions of one connection."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from lbg_runtime.broker.engine.answers import SettledRange
from lbg_runtime.broker.engine.effects import ClientId, Effect, FlowId, Published
from lbg_runtime.broker.engine.engine import Engine
from lbg_runtime.broker.engine.transactions import Consumed
from lbg_runtime.model.errors import BrokerRefusal, ProtocolError
from lbg_runtime.model.ids import DeliveryId
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.smf.assured_ctrl import WINDOW
from lbg_runtime.smf.response import OK, Response
from lbg_runtime.smf.transactions import (
    ANSWERS,
    ConsumedPart,
    PublishedPart,
    TransactionKind,
    TransactionRequest,
    answer_body,
    read_transaction,
)

MOST_HELD_MESSAGES = 256
"""The most messages that one transaction publishes; as on PubSub+."""


@dataclass(slots=True)
class _Transacted:
    """One transacted session: what its current transaction has published, by flow, with the last id of each flow."""

    messages: list[Published] = field(default_factory=list)
    counts: Counter[int] = field(default_factory=Counter)
    last_ids: dict[int, int] = field(default_factory=dict)
    closed: set[int] = field(default_factory=set)
    """Closed flows, which end with the current transaction."""
    consumers: dict[FlowId, None] = field(default_factory=dict)
    is_too_long: bool = False

    def take(self, parts: Iterable[PublishedPart]) -> list[Published]:
        """Return what the transaction published, which must match what the client says, as connections may have broken
        since.

        503 `Transaction Failure`, 503 `Too Many Messages In Transaction`.
        """
        if self.is_too_long:
            raise BrokerRefusal(503, "Too Many Messages In Transaction")
        if self.counts != Counter({part.flow_id: part.count for part in parts}):
            raise BrokerRefusal(503, "Transaction Failure")
        return self.messages

    def check_consumed(self, parts: Iterable[ConsumedPart]) -> list[Consumed]:
        """What the transaction consumed; 503 `Transaction Failure` for another session's flow."""
        if any(part.flow_id not in self.consumers for part in parts):
            raise BrokerRefusal(503, "Transaction Failure")
        return [_consumed(part) for part in parts]

    def close(self, flow: int) -> None:
        """A publisher flow is closed; what it published still belongs to the current transaction."""
        if flow in self.counts:
            self.closed.add(flow)
        else:
            del self.last_ids[flow]

    def begin(self) -> None:
        self.messages, self.is_too_long = [], False
        self.counts.clear()
        for flow in self.closed:
            del self.last_ids[flow]
        self.closed.clear()


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a client, and the effects: in this order, as the client drops messages until it has the answer."""

    body: bytes
    response: Response
    effects: list[Effect]


class TransactionDesk:
    """Called only by its session. Transacted sessions end with their connection: a resumed one is new, its transaction
    lost."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._sessions: dict[int, _Transacted] = {}
        self._by_flow: dict[int, _Transacted] = {}
        """By publisher flow."""
        self._by_consumer: dict[FlowId, _Transacted] = {}
        self._last_session_id = 0

    def check(self, session_id: int) -> _Transacted:
        """Find an open transacted session; 400 `Unknown Transacted Session`."""
        session = self._sessions.get(session_id)
        if session is None:
            raise BrokerRefusal(400, "Unknown Transacted Session")
        return session

    def add_publisher(self, session_id: int, flow: FlowId) -> None:
        """A publisher flow of a session is open; errors as for `check`."""
        session = self.check(session_id)
        session.last_ids[flow] = 0
        self._by_flow[flow] = session

    def add_consumer(self, session_id: int, flow: FlowId) -> None:
        """A consumer flow of a session is bound; errors as for `check`."""
        session = self.check(session_id)
        session.consumers[flow] = None
        self._by_consumer[flow] = session

    def close_publisher(self, flow: int) -> None:
        """A publisher flow is closed; no effect if it is in no session."""
        session = self._by_flow.pop(flow, None)
        if session is not None:
            session.close(flow)

    def end_consumer(self, flow: FlowId) -> None:
        """A consumer flow has ended; no effect if it is in no session."""
        session = self._by_consumer.pop(flow, None)
        if session is not None:
            del session.consumers[flow]

    def hold(self, flow: int, message_id: int, message: Published) -> bool:
        """Keep a message until its transaction ends; False if the flow is in no session."""
        session = self._by_flow.get(flow)
        if session is None:
            return False
        if message_id > session.last_ids[flow]:
            session.last_ids[flow] = message_id
            if len(session.messages) < MOST_HELD_MESSAGES:
                session.messages.append(message)
                session.counts[flow] += 1
            else:
                session.is_too_long = True
        return True

    def answer(self, client: ClientId, body: bytes) -> Answer:
        """Carry a request out and return its answer. Raises `ProtocolError`."""
        request = read_transaction(body)
        if request.kind in (TransactionKind.OPEN, TransactionKind.RESUME):
            return self._open(client, request)
        try:
            session = self.check(request.session_id)
        except BrokerRefusal as refusal:
            return _refused(request, TransactionKind.ROLLBACK, refusal)
        effects: list[Effect] = []
        response, kind = OK, ANSWERS.get(request.kind, request.kind)
        match request.kind:
            case TransactionKind.COMMIT:
                try:
                    effects = self._commit(client, session, request)
                except BrokerRefusal as refusal:
                    effects = self._engine.transactions.roll_back(session.consumers)
                    response, kind = Response.of(refusal), TransactionKind.ROLLBACK
            case TransactionKind.ROLLBACK:
                effects = self._engine.transactions.roll_back(session.consumers)
            case TransactionKind.CLOSE:
                self._close(request.session_id)
            case _:
                raise ProtocolError(f"transaction control {request.kind} from a client")
        answer = Answer(answer_body(kind, request, request.session_id, last_ids=session.last_ids), response, effects)
        session.begin()
        return answer

    def _open(self, client: ClientId, request: TransactionRequest) -> Answer:
        kind = ANSWERS[request.kind]
        try:
            self._engine.transactions.check(client)
        except BrokerRefusal as refusal:
            return _refused(request, kind, refusal)
        self._last_session_id += 1
        self._sessions[self._last_session_id] = _Transacted()
        name = f"transacted-{client}-{self._last_session_id}"
        return Answer(answer_body(kind, request, self._last_session_id, name), OK, [])

    def _commit(self, client: ClientId, session: _Transacted, request: TransactionRequest) -> list[Effect]:
        messages = session.take(request.published)
        consumed = session.check_consumed(request.consumed)
        effects = self._engine.transactions.commit(client, messages, consumed)
        for part in request.consumed:
            # The client reports here what it has received, and may report it nowhere else.
            received, window = DeliveryId(part.received_id), min(part.window, WINDOW)
            effects += self._engine.open_window(FlowId(part.flow_id), received, window)
        return effects

    def _close(self, session_id: int) -> None:
        session = self._sessions.pop(session_id)
        for flow in session.last_ids:
            self._by_flow.pop(flow, None)
        for consumer in session.consumers:
            del self._by_consumer[consumer]


def _refused(request: TransactionRequest, kind: TransactionKind, refusal: BrokerRefusal) -> Answer:
    return Answer(answer_body(kind, request, request.session_id), Response.of(refusal), [])


def _consumed(part: ConsumedPart) -> Consumed:
    settled = SettledRange(DeliveryId(part.first), DeliveryId(part.last), Outcome.ACCEPTED)
    return Consumed(FlowId(part.flow_id), settled, part.count)
