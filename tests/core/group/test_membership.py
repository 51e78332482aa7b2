"""What a member says of itself, whom it hears, and what is refused."""

from dataclasses import replace
from itertools import pairwise

import pytest

from lbg_runtime.core.flow.commands import Note
from lbg_runtime.core.group.control_codec import RefusalReason
from lbg_runtime.core.group.control_messages import (
    Accept,
    ControlMessage,
    FlowReport,
    Leave,
    Life,
    MemberState,
    MoveId,
    Offer,
    StateRequest,
    Taken,
)
from lbg_runtime.core.group.membership import OwnState
from lbg_runtime.core.group.membership_events import (
    ControlConnected,
    ControlMessageDropped,
    DrainStarted,
    FlowsReported,
    JoinDone,
    LeaveRequested,
    MoveMessageHeard,
    OwnFlowsChanged,
    SendHeartbeat,
    SendLeave,
    SendStateRequest,
    SettingsDisagree,
    ViewChanged,
)
from lbg_runtime.core.group.peer import Peer, Standing
from lbg_runtime.model.errors import InvariantViolated, UserError
from lbg_runtime.model.ids import Epoch, MemberId, QueueName
from tests.core.group.membership_shell import (
    ACTIVE,
    AGREED,
    ALIVE,
    GROUP,
    IDENTITY,
    PEER,
    QUEUE,
    SELF,
    SETTINGS,
    STANDBY,
    Shell,
    beat,
    header,
    pick,
)

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
    assert pick(commands, FlowsReported) == [FlowsReported()]
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
    assert shell.hear(taken) == [FlowsReported(), MoveMessageHeard(taken)]
    assert shell.machine.view.owners == {QUEUE: taker}
    assert shell.machine.owner_of(QUEUE) == taker
    assert shell.machine.owner_of(QueueName("another")) is None


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
        Note("control_message_disregarded", {"other": PEER, "reason": "old_sequence"}),
        Note("control_message_disregarded", {"other": PEER, "reason": "old_life"}),
    ]
    assert shell.machine.view == before


def test_bytes_that_are_no_message_are_noted_once_per_reason() -> None:
    shell = Shell()
    commands = [
        *shell.tell(ControlMessageDropped(RefusalReason.VERSION)),
        *shell.tell(ControlMessageDropped(RefusalReason.VERSION)),
        *shell.tell(ControlMessageDropped(RefusalReason.GROUP)),
    ]
    assert [note.facts["reason"] for note in pick(commands, Note)] == ["version", "group"]


def test_another_version_is_heard_until_who_spoke_it_would_be_dead() -> None:
    shell = Shell()
    shell.tell(ControlMessageDropped(RefusalReason.GROUP))
    shell.tell(ControlMessageDropped(RefusalReason.MALFORMED))
    assert not shell.machine.hears_other_versions(shell.now_ms)
    shell.tell(ControlMessageDropped(RefusalReason.VERSION))
    assert shell.machine.hears_other_versions(shell.now_ms + SETTINGS.dead_ms - 1)
    assert not shell.machine.hears_other_versions(shell.now_ms + SETTINGS.dead_ms)


def test_a_flood_of_strangers_fills_neither_memory_nor_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    most_members, most_noted = 100, 70
    monkeypatch.setattr("lbg_runtime.core.group.membership.MAX_MEMBERS", most_members)
    monkeypatch.setattr("lbg_runtime.core.group.membership.MAX_NOTED", most_noted)
    shell = Shell()
    strangers = [StateRequest(header(1, member=MemberId(f"stranger-{number}"))) for number in range(150)]
    notes = [note for one in strangers for note in pick(shell.hear(one), Note)]
    assert [note.facts["reason"] for note in notes] == ["too_many_members"]
    notes += [note for one in strangers[:most_members] for note in pick(shell.hear(one), Note)]
    assert len(notes) == most_noted
    counts = {reason: count for reason, count in shell.machine.disregarded.items() if count}
    assert counts == {"too_many_members": 50, "old_sequence": most_members}
    shell.wait(SETTINGS.dead_ms)
    assert pick(shell.hear(beat(header(1))), ViewChanged)


def test_for_a_message_nobody_is_looked_at_but_its_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[MemberId] = []
    slot = Peer.__dict__["standing"]

    def look(peer: Peer) -> Standing:
        looked_at.append(peer.member)
        standing: Standing = slot.__get__(peer)
        return standing

    monkeypatch.setattr(Peer, "standing", property(look, slot.__set__))
    shell = Shell()
    others = [MemberId(f"made-up-{number}") for number in range(20)]
    for other in others:
        shell.hear(beat(header(1, member=other)))
    looked_at.clear()
    assert shell.hear(beat(header(2, member=others[7]))) == []
    assert shell.machine.on_deadline(shell.now_ms) == []
    assert shell.machine.deadline_ms is not None
    assert set(looked_at) == {others[7]}


def test_a_peer_with_other_settings_is_named_with_both_values_and_is_no_member() -> None:
    shell = Shell()
    shell.wait(SETTINGS.heartbeat_ms)
    theirs = {"hash_count": "32", "hash_function": "crc32"}
    assert shell.hear(beat(header(1), settings=theirs)) == [
        SettingsDisagree(PEER, "hash_count", "64", "32"),
        SettingsDisagree(PEER, "hash_function", None, "crc32"),
        SettingsDisagree(PEER, "queue_count", "8", None),
    ]
    assert shell.hear(beat(header(2), settings=theirs)) == []
    assert shell.members() == {SELF: ALIVE}
    assert pick(shell.hear(beat(header(3))), ViewChanged)


def test_a_peer_with_other_settings_is_alone_if_it_has_no_queue_and_members_that_agree_with_us_own_some() -> None:
    third, theirs = MemberId("orders-9"), {**AGREED, "hash_count": "32"}
    shell = Shell()
    shell.wait(SETTINGS.heartbeat_ms)
    shell.hear(beat(header(1, member=third), flows={QUEUE: STANDBY}))
    [nobody_owns] = pick(shell.hear(beat(header(1), settings=theirs)), SettingsDisagree)
    shell.hear(beat(header(2, member=third), flows={QUEUE: ACTIVE}))
    [alone] = pick(shell.hear(beat(header(2), settings={**AGREED, "hash_count": "16"})), SettingsDisagree)
    [bound] = pick(
        shell.hear(beat(header(3), settings={**AGREED, "hash_count": "8"}, flows={QUEUE: STANDBY})), SettingsDisagree
    )
    assert [nobody_owns.is_alone, alone.is_alone, bound.is_alone] == [False, True, False]


@pytest.mark.parametrize("flows", [{}, {QUEUE: STANDBY}, {QUEUE: ACTIVE}])
def test_a_peer_without_a_queue_is_judged_when_those_that_own_some_have_had_time_to_speak(
    flows: dict[QueueName, FlowReport],
) -> None:
    """It came between our start and their first word, and was taken for the group."""
    shell = Shell(settings=replace(SETTINGS, settle_ms=0))
    assert shell.hear(beat(header(1), settings={})) == []
    shell.hear(beat(header(1, member=MemberId("orders-9")), flows=flows))
    assert pick(shell.wait(SETTINGS.heartbeat_ms - 1), SettingsDisagree) == []
    assert not shell.machine.is_stable(shell.now_ms)
    told = pick(shell.wait(1), SettingsDisagree)
    assert [(each.name, each.is_alone) for each in told] == [(name, ACTIVE in flows.values()) for name in AGREED]
    assert pick(shell.wait(SETTINGS.heartbeat_ms), SettingsDisagree) == []


def test_a_peer_that_leaves_before_it_is_judged_is_judged_all_the_same() -> None:
    """Of two that began a group the first one was refused and left, and the other one had the group to itself."""
    shell = Shell()
    shell.hear(beat(header(1), settings={}))
    shell.hear(Leave(header(2)))
    assert {each.is_alone for each in pick(shell.wait(SETTINGS.heartbeat_ms), SettingsDisagree)} == {False}


def test_a_peer_that_comes_back_with_our_settings_before_it_is_judged_has_done_no_harm() -> None:
    shell = Shell()
    shell.hear(beat(header(1), settings={}))
    shell.hear(beat(header(1, Life(2, 1))))
    assert pick(shell.wait(SETTINGS.heartbeat_ms), SettingsDisagree) == []


def test_a_peer_that_is_bound_is_judged_at_once() -> None:
    shell = Shell()
    shell.hear(beat(header(1), settings={}))
    assert pick(shell.hear(beat(header(2), settings={}, flows={QUEUE: STANDBY})), SettingsDisagree)


def test_a_message_with_other_settings_does_not_hide_the_member_it_names() -> None:
    shell = Shell()
    shell.hear(beat(header(1)))
    shell.hear(beat(header(2), settings={}))
    assert shell.members() == {PEER: ALIVE, SELF: ALIVE}
    assert shell.hear(beat(header(2))) == []


# -- what is refused


@pytest.mark.parametrize(
    "change",
    [
        {"heartbeat_ms": 9},
        {"jitter": -0.1},
        {"jitter": 0.6},
        {"settle_ms": -1},
    ],
)
def test_settings_that_no_schedule_can_be_made_of_are_refused(change: dict[str, int]) -> None:
    with pytest.raises(InvariantViolated, match="no schedule"):
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
