"""The contents of a parking queue: parked messages, fences of its owners, requests of operators, and reserved room.

All of them are persistent messages on the queue's own topic, so they have one common order (docs/failing.md). A parked
message is the original one with additional properties; the other kinds consist of properties only.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from lbg_runtime.core.lanes import LaneKey
from lbg_runtime.model.ids import QueueName
from lbg_runtime.model.message import Message, PropertyValue
from lbg_runtime.model.whole import whole_number

_Read = TypeVar("_Read")

PARKING_PREFIX = "lbg-parked/"
"""The name of a parking queue is this, the name of its group, and the index of the queue whose messages it takes; its
topic has the same name."""

SHOWN_UNSETTLED = 10_000
"""How many unsettled messages a parking queue must be able to show its owner, which reads everything before it settles
anything that is parked. The default of PubSub+ (`maxDeliveredUnackedMsgsPerFlow`)."""

UNREAD_LANE = "unread"
"""Stands for the lane of entries that do not say theirs. No real lane has this name: those begin with a word and a
space."""

KIND_PROPERTY = "lbg_parking"
LANE_PROPERTY = "lbg_parked_lane"
OWNER_PROPERTY = "lbg_parked_owner"
NUMBER_PROPERTY = "lbg_parked_number"
TOPIC_PROPERTY = "lbg_parked_topic"
ATTEMPTS_PROPERTY = "lbg_parked_attempts"
ERROR_PROPERTY = "lbg_parked_error"
STACK_PROPERTY = "lbg_parked_stack"
MEMBER_PROPERTY = "lbg_parked_member"
TIME_PROPERTY = "lbg_parked_at_ms"

_OURS_BEGIN = "lbg_park"
"""The names of all properties of entries begin with this, in later versions as well."""

_REASON_CHARS = 200
"""How much is kept of the reason why an entry cannot be read: members tell it to each other, and log it."""

_MESSAGE, _FENCE, _UNPARK, _DROP, _ROOM = "message", "fence", "unpark", "drop", "room"

_OURS = frozenset(
    {
        KIND_PROPERTY,
        LANE_PROPERTY,
        OWNER_PROPERTY,
        NUMBER_PROPERTY,
        TOPIC_PROPERTY,
        ATTEMPTS_PROPERTY,
        ERROR_PROPERTY,
        STACK_PROPERTY,
        MEMBER_PROPERTY,
        TIME_PROPERTY,
    }
)


@dataclass(frozen=True, slots=True)
class ParkingOwner:
    """One stay of one member as owner of a parking queue."""

    generation: int
    """Microseconds of the member's wall clock, or one more than the larger generation that it found. No order depends
    on the clocks."""
    nonce: str
    """Chosen at random, so that no two owners are the same."""

    def __str__(self) -> str:
        """The written form."""
        return f"{self.generation}:{self.nonce}"


@dataclass(frozen=True, slots=True)
class ParkedMessage:
    """A message set aside, and why."""

    lane: LaneKey
    owner: ParkingOwner
    """The owner that parked it."""
    number: int
    """With the owner, it identifies the message. Numbers go up from the owner's generation, so that even alone, one
    matches no message that was parked here before."""
    original: Message
    attempts: int
    """Attempts of its handler; 0 for a message that follows another of its key."""
    error: str
    """Type and text of the last error. Empty for a message that follows another of its key. It and the stack are also
    empty if the message would have been too large with them."""
    stack: str
    member: str
    parked_at_ms: int
    """On the member's wall clock."""


@dataclass(frozen=True, slots=True)
class OwnerFence:
    """From here on this owner parks, and what earlier owners still send does not count."""

    owner: ParkingOwner


@dataclass(frozen=True, slots=True)
class UnparkAsked:
    """Replay the parked messages of this lane."""

    lane: LaneKey


@dataclass(frozen=True, slots=True)
class DropAsked:
    """Remove the messages of a lane that come before this order, or only the one with this owner and number."""

    lane: LaneKey
    only: tuple[ParkingOwner, int] | None = None


@dataclass(frozen=True, slots=True)
class RoomKept:
    """Carries no information, but occupies part of the queue's quota until an owner settles it: this reserves room for
    messages that must not wait."""

    size_bytes: int
    """Size of the payload; overhead comes on top."""


@dataclass(frozen=True, slots=True)
class UnreadEntry:
    """Something that this version cannot read, such as an entry of a later one."""

    message: Message
    """The message as it is in the queue; if it is a parked one, with the stamps of the original."""
    lane: LaneKey | None
    """None if it does not say its lane either."""
    only: tuple[ParkingOwner, int] | None
    """What identifies a parked message; None if that cannot be read."""
    is_ours: bool
    """False if it has none of our properties, so that no version of ours has put it there."""
    reason: str


LedgerEntry = ParkedMessage | OwnerFence | UnparkAsked | DropAsked | UnreadEntry
"""The entries that an owner's ledger is shown."""

WrittenEntry = ParkedMessage | OwnerFence | UnparkAsked | DropAsked | RoomKept

ParkingEntry = WrittenEntry | UnreadEntry


def parking_queue(group: str, queue_index: int) -> QueueName:
    """The name of the parking queue, which is also its topic."""
    return QueueName(f"{PARKING_PREFIX}{group}/{queue_index}")


def encode_entry(entry: WrittenEntry, topic: str) -> Message:
    """The message to publish on the queue's topic."""
    match entry:
        case ParkedMessage():
            original = entry.original
            told: dict[str, PropertyValue] = {
                **original.properties,
                KIND_PROPERTY: _MESSAGE,
                LANE_PROPERTY: entry.lane,
                OWNER_PROPERTY: str(entry.owner),
                NUMBER_PROPERTY: entry.number,
                TOPIC_PROPERTY: original.topic,
                ATTEMPTS_PROPERTY: entry.attempts,
                ERROR_PROPERTY: entry.error,
                STACK_PROPERTY: entry.stack,
                MEMBER_PROPERTY: entry.member,
                TIME_PROPERTY: str(entry.parked_at_ms),
            }
            return Message(topic, original.payload, told, original.message_id, original.sent_at_ms, original.headers)
        case OwnerFence(owner):
            return _plain(topic, {KIND_PROPERTY: _FENCE, OWNER_PROPERTY: str(owner)})
        case UnparkAsked(lane):
            return _plain(topic, {KIND_PROPERTY: _UNPARK, LANE_PROPERTY: lane})
        case DropAsked(lane, only):
            which: dict[str, PropertyValue] = {KIND_PROPERTY: _DROP, LANE_PROPERTY: lane}
            if only is not None:
                which |= {OWNER_PROPERTY: str(only[0]), NUMBER_PROPERTY: only[1]}
            return _plain(topic, which)
        case RoomKept(size_bytes):
            return Message(topic, bytes(size_bytes), {KIND_PROPERTY: _ROOM})


class _NotAnEntry(Exception):
    """A message in a parking queue is not an entry that this version knows."""


def decode_entry(message: Message) -> ParkingEntry:
    """Decode a message of a parking queue, whoever has put it there."""
    try:
        return _decode(message)
    except _NotAnEntry as refusal:
        found = message.properties
        is_ours = any(name.startswith(_OURS_BEGIN) for name in found)
        lane = _if_read(_lane, found)
        return UnreadEntry(message, lane, _if_read(_only, found), is_ours, str(refusal)[:_REASON_CHARS])


def _decode(message: Message) -> WrittenEntry:
    found = message.properties
    match found.get(KIND_PROPERTY):
        case "message":
            kept = {name: value for name, value in found.items() if name not in _OURS}
            return ParkedMessage(
                lane=_lane(found),
                owner=_owner(found),
                number=_whole(found, NUMBER_PROPERTY),
                original=Message(
                    _text(found, TOPIC_PROPERTY),
                    message.payload,
                    kept,
                    message.message_id,
                    message.sent_at_ms,
                    message.headers,
                ),
                attempts=_whole(found, ATTEMPTS_PROPERTY),
                error=_text(found, ERROR_PROPERTY),
                stack=_text(found, STACK_PROPERTY),
                member=_text(found, MEMBER_PROPERTY),
                parked_at_ms=_number_in(_text(found, TIME_PROPERTY), TIME_PROPERTY),
            )
        case "fence":
            return OwnerFence(_owner(found))
        case "unpark":
            return UnparkAsked(_lane(found))
        case "drop":
            return DropAsked(_lane(found), None if OWNER_PROPERTY not in found else _only(found))
        case "room":
            return RoomKept(len(message.payload))
        case other:
            raise _NotAnEntry(f"{KIND_PROPERTY} {other!r}")


def _plain(topic: str, properties: Mapping[str, PropertyValue]) -> Message:
    # Not empty, because some tools do not show messages without content.
    return Message(topic, str(properties[KIND_PROPERTY]).encode(), properties)


def _text(found: Mapping[str, PropertyValue], name: str) -> str:
    value = found.get(name)
    if not isinstance(value, str):
        raise _NotAnEntry(f"{name} {value!r}")
    return value


def _whole(found: Mapping[str, PropertyValue], name: str) -> int:
    value = found.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _NotAnEntry(f"{name} {value!r}")
    return value


def _number_in(text: str, name: str) -> int:
    if (number := whole_number(text, 19)) is None:
        raise _NotAnEntry(f"{name} {text!r}")
    return number


def _lane(found: Mapping[str, PropertyValue]) -> LaneKey:
    return _text(found, LANE_PROPERTY)


def _owner(found: Mapping[str, PropertyValue]) -> ParkingOwner:
    generation, _, nonce = _text(found, OWNER_PROPERTY).partition(":")
    return ParkingOwner(_number_in(generation, OWNER_PROPERTY), nonce)


def _only(found: Mapping[str, PropertyValue]) -> tuple[ParkingOwner, int]:
    return _owner(found), _whole(found, NUMBER_PROPERTY)


def _if_read(read: Callable[[Mapping[str, PropertyValue]], _Read], found: Mapping[str, PropertyValue]) -> _Read | None:
    try:
        return read(found)
    except _NotAnEntry:
        return None
