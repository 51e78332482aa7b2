"""Control messages to bytes and back. Strict: bytes become exactly one message, or are refused with a reason.

A message is one JSON array in UTF-8, at most `MAX_MESSAGE_BYTES` long. Its items have no names, because a heartbeat
goes out every second to every member:

    [version, kind, group, member, incarnation, nonce, sequence, ...]

    heartbeat      state, weight, settings digest, [[name, value] ...], view digest,
                   [[queue, flow, epoch, in flight] ...],
                   generation, queue count, target or null, left, finished, proof
    state_request
    leave
    offer          queue, epoch, move id, to
    accept         queue, move id
    reject         queue, move id, reason
    taken          queue, move id or null, epoch
    group_question question
    group_answer   question, [[member, suspect] ...]
    key_question   question, key
    key_answer     question, shard, queue, [flow, epoch, in flight] or null, waiting, parked,
                   [stage, attempts, redelivered, number or null, received, started or null, retry in or null] or null,
                   [number or null, attempts, ended] or null
    parking_waits  question, [[queue, waited, reason] ...]
    key_detail     question, topic or null, error or null, outcome or null
    queue_stopped  question
    stopped_queues question, [[queue] ...]
    member_facts   question, version, keys parked, [[queue index, handled] ...]

`suspect` and `redelivered` are 0 or 1; `stage` is 0 ready, 1 running, 2 delayed; past and future times are milliseconds
from now. `flow` is 0 standby, 1 active, 2 draining; `outcome` is 0 handled, 1 error queue, 2 dead message queue.
Numbers are integers from 0 to 2^63 - 1. Names, ids, keys, topics, reasons and errors are 1 to 250 printable characters;
values of settings and proofs may also be empty. A setting or a queue is listed once. `left` and `finished` are arrays
of shards and of queue indexes, ascending.

The array has exactly these items: any addition takes a new version number. Members of another version are refused
before anything else in the message is looked at. A kind that a member does not know is refused by itself, and noted
once; so what only observers need may come as a new kind.

More than 400 lines, because each kind is written and read here, side by side.
"""

import json
from enum import Enum
from itertools import pairwise
from typing import TypeVar

from lbg_runtime.core.group.control_messages import (
    MAX_NUMBER,
    Accept,
    ControlMessage,
    FlowReport,
    GroupAnswer,
    GroupQuestion,
    Header,
    Heartbeat,
    Inquiry,
    KeyAnswer,
    KeyDetail,
    KeyQuestion,
    KeySight,
    LaneHead,
    LastHandled,
    LastOutcome,
    Leave,
    Life,
    MemberFacts,
    MemberState,
    MoveId,
    Offer,
    ParkingWait,
    ParkingWaits,
    QuestionId,
    QueueStopped,
    Reject,
    ReportedFlow,
    SeenMember,
    StateRequest,
    StoppedQueues,
    Taken,
    is_valid_text,
    settings_digest,
)
from lbg_runtime.core.lanes import LaneStage
from lbg_runtime.core.restripe.striping import Striping, StripingReport
from lbg_runtime.model.errors import LbgError
from lbg_runtime.model.ids import Epoch, GroupName, MemberId, QueueName

_Name = TypeVar("_Name")
_Value = TypeVar("_Value")

CONTROL_VERSION = 3

MAX_MESSAGE_BYTES = 128 * 1024
"""Room for a member on about a thousand queues; anything longer is refused unread."""

_FLOW_STATES = (ReportedFlow.STANDBY, ReportedFlow.ACTIVE, ReportedFlow.DRAINING)
_STAGES = (LaneStage.READY, LaneStage.RUNNING, LaneStage.DELAYED)
_OUTCOMES = (LastOutcome.HANDLED, LastOutcome.ERROR_QUEUE, LastOutcome.DMQ)


class RefusalReason(Enum):
    """Why bytes are not a control message for us. Values appear in notes."""

    TOO_LARGE = "too_large"
    VERSION = "version"
    GROUP = "group"
    MALFORMED = "malformed"


class ControlMessageRefused(LbgError):
    """The bytes are not a control message for this group and version, or a message is too large to be sent."""

    def __init__(self, reason: RefusalReason, found: str) -> None:
        super().__init__(f"control message refused ({reason.value}): {found}")
        self.reason = reason
        self.found = found
        """What was wrong, for the log; short, no matter what was received."""


def encode(message: ControlMessage | Inquiry) -> bytes:
    """Encode the message. Raises `ControlMessageRefused` if it is too large; names in it are trusted."""
    header = message.header
    kind, body = _body(message)
    life = header.life
    items = [CONTROL_VERSION, kind, header.group, header.member, life.incarnation, life.nonce, header.sequence, *body]
    payload = json.dumps(items, ensure_ascii=False, separators=(",", ":")).encode()
    _check_size(payload)
    return payload


def decode(payload: bytes, group: GroupName) -> ControlMessage | Inquiry:
    """Decode the message; raises `ControlMessageRefused` for any other bytes, and no other error."""
    _check_size(payload)
    try:
        items = json.loads(payload.decode())
    except (ValueError, RecursionError):  # the latter for arrays nested thousands of levels deep
        raise ControlMessageRefused(RefusalReason.MALFORMED, "no JSON in UTF-8") from None
    if not isinstance(items, list):
        raise ControlMessageRefused(RefusalReason.MALFORMED, "no array")
    reader = _Reader(items)
    version = reader.number("version")
    if version != CONTROL_VERSION:
        raise ControlMessageRefused(RefusalReason.VERSION, f"version {version}")
    kind = reader.text("kind")
    sender_group = GroupName(reader.text("group"))
    if sender_group != group:
        raise ControlMessageRefused(RefusalReason.GROUP, f"group {sender_group}")
    member = MemberId(reader.text("member"))
    life = Life(reader.number("incarnation"), reader.number("nonce"))
    message = _message(kind, Header(sender_group, member, life, reader.number("sequence")), reader)
    reader.end()
    return message


def _check_size(payload: bytes) -> None:
    if len(payload) > MAX_MESSAGE_BYTES:
        raise ControlMessageRefused(RefusalReason.TOO_LARGE, f"{len(payload)} bytes")


def _body(message: ControlMessage | Inquiry) -> tuple[str, list[object]]:
    """The name of the kind, and the items after the header."""
    match message:
        case Heartbeat(_, state, weight, settings, flows, view_digest, striping):
            listed = [[queue, *_flow_items(flow)] for queue, flow in sorted(flows.items())]
            pairs = [list(pair) for pair in sorted(settings.items())]
            known = [state.value, weight, settings_digest(settings), pairs, view_digest, listed]
            return "heartbeat", [*known, *_striping_items(striping)]
        case StateRequest():
            return "state_request", []
        case Leave():
            return "leave", []
        case Offer(_, queue, epoch, move_id, to):
            return "offer", [queue, epoch, move_id, to]
        case Accept(_, queue, move_id):
            return "accept", [queue, move_id]
        case Reject(_, queue, move_id, reason):
            return "reject", [queue, move_id, reason]
        case Taken(_, queue, taken_move_id, epoch):
            return "taken", [queue, taken_move_id, epoch]
        case GroupQuestion(_, question):
            return "group_question", [question]
        case GroupAnswer(_, question, members):
            return "group_answer", [question, [[one.member, int(one.is_suspect)] for one in members]]
        case KeyQuestion(_, question, key):
            return "key_question", [question, key]
        case KeyAnswer(_, question, shard, queue, key_flow, sight):
            flow_items = None if key_flow is None else _flow_items(key_flow)
            return "key_answer", [question, shard, queue, flow_items, *_sight_items(sight)]
        case ParkingWaits(_, question, waits):
            listed = [[queue, wait.waited_ms, wait.reason] for queue, wait in sorted(waits.items())]
            return "parking_waits", [question, listed]
        case KeyDetail(_, question, topic, error, outcome):
            return "key_detail", [question, topic, error, None if outcome is None else _OUTCOMES.index(outcome)]
        case QueueStopped(_, question):
            return "queue_stopped", [question]
        case StoppedQueues(_, question, queues):
            return "stopped_queues", [question, [[queue] for queue in queues]]
        case MemberFacts(_, question, version, keys_parked, handled):
            return "member_facts", [question, version, keys_parked, [list(pair) for pair in sorted(handled.items())]]


def _flow_items(flow: FlowReport) -> list[object]:
    return [_FLOW_STATES.index(flow.state), flow.epoch, flow.in_flight]


def _striping_items(report: StripingReport) -> list[object]:
    striping = report.striping
    counts = [striping.generation, striping.queue_count, striping.target]
    return [*counts, sorted(striping.left), sorted(striping.finished), report.proof]


def _sight_items(sight: KeySight) -> list[object]:
    head, last = sight.head, sight.last
    head_items: list[object] | None = None
    if head is not None:
        head_items = [_STAGES.index(head.stage), head.attempts, int(head.redelivered), head.number]
        head_items += [head.received_ms, head.started_ms, head.retry_in_ms]
    last_items = None if last is None else [last.number, last.attempts, last.ended_ms]
    return [sight.waiting, sight.parked, head_items, last_items]


def _message(kind: str, header: Header, reader: "_Reader") -> ControlMessage | Inquiry:
    match kind:
        case "heartbeat":
            return _heartbeat(header, reader)
        case "state_request":
            return StateRequest(header)
        case "leave":
            return Leave(header)
        case "offer":
            queue, epoch = QueueName(reader.text("queue")), Epoch(reader.number("epoch"))
            return Offer(header, queue, epoch, MoveId(reader.text("move id")), MemberId(reader.text("to")))
        case "accept":
            return Accept(header, QueueName(reader.text("queue")), MoveId(reader.text("move id")))
        case "reject":
            queue, move_id = QueueName(reader.text("queue")), MoveId(reader.text("move id"))
            return Reject(header, queue, move_id, reader.text("reason"))
        case "taken":
            queue = QueueName(reader.text("queue"))
            taken_move_id = None if reader.skip_null() else MoveId(reader.text("move id"))
            return Taken(header, queue, taken_move_id, Epoch(reader.number("epoch")))
        case "group_question":
            return GroupQuestion(header, QuestionId(reader.text("question")))
        case "group_answer":
            return _group_answer(header, reader)
        case "key_question":
            return KeyQuestion(header, QuestionId(reader.text("question")), reader.text("key"))
        case "key_answer":
            return _key_answer(header, reader)
        case "parking_waits":
            return _parking_waits(header, reader)
        case "key_detail":
            question, topic = QuestionId(reader.text("question")), reader.text_or_null("topic")
            error = reader.text_or_null("error")
            outcome = None if reader.skip_null() else _OUTCOMES[reader.choice("outcome", len(_OUTCOMES))]
            return KeyDetail(header, question, topic, error, outcome)
        case "queue_stopped":
            return QueueStopped(header, QuestionId(reader.text("question")))
        case "stopped_queues":
            return _stopped_queues(header, reader)
        case "member_facts":
            return _member_facts(header, reader)
        case _:
            raise _malformed("kind")


def _heartbeat(header: Header, reader: "_Reader") -> Heartbeat:
    state_name = reader.text("state")
    try:
        state = MemberState(state_name)
    except ValueError:
        raise _malformed("state") from None
    weight = reader.number("weight")
    claimed_digest = reader.text("settings digest")
    settings: dict[str, str] = {}
    for pair in reader.rows("settings"):
        _put(settings, pair.text("setting"), pair.text("value of a setting", may_be_empty=True))
        pair.end()
    if settings_digest(settings) != claimed_digest:
        raise _malformed("settings digest")
    view_digest = reader.text("view digest")
    flows: dict[QueueName, FlowReport] = {}
    for row in reader.rows("flows"):
        _put(flows, QueueName(row.text("queue")), _flow(row))
    return Heartbeat(header, state, weight, settings, flows, view_digest, _striping(reader))


def _striping(reader: "_Reader") -> StripingReport:
    generation, queue_count = reader.number("generation"), reader.number("queue count")
    target = reader.number_or_null("target")
    left, finished = reader.ascending("left"), reader.ascending("finished")
    proof = reader.text("proof", may_be_empty=True)
    if queue_count == 0 or target == 0 or (target is None and (left or finished)):
        raise _malformed("striping")
    return StripingReport(Striping(generation, queue_count, target, frozenset(left), frozenset(finished)), proof)


def _flow(row: "_Reader") -> FlowReport:
    """The flow that the rest of a row describes."""
    state = _FLOW_STATES[row.choice("flow", len(_FLOW_STATES))]
    flow = FlowReport(state, Epoch(row.number("epoch")), row.number("in flight"))
    row.end()
    return flow


def _group_answer(header: Header, reader: "_Reader") -> GroupAnswer:
    question = QuestionId(reader.text("question"))
    members: list[SeenMember] = []
    for row in reader.rows("members"):
        members.append(SeenMember(MemberId(row.text("member")), bool(row.choice("suspect", 2))))
        row.end()
    return GroupAnswer(header, question, tuple(members))


def _key_answer(header: Header, reader: "_Reader") -> KeyAnswer:
    question, shard = QuestionId(reader.text("question")), reader.number("shard")
    queue = QueueName(reader.text("queue"))
    flow = None if (row := reader.row_or_null("flow")) is None else _flow(row)
    waiting, parked = reader.number("waiting"), reader.number("parked")
    head = None if (row := reader.row_or_null("head")) is None else _head(row)
    last = None
    if (row := reader.row_or_null("last")) is not None:
        last = LastHandled(row.number_or_null("number"), row.number("attempts"), row.number("ended"))
        row.end()
    return KeyAnswer(header, question, shard, queue, flow, KeySight(waiting, parked, head, last))


def _parking_waits(header: Header, reader: "_Reader") -> ParkingWaits:
    question = QuestionId(reader.text("question"))
    waits: dict[QueueName, ParkingWait] = {}
    for row in reader.rows("waits"):
        _put(waits, QueueName(row.text("queue")), ParkingWait(row.number("waited"), row.text("reason")))
        row.end()
    return ParkingWaits(header, question, waits)


def _stopped_queues(header: Header, reader: "_Reader") -> StoppedQueues:
    question = QuestionId(reader.text("question"))
    queues: dict[QueueName, None] = {}
    for row in reader.rows("queues"):
        _put(queues, QueueName(row.text("queue")), None)
        row.end()
    return StoppedQueues(header, question, tuple(queues))


def _member_facts(header: Header, reader: "_Reader") -> MemberFacts:
    question, version = QuestionId(reader.text("question")), reader.text("version")
    keys_parked = reader.number("keys parked")
    handled: dict[int, int] = {}
    for row in reader.rows("handled"):
        _put(handled, row.number("queue index"), row.number("handled"))
        row.end()
    return MemberFacts(header, question, version, keys_parked, handled)


def _head(row: "_Reader") -> LaneHead:
    head = LaneHead(
        stage=_STAGES[row.choice("stage", len(_STAGES))],
        attempts=row.number("attempts"),
        redelivered=bool(row.choice("redelivered", 2)),
        number=row.number_or_null("number"),
        received_ms=row.number("received"),
        started_ms=row.number_or_null("started"),
        retry_in_ms=row.number_or_null("retry in"),
    )
    row.end()
    return head


def _put(found: dict[_Name, _Value], name: _Name, value: _Value) -> None:
    if name in found:
        raise _malformed("a setting or a queue twice")
    found[name] = value


def _malformed(what: str) -> ControlMessageRefused:
    return ControlMessageRefused(RefusalReason.MALFORMED, what)


class _Reader:
    """Takes the items of one array in order, checking the type of each; raises `ControlMessageRefused` otherwise."""

    def __init__(self, items: list[object]) -> None:
        self._items = items
        self._position = 0

    def number(self, what: str) -> int:
        item = self._next(what)
        # Not isinstance: true is not a number here, though Python's bool is an int.
        if type(item) is not int or not 0 <= item <= MAX_NUMBER:
            raise _malformed(what)
        return item

    def number_or_null(self, what: str) -> int | None:
        """The next item, a number or null."""
        return None if self.skip_null() else self.number(what)

    def choice(self, what: str, count: int) -> int:
        """The next item, a number below `count`."""
        number = self.number(what)
        if number >= count:
            raise _malformed(what)
        return number

    def text(self, what: str, *, may_be_empty: bool = False) -> str:
        item = self._next(what)
        if not isinstance(item, str) or not (is_valid_text(item) or (may_be_empty and not item)):
            raise _malformed(what)
        return item

    def text_or_null(self, what: str) -> str | None:
        """The next item, a text or null."""
        return None if self.skip_null() else self.text(what)

    def rows(self, what: str) -> list["_Reader"]:
        """The next item, an array of arrays."""
        rows = self._list(what)
        readers = [_Reader(row) for row in rows if isinstance(row, list)]
        if len(readers) < len(rows):
            raise _malformed(what)
        return readers

    def ascending(self, what: str) -> list[int]:
        """The next item, an array of numbers, each larger than the one before."""
        reader = _Reader(self._list(what))
        numbers = [reader.number(what) for _ in range(len(reader._items))]
        if any(before >= after for before, after in pairwise(numbers)):
            raise _malformed(what)
        return numbers

    def row_or_null(self, what: str) -> "_Reader | None":
        """The next item, an array or null."""
        if self.skip_null():
            return None
        return _Reader(self._list(what))

    def skip_null(self) -> bool:
        """Take the next item if it is null; return whether it was."""
        if self._position < len(self._items) and self._items[self._position] is None:
            self._position += 1
            return True
        return False

    def end(self) -> None:
        if self._position < len(self._items):
            raise _malformed("more items than the kind has")

    def _list(self, what: str) -> list[object]:
        item = self._next(what)
        if not isinstance(item, list):
            raise _malformed(what)
        return item

    def _next(self, what: str) -> object:
        if self._position >= len(self._items):
            raise _malformed(f"{what} is missing")
        self._position += 1
        return self._items[self._position - 1]
