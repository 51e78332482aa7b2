"""The flow machine and the lanes under any order of events that a shell can produce; the laws are checked outside."""

import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lbg_runtime.core.flow.commands import (
    Bind,
    CancelHandling,
    Command,
    Dispatch,
    LookForStall,
    ReturnUnstarted,
    Settle,
    StartIntake,
    StopIntake,
    Unbind,
)
from lbg_runtime.core.flow.events import (
    BindRefused,
    BindSucceeded,
    DeliveriesHeldUp,
    FlowActive,
    FlowDown,
    FlowInactive,
    HandBackRequested,
    HandlingFinished,
    HandlingStalled,
    MachineEvent,
    MessageReceived,
    PlaceChanged,
    ReleaseCause,
    StepAsideCancelled,
    StepAsideRequested,
    StopRequested,
    UnbindFinished,
)
from lbg_runtime.core.flow.machine import FlowMachine
from lbg_runtime.core.flow.rebind import RebindSettings
from lbg_runtime.core.flow.table import FlowState
from lbg_runtime.core.lanes import KeyLanes, LaneKey
from lbg_runtime.core.roles import Place
from lbg_runtime.model.ids import DeliveryId, Epoch, QueueName
from lbg_runtime.model.message import Delivery, Message
from lbg_runtime.model.outcome import Outcome

QUEUE = QueueName("orders/0")
SETTINGS = RebindSettings(
    interval_ms=1_000,
    jitter=1.0,
    drain_timeout_ms=200,
    bind_backoff_min_ms=10,
    bind_backoff_max_ms=500,
    quiet_gap_ms=20,
    rank_delay_ms=30,
)
PLACES = st.builds(Place, st.sampled_from([None, 0, 1, 2]), st.booleans())
Answered = tuple[Epoch, DeliveryId]


class FlowLaws(RuleBasedStateMachine):
    """A shell with one flow; Hypothesis decides what the broker, the handlers and the clock do."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.machine: FlowMachine | None = None
        self.lanes: KeyLanes[Delivery] = KeyLanes(max_waiting=1)
        self.next_delivery = 0
        self.binding: Epoch | None = None
        self.unbinding: Epoch | None = None
        self.live: Epoch | None = None
        """The handle that the broker knows, from the bind to its end."""
        self.dispatched: dict[Answered, Delivery] = {}
        self.unanswered: set[Answered] = set()
        self.settled: set[Answered] = set()
        self.running: dict[LaneKey, Delivery] = {}
        self.lost_activity: set[Epoch] = set()
        self.ended: set[Epoch] = set()
        self.intake_open = False
        self.cancelled: set[Epoch] = set()
        self.stop_requested = False
        self.held_up: list[DeliveriesHeldUp] = []
        """To be told of, behind the orders at hand."""
        self.stalled: list[HandlingStalled] = []
        """To be told of at any later time."""
        self.excused: set[Answered] = set()

    @precondition(lambda self: self.machine is None)
    @rule(place=PLACES, cap=st.integers(1, 6), more=st.integers(0, 12), seed=st.integers(0, 1_000))
    def make(self, place: Place, cap: int, more: int, seed: int) -> None:
        chance = random.Random(seed)
        self.cap, self.most = cap, cap + more
        self.machine = FlowMachine(QUEUE, place, SETTINGS, cap, chance, self.now_ms, max_held=cap + more)

    def flow(self) -> FlowMachine:
        assert self.machine is not None
        return self.machine

    # -- the shell

    def tell(self, event: MachineEvent) -> None:
        self.obey(self.flow().handle(event, self.now_ms))
        while self.held_up:
            self.obey(self.flow().handle(self.held_up.pop(), self.now_ms))

    def obey(self, commands: list[Command]) -> None:
        for command in commands:
            self.check(command)
            match command:
                case Bind(epoch):
                    self.binding = epoch
                case Unbind(epoch):
                    self.unbinding = epoch
                case Dispatch(delivery):
                    answer = (delivery.epoch, delivery.delivery_id)
                    self.dispatched[answer] = delivery
                    self.unanswered.add(answer)
                    is_held_up = self.lanes.offer(LaneKey(delivery.message.topic), delivery)
                    self.excused |= {answer} if is_held_up else set()
                    if is_held_up and not self.flow().excuse(*answer):
                        self.held_up.append(DeliveriesHeldUp(delivery.epoch, (delivery.delivery_id,)))
                case ReturnUnstarted(epoch):
                    for delivery in self.lanes.return_unstarted(QUEUE, epoch):
                        self.answer(delivery, None)
                case LookForStall(epoch):
                    if self.lanes.is_stalled(QUEUE, epoch):
                        self.stalled.append(HandlingStalled(epoch))
                case CancelHandling(epoch):
                    self.cancelled.add(epoch)
                case _:
                    pass

    def answer(self, delivery: Delivery, outcome: Outcome | None) -> None:
        self.unanswered.remove((delivery.epoch, delivery.delivery_id))
        self.tell(HandlingFinished(delivery.epoch, delivery.delivery_id, outcome))

    # -- the laws, on every command

    def check(self, command: Command) -> None:
        match command:
            case Bind(epoch):
                assert not self.stop_requested
                assert self.flow().place.is_wanted
                assert epoch == len(self.ended) + 1, "one handle at a time, numbered from 1"
                self.intake_open = False
            case Dispatch(delivery):
                assert delivery.epoch not in self.lost_activity, "nothing new is started after activity was lost (L4)"
                assert delivery.epoch not in self.ended
                assert delivery.epoch not in self.cancelled
            case Settle(epoch, delivery_id, _):
                answer = (epoch, delivery_id)
                assert answer in self.dispatched
                assert answer not in self.settled, "settled at most once (L8)"
                assert epoch not in self.ended, "settled in its own epoch only (L4)"
                self.settled.add(answer)
            case Unbind(epoch, cause):
                assert not self.in_flight(epoch), "given up only when nothing of it is in flight (L5)"
                assert (cause is ReleaseCause.STOP) == self.stop_requested
                if cause in (ReleaseCause.HOP, ReleaseCause.UNWANTED):
                    assert not self.intake_open, "a standby that lets go has not asked for anything"
                self.ended.add(epoch)
            case StopIntake():
                assert self.intake_open
                self.intake_open = False
            case StartIntake():
                assert not self.intake_open
                self.intake_open = True
            case CancelHandling(epoch):
                assert self.stop_requested, "only a stop cancels"
                assert epoch not in self.cancelled
            case _:
                pass

    def in_flight(self, epoch: Epoch) -> int:
        return sum(1 for answered_epoch, _ in self.unanswered if answered_epoch == epoch)

    # -- the broker

    @precondition(lambda self: self.binding is not None)
    @rule()
    def succeed_to_bind(self) -> None:
        assert self.binding is not None
        self.live, self.binding = self.binding, None
        self.tell(BindSucceeded(self.live))

    @precondition(lambda self: self.binding is not None)
    @rule(permanent=st.booleans())
    def refuse_to_bind(self, permanent: bool) -> None:
        assert self.binding is not None
        epoch, self.binding = self.binding, None
        self.ended.add(epoch)
        self.live = None
        self.tell(BindRefused(epoch, "no", permanent=permanent))

    def reporting(self) -> Epoch | None:
        return self.binding or self.live

    @precondition(lambda self: self.reporting() is not None)
    @rule()
    def give_activity(self) -> None:
        epoch = self.reporting()
        assert epoch is not None
        self.tell(FlowActive(epoch))

    @precondition(lambda self: self.reporting() is not None)
    @rule()
    def take_activity(self) -> None:
        epoch = self.reporting()
        assert epoch is not None
        if self.flow().state in (FlowState.ACTIVE, FlowState.DRAINING):
            self.lost_activity.add(epoch)
        self.tell(FlowInactive(epoch))

    @precondition(lambda self: self.reporting() is not None)
    @rule(key=st.sampled_from("abc"))
    def deliver(self, key: str) -> None:
        epoch = self.reporting()
        assert epoch is not None
        self.next_delivery += 1
        message = Message(key, b"")
        delivery_id = DeliveryId(self.next_delivery)
        self.tell(MessageReceived(Delivery(QUEUE, epoch, delivery_id, message, redelivered=False, received_at_ns=0)))

    @precondition(lambda self: self.live is not None and self.unbinding is None)
    @rule()
    def kill_handle(self) -> None:
        assert self.live is not None
        epoch, self.live = self.live, None
        self.ended.add(epoch)
        self.tell(FlowDown(epoch, "gone"))

    @precondition(lambda self: self.unbinding is not None)
    @rule()
    def finish_unbind(self) -> None:
        assert self.unbinding is not None
        epoch, self.unbinding, self.live = self.unbinding, None, None
        self.tell(UnbindFinished(epoch))

    @precondition(lambda self: self.ended)
    @rule(data=st.data())
    def report_late(self, data: st.DataObject) -> None:
        epoch = data.draw(st.sampled_from(sorted(self.ended)))
        late: list[MachineEvent] = [FlowActive(epoch), FlowInactive(epoch), FlowDown(epoch, "again")]
        before = self.flow().state
        self.tell(data.draw(st.sampled_from(late)))
        assert self.flow().state is before

    # -- handlers and time

    @precondition(lambda self: self.lanes.waiting)
    @rule()
    def start_handler(self) -> None:
        turn = self.lanes.next_ready()
        if turn is not None:
            assert turn.key not in self.running
            assert turn.head.epoch not in self.lost_activity, "nothing unstarted is left in the lanes (L4)"
            assert turn.head.epoch not in self.ended, "nor of a dead handle"
            self.running[turn.key] = turn.head

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end_handler(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.running)))
        delivery = self.running.pop(key)
        # A handler may end by itself before its cancellation reaches it.
        can_be_cancelled = delivery.epoch in self.cancelled or delivery.epoch in self.lost_activity
        outcomes = [Outcome.ACCEPTED, Outcome.REJECTED, None] if can_be_cancelled else [Outcome.ACCEPTED]
        self.answer(delivery, data.draw(st.sampled_from(outcomes)))
        self.lanes.finish(self.lanes._lanes[key])

    @precondition(lambda self: self.running)
    @rule(data=st.data(), wait_ms=st.integers(1, 50))
    def fail_handler(self, data: st.DataObject, wait_ms: int) -> None:
        key = data.draw(st.sampled_from(sorted(self.running)))
        delivery = self.running.pop(key)
        if not self.lanes.delay(self.lanes._lanes[key], self.now_ms + wait_ms):
            self.answer(delivery, None)
            self.lanes.finish(self.lanes._lanes[key])
            return
        for waiting in self.lanes.hold_up(self.lanes._lanes[key]):
            self.excused.add((waiting.epoch, waiting.delivery_id))
            self.tell(DeliveriesHeldUp(waiting.epoch, (waiting.delivery_id,)))

    @precondition(lambda self: self.machine is not None)
    @rule(wait_ms=st.integers(0, 300))
    def pass_time(self, wait_ms: int) -> None:
        self.now_ms += wait_ms
        self.lanes.release_due(self.now_ms)
        self.obey(self.flow().on_deadline(self.now_ms))

    @precondition(lambda self: self.stalled)
    @rule()
    def tell_of_a_stall(self) -> None:
        self.tell(self.stalled.pop())

    @precondition(lambda self: self.machine is not None and self.flow().state is FlowState.DRAINING)
    @rule()
    def tell_that_a_stopped_queue_has_stalled(self) -> None:
        machine = self.flow()
        if self.lanes.is_stalled(QUEUE, machine.epoch):
            self.tell(HandlingStalled(machine.epoch, has_stopped=True))

    @precondition(lambda self: self.machine is not None and not self.stop_requested)
    @rule(chance=st.integers(0, 5))
    def request_stop(self, chance: int) -> None:
        if chance == 0:
            self.stop_requested = True
            self.tell(StopRequested())

    # -- what the group wants

    @precondition(lambda self: self.machine is not None)
    @rule(place=PLACES)
    def change_place(self, place: Place) -> None:
        before = self.flow().state
        self.tell(PlaceChanged(place))
        assert self.flow().place == place
        if before is FlowState.ACTIVE:
            assert self.flow().state is FlowState.ACTIVE, "availability comes before placement"

    @precondition(lambda self: self.machine is not None)
    @rule()
    def request_hand_back(self) -> None:
        before, cause = self.flow().state, self.flow().cause
        self.tell(HandBackRequested("m"))
        if before is FlowState.ACTIVE:
            assert self.flow().cause is ReleaseCause.HANDBACK
        else:
            assert (self.flow().state, self.flow().cause) == (before, cause)

    @precondition(lambda self: self.machine is not None)
    @rule(wait_ms=st.integers(0, 300))
    def request_to_step_aside(self, wait_ms: int) -> None:
        before = self.flow().state
        self.tell(StepAsideRequested(self.now_ms + wait_ms))
        assert self.flow().state is before

    @precondition(lambda self: self.machine is not None)
    @rule()
    def cancel_stepping_aside(self) -> None:
        before = self.flow().state
        self.tell(StepAsideCancelled())
        assert self.flow().state is before

    # -- what holds at every moment

    @invariant()
    def counts_agree(self) -> None:
        if self.machine is not None:
            epoch = self.machine.epoch
            lives = self.machine.state is not FlowState.UNBOUND
            assert self.machine.in_flight == (self.in_flight(epoch) if lives else 0)

    @invariant()
    def nothing_waits_for_ever(self) -> None:
        """A machine without a deadline waits for somebody who will answer."""
        if self.machine is None or self.machine.deadline_ms is not None:
            return
        match self.machine.state:
            case FlowState.UNBOUND:
                assert self.machine.is_stopped or not self.machine.place.is_wanted
            case FlowState.BINDING:
                assert self.binding is not None
            case FlowState.UNBINDING:
                assert self.unbinding is not None
            case FlowState.DRAINING:
                assert self.machine.in_flight > 0
            case FlowState.STANDBY:
                assert not self.intake_open
                assert self.machine.place.is_wanted
            case FlowState.ACTIVE:
                self.others_need_not_wait(self.machine)

    def others_need_not_wait(self, machine: FlowMachine) -> None:
        """For what is held up, while there is room; and what is held is bounded, but for what is under way."""
        counted = {each for each in self.unanswered - self.excused if each[0] == machine.epoch}
        has_room = machine.in_flight <= self.most - (self.cap - self.cap // 2)
        assert self.intake_open or len(counted) > self.cap // 2 or not has_room
        assert not self.intake_open or machine.in_flight < self.most


TestFlowLaws = FlowLaws.TestCase
TestFlowLaws.settings = settings(max_examples=100, stateful_step_count=80, deadline=None)
