"""How the control plane's machine brings view, places and flows together; whole groups of them are in tests/sim.

More than 400 lines, as all of it is played on the same plane.
"""

import random
from itertools import count, pairwise

import pytest

from lbg_runtime.core.flow.commands import Note
from lbg_runtime.core.flow.events import (
    BindSucceeded,
    FlowActive,
    FlowInactive,
    HandBackRequested,
    PlaceChanged,
    StepAsideRequested,
    UnbindFinished,
)
from lbg_runtime.core.flow.machine import FlowMachine
from lbg_runtime.core.flow.table import FlowState
from lbg_runtime.core.group.control_messages import (
    Accept,
    FlowReport,
    Header,
    Heartbeat,
    Leave,
    Life,
    MemberState,
    Offer,
    Reject,
    ReportedFlow,
    StateRequest,
    Taken,
)
from lbg_runtime.core.group.control_plane import (
    ControlOutput,
    ControlPlaneMachine,
    FlowChanged,
    HandedOver,
    Superseded,
    Warn,
)
from lbg_runtime.core.group.identity import Identity
from lbg_runtime.core.group.membership import MembershipMachine
from lbg_runtime.core.group.membership_events import (
    ControlConnected,
    ControlLost,
    ControlMessageReceived,
    DrainStarted,
    DuplicateMemberFound,
    JoinDone,
    LeaveRequested,
    SettingsDisagree,
    ViewChanged,
    WeightChanged,
)
from lbg_runtime.core.group.membership_timing import MembershipTiming
from lbg_runtime.core.group.rebalance import AWAY, RebalanceMachine
from lbg_runtime.core.group.rebalance_events import AskFlow, GroupSeen, RebalanceCommand, RebalanceEvent
from lbg_runtime.core.group.rebalance_settings import RebalanceSettings
from lbg_runtime.core.restripe.striping import Striping, StripingBook, StripingReport
from lbg_runtime.core.roles import Place
from lbg_runtime.model.ids import Epoch, GroupName, MemberId, QueueName
from tests.core.group.spoken import said
from tests.core.rebind import REBIND

STRIPING = StripingReport(Striping(0, 2), "")

A, B = MemberId("a"), MemberId("b")
Q0, Q1 = QueueName("q0"), QueueName("q1")
SILENCE_MS = 5_500


class Plane:
    """Member a with two queues, of which q1 is pinned to b; carries out what the machine asks of flows.

    What it says comes back with the next input, as from the topic, unless `is_mute`."""

    is_mute = False

    def __init__(self, looks_ms_per_thousand: int = 0) -> None:
        self.flows = {q: FlowMachine(q, AWAY, REBIND, 4, random.Random(1), 0) for q in (Q0, Q1)}
        identity = Identity(GroupName("orders"), A, Life(1, 1), 1, {"count": "2"})
        membership = MembershipMachine(identity, MembershipTiming(jitter=0.0), random.Random(1), 0, StripingBook(2, 64))
        settings = RebalanceSettings(min_tenure_ms=0)
        rebalance = RebalanceMachine(A, [Q0, Q1], {Q0: A, Q1: B}, settings, membership.stamp)
        flows = list(self.flows.values())
        self.machine = ControlPlaneMachine(
            membership, rebalance, flows, SILENCE_MS, looks_ms_per_thousand=looks_ms_per_thousand
        )
        self._numbers = count(1)
        self._under_way: list[ControlMessageReceived] = []

    def take(self, now_ms: int, *inputs: object) -> list[ControlOutput]:
        under_way, self._under_way = self._under_way, []
        outputs = self.machine.take([*under_way, *inputs], now_ms)  # type: ignore[list-item]
        if not self.is_mute:
            self._under_way = [ControlMessageReceived(message) for message in said(outputs)]
        for output in outputs:
            if isinstance(output, AskFlow):
                self.flows[output.queue].handle(output.request, now_ms)
        return outputs

    def header(self, life: int = 1) -> Header:
        return Header(GroupName("orders"), B, Life(life, 1), next(self._numbers))

    def hear_b(self, now_ms: int, *standby_of: QueueName, setting: str = "2") -> list[ControlOutput]:
        flows = {queue: FlowReport(ReportedFlow.STANDBY, Epoch(1), 0) for queue in standby_of}
        beat = Heartbeat(self.header(), MemberState.ACTIVE, 1, {"count": setting}, flows, "", STRIPING)
        return self.take(now_ms, ControlMessageReceived(beat))

    def own(self, now_ms: int, *queues: QueueName) -> list[ControlOutput]:
        for queue in queues:
            self.flows[queue].on_deadline(now_ms)
            self.flows[queue].handle(BindSucceeded(Epoch(1)), now_ms)
            self.flows[queue].handle(FlowActive(Epoch(1)), now_ms)
        return self.take(now_ms, FlowChanged())

    def placed_with_b(self) -> None:
        """Both are known and placed, at 4,000 ms."""
        self.take(0, ControlConnected(), JoinDone())
        for now_ms in (100, 1_000, 2_000, 3_000, 4_000):
            self.hear_b(now_ms)
            self.take(now_ms)

    def settled_with_b(self) -> None:
        """Both are known, placed, and a owns both queues, at 4,100 ms."""
        self.placed_with_b()
        self.own(4_100, Q0, Q1)

    def stand_by(self, queue: QueueName) -> None:
        """A handle of a's is bound, at 4,100 ms."""
        self.flows[queue].on_deadline(4_100)
        self.flows[queue].handle(BindSucceeded(Epoch(1)), 4_100)
        self.take(4_100, FlowChanged())


@pytest.fixture
def plane() -> Plane:
    """Settled with b."""
    plane = Plane()
    plane.settled_with_b()
    return plane


def test_it_says_who_it_is_and_asks_who_is_there_once_it_is_connected() -> None:
    plane = Plane()
    assert plane.take(0, JoinDone())[:1] != [], "the view knows of us"
    kinds = [type(message) for message in said(plane.take(0, ControlConnected()))]
    assert kinds == [Heartbeat, StateRequest]
    assert plane.machine.deadline_ms == 1_000


def test_places_reach_the_flows_when_the_group_is_stable() -> None:
    plane = Plane()
    plane.take(0, ControlConnected(), JoinDone())
    plane.hear_b(100)
    asked = [each for ms in range(200, 4_200, 500) for each in plane.take(ms) if isinstance(each, AskFlow)]
    assert asked == [AskFlow(Q0, PlaceChanged(Place(0, False))), AskFlow(Q1, PlaceChanged(Place(1, False)))]


def test_a_queue_goes_to_its_home_when_that_has_accepted(plane: Plane) -> None:
    [offer] = [each for each in said(plane.hear_b(4_200, Q1)) if isinstance(each, Offer)]
    assert (offer.queue, offer.to) == (Q1, B)
    outputs = plane.take(4_210, ControlMessageReceived(Accept(plane.header(), Q1, offer.move_id)))
    assert outputs == [
        Note("hand_back_started", {"queue": Q1, "move_id": offer.move_id, "to": B}),
        AskFlow(Q1, HandBackRequested(offer.move_id)),
    ]


def test_a_queue_is_offered_as_soon_as_its_home_says_that_it_stands_by(plane: Plane) -> None:
    plane.take(4_300)
    kinds = [type(message) for message in said(plane.hear_b(4_400, Q1))]
    assert kinds == [Offer], "it does not take a heartbeat of ours"


def test_counts_in_flight_alone_are_told_to_nobody(plane: Plane) -> None:
    plane.take(4_300)
    deadline_ms = plane.machine.deadline_ms
    assert plane.take(4_400, FlowChanged()) == []
    assert plane.machine.deadline_ms == deadline_ms, "nor is the next heartbeat hurried"


def test_who_leaves_says_so_before_it_offers_and_tells_when_nothing_is_left(plane: Plane) -> None:
    plane.hear_b(4_150, Q0)
    kinds = [type(message) for message in said(plane.take(4_200, DrainStarted()))]
    assert kinds[0] is Heartbeat
    assert Offer in kinds
    assert HandedOver() not in plane.take(4_201)
    for flow in plane.flows.values():
        flow.handle(HandBackRequested("m"), 4_300)
        flow.on_deadline(4_400)
    assert HandedOver() not in plane.take(4_400, FlowChanged()), "unbinding is not unbound"
    plane.flows.clear()
    plane.machine._flows = {}
    assert HandedOver() in plane.take(4_500, FlowChanged())
    assert HandedOver() not in plane.take(4_600, FlowChanged()), "once"


def test_who_leaves_alone_need_not_wait_for_anybody() -> None:
    plane = Plane()
    plane.take(0, ControlConnected(), JoinDone())
    assert HandedOver() in plane.take(100, DrainStarted())


def test_after_good_bye_nothing_is_said(plane: Plane) -> None:
    outputs = plane.take(4_200, LeaveRequested())
    assert [type(message) for message in said(outputs)] == [Leave]
    assert said(plane.take(9_999, FlowChanged())) == []


def test_a_standby_that_hears_nobody_gives_way_in_turn(plane: Plane) -> None:
    plane.flows[Q1].handle(HandBackRequested("m"), 4_100)
    plane.flows[Q1] = standby = FlowMachine(Q1, Place(1, False), REBIND, 4, random.Random(1), 4_200)
    standby.on_deadline(4_200)
    standby.handle(BindSucceeded(Epoch(1)), 4_200)
    plane.machine._flows = dict(plane.flows)
    plane.take(4_200, FlowChanged())
    silent_from_ms = 4_200 + SILENCE_MS
    outputs = [each for ms in range(4_300, silent_from_ms + 1_500, 100) for each in plane.take(ms)]
    assert AskFlow(Q1, PlaceChanged(Place(1, gives_way=True))) in outputs
    assert AskFlow(Q0, PlaceChanged(Place(0, gives_way=True))) not in outputs, "what is pinned to us is ours"


def told_of_silence(*outputs: ControlOutput) -> list[ControlOutput]:
    notes = (Warn(Note("control_topic_silent")), Note("control_topic_heard"))
    return [each for each in outputs if each in notes]


def test_a_silent_topic_is_made_known_once_and_so_is_its_end(plane: Plane) -> None:
    plane.is_mute = True
    silent_from_ms = 4_200 + SILENCE_MS
    told = told_of_silence
    early = [each for ms in range(4_200, silent_from_ms + 1_000, 100) for each in plane.take(ms)]
    assert told(*early) == []
    late = [each for ms in range(silent_from_ms + 1_000, silent_from_ms + 60_000, 100) for each in plane.take(ms)]
    assert told(*late) == [Warn(Note("control_topic_silent"))]
    plane.is_mute = False
    heard = [*plane.hear_b(70_000), *plane.take(71_000), *plane.hear_b(71_100), *plane.take(72_000)]
    assert told(*heard) == [Note("control_topic_heard")]


def test_a_member_that_hears_the_others_and_not_itself_knows_that_nobody_hears_it(plane: Plane) -> None:
    assert plane.machine.can_hear(4_200)
    plane.is_mute = True
    outputs = [each for ms in range(4_200, 12_000, 100) for each in plane.hear_b(ms)]
    assert not plane.machine.can_hear(12_000)
    assert told_of_silence(*outputs) == [Warn(Note("control_topic_silent"))]
    assert AskFlow(Q1, PlaceChanged(Place(1, gives_way=True))) in outputs, "what it may have goes to others in the end"
    plane.is_mute = False
    outputs = [each for ms in range(12_000, 17_000, 100) for each in plane.hear_b(ms)]
    assert told_of_silence(*outputs) == [Note("control_topic_heard")]
    assert AskFlow(Q1, PlaceChanged(Place(1, gives_way=False))) in outputs


def test_the_time_without_a_connection_is_no_silence_of_the_topic(plane: Plane) -> None:
    """Its last words went with the connection: a new one has yet to say whether the topic is dead."""
    plane.is_mute = True
    plane.take(5_000)
    plane.take(5_100, ControlLost())
    outputs = plane.take(5_100 + 2 * SILENCE_MS, ControlConnected())
    assert [type(each) for each in said(outputs)] == [Heartbeat, StateRequest]
    assert not any(isinstance(each, AskFlow) for each in outputs)


def test_a_member_that_stands_aside_says_nothing_and_misses_nothing_of_it(plane: Plane) -> None:
    beat = Heartbeat(
        Header(GroupName("orders"), A, Life(2, 1), 1), MemberState.ACTIVE, 1, {"count": "2"}, {}, "", STRIPING
    )
    plane.take(4_200, ControlMessageReceived(beat))
    outputs = [each for ms in range(4_300, 20_000, 100) for each in plane.hear_b(ms)]
    assert told_of_silence(*outputs) == []


def test_what_came_while_the_process_was_suspended_is_read_before_the_topic_is_called_silent(plane: Plane) -> None:
    paused = [*plane.take(40_000), *plane.hear_b(40_010), *plane.take(42_000)]
    assert [each.note.name for each in paused if isinstance(each, Warn)] == ["membership_paused"]


def test_a_newer_process_with_our_id_gets_everything(plane: Plane) -> None:
    other = Header(GroupName("orders"), A, Life(2, 1), 1)
    beat = Heartbeat(other, MemberState.ACTIVE, 1, {"count": "2"}, {}, "", STRIPING)
    outputs = plane.take(4_200, ControlMessageReceived(beat))
    assert DuplicateMemberFound(Life(2, 1)) in outputs
    assert [each for each in outputs if isinstance(each, AskFlow)] == [
        AskFlow(Q0, PlaceChanged(AWAY)),
        AskFlow(Q1, PlaceChanged(AWAY)),
        AskFlow(Q0, HandBackRequested("stand-aside")),
        AskFlow(Q1, HandBackRequested("stand-aside")),
    ]


def test_an_offer_to_somebody_else_is_stepped_aside_for(plane: Plane) -> None:
    offer = Offer(plane.header(), Q1, Epoch(1), "b/1", MemberId("c"))  # type: ignore[arg-type]
    [asked] = [each for each in plane.take(4_200, ControlMessageReceived(offer)) if isinstance(each, AskFlow)]
    assert asked == AskFlow(Q1, StepAsideRequested(4_200 + RebalanceSettings().step_aside_ms))


def test_what_is_wrong_with_the_group_is_made_known() -> None:
    plane = Plane()
    plane.take(0, ControlConnected(), JoinDone())
    assert SettingsDisagree(B, "count", "2", "3") in plane.hear_b(1_100, setting="3")
    plane.hear_b(1_200)
    old = Heartbeat(
        Header(GroupName("orders"), B, Life(0, 1), 1), MemberState.ACTIVE, 1, {"count": "2"}, {}, "", STRIPING
    )
    [warning] = [each for each in plane.take(1_300, ControlMessageReceived(old)) if isinstance(each, Warn)]
    assert warning.note.name == "control_message_disregarded"


def test_a_change_of_the_view_is_made_known() -> None:
    plane = Plane()
    plane.take(0, ControlConnected(), JoinDone())
    [changed] = [each for each in plane.hear_b(100) if isinstance(each, ViewChanged)]
    assert [one.member for one in changed.view.members] == [A, B]


def test_a_look_at_the_flows_is_followed_by_a_rest() -> None:
    plane = Plane(looks_ms_per_thousand=25_000)
    plane.settled_with_b()
    looked_ms = 4_100
    assert plane.machine.must_hear_of_flows([]), "the first change was looked at on the spot"
    plane.flows[Q0].handle(FlowInactive(Epoch(1)), looked_ms + 1)
    assert said(plane.take(looked_ms + 1, FlowChanged())) == []
    assert not plane.machine.must_hear_of_flows([])
    assert plane.machine.deadline_ms == looked_ms + 50, "25 ms for each of the two flows"
    assert said(plane.take(looked_ms + 49, FlowChanged())) == []
    plane.take(looked_ms + 50)
    assert plane.machine.must_hear_of_flows([])
    (told,) = said(plane.take(looked_ms + 65))
    assert isinstance(told, Heartbeat), "between two regular ones, because something has changed"
    assert told.flows.keys() == {Q1}
    plane.take(looked_ms + 65, FlowChanged())
    assert not plane.machine.must_hear_of_flows([]), "what changes from now on is not forgotten"


def test_flows_that_change_together_are_looked_at_once(plane: Plane) -> None:
    assert plane.machine.must_hear_of_flows([])
    assert not plane.machine.must_hear_of_flows([FlowChanged()])
    assert plane.machine.must_hear_of_flows([FlowChanged(), WeightChanged(2)])


def test_what_is_answered_to_an_offer_is_true_even_between_two_looks() -> None:
    plane = Plane(looks_ms_per_thousand=25_000)
    plane.placed_with_b()
    plane.stand_by(Q0)
    offer = Offer(plane.header(), Q0, Epoch(1), "b/1", A)  # type: ignore[arg-type]
    assert [type(message) for message in said(plane.take(4_101, ControlMessageReceived(offer)))] == [Accept]
    plane.flows[Q0].handle(FlowActive(Epoch(1)), 4_102)
    assert said(plane.take(4_102, FlowChanged())) == [], "it is not looked at yet"
    again = Offer(plane.header(), Q0, Epoch(1), "b/2", A)  # type: ignore[arg-type]
    assert Reject in [type(message) for message in said(plane.take(4_103, ControlMessageReceived(again)))]
    assert plane.machine.must_hear_of_flows([])


def test_an_offer_is_answered_by_what_was_read_just_before_it() -> None:
    plane = Plane()
    plane.placed_with_b()
    plane.stand_by(Q1)
    fed = {Q1: FlowReport(ReportedFlow.ACTIVE, Epoch(2), 0)}
    leaving = Heartbeat(plane.header(), MemberState.DRAINING, 1, {"count": "2"}, fed, "", STRIPING)
    offer = Offer(plane.header(), Q1, Epoch(2), "b/1", A)  # type: ignore[arg-type]
    answers = said(plane.take(4_200, ControlMessageReceived(leaving), ControlMessageReceived(offer)))
    assert Accept in [type(message) for message in answers]
    assert Reject not in [type(message) for message in answers], "it is not at home on it, but the home is leaving"


def test_the_group_is_looked_at_once_for_all_that_is_read_in_one_go(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look for each message would keep a large group from its heartbeats."""
    seen: list[GroupSeen] = []
    handle = plane.machine.rebalance.handle

    def count(event: RebalanceEvent, now_ms: int) -> list[RebalanceCommand]:
        seen.extend([event] if isinstance(event, GroupSeen) else [])
        return handle(event, now_ms)

    monkeypatch.setattr(plane.machine.rebalance, "handle", count)
    taken = [Taken(plane.header(), queue, "b/1", Epoch(epoch)) for queue in (Q0, Q1) for epoch in (2, 3)]  # type: ignore[arg-type]
    offered = Offer(plane.header(), Q1, Epoch(3), "b/2", MemberId("c"))  # type: ignore[arg-type]
    plane.take(4_200, *map(ControlMessageReceived, [*taken, offered]))
    assert len(seen) == 1


def test_before_all_is_read_nobody_takes_the_topic_for_silent(plane: Plane) -> None:
    plane.take(4_200)
    later_ms = 4_200 + 10 * SILENCE_MS
    echo, plane._under_way = plane._under_way, []
    fed = {Q1: FlowReport(ReportedFlow.ACTIVE, Epoch(2), 0)}
    beat = Heartbeat(plane.header(), MemberState.ACTIVE, 1, {"count": "2"}, fed, "", STRIPING)
    offer = Offer(plane.header(), Q1, Epoch(2), "b/1", A)  # type: ignore[arg-type]
    outputs = plane.take(later_ms, ControlMessageReceived(beat), ControlMessageReceived(offer), *echo)
    assert [each for each in outputs if isinstance(each, AskFlow) and isinstance(each.request, PlaceChanged)] == []


def heard_of_a_newer_life(plane: Plane, now_ms: int) -> list[ControlOutput]:
    other = Header(GroupName("orders"), A, Life(2, 1), 1)
    beat = Heartbeat(other, MemberState.ACTIVE, 1, {"count": "2"}, {}, "", STRIPING)
    return plane.take(now_ms, ControlMessageReceived(beat))


def test_when_the_newer_life_has_gone_only_a_new_start_helps(plane: Plane) -> None:
    """Told at once, not when nothing is held any more: a queue whose key always fails is never handed back."""
    heard_of_a_newer_life(plane, 4_200)
    gone = ControlMessageReceived(Leave(Header(GroupName("orders"), A, Life(2, 1), 2)))
    assert Superseded() in plane.take(4_210, gone)
    assert [flow.state for flow in plane.flows.values()] == [FlowState.DRAINING] * 2
    later = [each for now_ms in range(4_220, 90_000, 100) for each in plane.take(now_ms, FlowChanged())]
    assert Superseded() not in later, "told once"


def test_while_the_newer_life_is_there_who_stands_aside_waits() -> None:
    plane = Plane()
    plane.take(0, ControlConnected(), JoinDone())
    for now_ms in range(1_000, 90_000, 1_000):
        other = Header(GroupName("orders"), A, Life(2, 1), now_ms)
        beat = Heartbeat(other, MemberState.ACTIVE, 1, {"count": "2"}, {}, "", STRIPING)
        assert Superseded() not in plane.take(now_ms, ControlMessageReceived(beat))


def test_who_stands_aside_gives_also_what_it_is_fed_just_then() -> None:
    """The broker's word may be on its way to the flow when the member learns of the newer life."""
    plane = Plane()
    plane.placed_with_b()
    plane.stand_by(Q0)
    other = Header(GroupName("orders"), A, Life(2, 1), 1)
    beat = Heartbeat(other, MemberState.ACTIVE, 1, {"count": "2"}, {}, "", STRIPING)
    outputs = plane.machine.take([ControlMessageReceived(beat)], 4_200)
    flow = plane.flows[Q0]
    flow.handle(FlowActive(Epoch(1)), 4_200)
    for request in [each.request for each in outputs if isinstance(each, AskFlow) and each.queue == Q0]:
        flow.handle(request, 4_200)
    assert flow.state is FlowState.ACTIVE
    assert AskFlow(Q0, HandBackRequested("stand-aside")) in plane.take(4_210, FlowChanged())


def test_who_stands_aside_waits_for_nothing_that_was_due_before(plane: Plane) -> None:
    """An offer that was open expired and stayed so: the deadline was in the past for ever, and the loop span."""
    assert any(isinstance(each, Offer) for each in said(plane.hear_b(4_200, Q1)))
    heard_of_a_newer_life(plane, 4_300)
    for now_ms in range(4_400, 20_000, 100):
        plane.take(now_ms)
        assert (plane.machine.deadline_ms or now_ms + 1) > now_ms


def test_who_stands_aside_asks_again_where_a_drain_took_too_long_and_not_at_once(plane: Plane) -> None:
    heard_of_a_newer_life(plane, 4_200)
    flow, other = plane.flows[Q0], plane.flows[Q1]
    asked = []
    for now_ms in range(4_300, 40_000, 100):
        other.on_deadline(now_ms)
        if other.state is FlowState.UNBINDING:
            other.handle(UnbindFinished(Epoch(1)), now_ms)
        if flow.state is FlowState.DRAINING:
            # Its drains take no time, and are given up before anybody looks.
            flow._keep_queue("stand-aside", now_ms)
            flow.state = FlowState.ACTIVE
        outputs = plane.take(now_ms)
        asked += [now_ms for each in outputs if each == AskFlow(Q0, HandBackRequested("stand-aside"))]
    assert [later - before for before, later in pairwise(asked)] == [SILENCE_MS] * (len(asked) - 1)
    assert len(asked) > 3
    assert other.state is FlowState.UNBOUND
