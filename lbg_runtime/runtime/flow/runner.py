"""Feeds one flow machine its events and deadlines, and carries out its commands. The only place that calls `settle`.

Events are taken in batches: the first to be posted asks for a turn, and in its turn the runner takes all that have
gathered. Within a batch the order is fixed, so that a SIGKILL at any moment leaves a journal that is true: first the
machine's answers to every event, then one write of the batch's records, then the batch's settlements. Binds and unbinds
run as tasks of their own, which start after the batch, so that an unbind always comes after the settlements that were
ordered before it. A message that arrives while nothing else waits, and that leads only to its dispatch, is dispatched
at once: it would be the first of the next batch.

More than 400 lines, because all commands of the machine are carried out here, on the same few variables.
"""

import asyncio
from collections import deque
from functools import partial
from typing import assert_never

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
    FlowInactive,
    HandlingFinished,
    HandlingStalled,
    MachineEvent,
    MessageReceived,
    ReleaseCause,
    StepAsideRequested,
    StopRequested,
    UnbindFinished,
)
from lbg_runtime.core.flow.machine import FlowMachine
from lbg_runtime.core.flow.table import FlowState
from lbg_runtime.core.group.control_plane import ProbeAsked
from lbg_runtime.core.restripe.news import ShardLeft
from lbg_runtime.model.errors import BindFailed, InvariantViolated
from lbg_runtime.model.failure import Then
from lbg_runtime.model.ids import DeliveryId, Epoch
from lbg_runtime.model.message import Delivery
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.runtime.clock import DeadlineTimer, now_ms
from lbg_runtime.runtime.dispatch.dispatcher import Dispatcher
from lbg_runtime.runtime.flow.owner import FlowOwner
from lbg_runtime.runtime.flow.records import FlowRecords
from lbg_runtime.runtime.handlers.hooks import QueueHooks
from lbg_runtime.runtime.journal import MemberJournal
from lbg_runtime.runtime.meters import MemberMeters
from lbg_runtime.runtime.parking.parked_queue import ParkedQueue
from lbg_runtime.runtime.runners.handling import Handling, facts_of
from lbg_runtime.runtime.turns import Turns
from lbg_runtime.transport.base import BoundFlow, Transport

MAX_BATCH = 256
"""Events taken before other tasks get a turn."""

OLD_NEWS_MS = 5_000
"""How long after a stop of the process an event may still be from before it: what the client had received by then may
take so long to reach the loop."""

# Looked up once: before Python 3.12, access to an enum member costs as much as a function call.
_ACCEPTED = Outcome.ACCEPTED


class FlowRunner:
    """One per queue of a member. `post` and `finish_handling` are called from the loop's thread, `run` once."""

    # With a thousand queues, little of a runner's state stays in the CPU caches between two of its messages; slots lie
    # close together in memory.
    __slots__ = (
        "_children",
        "_closing_shards",
        "_deadline_may_differ",
        "_dispatcher",
        "_events",
        "_flow",
        "_flow_epoch",
        "_flushes",
        "_has_hooks",
        "_hooks",
        "_inactive_epoch",
        "_is_asked",
        "_is_busy",
        "_journal",
        "_over",
        "_owner",
        "_parking",
        "_probes",
        "_records",
        "_settled",
        "_settlements",
        "_stop_requested",
        "_timer",
        "_transport",
        "_turns",
        "handled",
        "is_released",
        "is_unheard",
        "left_behind",
        "machine",
        "queue_index",
        "unanswered",
        "why_unbound",
    )

    def __init__(
        self,
        queue_index: int,
        machine: FlowMachine,
        transport: Transport,
        dispatcher: Dispatcher,
        journal: MemberJournal,
        turns: Turns,
        owner: FlowOwner,
        hooks: QueueHooks,
        parking: ParkedQueue | None = None,
    ) -> None:
        """`turns` are the member's: they write the records of a batch to the journal before its settlements are sent.

        `parking`: where messages of the queue may be parked; with it, the intake opens when everything parked is known.
        """
        self.queue_index = queue_index
        self.machine = machine
        self.handled = 0
        """Deliveries settled as accepted."""
        self.left_behind = 0
        """Deliveries that ended without a settlement since a stop was requested; they come again, here or elsewhere."""
        self.is_released = False
        """Whether the newest handle ended because we unbound it: the broker has confirmed that, and had not taken the
        queue away before."""
        self.is_unheard = False
        """Whether the broker left an unbind unanswered since a stop was requested: what was settled before the unbind
        may come again."""
        self.unanswered = 0
        """Dispatched deliveries, replays included, whose end has not been taken yet."""
        self.why_unbound: str | None = None
        """Why it has no handle: the last bind failed, or the handle was lost; None otherwise."""
        self._transport = transport
        self._dispatcher = dispatcher
        self._journal = journal
        self._records = FlowRecords(queue_index, machine, journal)
        self._owner = owner
        self._hooks = hooks
        self._has_hooks = bool(hooks)
        self._parking = parking
        self._flushes: list[asyncio.Future[None]] = []
        self._children = asyncio.TaskGroup()
        self._probes: list[ProbeAsked] = []
        self._events: deque[MachineEvent | Handling | asyncio.Future[None]] = deque()
        self._turns = turns
        self._over: asyncio.Future[None] | None = None
        """Its result ends `run`; None while that does not run, and events wait."""
        self._is_asked = False
        self._is_busy = True
        """New events must wait for their turn: a batch is being taken, or there will be no more."""
        self._deadline_may_differ = True
        self._timer = DeadlineTimer(self._deadline_reached)
        self._flow: BoundFlow | None = None
        self._flow_epoch = Epoch(0)
        self._closing_shards = frozenset[int | None]()
        """As last told to those who gather batches."""
        self._settlements: list[tuple[Epoch, DeliveryId, Outcome]] = []
        self._settled: list[Handling] = []
        self._stop_requested = False
        self._inactive_epoch = Epoch(0)
        """The newest epoch that has lost its activity."""
        dispatcher.attach(machine.queue, self.finish_handling, self.hold_up)

    @property
    def was_bound(self) -> bool:
        """Whether a bind of this flow ever succeeded."""
        return self._flow is not None

    def post(self, event: MachineEvent) -> None:
        """Take an event: from the transport, from the runner's own tasks, or a `FlowRequest` of the control plane."""
        # Later events are taken together with the first.
        if not self._events:
            if not self._is_busy and isinstance(event, MessageReceived) and self._takes_at_once(event.delivery):
                return
            self._ask_for_turn()
        self._events.append(event)

    def finish_handling(self, handling: Handling) -> None:
        """Take the end of a delivery, from the dispatcher."""
        if not self._events:
            self._ask_for_turn()
        self._events.append(handling)

    def hold_up(self, epoch: Epoch, delivery_ids: tuple[DeliveryId, ...]) -> None:
        """Learn from the dispatcher that nobody knows when these deliveries will be handled; some may have ended."""
        self.post(DeliveriesHeldUp(epoch, delivery_ids))

    def give_handle_up(self) -> None:
        """Start nothing more on the present handle, and bind a new one: another member may have the queue by now.

        A standby keeps its handle, unless it hears in the next `OLD_NEWS_MS` that it is fed.
        """
        if self._parking is not None:
            self._parking.give_up()
        queue, epoch = self.machine.queue, self.machine.epoch
        if self.machine.state in (FlowState.ACTIVE, FlowState.DRAINING):
            # This holds also for messages that have arrived but were not dispatched yet.
            self._dispatcher.stop(queue, epoch)
            self.post(FlowInactive(epoch))
        elif self.machine.state in (FlowState.BINDING, FlowState.STANDBY):
            # News that it is fed may be from before the stop: it may still be in the client, or in a batch that has not
            # been taken. So this goes before all events that wait.
            if not self._events:
                self._ask_for_turn()
            self._events.appendleft(StepAsideRequested(now_ms() + OLD_NEWS_MS))

    def flush(self) -> "asyncio.Future[None]":
        """Return a future that is done when all events posted until now are taken and their settlements are sent."""
        flushed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not self._events:
            self._ask_for_turn()
        self._events.append(flushed)
        return flushed

    def replay(self, delivery: Delivery) -> None:
        """Have a parked message handled; `replay_ended` is called with its end, whatever that is."""
        self._count_replay(delivery.epoch, 1)
        self._dispatcher.dispatch(delivery)

    def replay_ended(self, handling: Handling) -> None:
        """Take the end of a replay: the hooks, and the end of `run`, wait for the end of everything that is handled."""
        self._count_replay(handling.epoch, -1)
        # A replay that has failed here is not left behind: its message stays parked.
        has_failed = hasattr(handling, "last_error")
        if handling.outcome is None and handling.attempts and self._stop_requested and not has_failed:
            self.left_behind += 1
        self._ask_for_turn()

    def _count_replay(self, epoch: Epoch, change: int) -> None:
        self.unanswered += change
        self._hooks.count(epoch, change)

    def replayed(self, handling: Handling, *, is_settled: bool) -> None:
        """Record the handling of a parked message; `is_settled`: it is about to be settled in the parking queue."""
        # After the epoch has ended, it may still be settled there; but the journal of this queue must not say so.
        has_flow = self.machine.epoch == handling.epoch and self.machine.state is not FlowState.UNBOUND
        is_settled &= has_flow
        self._journal.handled(self.queue_index, handling, is_settled=is_settled)
        self._journal.flush()
        if is_settled:
            self.handled += 1
            self._owner.settled(self, handling)

    def stop(self) -> None:
        """Make the flow leave for good; `run` then ends. Idempotent."""
        self._stop_requested = True
        self.post(StopRequested())

    async def run(self) -> None:
        """Run until stopped, unbound, and every dispatched delivery has ended."""
        self._over = over = asyncio.get_running_loop().create_future()
        try:
            async with self._children:
                self._is_busy = False
                self._ask_for_turn()
                # Batches are callbacks of the loop, not steps of this task: to wake a task costs as much as to take a
                # message, and with many queues a batch seldom has more than one.
                await over
        finally:
            self._is_busy = True
            self._over = None
            self._timer.cancel()

    # -- turns

    def _ask_for_turn(self) -> None:
        if self._over is not None and not self._is_asked:
            self._is_asked = True
            self._turns.ask(self)

    def _takes_at_once(self, delivery: Delivery) -> bool:
        try:
            if not self.machine.admit(delivery):
                return False
            self._dispatch(delivery)
        except Exception as error:  # noqa: BLE001 - it ends the runner, and not the transport
            self.fail(error)
        return True

    def take(self, now_ms: int) -> None:
        """See `Taker.take`."""
        self._is_asked = False
        over = self._over
        if over is None or over.done():
            return
        self._is_busy = True
        try:
            self._take_batch(now_ms)
        except BaseException as error:
            self.fail(error)
            if isinstance(error, SystemExit | KeyboardInterrupt):
                raise
        else:
            self._is_busy = False

    def conclude(self) -> None:
        """See `Taker.conclude`."""
        over = self._over
        if over is None or over.done():
            return
        try:
            self._send_settlements()
        except BaseException as error:
            self.fail(error)
            if isinstance(error, SystemExit | KeyboardInterrupt):
                raise
            return
        if self.machine.is_stopped and self.unanswered == 0:
            over.set_result(None)
        elif self._events:
            self._ask_for_turn()

    def fail(self, error: BaseException) -> None:
        """See `Taker.fail`: ends the runner."""
        self._is_busy = True
        if self._over is not None and not self._over.done():
            self._over.set_exception(error)

    # -- one batch

    def _take_batch(self, now: int) -> None:
        events, admit = self._events, self.machine.admit
        for _ in range(min(len(events), MAX_BATCH)):
            event = events.popleft()
            if isinstance(event, Handling):
                self._take_end(event, now)
            elif isinstance(event, MessageReceived) and admit(event.delivery):
                self._dispatch(event.delivery)
            elif isinstance(event, asyncio.Future):
                self._flushes.append(event)
            else:
                self._take_event(event, now)
        if self._deadline_may_differ:
            self._deadline_may_differ = False
            self._watch_deadline(now)
            self._tell_closing_shards()
        if self._has_hooks:
            has_flow = self.machine.state is not FlowState.UNBOUND
            self._hooks.end_all_but(self.machine.epoch if has_flow else None)

    def _watch_deadline(self, now: int) -> None:
        deadline_ms = self.machine.deadline_ms
        if deadline_ms is not None and deadline_ms <= now:
            before = self.machine.state
            commands = self.machine.on_deadline(now)
            self._state_changed(before)
            self._carry_out(commands)
            deadline_ms = self.machine.deadline_ms
        self._timer.set(deadline_ms)

    def _tell_closing_shards(self) -> None:
        machine = self.machine
        if (closing := machine.closing_shards) != self._closing_shards:
            self._closing_shards = closing
            self._dispatcher.batch_turns.move(machine.queue, machine.epoch, closing)

    def _deadline_reached(self) -> None:
        self._deadline_may_differ = True
        self._ask_for_turn()

    def _take_event(self, event: MachineEvent, now: int) -> None:
        if isinstance(event, HandlingStalled) and not self._dispatcher.is_stalled(self.machine.queue, event.epoch):
            return
        before, cause = self.machine.state, self.machine.cause
        self._deadline_may_differ = True
        commands = self.machine.handle(event, now)
        match event:
            case BindSucceeded():
                self.why_unbound = None
                self._records.changed("bound")
            case BindRefused(_, reason):
                self.why_unbound = f"bind refused: {reason}"
            case FlowInactive(epoch) if epoch == self.machine.epoch and before in (
                FlowState.ACTIVE,
                FlowState.DRAINING,
                # A replay may still be running.
                FlowState.UNBINDING,
            ):
                self._records.changed("inactive")
                self._inactive_epoch = epoch
            case UnbindFinished(epoch, is_confirmed):
                self.is_released = is_confirmed and epoch != self._inactive_epoch
                self._take_release(epoch, cause, is_confirmed=is_confirmed)
            case _:
                pass
        self._state_changed(before)
        self._carry_out(commands)
        if isinstance(event, BindRefused) and event.permanent and not self.was_bound:
            # Last: it may stop the member.
            self._owner.bind_refused(self, BindFailed(self.machine.queue, event.reason, permanent=True))

    def _take_release(self, epoch: Epoch, cause: ReleaseCause | None, *, is_confirmed: bool) -> None:
        # An unbind that was not answered before the member was asked to leave says nothing about how it leaves.
        self.is_unheard = not is_confirmed and self._stop_requested
        # After a loss of activity, the record of a release claims nothing about settlements, confirmed or not. The same
        # cause without such a loss means that a delivery ended without an outcome: then the answer matters.
        if is_confirmed or (cause is ReleaseCause.INACTIVE and epoch == self._inactive_epoch):
            self._records.changed("released", cause)
        else:
            self._records.unanswered(cause)

    def _take_end(self, handling: Handling, now: int) -> None:
        self.unanswered -= 1
        delivery, outcome = handling.delivery, handling.outcome
        epoch, delivery_id = delivery.epoch, delivery.delivery_id
        if self._has_hooks:
            self._hooks.count(epoch, -1)
        if outcome is _ACCEPTED and self.machine.accept(epoch, delivery_id):
            self._settlements.append((epoch, delivery_id, outcome))
            is_settled = True
        else:
            before = self.machine.state
            settlement_count = len(self._settlements)
            self._deadline_may_differ = True
            commands = self.machine.handle(HandlingFinished(epoch, delivery_id, outcome), now)
            self._state_changed(before)
            self._carry_out(commands, ended=handling)
            is_settled = len(self._settlements) > settlement_count
        report = handling.end_report
        if report is not None and report.then is Then.PARK and is_settled:
            # It has not been handled yet: its replay is recorded instead.
            return
        self._journal.handled(self.queue_index, handling, is_settled=is_settled)
        if is_settled:
            self.handled += 1
            self._settled.append(handling)
        elif self._stop_requested:
            self.left_behind += 1

    def _dispatch(self, delivery: Delivery) -> None:
        epoch, delivery_id = delivery.epoch, delivery.delivery_id
        self.unanswered += 1
        if self._has_hooks:
            self._hooks.count(epoch, 1)
        if self._dispatcher.dispatch(delivery) and not self.machine.excuse(epoch, delivery_id):
            # After the present commands: one of them may close the intake, and this may open it.
            self.hold_up(epoch, (delivery_id,))

    def _carry_out(self, commands: list[Command], *, ended: Handling | None = None) -> None:
        """`ended`: the handling that the commands answer, if any."""
        for command in commands:
            match command:
                case Dispatch(delivery):
                    self._dispatch(delivery)
                case Settle(epoch, delivery_id, outcome):
                    self._settlements.append((epoch, delivery_id, outcome))
                case Bind(epoch):
                    self._children.create_task(self._bind(epoch))
                case Unbind(epoch, _):
                    self._children.create_task(self._unbind(epoch))
                case StopIntake():
                    self._bound_flow().stop_intake()
                case StartIntake(epoch):
                    self._start_intake(epoch)
                case ReturnUnstarted(epoch):
                    self._dispatcher.return_unstarted(self.machine.queue, epoch)
                case LookForStall(epoch):
                    # Posted, so that the look comes after the ends and arrivals that the machine does not know yet.
                    self.post(HandlingStalled(epoch))
                case CancelHandling(epoch):
                    self._dispatcher.cancel_handling(self.machine.queue, epoch)
                case ProbeSettlements(epoch, number):
                    self._probes.append(ProbeAsked(self.machine.queue, epoch, number))
                case TellStripes(news):
                    if isinstance(news, ShardLeft):
                        # The shard's keys are now with the owner of the other queue. If they come back, perhaps within
                        # this epoch, their next messages are the first again.
                        self._dispatcher.forget_keys(self.machine.queue)
                    self._journal.stripes(self.queue_index, self.machine.epoch, news)
                    self._owner.stripes_told(self, news)
                case Note("handling_abandoned", facts) if ended is not None:
                    self._records.noted("handling_abandoned", {**facts_of(ended), **facts})
                case Note(name, facts):
                    if name == "flow_lost":
                        self.why_unbound = f"flow lost: {facts['reason']}"
                    self._records.noted(name, facts)
                case _:
                    assert_never(command)

    def _send_settlements(self) -> None:
        if self._settlements:
            self._settle(self._bound_flow())
        if self._probes:
            self._bound_flow().flush()
            probes, self._probes = self._probes, []
            for probe in probes:
                self._owner.probe_asked(probe)
        if self._flushes:
            self._bound_flow().flush()
            for flushed in self._flushes:
                if not flushed.done():
                    flushed.set_result(None)
            self._flushes.clear()

    def _settle(self, flow: BoundFlow) -> None:
        for epoch, delivery_id, outcome in self._settlements:
            if epoch != self._flow_epoch:
                raise InvariantViolated(
                    f"{self.machine.queue}: a settlement of another epoch was about to be sent (L4)"
                )
            flow.settle(delivery_id, outcome)
        self._settlements.clear()
        for handling in self._settled:
            self._owner.settled(self, handling)
        self._settled.clear()

    def _start_intake(self, epoch: Epoch) -> None:
        """Open the intake. At the start of an epoch, this waits for the end of `on_assigned`, and until everything
        parked is known; nothing arrives before the intake is open."""
        # The flow may be draining by now, or gone. If it is active, its intake is still wanted: before the first
        # arrival, the machine has no reason to close it.
        if self.machine.epoch != epoch or self.machine.state is not FlowState.ACTIVE:
            return
        for gate in (self._hooks, self._parking):
            if gate is not None and not gate.open_for(epoch, self._children, partial(self._start_intake, epoch)):
                return
        self._bound_flow().start_intake()

    # -- binding

    async def _bind(self, epoch: Epoch) -> None:
        try:
            self._flow = await self._transport.bind(self.machine.queue, epoch, self.post)
        except BindFailed as error:
            self.post(BindRefused(epoch, error.reason, error.permanent))
        else:
            self._flow_epoch = epoch
            self.post(BindSucceeded(epoch))

    async def _unbind(self, epoch: Epoch) -> None:
        # The parking queue first, so that the next owner finds it free, and because replays belong to this epoch.
        has_left = self._parking is None or await self._parking.leave(epoch)
        is_confirmed = await self._bound_flow().unbind()
        self.post(UnbindFinished(epoch, is_confirmed and has_left))

    def _bound_flow(self) -> BoundFlow:
        # Only the next bind replaces it. So commands of a batch in which the handle died still find it; they do nothing
        # there.
        if self._flow is None:
            raise InvariantViolated(f"{self.machine.queue}: an order for a flow that was never bound")
        return self._flow

    def _state_changed(self, before: FlowState) -> None:
        after = self.machine.state
        if after is before:
            return
        cause = self.machine.cause
        if before is FlowState.ACTIVE and cause is not None and cause.is_in_good_order:
            self._dispatcher.batch_turns.leave(self.machine.queue, self.machine.epoch)
            self._hooks.drain(self.machine.epoch)
        elif after in (FlowState.ACTIVE, FlowState.UNBOUND):
            self._dispatcher.batch_turns.stay(self.machine.queue)
        if self._journal.meters is not None:
            self._watch_first_start(self._journal.meters, before)
        if after is FlowState.ACTIVE:
            # Recorded also when a hand-back was given up, as the last record said that the flow was draining.
            self._records.changed("active")
        elif after is FlowState.DRAINING:
            self._records.changed("draining", cause)
        self._owner.flow_changed(self)
        if self._parking is not None:
            self._parking.follow(self.machine.epoch, after)

    def _watch_first_start(self, meters: MemberMeters, before: FlowState) -> None:
        queue, after = self.machine.queue, self.machine.state
        if after is FlowState.ACTIVE and before is not FlowState.DRAINING:
            told = partial(meters.first_started, self.queue_index)
            self._dispatcher.tell_first_start(queue, self.machine.epoch, told)
        elif after is FlowState.UNBOUND:
            self._dispatcher.tell_no_start(queue)
