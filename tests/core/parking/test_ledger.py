"""The ledger's answers, one by one.

More than 400 lines, as all of them are of one ledger with a few messages.
"""

from dataclasses import replace

import pytest

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
from lbg_runtime.model.errors import InvariantViolated
from lbg_runtime.model.ids import DeliveryId
from lbg_runtime.model.message import KEY_SEQUENCE_PROPERTY, PARTITION_KEY_PROPERTY, PUBLISHER_PROPERTY, Message

OLD, OWN = ParkingOwner(5, "old"), ParkingOwner(9, "own")


def message(number: int, *, publisher: str | None = "p") -> Message:
    stamps = {} if publisher is None else {PUBLISHER_PROPERTY: publisher, KEY_SEQUENCE_PROPERTY: number}
    return Message("t", b"%d" % number, {PARTITION_KEY_PROPERTY: "a", **stamps})


def number(count: int) -> int:
    """That of this one of what the owner parks, from 1."""
    return OWN.generation + count


def parked(count: int, owner: ParkingOwner = OWN, *, as_number: int | None = None) -> ParkedMessage:
    named = as_number or owner.generation + count
    return ParkedMessage("key a", owner, named, message(count), 1, "e", "s", "m", count)


class Rig:
    """A ledger that is shown one entry after another, under ids from 1; what it is shown of its owner was sent."""

    def __init__(self, *entries: LedgerEntry) -> None:
        self.ledger = ParkingLedger(OWN)
        self.shown = 0
        self.sent = number(0)
        self.orders = [order for entry in entries for order in self.show(entry)]

    def begin(self) -> int:
        self.sent = self.ledger.begin_park("key a")
        return self.sent

    def show(self, entry: LedgerEntry) -> list[LedgerOrder]:
        if isinstance(entry, ParkedMessage) and entry.owner == self.ledger.owner:
            while self.sent < entry.number:
                self.begin()
        self.shown += 1
        return self.ledger.take(DeliveryId(self.shown), entry)

    def numbers(self) -> list[int]:
        contents = self.ledger.contents().get("key a", ())
        return [int(entry.original.payload) for entry in contents]


def settle(*ids: int) -> list[LedgerOrder]:
    return [SettleParked(DeliveryId(each)) for each in ids]


def test_it_opens_with_its_own_fence_and_settles_the_one_before() -> None:
    rig = Rig(OwnerFence(OLD), parked(3, OLD))
    assert (rig.orders, rig.ledger.is_open) == ([], False)
    assert rig.show(OwnerFence(OWN)) == [*settle(1), ParkingOpened()]
    assert rig.ledger.is_open
    assert (rig.numbers(), rig.ledger.count, rig.ledger.lane_count) == ([3], 1, 1)
    assert rig.ledger.begin_park("key a") == 10


def test_no_number_is_given_again_by_the_next_owner_where_nothing_is_left_to_tell_of_it() -> None:
    first = Rig(OwnerFence(OWN))
    given = [first.ledger.begin_park("key a") for _ in range(3)]
    later = ParkingLedger(ParkingOwner(OWN.generation + 1_000_000, "later"))
    assert later.begin_park("key a") > max(given)


def test_numbers_go_on_above_what_lies_there_where_the_clock_is_behind() -> None:
    rig = Rig(OwnerFence(OLD), parked(3, OLD, as_number=70))
    assert rig.ledger.begin_park("key a") == 71


def test_numbers_go_on_above_those_of_an_owner_whose_clock_was_ahead() -> None:
    rig = Rig(OwnerFence(ParkingOwner(1_000, "ahead")), OwnerFence(OWN))
    assert rig.show(OwnerFence(rig.ledger.owner))[-1] == ParkingOpened()
    assert rig.ledger.begin_park("key a") > 1_000


def test_what_a_former_owner_sent_does_not_count_behind_the_next_fence() -> None:
    rig = Rig(OwnerFence(OLD), parked(1, OLD), OwnerFence(OWN))
    assert rig.show(parked(2, OLD)) == settle(4)
    assert rig.show(OwnerFence(OLD)) == settle(5)
    assert rig.show(parked(2)) == [ParkedSeen(number(2))]
    assert rig.numbers() == [1, 2]


def test_what_lies_before_every_fence_counts() -> None:
    assert Rig(parked(1, OLD), OwnerFence(OWN)).numbers() == [1]


def test_of_two_owners_of_one_generation_only_the_one_counts_whose_fence_came_first() -> None:
    rig = Rig(OwnerFence(OLD))
    namesake = ParkingOwner(OLD.generation, "namesake")
    assert rig.show(OwnerFence(namesake)) == settle(2)
    assert rig.show(parked(1, namesake)) == settle(3)
    assert rig.show(parked(2, OLD)) == []
    assert rig.numbers() == [2]


def test_a_clock_that_is_behind_makes_a_higher_fence() -> None:
    ahead = ParkingOwner(20, "ahead")
    rig = Rig(OwnerFence(ahead))
    higher = ParkingOwner(21, "own")
    assert rig.show(OwnerFence(OWN)) == [*settle(2), PublishFence()]
    assert rig.show(OwnerFence(higher)) == [*settle(1), ParkingOpened()]


def test_a_higher_fence_that_comes_late_takes_nothing_for_granted_until_ours_is_back() -> None:
    rig = Rig(OwnerFence(OWN), parked(1))
    ahead, higher = ParkingOwner(20, "ahead"), ParkingOwner(21, "own")
    assert rig.show(OwnerFence(ahead)) == [*settle(1), PublishFence()]
    assert not rig.ledger.is_open
    assert rig.show(parked(2)) == settle(4), "sent as the owner that it was before"
    assert rig.show(OwnerFence(higher)) == [*settle(3), ParkingOpened()]
    assert rig.numbers() == [1]


def test_a_message_of_a_parked_key_is_parked_and_a_copy_of_one_is_dropped() -> None:
    ledger = Rig(OwnerFence(OWN), parked(3), parked(4)).ledger
    assert not ledger.is_idle

    def judge(one: Message, *, redelivered: bool = True) -> Verdict:
        return ledger.judge("key a", one, redelivered=redelivered)

    assert judge(message(4)) is Verdict.DROP
    assert judge(message(5)) is Verdict.PARK
    assert judge(message(2)) is Verdict.HANDLE, "it came before what is parked"
    assert judge(message(2), redelivered=False) is Verdict.PARK, "as far as the queue says, it comes behind"
    assert judge(message(2, publisher="another")) is Verdict.PARK
    assert judge(message(4, publisher=None)) is Verdict.PARK, "it cannot be known"
    assert ledger.judge("key b", message(9), redelivered=True) is Verdict.HANDLE
    with_a_gap = Rig(OwnerFence(OWN), parked(3), parked(5)).ledger
    assert with_a_gap.judge("key a", message(4), redelivered=True) is Verdict.PARK, "it must not come before 3"


@pytest.mark.parametrize("is_dropped", [False, True])
def test_the_original_of_what_another_owner_parked_is_dropped_when_it_comes_after_the_end(*, is_dropped: bool) -> None:
    rig = Rig(parked(1, OLD), OwnerFence(OWN), parked(2, as_number=number(1)))
    if is_dropped:
        rig.show(DropAsked("key a"))
    else:
        rig.show(UnparkAsked("key a"))
        rig.ledger.replayed("key a")
        rig.ledger.replayed("key a")
    assert rig.ledger.lane_count == 0
    assert rig.ledger.judge("key a", message(1), redelivered=True) is Verdict.DROP
    assert rig.ledger.judge("key a", message(3), redelivered=True) is Verdict.HANDLE
    assert rig.ledger.judge("key a", message(1), redelivered=False) is Verdict.HANDLE, "somebody sent it anew"
    assert not rig.ledger.is_idle


def test_nothing_is_remembered_of_what_it_parked_itself_and_has_replayed() -> None:
    rig = Rig(OwnerFence(OWN), parked(1), UnparkAsked("key a"))
    rig.ledger.replayed("key a")
    assert rig.ledger.is_idle
    rig = Rig(OwnerFence(OWN), parked(1), parked(2), UnparkAsked("key a"))
    rig.ledger.replayed("key a")
    assert rig.ledger.judge("key a", message(1), redelivered=False) is Verdict.PARK, "somebody sent it anew"


def test_a_copy_is_settled_and_a_message_that_comes_again_late_is_placed_before_later_ones() -> None:
    rig = Rig(OwnerFence(OWN), parked(3), parked(4))
    assert rig.show(parked(3, as_number=number(7))) == [ParkedSeen(number(7)), *settle(4)]
    rig.show(parked(2, as_number=number(8)))
    assert rig.numbers() == [2, 3, 4]


def test_a_late_message_goes_right_before_the_first_later_one_of_its_publisher() -> None:
    rig = Rig(OwnerFence(OLD), parked(1, OLD))
    rig.show(replace(parked(9, OLD), original=message(9, publisher="q")))
    rig.show(parked(3, OLD))
    rig.show(parked(2, OLD, as_number=OLD.generation + 4))
    assert rig.numbers() == [1, 9, 2, 3]


def test_a_late_message_of_a_lane_in_which_one_has_no_stamps_finds_its_place_too() -> None:
    rig = Rig(OwnerFence(OLD))
    rig.show(replace(parked(1, OLD), original=message(1, publisher=None)))
    rig.show(parked(3, OLD))
    rig.show(parked(2, OLD, as_number=OLD.generation + 4))
    assert rig.numbers() == [1, 2, 3]


def test_several_late_messages_stand_in_the_order_of_their_publisher() -> None:
    rig = Rig(OwnerFence(OLD))
    for count, late in enumerate((5, 1, 2), 1):
        rig.show(parked(late, OLD, as_number=OLD.generation + count))
    assert rig.numbers() == [1, 2, 5]


def test_a_late_message_does_not_take_the_place_of_the_one_that_is_being_handled() -> None:
    rig = Rig(OwnerFence(OLD), parked(5, OLD), parked(6, OLD), UnparkAsked("key a"), OwnerFence(OWN))
    rig.show(parked(2, as_number=rig.begin()))
    assert rig.numbers() == [5, 2, 6]
    assert rig.ledger.replayed("key a") == [*settle(2), Replay("key a", DeliveryId(6), message(2))]


def test_one_that_was_sent_twice_under_one_number_is_known_without_stamps() -> None:
    plain = ParkedMessage("key a", OWN, number(1), message(1, publisher=None), 1, "e", "s", "m", 1)
    rig = Rig(OwnerFence(OWN), plain)
    assert rig.show(plain) == settle(3)
    assert Rig(OwnerFence(OLD), replace(plain, owner=OLD), replace(plain, owner=OLD)).orders == settle(3)


def test_messages_without_stamps_are_no_copies_of_each_other() -> None:
    rig = Rig(*(replace(parked(each, OLD), original=message(each, publisher=None)) for each in (1, 2)), OwnerFence(OWN))
    for each in (3, 4):
        rig.show(replace(parked(each), original=message(each, publisher=None)))
    assert rig.numbers() == [1, 2, 3, 4]


def test_nor_are_two_that_owners_who_knew_nothing_of_each_other_sent_under_one_number() -> None:
    rig = Rig()
    for each, owner in enumerate((OLD, ParkingOwner(7, "another")), 1):
        rig.show(OwnerFence(owner))
        rig.show(replace(parked(each, owner, as_number=30), original=message(each, publisher=None)))
    assert rig.numbers() == [1, 2]


def test_a_message_without_stamps_stands_behind_all_that_came_before_it() -> None:
    rig = Rig(parked(2, OLD), replace(parked(1, OLD, as_number=8), original=message(1, publisher=None)))
    assert rig.numbers() == [2, 1]


@pytest.mark.parametrize("is_dropped", [False, True])
def test_one_that_was_sent_twice_does_not_count_again_when_the_first_is_gone(*, is_dropped: bool) -> None:
    rig = Rig(OwnerFence(OWN), parked(1))
    if is_dropped:
        rig.show(DropAsked("key a"))
    else:
        rig.show(UnparkAsked("key a"))
        rig.ledger.replayed("key a")
    assert rig.show(parked(1)) == settle(4)
    assert rig.ledger.lane_count == 0
    assert rig.ledger.count_of("key a") == 0


def test_a_fence_that_was_sent_twice_is_settled_and_changes_nothing() -> None:
    rig = Rig(OwnerFence(OWN), parked(1))
    assert rig.show(OwnerFence(OWN)) == settle(3)
    assert rig.show(parked(2)) == [ParkedSeen(number(2))]
    ahead, higher = ParkingOwner(20, "ahead"), ParkingOwner(21, "own")
    rig.show(OwnerFence(ahead))
    assert rig.show(OwnerFence(OWN)) == settle(6), "of who it was before"
    assert rig.show(OwnerFence(higher)) == [*settle(5), ParkingOpened()]
    assert rig.show(OwnerFence(higher)) == settle(8)
    assert rig.numbers() == [1, 2]


def test_a_lane_is_replayed_one_by_one_and_its_order_is_settled_last() -> None:
    rig = Rig(OwnerFence(OWN), parked(1), parked(2))
    assert rig.show(UnparkAsked("key a")) == [Replay("key a", DeliveryId(2), message(1))]
    assert rig.ledger.is_replaying("key a")
    assert rig.show(parked(3)) == [ParkedSeen(number(3))], "it follows"
    assert rig.ledger.replayed("key a") == [*settle(2), Replay("key a", DeliveryId(3), message(2))]
    assert rig.ledger.replayed("key a") == [*settle(3), Replay("key a", DeliveryId(5), message(3))]
    assert rig.ledger.replayed("key a") == settle(5, 4)
    assert (rig.ledger.count, rig.ledger.lane_count) == (0, 0)


def test_a_lane_is_replaying_from_when_it_is_asked_for_to_its_end() -> None:
    rig = Rig(OwnerFence(OWN), parked(1))
    assert not rig.ledger.is_replaying("key a")
    rig.show(UnparkAsked("key a"))
    assert rig.ledger.is_replaying("key a")
    rig.ledger.replayed("key a")
    assert not rig.ledger.is_replaying("key a")


def test_a_lane_that_waits_for_nothing_but_what_was_given_up_with_its_owner_is_over() -> None:
    rig = Rig(OwnerFence(OWN), parked(1))
    rig.begin()
    rig.show(UnparkAsked("key a"))
    assert rig.ledger.replayed("key a") == settle(2), "and no end yet: one more is on its way"
    rig.show(OwnerFence(ParkingOwner(20, "ahead")))
    assert rig.show(OwnerFence(rig.ledger.owner)) == [*settle(4), *settle(3), ParkingOpened()]
    assert rig.ledger.lane_count == 0
    assert rig.ledger.judge("key a", message(5), redelivered=False) is Verdict.HANDLE


def test_a_replay_is_not_over_while_another_of_its_key_is_on_its_way() -> None:
    rig = Rig(OwnerFence(OWN), parked(1), UnparkAsked("key a"))
    follower = rig.begin()
    assert rig.ledger.replayed("key a") == settle(2)
    assert rig.ledger.is_replaying("key a")
    assert rig.show(parked(2, as_number=follower)) == [ParkedSeen(follower), Replay("key a", DeliveryId(4), message(2))]
    assert rig.ledger.replayed("key a") == settle(4, 3)


def test_a_lane_that_has_only_what_is_on_its_way_offers_nothing_whatever_is_asked_until_that_has_come() -> None:
    rig = Rig(OwnerFence(OWN), parked(1), UnparkAsked("key a"))
    rig.begin()
    assert rig.ledger.replayed("key a") == settle(2)
    assert rig.show(UnparkAsked("key a")) == []
    assert rig.ledger.resume() == []
    assert rig.show(parked(2)) == [ParkedSeen(number(2)), Replay("key a", DeliveryId(5), message(2))]
    assert rig.ledger.replayed("key a") == settle(5, 3, 4)


def test_a_replay_is_over_when_the_one_on_its_way_is_refused() -> None:
    rig = Rig(OwnerFence(OWN), parked(1), UnparkAsked("key a"))
    follower = rig.begin()
    rig.ledger.replayed("key a")
    assert rig.ledger.park_refused(follower) == settle(3)
    assert rig.ledger.judge("key a", message(2), redelivered=False) is Verdict.HANDLE


def test_a_key_of_which_something_lies_there_stays_parked_when_another_of_it_is_refused() -> None:
    rig = Rig(OwnerFence(OWN), parked(1))
    assert rig.ledger.park_refused(rig.begin()) == []
    assert rig.ledger.judge("key a", message(2), redelivered=False) is Verdict.PARK
    assert rig.ledger.park_refused(rig.sent) == [], "it was told already"


def test_a_replay_that_was_asked_for_earlier_begins_when_the_ledger_opens() -> None:
    rig = Rig(parked(1, OLD), UnparkAsked("key a"), parked(2, OLD))
    assert rig.orders == []
    opened, replay = rig.show(OwnerFence(OWN))
    assert (opened, replay) == (ParkingOpened(), Replay("key a", DeliveryId(1), message(1)))


def test_a_replay_that_fails_is_over_until_it_is_asked_for_again() -> None:
    rig = Rig(OwnerFence(OWN), parked(1), UnparkAsked("key a"), UnparkAsked("key a"))
    assert rig.ledger.replay_failed("key a") == settle(3, 4)
    assert rig.numbers() == [1]
    assert not rig.ledger.is_replaying("key a")
    assert rig.show(UnparkAsked("key a")) == [Replay("key a", DeliveryId(2), message(1))]
    assert rig.ledger.replayed("key a") == settle(2, 5), "the orders of the first replay are settled already"


def test_an_order_to_replay_what_is_not_parked_is_settled() -> None:
    assert Rig(OwnerFence(OWN)).show(UnparkAsked("key a")) == settle(2)


def test_a_paused_ledger_offers_nothing() -> None:
    rig = Rig(OwnerFence(OWN), parked(1), UnparkAsked("key a"))
    rig.ledger.pause()
    assert rig.ledger.replay_returned("key a") == []
    assert rig.ledger.resume() == [Replay("key a", DeliveryId(2), message(1))]


@pytest.mark.parametrize(
    ("asked", "left", "settled"),
    [
        (DropAsked("key a"), [], (2, 3, 4)),
        (DropAsked("key a", (OWN, number(1))), [2], (2, 4)),
        (DropAsked("key a", (OLD, number(1))), [1, 2], (4,)),
        (DropAsked("key b"), [1, 2], (4,)),
    ],
    ids=["all", "one", "one of another owner", "another key"],
)
def test_what_is_dropped_is_settled(asked: DropAsked, left: list[int], settled: tuple[int, ...]) -> None:
    rig = Rig(OwnerFence(OWN), parked(1), parked(2))
    assert rig.show(asked) == settle(*settled)
    assert rig.numbers() == left


def test_what_is_being_handled_is_not_dropped() -> None:
    rig = Rig(OwnerFence(OWN), parked(1), parked(2), UnparkAsked("key a"))
    assert rig.show(DropAsked("key a")) == settle(3, 5)
    assert rig.numbers() == [1]


def test_the_end_of_a_replay_that_was_not_offered_is_a_bug() -> None:
    with pytest.raises(InvariantViolated):
        Rig(OwnerFence(OWN), parked(1)).ledger.replayed("key a")


def test_what_was_sent_twice_and_is_gone_leaves_an_order_behind_its_second_copy() -> None:
    rig = Rig(OwnerFence(OWN))
    sent = rig.begin()
    rig.ledger.sent_again(sent)
    rig.show(parked(1))
    rig.show(UnparkAsked("key a"))
    order = DropAsked("key a", (OWN, sent))
    assert rig.ledger.replayed("key a") == [*settle(2), PublishDrop(order), *settle(3)]
    assert [rig.show(parked(1)), rig.show(order)] == [settle(4), settle(5)]


def test_what_was_parked_already_and_was_sent_twice_again_leaves_that_order_too() -> None:
    rig = Rig(OwnerFence(OWN), parked(1))
    again = rig.begin()
    rig.ledger.sent_again(again)
    order = DropAsked("key a", (OWN, again))
    assert rig.show(parked(1, as_number=again)) == [ParkedSeen(again), *settle(3), PublishDrop(order)]


def test_what_was_sent_once_leaves_no_order() -> None:
    rig = Rig(OwnerFence(OWN), parked(1), UnparkAsked("key a"))
    assert rig.ledger.replayed("key a") == settle(2, 3)


def test_the_next_owner_replays_no_second_copy_that_such_an_order_follows() -> None:
    rig = Rig(OwnerFence(OLD), parked(1, OLD), UnparkAsked("key a"), DropAsked("key a", (OLD, OLD.generation + 1)))
    assert rig.show(OwnerFence(OWN)) == [*settle(1), ParkingOpened()]
    assert not rig.ledger.parked_lanes
    assert rig.ledger.judge("key a", message(1), redelivered=True) is Verdict.DROP


def test_what_is_given_up_with_its_owner_leaves_no_order() -> None:
    rig = Rig(OwnerFence(OWN))
    rig.ledger.sent_again(rig.begin())
    higher = ParkingOwner(OWN.generation + 5, "other")
    assert PublishFence() in rig.show(OwnerFence(higher))
    assert rig.show(OwnerFence(rig.ledger.owner))[-1] == ParkingOpened()
    assert rig.ledger._sent_again == set()
