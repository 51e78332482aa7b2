"""Owners of a parking queue that die at every step, and what they sent that comes late: no key loses or swaps anything.

The world is a queue, its parking queue, and one owner at a time. What an owner sends leaves in order on one connection;
settlements wait for a timer or a flush first. When it dies, a part of all that arrives; of the rest, what was published
may still arrive, at any time, as the client of a process that only lost its connection sends it again. Where the
parking queue has no subscription for a while, what is published is gone; the owner sends what has not come again,
whether it is lost or only slow.
"""

import random
from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lbg_runtime.core.parking.ledger import ParkingLedger, Verdict
from lbg_runtime.core.parking.orders import (
    LedgerOrder,
    ParkedSeen,
    ParkingOpened,
    PublishDrop,
    PublishFence,
    Replay,
    SettleParked,
)
from lbg_runtime.core.parking.records import (
    DropAsked,
    LedgerEntry,
    OwnerFence,
    ParkedMessage,
    ParkingOwner,
    UnparkAsked,
)
from lbg_runtime.model.ids import DeliveryId
from lbg_runtime.model.message import KEY_SEQUENCE_PROPERTY, PARTITION_KEY_PROPERTY, PUBLISHER_PROPERTY, Message

KEYS = ("a", "b", "plain")
"""Messages of the last one have no stamps, so copies of them cannot be known."""

keys = st.sampled_from(KEYS)


def message(key: str, number: int) -> Message:
    stamps = {} if key == "plain" else {PUBLISHER_PROPERTY: "p", KEY_SEQUENCE_PROPERTY: number}
    return Message("t", str(number).encode(), {PARTITION_KEY_PROPERTY: key, **stamps})


def number_of(one: Message) -> int:
    return int(one.payload)


@dataclass
class Owner:
    """One owner's life: what it knows, and what it has sent."""

    ledger: ParkingLedger
    lanes: dict[str, list[tuple[int, bool]]] = field(default_factory=lambda: {key: [] for key in KEYS})
    """Numbers that are dispatched, and whether they came before."""
    moving: dict[str, ParkedMessage] = field(default_factory=dict)
    """By key, as what its head was sent to be parked."""
    offered: dict[str, DeliveryId] = field(default_factory=dict)
    replaying: dict[str, int] = field(default_factory=dict)
    replayed: set[tuple[str, int]] = field(default_factory=set)
    read: int = 0
    """How much of the parking queue it has read."""
    is_open: bool = False
    held: list[tuple[str, object]] = field(default_factory=list)
    """Settlements that wait for the timer."""
    line: list[tuple[str, object]] = field(default_factory=list)
    """On their way to the broker, in order."""


class ParkingWorld(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.queue: dict[tuple[str, int], bool] = {}
        """What lies on the queue, and whether it was shown to an owner before."""
        self.published = dict.fromkeys(KEYS, 0)
        self.parking: dict[int, LedgerEntry] = {}
        self.spooled = 0
        self.log: list[int] = []
        """Ids in the order of their coming, as the owner of the time reads them."""
        self.late: list[LedgerEntry] = []
        self.poisoned: set[tuple[str, int]] = set()
        self.handled: dict[str, list[int]] = {key: [] for key in KEYS}
        self.dropped: set[tuple[str, int]] = set()
        self.done: set[tuple[str, int]] = set()
        """Handled, and the broker has taken the settlement: nobody may handle it again."""
        self.undropped: set[tuple[str, int]] = set()
        """By lane and the number as parked, of which the order to drop what else comes was attracted by nothing."""
        self.is_deaf = False
        """Whether the parking queue attracts nothing."""
        self.owners = 0
        self.owner = self.new_owner(1)

    # -- the broker

    def spool(self, entry: LedgerEntry) -> None:
        if self.is_deaf:
            if isinstance(entry, DropAsked) and entry.only is not None:
                self.undropped.add((entry.lane, entry.only[1]))
            return
        self.spooled += 1
        self.parking[self.spooled] = entry
        self.log.append(self.spooled)

    def arrive(self, item: tuple[str, object]) -> None:
        kind, what = item
        if kind == "publish":
            self.spool(what)
        elif kind == "settle":
            self.queue.pop(what, None)
        elif kind == "settle_handled":
            if what in self.queue:
                del self.queue[what]
                self.done.add(what)
        else:
            self.parking.pop(what, None)

    # -- the owner

    def new_owner(self, generation: int) -> Owner:
        self.owners += 1
        self.log = sorted(self.parking)
        owner = Owner(ParkingLedger(ParkingOwner(generation, f"n{self.owners}")))
        owner.line.append(("publish", OwnerFence(owner.ledger.owner)))
        return owner

    def obey(self, orders: list[LedgerOrder]) -> None:
        owner = self.owner
        for order in orders:
            match order:
                case SettleParked(delivery_id):
                    owner.held.append(("settle_parked", delivery_id))
                case ParkedSeen(number):
                    for key, sent in list(owner.moving.items()):
                        if sent.number == number:
                            del owner.moving[key]
                            self.settle(key, owner.lanes[key].pop(0)[0])
                case Replay(lane, _, original):
                    assert lane not in owner.replaying
                    owner.replaying[lane] = number_of(original)
                case PublishFence():
                    owner.line.append(("publish", OwnerFence(owner.ledger.owner)))
                case PublishDrop(asked):
                    owner.line.append(("publish", asked))
                case ParkingOpened():
                    owner.moving.clear()
                    if not owner.is_open:
                        owner.is_open = True
                        for key, number in sorted(self.queue, key=lambda one: one[1]):
                            owner.lanes[key].append((number, self.queue[key, number]))
                            self.queue[key, number] = True

    def settle(self, key: str, number: int, kind: str = "settle") -> None:
        self.owner.held.append((kind, (key, number)))

    def flush(self) -> None:
        self.owner.line += self.owner.held
        self.owner.held.clear()

    def flush_queue(self) -> None:
        """Of its own settlements: those of the parking queue's flow wait on for the timer."""
        owner = self.owner
        owner.line += [each for each in owner.held if each[0] != "settle_parked"]
        owner.held = [each for each in owner.held if each[0] == "settle_parked"]

    def handle(self, key: str, number: int) -> None:
        """The laws: the first handling of a message comes after that of all before it; what is done stays done."""
        seen = self.handled[key]
        assert (key, number) not in self.done, f"{key} {number} came back"
        if number not in seen:
            missing = {n for n in range(1, number) if n not in seen and (key, n) not in self.dropped}
            assert not missing, f"{key} {number} was handled before {missing}"
            seen.append(number)

    # -- rules

    @rule(key=keys, is_poisoned=st.booleans())
    def publish(self, key: str, *, is_poisoned: bool) -> None:
        self.published[key] += 1
        number = self.published[key]
        if is_poisoned:
            self.poisoned.add((key, number))
        self.queue[key, number] = self.owner.is_open
        if self.owner.is_open:
            self.owner.lanes[key].append((number, False))

    @rule(key=keys)
    def take_turn(self, key: str) -> None:
        owner, lane = self.owner, self.owner.lanes[key]
        if not lane or key in owner.moving:
            return
        number, redelivered = lane[0]
        verdict = owner.ledger.judge(key, message(key, number), redelivered=redelivered)
        if verdict is Verdict.DROP:
            self.settle(key, lane.pop(0)[0])
        elif verdict is Verdict.PARK or (key, number) in self.poisoned:
            self.park(key, number)
        elif key not in owner.replaying:
            self.handle(key, number)
            self.settle(key, lane.pop(0)[0], "settle_handled")

    def park(self, key: str, number: int) -> None:
        owner = self.owner
        if not owner.ledger.is_open or key in owner.replaying:
            return
        self.flush_queue()
        parked = owner.ledger.begin_park(key)
        entry = ParkedMessage(key, owner.ledger.owner, parked, message(key, number), 1, "e", "s", "m", 0)
        owner.moving[key] = entry
        owner.line.append(("publish", entry))

    @rule(is_deaf=st.booleans())
    def subscription_goes_or_comes(self, *, is_deaf: bool) -> None:
        self.is_deaf = is_deaf

    @rule(key=keys)
    def what_has_not_come_is_sent_again(self, key: str) -> None:
        owner = self.owner
        if not owner.ledger.is_open:
            owner.line.append(("publish", OwnerFence(owner.ledger.owner)))
        elif key in owner.moving:
            self.flush_queue()
            owner.ledger.sent_again(owner.moving[key].number)
            owner.line.append(("publish", owner.moving[key]))

    @rule(count=st.integers(1, 6))
    def line_moves(self, count: int) -> None:
        for _ in range(min(count, len(self.owner.line))):
            self.arrive(self.owner.line.pop(0))

    @rule()
    def timer(self) -> None:
        self.flush()

    @rule(count=st.integers(1, 6))
    def read(self, count: int) -> None:
        for _ in range(count):
            if self.owner.read < len(self.log):
                spooled = self.log[self.owner.read]
                self.owner.read += 1
                self.obey(self.owner.ledger.take(DeliveryId(spooled), self.as_read(self.parking[spooled])))

    def as_read(self, entry: LedgerEntry) -> LedgerEntry:
        """What the owner can read of an entry."""
        return entry

    @rule(key=keys, is_good=st.booleans())
    def replay_ends(self, key: str, *, is_good: bool) -> None:
        owner = self.owner
        if key not in owner.replaying:
            return
        number = owner.replaying.pop(key)
        if is_good and (key, number) not in self.poisoned:
            assert key == "plain" or (key, number) not in owner.replayed, f"{key} {number} was replayed twice"
            owner.replayed.add((key, number))
            self.handle(key, number)
            self.obey(owner.ledger.replayed(key))
            self.flush()
        elif (key, number) in self.poisoned:
            self.obey(owner.ledger.replay_failed(key))
        else:
            self.obey(owner.ledger.replay_returned(key))

    @rule(key=keys, is_mended=st.booleans())
    def unpark(self, key: str, *, is_mended: bool) -> None:
        if is_mended:
            self.poisoned = {one for one in self.poisoned if one[0] != key}
        self.spool(UnparkAsked(key))

    @rule(key=keys)
    def drop_the_first(self, key: str) -> None:
        found = self.owner.ledger.contents().get(key)
        if found:
            self.dropped.add((key, number_of(found[0].original)))
            self.spool(DropAsked(key, (found[0].owner, found[0].number)))

    @precondition(lambda self: self.late)
    @rule(index=st.integers(0, 20))
    def something_comes_late(self, index: int) -> None:
        self.spool(self.late.pop(index % len(self.late)))

    @rule(cut=st.integers(0, 10), keeps=st.lists(st.booleans(), max_size=10), generation=st.integers(0, 6))
    def owner_dies(self, cut: int, keeps: list[bool], generation: int) -> None:
        """`generation`: clocks need not be right."""
        line = self.owner.line
        for item in line[:cut]:
            self.arrive(item)
        lost = [what for kind, what in line[cut:] if kind == "publish"]
        self.late += [what for what, keep in zip(lost, keeps, strict=False) if keep]
        self.owner = self.new_owner(generation)

    @rule(generation=st.integers(0, 6))
    def owner_leaves(self, generation: int) -> None:
        """All that it has sent arrives, whatever it has read of it; of what it replayed, nothing comes again."""
        owner = self.owner
        if owner.replaying:
            return
        self.flush()
        while owner.line:
            self.arrive(owner.line.pop(0))
        undropped = {
            (entry.lane, number_of(entry.original))
            for entry in self.parking.values()
            if isinstance(entry, ParkedMessage) and (entry.lane, entry.number) in self.undropped
        }
        self.done |= {
            one for one in owner.replayed if one[0] != "plain" and one not in self.queue and one not in undropped
        }
        self.owner = self.new_owner(generation)

    @invariant()
    def nothing_is_lost(self) -> None:
        parked = {
            (entry.lane, number_of(entry.original))
            for entry in self.parking.values()
            if isinstance(entry, ParkedMessage)
        }
        for key in KEYS:
            for number in range(1, self.published[key] + 1):
                one = (key, number)
                assert number in self.handled[key] or one in self.queue or one in parked or one in self.dropped, one

    def teardown(self) -> None:
        """All comes to an end: what is parked is replayed, and nothing but a fence is left."""
        self.poisoned.clear()
        self.is_deaf = False
        while self.late:
            self.something_comes_late(0)
        for _ in range(200):
            for key in KEYS:
                if key in self.owner.ledger.contents():
                    self.unpark(key, is_mended=True)
            for _ in range(4):
                self.timer()
                self.line_moves(1_000)
                self.read(1_000)
                for key in KEYS:
                    self.what_has_not_come_is_sent_again(key)
                    self.replay_ends(key, is_good=True)
                    self.take_turn(key)
            is_done = not self.queue and all(isinstance(entry, OwnerFence) for entry in self.parking.values())
            if is_done and len(self.parking) == 1:
                break
        else:
            raise AssertionError(f"no end: {self.queue}, {self.parking}")
        for key in KEYS:
            expected = {n for n in range(1, self.published[key] + 1) if (key, n) not in self.dropped}
            assert expected <= set(self.handled[key])


ParkingWorld.TestCase.settings = settings(max_examples=20, stateful_step_count=50, deadline=None)
test_parking_world = ParkingWorld.TestCase


def walk(seed: int, world: ParkingWorld, steps: int = 250) -> None:
    """The same world, mostly getting on: a machine that chooses freely seldom gets far."""
    chance = random.Random(seed)
    key = lambda: chance.choices(KEYS, (5, 1, 2))[0]  # noqa: E731
    moves = {
        lambda: world.publish(key(), is_poisoned=chance.random() < 0.15): 6,
        lambda: world.take_turn(key()): 30,
        lambda: world.line_moves(chance.choice((1, 2, 6))): 14,
        world.timer: 3,
        lambda: world.read(chance.choice((1, 6))): 20,
        lambda: world.replay_ends(key(), is_good=chance.random() < 0.9): 10,
        lambda: world.unpark(key(), is_mended=chance.random() < 0.7): 2,
        lambda: world.drop_the_first(key()): 0.3,
        lambda: world.subscription_goes_or_comes(is_deaf=chance.random() < 0.4): 2,
        lambda: world.what_has_not_come_is_sent_again(key()): 4,
        lambda: world.late and world.something_comes_late(chance.randrange(20)): 3,
        lambda: world.owner_dies(
            chance.randrange(4), [chance.random() < 0.7 for _ in range(8)], world.owners + chance.randrange(-3, 4)
        ): 2,
        lambda: world.owner_leaves(world.owners + chance.randrange(-3, 4)): 2,
    }
    for move in chance.choices(list(moves), list(moves.values()), k=steps):
        move()
    world.nothing_is_lost()
    world.teardown()


@given(st.integers(0, 1 << 30))
@settings(max_examples=120, deadline=None)
def test_walks_through_the_world(seed: int) -> None:
    walk(seed, ParkingWorld())
