"""Each rule of the rebalance machine; whole groups of them are in tests/sim.

More than 400 lines, as all rules are tried on the same few members.
"""

from collections.abc import Mapping
from itertools import count

import pytest

from lbg_runtime.core.flow.commands import Note
from lbg_runtime.core.flow.events import HandBackRequested, PlaceChanged, StepAsideCancelled, StepAsideRequested
from lbg_runtime.core.group.control_messages import (
    Accept,
    FlowReport,
    Life,
    MemberState,
    MoveId,
    Offer,
    Reject,
    ReportedFlow,
    Taken,
)
from lbg_runtime.core.group.membership_events import DrainStarted, MoveMessageHeard, OwnFlowsChanged
from lbg_runtime.core.group.rebalance import LONGEST_WAIT_MS, RebalanceMachine
from lbg_runtime.core.group.rebalance_events import AskFlow, GroupSeen, RebalanceCommand, Say
from lbg_runtime.core.group.rebalance_settings import RebalanceSettings
from lbg_runtime.core.group.view import GroupView, MemberView
from lbg_runtime.core.roles import Place
from lbg_runtime.model.errors import InvariantViolated
from lbg_runtime.model.ids import Epoch, MemberId, QueueName
from tests.core.group.spoken import header_of, said

A, B, C = MemberId("a"), MemberId("b"), MemberId("c")
Q0, Q1 = QueueName("q0"), QueueName("q1")
SETTINGS = RebalanceSettings(min_tenure_ms=100, answer_timeout_ms=50, backoff_min_ms=20, backoff_max_ms=60)
STANDBY, ACTIVE, DRAINING = ReportedFlow.STANDBY, ReportedFlow.ACTIVE, ReportedFlow.DRAINING


def report(state: ReportedFlow, epoch: int = 1) -> FlowReport:
    return FlowReport(state, Epoch(epoch), in_flight=0)


def member(
    name: MemberId,
    flows: Mapping[QueueName, ReportedFlow] | None = None,
    state: MemberState = MemberState.ACTIVE,
    *,
    is_suspect: bool = False,
) -> MemberView:
    reports = {queue: report(flow) for queue, flow in (flows or {}).items()}
    return MemberView(name, Life(1, 1), state, 1, is_suspect, reports)


def seen(*members: MemberView, is_stable: bool = True, is_silent: bool = False) -> GroupSeen:
    owners = {queue: one.member for one in members for queue, flow in one.flows.items() if flow.is_owner}
    return GroupSeen(GroupView(members, owners), is_stable, is_silent)


def machine_of(
    name: MemberId, pins: Mapping[QueueName, MemberId], settings: RebalanceSettings = SETTINGS
) -> RebalanceMachine:
    numbers = count(1)
    return RebalanceMachine(name, [Q0, Q1], pins, settings, lambda: header_of(name, next(numbers)))


def places(commands: list[RebalanceCommand]) -> dict[QueueName, Place]:
    asked = [command for command in commands if isinstance(command, AskFlow)]
    return {each.queue: each.request.place for each in asked if isinstance(each.request, PlaceChanged)}


@pytest.fixture
def owner() -> RebalanceMachine:
    """Member a owns both queues since 0 ms; q1 should be b's, which is bound to it."""
    machine = machine_of(A, {Q0: A, Q1: B})
    machine.handle(OwnFlowsChanged({Q0: report(ACTIVE), Q1: report(ACTIVE, 7)}), 0)
    machine.handle(group_of_two(), 0)
    return machine


def group_of_two(b_on_q1: ReportedFlow = STANDBY) -> GroupSeen:
    return seen(member(A, {Q0: ACTIVE, Q1: ACTIVE}), member(B, {Q1: b_on_q1}))


def offer_of(machine: RebalanceMachine, now_ms: int) -> Offer:
    [offer] = said(machine.on_deadline(now_ms))
    assert isinstance(offer, Offer)
    return offer


class TestPlaces:
    def test_nothing_is_bound_before_the_group_was_seen_long_enough(self) -> None:
        machine = machine_of(A, {})
        assert machine.handle(seen(member(A), is_stable=False), 0) == []
        home = PlaceChanged(Place(0, gives_way=False))
        assert machine.handle(seen(member(A)), 1) == [AskFlow(Q0, home), AskFlow(Q1, home)]

    def test_places_are_told_when_they_change_and_only_then(self) -> None:
        machine = machine_of(A, {Q0: A, Q1: A})
        machine.handle(seen(member(A)), 0)
        assert machine.handle(seen(member(A), member(B)), 1) == []

    def test_members_beyond_the_standbys_stay_away(self) -> None:
        machine = machine_of(A, {Q0: B}, RebalanceSettings(standbys=0))
        assert Q0 not in places(machine.handle(seen(member(A), member(B)), 0))

    def test_all_stand_by_where_the_group_wants_it(self) -> None:
        machine = machine_of(A, {Q0: B}, RebalanceSettings(standbys=None))
        commands = machine.handle(seen(*(member(MemberId(name)) for name in "abcdefg")), 0)
        assert places(commands)[Q0].is_wanted

    def test_a_member_that_leaves_changes_places_at_once(self) -> None:
        machine = machine_of(A, {})
        leaves = seen(member(A), member(B, state=MemberState.DRAINING), is_stable=False)
        assert places(machine.handle(leaves, 0)) == dict.fromkeys((Q0, Q1), Place(0, gives_way=False))

    def test_in_silence_everybody_stands_by_everywhere_and_gives_way(self) -> None:
        machine = machine_of(A, {Q0: A})
        assert places(machine.handle(seen(member(A), is_silent=True), 0)) == {
            Q0: Place(0, gives_way=False),
            Q1: Place(1, gives_way=True),
        }


class TestGiving:
    def test_a_queue_is_offered_to_its_home_when_its_tenure_is_over(self, owner: RebalanceMachine) -> None:
        assert owner.deadline_ms == 100
        assert owner.on_deadline(99) == []
        offer = offer_of(owner, 100)
        assert (offer.queue, offer.epoch, offer.to) == (Q1, Epoch(7), B)

    @pytest.mark.parametrize("flow", [ACTIVE, DRAINING])
    def test_nothing_is_offered_to_who_is_not_a_standby(self, owner: RebalanceMachine, flow: ReportedFlow) -> None:
        owner.handle(group_of_two(flow), 1)
        assert owner.deadline_ms is None
        assert owner.on_deadline(100) == []

    def test_while_the_home_is_not_bound_no_other_standby_is_offered_its_queue(self) -> None:
        machine = machine_of(A, {Q0: B, Q1: B})
        both = {Q0: ACTIVE, Q1: ACTIVE}
        machine.handle(OwnFlowsChanged({queue: report(ACTIVE) for queue in both}), 0)
        machine.handle(seen(member(A, both), member(B), member(C, {Q0: STANDBY, Q1: STANDBY})), 0)
        assert machine.placement is not None
        assert (B, C, A) in machine.placement.ranks.values(), "or this shows nothing"
        assert machine.deadline_ms is None
        assert machine.on_deadline(100) == []

    def test_nothing_is_offered_to_a_suspect(self, owner: RebalanceMachine) -> None:
        owner.handle(seen(member(A, {Q1: ACTIVE}), member(B, {Q1: STANDBY}, is_suspect=True)), 1)
        assert owner.on_deadline(100) == []

    def test_an_accepted_offer_is_handed_back_once(self, owner: RebalanceMachine) -> None:
        offer = offer_of(owner, 100)
        accept = MoveMessageHeard(Accept(header_of(B), Q1, offer.move_id))
        assert owner.handle(accept, 101) == [
            Note("hand_back_started", {"queue": Q1, "move_id": offer.move_id, "to": B}),
            AskFlow(Q1, HandBackRequested(offer.move_id)),
        ]
        assert owner.handle(accept, 102) == []

    def test_an_answer_to_another_offer_counts_for_nothing(self, owner: RebalanceMachine) -> None:
        offer_of(owner, 100)
        assert owner.handle(MoveMessageHeard(Accept(header_of(B), Q1, MoveId("other"))), 101) == []
        assert owner.handle(MoveMessageHeard(Reject(header_of(B), Q1, MoveId("other"), "no")), 101) == []
        assert owner.handle(MoveMessageHeard(Accept(header_of(B), Q0, MoveId("other"))), 101) == []

    def test_a_move_that_came_to_nothing_is_tried_again_ever_later(self, owner: RebalanceMachine) -> None:
        offer_of(owner, 100)
        assert owner.deadline_ms == 150
        [note] = owner.on_deadline(150)
        assert isinstance(note, Note)
        assert note.facts["reason"] == "no answer"
        assert owner.deadline_ms == 170
        offer = offer_of(owner, 170)
        owner.handle(MoveMessageHeard(Reject(header_of(B), Q1, offer.move_id, "not at home on it")), 171)
        assert owner.deadline_ms == 171 + 40
        offer_of(owner, 211)
        owner.on_deadline(261)
        assert owner.deadline_ms == 261 + 60

    def test_a_drain_that_was_given_up_ends_the_move(self, owner: RebalanceMachine) -> None:
        offer = offer_of(owner, 100)
        owner.handle(MoveMessageHeard(Accept(header_of(B), Q1, offer.move_id)), 101)
        assert owner.handle(OwnFlowsChanged({Q0: report(ACTIVE), Q1: report(ACTIVE, 7)}), 102) == []
        owner.handle(OwnFlowsChanged({Q0: report(ACTIVE), Q1: report(DRAINING, 7)}), 103)
        [note] = owner.handle(OwnFlowsChanged({Q0: report(ACTIVE), Q1: report(ACTIVE, 7)}), 104)
        assert isinstance(note, Note)
        assert note.facts["reason"] == "the drain took too long"
        # A queue that stood still for a whole drain is left alone for as long, and ever longer.
        assert owner.deadline_ms == 104 + SETTINGS.step_aside_ms

    def test_however_many_drains_took_too_long_the_queue_is_offered_again_within_the_longest_wait(
        self, owner: RebalanceMachine
    ) -> None:
        now_ms, waits = 100, []
        for _ in range(8):
            offer = offer_of(owner, now_ms)
            owner.handle(MoveMessageHeard(Accept(header_of(B), Q1, offer.move_id)), now_ms)
            for state in (DRAINING, ACTIVE):
                owner.handle(OwnFlowsChanged({Q0: report(ACTIVE), Q1: report(state, 7)}), now_ms)
            assert owner.deadline_ms is not None
            waits.append(owner.deadline_ms - now_ms)
            now_ms = owner.deadline_ms
        assert waits[:2] == [SETTINGS.step_aside_ms, 2 * SETTINGS.step_aside_ms]
        assert waits[-2:] == [LONGEST_WAIT_MS, LONGEST_WAIT_MS]

    def test_the_first_drain_that_took_too_long_does_not_wait_longer_for_offers_without_an_answer_before_it(
        self, owner: RebalanceMachine
    ) -> None:
        now_ms = 100
        for _ in range(6):
            offer_of(owner, now_ms)
            owner.on_deadline(now_ms + SETTINGS.answer_timeout_ms)
            assert owner.deadline_ms is not None
            now_ms = owner.deadline_ms
        offer = offer_of(owner, now_ms)
        owner.handle(MoveMessageHeard(Accept(header_of(B), Q1, offer.move_id)), now_ms)
        for state in (DRAINING, ACTIVE):
            owner.handle(OwnFlowsChanged({Q0: report(ACTIVE), Q1: report(state, 7)}), now_ms)
        assert owner.deadline_ms == now_ms + SETTINGS.step_aside_ms

    def test_what_failed_before_a_queue_was_lost_does_not_delay_its_offers_when_it_has_come_back(
        self, owner: RebalanceMachine
    ) -> None:
        for at_ms in (100, 170, 260):
            offer_of(owner, at_ms)
            owner.on_deadline(at_ms + SETTINGS.answer_timeout_ms)
        owner.handle(OwnFlowsChanged({Q0: report(ACTIVE)}), 311)
        owner.handle(OwnFlowsChanged({Q0: report(ACTIVE), Q1: report(ACTIVE, 8)}), 312)
        offer_of(owner, 412)
        owner.on_deadline(412 + SETTINGS.answer_timeout_ms)
        assert owner.deadline_ms == 412 + SETTINGS.answer_timeout_ms + SETTINGS.backoff_min_ms

    def test_a_hand_back_that_never_begins_ends_too(self, owner: RebalanceMachine) -> None:
        offer = offer_of(owner, 100)
        owner.handle(MoveMessageHeard(Accept(header_of(B), Q1, offer.move_id)), 101)
        assert owner.deadline_ms == 101 + SETTINGS.step_aside_ms
        [note] = owner.on_deadline(101 + SETTINGS.step_aside_ms)
        assert isinstance(note, Note)

    def test_a_released_queue_is_no_business_of_ours(self, owner: RebalanceMachine) -> None:
        offer = offer_of(owner, 100)
        owner.handle(MoveMessageHeard(Accept(header_of(B), Q1, offer.move_id)), 101)
        assert owner.handle(OwnFlowsChanged({Q0: report(ACTIVE)}), 102) == []
        assert owner.deadline_ms is None

    def test_a_queue_that_was_lost_and_came_back_unseen_has_a_tenure_of_its_own(self, owner: RebalanceMachine) -> None:
        # Flows are looked at from time to time, so no word of the loss may have come between.
        offer = offer_of(owner, 100)
        (taken,) = said(owner.handle(OwnFlowsChanged({Q0: report(ACTIVE), Q1: report(ACTIVE, 8)}), 110))
        assert isinstance(taken, Taken)
        assert (taken.queue, taken.epoch) == (Q1, Epoch(8))
        assert owner.handle(MoveMessageHeard(Accept(header_of(B), Q1, offer.move_id)), 111) == []
        assert owner.deadline_ms == 210
        assert offer_of(owner, 210).epoch == Epoch(8)

    def test_only_so_many_queues_are_handed_over_at_a_time(self) -> None:
        machine = machine_of(A, {Q0: B, Q1: B}, RebalanceSettings(min_tenure_ms=0, max_moves=1))
        both = {Q0: ACTIVE, Q1: ACTIVE}
        machine.handle(OwnFlowsChanged({queue: report(ACTIVE) for queue in both}), 0)
        commands = machine.handle(seen(member(A, both), member(B, {Q0: STANDBY, Q1: STANDBY})), 0)
        assert [offer.queue for offer in said(commands) if isinstance(offer, Offer)] == [Q0]
        commands = machine.handle(OwnFlowsChanged({Q1: report(ACTIVE)}), 1)
        assert [offer.queue for offer in said(commands) if isinstance(offer, Offer)] == [Q1]


class TestLeaving:
    def leaver(self, *others: MemberView) -> RebalanceMachine:
        machine = machine_of(A, {})
        machine.handle(OwnFlowsChanged({Q0: report(ACTIVE)}), 1_000)
        machine.handle(DrainStarted(), 1_001)
        machine.handle(seen(member(A, {Q0: ACTIVE}, MemberState.DRAINING), *others, is_stable=False), 1_001)
        return machine

    def test_a_home_that_is_bound_is_offered_the_queue_before_its_tenure_is_over(self) -> None:
        machine = machine_of(A, {})
        machine.handle(OwnFlowsChanged({Q0: report(ACTIVE)}), 0)
        machine.handle(DrainStarted(), 1)
        leaving = member(A, {Q0: ACTIVE}, MemberState.DRAINING)
        commands = machine.handle(seen(leaving, member(B, {Q0: STANDBY}), is_stable=False), 1)
        [offer] = said(commands)
        assert isinstance(offer, Offer)
        assert offer.to == B

    def test_the_home_is_waited_for_a_little_and_then_any_standby_will_do(self) -> None:
        machine = self.leaver(member(B), member(C))
        assert machine.placement is not None
        home, other = machine.placement.ranks[Q0]
        bound = member(other, {Q0: STANDBY})
        leaving = member(A, {Q0: ACTIVE}, MemberState.DRAINING)
        assert machine.handle(seen(leaving, *sorted([bound, member(home)], key=lambda m: m.member)), 1_002) == []
        patience_ms = SETTINGS.answer_timeout_ms
        assert machine.on_deadline(1_000 + patience_ms) == []
        [offer] = said(machine.on_deadline(1_001 + patience_ms))
        assert isinstance(offer, Offer)
        assert offer.to == other

    def test_a_second_request_changes_nothing(self) -> None:
        machine = self.leaver(member(B))
        deadline_ms = machine.deadline_ms
        assert machine.handle(DrainStarted(), 1_020) == []
        assert machine.deadline_ms == deadline_ms


class TestTaking:
    def taker(
        self, own: ReportedFlow | None = STANDBY, pins: Mapping[QueueName, MemberId] | None = None
    ) -> RebalanceMachine:
        machine = machine_of(B, {Q0: A, Q1: B} if pins is None else pins)
        flows = {} if own is None else {Q1: own}
        machine.handle(OwnFlowsChanged({queue: report(flow) for queue, flow in flows.items()}), 0)
        machine.handle(seen(member(A, {Q0: ACTIVE, Q1: ACTIVE}), member(B, flows)), 0)
        return machine

    def offer(self, to: MemberId = B, giver: MemberId = A, queue: QueueName = Q1) -> MoveMessageHeard:
        return MoveMessageHeard(Offer(header_of(giver), queue, Epoch(7), MoveId("move"), to))

    def test_the_home_accepts_and_says_when_it_has_taken_the_queue(self) -> None:
        machine = self.taker()
        cancel, say = machine.handle(self.offer(), 1)
        assert cancel == AskFlow(Q1, StepAsideCancelled())
        assert isinstance(say, Say)
        assert isinstance(say.message, Accept)
        assert say.message.move_id == "move"
        [taken] = said(machine.handle(OwnFlowsChanged({Q1: report(ACTIVE, 3)}), 2))
        assert isinstance(taken, Taken)
        assert (taken.queue, taken.move_id, taken.epoch) == (Q1, "move", Epoch(3))

    def test_a_queue_that_comes_when_the_drain_of_its_offer_is_over_for_sure_comes_by_itself(self) -> None:
        for after_ms, name in ((SETTINGS.step_aside_ms - 1, "move"), (SETTINGS.step_aside_ms, None)):
            machine = self.taker()
            machine.handle(self.offer(), 1)
            offer = machine.accepted(Q1, 1 + after_ms)
            assert (offer.move_id if offer else None) == name
            [taken] = said(machine.handle(OwnFlowsChanged({Q1: report(ACTIVE, 3)}), 1 + after_ms))
            assert isinstance(taken, Taken)
            assert taken.move_id == name
            assert machine.accepted(Q1, 1 + after_ms) is None, "it has come"

    def test_a_repeated_offer_has_the_same_answer(self) -> None:
        machine = self.taker()
        assert [type(message) for _ in range(2) for message in said(machine.handle(self.offer(), 1))] == [Accept] * 2

    @pytest.mark.parametrize(
        ("own", "pins", "giver", "reason"),
        [
            (None, None, A, "not a standby of it"),
            (ACTIVE, None, A, "not a standby of it"),
            (STANDBY, {Q0: A, Q1: A}, A, "not at home on it"),
            # There is room for it, as q0 is not here yet; but it would not stay.
            (STANDBY, {Q1: A}, A, "not at home on it"),
            (STANDBY, None, C, "giver unknown"),
        ],
    )
    def test_an_offer_is_rejected_with_its_reason(
        self, own: ReportedFlow | None, pins: Mapping[QueueName, MemberId] | None, giver: MemberId, reason: str
    ) -> None:
        [reject] = said(self.taker(own, pins).handle(self.offer(giver=giver), 1))
        assert isinstance(reject, Reject)
        assert reject.reason == reason

    def test_a_member_with_room_takes_the_queue_that_its_giver_chooses_and_no_more_than_its_number(self) -> None:
        """A giver of another version may choose by other rules: a newcomer got half of its share, or nothing."""
        machine = machine_of(B, {})
        flows = {Q0: STANDBY, Q1: STANDBY}
        machine.handle(OwnFlowsChanged({queue: report(flow) for queue, flow in flows.items()}), 0)
        machine.handle(seen(member(A, {Q0: ACTIVE, Q1: ACTIVE}), member(B, flows)), 0)
        assert machine.placement is not None
        [home] = [queue for queue in (Q0, Q1) if machine.placement.home(queue) == B]
        [other] = {Q0, Q1} - {home}
        [answer] = said(machine.handle(self.offer(queue=other), 1))
        assert isinstance(answer, Accept)
        flows = {home: STANDBY, other: ACTIVE}
        machine.handle(OwnFlowsChanged({queue: report(flow) for queue, flow in flows.items()}), 2)
        machine.handle(seen(member(A, {home: ACTIVE}), member(B, flows)), 2)
        assert machine.placement.home(other) == B, "it does not go on from here"
        [answer] = said(machine.handle(self.offer(queue=home), 3))
        assert isinstance(answer, Reject)

    def test_who_leaves_takes_nothing(self) -> None:
        machine = self.taker()
        machine.handle(DrainStarted(), 1)
        [reject] = said(machine.handle(self.offer(), 2))
        assert isinstance(reject, Reject)
        assert reject.reason == "leaving"

    def test_a_standby_takes_from_who_leaves_wherever_it_is_at_home(self) -> None:
        machine = self.taker(pins={Q0: A, Q1: C})
        machine.handle(seen(member(A, {Q1: ACTIVE}, MemberState.DRAINING), member(B, {Q1: STANDBY}), member(C)), 1)
        assert machine.placement is not None
        assert machine.placement.home(Q1) == C
        [accept] = said(machine.handle(self.offer(), 2))
        assert isinstance(accept, Accept)

    def test_an_offer_to_somebody_else_makes_us_step_aside_until_it_is_taken(self) -> None:
        machine = self.taker()
        asked = StepAsideRequested(5 + SETTINGS.step_aside_ms)
        assert machine.handle(self.offer(to=C), 5) == [AskFlow(Q1, asked)]
        taken = MoveMessageHeard(Taken(header_of(C), Q1, MoveId("move"), Epoch(1)))
        assert machine.handle(taken, 6) == [AskFlow(Q1, StepAsideCancelled())]

    @pytest.mark.parametrize("to_other", ["offered", "taken"])
    def test_an_offer_counts_no_more_when_somebody_else_is_offered_the_queue_or_has_it(self, to_other: str) -> None:
        machine = self.taker()
        machine.handle(self.offer(), 1)
        assert machine.accepted(Q1, 2) is not None
        taken = MoveMessageHeard(Taken(header_of(C), Q1, None, Epoch(1)))
        machine.handle(self.offer(to=C) if to_other == "offered" else taken, 2)
        assert machine.accepted(Q1, 3) is None

    def test_a_queue_that_the_broker_gave_us_is_taken_without_a_move(self) -> None:
        [taken] = said(self.taker().handle(OwnFlowsChanged({Q1: report(ACTIVE)}), 1))
        assert isinstance(taken, Taken)
        assert taken.move_id is None

    def test_queues_of_another_shape_and_our_own_words_count_for_nothing(self) -> None:
        machine = self.taker()
        assert machine.handle(self.offer(queue=QueueName("other")), 1) == []
        assert machine.handle(self.offer(giver=B), 1) == []
        taken = Taken(header_of(C), QueueName("other"), None, Epoch(1))
        assert machine.handle(MoveMessageHeard(taken), 1) == []


@pytest.mark.parametrize("numbers", [{"standbys": -1}, {"max_moves": 0}])
def test_numbers_that_make_no_sense_are_refused(numbers: dict[str, int]) -> None:
    with pytest.raises(InvariantViolated, match="RebalanceSettings"):
        RebalanceSettings(**numbers)
