import random
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

import pytest

from lbg_runtime.core.flow.commands import Note
from lbg_runtime.core.group.control_codec import RefusalReason
from lbg_runtime.core.group.control_messages import (
    Accept,
    ControlMessage,
    FlowReport,
    Header,
    Heartbeat,
    Leave,
    Life,
    MemberState,
    MoveId,
    Offer,
    ReportedFlow,
    StateRequest,
    Taken,
)
from lbg_runtime.core.group.identity import Identity
from lbg_runtime.core.group.membership import MAX_MEMBERS, MembershipMachine, OwnState
from lbg_runtime.core.group.membership_events import (
    ControlConnected,
    ControlLost,
    ControlMessageDropped,
    ControlMessageReceived,
    DrainStarted,
    DuplicateMemberFound,
    FlowsReported,
    JoinDone,
    LeaveRequested,
    MembershipCommand,
    MembershipEvent,
    MoveMessageHeard,
    OwnFlowsChanged,
    SendHeartbeat,
    SendLeave,
    SendStateRequest,
    SettingsDisagree,
    StandAside,
    ViewChanged,
)
from lbg_runtime.core.group.membership_settings import MembershipSettings
from lbg_runtime.core.group.peer import MAX_NOTED
from lbg_runtime.model.errors import InvariantViolated, UserError
from lbg_runtime.model.ids import Epoch, GroupName, MemberId, QueueName

GROUP = GroupName("orders")
SELF, PEER = MemberId("member-5"), MemberId("member-1")
QUEUE = QueueName("orders/0")
AGREED = {"hash_count": "64", "queue_count": "8"}
IDENTITY = Identity(GROUP, SELF, Life(100, 7), 1, AGREED)
SETTINGS = MembershipSettings()
ACTIVE = FlowReport(ReportedFlow.ACTIVE, Epoch(3), 2)
STANDBY = FlowReport(ReportedFlow.STANDBY, Epoch(3), 0)
OrderedCommand = TypeVar("OrderedCommand", bound=MembershipCommand)


def header(sequence: int, life: Life = Life(1, 1), member: MemberId = PEER) -> Header:  # noqa: B008 - Life is frozen
    return Header(GROUP, member, life, sequence)


def beat(
    of: Header,
    state: MemberState = MemberState.ACTIVE,
    flows: Mapping[QueueName, FlowReport] | None = None,
    settings: Mapping[str, str] = AGREED,
) -> Heartbeat:
    return Heartbeat(of, state, 1, settings, flows or {}, "0" * 16)


def pick(commands: list[MembershipCommand], kind: type[OrderedCommand]) -> list[OrderedCommand]:
    return [command for command in commands if isinstance(command, kind)]


class Shell:
    """One machine on a clock of its own; what it orders is collected."""

    def __init__(self, *, joined: bool = True, settings: MembershipSettings = SETTINGS) -> None:
        self.now_ms = 50_000
        self.machine = MembershipMachine(IDENTITY, settings, random.Random(1), self.now_ms)
        if joined:
            self.tell(ControlConnected())
            self.tell(JoinDone())

    def tell(self, event: MembershipEvent) -> list[MembershipCommand]:
        return self.machine.handle(event, self.now_ms)

    def hear(self, message: ControlMessage) -> list[MembershipCommand]:
        return self.tell(ControlMessageReceived(message))

    def wait(self, wait_ms: int) -> list[MembershipCommand]:
        """Let time pass, with every deadline kept."""
        until_ms = self.now_ms + wait_ms
        commands: list[MembershipCommand] = []
        while (deadline_ms := self.machine.deadline_ms) is not None and deadline_ms <= until_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            commands += self.machine.on_deadline(self.now_ms)
        self.now_ms = until_ms
        return commands

    def members(self) -> dict[MemberId, tuple[MemberState, bool]]:
        return {one.member: (one.state, one.is_suspect) for one in self.machine.view.members}


ALIVE = (MemberState.ACTIVE, False)
SUSPECT = (MemberState.ACTIVE, True)


# -- joining and speaking


def test_a_new_member_says_all_of_itself_and_asks_for_all_others() -> None:
    shell = Shell(joined=False)
    assert shell.machine.deadline_ms is None
    commands = shell.tell(ControlConnected())
    assert isinstance(commands[0], SendHeartbeat)
    assert pick(commands, SendStateRequest)
    heartbeat = shell.machine.heartbeat({QUEUE: ACTIVE})
    assert heartbeat.state is MemberState.JOINING
    assert heartbeat.settings == AGREED
    assert heartbeat.flows == {QUEUE: ACTIVE}
    assert shell.members() == {SELF: (MemberState.JOINING, False)}


def test_every_message_of_a_life_has_a_higher_sequence() -> None:
    shell = Shell()
    headers = [shell.machine.stamp(), shell.machine.heartbeat({}).header, shell.machine.stamp()]
    assert [one.sequence for one in headers] == sorted({one.sequence for one in headers})
    assert all((one.group, one.member, one.life) == (GROUP, SELF, Life(100, 7)) for one in headers)


def test_heartbeats_come_at_least_once_per_interval_and_not_at_fixed_times() -> None:
    shell = Shell()
    times: list[int] = []
    for _ in range(200):
        deadline_ms = shell.machine.deadline_ms
        assert deadline_ms is not None
        shell.now_ms = deadline_ms
        assert shell.machine.on_deadline(deadline_ms) == [SendHeartbeat()]
        times.append(deadline_ms)
    gaps = {later - earlier for earlier, later in pairwise(times)}
    assert min(gaps) >= 800
    assert max(gaps) <= 1_000
    assert len(gaps) > 50


def test_a_deadline_that_has_not_come_changes_nothing() -> None:
    shell = Shell()
    assert shell.machine.on_deadline(shell.now_ms) == []


def test_a_change_of_the_own_state_is_said_at_once() -> None:
    shell = Shell(joined=False)
    shell.tell(ControlConnected())
    assert pick(shell.tell(JoinDone()), SendHeartbeat)
    assert shell.machine.heartbeat({}).state is MemberState.ACTIVE
    assert shell.tell(JoinDone()) == []
    assert pick(shell.tell(DrainStarted()), SendHeartbeat)
    assert shell.machine.heartbeat({}).state is MemberState.DRAINING
    assert shell.tell(DrainStarted()) == []
    assert shell.tell(JoinDone()) == []
    [leave] = pick(shell.tell(LeaveRequested()), SendLeave)
    assert leave.message.header.sequence > 1
    assert shell.machine.state is OwnState.LEFT


def test_after_leaving_nothing_is_said_or_heard() -> None:
    shell = Shell()
    shell.tell(LeaveRequested())
    assert shell.machine.deadline_ms is None
    assert shell.hear(beat(header(1))) == []
    assert shell.machine.view.members == ()
    with pytest.raises(InvariantViolated):
        shell.machine.heartbeat({})


def test_a_member_that_cannot_be_heard_leaves_without_a_word() -> None:
    shell = Shell(joined=False)
    assert pick(shell.tell(LeaveRequested()), SendLeave) == []


def test_changed_flows_and_requests_are_answered_soon_and_together() -> None:
    shell = Shell()
    shell.wait(500)
    shell.tell(OwnFlowsChanged({QUEUE: ACTIVE}))
    for number in range(10):
        shell.hear(StateRequest(header(1, member=MemberId(f"joiner-{number}"))))
    assert pick(shell.wait(100), SendHeartbeat) == [SendHeartbeat()]
    assert shell.machine.view.owners == {QUEUE: SELF}


def test_however_often_they_ask_heartbeats_keep_a_distance() -> None:
    shell = Shell()
    beats = 0
    for sequence in range(1, 1_001):
        shell.hear(StateRequest(header(sequence)))
        beats += len(pick(shell.wait(1), SendHeartbeat))
    assert beats <= 10


# -- hearing


def test_a_peer_is_in_the_view_from_its_first_heartbeat() -> None:
    shell = Shell()
    assert shell.machine.peers_heard_ms is None
    shell.hear(StateRequest(header(1)))
    assert PEER not in shell.members()
    commands = shell.hear(beat(header(2), flows={QUEUE: ACTIVE}))
    assert pick(commands, FlowsReported) == [FlowsReported(PEER)]
    [changed] = pick(commands, ViewChanged)
    assert [one.member for one in changed.view.members] == [PEER, SELF]
    assert changed.view.owners == {QUEUE: PEER}
    peer = changed.view.find(PEER)
    assert peer is not None
    assert (peer.life, peer.weight, peer.flows) == (Life(1, 1), 1, {QUEUE: ACTIVE})
    assert shell.machine.peers_heard_ms == shell.now_ms


def test_a_heartbeat_without_news_orders_nothing() -> None:
    shell = Shell()
    shell.hear(beat(header(1), flows={QUEUE: ACTIVE}))
    assert shell.hear(beat(header(2), flows={QUEUE: replace(ACTIVE, in_flight=9)})) == []
    peer = shell.machine.view.find(PEER)
    assert peer is not None
    assert peer.flows[QUEUE].in_flight == 9


def test_a_peer_that_changes_its_state_changes_the_view() -> None:
    shell = Shell()
    shell.hear(beat(header(1), MemberState.JOINING))
    assert pick(shell.hear(beat(header(2))), ViewChanged)
    assert pick(shell.hear(beat(header(3), MemberState.DRAINING)), ViewChanged)
    assert pick(shell.hear(Leave(header(4))), ViewChanged)
    assert shell.members() == {SELF: ALIVE}


def test_a_queue_that_was_taken_has_a_new_owner_before_the_next_heartbeat() -> None:
    shell = Shell()
    shell.hear(beat(header(1), flows={QUEUE: ACTIVE}))
    taker = MemberId("taker")
    shell.hear(beat(header(1, member=taker), flows={QUEUE: STANDBY}))
    shell.now_ms += 10
    taken = Taken(header(2, member=taker), QUEUE, MoveId("m"), Epoch(3))
    assert shell.hear(taken) == [FlowsReported(taker), MoveMessageHeard(taken)]
    assert shell.machine.view.owners == {QUEUE: taker}


def test_what_is_said_of_a_move_is_handed_on_once_and_only_from_living_members() -> None:
    shell = Shell()
    assert shell.hear(Accept(header(1), QUEUE, MoveId("m"))) == []
    shell.hear(beat(header(2)))
    accept = Accept(header(3), QUEUE, MoveId("m"))
    assert shell.hear(accept) == [MoveMessageHeard(accept)]
    assert pick(shell.hear(accept), MoveMessageHeard) == []
    offer = Offer(header(2), QUEUE, Epoch(1), MoveId("n"), SELF)
    assert pick(shell.hear(offer), MoveMessageHeard) == [], "said before what was heard last"


def test_our_own_messages_may_come_back() -> None:
    shell = Shell()
    before = shell.machine.view
    for message in (shell.machine.heartbeat({}), StateRequest(shell.machine.stamp()), Leave(shell.machine.stamp())):
        assert shell.hear(message) == []
    assert shell.machine.view == before
    assert shell.machine.peers_heard_ms is None


def test_old_and_repeated_messages_change_nothing_and_are_noted_once() -> None:
    shell = Shell()
    shell.hear(beat(header(5, Life(2, 1)), flows={QUEUE: ACTIVE}))
    before = shell.machine.view
    old: list[ControlMessage] = [
        beat(header(5, Life(2, 1))),
        Leave(header(4, Life(2, 1))),
        beat(header(9, Life(1, 9))),
        Leave(header(9, Life(1, 9))),
        Accept(header(9, Life(2, 0)), QUEUE, MoveId("m")),
    ]
    notes = [note for message in old for note in shell.hear(message)]
    assert notes == [
        Note("control_message_disregarded", {"member": PEER, "reason": "old_sequence"}),
        Note("control_message_disregarded", {"member": PEER, "reason": "old_life"}),
    ]
    assert shell.machine.disregarded == {"old_sequence": 2, "old_life": 3}
    assert shell.machine.view == before


def test_bytes_that_are_no_message_are_counted_and_noted_once_per_reason() -> None:
    shell = Shell()
    commands = [
        *shell.tell(ControlMessageDropped(RefusalReason.VERSION)),
        *shell.tell(ControlMessageDropped(RefusalReason.VERSION)),
        *shell.tell(ControlMessageDropped(RefusalReason.GROUP)),
    ]
    assert [note.facts["reason"] for note in pick(commands, Note)] == ["version", "group"]
    assert shell.machine.disregarded == {"version": 2, "group": 1}


def test_a_flood_of_strangers_fills_neither_memory_nor_the_log() -> None:
    shell = Shell()
    notes = 0
    for number in range(MAX_MEMBERS + MAX_NOTED + 500):
        commands = shell.hear(StateRequest(header(1, member=MemberId(f"stranger-{number}"))))
        notes += len(pick(commands, Note))
    assert notes == MAX_NOTED
    assert shell.machine.disregarded["too_many_members"] == MAX_NOTED + 500
    shell.wait(SETTINGS.dead_ms)
    assert pick(shell.hear(beat(header(1))), ViewChanged)


def test_a_peer_with_other_settings_is_named_with_both_values_and_is_no_member() -> None:
    shell = Shell()
    theirs = {"hash_count": "32", "hash_function": "crc32"}
    assert shell.hear(beat(header(1), settings=theirs)) == [
        SettingsDisagree(PEER, "hash_count", "64", "32"),
        SettingsDisagree(PEER, "hash_function", None, "crc32"),
        SettingsDisagree(PEER, "queue_count", "8", None),
    ]
    assert shell.hear(beat(header(2), settings=theirs)) == []
    assert shell.members() == {SELF: ALIVE}
    assert shell.machine.disregarded == {"settings": 2}
    assert pick(shell.hear(beat(header(3))), ViewChanged)


def test_a_message_with_other_settings_does_not_hide_the_member_it_names() -> None:
    shell = Shell()
    shell.hear(beat(header(1)))
    shell.hear(beat(header(2), settings={}))
    assert shell.members() == {PEER: ALIVE, SELF: ALIVE}
    assert shell.hear(beat(header(2))) == []


# -- lives


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


# -- silence


def test_silence_makes_a_peer_suspect_then_dead() -> None:
    shell = Shell()
    shell.hear(beat(header(1), flows={QUEUE: ACTIVE}))
    assert not pick(shell.wait(3_499), ViewChanged)
    assert pick(shell.wait(1), ViewChanged)
    assert shell.members()[PEER] == SUSPECT
    assert shell.machine.view.owners == {QUEUE: PEER}
    assert not shell.machine.view.is_target(PEER)
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
    shell.wait(3_499)
    assert shell.members()[PEER] == ALIVE
    shell.wait(1)
    assert shell.members()[PEER] == SUSPECT


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


# -- what is refused


@pytest.mark.parametrize(
    "change",
    [
        {"heartbeat_ms": 9},
        {"jitter": -0.1},
        {"jitter": 0.6},
        {"suspect_after_missed": 0},
        {"suspect_after_missed": 5},
        {"settle_ms": -1},
    ],
)
def test_settings_that_no_schedule_can_be_made_of_are_refused(change: dict[str, int]) -> None:
    with pytest.raises(UserError, match="membership"):
        replace(SETTINGS, **change)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"group": ""}, "group"),
        ({"member": "a\nb"}, "membership"),
        ({"member": "x" * 251}, "membership"),
        ({"settings": {"hash_count": "\x00"}}, "hash_count"),
        ({"weight": -1}, "weight"),
    ],
)
def test_an_identity_that_cannot_be_said_is_refused(change: dict[str, str], where: str) -> None:
    with pytest.raises(UserError, match=where):
        replace(IDENTITY, **change)  # type: ignore[arg-type]  # each case changes one field, of its own type
