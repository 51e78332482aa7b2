"""Who is silent becomes suspect, then dead, and when a view is stable; what an outage or a pause of our own changes."""

from dataclasses import replace

import pytest

from lbg_runtime.core.flow.commands import Note
from lbg_runtime.core.group.control_messages import Accept, Leave, Life, MemberState, MoveId, StateRequest
from lbg_runtime.core.group.membership_events import (
    ControlConnected,
    ControlLost,
    ControlMessageReceived,
    DrainStarted,
    HeartbeatWanted,
    JoinDone,
    LeaveRequested,
    MembershipCommand,
    MembershipEvent,
    OwnFlowsChanged,
    SendHeartbeat,
    SendLeave,
    SendStateRequest,
    ViewChanged,
    WeightChanged,
)
from lbg_runtime.model.ids import MemberId
from tests.core.group.membership_shell import (
    ACTIVE,
    ALIVE,
    PEER,
    QUEUE,
    SELF,
    SETTINGS,
    STANDBY,
    SUSPECT,
    Shell,
    beat,
    header,
    pick,
)

# -- silence


def test_silence_makes_a_peer_suspect_then_dead() -> None:
    shell = Shell()
    shell.hear(beat(header(1), flows={QUEUE: ACTIVE}))
    assert not pick(shell.wait(3_499), ViewChanged)
    assert pick(shell.wait(1), ViewChanged)
    assert shell.members()[PEER] == SUSPECT
    assert shell.machine.view.owners == {QUEUE: PEER}
    assert not shell.machine.view.find(PEER).is_target
    assert not pick(shell.wait(1_999), ViewChanged)
    assert pick(shell.wait(1), ViewChanged)
    assert shell.members() == {SELF: ALIVE}
    assert shell.machine.view.owners == {}


def test_a_suspect_or_dead_peer_that_speaks_again_is_back() -> None:
    shell = Shell()
    shell.hear(beat(header(1)))
    shell.wait(4_000)
    assert pick(shell.hear(Accept(header(2), QUEUE, MoveId("m"))), ViewChanged)
    assert shell.members()[PEER] == ALIVE
    shell.wait(6_000)
    assert PEER not in shell.members()
    shell.hear(Accept(header(3), QUEUE, MoveId("m")))
    assert PEER not in shell.members(), "its flows are not known"
    shell.hear(beat(header(4)))
    assert shell.members()[PEER] == ALIVE


def test_who_spoke_and_never_sent_a_heartbeat_is_forgotten() -> None:
    shell = Shell()
    shell.hear(StateRequest(header(9)))
    shell.wait(SETTINGS.dead_ms)
    assert pick(shell.hear(beat(header(1))), ViewChanged)


def test_nobody_dies_while_we_cannot_hear() -> None:
    shell = Shell()
    shell.hear(beat(header(1)))
    shell.wait(3_000)
    shell.tell(ControlLost())
    assert shell.machine.deadline_ms is None
    assert not shell.machine.is_stable(shell.now_ms)
    shell.wait(100_000)
    commands = shell.tell(ControlConnected())
    assert [type(command) for command in commands] == [SendHeartbeat, SendStateRequest]
    assert not pick(shell.wait(3_499), Note), "no deadline of the time before is left"
    assert shell.members()[PEER] == ALIVE
    shell.wait(1)
    assert shell.members()[PEER] == SUSPECT


@pytest.mark.parametrize(
    "event",
    [JoinDone(), DrainStarted(), HeartbeatWanted(), WeightChanged(3), LeaveRequested()],
    ids=lambda event: type(event).__name__,
)
def test_nothing_is_said_while_the_topic_is_out_of_reach(event: MembershipEvent) -> None:
    shell = Shell(joined=False)
    shell.tell(ControlConnected())
    shell.tell(ControlLost())
    assert [each for each in shell.tell(event) if isinstance(each, SendHeartbeat | SendLeave)] == []


def test_an_outage_does_not_clear_a_suspicion() -> None:
    shell = Shell()
    shell.hear(beat(header(1)))
    shell.wait(3_500)
    shell.tell(ControlLost())
    shell.wait(1_000)
    shell.tell(ControlConnected())
    assert shell.members()[PEER] == SUSPECT
    shell.wait(SETTINGS.dead_ms)
    assert PEER not in shell.members()


def test_nobody_dies_because_this_process_was_stopped() -> None:
    shell = Shell()
    shell.hear(beat(header(1)))
    shell.now_ms += 60_000
    assert not shell.machine.is_stable(shell.now_ms)
    commands = shell.machine.on_deadline(shell.now_ms)
    assert [note.name for note in pick(commands, Note)] == ["membership_paused"]
    assert pick(commands, SendHeartbeat)
    assert pick(commands, SendStateRequest)
    assert shell.members()[PEER] == ALIVE
    shell.wait(SETTINGS.dead_ms)
    assert PEER not in shell.members()


def test_a_pause_is_noticed_by_an_event_too() -> None:
    shell = Shell()
    shell.hear(beat(header(1)))
    shell.now_ms += 60_000
    commands = shell.hear(StateRequest(header(1, member=MemberId("joiner"))))
    assert [note.name for note in pick(commands, Note)] == ["membership_paused"]
    assert shell.members()[PEER] == ALIVE


def test_a_member_that_left_before_an_outage_is_no_sign_of_a_pause() -> None:
    shell = Shell()
    shell.hear(beat(header(1)))
    shell.hear(Leave(header(2)))
    shell.tell(ControlLost())
    shell.wait(100_000)
    shell.tell(ControlConnected())
    assert pick(shell.wait(SETTINGS.forget_ms), Note) == []


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (ControlLost(), []),
        (ControlConnected(), [SendHeartbeat, SendStateRequest]),
        (LeaveRequested(), [SendLeave]),
        (ControlMessageReceived(beat(header(1, Life(101, 0), SELF))), []),
    ],
)
def test_what_happened_during_a_pause_decides_what_is_said_after_it(
    event: MembershipEvent, said: list[type[MembershipCommand]]
) -> None:
    """The simulation found a heartbeat ordered of a member that the first event after a pause had silenced."""
    shell = Shell()
    shell.now_ms += 60_000
    sent = [type(command) for command in shell.tell(event)]
    assert [kind for kind in sent if kind in (SendHeartbeat, SendStateRequest, SendLeave)] == said


def test_we_never_die_ourselves() -> None:
    shell = Shell()
    shell.wait(600_000)
    assert shell.members() == {SELF: ALIVE}


# -- stability


def test_at_the_start_a_view_settles_after_one_interval_and_the_settle_time() -> None:
    shell = Shell()
    shell.wait(2_999)
    assert not shell.machine.is_stable(shell.now_ms)
    shell.wait(1)
    assert shell.machine.is_stable(shell.now_ms)


def test_without_a_settle_time_a_view_still_waits_for_one_round_of_heartbeats() -> None:
    shell = Shell(settings=replace(SETTINGS, settle_ms=0))
    shell.wait(999)
    assert not shell.machine.is_stable(shell.now_ms)
    shell.wait(1)
    assert shell.machine.is_stable(shell.now_ms)


def test_who_comes_or_goes_makes_the_view_settle_anew_and_mere_flows_do_not() -> None:
    shell = Shell()
    shell.hear(beat(header(1)))
    shell.wait(3_000)
    shell.hear(beat(header(2), flows={QUEUE: ACTIVE}))
    shell.tell(OwnFlowsChanged({QUEUE: STANDBY}))
    assert shell.machine.is_stable(shell.now_ms)
    shell.hear(beat(header(3), MemberState.DRAINING))
    assert not shell.machine.is_stable(shell.now_ms)
    shell.wait(2_000)
    assert shell.machine.is_stable(shell.now_ms)
    shell.wait(1_500)
    assert shell.members()[PEER] == (MemberState.DRAINING, True)
    assert not shell.machine.is_stable(shell.now_ms)
