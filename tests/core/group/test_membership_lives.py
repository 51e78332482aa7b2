"""Which of a member's lives counts: restarts, farewells, and two processes with one id."""

import pytest

from lbg_runtime.core.flow.commands import Note
from lbg_runtime.core.group.control_messages import Leave, Life, MemberState, StateRequest
from lbg_runtime.core.group.membership import OwnState
from lbg_runtime.core.group.membership_events import (
    ControlConnected,
    ControlLost,
    DuplicateMemberFound,
    LeaveRequested,
    SendHeartbeat,
    SendLeave,
    StandAside,
    ViewChanged,
    WinnerGone,
)
from tests.core.group.membership_shell import (
    ACTIVE,
    ALIVE,
    IDENTITY,
    PEER,
    QUEUE,
    SELF,
    SETTINGS,
    Shell,
    beat,
    header,
    pick,
)


def test_a_restarted_member_replaces_its_old_self_at_once() -> None:
    shell = Shell()
    shell.hear(beat(header(70, Life(1, 9)), flows={QUEUE: ACTIVE}))
    commands = shell.hear(beat(header(1, Life(2, 1)), MemberState.JOINING))
    assert pick(commands, ViewChanged)
    peer = shell.machine.view.find(PEER)
    assert peer is not None
    assert (peer.life, peer.flows) == (Life(2, 1), {})
    assert shell.machine.view.owners == {}


def test_whatever_a_new_life_says_first_ends_the_old_one() -> None:
    shell = Shell()
    shell.hear(beat(header(70)))
    assert pick(shell.hear(StateRequest(header(1, Life(1, 2)))), ViewChanged)
    assert shell.members() == {SELF: ALIVE}


def test_a_life_that_left_does_not_come_back_and_a_new_one_does() -> None:
    shell = Shell()
    shell.hear(beat(header(1)))
    shell.hear(Leave(header(2)))
    assert [type(command) for command in shell.hear(beat(header(3)))] == [Note]
    assert shell.members() == {SELF: ALIVE}
    shell.hear(beat(header(1, Life(2, 0))))
    assert shell.members() == {PEER: ALIVE, SELF: ALIVE}


def test_a_lower_life_is_heard_when_the_higher_one_is_long_gone() -> None:
    """The member was started again on a host whose clock is behind."""
    shell = Shell()
    shell.hear(beat(header(1, Life(9, 0))))
    shell.hear(Leave(header(2, Life(9, 0))))
    shell.wait(SETTINGS.forget_ms - 1)
    assert not pick(shell.hear(beat(header(1, Life(8, 0)))), ViewChanged)
    shell.wait(1)
    assert pick(shell.hear(beat(header(2, Life(8, 0)))), ViewChanged)


@pytest.mark.parametrize("other", [Life(101, 0), Life(100, 8)])
def test_the_lower_life_of_a_duplicate_id_stands_aside(other: Life) -> None:
    shell = Shell()
    commands = shell.hear(beat(header(1, other, SELF)))
    assert [type(command) for command in commands] == [DuplicateMemberFound, StandAside, ViewChanged]
    assert commands[0] == DuplicateMemberFound(other)
    [winner] = shell.machine.view.members
    assert (winner.member, winner.life) == (SELF, other)
    assert shell.machine.state is OwnState.ASIDE
    assert pick(shell.wait(60_000), SendHeartbeat) == []
    assert shell.machine.view.members == ()
    assert pick(shell.tell(LeaveRequested()), SendLeave) == []


NEWER = Life(101, 0)


@pytest.fixture
def aside() -> Shell:
    shell = Shell()
    shell.hear(beat(header(1, NEWER, SELF)))
    return shell


def test_who_stands_aside_hears_that_the_winner_leaves(aside: Shell) -> None:
    assert pick(aside.hear(Leave(header(2, NEWER, SELF))), WinnerGone)
    assert aside.machine.state is OwnState.ASIDE
    assert pick(aside.wait(2 * SETTINGS.forget_ms), WinnerGone) == [], "once"


def test_who_stands_aside_finds_out_that_the_winner_is_dead_as_of_any_member(aside: Shell) -> None:
    aside.wait(3_000)
    aside.hear(beat(header(2, NEWER, SELF)))
    assert pick(aside.wait(SETTINGS.dead_ms - 1), WinnerGone) == []
    assert pick(aside.wait(1), WinnerGone)


def test_a_winner_whose_farewell_is_all_that_is_heard_of_it_has_gone() -> None:
    shell = Shell()
    commands = shell.hear(Leave(header(9, NEWER, SELF)))
    assert [type(command) for command in commands] == [DuplicateMemberFound, StandAside, WinnerGone, ViewChanged]


def test_a_winner_of_which_no_heartbeat_was_heard_has_gone_when_it_is_silent() -> None:
    shell = Shell()
    shell.hear(StateRequest(header(2, NEWER, SELF)))
    assert shell.machine.state is OwnState.ASIDE
    assert pick(shell.wait(SETTINGS.dead_ms - 1), WinnerGone) == []
    assert pick(shell.wait(1), WinnerGone)


def test_who_cannot_hear_does_not_take_the_winner_for_dead(aside: Shell) -> None:
    aside.tell(ControlLost())
    assert pick(aside.wait(60_000), WinnerGone) == []
    aside.tell(ControlConnected())
    assert pick(aside.wait(SETTINGS.dead_ms - 1), WinnerGone) == []
    assert pick(aside.wait(1), WinnerGone)


def test_a_winner_of_which_only_other_settings_were_heard_has_gone_when_it_is_silent() -> None:
    """Killed before it could say good-bye: whoever stands aside for it must not wait for ever."""
    shell = Shell()
    shell.hear(beat(header(1, NEWER, SELF), settings={}))
    shell.wait(1_000)
    shell.hear(beat(header(2, NEWER, SELF), settings={}))
    assert shell.machine.state is OwnState.ASIDE
    assert SELF not in shell.members()
    assert pick(shell.wait(SETTINGS.dead_ms - 1), WinnerGone) == []
    assert pick(shell.wait(1), WinnerGone)


def test_a_winner_with_other_settings_is_there_as_long_as_it_is_heard() -> None:
    shell = Shell()
    shell.hear(beat(header(1, NEWER, SELF), settings={}))
    shell.hear(StateRequest(header(2, NEWER, SELF)))
    for sequence in range(3, 30):
        assert pick(shell.wait(SETTINGS.heartbeat_ms), WinnerGone) == []
        shell.hear(beat(header(sequence, NEWER, SELF), settings={}))
    assert pick(shell.wait(SETTINGS.dead_ms), WinnerGone)


def test_our_own_earlier_words_are_not_those_of_the_winner(aside: Shell) -> None:
    aside.hear(Leave(header(2, NEWER, SELF)))
    aside.wait(SETTINGS.forget_ms)
    for life in (IDENTITY.life, Life(99, 9)):
        aside.hear(beat(header(1, life, SELF)))
    assert aside.members() == {}
    assert pick(aside.wait(60_000), WinnerGone) == []


@pytest.mark.parametrize("other", [Life(99, 9), Life(100, 6)])
def test_the_higher_life_of_a_duplicate_id_stays_and_lets_the_other_know(other: Life) -> None:
    shell = Shell()
    shell.wait(500)
    assert shell.hear(beat(header(1, other, SELF))) == [DuplicateMemberFound(other)]
    assert pick(shell.wait(100), SendHeartbeat)
    assert shell.hear(beat(header(2, other, SELF))) == []
    assert shell.members() == {SELF: ALIVE}


def test_a_farewell_of_our_own_earlier_life_is_no_duplicate() -> None:
    assert Shell().hear(Leave(header(90, Life(99, 1), SELF))) == []
