"""One member's tasks as one tree: a flow runner per queue, the dispatcher's runners, the status ticker.

Leaving has three stages, each with its bound. `stop` gives the queues to other members, if there are any, and makes
every flow drain, within the drain timeout. Then, or when `stop_now` asks for it, handlers are cancelled and flows
unbind. After another `TAIL_MS` the tasks are cancelled, and what a handler still does is left to the end of the
process. A lifespan that is still beginning is cancelled by `stop`, as nothing is bound yet; one that is ending, by
`stop_now`.

More than 400 lines, because a member is put together here, and taken apart in the opposite order.
"""

import asyncio
from collections.abc import Callable, Set
from contextlib import AsyncExitStack
from dataclasses import dataclass
from enum import Enum

import anyio
import structlog

from lbg_runtime.config.broker_names import client_name
from lbg_runtime.config.settings import GroupBackend, Provision, RebindMode, Settings
from lbg_runtime.core.chance import RandomSource
from lbg_runtime.core.flow.events import HandlingStalled
from lbg_runtime.core.flow.machine import FlowMachine
from lbg_runtime.core.flow.rebind import RebindSettings
from lbg_runtime.core.flow.table import FlowState
from lbg_runtime.core.group.control_plane import ProbeAsked
from lbg_runtime.core.group.rebalance import AWAY
from lbg_runtime.core.restripe.gate import StripeGate
from lbg_runtime.core.restripe.news import StripesNews, facts_of
from lbg_runtime.core.restripe.records import record_prefix
from lbg_runtime.core.restripe.striping import StripingBook
from lbg_runtime.core.roles import Place, static_place
from lbg_runtime.metrics.tracing import open_spans
from lbg_runtime.model.errors import BindFailed, ConfigError, InvariantViolated, LbgError
from lbg_runtime.model.failure import Then
from lbg_runtime.model.message import Message
from lbg_runtime.model.version import VERSION
from lbg_runtime.runtime.clock import now_ms
from lbg_runtime.runtime.companion import Companion
from lbg_runtime.runtime.control_plane import ControlPlane, make_control_plane
from lbg_runtime.runtime.dispatch.dispatcher import Dispatcher
from lbg_runtime.runtime.dispatch.error_queue import ErrorQueue
from lbg_runtime.runtime.dispatch.key_book import KeyBook
from lbg_runtime.runtime.dispatch.stages import stage_of
from lbg_runtime.runtime.flight_recorder import FlightRecorder
from lbg_runtime.runtime.flow_runner import FlowRunner
from lbg_runtime.runtime.forked import forked_ended
from lbg_runtime.runtime.handlers.hooks import QueueHooks
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.runtime.handlers.resources import MemberResources
from lbg_runtime.runtime.handlers.routes import check_ends, check_states, policies_of
from lbg_runtime.runtime.handlers.traced import traced
from lbg_runtime.runtime.journal import MemberJournal, note_of
from lbg_runtime.runtime.member_status import MemberStatus
from lbg_runtime.runtime.membership import Membership
from lbg_runtime.runtime.parking_lot import ParkingLot
from lbg_runtime.runtime.runners.handling import Handling
from lbg_runtime.runtime.session import Session
from lbg_runtime.runtime.shutdown import Interruption
from lbg_runtime.runtime.suspension import Suspension
from lbg_runtime.runtime.turns import Turns

_log = structlog.get_logger(__name__)

ON_SHARED_QUEUE = Place(rank=0, gives_way=False)
"""Every member's place on a partitioned queue: it binds and stays, and the broker decides what it gets."""

STATUS_INTERVAL_S = 1.0

BIND_BACKOFF_MIN_MS = 200
BIND_BACKOFF_MAX_MS = 10_000

QUIET_GAP_MS = 50
"""A drained flow waits this long for what is under way: above a round trip to any broker that one would use."""

RANK_DELAY_MS = 100
"""Between the binds of a queue's standbys: above the time that a bind takes, including the way to the broker."""

DRAIN_TOLD_MS = 2_000
"""After this long, a member that is leaving says what it still waits for."""

TAIL_MS = 10_000
"""How long flows may take to unbind once nothing is handled any more: an unbind waits for the broker's answer."""


@dataclass(frozen=True, slots=True)
class StopReport:
    """How a member left."""

    left_behind: int
    """Deliveries that were read or begun but not settled; they come again, to another member or the next life. Without
    those that failed and that the next owner had agreed to take with their queue."""
    still_bound: int
    """Flows that were not unbound in time, or whose unbind got no answer from the broker."""

    @property
    def is_clean(self) -> bool:
        """Whether nothing was left, but for what failed here and went to the next owner, which tries it again."""
        return self.left_behind == 0 and self.still_bound == 0

    @property
    def exit_code(self) -> int:
        """0 if clean, else 1."""
        return 0 if self.is_clean else 1


class _Leaving(Enum):
    """How far a member has gone in leaving; only forward."""

    NOT = "not"
    DRAINING = "draining"
    CANCELLING = "cancelling"
    LEFT = "left"
    """Every flow has ended: there is nothing more to wait for but the lifespans."""


class Supervisor:
    """Runs one life of a member on an open session. Made and used on one event loop; `run` once."""

    def __init__(
        self,
        settings: Settings,
        membership: Membership,
        handlers: Handlers,
        session: Session,
        journal: MemberJournal,
        chance: RandomSource,
        companion: Companion | None = None,
    ) -> None:
        """`companion`: what handles messages alongside the member; it is told about the flows."""
        self._settings = settings
        self._companion = companion
        self._member = membership.member
        self._session = session
        self._journal = journal
        shape = settings.group.shape()
        spans = open_spans(settings, settings.connection.client_name or client_name(shape.name, membership.member))
        called = handlers.assembled()
        if spans is not None:
            called = traced(called, spans)
        policies = policies_of(handlers, settings.failure)
        self._error_queue: ErrorQueue | None = None
        moves = {each for each in (Then.ERROR_QUEUE, Then.DMQ) if any(policy.then is each for policy in policies)}
        if moves:
            self._error_queue = ErrorQueue(session, settings, moves, membership.member)
        self._dispatcher = Dispatcher(
            called,
            shape,
            settings.group.key,
            settings.dispatch,
            settings.failure,
            chance,
            self._error_queue,
            keys_move_unseen=settings.group.backend is GroupBackend.PARTITIONED,
        )
        self._resources = MemberResources(session, settings.dispatch.runners, self._dispatcher.counts, spans)
        self._turns = Turns(journal.flush)
        self._recorder = FlightRecorder(membership.member, journal)
        self._shape = shape
        self._handlers = handlers
        self._chance = chance
        self._striping = striping = StripingBook(shape.queue_count, shape.hash_count)
        self._key_book = KeyBook(self._dispatcher, shape, settings.group.hash_function, striping)
        self._parking_lot: ParkingLot | None = None
        check_ends(policies, settings)
        if any(policy.then is Then.PARK for policy in policies):
            self._parking_lot = ParkingLot(session, settings, membership.member, chance, self._dispatcher, striping)
        self.runners: list[FlowRunner] = [
            self._make_runner(index, first_place(index, membership, settings)) for index in range(shape.queue_count)
        ]
        self._control: ControlPlane | None = None
        if settings.is_cooperative:
            self._control = make_control_plane(
                settings,
                membership,
                incarnation=journal.incarnation,
                session=session,
                runners=self.runners,
                chance=chance,
                keys=self._key_book,
                recorder=self._recorder,
                on_refused=self._refuse,
                striping=striping,
                add_flows=self._add_flows,
                parks=self._parking_lot is not None,
                shared={} if companion is None else companion.shared,
            )
        self._flows: list[asyncio.Task[None]] = []
        self._flow_tasks: asyncio.TaskGroup | None = None
        self._refusal: LbgError | None = None
        self._leaving = _Leaving.NOT
        self.report: StopReport | None = None
        """How it left; None until then."""
        self._timers: list[asyncio.TimerHandle] = []
        self._beginning = Interruption()
        self._queues_refused = set[str]()
        """Queues to which the first bind has been refused."""
        self._lifespans_end = Interruption()
        self._has_left = asyncio.Event()
        """Every flow is unbound for good, or has been given up."""

    def stop(self) -> None:
        """Leave: drain every flow, unbind, end. Returns at once; idempotent."""
        if self._leaving is not _Leaving.NOT:
            return
        self._leaving = _Leaving.DRAINING
        _log.info("drain_started", member=self._member)
        self._beginning.cut()
        drain_timeout_ms = self._settings.rebind.drain_timeout_ms
        self._call_later(DRAIN_TOLD_MS, self._tell_of_wait)
        self._call_later(drain_timeout_ms, self.stop_now)
        if self._control is None:
            self._stop_flows()
        else:
            # Half of the time for giving queues away while they are still handled, half for those that are left then.
            self._call_later(drain_timeout_ms // 2, self._stop_flows)
            self._control.leave(self._stop_flows)

    def _stop_flows(self) -> None:
        for runner in self.runners:
            runner.stop()

    def stop_now(self) -> None:
        """Leave without waiting for handlers: they are cancelled, and settle nothing. Idempotent for them.

        A lifespan that is beginning or ending is cancelled each time.
        """
        self.stop()
        self._beginning.cut()
        self._lifespans_end.cut()
        self._stop_flows()
        if self._leaving in (_Leaving.CANCELLING, _Leaving.LEFT):
            return
        self._leaving = _Leaving.CANCELLING
        running = self._dispatcher.running()
        waits_for = self._waits_for()
        if running or waits_for:
            _log.warning("handling_cut_short", member=self._member, running=len(running), **waits_for)
        self._dispatcher.cancel_everything()
        self._call_later(TAIL_MS, self._has_left.set)

    def _tell_of_wait(self) -> None:
        waits_for = self._waits_for()
        if waits_for and self._leaving is _Leaving.DRAINING:
            _log.info("drain_waits", member=self._member, **waits_for)

    def _end_drains_in_vain(self) -> None:
        """Have no flow wait for what its stopped queue holds, which is not started here."""
        for runner in self.runners:
            machine = runner.machine
            if machine.state is FlowState.DRAINING and self._dispatcher.is_stopped(machine.queue, machine.epoch):
                runner.post(HandlingStalled(machine.epoch, has_stopped=True))

    def _waits_for(self) -> dict[str, object]:
        """The unanswered deliveries, as fields of a log line, with the key that is the likeliest to keep the member;
        empty if there are none."""
        held = {runner.machine.queue: runner.unanswered for runner in self.runners if runner.unanswered}
        if not held:
            return {}
        facts: dict[str, object] = {"unanswered": sum(held.values()), "queues": list(held)}
        sight = self._dispatcher.toughest()
        if sight is not None:
            facts |= {"key": sight.head.key, "attempts": sight.head.attempts, "stage": stage_of(sight).value}
            if sight.retry_at_ms is not None:
                facts["next_attempt_ms"] = max(0, sight.retry_at_ms - now_ms())
        return facts

    def heed(self, suspension: Suspension) -> None:
        """Give all queues up after a stop of the process, before anything more of them is started.

        What was received before the stop, or is still on its way from a connection that the broker has closed, may be
        with other members by now; a new handle shows who has the queue.
        """
        self._dispatcher.heed(suspension, self._give_handles_up)

    def _give_handles_up(self, stopped_ns: int) -> None:
        _log.warning("process_was_stopped", member=self._member, stopped_for_ms=stopped_ns // 1_000_000)
        for runner in self.runners:
            runner.give_handle_up()

    def be_able(self, *, is_able: bool) -> None:
        """Say whether messages can be handled here. While they cannot, the queues go to members where they can.

        If members are counted, or do not talk to each other, nobody else could have the queues, and they stay.
        """
        if self._control is not None:
            self._control.set_weight(self._settings.membership.weight if is_able else 0)

    @property
    def awaited_lifespan(self) -> str | None:
        """The lifespan that has begun and not reached its `yield`; None if there is none."""
        return self._resources.awaited

    def status(self) -> MemberStatus:
        """This life of the member, for the status API."""
        return MemberStatus(
            self._settings,
            self._member,
            journal=self._journal,
            runners=self.runners,
            control=self._control.machine if self._control is not None else None,
            keys=self._key_book,
            recorder=self._recorder,
            dispatcher=self._dispatcher,
            striping=self._striping,
            connection=self._session,
            resources=self._resources,
            sidecar=None if self._companion is None else self._companion.reading,
        )

    async def run(self) -> StopReport:
        """Run until stopped; if stopped before its lifespans have begun, bind nothing.

        When cancelled, it does what `stop_now` does and then passes the cancellation on.

        Raises `ConfigError` if the broker does not know or does not allow what the settings say, `HandlerError` if a
        lifespan fails to begin or none yields what a handler asks for, and `MemberSuperseded` if another process was
        this member and has gone.
        """
        lived = AsyncExitStack()
        # Left last: lifespans are the user's code, too.
        lived.enter_context(forked_ended())
        try:
            with self._beginning:
                if self._leaving is _Leaving.NOT:
                    # No bound: it may wait for something that others start, or for the broker; `stop` ends that.
                    await self._look_at_queues_aside()
                    await lived.enter_async_context(self._resources.entered(self._handlers.lifespans))
            if self._leaving is not _Leaving.NOT:
                # Nothing is bound yet, and no other member knows of this one.
                return self._left(StopReport(left_behind=0, still_bound=0))
            check_states(self._handlers, self._resources)
            # Hooks are called from there, and what lifespans have set in context variables holds for them, too.
            self._turns.keep_context()
            return await self._run()
        finally:
            self._leaving = _Leaving.LEFT
            for timer in self._timers:
                timer.cancel()
            with self._lifespans_end:
                # No bound: that is for the user to decide; `stop_now` ends it.
                await lived.aclose()

    async def _look_at_queues_aside(self) -> None:
        try:
            if self._error_queue is not None:
                await self._error_queue.prepare()
            if self._parking_lot is not None:
                await self._parking_lot.prepare()
        except ConfigError as error:
            if error.where in _not_made_by_lbg(self._settings):
                raise
            expected = f"{error.expected}; `lbg group apply` makes it, where it can import these handlers"
            raise ConfigError(error.where, error.found, expected) from error

    def _left(self, report: StopReport) -> StopReport:
        self.report = report
        _log.info("member_left", member=self._member, left_behind=report.left_behind, still_bound=report.still_bound)
        return report

    async def _run(self) -> StopReport:
        self._tell_of_start()
        async with asyncio.TaskGroup() as group:
            helpers = [
                group.create_task(self._dispatcher.run()),
                group.create_task(self._dispatcher.key_reports.run()),
                group.create_task(self._report_status()),
            ]
            if self._control is not None:
                helpers.append(group.create_task(self._control.run()))
            self._flow_tasks = group
            for runner in self.runners:
                self._run_flow(runner)
            try:
                # No bound: a member runs until told to leave; leaving has its bounds.
                await self._has_left.wait()
            except asyncio.CancelledError:
                self.stop_now()
                # Bounded by the tail's timer, which ends the wait.
                with anyio.CancelScope(shield=True):
                    await self._has_left.wait()
                raise
            finally:
                still_bound = sum(runner.is_unheard or not runner.machine.is_stopped for runner in self.runners)
                for task in (*self._flows, *helpers):
                    task.cancel()
        left_behind = sum(runner.left_behind + runner.unanswered for runner in self.runners)
        report = self._left(StopReport(left_behind, still_bound))
        if self._refusal is not None:
            raise self._refusal
        return report

    def _tell_of_start(self) -> None:
        settings = self._settings
        facts: dict[str, object] = {"group": settings.group.name, "queues": len(self.runners)}
        if settings.is_cooperative:
            # Queues are placed once everybody has had time to speak, and nobody has come since.
            facts["settles_for_ms"] = settings.membership.heartbeat_ms + settings.membership.settle_ms
        host, vpn = ",".join(settings.connection.host), settings.connection.vpn
        _log.info("member_started", member=self._member, **facts, host=host, vpn=vpn, version=VERSION)

    def bind_refused(self, runner: FlowRunner, refusal: BindFailed) -> None:
        """See `FlowOwner`."""
        if runner.queue_index >= self._shape.queue_count:
            # A re-striping has added it: the settings have nothing to do with it.
            return
        # A mistake of the settings only if nothing can be bound at all: a queue that was deleted while its owner had it
        # must not end every member that it belongs to next. So the last answer of the first binds decides, and one that
        # waits for its turn, as a standby's does, has not been answered.
        self._queues_refused.add(refusal.queue)
        wanted: set[str] = {each.machine.queue for each in self.runners if each.machine.place.is_wanted}
        if wanted - self._queues_refused or any(each.was_bound for each in self.runners):
            return
        expected = (
            "queues that exist and may be bound, as `lbg group create` or `apply` makes them, or group.provision: "
            "create_missing"
        )
        if self._settings.group.provision is Provision.CREATE_MISSING:
            expected = (
                "a queue that this user may bind: those that were missing were created a moment ago, so it was deleted "
                "since, or it may not be bound"
            )
        if self._settings.group.backend is GroupBackend.PARTITIONED:
            expected = "a partitioned queue of this name, made beforehand, that may be bound"
        self._refuse(ConfigError("group.name", f"queue {refusal.queue}: {refusal.reason}", expected))

    def _refuse(self, error: LbgError) -> None:
        self._refusal = self._refusal or error
        self.stop()

    def flow_changed(self, runner: FlowRunner) -> None:
        """See `FlowOwner`."""
        self._recorder.flow_changed(
            runner.queue_index, runner.machine, runner.unanswered, is_released=runner.is_released
        )
        if self._companion is not None:
            is_kept = runner.machine.state in (FlowState.STANDBY, FlowState.ACTIVE)
            self._companion.flow_changed(runner.machine.queue, runner.machine.epoch, is_kept=is_kept)
        if self._parking_lot is not None:
            self._parking_lot.flow_changed(runner)
        if self._control is not None:
            self._control.flow_changed()

    def _note_left(self, _: "asyncio.Task[None]") -> None:
        if all(flow.done() for flow in self._flows):
            self._has_left.set()

    # -- flows

    def _make_runner(self, queue_index: int, place: Place) -> FlowRunner:
        settings, queue = self._settings, self._shape.queue_name(queue_index)
        gate: StripeGate | None = None
        if settings.is_cooperative:
            gate = StripeGate(queue_index, self._shape, record_prefix(settings.group.control_topic_name))
        machine = FlowMachine(
            queue,
            place,
            rebind_settings(settings),
            max_in_flight=settings.dispatch.max_in_flight,
            random=self._chance,
            now_ms=now_ms(),
            gate=gate,
            max_held=settings.dispatch.held_limit,
        )
        lot = self._parking_lot
        runner = FlowRunner(
            queue_index,
            machine,
            self._session,
            self._dispatcher,
            self._journal,
            self._turns,
            self,
            QueueHooks(self._handlers.hooks, queue, settings.failure.timeout_ms),
            None if lot is None else lot.make(queue_index, queue),
        )
        if lot is not None:
            lot.connect(runner)
        return runner

    def _add_flows(self, queue_total: int) -> list[FlowRunner]:
        """Make and run the flows of the queues that a re-striping adds."""
        added = [self._make_runner(index, AWAY) for index in range(len(self.runners), queue_total)]
        for runner in added:
            self.runners.append(runner)
            self._run_flow(runner)
            if self._leaving is not _Leaving.NOT:
                runner.stop()
        return added

    def _run_flow(self, runner: FlowRunner) -> None:
        if self._flow_tasks is None:
            raise InvariantViolated("a flow was to run before its member")
        flow = self._flow_tasks.create_task(runner.run())
        self._flows.append(flow)
        flow.add_done_callback(self._note_left)

    def stripes_told(self, runner: FlowRunner, news: StripesNews) -> None:
        """See `FlowOwner`."""
        _log.info("stripes_told", queue=runner.machine.queue, epoch=runner.machine.epoch, **facts_of(news))
        if self._control is not None:
            self._control.stripes_told(runner.queue_index, news)

    def probe_asked(self, probe: ProbeAsked) -> None:
        """See `FlowOwner`."""
        if self._control is not None:
            self._control.probe_asked(probe)

    def _call_later(self, delay_ms: int, callback: Callable[[], None]) -> None:
        self._timers.append(asyncio.get_running_loop().call_later(delay_ms / 1_000, callback))

    async def _report_status(self) -> None:
        while True:
            await asyncio.sleep(STATUS_INTERVAL_S)
            self._dispatcher.be_awake()
            for runner in self.runners:
                self._journal.status(runner.queue_index, runner.machine, runner.handled)
            self._journal.flush()
            self._end_drains_in_vain()

    def settled(self, runner: FlowRunner, handling: Handling) -> None:
        """See `FlowOwner`."""
        self._key_book.settled(handling)
        topic = self._settings.ops.journal.republish_topic
        if topic is not None:
            self._session.send_direct(Message(topic, note_of(handling, runner.machine.queue, self._member)))


def first_place(queue_index: int, membership: Membership, settings: Settings) -> Place:
    """A member's place on a queue before it has heard of any other member."""
    if settings.group.backend is GroupBackend.PARTITIONED:
        return ON_SHARED_QUEUE
    if settings.rebind.mode is RebindMode.CYCLE and membership.place is not None:
        return static_place(queue_index, membership.place.index, membership.place.count)
    return AWAY


def _not_made_by_lbg(settings: Settings) -> Set[str]:
    """Settings that name a queue which no command makes, as it belongs to others."""
    if settings.group.backend is GroupBackend.PARTITIONED or settings.error_queue != settings.error_topic:
        return {"failure.dead_message_queue", "failure.error_queue"}
    return {"failure.dead_message_queue"}


def rebind_settings(settings: Settings) -> RebindSettings:
    """The delays of the flow machines."""
    return RebindSettings(
        interval_ms=settings.rebind.interval_ms,
        jitter=settings.rebind.jitter,
        drain_timeout_ms=settings.rebind.drain_timeout_ms,
        bind_backoff_min_ms=BIND_BACKOFF_MIN_MS,
        bind_backoff_max_ms=BIND_BACKOFF_MAX_MS,
        quiet_gap_ms=QUIET_GAP_MS,
        rank_delay_ms=RANK_DELAY_MS,
    )
