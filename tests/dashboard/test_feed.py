"""What viewers are sent: all of it once, then what changed, however slow they are."""

from dataclasses import replace

import pytest

from lbg_runtime.core.group.membership_timing import MembershipTiming
from lbg_runtime.core.group.placement import Placement
from lbg_runtime.core.restripe.striping import Striping
from lbg_runtime.dashboard.board import GroupBoard
from lbg_runtime.dashboard.feed import Feed, Figures, Sight
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.ids import MemberId
from tests.dashboard.words import ACTIVE, DRAINING, GROUP, STANDBY, Speaker, queue

SHAPE = GroupShape(GROUP, hash_prefix="h", hash_count=12, queue_count=4)
PLACEMENT = Placement({name: (MemberId("b"), MemberId("a")) for name in SHAPE.queue_names()})
SIGHT = Sight(SHAPE.queue_names(), PLACEMENT, None, is_connected=True, striping=None)


@pytest.fixture
def a():
    return Speaker("a")


@pytest.fixture
def board(a):
    board = GroupBoard(MembershipTiming())
    board.hear(a.beat({0: ACTIVE, 1: STANDBY}, in_flight=3), 10)
    board.hear(Speaker("b").beat({0: STANDBY, 1: ACTIVE}), 20)
    return board


@pytest.fixture
def feed():
    return Feed(SHAPE, 5)


def test_a_new_viewer_is_sent_everything(board, feed) -> None:
    assert feed.update(board, SIGHT)
    told = feed.since(0, 99)
    assert (told["whole"], told["now"], told["version"]) == (True, 99, 1)
    assert told["meta"] == {
        "group": "orders", "since": 5, "prefix": "h", "shards": 12, "queues": 4, "connected": True, "placed": True,
        "rates": False, "depths": False, "parked": None, "parked_unknown": False, "restriping": None,
        "not_understood": None,
    }  # fmt: skip
    assert told["members"] == {0: ("a", "active", 1, 10, None), 1: ("b", "active", 1, 20, None)}
    assert told["queues"] == {
        0: (0, "active", 3, 1, [1], 10, None, None, None),
        1: (1, "active", 0, 1, [0], 20, None, None, None),
        2: (None, "none", 0, 1, [], 0, None, None, None),
        3: (None, "none", 0, 1, [], 0, None, None, None),
    }


def test_afterwards_only_what_is_new_is_sent(board, feed, a) -> None:
    feed.update(board, SIGHT)
    assert not feed.update(board, SIGHT)
    assert feed.since(1, 99) == {"version": 1, "now": 99, "whole": False, "members": {}, "queues": {}, "moves": []}
    board.hear(a.beat({0: ACTIVE, 1: STANDBY}, in_flight=9), 30)
    assert feed.update(board, SIGHT)
    told = feed.since(1, 99)
    assert (list(told["queues"]), told["members"], "meta" in told) == ([0], {}, False)
    assert told["queues"][0][2] == 9


def test_a_slow_viewer_is_sent_the_newest_of_all_that_it_missed(board, feed, a) -> None:
    feed.update(board, SIGHT)
    for number in range(5):
        board.hear(a.beat({0: ACTIVE, 1: STANDBY}, in_flight=number), 30 + number)
        feed.update(board, replace(SIGHT, figures=Figures({1: float(number)})))
    told = feed.since(1, 99)
    assert told["queues"][0][2] == 4
    assert told["queues"][1][6] == 4.0
    assert told["meta"]["rates"]


def test_moves_are_sent_once_to_each(board, feed) -> None:
    feed.update(board, SIGHT)
    board.hear(Speaker("b", incarnation=2).beat({0: ACTIVE, 1: ACTIVE}), 50)
    feed.update(board, SIGHT)
    assert feed.since(1, 99)["moves"] == [(1, 50, 0, 0, 1, "takeover", None)]
    assert feed.since(2, 99)["moves"] == []
    assert len(feed.since(0, 99)["moves"]) == 1
    assert not feed.update(board, SIGHT)


def test_a_member_that_is_forgotten_keeps_its_place_in_the_list(board, feed) -> None:
    feed.update(board, SIGHT)
    del board.members["a"]
    board.hear(Speaker("c").beat({}), 60)
    feed.update(board, SIGHT)
    assert feed.since(1, 99)["members"] == {0: ("a", None, 0, 0, None), 2: ("c", "active", 1, 60, None)}


def test_a_member_that_nothing_names_any_more_gives_its_position_to_the_next(board, feed) -> None:
    for number in range(50):
        board.hear(Speaker(f"c{number}").beat({}), 60)
        feed.update(board, SIGHT)
        del board.members[f"c{number}"]
        feed.update(board, SIGHT)
        assert feed.since(feed.version - 1, 99)["members"] == {2: (f"c{number}", None, 0, 0, None)}
    told = feed.since(0, 99)["members"]
    assert told == {0: ("a", "active", 1, 10, None), 1: ("b", "active", 1, 20, None)}


def test_a_member_that_a_kept_move_names_keeps_its_position(board, feed) -> None:
    feed.update(board, SIGHT)
    board.hear(Speaker("c").beat({0: ACTIVE}), 50)
    board.hear(Speaker("a", incarnation=2).beat({0: ACTIVE}), 60)
    feed.update(board, SIGHT)
    del board.members["c"]
    feed.update(board, SIGHT)
    board.hear(Speaker("d").beat({}), 70)
    feed.update(board, SIGHT)
    told = feed.since(0, 99)
    assert {move[3:5] for move in told["moves"]} == {(0, 2), (2, 0)}
    assert (told["members"][2][:2], told["members"][3][:2]) == (("c", None), ("d", "active"))


def test_a_member_that_only_a_new_move_names_is_told_to_who_came_while_nothing_named_it(board, feed) -> None:
    """It got its old position again, with the row of before, which was older than what that viewer had been sent."""
    sight = replace(SIGHT, placement=None)
    feed.update(board, sight)
    for at_ms in (100_000, 200_000):
        board.tick(at_ms)
        feed.update(board, sight)
    told = feed.since(0, 200_000)
    assert told["members"] == {}
    # A queue that nobody has taken for long has a giver who is long gone.
    board.hear(Speaker("c").beat({0: ACTIVE}), 300_000)
    feed.update(board, sight)
    news = feed.since(told["version"], 300_000)
    [(_, _, _, giver, taker, _, _)] = news["moves"]
    assert {news["members"][giver][0], news["members"][taker][0]} == {"a", "c"}


def test_before_members_have_agreed_there_are_no_homes_and_standbys_come_by_their_names(board, feed) -> None:
    board.hear(Speaker("0").beat({0: STANDBY}), 30)
    feed.update(board, replace(SIGHT, placement=None))
    owner, _, _, home, standbys, *_ = feed.since(0, 99)["queues"][0]
    assert (owner, home, standbys) == (1, None, [0, 2])


def test_homes_are_those_of_before_while_members_do_not_agree(board, feed) -> None:
    feed.update(board, SIGHT)
    feed.update(board, replace(SIGHT, placement=None))
    told = feed.since(1, 99)
    assert (told["meta"]["placed"], told["queues"]) == (False, {})


def test_members_that_are_not_understood_are_told(board, feed) -> None:
    feed.update(board, SIGHT)
    assert feed.update(board, replace(SIGHT, not_understood="they speak version 2"))
    assert feed.since(1, 99)["meta"]["not_understood"] == "they speak version 2"


def test_queues_come_and_go_with_a_re_striping(board, feed) -> None:
    feed.update(board, SIGHT)
    # Of a queue that has finished, its shards 6 and 10 need not be told one by one.
    striping = Striping(7, 4, 6, left=frozenset({4, 5}), finished=frozenset({2}))
    feed.update(board, replace(SIGHT, queues=[queue(index) for index in range(6)], striping=striping))
    told = feed.since(1, 99)
    assert list(told["queues"]) == [4, 5]
    assert (told["meta"]["queues"], told["meta"]["restriping"]) == (6, [4, 6, 4, 8])
    feed.update(board, replace(SIGHT, queues=SIGHT.queues[:2]))
    assert (feed.since(2, 99)["meta"]["queues"], len(feed.since(0, 99)["queues"])) == (2, 2)


def test_a_re_striping_that_is_over_is_not_told(board, feed) -> None:
    feed.update(board, replace(SIGHT, striping=Striping(7, 4)))
    assert feed.since(0, 99)["meta"]["restriping"] is None


def test_a_queue_that_is_being_given_up_is_told_as_such_and_only_who_stands_by_as_a_standby(board, feed, a) -> None:
    board.hear(a.beat({0: DRAINING, 1: ACTIVE}), 30)
    # It has lost queue 1, and does not know yet.
    board.hear(Speaker("b", incarnation=2).beat({0: STANDBY, 1: ACTIVE}), 40)
    feed.update(board, SIGHT)
    rows = feed.since(0, 99)["queues"]
    assert [(rows[index][1], rows[index][4]) for index in (0, 1)] == [("draining", [1]), ("active", [])]


def test_a_move_of_a_queue_that_is_not_shown_is_left_out(board, feed) -> None:
    board.hear(Speaker("c").beat({0: ACTIVE, 1: ACTIVE}), 50)
    feed.update(board, replace(SIGHT, queues=SIGHT.queues[:1]))
    assert [move[2] for move in feed.since(0, 99)["moves"]] == [0]


def test_depths_and_rates_are_told_of_the_queues_they_are_of(board, feed) -> None:
    feed.update(board, replace(SIGHT, depths={queue(1): 12}, figures=Figures({0: 1.26})))
    rows = feed.since(0, 99)["queues"]
    assert [rows[index][6:8] for index in range(3)] == [(1.3, None), (0.0, 12), (0.0, None)]


def test_that_a_queue_stands_still_is_told_by_its_owner_alone(board, feed) -> None:
    a, b = MemberId("a"), MemberId("b")
    still = {(a, 0): ("Queue Shutdown", 7), (b, 0): (None, None), (a, 1): (None, None), (a, 2): (None, None)}
    feed.update(board, replace(SIGHT, figures=Figures(standing_still=still)))
    rows = feed.since(0, 99)["queues"]
    assert [rows[index][8] for index in range(3)] == [("Queue Shutdown", 7), None, None]
    assert feed.update(board, SIGHT)
    assert feed.since(1, 99)["queues"][0][8] is None
