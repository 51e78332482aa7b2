"""How the control plane proves settlements, spreads what is known of a re-striping, and takes queues in and out."""

import random
from itertools import count

import pytest

from lbg_runtime.core.flow.events import (
    BindSucceeded,
    FlowActive,
    HandBackRequested,
    MessageReceived,
    PlaceChanged,
    SettlementsReached,
    StripingLearned,
)
from lbg_runtime.core.flow.machine import FlowMachine
from lbg_runtime.core.flow.table import FlowState
from lbg_runtime.core.group.control_messages import Header, Heartbeat, Leave, Life, MemberState
from lbg_runtime.core.group.control_plane import (
    QUEUE_GONE,
    ControlOutput,
    ControlPlaneMachine,
    FlowChanged,
    FlowsAdded,
    ProbeAsked,
    QueuesAdded,
)
from lbg_runtime.core.group.identity import Identity
from lbg_runtime.core.group.membership import MembershipMachine
from lbg_runtime.core.group.membership_events import (
    ControlConnected,
    ControlLost,
    ControlMessageReceived,
    JoinDone,
    LeaveRequested,
    SettingsDisagree,
    StripesTold,
)
from lbg_runtime.core.group.membership_timing import MembershipTiming
from lbg_runtime.core.group.rebalance import AWAY, RebalanceMachine
from lbg_runtime.core.group.rebalance_events import AskFlow
from lbg_runtime.core.group.rebalance_settings import RebalanceSettings
from lbg_runtime.core.restripe.news import PlanReached, ShardLeft, StripesEnded, StripesFinished
from lbg_runtime.core.restripe.records import StripePlan
from lbg_runtime.core.restripe.striping import Striping, StripingBook, StripingReport, proof_of
from lbg_runtime.core.roles import Place
from lbg_runtime.model.ids import DeliveryId, Epoch, GroupName, MemberId, QueueName
from lbg_runtime.model.message import Delivery, Message
from tests.core.group.spoken import said
from tests.core.rebind import REBIND

A, B = MemberId("a"), MemberId("b")
Q0, Q1, Q2 = QueueName("q0"), QueueName("q1"), QueueName("q2")
GENERATION = 7
PLAN = StripePlan(GENERATION, from_count=2, to_count=3, secret="s3cr3t")
PLANNED = Striping(GENERATION, 2, 3)


class Plane:
    """Member a, started with two queues, connected and alone; carries out what the machine asks of flows."""

    def __init__(self) -> None:
        self.flows = {queue: self.new_flow(queue) for queue in (Q0, Q1)}
        identity = Identity(GroupName("orders"), A, Life(1, 1), 1, {})
        self.book = StripingBook(2, 64)
        membership = MembershipMachine(identity, MembershipTiming(jitter=0.0), random.Random(1), 0, self.book)
        rebalance = RebalanceMachine(A, [Q0, Q1], {}, RebalanceSettings(min_tenure_ms=0), membership.stamp)
        self.machine = ControlPlaneMachine(membership, rebalance, list(self.flows.values()), 5_500)
        self._numbers = count(1)
        self.take(0, ControlConnected(), JoinDone())

    @staticmethod
    def new_flow(queue: QueueName) -> FlowMachine:
        return FlowMachine(queue, AWAY, REBIND, 4, random.Random(1), 0)

    def take(self, now_ms: int, *inputs: object) -> list[ControlOutput]:
        outputs = self.machine.take(inputs, now_ms)  # type: ignore[arg-type]
        for output in outputs:
            # Its number is that of a probe which the flow has never asked for.
            if isinstance(output, AskFlow) and not isinstance(output.request, SettlementsReached):
                self.flows[output.queue].handle(output.request, now_ms)
        return outputs

    def be_placed(self) -> None:
        """Long enough alone, so that both queues are ours; at 4,000 ms."""
        for now_ms in range(1_000, 4_001, 1_000):
            self.take(now_ms)
        self.own(4_000, Q0, Q1)

    def own(self, now_ms: int, *queues: QueueName) -> list[ControlOutput]:
        for queue in queues:
            flow = self.flows[queue]
            flow.on_deadline(now_ms)
            flow.handle(BindSucceeded(flow.epoch), now_ms)
            flow.handle(FlowActive(flow.epoch), now_ms)
        return self.take(now_ms, FlowChanged())

    def add_q2(self, now_ms: int) -> list[ControlOutput]:
        self.flows[Q2] = self.new_flow(Q2)
        return self.take(now_ms, FlowsAdded([self.flows[Q2]], {}))

    def hear_b(self, now_ms: int, striping: Striping, proof: str = "") -> list[ControlOutput]:
        header = Header(GroupName("orders"), B, Life(1, 1), next(self._numbers))
        beat = Heartbeat(header, MemberState.ACTIVE, 1, {}, {}, "", StripingReport(striping, proof))
        return self.take(now_ms, ControlMessageReceived(beat))


@pytest.fixture
def plane() -> Plane:
    return Plane()


def beats(outputs: list[ControlOutput]) -> list[Heartbeat]:
    return [message for message in said(outputs) if isinstance(message, Heartbeat)]


def asked(outputs: list[ControlOutput]) -> list[AskFlow]:
    return [output for output in outputs if isinstance(output, AskFlow)]


def reached(queue: QueueName, epoch: int, number: int) -> AskFlow:
    return AskFlow(queue, SettlementsReached(Epoch(epoch), number))


def probe(queue: QueueName, number: int, epoch: int = 1) -> ProbeAsked:
    return ProbeAsked(queue, Epoch(epoch), number)


class TestProbes:
    """Our own heartbeat comes back on the connection that carries the settlements: the broker has read those before."""

    def test_a_probe_is_answered_by_the_echo_of_a_heartbeat_that_is_said_for_it(self, plane: Plane) -> None:
        [beat] = beats(plane.take(10, probe(Q1, 4, epoch=3)))
        assert asked(plane.take(20, ControlMessageReceived(beat))) == [reached(Q1, 3, 4)]
        assert asked(plane.take(30, ControlMessageReceived(beat))) == [], "once"

    def test_probes_that_come_together_need_one_heartbeat(self, plane: Plane) -> None:
        [beat] = beats(plane.take(10, probe(Q0, 1), probe(Q1, 1), probe(Q0, 2)))
        assert asked(plane.take(20, ControlMessageReceived(beat))) == [
            reached(Q0, 1, 1),
            reached(Q1, 1, 1),
            reached(Q0, 1, 2),
        ]

    def test_what_we_said_before_answers_nothing(self, plane: Plane) -> None:
        [before] = beats(plane.take(10, probe(Q0, 1)))
        plane.take(20, probe(Q1, 1))
        assert asked(plane.take(30, ControlMessageReceived(before))) == [reached(Q0, 1, 1)]

    def test_whatever_we_said_later_answers_too_where_an_echo_was_lost(self, plane: Plane) -> None:
        plane.take(10, probe(Q0, 1))
        [later] = beats(plane.take(20, probe(Q1, 1)))
        assert asked(plane.take(30, ControlMessageReceived(later))) == [reached(Q0, 1, 1), reached(Q1, 1, 1)]

    def test_where_our_words_do_not_come_back_only_the_newest_are_waited_for(self, plane: Plane) -> None:
        [first] = beats(plane.take(10, probe(Q0, 1)))
        [second] = beats(plane.take(20, probe(Q1, 1)))
        last = second
        for now_ms in range(1_020, 200_000, 1_000):
            [last] = beats(plane.take(now_ms))
        for old in (first, second):
            assert asked(plane.take(200_000, ControlMessageReceived(old))) == []
        assert asked(plane.take(200_010, ControlMessageReceived(last))) == [reached(Q0, 1, 1), reached(Q1, 1, 1)]

    @pytest.mark.parametrize(("member", "life"), [(B, Life(1, 1)), (A, Life(0, 1)), (A, Life(1, 0))])
    def test_what_others_say_answers_nothing(self, plane: Plane, member: MemberId, life: Life) -> None:
        [beat] = beats(plane.take(10, probe(Q0, 1)))
        stranger = Leave(Header(GroupName("orders"), member, life, beat.header.sequence))
        assert asked(plane.take(20, ControlMessageReceived(stranger))) == []

    def test_nobody_can_answer_for_us_who_has_not_heard_us(self, plane: Plane) -> None:
        """Whoever may talk on the topic could say something in our name, with our life and a number of its choice."""
        [beat] = beats(plane.take(10, probe(Q0, 1)))
        known = beat.header
        for number in (known.sequence - 1, known.sequence + 1, known.sequence + 10**9, (1 << 63) - 1):
            forged = Leave(Header(known.group, known.member, known.life, number))
            assert asked(plane.take(20, ControlMessageReceived(forged))) == []
        assert asked(plane.take(30, ControlMessageReceived(beat))) == [reached(Q0, 1, 1)]

    def test_its_number_cannot_be_guessed_from_those_before(self, plane: Plane) -> None:
        leaps = iter([1_000, 77])
        plane.machine._leap = lambda: next(leaps)
        [first] = beats(plane.take(10, probe(Q0, 1)))
        [second] = beats(plane.take(20, probe(Q1, 1)))
        assert second.header.sequence - first.header.sequence == 78
        assert asked(plane.take(30, ControlMessageReceived(second))) == [reached(Q0, 1, 1), reached(Q1, 1, 1)]

    def test_with_the_connection_its_probes_are_gone(self, plane: Plane) -> None:
        """What was settled on it may never have reached the broker."""
        [beat] = beats(plane.take(10, probe(Q0, 1)))
        plane.take(20, ControlLost())
        assert asked(plane.take(30, ControlMessageReceived(beat))) == []
        [again, *_] = beats(plane.take(40, ControlConnected()))
        assert asked(plane.take(50, ControlMessageReceived(again))) == []

    def test_also_those_that_were_asked_in_the_same_moment(self, plane: Plane) -> None:
        plane.take(10, probe(Q0, 1), ControlLost())
        [again, *_] = beats(plane.take(40, ControlConnected()))
        assert asked(plane.take(50, ControlMessageReceived(again))) == []

    def test_one_that_is_asked_without_a_connection_waits_for_the_next(self, plane: Plane) -> None:
        plane.take(10, ControlLost())
        assert said(plane.take(20, probe(Q0, 1))) == []
        [beat, *_] = beats(plane.take(30, ControlConnected()))
        assert asked(plane.take(40, ControlMessageReceived(beat))) == [reached(Q0, 1, 1)]

    def test_after_good_bye_nothing_is_said_for_one(self, plane: Plane) -> None:
        plane.take(10, LeaveRequested())
        assert plane.take(20, probe(Q0, 1)) == []


class TestWhatIsKnown:
    def test_news_of_our_queues_go_to_the_group_and_to_all_our_flows_at_once(self, plane: Plane) -> None:
        outputs = plane.take(100, StripesTold(0, PlanReached(PLAN)))
        assert [beat.striping for beat in beats(outputs)] == [StripingReport(PLANNED, "")]
        assert asked(outputs) == [AskFlow(queue, StripingLearned(PLANNED)) for queue in (Q0, Q1)]
        assert plane.take(110, StripesTold(1, PlanReached(PLAN))) == [], "which is no news"

    def test_what_has_left_and_finished_goes_with_its_proof(self, plane: Plane) -> None:
        plane.take(100, StripesTold(0, PlanReached(PLAN)))
        left = Striping(GENERATION, 2, 3, frozenset({2}))
        [beat] = beats(plane.take(200, StripesTold(0, ShardLeft(PLAN, 2))))
        assert beat.striping == StripingReport(left, proof_of(PLAN.secret, left))
        finished = Striping(GENERATION, 2, 3, frozenset({2}), frozenset({1}))
        [beat] = beats(plane.take(300, StripesTold(1, StripesFinished(GENERATION, 2, 3))))
        assert beat.striping == StripingReport(finished, proof_of(PLAN.secret, finished))

    def test_news_of_others_go_to_our_flows(self, plane: Plane) -> None:
        plane.take(100, StripesTold(0, PlanReached(PLAN)))
        left = Striping(GENERATION, 2, 3, frozenset({3}))
        learned = [AskFlow(queue, StripingLearned(left)) for queue in (Q0, Q1)]
        assert asked(plane.hear_b(200, left, "forged")) == []
        assert asked(plane.hear_b(210, left, proof_of(PLAN.secret, left))) == learned
        assert asked(plane.hear_b(220, left, proof_of(PLAN.secret, left))) == []

    def test_without_a_connection_it_is_said_with_the_next_heartbeat(self, plane: Plane) -> None:
        plane.take(100, ControlLost())
        assert said(plane.take(110, StripesTold(0, PlanReached(PLAN)))) == []
        [beat, *_] = beats(plane.take(120, ControlConnected()))
        assert beat.striping.striping == PLANNED


class TestMoreQueues:
    @pytest.mark.parametrize("is_heard", [False, True])
    def test_are_asked_for_when_they_are_heard_of(self, plane: Plane, is_heard: bool) -> None:
        told = StripesTold(0, PlanReached(PLAN))
        outputs = plane.hear_b(100, PLANNED) if is_heard else plane.take(100, told)
        assert QueuesAdded(3) in outputs
        assert list(plane.machine.rebalance.queues) == [Q0, Q1]

    def test_are_asked_for_where_the_re_striping_is_over_already(self, plane: Plane) -> None:
        assert QueuesAdded(3) in plane.hear_b(100, Striping(GENERATION, 3))

    def test_learn_what_is_known_and_get_a_place(self, plane: Plane) -> None:
        plane.be_placed()
        plane.take(4_100, StripesTold(0, PlanReached(PLAN)))
        plane.take(4_110, StripesTold(0, ShardLeft(PLAN, 2)))
        outputs = plane.add_q2(4_200)
        learned = StripingLearned(Striping(GENERATION, 2, 3, frozenset({2})))
        assert AskFlow(Q2, learned) in outputs
        assert list(plane.machine.rebalance.queues) == [Q0, Q1, Q2]
        assert plane.flows[Q2].place.is_wanted, "we are alone"
        assert plane.flows[Q0].state is FlowState.ACTIVE, "and nothing else moves"
        plane.own(4_300, Q2)
        assert set(plane.machine.flow_reports()) == {Q0, Q1, Q2}

    def test_have_the_homes_that_the_settings_give_them(self, plane: Plane) -> None:
        plane.take(100, StripesTold(0, PlanReached(PLAN)))
        plane.flows[Q2] = plane.new_flow(Q2)
        plane.take(110, FlowsAdded([plane.flows[Q2]], {Q2: B}))
        assert plane.machine.rebalance.pins == {Q2: B}

    def test_that_became_known_while_others_were_made_are_asked_for_then(self, plane: Plane) -> None:
        plane.take(100, StripesTold(0, PlanReached(PLAN)))
        plane.hear_b(110, Striping(GENERATION + 1, 3, 4))
        assert QueuesAdded(4) in plane.add_q2(120)


class TestFewerQueues:
    @pytest.fixture
    def owner(self, plane: Plane) -> Plane:
        plane.be_placed()
        back = StripePlan(GENERATION, from_count=2, to_count=1, secret="s3cr3t")
        plane.take(4_100, StripesTold(0, PlanReached(back)))
        return plane

    def test_all_are_there_while_it_is_under_way(self, owner: Plane) -> None:
        assert list(owner.machine.rebalance.queues) == [Q0, Q1]
        assert owner.flows[Q1].state is FlowState.ACTIVE

    def test_those_that_are_gone_are_given_back_and_stay_unbound(self, owner: Plane) -> None:
        outputs = owner.take(4_200, StripesTold(0, StripesEnded(GENERATION, 1)))
        assert [each for each in asked(outputs) if not isinstance(each.request, StripingLearned)] == [
            AskFlow(Q1, PlaceChanged(AWAY)),
            AskFlow(Q1, HandBackRequested(QUEUE_GONE)),
        ]
        assert list(owner.machine.rebalance.queues) == [Q0]
        assert set(owner.machine.flow_reports()) == {Q0}, "the group hears no more of it"
        owner.flows[Q1].on_deadline(4_220)
        assert owner.flows[Q1].state is FlowState.UNBINDING
        assert owner.flows[Q0].state is FlowState.ACTIVE

    def test_they_are_given_back_again_where_the_drain_took_too_long(self, owner: Plane) -> None:
        message = Message("lbg/1/t", b"")
        flow = owner.flows[Q1]
        flow.handle(MessageReceived(Delivery(Q1, flow.epoch, DeliveryId(1), message, False, 0)), 4_150)
        owner.take(4_200, StripesTold(0, StripesEnded(GENERATION, 1)))
        assert asked(owner.take(4_210, FlowChanged())) == [], "not while it drains"
        flow.on_deadline(9_200)
        assert AskFlow(Q1, HandBackRequested(QUEUE_GONE)) in owner.take(9_200, FlowChanged())

    def test_one_that_becomes_active_just_then_is_given_back(self, plane: Plane) -> None:
        plane.take(50, StripesTold(0, PlanReached(StripePlan(GENERATION, 2, 1, "s3cr3t"))))
        flow = plane.flows[Q1]
        flow.handle(PlaceChanged(Place(1, gives_way=False)), 60)
        flow.on_deadline(1_000)
        flow.handle(BindSucceeded(flow.epoch), 1_000)
        outputs = plane.machine.take([StripesTold(0, StripesEnded(GENERATION, 1))], 1_100)
        assert AskFlow(Q1, HandBackRequested(QUEUE_GONE)) not in outputs, "a standby is unbound by its place"
        flow.handle(FlowActive(flow.epoch), 1_100)
        flow.handle(PlaceChanged(AWAY), 1_100)
        assert AskFlow(Q1, HandBackRequested(QUEUE_GONE)) in plane.take(1_101, FlowChanged())

    def test_they_come_back_with_a_later_re_striping(self, owner: Plane) -> None:
        owner.take(4_200, StripesTold(0, StripesEnded(GENERATION, 1)))
        again = StripePlan(GENERATION + 1, from_count=1, to_count=2, secret="other")
        outputs = owner.take(4_300, StripesTold(0, PlanReached(again)))
        assert QueuesAdded(2) not in outputs, "their flows are still there"
        assert list(owner.machine.rebalance.queues) == [Q0, Q1]
        owner.take(4_310)
        assert owner.flows[Q1].place.is_wanted


class TestDisagreement:
    def test_members_that_were_started_with_different_queue_counts_refuse_each_other_by_name(
        self, plane: Plane
    ) -> None:
        assert plane.hear_b(100, Striping(0, 3)) == []
        outputs = plane.take(1_000)
        assert SettingsDisagree(B, "group.queue_count", "2", "3") in outputs
        assert plane.hear_b(1_010, Striping(0, 3)) == [], "once"
        assert [one.member for one in plane.machine.membership.view.members] == [A]
        assert plane.book.now == Striping(0, 2)

    @pytest.mark.parametrize(
        "theirs", [Striping(GENERATION, 3), Striping(GENERATION, 2, 3), Striping(GENERATION, 3, 2)]
    )
    def test_who_knows_of_a_re_striping_is_right(self, plane: Plane, theirs: Striping) -> None:
        outputs = plane.hear_b(100, theirs)
        assert not [each for each in outputs if isinstance(each, SettingsDisagree)]
        assert plane.book.now == theirs
        assert [one.member for one in plane.machine.membership.view.members] == [A, B]

    def test_who_knows_better_hears_who_does_not(self, plane: Plane) -> None:
        plane.take(50, StripesTold(0, StripesEnded(GENERATION, 3)))
        outputs = plane.hear_b(100, Striping(0, 2))
        assert not [each for each in outputs if isinstance(each, SettingsDisagree)]
        assert plane.book.now == Striping(GENERATION, 3)
