"""One life of one member: real flow machines and key lanes, modelled handlers.

One file of more than 400 lines, because it is the whole shell of a member, which in runtime/ is a package.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from lbg_runtime.config.rebind_mode import RebindMode
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
    DeliveriesHeldUp,
    FlowDown,
    FlowInactive,
    FlowRequest,
    HandlingFinished,
    HandlingStalled,
    MachineEvent,
    MessageReceived,
    SettlementsReached,
    StepAsideRequested,
    StopRequested,
)
from lbg_runtime.core.flow.machine import FlowMachine
from lbg_runtime.core.flow.table import FlowState
from lbg_runtime.core.group.control_plane import ProbeAsked
from lbg_runtime.core.group.rebalance import AWAY
from lbg_runtime.core.lanes import Lane, LaneKey
from lbg_runtime.core.restripe.records import record_prefix
from lbg_runtime.core.roles import CountedPlace, Place
from lbg_runtime.model.errors import InvariantViolated
from lbg_runtime.model.ids import DeliveryId, Epoch, QueueName
from lbg_runtime.model.message import Delivery
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.sim.broker import CONTROL_TOPIC, SimBroker
from lbg_runtime.sim.chance import SeededChance
from lbg_runtime.sim.client import SimClient
from lbg_runtime.sim.clock import DriftingClock
from lbg_runtime.sim.control import SimControl, make_control_machine
from lbg_runtime.sim.control_topic import ControlTopic
from lbg_runtime.sim.handle import SimHandle
from lbg_runtime.sim.history import (
    ActivityLost,
    Answered,
    CopySettled,
    Dispatched,
    Handle,
    HandleLost,
    HandlingEnded,
    HandlingStarted,
    Happening,
    IntakeStarted,
    IntakeStopped,
    LeaveBegan,
    LifeEnded,
    LifePaused,
    LifeStarted,
    LoopHung,
    Result,
    SettleOrdered,
    Stamp,
    UnbindOrdered,
)
from lbg_runtime.sim.parts import Parts
from lbg_runtime.sim.process import Process
from lbg_runtime.sim.schedule import Schedule
from lbg_runtime.sim.settings import SimSettings
from lbg_runtime.sim.start import Start

HOT_KEYS_FROM = 8
"""Smallest cap on what is in flight at which hot keys may exceed it; with less, one message makes a key hot."""


@dataclass(slots=True, eq=False)
class _Flow:
    index: int
    machine: FlowMachine
    handle: SimHandle | None = None
    armed_ms: int | None = None


@dataclass(slots=True, eq=False)
class _Running:
    lane: Lane[Delivery]
    delivery: Delivery
    heeds_cancellation: bool
    has_ended: bool = False


class SimMember:
    """Created by the simulation for each start of a member; the world calls `kill`, `stop`, `pause`, ...

    A `ControlOwner`.
    """

    def __init__(
        self,
        start: Start,
        broker: SimBroker,
        topic: ControlTopic,
        schedule: Schedule,
        chance: SeededChance,
        settings: SimSettings,
        history: list[Happening],
        parts: Parts,
        on_superseded: Callable[["SimMember"], None],
    ) -> None:
        """`on_superseded` is called when this process ends itself, and is to be started again."""
        self.start = start
        self.life = start.life
        self.slow_until_ms = 0
        self.process = Process(schedule)
        drift_permille = settings.longest_drift_permille
        drift = chance.fork("drift")
        self.clock = DriftingClock(
            schedule, drift.between(0, 1_000_000), drift.between(-drift_permille, drift_permille)
        )
        self.client = SimClient(
            start.client_name,
            broker,
            self.process,
            schedule,
            chance.fork("client"),
            settings,
            history,
            lambda is_up: self.process.reach_loop(lambda: self._connection_changed(is_up)),
        )
        self._schedule = schedule
        self._chance = chance
        self._settings = settings
        self._history = history
        self._lanes = parts.make_lanes()
        if settings.max_in_flight >= HOT_KEYS_FROM:
            self._lanes.max_waiting = settings.max_in_flight // 4
        self._running: dict[LaneKey, _Running] = {}
        self._stop_requested = False
        self._shape = broker.shape
        queue_count = broker.configured_count
        self._parts = parts
        self._on_superseded = on_superseded
        is_cooperative = settings.mode is RebindMode.COOPERATIVE
        counted = CountedPlace(start.index, settings.planned_members)
        self._places = {
            queue: AWAY if is_cooperative else counted.on(queue_index)
            for queue_index, queue in enumerate(map(broker.shape.queue_name, range(queue_count)))
        }
        self._dispatched: set[tuple[QueueName, Epoch, DeliveryId]] = set()
        self._given_up: set[tuple[QueueName, Epoch]] = set()
        """Handles from which nothing more is started, as the process was stopped."""
        self._flows: dict[QueueName, _Flow] = {}
        for queue_index, queue in enumerate(self._places):
            self._add_flow(queue_index, queue)
        self.control = self._make_control(topic) if is_cooperative else None
        """Only for a cooperative member."""
        history.append(LifeStarted(schedule.now_ms, self.life))
        self.client.connect()
        for flow in self._flows.values():
            self._arm(flow)

    def _make_control(self, topic: ControlTopic) -> SimControl:
        settings = self._settings.control
        machine = make_control_machine(
            self.start.name,
            self.start.incarnation,
            [flow.machine for flow in self._flows.values()],
            self._shape.hash_count,
            settings,
            self._chance.fork("control"),
            self.clock.now_ms,
            self._parts.make_rebalance,
        )
        return SimControl(
            self.life,
            machine,
            topic,
            self.client,
            self.process,
            self.clock,
            self._history,
            self,
            last_words_arrive=settings.last_words_arrive,
        )

    # -- what the world does

    @property
    def is_alive(self) -> bool:
        """Whether the process exists, paused or not."""
        return self.process.is_alive

    def bound_handles(self) -> list[SimHandle]:
        """Handles that the broker could end now."""
        return [flow.handle for flow in self._flows.values() if flow.handle and flow.handle.flow is not None]

    @property
    def stands_aside(self) -> bool:
        """Whether another process is this member, as far as this one knows."""
        return self.control is not None and self.control.stands_aside

    def kill(self) -> None:
        """SIGKILL: the process ends at once."""
        if self.is_alive:
            self._end(killed=True)

    def stop(self) -> None:
        """SIGTERM: drain, unbind, exit."""
        self.process.run(self._request_stop)

    def planned_place(self, queue: QueueName) -> Place:
        """The member's place when nobody requests anything else."""
        return self._places[queue]

    def request(self, queue: QueueName, request: FlowRequest) -> None:
        self.process.run(lambda: self._tell(self._flows[queue], request))

    def pause(self, until_ms: int) -> None:
        """SIGSTOP, and SIGCONT later."""
        self._history.append(LifePaused(self._schedule.now_ms, self.life, until_ms))
        self.process.pause(until_ms)

    def hang(self, until_ms: int, *, keeps_settlements: bool, goes_on: bool) -> None:
        """The event loop stands still until then; without `goes_on`, until the caller ends the process."""
        self._history.append(LoopHung(self._schedule.now_ms, self.life, until_ms, keeps_settlements))
        self.process.hang(until_ms if goes_on else None, keeps_settlements=keeps_settlements)

    # -- what its control plane asks for

    def add_flows(self, queue_total: int) -> list[FlowMachine]:
        added = []
        for queue_index in range(len(self._flows), queue_total):
            queue = self._shape.queue_name(queue_index)
            self._places[queue] = AWAY
            flow = self._add_flow(queue_index, queue)
            added.append(flow.machine)
            if self._stop_requested:
                self._tell(flow, StopRequested())
            self._arm(flow)
        return added

    def ask(self, queue: QueueName, request: FlowRequest | SettlementsReached) -> None:
        self._tell(self._flows[queue], request)

    def end_superseded(self) -> None:
        self._request_stop()
        self._on_superseded(self)

    # -- the shell around the machines

    def _add_flow(self, queue_index: int, queue: QueueName) -> _Flow:
        settings, gate = self._settings, None
        if settings.mode is RebindMode.COOPERATIVE:
            gate = self._parts.make_gate(queue_index, self._shape, record_prefix(CONTROL_TOPIC))
        machine = self._parts.make_machine(
            queue,
            self._places[queue],
            settings.rebind,
            settings.max_in_flight,
            self._chance.fork(queue),
            self.clock.now_ms,
            gate,
            4 * settings.max_in_flight,
        )
        self._flows[queue] = flow = _Flow(queue_index, machine)
        return flow

    def _connection_changed(self, is_up: bool) -> None:
        if self.control is not None:
            self.control.connection_changed(is_up=is_up)

    def _request_stop(self) -> None:
        if self._stop_requested:
            return
        self._stop_requested = True
        self._history.append(LeaveBegan(self._schedule.now_ms, self.life))
        if self.control is None:
            self._stop_flows()
        else:
            # As in runtime/leaving.py: half of the time for giving queues away, half for what is left then.
            drain_timeout_ms = self._settings.rebind.drain_timeout_ms
            self.process.after(drain_timeout_ms // 2, self._stop_flows)
            self.process.after(drain_timeout_ms, self._cut_short)
            self.control.leave(self._stop_flows)

    def _stop_flows(self) -> None:
        for flow in self._flows.values():
            self._tell(flow, StopRequested())
        self._exit_if_stopped()

    def _cut_short(self) -> None:
        self._stop_flows()
        for flow in self._flows.values():
            queue, epoch = flow.machine.queue, flow.machine.epoch
            for delivery in self._lanes.return_unstarted(queue, epoch):
                self._answer(delivery, None)
            self._cancel(queue, epoch)

    def _exit_if_stopped(self) -> None:
        all_stopped = all(flow.machine.is_stopped for flow in self._flows.values())
        if self._stop_requested and self.is_alive and all_stopped and not self._running and not self._lanes.waiting:
            self._end(killed=False)

    def _end(self, *, killed: bool) -> None:
        if self.control is not None and not killed:
            self.control.end()
        self._history.append(LifeEnded(self._schedule.now_ms, self.life, killed))
        self.process.end()
        self.client.leave()

    def _heard_of(self, flow: _Flow, event: MachineEvent) -> None:
        self.process.reach_loop(lambda: self._tell(flow, event))

    def _tell(self, flow: _Flow, event: MachineEvent) -> None:
        now_ms = self._schedule.now_ms
        if isinstance(event, FlowInactive):
            self._history.append(ActivityLost(now_ms, self._name(flow, event.epoch)))
        elif isinstance(event, FlowDown):
            self._history.append(HandleLost(now_ms, self._name(flow, event.epoch)))
        elif isinstance(event, MessageReceived) and flow.machine.admit(event.delivery):
            # The same short cut as in runtime/flow/runner.py, which also has one for accepted messages.
            self._dispatch(event.delivery)
            self._start_ready()
            return
        if isinstance(event, HandlingStalled) and not self._lanes.is_stalled(flow.machine.queue, event.epoch):
            return
        self._advance(flow, lambda local_ms: flow.machine.handle(event, local_ms))
        self._exit_if_stopped()

    def _post(self, flow: _Flow, event: MachineEvent) -> None:
        """Tell the machine after the current commands, as in runtime/flow/runner.py."""
        self.process.after(0, lambda: self._tell(flow, event))

    def _arm(self, flow: _Flow) -> None:
        deadline_ms = flow.machine.deadline_ms
        if deadline_ms is not None and deadline_ms != flow.armed_ms:
            flow.armed_ms = deadline_ms
            self.process.after(self.clock.wait_ms(deadline_ms), lambda: self._on_deadline(flow, deadline_ms))

    def _on_deadline(self, flow: _Flow, armed_ms: int) -> None:
        if flow.armed_ms == armed_ms:
            flow.armed_ms = None
        self._advance(flow, flow.machine.on_deadline)

    def _advance(self, flow: _Flow, step: Callable[[int], list[Command]]) -> None:
        machine = flow.machine
        before = machine.state, machine.epoch
        self._obey(flow, step(self.clock.now_ms))
        if self.control is not None and before != (machine.state, machine.epoch):
            self.control.flow_changed()
        self._arm(flow)
        self._start_ready()

    def _obey(self, flow: _Flow, commands: list[Command]) -> None:
        queue, now_ms = flow.machine.queue, self._schedule.now_ms
        for command in commands:
            match command:
                case Bind(epoch):
                    flow.handle = self.client.bind(self._name(flow, epoch), lambda event: self._heard_of(flow, event))
                case Unbind(epoch, cause):
                    self._history.append(UnbindOrdered(now_ms, self._name(flow, epoch), cause))
                    self._handle(flow).unbind()
                case StopIntake(epoch):
                    self._history.append(IntakeStopped(now_ms, self._name(flow, epoch)))
                    self._handle(flow).set_intake(is_open=False)
                case StartIntake(epoch):
                    self._history.append(IntakeStarted(now_ms, self._name(flow, epoch)))
                    self._handle(flow).set_intake(is_open=True)
                case Dispatch(delivery):
                    self._dispatch(delivery)
                case ReturnUnstarted(epoch):
                    for delivery in self._lanes.return_unstarted(queue, epoch):
                        self._answer(delivery, None)
                case LookForStall(epoch):
                    self._post(flow, HandlingStalled(epoch))
                case CancelHandling(epoch):
                    self._cancel(queue, epoch)
                case Settle(epoch, delivery_id, outcome):
                    handle = self._name(flow, epoch)
                    if (queue, epoch, delivery_id) in self._dispatched:
                        self._history.append(SettleOrdered(now_ms, handle, delivery_id, outcome))
                    else:
                        self._history.append(CopySettled(now_ms, handle, delivery_id))
                    self._handle(flow).settle(delivery_id, outcome)
                case ProbeSettlements(epoch, number):
                    self._handle(flow).flush()
                    if self.control is not None:
                        self.control.probe_asked(ProbeAsked(queue, epoch, number))
                case TellStripes(news):
                    if self.control is not None:
                        self.control.stripes_told(flow.index, news)
                case Note():
                    pass
                case _:
                    assert_never(command)

    def _handle(self, flow: _Flow) -> SimHandle:
        if flow.handle is None:
            raise InvariantViolated(f"{flow.machine.queue}: an order before the first bind")
        return flow.handle

    def _name(self, flow: _Flow, epoch: Epoch) -> Handle:
        return Handle(self.life, flow.machine.queue, epoch)

    # -- dispatcher and handlers

    def _dispatch(self, delivery: Delivery) -> None:
        stamp = stamp_in(delivery)
        handle = Handle(self.life, delivery.queue, delivery.epoch)
        self._history.append(Dispatched(self._schedule.now_ms, handle, delivery.delivery_id, stamp))
        self._dispatched.add((delivery.queue, delivery.epoch, delivery.delivery_id))
        flow, epoch, delivery_id = self._flows[delivery.queue], delivery.epoch, delivery.delivery_id
        if self._lanes.offer(LaneKey(stamp.key), delivery) and not flow.machine.excuse(epoch, delivery_id):
            self._post(flow, DeliveriesHeldUp(epoch, (delivery_id,)))

    def _start_ready(self) -> None:
        stopped_ms, self.process.was_stopped_ms = self.process.was_stopped_ms, 0
        if self._settings.heeds_stops and stopped_ms > self._settings.keep_alive_ms // 2:
            self._give_handles_up()
        while self.is_alive and self._lanes.running < self._settings.runners:
            lane = self._lanes.next_ready()
            if lane is None:
                return
            if (lane.head.queue, lane.head.epoch) in self._given_up:
                self._lanes.hold(lane)
            else:
                self._start(lane)

    def _give_handles_up(self) -> None:
        # As in runtime/flow/runner.py.
        for queue, flow in self._flows.items():
            if flow.machine.state in (FlowState.ACTIVE, FlowState.DRAINING):
                self._given_up.add((queue, flow.machine.epoch))
                self._post(flow, FlowInactive(flow.machine.epoch))
            elif flow.machine.state in (FlowState.BINDING, FlowState.STANDBY):
                self._post(flow, StepAsideRequested(self.clock.now_ms + self._settings.keep_alive_ms // 2))

    def _start(self, lane: Lane[Delivery]) -> None:
        delivery, now_ms = lane.head, self._schedule.now_ms
        handle = Handle(self.life, delivery.queue, delivery.epoch)
        stamp = stamp_in(delivery)
        self._history.append(HandlingStarted(now_ms, handle, delivery.delivery_id, stamp, lane.attempt))
        running = _Running(lane, delivery, heeds_cancellation=self._chance.happens(0.8))
        self._running[lane.key] = running
        duration_ms, result = self._behaviour(stamp)
        self.process.after(duration_ms, lambda: self._finish(running, result))

    def _behaviour(self, stamp: Stamp) -> tuple[int, Result]:
        handlers, chance = self._settings.handlers, self._chance
        if chance.happens(handlers.hang_share):
            return handlers.timeout_ms, Result.FAILED
        is_slow = chance.happens(handlers.slow_share) or self._schedule.now_ms < self.slow_until_ms
        duration_ms = chance.between(0, handlers.slow_ms if is_slow else handlers.longest_ms)
        # The same message must be poison for every member, so its own name decides.
        poison = SeededChance(0).fork(f"{stamp.publisher} {stamp.key} {stamp.sequence}").happens(handlers.poison_share)
        has_failed = poison or chance.happens(handlers.fail_share)
        return min(duration_ms, handlers.timeout_ms), Result.FAILED if has_failed else Result.DONE

    def _cancel(self, queue: QueueName, epoch: Epoch) -> None:
        for running in list(self._running.values()):
            delivery = running.delivery
            if delivery.queue == queue and delivery.epoch == epoch and running.heeds_cancellation:
                self.process.after(self._chance.between(0, 30), self._cancellation(running))

    def _cancellation(self, running: _Running) -> Callable[[], None]:
        return lambda: self._finish(running, Result.CANCELLED)

    def _finish(self, running: _Running, result: Result) -> None:
        if running.has_ended:
            return
        running.has_ended = True
        lane, delivery, now_ms = running.lane, running.delivery, self._schedule.now_ms
        handle = Handle(self.life, delivery.queue, delivery.epoch)
        self._history.append(HandlingEnded(now_ms, handle, delivery.delivery_id, stamp_in(delivery), result))
        outcome: Outcome | None
        match result:
            case Result.DONE:
                outcome = Outcome.ACCEPTED
            case Result.CANCELLED:
                outcome = None
            case Result.FAILED if lane.attempt >= self._settings.handlers.attempts:
                outcome = Outcome.REJECTED
            case Result.FAILED:
                retry_at_ms = self.clock.now_ms + self._settings.handlers.retry_ms
                if self._lanes.delay(lane, retry_at_ms):
                    del self._running[lane.key]
                    self.process.after(self.clock.wait_ms(retry_at_ms), self._retry_due)
                    self._hold_up(lane)
                    return
                outcome = None
            case _:
                assert_never(result)
        self._answer(delivery, outcome)
        del self._running[lane.key]
        self._lanes.finish(lane)
        self._start_ready()
        self._exit_if_stopped()

    def _hold_up(self, lane: Lane[Delivery]) -> None:
        for delivery in self._lanes.hold_up(lane):
            held_up = DeliveriesHeldUp(delivery.epoch, (delivery.delivery_id,))
            self._tell(self._flows[delivery.queue], held_up)

    def _retry_due(self) -> None:
        self._lanes.release_due(self.clock.now_ms)
        self._start_ready()

    def _answer(self, delivery: Delivery, outcome: Outcome | None) -> None:
        handle = Handle(self.life, delivery.queue, delivery.epoch)
        self._history.append(Answered(self._schedule.now_ms, handle, delivery.delivery_id, outcome))
        flow, epoch, delivery_id = self._flows[delivery.queue], delivery.epoch, delivery.delivery_id
        if outcome is Outcome.ACCEPTED and flow.machine.accept(epoch, delivery_id):
            self._obey(flow, [Settle(epoch, delivery_id, outcome)])
        else:
            self._tell(flow, HandlingFinished(epoch, delivery_id, outcome))


def stamp_in(delivery: Delivery) -> Stamp:
    """The stamp of a delivery's message."""
    publisher, key, sequence = (delivery.message.message_id or "").split(" ")
    return Stamp(publisher, key, int(sequence))
