"""What a small queue with its parking queue is made of, copies of it, and when two of its states are one."""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from lbg_runtime.core.parking.ledger import ParkingLedger
from lbg_runtime.core.parking.records import LedgerEntry, ParkedMessage, ParkingOwner
from lbg_runtime.model.ids import DeliveryId
from lbg_runtime.model.message import KEY_SEQUENCE_PROPERTY, PARTITION_KEY_PROPERTY, PUBLISHER_PROPERTY, Message
from tests.core.histories import twin

if TYPE_CHECKING:
    from tests.core.parking.small_parked_queue import ParkedWorld

Name = tuple[str, int]
"""Key and number in it, from 1."""


@dataclass(frozen=True)
class Setup:
    """What is there at first, and what may happen at any moment."""

    keys: str
    """The key of each message, in the order in which they are published. Those of the key `p` have no stamps."""
    fails: tuple[Name, ...]
    """Messages that fail until an operator has mended what they need."""
    may_happen: tuple[str, ...] = ()
    """Each at most once; what is here twice, at most twice."""
    at_once: tuple[str, ...] = ()
    """Regular steps that come before all others as soon as they can, but for the publishing of a message: fewer
    histories."""
    clocks: tuple[int, ...] = (10, 20, 30, 40)
    """The generations of the owners, one after the other."""


class Spooled(NamedTuple):
    """On the queue."""

    name: Name
    is_redelivered: bool


class Settled(NamedTuple):
    """A settlement on its way to the broker: of a message of the queue, or of a delivery of the parking queue."""

    what: Name | DeliveryId
    is_handled: bool = False


Sent = Settled | LedgerEntry


@dataclass(frozen=True, slots=True)
class Item:
    """A message in a lane."""

    name: Name
    is_redelivered: bool
    parked_id: DeliveryId | None = None
    """Of a replay."""
    has_failed: bool = False
    """Its attempts have ended, and it is to be parked."""
    copy: ParkedMessage | None = None
    """What was or is about to be sent to the parking queue."""
    was_sent: bool = False
    """The copy may be in the parking queue."""
    is_awaited: bool = False
    """It is being parked just now."""
    has_come: bool = False
    """Its copy is or was in the parking queue, and counts."""


@dataclass
class Owner:
    """A member during one stay: what it knows, and what it has sent."""

    ledger: ParkingLedger
    lanes: dict[str, tuple[Item, ...]] = field(default_factory=dict)
    running: frozenset[str] = frozenset()
    """Keys of which the head is with its handler."""
    handled: frozenset[Name] = frozenset()
    read_to: int = 0
    """The last delivery of the parking queue that it has read."""
    shown: frozenset[Name] = frozenset()
    """Messages of the queue that it was shown."""
    is_open: bool = False
    lost: frozenset[str] = frozenset()
    """Handles that are gone: "queue", "parking", or "both" if it is cut off; "fed again" if they are back."""
    is_leaving: bool = False
    is_recalled: bool = False
    """It has noticed a loss."""
    held: tuple[Settled, ...] = ()
    """Settlements of the queue that wait for the timer."""
    held_parked: tuple[Settled, ...] = ()
    """Those of the parking queue."""
    line: tuple[Sent, ...] = ()
    """On their way to the broker, in order."""


def message(name: Name) -> Message:
    """As it was published."""
    key, number = name
    stamps = {} if key == "p" else {PUBLISHER_PROPERTY: "u", KEY_SEQUENCE_PROPERTY: number}
    return Message("t", str(number).encode(), {PARTITION_KEY_PROPERTY: key, **stamps})


def name_of(entry: ParkedMessage) -> Name:
    """Of what is parked."""
    return entry.lane, int(entry.original.payload)


def owner_twin(owner: Owner) -> Owner:
    """A copy that shares only what never changes."""
    made = replace(owner, lanes=owner.lanes.copy())
    made.ledger = ledger_twin(owner.ledger)
    return made


def ledger_twin(ledger: ParkingLedger) -> ParkingLedger:
    """See `owner_twin`."""
    made = twin(ledger)
    made._lanes = {lane: twin(parked) for lane, parked in ledger._lanes.items()}
    made.parked_lanes = made._lanes.keys()
    return made


# -- marks


def mark(world: "ParkedWorld") -> int:
    """Equal for states in which the same can happen: deliveries of the parking queue count by their places."""
    places = {each: place for place, each in enumerate(world.parking)}
    made: list[object] = [world.spool, tuple(map(_sign, world.parking.values())), world.unpublished, world.late_signs()]
    made += [
        world.handled,
        world.dropped,
        world.done,
        world.mended,
        world.may_happen,
        world.owners,
        world.is_uneven,
        world.failed,
    ]
    owner, ledger = world.owner, world.owner.ledger

    def at(delivery_id: DeliveryId | None) -> int:
        return -2 if delivery_id is None else places.get(delivery_id, -1)

    made += [owner.running, owner.handled, owner.shown, owner.is_open, owner.lost, owner.is_leaving, owner.is_recalled]
    made.append(sum(each <= owner.read_to for each in world.parking))
    for key, lane in sorted(owner.lanes.items()):
        for item in lane:
            flags = item.is_redelivered, item.has_failed, item.was_sent, item.is_awaited, item.has_come
            made.append((key, item.name, at(item.parked_id), item.copy and item.copy.number, *flags))
    for sent in (owner.held, owner.held_parked, owner.line):
        made.append(tuple(_sign_sent(each, places) for each in sent))
    made += [ledger.owner, ledger.is_open, ledger.count, ledger.is_paused, ledger._current, at(ledger._fence)]
    made += [ledger._last_number, tuple(sorted(ledger._sent.items())), frozenset(ledger._sent_again)]
    made.append(frozenset(ledger._gone))
    for lane_key, parked in sorted(ledger._lanes.items()):
        entries = tuple(at(each.delivery_id) for each in parked.entries)
        numbers = tuple(sorted(parked.last_numbers.items()))
        made.append((lane_key, entries, numbers, tuple(map(at, parked.unparks)), parked.is_offered))
    return hash(tuple(made))


def _sign_sent(sent: Sent, places: dict[DeliveryId, int]) -> object:
    if not isinstance(sent, Settled):
        return _sign(sent)
    return (sent.what if isinstance(sent.what, tuple) else places.get(sent.what, -1), sent.is_handled)


def _sign(entry: LedgerEntry) -> object:
    return (entry.lane, entry.owner, entry.number, name_of(entry)) if isinstance(entry, ParkedMessage) else entry


def sign_all(entries: tuple[LedgerEntry, ...]) -> tuple[object, ...]:
    """What tells entries from each other; messages cannot be hashed."""
    return tuple(map(_sign, entries))


def owner_of(generation: int, count: int) -> ParkingOwner:
    """The owner's name."""
    return ParkingOwner(generation, f"n{count}")
