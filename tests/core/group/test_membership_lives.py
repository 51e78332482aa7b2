"""Which of a member's lives counts: restarts, farewells, and two processes with one id."""

import pytest

from lbg_runtime.core.flow.commands import Note
from lbg_runtime.core.group.control_messages import Leave, Life, MemberState, StateRequest
from lbg_runtime.core.group.membership import OwnState
from lbg_runtime.core.group.membership_events import (
    DuplicateMemberFound,
    LeaveRequested,
    SendHeartbeat,
    SendLeave,
    StandAside,
    ViewChanged,
)
from tests.core.group.membership_shell import ACTIVE, ALIVE, PEER, QUEUE, SELF, SETTINGS, Shell, beat, header, pick


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
