"""What a small re-striped group is made of, copies of it, and when two of its states are one."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from lbg_runtime.core.flow.in_flight import InFlight
from lbg_runtime.core.restripe.gate import Probe, StripeGate
from lbg_runtime.core.restripe.records import StripeRecord, record_prefix
from lbg_runtime.core.restripe.striping import Striping, StripingBook
from lbg_runtime.model.ids import DeliveryId
from lbg_runtime.model.message import Message
from tests.core.histories import twin

if TYPE_CHECKING:
    from tests.core.restripe.small_stripes import SmallStripes

CONTROL_TOPIC = "c"
PREFIX = record_prefix(CONTROL_TOPIC)


@dataclass(frozen=True)
class Setup:
    """What is there at first, and what may happen at any moment."""

    counts: tuple[int, ...]
    """How many queues there are, and to how many they are brought, one after the other."""
    keys: tuple[str, ...]
    """The key of each message; it begins with the key's shard."""
    may_happen: tuple[str, ...] = ()
    """Each at most once; what is here twice, at most twice."""
    members: int = 2
    shards: int = 2
    at_once: tuple[str, ...] = ()
    """Regular steps that come before all others as soon as they can, but for the publishing of a message: fewer
    histories."""
    known: tuple[int, ...] = (0, 0)
    """By member, the generation of the last re-striping that it knows of."""
    clock: int = 5
    """Generation of the plans, but for how many there are."""
    messages: dict[str, int] = field(init=False, hash=False)
    """How many a key has."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "messages", dict(Counter(self.keys)))


class Entry(NamedTuple):
    """What is spooled in a queue."""

    id: DeliveryId
    content: tuple[str, int] | StripeRecord
    """Key and number in it from 1, or a record."""
    message: Message


class Settled(NamedTuple):
    """On its way to the broker."""

    id: DeliveryId
    is_handled: bool


class Item(NamedTuple):
    """In a lane; the first of a lane is with its handler."""

    queue: int
    handle: int
    id: DeliveryId
    number: int


class Stage(IntEnum):
    """How far a message has come at best."""

    STARTED = 1
    ENDED = 2
    SETTLED = 3


class Fate(NamedTuple):
    """What has become of a message, and from which queue it was handled last."""

    queue: int
    stage: Stage


class Handle:
    """Of a queue's owner."""

    def __init__(self, owner: int, number: int) -> None:
        self.owner = owner
        self.number = number
        self.shown_to = 0
        """The last delivery that was sent on it."""
        self.in_flight = InFlight(1_000)
        self.line: tuple[Settled | Probe, ...] = ()
        """What the broker has not taken."""
        self.echoes: tuple[int, ...] = ()
        """Probes that the broker has answered."""


class Member:
    """A process."""

    def __init__(self, queue_count: int, shards: int, known: int = 0) -> None:
        self.book = StripingBook(queue_count, shards)
        self.book.now = Striping(known, queue_count)
        self.gates: dict[int, StripeGate] = {}
        self.lanes: dict[str, tuple[Item, ...]] = {}
        self.is_away = False


# -- copies


def handle_twin(handle: Handle) -> Handle:
    """See `histories.twin`."""
    made = twin(handle)
    made.in_flight = twin(handle.in_flight)
    return made


def member_twin(member: Member) -> Member:
    """See `histories.twin`."""
    made = twin(member)
    made.book = twin(member.book)
    made.gates = {queue: gate_twin(gate) for queue, gate in member.gates.items()}
    return made


def gate_twin(gate: StripeGate) -> StripeGate:
    """See `histories.twin`."""
    made = twin(gate)
    made._closing = {shard: ids.copy() for shard, ids in gate._closing.items()}
    made._kept = defaultdict(list, {shard: kept.copy() for shard, kept in gate._kept.items()})
    return made


# -- marks


def mark(group: "SmallStripes") -> int:
    """Equal for states in which the same can happen: deliveries count by their places, and probes from the newest."""
    at = {queue: _Places({each.id: place for place, each in enumerate(lie)}) for queue, lie in group.queues.items()}
    lies = tuple((queue, tuple(each.content for each in lie)) for queue, lie in sorted(group.queues.items()))
    fates = tuple(sorted(group.fates.items()))
    flags = group.is_disturbed, group.heard, group.is_to_begin, group.is_refused
    made: list[object] = [lies, tuple(sorted(group.topics.items())), tuple(group.published.values()), fates, flags]
    made.append((group.may_happen, group.targets, group.late))
    for queue, handle in sorted(group.handles.items()):
        places = at[queue]
        newest = group.members[handle.owner].gates[queue]._probe_count
        line = tuple(
            -1 - newest + each.number if isinstance(each, Probe) else (places[each.id], each.is_handled)
            for each in handle.line
        )
        shown = sum(each.id <= handle.shown_to for each in group.queues[queue])
        flying = frozenset(places[each] for each in handle.in_flight._current)
        made.append((queue, handle.owner, shown, flying, line, tuple(newest - each for each in handle.echoes)))
    for who, member in enumerate(group.members):
        made.append((member.book.now, member.book._plan, member.is_away))
        for queue, gate in sorted(member.gates.items()):
            handle_of = group.handles.get(queue)
            has_it = handle_of is not None and handle_of.owner == who
            made.append((queue, gate._done_generation, gate._outdated_generation))
            made.append(mark_of_gate(gate, at[queue]) if has_it else None)
        for key, lane in sorted(member.lanes.items()):
            made.append((key, tuple((each.queue, each.number, group._is_alive(each)) for each in lane)))
    if (conductor := group.conductor) is not None:
        made.append((conductor.plan, frozenset(conductor._published), conductor._waited_for))
        made.append((group.book.now, group.book._plan))
    return hash(tuple(made))


class _Places(dict[DeliveryId, int]):
    def __missing__(self, gone: DeliveryId) -> int:
        return -1


def mark_of_gate(gate: StripeGate, at: Mapping[DeliveryId, object]) -> tuple[object, ...]:
    """A part of marks; `at` has the places of deliveries."""
    newest = gate._probe_count
    return (
        gate._plan,
        gate._plan and at[gate._plan_id],
        tuple(sorted((shard, at[each]) for shard, each in gate._markers.items())),
        gate._finish,
        gate._finish and at[gate._finish_id],
        frozenset(at[each] for each in gate._unfinished),
        tuple(sorted((shard, tuple(sorted(at[each] for each in ids))) for shard, ids in gate._closing.items())),
        frozenset(gate._gone),
        tuple(sorted((shard, tuple(at[each.delivery_id] for each in kept)) for shard, kept in gate._kept.items())),
        tuple(sorted((newest - number, told) for number, told in gate._probes.items())),
        gate._ended_generation,
    )
