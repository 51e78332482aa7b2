"""The life of one member's flow on one queue: bind, become active, give way, drain, unbind, and again.

One machine per queue, driven by its flow runner, from one task: `handle` for every event, `on_deadline` when
`deadline_ms` has come. Commands are carried out in the order given.

Law L4 here: an epoch is one flow handle. While the handle lives, whatever it delivered is settled on it, also
after an outage. What has not been started when activity is lost must not be started any more: another member may have
been fed the same messages, and their successors, in the meantime. Nor may the handle then be kept: the client never
shows a message twice on one handle, so what we hold unstarted would be neither shown again nor removed. So the handle
is given up as soon as nothing of it is running, and a new one is bound, and starts with what is unsettled by then.

A handle that dies takes its settlements with it: they are fenced here, never sent. Handlers that still run are not
waited for; the lane of their key keeps a redelivered message behind them (L2).
"""

from typing import assert_never

from lbg_runtime.core.chance import RandomSource
from lbg_runtime.core.commands import (
    Bind,
    CancelHandling,
    Command,
    Dispatch,
    Note,
    ReturnUnstarted,
    Settle,
    StartIntake,
    StopIntake,
    Unbind,
)
from lbg_runtime.core.events import (
    BindRefused,
    BindSucceeded,
    FlowActive,
    FlowDown,
    FlowEvent,
    FlowInactive,
    HandlingFinished,
    MachineEvent,
    MessageReceived,
    ReleaseCause,
    StopRequested,
    UnbindFinished,
)
from lbg_runtime.core.flow_table import KIND_OF_EVENT, TRANSITIONS, EventKind, FlowState
from lbg_runtime.core.in_flight import InFlight
from lbg_runtime.core.rebind import RebindSettings, bind_backoff_ms, rebind_delay_ms, rebind_pause_ms
from lbg_runtime.core.release import DrainPhase, Release
from lbg_runtime.core.roles import Role
from lbg_runtime.model.errors import InvariantViolated
from lbg_runtime.model.ids import DeliveryId, Epoch, QueueName
from lbg_runtime.model.message import Delivery
from lbg_runtime.model.outcome import Outcome, Settlement

__all__ = ["FlowMachine", "FlowState"]


class FlowMachine:
    """Decides everything about one flow; does nothing itself. See the module's text for who calls and for the rules."""

    def __init__(
        self,
        queue: QueueName,
        role: Role,
        settings: RebindSettings,
        max_in_flight: int,
        random: RandomSource,
        now_ms: int,
    ) -> None:
        self.queue = queue
        self.role = role
        self.state = FlowState.UNBOUND
        self.epoch = Epoch(0)
        """Of the newest handle; 0 before the first bind."""
        self._settings = settings
        self._random = random
        self._in_flight = InFlight(max_in_flight)
        self._early: list[FlowEvent] = []
        """Reported by a flow whose bind was not yet known to be done."""
        self._bind_at_ms: int | None = now_ms
        self._bound_at_ms = now_ms
        self._rebind_at_ms: int | None = None
        self._failed_binds = 0
        self._release: Release | None = None
        self._stop_requested = False

    # -- what a runner reads

    @property
    def in_flight(self) -> int:
        """Deliveries of the current handle that were dispatched and have not been answered."""
        return len(self._in_flight)

    @property
    def cause(self) -> ReleaseCause | None:
        """Why the handle is being given up; None unless DRAINING or UNBINDING."""
        return self._release.cause if self._release else None

    @property
    def is_stopped(self) -> bool:
        """Whether the flow is unbound for good. Handlers of a handle that died may still be running."""
        return self._stop_requested and self.state is FlowState.UNBOUND

    @property
    def deadline_ms(self) -> int | None:
        """When `on_deadline` must be called next, on the clock of `now_ms`; None to wait for an event."""
        match self.state:
            case FlowState.UNBOUND:
                return self._bind_at_ms
            case FlowState.ACTIVE:
                return self._rebind_at_ms
            case FlowState.DRAINING:
                return self._current_release().deadline_ms(len(self._in_flight))
            case FlowState.BINDING | FlowState.STANDBY | FlowState.UNBINDING:
                return None
            case _:
                assert_never(self.state)

    # -- what a runner calls

    def handle(self, event: MachineEvent, now_ms: int) -> list[Command]:
        """Take one event; return what to do. Raises `InvariantViolated` for an event that cannot happen."""
        commands = self._step(event, now_ms)
        if self._early and self.state is not FlowState.BINDING:
            early, self._early = self._early, []
            for flow_event in early:
                commands += self._step(flow_event, now_ms)
        return commands

    def on_deadline(self, now_ms: int) -> list[Command]:
        """Act on the deadline if it has come; being called too early does no harm."""
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
        self._check_transition(before, EventKind.DEADLINE)
        return commands

    # -- one step

    def _step(self, event: MachineEvent, now_ms: int) -> list[Command]:
        kind = KIND_OF_EVENT[type(event)]
        if self._is_late(event):
            return [self._note_late(event, kind)]
        before = self.state
        if kind not in TRANSITIONS[before]:
            raise InvariantViolated(f"{self.queue}: {kind.value} in state {before.value}, epoch {self.epoch}")
        commands = self._react(event, now_ms)
        self._check_transition(before, kind)
        return commands

    def _check_transition(self, before: FlowState, kind: EventKind) -> None:
        if self.state not in TRANSITIONS[before][kind]:
            raise InvariantViolated(f"{self.queue}: {kind.value} led from {before.value} to {self.state.value}")

    def _is_late(self, event: MachineEvent) -> bool:
        """Whether the event speaks of a handle that is gone. A handle is gone when the flow is unbound."""
        if isinstance(event, StopRequested):
            return False
        epoch = event.delivery.epoch if isinstance(event, MessageReceived) else event.epoch
        if epoch > self.epoch:
            raise InvariantViolated(f"{self.queue}: an event of epoch {epoch}, the newest bind is {self.epoch}")
        if isinstance(event, HandlingFinished):
            # Deliveries are remembered one by one, so that a second answer is found out in any epoch.
            return self._in_flight.has_outlived(epoch, event.delivery_id)
        flow_is_gone = self.state is FlowState.UNBOUND and isinstance(event, FlowEvent)
        return epoch < self.epoch or flow_is_gone

    def _note_late(self, event: MachineEvent, kind: EventKind) -> Note:
        if isinstance(event, HandlingFinished):
            self._in_flight.answer_outlived(event.epoch, event.delivery_id)
            name = "settlement_fenced" if event.outcome else "handling_abandoned"
            return Note(name, {"epoch": event.epoch, "delivery_id": event.delivery_id})
        return Note(f"{kind.value}_late", {"epoch": self.epoch})

    def _react(self, event: MachineEvent, now_ms: int) -> list[Command]:
        if self.state is FlowState.BINDING and isinstance(event, FlowEvent):
            self._early.append(event)
            return []
        match event:
            case MessageReceived(delivery):
                return self._receive(delivery, now_ms)
            case FlowActive():
                if self.state is FlowState.STANDBY:
                    self._become_active(now_ms)
                # In any other state it is old news, or activity of a handle that is being given up.
                return []
            case FlowInactive():
                return self._lose_activity(now_ms)
            case FlowDown(_, reason):
                return self._lose_handle(reason, now_ms)
            case BindSucceeded():
                return self._enter_standby(now_ms)
            case BindRefused(_, reason, permanent):
                return self._wait_for_next_bind(reason, permanent=permanent, now_ms=now_ms)
            case UnbindFinished():
                self._leave_handle(now_ms)
                return []
            case HandlingFinished(_, delivery_id, outcome):
                return self._finish(delivery_id, outcome, now_ms)
            case StopRequested():
                return self._request_stop(now_ms)
            case _:
                assert_never(event)

    # -- binding

    def _bind(self) -> list[Command]:
        self.epoch = Epoch(self.epoch + 1)
        self.state = FlowState.BINDING
        self._bind_at_ms = None
        self._in_flight.start_handle()
        return [Bind(self.epoch)]

    def _enter_standby(self, now_ms: int) -> list[Command]:
        self._bound_at_ms = now_ms
        self.state = FlowState.STANDBY
        if self._stop_requested:
            return self._unbind(ReleaseCause.STOP, now_ms)
        return []

    def _wait_for_next_bind(self, reason: str, *, permanent: bool, now_ms: int) -> list[Command]:
        self.state = FlowState.UNBOUND
        self._failed_binds += 1
        wait_ms = bind_backoff_ms(self._settings, self._failed_binds, self._random, permanent=permanent)
        self._bind_at_ms = None if self._stop_requested else now_ms + wait_ms
        name = "bind_refused" if permanent else "bind_failed"
        return [Note(name, {"epoch": self.epoch, "reason": reason, "failed_binds": self._failed_binds})]

    def _become_active(self, now_ms: int) -> None:
        self.state = FlowState.ACTIVE
        # The cycle starts with activity: a standby has nothing to give, and a primary is where it belongs.
        if self.role is Role.SECONDARY:
            self._rebind_at_ms = now_ms + rebind_delay_ms(self._settings, self._random)

    # -- deliveries

    def _receive(self, delivery: Delivery, now_ms: int) -> list[Command]:
        commands: list[Command] = []
        if self.state is FlowState.STANDBY:
            # Only an active flow is fed. The client may report activity on another thread, after the first messages.
            self._become_active(now_ms)
            commands.append(Note("flow_activated_by_message", {"epoch": self.epoch}))
        if self._release is not None:
            if self.state is FlowState.UNBINDING or self._release.phase is not DrainPhase.FINISH:
                facts = {"epoch": self.epoch, "delivery_id": delivery.delivery_id}
                return [Note("delivery_left_unstarted", facts)]
            self._release.quiet_at_ms = now_ms + self._settings.quiet_gap_ms
        self._in_flight.add(delivery.delivery_id)
        commands.append(Dispatch(delivery))
        if self._in_flight.close_intake(only_if_full=True):
            commands.append(StopIntake(self.epoch))
        return commands

    def _finish(self, delivery_id: DeliveryId, outcome: Outcome | None, now_ms: int) -> list[Command]:
        self._in_flight.answer(delivery_id)
        commands: list[Command] = []
        if outcome is not None:
            commands.append(Settle(Settlement(self.queue, self.epoch, delivery_id, outcome)))
        if outcome is None and (self._release is None or self._release.phase is DrainPhase.FINISH):
            # Nobody asked for it back, so a handler was cancelled from outside. It cannot be shown again on this
            # handle, and no successor of its key may be settled before it (L3): give the handle up.
            facts = {"epoch": self.epoch, "delivery_id": delivery_id}
            return [Note("handling_abandoned", facts), *self._lose_activity(now_ms)]
        if self.state is FlowState.DRAINING:
            return commands + self._unbind_if_drained(now_ms)
        if self._in_flight.open_intake():
            commands.append(StartIntake(self.epoch))
        return commands

    # -- giving the handle up

    def _request_stop(self, now_ms: int) -> list[Command]:
        if self._stop_requested:
            return []
        self._stop_requested = True
        match self.state:
            case FlowState.UNBOUND:
                self._bind_at_ms = None
                return []
            case FlowState.BINDING:
                # Answered by BindSucceeded or BindRefused, which then see that a stop is wanted.
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

    def _start_drain(self, cause: ReleaseCause, now_ms: int) -> list[Command]:
        self.state = FlowState.DRAINING
        self._release = Release(
            cause,
            DrainPhase.FINISH,
            drain_until_ms=now_ms + self._settings.drain_timeout_ms,
            quiet_at_ms=now_ms + self._settings.quiet_gap_ms,
        )
        commands: list[Command] = [StopIntake(self.epoch)] if self._in_flight.close_intake(only_if_full=False) else []
        return commands + self._unbind_if_drained(now_ms)

    def _advance_drain(self, now_ms: int) -> list[Command]:
        release = self._current_release()
        if release.drain_until_ms is None or now_ms < release.drain_until_ms:
            return self._unbind_if_drained(now_ms)
        release.drain_until_ms = None
        commands: list[Command] = []
        if release.phase is DrainPhase.FINISH:
            release.phase = DrainPhase.WAIT
            commands += self._return_unstarted()
        # A rebind never cancels: the queue is given up when what runs has ended (L5).
        if release.cause is ReleaseCause.STOP and self._in_flight:
            commands.append(CancelHandling(self.epoch))
        return commands + self._unbind_if_drained(now_ms)

    def _lose_activity(self, now_ms: int) -> list[Command]:
        match self.state:
            case FlowState.STANDBY | FlowState.UNBINDING:
                return []
            case FlowState.ACTIVE:
                self.state = FlowState.DRAINING
                self._release = Release(ReleaseCause.INACTIVE, DrainPhase.WAIT, drain_until_ms=None, quiet_at_ms=now_ms)
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
            # The unbind is answered all the same, and nothing is in flight.
            return []
        commands = self._return_unstarted()
        self._in_flight.outlive(self.epoch)
        self._release = None
        self._rebind_at_ms = None
        self.state = FlowState.UNBOUND
        # A handle that dies young counts as one more failure, or a flow that dies after each bind would be bound again
        # and again without rest.
        if now_ms - self._bound_at_ms >= self._settings.bind_backoff_max_ms:
            self._failed_binds = 0
        self._failed_binds += 1
        wait_ms = bind_backoff_ms(self._settings, self._failed_binds, self._random, permanent=False)
        self._bind_at_ms = None if self._stop_requested else now_ms + wait_ms
        return [*commands, Note("flow_lost", {"epoch": self.epoch, "reason": reason})]

    def _return_unstarted(self) -> list[Command]:
        return [ReturnUnstarted(self.epoch)] if self._in_flight else []

    def _unbind_if_drained(self, now_ms: int) -> list[Command]:
        release = self._current_release()
        if not release.is_drained(len(self._in_flight), now_ms):
            return []
        return self._unbind(release.cause, now_ms)

    def _unbind(self, cause: ReleaseCause, now_ms: int) -> list[Command]:
        self.state = FlowState.UNBINDING
        self._release = Release(cause, DrainPhase.WAIT, drain_until_ms=None, quiet_at_ms=now_ms)
        self._rebind_at_ms = None
        # The handle served until its orderly end, so earlier failures are history.
        self._failed_binds = 0
        return [Unbind(self.epoch, cause)]

    def _leave_handle(self, now_ms: int) -> None:
        cause = self._current_release().cause
        self._release = None
        self.state = FlowState.UNBOUND
        match cause:
            case ReleaseCause.STOP:
                self._bind_at_ms = None
            case ReleaseCause.REBIND:
                self._bind_at_ms = now_ms + rebind_pause_ms(self._settings, self._random)
            case ReleaseCause.INACTIVE | ReleaseCause.DOWN:
                self._bind_at_ms = now_ms
            case _:
                assert_never(cause)

    def _current_release(self) -> Release:
        if self._release is None:
            raise InvariantViolated(f"{self.queue}: no release in state {self.state.value}")
        return self._release
