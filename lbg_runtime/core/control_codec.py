"""Control messages to bytes and back. Strict: bytes become exactly one message, or are refused with a reason.

A message is one JSON array in UTF-8, at most `MAX_MESSAGE_BYTES` long. It has no names in it, because a heartbeat
goes out every second to every member:

    [version, kind, group, member, incarnation, nonce, sequence, ...]

    heartbeat      state, weight, settings digest, [[name, value] ...], view digest,
                   [[queue, flow, epoch, in flight] ...]
    state_request
    leave
    offer          queue, epoch, move id, to
    accept         queue, move id
    reject         queue, move id, reason
    taken          queue, move id or null, epoch

`flow` is 0 standby, 1 active, 2 draining. Numbers are integers from 0 to 2^63 - 1. Names, ids and reasons are 1 to 250
printable characters; values of settings may be empty too. A setting or a queue is listed once.

The array has exactly these items: what a later version adds makes a new version number. Members of another version
are refused before anything else of the message is looked at.
"""

import json
from enum import Enum

from lbg_runtime.core.control_messages import (
    Accept,
    ControlMessage,
    FlowReport,
    Header,
    Heartbeat,
    Leave,
    Life,
    MemberState,
    MoveId,
    Offer,
    Reject,
    ReportedFlow,
    StateRequest,
    Taken,
    is_valid_text,
    settings_digest,
)
from lbg_runtime.model.errors import LbgError
from lbg_runtime.model.ids import Epoch, GroupName, MemberId, QueueName

CONTROL_VERSION = 1

MAX_MESSAGE_BYTES = 128 * 1024
"""Room for a member on some thousand queues; what is longer is refused unread."""

_MAX_NUMBER = (1 << 63) - 1
_FLOW_STATES = (ReportedFlow.STANDBY, ReportedFlow.ACTIVE, ReportedFlow.DRAINING)


class RefusalReason(Enum):
    """Why bytes are no control message for us. Values are names of counters."""

    TOO_LARGE = "too_large"
    VERSION = "version"
    GROUP = "group"
    MALFORMED = "malformed"


class ControlMessageRefused(LbgError):
    """These bytes are no control message for this group and version, or a message that is too large to be sent."""

    def __init__(self, reason: RefusalReason, found: str) -> None:
        super().__init__(f"control message refused ({reason.value}): {found}")
        self.reason = reason
        self.found = found
        """What was wrong, for the log; short, whatever was received."""


def encode(message: ControlMessage) -> bytes:
    """The message as bytes. Raises `ControlMessageRefused` if it is too large; names in it are trusted."""
    header = message.header
    kind, body = _body(message)
    life = header.life
    items = [CONTROL_VERSION, kind, header.group, header.member, life.incarnation, life.nonce, header.sequence, *body]
    payload = json.dumps(items, ensure_ascii=False, separators=(",", ":")).encode()
    _check_size(payload)
    return payload


def decode(payload: bytes, group: GroupName) -> ControlMessage:
    """The message that the bytes are; raises `ControlMessageRefused` for all other bytes, and nothing else."""
    _check_size(payload)
    try:
        items = json.loads(payload.decode())
    except (ValueError, RecursionError):  # the second for arrays nested some thousand levels deep
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


def _body(message: ControlMessage) -> tuple[str, list[object]]:
    """The kind's name and what follows the header."""
    match message:
        case Heartbeat(_, state, weight, settings, flows, view_digest):
            listed = [
                [queue, _FLOW_STATES.index(flow.state), flow.epoch, flow.in_flight]
                for queue, flow in sorted(flows.items())
            ]
            pairs = [list(pair) for pair in sorted(settings.items())]
            return "heartbeat", [state.value, weight, settings_digest(settings), pairs, view_digest, listed]
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


def _message(kind: str, header: Header, reader: "_Reader") -> ControlMessage:
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
        name = pair.text("setting")
        if name in settings:
            raise _malformed("a setting twice")
        settings[name] = pair.text("value of a setting", may_be_empty=True)
        pair.end()
    if settings_digest(settings) != claimed_digest:
        raise _malformed("settings digest")
    view_digest = reader.text("view digest")
    flows: dict[QueueName, FlowReport] = {}
    for row in reader.rows("flows"):
        queue = QueueName(row.text("queue"))
        if queue in flows:
            raise _malformed("a queue twice")
        flow_state = row.number("flow")
        if flow_state >= len(_FLOW_STATES):
            raise _malformed("flow")
        flows[queue] = FlowReport(_FLOW_STATES[flow_state], Epoch(row.number("epoch")), row.number("in flight"))
        row.end()
    return Heartbeat(header, state, weight, settings, flows, view_digest)


def _malformed(what: str) -> ControlMessageRefused:
    return ControlMessageRefused(RefusalReason.MALFORMED, what)


class _Reader:
    """Takes the items of one array in order, each as what it must be; raises `ControlMessageRefused` otherwise."""

    def __init__(self, items: list[object]) -> None:
        self._items = items
        self._position = 0

    def number(self, what: str) -> int:
        item = self._next(what)
        # Not isinstance: true is no number, though Python's bool is an int.
        if type(item) is not int or not 0 <= item <= _MAX_NUMBER:
            raise _malformed(what)
        return item

    def text(self, what: str, *, may_be_empty: bool = False) -> str:
        item = self._next(what)
        if not isinstance(item, str) or not (is_valid_text(item) or (may_be_empty and not item)):
            raise _malformed(what)
        return item

    def rows(self, what: str) -> list["_Reader"]:
        """The next item, an array of arrays."""
        rows = self._next(what)
        if not isinstance(rows, list):
            raise _malformed(what)
        readers = [_Reader(row) for row in rows if isinstance(row, list)]
        if len(readers) < len(rows):
            raise _malformed(what)
        return readers

    def skip_null(self) -> bool:
        """Take the next item if it is null; whether it was."""
        if self._position < len(self._items) and self._items[self._position] is None:
            self._position += 1
            return True
        return False

    def end(self) -> None:
        if self._position < len(self._items):
            raise _malformed("more items than the kind has")

    def _next(self, what: str) -> object:
        if self._position >= len(self._items):
            raise _malformed(f"{what} is missing")
        self._position += 1
        return self._items[self._position - 1]
