"""What a flow machine does for its gate: nothing is handled, settled or told that the handle's state forbids."""

import random

import pytest

from lbg_runtime.core.flow.commands import (
    Bind,
    Command,
    Dispatch,
    Note,
    ProbeSettlements,
    ReturnUnstarted,
    Settle,
    StartIntake,
    StopIntake,
    TellStripes,
    Unbind,
)
from lbg_runtime.core.flow.events import (
    BindSucceeded,
    FlowActive,
    FlowDown,
    FlowInactive,
    HandBackRequested,
    HandlingFinished,
    MachineEvent,
    MessageReceived,
    ReleaseCause,
    SettlementsReached,
    StopRequested,
    StripingLearned,
    UnbindFinished,
)
from lbg_runtime.core.flow.machine import FlowMachine
from lbg_runtime.core.flow.table import FlowState
from lbg_runtime.core.restripe.gate import StripeGate
from lbg_runtime.core.restripe.news import PlanReached, ShardLeft, StripesEnded, StripesFinished
from lbg_runtime.core.restripe.records import StripeEnd, StripeRecord
from lbg_runtime.core.restripe.striping import Striping
from lbg_runtime.core.roles import Place
from lbg_runtime.model.ids import DeliveryId, Epoch, QueueName
from lbg_runtime.model.outcome import Outcome
from tests.core.rebind import REBIND
from tests.core.restripe.gate_shell import (
    COMING,
    FINISH,
    GENERATION,
    LEAVING,
    PLAN,
    PREFIX,
    QUEUE_INDEX,
    SHAPE,
    STAYING,
    delivery,
    marker,
)

QUEUE = QueueName("orders/0")
LEFT = TellStripes(ShardLeft(PLAN, LEAVING))


class Flow:
    """An active flow of queue 0 that has read the plan, delivery 1."""

    def __init__(
        self,
        max_in_flight: int = 4,
        place: Place = Place(0, gives_way=False),  # noqa: B008 - frozen
        max_held: int | None = None,
    ) -> None:
        self.gate = StripeGate(QUEUE_INDEX, SHAPE, PREFIX)
        self.machine = FlowMachine(QUEUE, place, REBIND, max_in_flight, random.Random(1), 0, self.gate, max_held)
        self.activate(0)
        assert self.get(1, PLAN) == [TellStripes(PlanReached(PLAN))]

    def activate(self, now_ms: int) -> None:
        [bind] = self.machine.on_deadline(now_ms)
        assert isinstance(bind, Bind)
        self.machine.handle(BindSucceeded(bind.epoch), now_ms)
        assert self.machine.handle(FlowActive(bind.epoch), now_ms) == [StartIntake(bind.epoch)]

    def get(self, number: int, content: StripeRecord | int | str | bytes, now_ms: int = 1) -> list[Command]:
        return self.tell(MessageReceived(delivery(number, content, self.machine.epoch)), now_ms)

    def done(self, number: int, outcome: Outcome | None = Outcome.ACCEPTED, now_ms: int = 2) -> list[Command]:
        return self.tell(HandlingFinished(self.machine.epoch, DeliveryId(number), outcome), now_ms)

    def learn(self, *left: int, now_ms: int = 2) -> list[Command]:
        return self.tell(StripingLearned(Striping(GENERATION, 2, 3, frozenset(left))), now_ms)

    def echo(self, number: int, epoch: int = 1, now_ms: int = 3) -> list[Command]:
        return self.tell(SettlementsReached(Epoch(epoch), number), now_ms)

    def tell(self, event: MachineEvent, now_ms: int) -> list[Command]:
        return self.machine.handle(event, now_ms)


def dispatch(number: int, shard: int, epoch: int = 1) -> Dispatch:
    return Dispatch(delivery(number, shard, epoch))


def settle(number: int, outcome: Outcome = Outcome.ACCEPTED, epoch: int = 1) -> Settle:
    return Settle(Epoch(epoch), DeliveryId(number), outcome)


def probe(number: int, epoch: int = 1) -> ProbeSettlements:
    return ProbeSettlements(Epoch(epoch), number)


class TestAnActiveFlow:
    def test_handles_what_its_gate_passes_and_settles_what_it_drops(self) -> None:
        flow = Flow()
        assert flow.get(2, STAYING) == [dispatch(2, STAYING)]
        assert flow.get(3, COMING) == [settle(3)]
        assert flow.get(4, StripeEnd(GENERATION, 3)) == [TellStripes(StripesEnded(GENERATION, 3)), settle(4)]

    @pytest.mark.parametrize("outcome", [Outcome.ACCEPTED, Outcome.REJECTED])
    def test_asks_whether_the_settlements_have_arrived_behind_the_last_of_them(self, outcome: Outcome) -> None:
        flow = Flow()
        flow.get(2, LEAVING)
        assert flow.get(3, marker(LEAVING)) == []
        assert flow.get(4, LEAVING) == []
        assert flow.done(2, outcome) == [settle(2, outcome), settle(4), probe(1)]
        assert flow.echo(1) == [LEFT]
        assert flow.echo(1) == [], "told once"

    def test_settles_the_records_behind_the_finish(self) -> None:
        flow = Flow()
        flow.get(2, marker(COMING))
        flow.get(3, STAYING)
        assert flow.get(4, FINISH) == []
        assert flow.done(3) == [settle(3), settle(2), settle(1), settle(4), probe(1)]
        assert flow.echo(1) == [TellStripes(StripesFinished(GENERATION, 2, 3))]

    def test_says_why_its_queue_stops(self) -> None:
        flow = Flow()
        [note] = flow.get(2, b"junk")
        assert isinstance(note, Note)
        assert note.name == "restripe_record_kept"
        assert flow.get(3, STAYING) == []

    def test_without_a_gate_takes_records_for_messages(self) -> None:
        machine = FlowMachine(QUEUE, Place(0, gives_way=False), REBIND, 4, random.Random(1), 0)
        machine.on_deadline(0)
        machine.handle(BindSucceeded(Epoch(1)), 0)
        machine.handle(FlowActive(Epoch(1)), 0)
        plan = delivery(1, PLAN)
        assert machine.handle(MessageReceived(plan), 1) == [Dispatch(plan)]
        assert machine.handle(StripingLearned(Striping(GENERATION, 2, 3)), 1) == []
        assert machine.handle(SettlementsReached(Epoch(1), 1), 1) == []


class TestTheShortWays:
    """`admit` and `accept` are right only where the gate has nothing to say."""

    def test_are_open_before_the_plan_and_behind_the_finish(self) -> None:
        flow = Flow()
        assert not flow.machine.admit(delivery(2, STAYING))
        flow.get(2, STAYING)
        assert not flow.machine.accept(Epoch(1), DeliveryId(2))
        flow.get(3, FINISH)
        assert not flow.machine.admit(delivery(4, STAYING)), "the finish waits for what is in flight"
        flow.done(2)
        assert flow.machine.admit(delivery(4, LEAVING))
        assert flow.machine.accept(Epoch(1), DeliveryId(4))

    def test_take_no_record(self) -> None:
        machine = Flow().machine
        machine.handle(FlowDown(Epoch(1), "gone"), 1)
        machine.on_deadline(200)
        machine.handle(BindSucceeded(Epoch(2)), 200)
        machine.handle(FlowActive(Epoch(2)), 200)
        assert not machine.admit(delivery(1, PLAN, epoch=2))
        assert machine.admit(delivery(2, STAYING, epoch=2))

    def test_what_they_let_in_is_waited_for_at_a_marker(self) -> None:
        flow = Flow()
        flow.tell(FlowDown(Epoch(1), "gone"), 1)
        flow.activate(200)
        assert flow.machine.admit(delivery(1, LEAVING, epoch=2))
        flow.get(2, PLAN)
        assert flow.get(3, marker(LEAVING)) == []
        assert flow.done(1) == [settle(1, epoch=2), probe(1, epoch=2)]

    def test_take_nothing_behind_a_record_that_nobody_can_read(self) -> None:
        flow = Flow()
        flow.get(2, FINISH)
        flow.get(3, b"junk")
        assert not flow.machine.admit(delivery(4, STAYING))

    def test_respect_the_kept_messages_of_the_cap(self) -> None:
        flow = Flow(max_in_flight=2)
        flow.get(2, FINISH)
        assert flow.machine.admit(delivery(3, STAYING))
        assert not flow.machine.admit(delivery(4, STAYING)), "the one that closes the intake is for `handle`"


class TestADrain:
    def test_does_not_wait_for_kept_messages(self) -> None:
        flow = Flow()
        flow.get(2, marker(COMING))
        flow.get(3, COMING)
        assert flow.tell(HandBackRequested("m"), 100) == [StopIntake(Epoch(1))]
        assert flow.machine.on_deadline(120) == [Unbind(Epoch(1), ReleaseCause.HANDBACK)]

    def test_handles_and_waits_for_what_is_passed_meanwhile(self) -> None:
        flow = Flow()
        flow.get(2, marker(COMING))
        flow.get(3, COMING)
        flow.tell(StopRequested(), 100)
        assert flow.learn(COMING, now_ms=110) == [dispatch(3, COMING)]
        assert flow.machine.on_deadline(120) == []
        assert flow.done(3, now_ms=130) == [settle(3), Unbind(Epoch(1), ReleaseCause.STOP)]

    def test_ends_the_move_of_a_shard_where_there_is_time(self) -> None:
        flow = Flow()
        flow.get(2, LEAVING)
        flow.get(3, marker(LEAVING))
        flow.tell(HandBackRequested("m"), 100)
        assert flow.done(2, now_ms=101) == [settle(2), probe(1)]
        assert flow.echo(1, now_ms=110) == [LEFT]

    def test_a_hand_back_that_is_given_up_keeps_what_was_kept(self) -> None:
        flow = Flow(max_in_flight=4)
        flow.get(2, marker(COMING))
        flow.get(3, COMING)
        flow.get(4, STAYING)
        flow.tell(HandBackRequested("m"), 100)
        commands = flow.machine.on_deadline(5_100)
        assert commands[1:] == [StartIntake(Epoch(1))]
        assert flow.learn(COMING) == [dispatch(3, COMING)]

    def test_past_its_timeout_starts_nothing_that_was_kept(self) -> None:
        flow = Flow(place=Place(1, gives_way=True))
        flow.get(2, marker(COMING))
        flow.get(3, COMING)
        flow.get(4, STAYING)
        flow.machine.on_deadline(30_000)
        assert flow.machine.on_deadline(35_000) == [ReturnUnstarted(Epoch(1))]
        assert flow.learn(COMING, now_ms=35_001) == []
        assert flow.done(4, now_ms=35_002) == [settle(4), Unbind(Epoch(1), ReleaseCause.REBIND)]

    def test_that_sends_messages_back_says_of_no_shard_of_theirs_that_it_has_left(self) -> None:
        flow = Flow()
        flow.get(2, LEAVING)
        flow.get(3, LEAVING)
        flow.get(4, marker(LEAVING))
        flow.tell(StopRequested(), 100)
        flow.machine.on_deadline(5_100)
        assert flow.done(3, None, now_ms=5_101) == []
        assert flow.done(2, now_ms=5_102) == [settle(2), Unbind(Epoch(1), ReleaseCause.STOP)]

    def test_that_sends_messages_back_settles_no_record(self) -> None:
        flow = Flow()
        flow.get(2, STAYING)
        flow.get(3, STAYING)
        flow.get(4, FINISH)
        flow.tell(StopRequested(), 100)
        flow.machine.on_deadline(5_100)
        flow.done(3, None, now_ms=5_101)
        assert flow.done(2, now_ms=5_102) == [settle(2), Unbind(Epoch(1), ReleaseCause.STOP)]


class TestAHandleOnItsWayOut:
    @pytest.fixture
    def unbinding(self) -> Flow:
        """A message of the shard that comes is kept; a probe of the shard that leaves is not answered."""
        flow = Flow()
        flow.get(2, marker(COMING))
        flow.get(3, COMING)
        flow.get(4, marker(LEAVING))
        flow.tell(HandBackRequested("m"), 100)
        flow.machine.on_deadline(120)
        assert flow.machine.state is FlowState.UNBINDING
        return flow

    def test_settles_and_starts_nothing(self, unbinding: Flow) -> None:
        assert unbinding.learn(COMING, now_ms=121) == []

    def test_tells_nothing(self, unbinding: Flow) -> None:
        assert unbinding.echo(1, now_ms=121) == []

    def test_leaves_everything_to_the_next_one(self, unbinding: Flow) -> None:
        unbinding.learn(COMING, now_ms=121)
        unbinding.tell(UnbindFinished(Epoch(1)), 122)
        unbinding.activate(1_000)
        unbinding.get(1, PLAN)
        unbinding.get(2, marker(COMING))
        assert unbinding.get(3, COMING) == [dispatch(3, COMING, epoch=2)]
        assert unbinding.get(4, marker(LEAVING)) == [probe(2, epoch=2)]

    @pytest.mark.parametrize("is_binding", [False, True])
    def test_what_is_learned_without_a_handle_counts_for_the_next(self, is_binding: bool) -> None:
        flow = Flow()
        flow.get(2, marker(COMING))
        flow.get(3, COMING)
        flow.tell(FlowDown(Epoch(1), "gone"), 10)
        if is_binding:
            flow.machine.on_deadline(1_000)
        assert flow.learn(COMING) == []
        if is_binding:
            flow.tell(BindSucceeded(Epoch(2)), 1_001)
            flow.tell(FlowActive(Epoch(2)), 1_001)
        else:
            flow.activate(1_000)
        flow.get(1, PLAN)
        flow.get(2, marker(COMING))
        assert flow.get(3, COMING) == [dispatch(3, COMING, epoch=2)]


class TestAnEcho:
    def probing(self) -> Flow:
        """Delivery 2 holds the flow, and the probe of the shard that has left is under way."""
        flow = Flow()
        flow.get(2, STAYING)
        assert flow.get(3, marker(LEAVING)) == [probe(1)]
        return flow

    def test_of_a_handle_that_is_gone_is_late(self) -> None:
        flow = self.probing()
        flow.tell(FlowDown(Epoch(1), "gone"), 10)
        [late] = flow.echo(1)
        assert isinstance(late, Note)
        assert late.name == "settlements_reached_late"
        flow.activate(1_000)
        [late] = flow.echo(1, now_ms=1_001)
        assert isinstance(late, Note)

    def test_after_activity_was_lost_counts_for_nothing(self) -> None:
        """Somebody else may have been given what we settled."""
        flow = self.probing()
        flow.tell(FlowInactive(Epoch(1)), 10)
        assert flow.machine.state is FlowState.DRAINING
        assert flow.echo(1) == []
        assert flow.tell(FlowActive(Epoch(1)), 11) == []
        assert flow.echo(1) == []

    @pytest.mark.parametrize("stops_first", [False, True])
    def test_after_activity_was_lost_in_a_stop_counts_for_nothing(self, stops_first: bool) -> None:
        flow = self.probing()
        events: list[MachineEvent] = [StopRequested(), FlowInactive(Epoch(1))]
        for event in events if stops_first else reversed(events):
            flow.tell(event, 10)
        assert flow.machine.state is FlowState.DRAINING
        assert flow.echo(1) == []
