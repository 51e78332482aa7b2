"""The queues that a rebalance machine places are others after a re-striping."""

from collections.abc import Sequence
from itertools import count

from lbg_runtime.core.flow.events import HandBackRequested, PlaceChanged
from lbg_runtime.core.group.control_messages import (
    Accept,
    FlowReport,
    Life,
    MemberState,
    MoveId,
    Offer,
    ReportedFlow,
    Taken,
)
from lbg_runtime.core.group.membership_events import MoveMessageHeard, OwnFlowsChanged
from lbg_runtime.core.group.rebalance import RebalanceMachine
from lbg_runtime.core.group.rebalance_events import AskFlow, GroupSeen
from lbg_runtime.core.group.rebalance_settings import RebalanceSettings
from lbg_runtime.core.group.view import GroupView, MemberView
from lbg_runtime.core.roles import Place
from lbg_runtime.model.ids import Epoch, MemberId, QueueName
from tests.core.group.spoken import header_of, said

A, B = MemberId("a"), MemberId("b")
Q0, Q1, Q2 = QueueName("q0"), QueueName("q1"), QueueName("q2")
SETTINGS = RebalanceSettings(min_tenure_ms=100, answer_timeout_ms=50)
HOME, STANDBY = Place(0, gives_way=False), Place(1, gives_way=False)


def seen(a: Sequence[QueueName], b: Sequence[QueueName], *, is_stable: bool = True) -> GroupSeen:
    """`a`: what it owns; `b`: what it stands by for."""
    flows = {queue: FlowReport(ReportedFlow.ACTIVE, Epoch(1), 0) for queue in a}
    standby = {queue: FlowReport(ReportedFlow.STANDBY, Epoch(1), 0) for queue in b}
    members = tuple(
        MemberView(name, Life(1, 1), MemberState.ACTIVE, 1, False, reports)
        for name, reports in ((A, flows), (B, standby))
    )
    return GroupSeen(GroupView(members, dict.fromkeys(a, A)), is_stable, False)


def owns(*queues: QueueName) -> OwnFlowsChanged:
    return OwnFlowsChanged({queue: FlowReport(ReportedFlow.ACTIVE, Epoch(1), 0) for queue in queues})


def placed() -> RebalanceMachine:
    """Member a owns q0 and q1, the second of which is pinned to b."""
    numbers = count(1)
    machine = RebalanceMachine(A, [Q0, Q1], {Q0: A, Q1: B}, SETTINGS, lambda: header_of(A, next(numbers)))
    machine.handle(owns(Q0, Q1), 0)
    machine.handle(seen([Q0, Q1], [Q1]), 0)
    return machine


def offer_of(machine: RebalanceMachine) -> Offer:
    [offer] = said(machine.on_deadline(100))
    assert isinstance(offer, Offer)
    return offer


def test_a_queue_that_comes_gets_its_place_with_the_next_look_at_the_group() -> None:
    machine = placed()
    machine.set_queues([Q0, Q1, Q2], {Q0: A, Q1: B, Q2: A})
    assert list(machine.queues) == [Q0, Q1, Q2]
    assert machine.handle(seen([Q0, Q1], [Q1]), 10) == [AskFlow(Q2, PlaceChanged(HOME))]


def test_a_placement_that_there_was_is_made_for_the_new_queues_at_once() -> None:
    """Else offers of them would be judged by a placement that does not know them."""
    machine = placed()
    machine.set_queues([Q0, Q1, Q2], {Q0: A, Q1: B, Q2: B})
    assert machine.placement is not None
    assert {queue: machine.placement.home(queue) for queue in machine.queues} == {Q0: A, Q1: B, Q2: B}
    assert machine.handle(seen([Q0, Q1], [Q1], is_stable=False), 10) == [], "places wait for the group to settle"


def test_before_the_group_was_seen_there_are_only_the_queues() -> None:
    machine = RebalanceMachine(A, [Q0], {}, SETTINGS, lambda: header_of(A))
    machine.set_queues([Q0, Q1], {})
    assert machine.placement is None
    assert list(machine.queues) == [Q0, Q1]


def test_new_pins_count_for_the_queues_that_stay_too() -> None:
    machine = placed()
    machine.set_queues([Q0, Q1], {Q0: B, Q1: A})
    assert machine.pins == {Q0: B, Q1: A}
    placed_anew = [AskFlow(Q0, PlaceChanged(STANDBY)), AskFlow(Q1, PlaceChanged(HOME))]
    assert machine.handle(seen([Q0, Q1], [Q1]), 10) == placed_anew


def test_a_queue_that_stays_keeps_its_tenure_and_its_move() -> None:
    machine = placed()
    machine.set_queues([Q0, Q1, Q2], {Q0: A, Q1: B})
    offer = offer_of(machine)
    machine.set_queues([Q0, Q1], {Q0: A, Q1: B})
    accept = Accept(header_of(B), Q1, offer.move_id)
    assert AskFlow(Q1, HandBackRequested(offer.move_id)) in machine.handle(MoveMessageHeard(accept), 110)


def test_of_a_queue_that_is_gone_nothing_is_offered_or_handed_over() -> None:
    machine = placed()
    offer = offer_of(machine)
    machine.set_queues([Q0], {Q0: A})
    assert machine.deadline_ms is None
    accept = Accept(header_of(B), Q1, offer.move_id)
    assert machine.handle(MoveMessageHeard(accept), 110) == []
    assert machine.on_deadline(100_000) == []
    assert machine.handle(seen([Q0, Q1], [Q1]), 120) == []


def test_what_is_said_of_a_queue_that_is_gone_counts_for_nothing() -> None:
    machine = placed()
    machine.set_queues([Q0], {Q0: A})
    for message in (
        Offer(header_of(B), Q1, Epoch(1), MoveId("b/1"), A),
        Offer(header_of(B), Q1, Epoch(1), MoveId("b/1"), MemberId("c")),
        Taken(header_of(B), Q1, None, Epoch(1)),
    ):
        assert machine.handle(MoveMessageHeard(message), 10) == []
    assert machine.handle(owns(Q0, Q1), 20) == [], "nor what our own flows still do"


def test_a_queue_that_comes_back_begins_anew() -> None:
    machine = placed()
    machine.set_queues([Q0], {Q0: A})
    machine.handle(owns(Q0), 10)
    machine.set_queues([Q0, Q1], {Q0: A, Q1: B})
    [taken] = said(machine.handle(owns(Q0, Q1), 1_000))
    assert isinstance(taken, Taken)
    places = machine.handle(seen([Q0, Q1], [Q1]), 1_000)
    assert places == [AskFlow(Q1, PlaceChanged(STANDBY))], "it was away until then"
    assert machine.deadline_ms == 1_100, "and has its tenure"


def test_an_offer_of_a_queue_that_is_gone_counts_no_more_when_the_queue_comes_back() -> None:
    numbers = count(1)
    pins = {Q0: A, Q1: A}
    machine = RebalanceMachine(A, [Q0, Q1], pins, SETTINGS, lambda: header_of(A, next(numbers)))
    machine.handle(OwnFlowsChanged({Q1: FlowReport(ReportedFlow.STANDBY, Epoch(1), 0)}), 0)
    machine.handle(seen([], []), 0)
    machine.handle(MoveMessageHeard(Offer(header_of(B), Q1, Epoch(1), MoveId("b/1"), A)), 1)
    assert machine.accepted(Q1, 2) is not None
    machine.set_queues([Q0], pins)
    machine.set_queues([Q0, Q1], pins)
    assert machine.accepted(Q1, 2) is None
