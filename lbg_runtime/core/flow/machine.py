"""The life of one member's flow on one queue: bind, become active, drain for a reason, unbind, and again.

One machine per queue, driven by its flow runner from one task: `handle` for every event, `on_deadline` when
`deadline_ms` is reached. Commands are carried out in the order given.

Law L4 here: an epoch is one flow handle. While the handle lives, whatever it delivered is settled on it, even
after an outage. What has not been started when activity is lost must no longer be started: another member may have
been fed the same messages, and their successors, in the meantime. Nor may the handle then be kept: the client never
shows a message twice on one handle, so what we hold unstarted would be neither shown again nor removed. So the handle
is given up as soon as nothing of it is running; a new one is bound, and starts with what is unsettled by then.

A handle that dies takes its settlements with it: they are fenced here, never sent. Handlers that are still running are
not waited for; the lane of their key keeps a redelivered message behind them (L2).

A handle is bound with its intake closed, and only a flow that is active and means to stay so opens it. So a standby,
or a flow that steps aside for another member, never touches a message or its redelivery count.

Availability comes before placement: an active flow keeps its queue, wanted or not, until it hands it back, gives way
or loses it. Whether and when to bind again is decided in core/flow/plan.py.

One file of more than 400 lines, because the table covers all reactions together, and they share one state.
"""

from typing import assert_never

from lbg_runtime.core.chance import RandomSource
from lbg_runtime.core.flow.commands import (
    Bind,
    CancelHandling,
    Command,
    Dispatch,
    LookForStall,
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
    BindRefused,
    BindSucceeded,
    DeliveriesHeldUp,
    FlowActive,
    FlowDown,
    FlowEvent,
    FlowInactive,
    HandBackRequested,
    HandlingFinished,
    HandlingStalled,
    MachineEvent,
    MessageReceived,
    PlaceChanged,
    ReleaseCause,
    SettlementsReached,
    StepAsideCancelled,
    StepAsideRequested,
    StopRequested,
    StripingLearned,
    UnbindFinished,
)
from lbg_runtime.core.flow.in_flight import InFlight
from lbg_runtime.core.flow.late_events import late_note
from lbg_runtime.core.flow.plan import FlowPlan
from lbg_runtime.core.flow.rebind import RebindSettings
from lbg_runtime.core.flow.release import DrainPhase, Release
from lbg_runtime.core.flow.table import TRANSITIONS, Deadline, EventKind, FlowState, name_of
from lbg_runtime.core.restripe.gate import Drop, GateOrder, Pass, Probe, StripeGate
from lbg_runtime.core.restripe.striping import Striping
from lbg_runtime.core.roles import Place
from lbg_runtime.model.errors import InvariantViolated
from lbg_runtime.model.ids import DeliveryId, Epoch, QueueName
from lbg_runtime.model.message import Delivery
from lbg_runtime.model.outcome import Outcome

# Looked up once: before Python 3.12, accessing an enum member costs as much as a function call.
_ACTIVE = FlowState.ACTIVE


class FlowMachine:
    """Decides everything about one flow; does nothing itself. The module docstring has the callers and the rules."""

    def __init__(
        self,
        queue: QueueName,
        place: Place,
        settings: RebindSettings,
        max_in_flight: int,
        random: RandomSource,
        now_ms: int,
        gate: StripeGate | None = None,
        max_held: int | None = None,
    ) -> None:
        """`gate` is for the queue's re-stripings; None if there are none. `max_held` bounds the deliveries in flight or
        kept by the gate, including excused ones; it defaults to `max_in_flight`."""
        self.queue = queue
        self.state = FlowState.UNBOUND
        self.epoch = Epoch(0)
        """The epoch of the newest handle; 0 before the first bind."""
        self._settings = settings
        self._plan = FlowPlan(place, settings, random, now_ms)
        self._in_flight = InFlight(max_in_flight, max_held)
        self._early: list[FlowEvent] = []
        """Events of a flow whose bind was not yet known to be done."""
        self._release: Release | None = None
        self._gate = gate

    # -- what a runner reads

    @property
    def place(self) -> Place:
        """What the group wants of this flow."""
        return self._plan.place

    @property
    def in_flight(self) -> int:
        """Deliveries of the current handle that were dispatched and have not been answered."""
        return len(self._in_flight)

    @property
    def cause(self) -> ReleaseCause | None:
        """Why the handle is being given up; None unless DRAINING or UNBINDING."""
        return self._release.cause if self._release else None

    @property
    def move_id(self) -> str:
        """The request that caused the hand-back; empty unless `cause` is a hand-back."""
        return self._release.move_id if self._release else ""

    @property
    def closing_shards(self) -> frozenset[int | None]:
        """Shards whose deliveries in flight a re-striping waits for; None among them stands for topics of no shard."""
        is_handling = self.state in (FlowState.ACTIVE, FlowState.DRAINING)
        return frozenset() if self._gate is None or not is_handling else self._gate.closing_shards

    @property
    def is_stopped(self) -> bool:
        """Whether the flow is unbound and will not bind again. Handlers of a dead handle may still be running."""
        return self._plan.is_leaving and self.state is FlowState.UNBOUND

    @property
    def deadline_ms(self) -> int | None:
        """When `on_deadline` must next be called, on the clock of `now_ms`; None to wait for an event."""
        match self.state:
            case FlowState.UNBOUND:
                return self._plan.bind_at_ms
            case FlowState.ACTIVE:
                return self._plan.give_way_at_ms
            case FlowState.DRAINING:
                return self._current_release().deadline_ms(len(self._in_flight))
            case FlowState.BINDING | FlowState.STANDBY | FlowState.UNBINDING:
                return None
            case _:
                assert_never(self.state)

    # -- what a runner calls

    def handle(self, event: MachineEvent, now_ms: int) -> list[Command]:
        """Process one event and return what to do. Raises `InvariantViolated` for an event that cannot happen."""
        commands = self._step(event, now_ms)
        if self._early and self.state is not FlowState.BINDING:
            early, self._early = self._early, []
            for flow_event in early:
                commands += self._step(flow_event, now_ms)
            if self.state is not FlowState.ACTIVE:
                # It was active, but only for a moment. So the intake stays closed: what came through it would have to
                # go back, and be redelivered.
                commands = [command for command in commands if not isinstance(command, StartIntake | StopIntake)]
        return commands

    def on_deadline(self, now_ms: int) -> list[Command]:
        """Act on the deadline if it has been reached; calling this too early does no harm."""
        deadline_ms = self.deadline_ms
        if deadline_ms is None or now_ms < deadline_ms:
            return []
        before = self.state
        match before:
            case FlowState.UNBOUND:
                commands = self._bind()
            case FlowState.ACTIVE:
                commands = self._start_drain(ReleaseCause.REBIND, now_ms)
            case FlowState.DRAINING:
                commands = self._advance_drain(now_ms)
            case FlowState.BINDING | FlowState.STANDBY | FlowState.UNBINDING:
                raise InvariantViolated(f"{self.queue}: a deadline in state {before.value}")
            case _:
                assert_never(before)
        self._check_transition(before, Deadline)
        return commands

    # -- short cuts for the events that happen once per message, for when they lead to nothing else

    def admit(self, delivery: Delivery) -> bool:
        """Admit an arrival for which `handle` would order a dispatch and nothing else; the caller dispatches it.

        Returns False, and changes nothing, if the arrival must go through `handle`.
        """
        if self.state is not _ACTIVE or delivery.epoch != self.epoch:
            return False
        topic = delivery.message.topic
        if self._gate is not None and not self._gate.lets_pass(topic):
            return False
        return self._in_flight.add_if_room(delivery.delivery_id, topic)

    def accept(self, epoch: Epoch, delivery_id: DeliveryId) -> bool:
        """Record an accepted end for which `handle` would order a settlement and nothing else; the caller settles it.

        Returns False, and changes nothing, if the end must go through `handle`.
        """
        if self.state is not _ACTIVE or epoch != self.epoch:
            return False
        if self._gate is not None and not self._gate.is_idle:
            return False
        return self._in_flight.answer_if_open(delivery_id)

    def excuse(self, epoch: Epoch, delivery_id: DeliveryId) -> bool:
        """Excuse a delivery that is held up as it is dispatched, if `handle` would order nothing for it.

        Returns False, and changes nothing, if `handle` must take a `DeliveriesHeldUp`, after the current commands.
        """
        return epoch == self.epoch and self._in_flight.excuse_if_open(delivery_id)

    # -- one step

    def _step(self, event: MachineEvent, now_ms: int) -> list[Command]:
        kind = type(event)
        before = self.state
        late = late_note(event, self.epoch, self._in_flight, has_handle=before is not FlowState.UNBOUND)
        if late is not None:
            return [late]
        if kind not in TRANSITIONS[before]:
            raise InvariantViolated(f"{self.queue}: {name_of(kind)} in state {before.value}, epoch {self.epoch}")
        commands = self._react(event, now_ms)
        self._check_transition(before, kind)
        return commands

    def _check_transition(self, before: FlowState, kind: EventKind) -> None:
        if self.state not in TRANSITIONS[before][kind]:
            raise InvariantViolated(f"{self.queue}: {name_of(kind)} led from {before.value} to {self.state.value}")

    def _react(self, event: MachineEvent, now_ms: int) -> list[Command]:
        if self.state is FlowState.BINDING and isinstance(event, FlowEvent):
            self._early.append(event)
            return []
        match event:
            case MessageReceived(delivery):
                return self._receive(delivery, now_ms)
            case FlowActive():
                # In any other state this is known already, or the handle is being given up.
                return self._take_activity(now_ms) if self.state is FlowState.STANDBY else []
            case FlowInactive():
                return self._lose_activity(now_ms)
            case FlowDown(_, reason):
                return self._lose_handle(reason, now_ms)
            case BindSucceeded():
                return self._enter_standby(now_ms)
            case BindRefused(_, reason, permanent):
                return self._wait_for_next_bind(reason, permanent=permanent, now_ms=now_ms)
            case UnbindFinished():
                return self._leave_handle(now_ms)
            case HandlingFinished(_, delivery_id, outcome):
                return self._finish(delivery_id, outcome, now_ms)
            case DeliveriesHeldUp(_, delivery_ids):
                return self._excuse(delivery_ids)
            case HandlingStalled(_, has_stopped):
                return self._end_stalled_drain(has_stopped=has_stopped, now_ms=now_ms)
            case StopRequested():
                return self._request_stop(now_ms)
            case PlaceChanged(place):
                return self._change_place(place, now_ms)
            case HandBackRequested(move_id):
                return self._request_hand_back(move_id, now_ms)
            case StepAsideRequested() | StepAsideCancelled():
                self._plan.step_aside(event.until_ms if isinstance(event, StepAsideRequested) else None)
                return []
            case StripingLearned(striping):
                return self._learn_striping(striping)
            case SettlementsReached(_, number):
                return self._take_echo(number)
            case _:
                assert_never(event)

    # -- binding and activity

    def _bind(self) -> list[Command]:
        self.epoch = Epoch(self.epoch + 1)
        self.state = FlowState.BINDING
        self._in_flight.start_handle()
        if self._gate is not None:
            self._gate.start_handle()
        return [Bind(self.epoch)]

    def _enter_standby(self, now_ms: int) -> list[Command]:
        self._plan.finish_bind(now_ms)
        self.state = FlowState.STANDBY
        if self._plan.is_leaving:
            return self._unbind(ReleaseCause.STOP, now_ms)
        return [] if self.place.is_wanted else self._unbind(ReleaseCause.UNWANTED, now_ms)

    def _wait_for_next_bind(self, reason: str, *, permanent: bool, now_ms: int) -> list[Command]:
        self.state = FlowState.UNBOUND
        self._plan.refuse_bind(now_ms, permanent=permanent)
        name = "bind_refused" if permanent else "bind_failed"
        return [Note(name, {"epoch": self.epoch, "reason": reason, "failed_binds": self._plan.failed_binds})]

    def _take_activity(self, now_ms: int) -> list[Command]:
        if not self._plan.accept_activity(now_ms):
            return self._unbind(ReleaseCause.HOP, now_ms)
        return self._become_active(now_ms)

    def _become_active(self, now_ms: int) -> list[Command]:
        self.state = FlowState.ACTIVE
        self._plan.activate(now_ms)
        return self._open_intake()

    def _open_intake(self) -> list[Command]:
        return [StartIntake(self.epoch)] if self._in_flight.open_intake(self._kept_count()) else []

    def _change_place(self, place: Place, now_ms: int) -> list[Command]:
        self._plan.place = place
        if self.state is FlowState.UNBOUND:
            self._plan.reschedule_bind(now_ms)
        elif self.state is FlowState.ACTIVE:
            self._plan.reschedule_cycle(now_ms)
        elif self.state is FlowState.STANDBY and not place.is_wanted:
            return self._unbind(ReleaseCause.UNWANTED, now_ms)
        # In any other state, the place is looked at when the bind, drain or unbind under way ends.
        return []

    # -- deliveries

    def _receive(self, delivery: Delivery, now_ms: int) -> list[Command]:
        commands: list[Command] = []
        if self.state is FlowState.STANDBY:
            # Only an active flow is fed, so this one is active, although its intake is closed and no event said so.
            commands.append(Note("flow_activated_by_message", {"epoch": self.epoch}))
            commands += self._become_active(now_ms)
        if self._release is not None:
            if self._release.phase is not DrainPhase.FINISH:
                return [Note("delivery_left_unstarted", {"epoch": self.epoch, "delivery_id": delivery.delivery_id})]
            self._release.quiet_at_ms = now_ms + self._settings.quiet_gap_ms
        before_count = len(self._in_flight)
        if self._gate is None:
            commands += self._dispatch(delivery)
        else:
            commands += self._obey_gate(self._gate.take(delivery, self._in_flight))
        # Some of what the gate has just let go will be excused when it is dispatched, so the next arrival decides. If
        # closed too early, the intake might depend on a stuck key alone to open it again.
        is_let_go = len(self._in_flight) > before_count + 1
        if not is_let_go and self._in_flight.close_intake_if_full(self._kept_count()):
            commands.append(StopIntake(self.epoch))
        return commands

    def _dispatch(self, delivery: Delivery) -> list[Command]:
        self._in_flight.add(delivery.delivery_id, delivery.message.topic)
        return [Dispatch(delivery)]

    def _finish(self, delivery_id: DeliveryId, outcome: Outcome | None, now_ms: int) -> list[Command]:
        self._in_flight.answer(delivery_id)
        commands: list[Command] = []
        if outcome is not None:
            commands.append(Settle(self.epoch, delivery_id, outcome))
        if outcome is None and (self._release is None or self._release.phase is DrainPhase.FINISH):
            # Nobody asked for the delivery back, so its handler was cancelled from outside, or has passed it back. It
            # cannot be shown again on this handle, and no successor of its key may be settled before it (L3): give up
            # the handle.
            note = Note("handling_abandoned", {"epoch": self.epoch, "delivery_id": delivery_id})
            return [note, *self._give_up_unasked(now_ms)]
        if outcome is not None and self._gate is not None:
            commands += self._obey_gate(self._gate.answer(delivery_id))
        if self.state is FlowState.DRAINING:
            return commands + self._unbind_if_drained(now_ms)
        return commands + self._open_intake()

    def _excuse(self, delivery_ids: tuple[DeliveryId, ...]) -> list[Command]:
        for delivery_id in delivery_ids:
            self._in_flight.excuse(delivery_id)
        return self._open_intake() if self.state is FlowState.ACTIVE else []

    # -- re-striping

    def _kept_count(self) -> int:
        return 0 if self._gate is None else self._gate.kept_count

    def _learn_striping(self, striping: Striping) -> list[Command]:
        # What this lets go has counted as kept, so the intake has no more room than before.
        return [] if self._gate is None else self._obey_gate(self._gate.learn(striping))

    def _take_echo(self, number: int) -> list[Command]:
        # On a handle that lost its activity, whatever it drains for, a settlement may have been too late to count.
        is_waiting = self._release is not None and self._release.phase is DrainPhase.WAIT
        if self._gate is None or is_waiting:
            return []
        return self._obey_gate(self._gate.reached(number))

    def _obey_gate(self, orders: list[GateOrder]) -> list[Command]:
        """Turn the gate's orders into commands. What a handle on its way out keeps goes back unsettled, and is judged
        again on the next handle."""
        if self.state in (FlowState.UNBOUND, FlowState.BINDING, FlowState.UNBINDING):
            return []
        is_finishing = self._release is None or self._release.phase is DrainPhase.FINISH
        commands: list[Command] = []
        for order in orders:
            match order:
                case Pass(delivery):
                    if is_finishing:
                        commands += self._dispatch(delivery)
                case Drop(delivery_id):
                    commands.append(Settle(self.epoch, delivery_id, Outcome.ACCEPTED))
                case Probe(number):
                    commands.append(ProbeSettlements(self.epoch, number))
                case Note():
                    commands.append(order)
                case _:
                    commands.append(TellStripes(order))
        return commands

    # -- giving the handle up

    def _request_stop(self, now_ms: int) -> list[Command]:
        if self._plan.is_leaving:
            return []
        self._plan.leave()
        match self.state:
            case FlowState.UNBOUND | FlowState.BINDING:
                # A bind is answered by BindSucceeded or BindRefused; their handling sees that a stop is wanted.
                return []
            case FlowState.STANDBY:
                return self._unbind(ReleaseCause.STOP, now_ms)
            case FlowState.ACTIVE:
                return self._start_drain(ReleaseCause.STOP, now_ms)
            case FlowState.DRAINING | FlowState.UNBINDING:
                self._current_release().stop_at(now_ms + self._settings.drain_timeout_ms)
                return []
            case _:
                assert_never(self.state)

    def _request_hand_back(self, move_id: str, now_ms: int) -> list[Command]:
        if self.state is not FlowState.ACTIVE:
            return [Note("handback_ignored", {"epoch": self.epoch, "move_id": move_id, "state": self.state.value})]
        return self._start_drain(ReleaseCause.HANDBACK, now_ms, move_id)

    def _start_drain(self, cause: ReleaseCause, now_ms: int, move_id: str = "") -> list[Command]:
        self.state = FlowState.DRAINING
        self._release = Release.draining(cause, self._settings, now_ms, move_id)
        commands: list[Command] = [StopIntake(self.epoch)] if self._in_flight.close_intake() else []
        return commands + self._unbind_if_drained(now_ms)

    def _advance_drain(self, now_ms: int) -> list[Command]:
        release = self._current_release()
        if release.drain_until_ms is None or now_ms < release.drain_until_ms:
            if self._in_flight and release.begin_look(now_ms):
                return [LookForStall(self.epoch)]
            return self._unbind_if_drained(now_ms)
        if release.cause is ReleaseCause.HANDBACK:
            return self._unbind_if_drained(now_ms) or self._keep_queue(release.move_id, now_ms)
        release.drain_until_ms = None
        commands: list[Command] = []
        if release.phase is DrainPhase.FINISH:
            release.phase = DrainPhase.WAIT
            commands += self._return_unstarted()
        # A rebind never cancels: the queue is given up when the running handlers have ended (L5).
        if release.cause is ReleaseCause.STOP and self._in_flight:
            commands.append(CancelHandling(self.epoch))
        return commands + self._unbind_if_drained(now_ms)

    def _end_stalled_drain(self, *, has_stopped: bool, now_ms: int) -> list[Command]:
        """End a hand-back although deliveries wait for another attempt: they go back with the queue. The intake is
        closed, so waiting for them would make every other key wait as well; the next owner tries them at once, in the
        same order. If the queue has stopped, any drain ends so: nothing of it will be tried again."""
        release = self._release
        if release is None or not self._in_flight or not release.end_stalled(now_ms, has_stopped=has_stopped):
            return []
        facts: dict[str, str | int] = {"epoch": self.epoch, "move_id": release.move_id, "in_flight": self.in_flight}
        name = "handback_stalled" if release.cause is ReleaseCause.HANDBACK else "stopped_drain_ended"
        return [Note(name, facts), ReturnUnstarted(self.epoch)]

    def _keep_queue(self, move_id: str, now_ms: int) -> list[Command]:
        """Give up a hand-back that takes too long, and go on as if it had not been requested; nothing is returned or
        cancelled."""
        self._release = None
        facts: dict[str, str | int] = {"epoch": self.epoch, "move_id": move_id, "in_flight": len(self._in_flight)}
        return [Note("handback_given_up", facts), *self._become_active(now_ms)]

    def _give_up_unasked(self, now_ms: int) -> list[Command]:
        release = self._release
        if release is None or release.cause is not ReleaseCause.HANDBACK:
            return self._lose_activity(now_ms)
        # A hand-back remains one: the queue goes to the same member as it would have.
        release.start_nothing_more()
        return self._return_unstarted() + self._unbind_if_drained(now_ms)

    def _lose_activity(self, now_ms: int) -> list[Command]:
        match self.state:
            case FlowState.STANDBY | FlowState.UNBINDING:
                return []
            case FlowState.ACTIVE:
                self.state = FlowState.DRAINING
                self._release = Release.waiting(ReleaseCause.INACTIVE, now_ms)
            case FlowState.DRAINING:
                if not self._current_release().lose_activity():
                    return []
            case FlowState.UNBOUND | FlowState.BINDING:
                raise InvariantViolated(f"{self.queue}: activity lost in state {self.state.value}")
            case _:
                assert_never(self.state)
        return self._return_unstarted() + self._unbind_if_drained(now_ms)

    def _lose_handle(self, reason: str, now_ms: int) -> list[Command]:
        if self.state is FlowState.UNBINDING:
            # The unbind will still be answered, and nothing is in flight.
            return []
        commands = self._return_unstarted()
        self._in_flight.outlive(self.epoch)
        self._release = None
        self.state = FlowState.UNBOUND
        self._plan.lose_handle(now_ms)
        return [*commands, Note("flow_lost", {"epoch": self.epoch, "reason": reason})]

    def _return_unstarted(self) -> list[Command]:
        return [ReturnUnstarted(self.epoch)] if self._in_flight else []

    def _unbind_if_drained(self, now_ms: int) -> list[Command]:
        release = self._current_release()
        if not release.is_drained(len(self._in_flight), now_ms):
            return []
        return self._unbind(release.cause, now_ms, release.move_id)

    def _unbind(self, cause: ReleaseCause, now_ms: int, move_id: str = "") -> list[Command]:
        self.state = FlowState.UNBINDING
        self._release = Release.waiting(cause, now_ms, move_id)
        self._plan.begin_unbind()
        return [Unbind(self.epoch, cause)]

    def _leave_handle(self, now_ms: int) -> list[Command]:
        self._plan.finish_unbind(self._current_release().cause, now_ms)
        self._release = None
        self.state = FlowState.UNBOUND
        return []

    def _current_release(self) -> Release:
        if self._release is None:
            raise InvariantViolated(f"{self.queue}: no release in state {self.state.value}")
        return self._release
