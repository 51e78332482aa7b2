"""What a listener makes of what members say, and of what they do not say."""

from dataclasses import replace

import pytest

from lbg_runtime.core.group.control_messages import MemberFacts, MemberState, QuestionId
from lbg_runtime.core.group.membership_timing import MembershipTiming
from lbg_runtime.core.restripe.striping import Striping, StripingReport
from lbg_runtime.dashboard import board as board_module
from lbg_runtime.dashboard.board import GroupBoard, MoveCause, Presence
from tests.dashboard.words import ACTIVE, DRAINING, STANDBY, Speaker, queue

TIMING = MembershipTiming(heartbeat_ms=1_000)


def make_board(*said, at_ms=0):
    board = GroupBoard(TIMING)
    for message in said:
        board.hear(message, at_ms)
    return board


def owner(board, index=0):
    return board.queues[queue(index)].owner


def last_move(board):
    move = board.moves[-1]
    return move.giver, move.taker, move.cause, move.gap_ms


@pytest.mark.parametrize(
    "other",
    [
        {"view_digest": "another"},
        {"settings": {"group.queue_count": "6"}},
        {"weight": 2},
        {"striping": StripingReport(Striping(7, 4, 6, left=frozenset({4})), "")},
    ],
)
def test_what_a_member_says_anew_of_the_group_is_a_change_though_its_queues_are_the_same(other) -> None:
    a = Speaker("a")
    board = make_board(a.beat({0: ACTIVE}))
    before = board.changes
    board.hear(a.beat({0: ACTIVE}, in_flight=5), 1_000)
    assert board.changes == before, "only a number"
    board.hear(replace(a.beat({0: ACTIVE}), **other), 2_000)
    assert board.changes > before


def test_the_version_of_a_member_that_is_there_is_news_once() -> None:
    a = Speaker("a")
    board, told = make_board(a.beat({})), MemberFacts(a.beat({}).header, QuestionId("q"), "0.2.0", 0, {})
    seen = []
    for message in (told, told, replace(told, header=Speaker("b").beat({}).header)):
        before = board.changes
        board.hear(message, 0)
        seen.append(board.changes - before)
    assert (seen, board.picture.versions) == ([1, 0, 0], {"a": "0.2.0"})


def test_members_and_owners_are_what_heartbeats_say() -> None:
    a, b = Speaker("a"), Speaker("b")
    board = make_board(
        a.beat({0: ACTIVE, 1: STANDBY}, weight=3), b.beat({0: STANDBY, 1: DRAINING}, state=MemberState.JOINING)
    )
    assert {name: (one.presence, one.weight) for name, one in board.members.items()} == {
        "a": (Presence.ACTIVE, 3), "b": (Presence.JOINING, 1),
    }  # fmt: skip
    assert (owner(board, 0), owner(board, 1)) == ("a", "b")
    assert (board.queues[queue(0)].is_draining, board.queues[queue(1)].is_draining) == (False, True)
    assert list(board.moves) == [], "nobody saw how they came there"


def test_a_hand_back_is_told_with_both_sides_and_its_gap() -> None:
    a, b = Speaker("a"), Speaker("b")
    board = make_board(a.beat({0: ACTIVE}), b.beat({0: STANDBY}))
    board.hear(a.offer(0, "b"), 100)
    board.hear(b.accept(0), 110)
    board.hear(a.beat({0: DRAINING}, in_flight=3), 120)
    assert (owner(board), board.queues[queue(0)].is_draining) == ("a", True)
    board.hear(a.beat({0: DRAINING}, in_flight=1), 150)
    board.hear(a.beat({}), 180)
    assert owner(board) is None
    board.hear(b.beat({0: ACTIVE}), 200)
    assert owner(board) == "b"
    assert last_move(board) == ("a", "b", MoveCause.HAND_BACK, 80)


def test_a_hand_back_whose_giver_has_not_told_yet_is_no_takeover() -> None:
    a, b = Speaker("a"), Speaker("b")
    board = make_board(a.beat({0: ACTIVE}), b.beat({0: STANDBY}))
    board.hear(a.offer(0, "b"), 100)
    board.hear(b.accept(0), 110)
    board.hear(b.beat({0: ACTIVE}), 200)
    assert last_move(board) == ("a", "b", MoveCause.HAND_BACK, 90)
    assert board.members["a"].presence is Presence.ACTIVE


def test_an_offer_that_another_accepts_or_nobody_agrees_no_move() -> None:
    a, b, c = Speaker("a"), Speaker("b"), Speaker("c")
    board = make_board(a.beat({0: ACTIVE}), b.beat({0: STANDBY}), c.beat({0: STANDBY}))
    board.hear(a.offer(0, "b"), 100)
    board.hear(c.accept(0), 105)
    board.hear(b.accept(0, move="another"), 110)
    board.hear(a.beat({0: DRAINING}), 120)
    board.hear(c.beat({0: ACTIVE}), 130)
    assert last_move(board) == ("a", "c", MoveCause.ELECTED, 10)


def test_a_queue_that_another_has_without_a_word_of_its_owner_is_a_takeover_and_its_owner_silent() -> None:
    a, b = Speaker("a"), Speaker("b")
    board = make_board(a.beat({0: ACTIVE}), b.beat({0: STANDBY}))
    board.hear(b.beat({0: ACTIVE}), 40)
    assert (owner(board), last_move(board)) == ("b", ("a", "b", MoveCause.TAKEOVER, None))
    assert board.members["a"].presence is Presence.SILENT, "long before a heartbeat is missing"
    board.hear(a.beat({0: ACTIVE}, in_flight=1), 90)
    assert (owner(board), board.members["a"].presence) == ("b", Presence.ACTIVE), "it lives, and does not know yet"
    board.hear(a.beat({}), 120)
    assert owner(board) == "b"
    assert len(board.moves) == 1
    board.hear(a.beat({0: ACTIVE}, epoch=2), 150)
    assert owner(board) == "a", "it has it anew"


def test_a_queue_that_its_owner_gave_up_to_nobody_in_particular_is_elected() -> None:
    a, b = Speaker("a"), Speaker("b")
    board = make_board(a.beat({0: ACTIVE}), b.beat({0: STANDBY}))
    board.hear(a.beat({}), 100)
    board.hear(b.beat({0: ACTIVE}), 130)
    assert last_move(board) == ("a", "b", MoveCause.ELECTED, 30)


@pytest.mark.parametrize(("accepter", "move", "taker"), [("b", "another", "b"), ("c", "m1", "b"), ("b", "m1", "c")])
def test_only_who_was_offered_a_queue_and_took_just_that_offer_has_it_by_a_hand_back(accepter, move, taker) -> None:
    speakers = {name: Speaker(name) for name in "abc"}
    board = make_board(*(one.beat({0: ACTIVE if name == "a" else STANDBY}) for name, one in speakers.items()))
    board.hear(speakers["a"].offer(0, "b"), 100)
    board.hear(speakers[accepter].accept(0, move=move), 110)
    board.hear(speakers["a"].beat({}), 120)
    board.hear(speakers[taker].beat({0: ACTIVE}), 130)
    assert last_move(board) == ("a", taker, MoveCause.ELECTED, 10)


def test_a_queue_of_a_member_that_is_gone_is_taken_over_and_its_owner_stays_gone() -> None:
    b = Speaker("b")
    board = make_board(Speaker("a").beat({0: ACTIVE}))
    board.tick(TIMING.dead_ms)
    board.hear(b.beat({0: ACTIVE}), TIMING.dead_ms + 40)
    assert last_move(board) == ("a", "b", MoveCause.TAKEOVER, 40)
    assert board.members["a"].presence is Presence.GONE


def test_a_queue_of_a_member_that_leaves_moves_by_its_stop() -> None:
    a, b = Speaker("a"), Speaker("b")
    board = make_board(a.beat({0: ACTIVE, 1: ACTIVE}), b.beat({0: STANDBY, 1: STANDBY}))
    board.hear(a.beat({0: DRAINING, 1: ACTIVE}, state=MemberState.DRAINING), 100)
    board.hear(b.beat({0: ACTIVE, 1: STANDBY}), 160)
    assert last_move(board) == ("a", "b", MoveCause.STOP, 60)
    board.hear(a.leave(), 200)
    assert (owner(board, 1), board.members["a"].presence) == (None, Presence.LEFT)
    board.hear(b.beat({0: ACTIVE, 1: ACTIVE}), 230)
    assert last_move(board) == ("a", "b", MoveCause.STOP, 30)


def test_a_new_life_without_a_word_of_the_old_one_has_lost_its_queues() -> None:
    a, b = Speaker("a"), Speaker("b")
    board = make_board(a.beat({0: ACTIVE}), b.beat({0: STANDBY}))
    late = a.beat({0: ACTIVE})
    board.hear(Speaker("a", incarnation=2).beat({}, state=MemberState.JOINING), 100)
    assert (owner(board), board.members["a"].presence) == (None, Presence.JOINING)
    board.hear(late, 110)
    assert owner(board) is None, "of a life that is over"
    board.hear(b.beat({0: ACTIVE}), 150)
    assert last_move(board) == ("a", "b", MoveCause.TAKEOVER, 50)


def test_of_the_lives_of_a_member_that_dies_again_and_again_the_picture_has_the_newest() -> None:
    board = make_board(*(Speaker("a", incarnation=life).beat({0: ACTIVE}) for life in range(1, 100)))
    assert board.picture.twice == (), "nobody is there twice: each life had ended when the next one began"
    assert board.picture.members["a"].header.life.incarnation == 99


def test_silence_makes_a_member_silent_then_gone_then_forgotten() -> None:
    board = make_board(Speaker("a").beat({0: ACTIVE}))
    presences = []
    for now_ms in (1_999, 2_000, TIMING.dead_ms - 1, TIMING.dead_ms):
        board.tick(now_ms)
        presences.append(board.members["a"].presence)
    assert presences == [Presence.ACTIVE, Presence.SILENT, Presence.SILENT, Presence.GONE]
    assert owner(board) is None
    assert dict(board.picture.members) == {}
    assert board.members["a"].since_ms == TIMING.dead_ms
    board.tick(TIMING.dead_ms + board_module.GONE_SHOWN_MS - 1)
    assert list(board.members) == ["a"]
    before = board.changes
    board.tick(TIMING.dead_ms + board_module.GONE_SHOWN_MS)
    assert (board.members, board.changes > before) == ({}, True)


def test_a_member_that_speaks_is_not_silent_and_each_change_of_its_presence_is_one() -> None:
    a = Speaker("a")
    board = make_board(a.beat({}))
    board.hear(a.beat({}), 1_500)
    before = board.changes
    board.tick(3_000)
    assert (board.members["a"].presence, board.changes) == (Presence.ACTIVE, before)
    board.tick(3_500)
    assert board.changes > before
    board.hear(a.beat({}), 3_600)
    assert (board.members["a"].presence, board.members["a"].since_ms) == (Presence.ACTIVE, 3_600)


def test_the_good_bye_of_a_life_that_is_over_is_none_of_the_next() -> None:
    old = Speaker("a")
    board = make_board(old.beat({}), Speaker("a", incarnation=2).beat({0: ACTIVE}), old.leave())
    assert (owner(board), board.members["a"].presence) == ("a", Presence.ACTIVE)
    board.hear(Speaker("nobody").leave(), 10)
    assert list(board.members) == ["a"]


def test_everybody_is_lost_who_was_there_and_fell_silent_without_a_word() -> None:
    a, b = Speaker("a"), Speaker("b")
    board = make_board(a.beat({0: ACTIVE}), b.beat({}), b.leave())
    lost = []
    for now_ms in (1_999, 2_000, TIMING.dead_ms):
        board.tick(now_ms)
        lost.append(board.has_lost_everybody)
    assert lost == [False, True, True]
    assert not make_board(b.beat({}), b.leave()).has_lost_everybody, "all of them said good-bye"


def test_silence_that_is_ours_is_excused() -> None:
    board = make_board(Speaker("a").beat({0: ACTIVE}))
    board.excuse(60_000)
    board.tick(61_000)
    assert board.members["a"].presence is Presence.ACTIVE


def test_a_drain_that_was_given_up_and_a_queue_that_comes_back_are_no_moves() -> None:
    a = Speaker("a")
    board = make_board(a.beat({0: ACTIVE}))
    for now_ms, flows, epoch in ((10, {0: DRAINING}, 1), (20, {0: ACTIVE}, 1), (30, {}, 1), (40, {0: ACTIVE}, 2)):
        board.hear(a.beat(flows, epoch=epoch), now_ms)
    assert (owner(board), list(board.moves)) == ("a", [])


def test_messages_in_flight_are_no_change_and_all_else_is() -> None:
    a = Speaker("a")
    board = make_board(a.beat({0: ACTIVE}))
    counts = []
    for message in (a.beat({0: ACTIVE}, in_flight=7), a.beat({0: ACTIVE}, in_flight=7), a.beat({0: DRAINING})):
        before = board.changes
        board.hear(message, 10)
        counts.append(board.changes - before)
    assert counts == [0, 0, 1]
    assert board.members["a"].flows[queue(0)].in_flight == 0


def test_what_strangers_say_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board_module, "MAX_MEMBERS", 2)
    monkeypatch.setattr(board_module, "MAX_QUEUES", 3)
    board = make_board(*(Speaker(f"m{number}").beat({number: ACTIVE, 10 + number: ACTIVE}) for number in range(5)))
    assert (len(board.members), len(board.queues)) == (2, 3)
    board.hear(Speaker("x").offer(99, "m0"), 0)
    assert board._offers == {}
