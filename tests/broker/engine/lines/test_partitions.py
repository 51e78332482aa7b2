"""Which flow has which partition, on its own."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lbg_runtime.broker.engine.effects import FlowId
from lbg_runtime.broker.engine.lines.partitions import Partitions, PartitionState
from lbg_runtime.broker.engine.lines.parts import PartLost
from lbg_runtime.model.errors import InvariantViolated

A, B, C, D = map(FlowId, range(1, 5))
READY, PAUSED = PartitionState.READY, PartitionState.PAUSED


class Table:
    """Partitions whose messages in flight are whatever a test says."""

    def __init__(self, count: int = 4, delay_ms: int = 100, handoff_ms: int = 50) -> None:
        self.in_flight: dict[int, int] = {}
        self.partitions = Partitions(count, delay_ms, handoff_ms, lambda number: self.in_flight.get(number, 0))

    def join(self, *flows: FlowId, now_ms: int = 0) -> None:
        for flow in flows:
            self.partitions.join(flow, now_ms)

    def settle_down(self, now_ms: int) -> list[PartLost]:
        return self.partitions.on_deadline(now_ms)

    @property
    def owners(self) -> list[FlowId | None]:
        return [partition.flow for partition in self.partitions.all]

    @property
    def states(self) -> list[PartitionState]:
        return [partition.state for partition in self.partitions.all]


@pytest.fixture
def table() -> Table:
    return Table()


@pytest.fixture
def pair() -> Table:
    """Two flows with two partitions each."""
    table = Table()
    table.join(A, B)
    table.settle_down(100)
    return table


def test_a_queue_has_at_least_one_partition():
    with pytest.raises(InvariantViolated):
        Table(count=0)
    assert Table(count=1).owners == [None]


def test_nothing_is_assigned_before_the_rebalance_delay_is_over(table):
    table.join(A)
    assert table.partitions.deadline_ms == 100
    assert table.settle_down(99) == []
    assert table.owners == [None] * 4


def test_partitions_are_spread_evenly_over_the_flows(table):
    table.join(A, B, C)
    assert table.settle_down(100) == []
    assert sorted(map(table.owners.count, (A, B, C))) == [1, 1, 2]
    assert table.states == [READY] * 4
    assert table.partitions.deadline_ms is None


def test_a_later_change_does_not_put_the_rebalance_off(table):
    table.join(A)
    table.join(B, now_ms=90)
    assert table.partitions.deadline_ms == 100


def test_a_joining_flow_takes_no_more_than_its_share(pair):
    before = pair.owners
    pair.join(C, now_ms=200)
    moved = pair.settle_down(300)
    assert [loss.flow for loss in moved] == [B]
    assert sum(was != is_ for was, is_ in zip(before, pair.owners, strict=True)) == 1


def test_a_partition_with_messages_in_flight_is_paused_until_they_are_settled(pair):
    pair.in_flight = dict.fromkeys(range(4), 1)
    pair.join(C, now_ms=200)
    assert pair.settle_down(300) == []
    (moving,) = [p for p in pair.partitions.all if p.state is PAUSED]
    assert (moving.flow, moving.heir) == (B, C)
    pair.in_flight[moving.number] = 0
    assert pair.partitions.hand_over_settled() == [PartLost(moving.number, B)]
    assert (moving.flow, moving.state) == (C, READY)


def test_a_hand_off_waits_no_longer_than_its_longest_time(pair):
    pair.in_flight = dict.fromkeys(range(4), 1)
    pair.join(C, now_ms=200)
    pair.settle_down(300)
    pair.join(D, now_ms=310)
    assert pair.partitions.deadline_ms == 350, "before the next rebalance"
    assert pair.partitions.hand_over_settled() == []
    (loss,) = pair.settle_down(350)
    assert loss.flow == B
    assert pair.owners[loss.part] == C


def test_a_hand_off_under_way_is_not_put_off_when_another_flow_is_to_have_the_partition():
    table = Table(handoff_ms=500)
    table.in_flight = dict.fromkeys(range(4), 1)
    table.join(A)
    table.settle_down(100)
    table.join(B, now_ms=100)
    table.settle_down(200)
    table.join(C, D, now_ms=300)
    table.settle_down(400)
    assert [p.heir for p in table.partitions.all].count(B) == 1, "one of the two is for another flow now"

    assert len(table.settle_down(700)) == 2
    assert len(table.settle_down(900)) == 1


def test_without_a_hand_off_time_a_partition_moves_at_once():
    table = Table(handoff_ms=0)
    table.in_flight = dict.fromkeys(range(4), 1)
    table.join(A)
    table.settle_down(100)
    table.join(B, now_ms=100)
    assert len(table.settle_down(200)) == 2


def test_partitions_of_a_flow_that_left_wait_for_it_until_the_delay_is_over(pair):
    assert pair.partitions.leave(A, 200) == []
    assert pair.states.count(PartitionState.UNBOUND) == 2
    lost = pair.settle_down(300)
    assert {loss.flow for loss in lost} == {A}
    assert pair.owners == [B] * 4


def test_a_flow_that_is_bound_again_in_time_has_its_partitions_at_once(pair):
    before = [number for number, owner in enumerate(pair.owners) if owner == A]
    pair.partitions.leave(A, 200)
    pair.partitions.rejoin(C, A, 299)
    assert [number for number, owner in enumerate(pair.owners) if owner == C] == before
    assert pair.states == [READY] * 4
    assert pair.settle_down(300) == []


def test_a_flow_that_is_bound_again_too_late_is_a_new_one(pair):
    pair.partitions.leave(A, 200)
    pair.settle_down(300)
    pair.partitions.rejoin(C, A, 301)
    assert C not in pair.owners
    assert pair.partitions.deadline_ms == 401
    pair.settle_down(401)
    assert pair.owners.count(C) == 2


def test_a_flow_beyond_the_partitions_stands_by_and_takes_over_at_once():
    table = Table(count=2)
    table.join(A, B)
    table.settle_down(100)
    table.join(C, D, now_ms=100)
    assert table.partitions.deadline_ms is None, "there is nothing to rebalance"
    (loss,) = table.partitions.leave(A, 150)
    assert table.owners[loss.part] == C
    assert table.partitions.deadline_ms is None


def test_a_flow_that_comes_later_gets_the_last_partition_there_is_for_it():
    table = Table(count=2)
    table.join(A)
    table.settle_down(100)
    table.join(B, now_ms=100)
    assert table.partitions.deadline_ms == 200
    table.settle_down(200)
    assert sorted(table.owners) == [A, B]


def test_a_flow_that_leaves_while_no_other_stands_by_leaves_its_partitions_to_the_rebalance():
    table = Table(count=2)
    table.join(A, B)
    table.settle_down(100)
    assert table.partitions.leave(A, 150) == []
    table.join(C, now_ms=160)
    assert B in table.owners
    assert C not in table.owners
    assert table.partitions.deadline_ms == 250


def test_a_change_that_is_undone_in_time_moves_nothing(pair):
    before = pair.owners
    pair.join(C, now_ms=200)
    pair.partitions.leave(C, 250)
    assert pair.settle_down(300) == []
    assert pair.owners == before


def test_partitions_are_nobodys_when_nobody_came_in_time(pair):
    pair.partitions.leave(A, 200)
    pair.partitions.leave(B, 210)
    assert len(pair.settle_down(300)) == 4
    assert pair.states == [PartitionState.UNASSIGNED] * 4


def test_a_paused_partition_stays_where_it_is_when_its_heir_leaves(pair):
    pair.in_flight = dict.fromkeys(range(4), 1)
    pair.join(C, now_ms=200)
    pair.settle_down(300)
    assert pair.partitions.leave(C, 310) == []
    assert pair.states == [READY] * 4
    assert not pair.partitions.is_moving


def test_the_heir_has_a_paused_partition_when_its_flow_leaves(pair):
    pair.in_flight = dict.fromkeys(range(4), 1)
    pair.join(C, now_ms=200)
    pair.settle_down(300)
    pair.in_flight.clear()
    (loss,) = pair.partitions.leave(B, 310)
    assert pair.owners[loss.part] == C


DELAY_MS, HANDOFF_MS = 100, 40


class PartitionsMachine(RuleBasedStateMachine):
    """Flows come, go and come back, messages are sent and settled, time passes."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.held: dict[int, tuple[FlowId, int]] = {}
        """Of each partition, who holds how many messages of it."""
        self.partitions = Partitions(5, DELAY_MS, HANDOFF_MS, lambda number: self.held.get(number, (0, 0))[1])
        self.lost: list[FlowId] = []
        self.last_flow = 0

    def new_flow(self) -> FlowId:
        self.last_flow += 1
        return FlowId(self.last_flow)

    def take_back(self, losses: list[PartLost]) -> None:
        """What the queue does; nothing may be out with anybody but who is told."""
        for loss in losses:
            holder = self.held.pop(loss.part, None)
            assert holder is None or holder[0] == loss.flow

    @rule()
    def join(self) -> None:
        if len(self.partitions.flows) < 8:
            self.partitions.join(self.new_flow(), self.now_ms)

    @precondition(lambda self: self.lost)
    @rule(data=st.data())
    def rejoin(self, data: st.DataObject) -> None:
        lost = data.draw(st.sampled_from(self.lost))
        self.lost.remove(lost)
        kept = [p for p in self.partitions.all if p.flow == lost and p.state is PartitionState.UNBOUND]
        flow = self.new_flow()
        self.partitions.rejoin(flow, lost, self.now_ms)
        assert all(p.flow == flow and p.state is READY for p in kept)
        assert sum(p.flow == flow for p in self.partitions.all) == len(kept)

    @precondition(lambda self: self.partitions.flows)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        flow = data.draw(st.sampled_from(list(self.partitions.flows)))
        for number in [n for n, (holder, _) in self.held.items() if holder == flow]:
            del self.held[number]
        self.take_back(self.partitions.leave(flow, self.now_ms))
        self.lost.append(flow)

    @rule(number=st.integers(0, 4))
    def send(self, number: int) -> None:
        partition = self.partitions.all[number]
        if partition.state is READY and partition.flow is not None:
            holder, count = self.held.get(number, (partition.flow, 0))
            assert holder == partition.flow, "two flows would have messages of one partition"
            self.held[number] = (holder, count + 1)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.held)))
        holder, count = self.held.pop(number)
        if count > 1:
            self.held[number] = (holder, count - 1)
        self.take_back(self.partitions.hand_over_settled())

    @rule(passed_ms=st.integers(1, 60))
    def wait(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        self.take_back(self.partitions.on_deadline(self.now_ms))

    @rule()
    def settle_down(self) -> None:
        """Nobody comes or goes for long enough: then all is spread evenly."""
        for _ in range(2):
            self.now_ms += max(DELAY_MS, HANDOFF_MS)
            self.take_back(self.partitions.on_deadline(self.now_ms))
        owners = [partition.flow for partition in self.partitions.all]
        loads = sorted(map(owners.count, self.partitions.flows), reverse=True)
        if not loads:
            assert all(p.state is PartitionState.UNASSIGNED for p in self.partitions.all)
            return
        assert all(p.state is READY for p in self.partitions.all)
        assert loads[0] - loads[:5][-1] <= 1
        assert sum(loads) == 5
        assert self.partitions.deadline_ms is None

    @invariant()
    def everybody_is_where_the_state_says(self) -> None:
        for partition in self.partitions.all:
            match partition.state:
                case PartitionState.UNASSIGNED:
                    assert partition.flow is None
                case PartitionState.UNBOUND:
                    assert partition.flow is not None
                    assert partition.flow not in self.partitions.flows
                case PartitionState.PAUSED:
                    assert partition.flow in self.partitions.flows
                    assert partition.heir in self.partitions.flows
                    assert partition.heir != partition.flow
                    assert partition.handoff_by_ms is not None
                case PartitionState.READY:
                    assert partition.flow in self.partitions.flows
            assert (partition.heir is not None) == (partition.state is PAUSED)
            if partition.number in self.held:
                assert self.held[partition.number][0] == partition.flow

    @invariant()
    def something_will_be_done_about_what_waits(self) -> None:
        if any(p.state in (PartitionState.PAUSED, PartitionState.UNBOUND) for p in self.partitions.all):
            assert self.partitions.deadline_ms is not None
        if self.partitions.flows and any(p.state is PartitionState.UNASSIGNED for p in self.partitions.all):
            assert self.partitions.is_waiting


TestPartitionsMachine = PartitionsMachine.TestCase
TestPartitionsMachine.settings = settings(max_examples=30, stateful_step_count=60, deadline=None)
