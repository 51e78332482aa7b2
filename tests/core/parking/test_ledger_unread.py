"""What the ledger makes of entries that it cannot read: nothing passes them, and they can be dropped."""

from dataclasses import replace

import pytest

from lbg_runtime.core.parking.ledger import ParkingLedger, Verdict
from lbg_runtime.core.parking.orders import ParkedSeen, ParkingOpened, PublishFence, Replay, SettleParked
from lbg_runtime.core.parking.records import (
    UNREAD_LANE,
    DropAsked,
    LedgerEntry,
    OwnerFence,
    ParkingOwner,
    UnparkAsked,
    UnreadEntry,
)
from lbg_runtime.model.ids import DeliveryId
from tests.core.parking.test_ledger import OLD, OWN, Rig, message, number, parked, settle

OF_LANE = UnreadEntry(message(1), "key a", (OLD, 6), is_ours=True, reason="lbg_parked_attempts '1'")
OF_NOBODY_KNOWS = UnreadEntry(message(1), None, None, is_ours=True, reason="lbg_parking 'later'")
FOREIGN = UnreadEntry(message(1), None, None, is_ours=False, reason="lbg_parking None")


def test_a_lane_of_which_something_cannot_be_read_is_parked_and_not_replayed() -> None:
    rig = Rig(OwnerFence(OLD), OF_LANE, OwnerFence(OWN))
    assert rig.ledger.is_open
    assert (rig.ledger.count, rig.ledger.count_of("key a"), rig.ledger.lane_count) == (1, 1, 1)
    assert (rig.ledger.unread(), rig.ledger.contents()) == ({"key a": (OF_LANE,)}, {})
    assert rig.ledger.judge("key a", message(2), redelivered=False) is Verdict.PARK
    assert rig.ledger.judge("key b", message(2), redelivered=False) is Verdict.HANDLE
    assert rig.show(parked(2)) == [ParkedSeen(number(2))]
    assert (rig.ledger.count, rig.ledger.count_of("key a")) == (2, 2)
    assert rig.show(UnparkAsked("key a")) == []
    assert rig.ledger.judge("key a", message(2), redelivered=True) is Verdict.DROP, "its copy is here"
    assert rig.ledger.judge("key a", message(1), redelivered=True) is Verdict.PARK, "it may be behind what is not read"


def test_what_does_not_say_its_number_keeps_its_key_parked_too() -> None:
    unnumbered = replace(OF_LANE, only=None)
    rig = Rig(OwnerFence(OLD), unnumbered, OwnerFence(OWN))
    assert rig.ledger.unread() == {"key a": (unnumbered,)}
    assert rig.show(DropAsked("key a", (OLD, 6))) == settle(4), "nobody knows its number"
    assert rig.show(DropAsked("key a")) == settle(2, 5)


@pytest.mark.parametrize("only", [None, (OLD, 6)])
def test_what_cannot_be_read_is_dropped_and_the_replay_goes_on(only: tuple[ParkingOwner, int] | None) -> None:
    rig = Rig(OwnerFence(OLD), OF_LANE, OwnerFence(OWN))
    assert rig.show(DropAsked("key a", (OLD, 7))) == settle(4), "another one"
    rig.show(DropAsked("key a", only))
    assert (rig.ledger.count, rig.ledger.lane_count) == (0, 0)
    assert rig.ledger.judge("key a", message(1), redelivered=True) is Verdict.DROP, "its settlement was lost"
    assert rig.ledger.judge("key a", message(2), redelivered=False) is Verdict.HANDLE


def test_a_replay_that_was_asked_for_begins_when_what_cannot_be_read_is_gone() -> None:
    rig = Rig(OwnerFence(OLD), OF_LANE, parked(2, OLD), UnparkAsked("key a"), OwnerFence(OWN))
    assert rig.show(DropAsked("key a", (OLD, 6))) == [
        *settle(2),
        Replay("key a", DeliveryId(3), message(2)),
        *settle(6),
    ]
    alone = Rig(OF_LANE, UnparkAsked("key a"), OwnerFence(OWN))
    assert alone.show(DropAsked("key a")) == settle(1, 2, 4)


def test_a_replay_that_runs_ends_before_what_cannot_be_read() -> None:
    of_own = UnreadEntry(message(1), "key a", (OWN, 6), is_ours=True, reason="lbg_parked_attempts '1'")
    rig = Rig(OwnerFence(OWN), parked(1), parked(2), UnparkAsked("key a"), of_own)
    assert rig.ledger.replayed("key a") == settle(2)
    assert rig.numbers() == [2]


def test_where_not_even_the_lane_can_be_read_nothing_opens_until_it_is_dropped() -> None:
    rig = Rig(OwnerFence(OLD), OF_NOBODY_KNOWS)
    assert rig.show(OwnerFence(OWN)) == [], "whoever can read what is between the fences needs both"
    assert (rig.ledger.is_open, rig.ledger.is_fenced) == (False, True)
    assert rig.ledger.obstacle == "lbg_parking 'later'"
    assert rig.ledger.unread() == {UNREAD_LANE: (OF_NOBODY_KNOWS,)}
    assert rig.show(DropAsked(UNREAD_LANE)) == [*settle(2, 1, 4), ParkingOpened()]
    assert (rig.ledger.is_open, rig.ledger.obstacle) == (True, None)


def test_what_is_dropped_before_the_own_fence_comes_opens_nothing() -> None:
    rig = Rig(OF_NOBODY_KNOWS)
    assert rig.show(DropAsked(UNREAD_LANE)) == settle(1, 2)
    assert rig.show(OwnerFence(OWN)) == [ParkingOpened()]


def test_nothing_of_an_open_queue_counts_behind_what_cannot_be_read() -> None:
    rig = Rig(OwnerFence(OWN), parked(1), OF_NOBODY_KNOWS)
    assert not rig.ledger.is_open
    assert rig.show(parked(2)) == []
    assert rig.numbers() == [1]


def test_a_fence_of_an_earlier_owner_that_comes_late_is_answered_though_nothing_opens() -> None:
    rig = Rig(OF_NOBODY_KNOWS, OwnerFence(OWN))
    higher = ParkingOwner(21, "own")
    assert rig.show(OwnerFence(ParkingOwner(20, "ahead"))) == [PublishFence()]
    assert rig.show(OwnerFence(higher)) == []
    assert rig.show(DropAsked(UNREAD_LANE))[-1] == ParkingOpened()


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param(parked(1, ParkingOwner(7, "later")), id="what its owner parked, if it is a fence"),
        pytest.param(OwnerFence(ParkingOwner(7, "later")), id="a fence"),
        pytest.param(UnparkAsked("key a"), id="a replay of it, if it is a message"),
        pytest.param(DropAsked("key a", (OLD, 6)), id="an order to drop it"),
        pytest.param(DropAsked("key a"), id="an order to drop all of its key"),
    ],
)
def test_nothing_behind_what_cannot_be_read_is_settled(entry: LedgerEntry) -> None:
    """It was, and messages were lost: their originals had been settled."""
    rig = Rig(OwnerFence(OLD), parked(1, OLD), OF_NOBODY_KNOWS)
    assert rig.show(entry) == []


def test_what_another_version_never_wrote_hides_nothing() -> None:
    rig = Rig(OwnerFence(OLD), FOREIGN)
    assert rig.show(parked(1, ParkingOwner(OLD.generation - 1, "older"))) == settle(3)


def test_what_no_version_has_put_there_stops_nothing_and_is_dropped_with_the_rest() -> None:
    rig = Rig(FOREIGN)
    assert not rig.ledger.is_open, "it opens nothing either"
    assert rig.show(OwnerFence(OWN)) == [ParkingOpened()]
    assert rig.ledger.is_open
    assert rig.ledger.unread() == {UNREAD_LANE: (FOREIGN,)}
    assert rig.show(DropAsked(UNREAD_LANE)) == settle(1, 3)
    assert rig.ledger.unread() == {}


class ParkingQueue:
    """Entries that lie there until an owner settles them."""

    def __init__(self, *entries: LedgerEntry) -> None:
        self.entries = dict(enumerate(entries, 1))
        self.last = len(entries)
        self.shown: list[ParkingLedger] = []

    def show(self, ledger: ParkingLedger, *more: LedgerEntry) -> ParkingLedger:
        """Show an owner what lies there, and then what comes; or, to one that has seen it, only what comes."""
        seen = self.last if ledger in self.shown else 0
        self.shown.append(ledger)
        for entry in more:
            self.last += 1
            self.entries[self.last] = entry
        for place in sorted(place for place in self.entries if place > seen):
            if place in self.entries:
                for order in ledger.take(DeliveryId(place), self.entries[place]):
                    if isinstance(order, SettleParked):
                        self.entries.pop(order.delivery_id, None)
        return ledger


FORMER, BETWEEN, NEXT = ParkingOwner(2, "former"), ParkingOwner(7, "between"), ParkingOwner(12, "next")


def test_what_did_not_count_behind_what_cannot_be_read_counts_for_nobody_later() -> None:
    """A copy of a former owner, behind the next one's fence: its original is handled, and it was replayed as well."""
    queue = ParkingQueue(OwnerFence(FORMER), OF_NOBODY_KNOWS, OwnerFence(BETWEEN), parked(1, FORMER))
    own = queue.show(ParkingLedger(OWN), DropAsked(UNREAD_LANE), OwnerFence(OWN))
    assert (own.is_open, own.count) == (True, 0)
    later = queue.show(ParkingLedger(NEXT), OwnerFence(NEXT))
    assert (later.is_open, later.count) == (True, 0)


def test_what_counted_behind_what_cannot_be_read_counts_for_the_next_owner() -> None:
    """Its original is settled: it was lost where the owner's first fence had the generation of another one."""
    low = ParkingOwner(FORMER.generation, "own")
    queue = ParkingQueue(OwnerFence(FORMER), OF_NOBODY_KNOWS, OwnerFence(low), parked(1, FORMER))
    own = queue.show(ParkingLedger(low), DropAsked(UNREAD_LANE))
    queue.show(own, OwnerFence(own.owner))
    assert (own.is_open, own.count) == (True, 1)
    assert queue.show(ParkingLedger(NEXT), OwnerFence(NEXT)).count == 1


def test_a_second_copy_behind_what_cannot_be_read_goes_with_it() -> None:
    queue = ParkingQueue(OwnerFence(OLD), parked(1, OLD), OF_NOBODY_KNOWS, parked(1, OLD))
    own = queue.show(ParkingLedger(OWN), OwnerFence(OWN), DropAsked(UNREAD_LANE))
    assert own.count == 1
    assert [each for each in queue.entries.values() if not isinstance(each, OwnerFence)] == [parked(1, OLD)]


def test_what_cannot_be_read_and_does_not_count_is_not_kept_for_who_can_read_it() -> None:
    late = UnreadEntry(message(1), "key a", (FORMER, 6), is_ours=True, reason="later")
    queue = ParkingQueue(OwnerFence(BETWEEN), late)
    queue.show(ParkingLedger(OWN), OwnerFence(OWN))
    assert late not in queue.entries.values()


def test_a_message_counts_though_the_fence_of_its_owner_could_not_be_read_and_is_gone() -> None:
    """Its original is settled. What the owner before that one sent late counts for nobody, as behind the fence."""
    queue = ParkingQueue(OwnerFence(FORMER), parked(1, BETWEEN), parked(2, FORMER))
    own = queue.show(ParkingLedger(OWN), OwnerFence(OWN))
    assert own.contents() == {"key a": (parked(1, BETWEEN),)}
    assert queue.show(ParkingLedger(NEXT), OwnerFence(NEXT)).contents() == own.contents()


def test_a_message_behind_the_own_fence_proves_no_fence_of_another() -> None:
    """Its owner's clock is ahead, and its fence was dropped; it has sent this late."""
    queue = ParkingQueue(OF_NOBODY_KNOWS)
    own = queue.show(ParkingLedger(OWN), OwnerFence(OWN), DropAsked(UNREAD_LANE), parked(1, NEXT))
    assert (own.is_open, own.count) == (True, 0)


def test_what_cannot_be_read_is_kept_though_the_fence_of_its_owner_could_not_be_read_either_and_is_gone() -> None:
    """Whoever can read it counts it, as its original is settled."""
    one = UnreadEntry(message(1), "key a", (BETWEEN, 8), is_ours=True, reason="later")
    queue = ParkingQueue(OwnerFence(FORMER), one, parked(2, FORMER))
    own = queue.show(ParkingLedger(OWN), OwnerFence(OWN))
    assert (own.unread(), own.contents()) == ({"key a": (one,)}, {})
    assert one in queue.entries.values()


def test_what_was_withheld_but_is_no_settlement_is_ordered_once() -> None:
    ahead = ParkingOwner(20, "ahead")
    rig = Rig(OwnerFence(ahead), OF_NOBODY_KNOWS)
    assert rig.show(OwnerFence(OWN)) == [PublishFence()]
    assert rig.show(DropAsked(UNREAD_LANE)) == settle(2, 3, 4)
    assert rig.show(DropAsked(UNREAD_LANE)) == settle(5), "nothing is settled twice"
