"""One life of a member: `App` makes a `Supervisor` for it, which puts the parts together and runs their tasks.

The flows as a whole are in runtime/flow/member_flows.py; how a member leaves is in runtime/leaving.py.
"""

import asyncio
from collections.abc import Set
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

import anyio
import structlog

from lbg_runtime.config.broker_names import client_name
from lbg_runtime.config.settings import GroupBackend, Settings
from lbg_runtime.core.chance import RandomSource
from lbg_runtime.core.flow.table import FlowState
from lbg_runtime.core.group.control_plane import ProbeAsked
from lbg_runtime.core.restripe.news import StripesNews, facts_of
from lbg_runtime.core.restripe.striping import StripingBook
from lbg_runtime.core.roles import Place
from lbg_runtime.metrics.tracing import open_spans
from lbg_runtime.model.errors import BindFailed, ConfigError, LbgError
from lbg_runtime.model.failure import Then
from lbg_runtime.model.message import Message
from lbg_runtime.model.version import VERSION
from lbg_runtime.runtime.companion import Companion
from lbg_runtime.runtime.control_machine import make_control_machine, pins, settings_alike
from lbg_runtime.runtime.control_plane import ControlPlane
from lbg_runtime.runtime.dispatch.dispatcher import Dispatcher
from lbg_runtime.runtime.dispatch.error_queue import ErrorQueue
from lbg_runtime.runtime.dispatch.key_book import KeyBook
from lbg_runtime.runtime.flight_recorder import FlightRecorder
from lbg_runtime.runtime.flow.member_flows import MemberFlows
from lbg_runtime.runtime.flow.runner import FlowRunner
from lbg_runtime.runtime.flow.settings import bindable, first_place, make_machine
from lbg_runtime.runtime.forked import forked_ended
from lbg_runtime.runtime.handlers.hooks import QueueHooks
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.runtime.handlers.resources import MemberResources
from lbg_runtime.runtime.handlers.routes import check_ends, check_states, policies_of
from lbg_runtime.runtime.handlers.traced import traced
from lbg_runtime.runtime.journal import MemberJournal, note_of
from lbg_runtime.runtime.leaving import Leaving
from lbg_runtime.runtime.member_status import MemberStatus
from lbg_runtime.runtime.membership import Membership
from lbg_runtime.runtime.parking_lot import ParkingLot
from lbg_runtime.runtime.runners.handling import Handling
from lbg_runtime.runtime.session import Session
from lbg_runtime.runtime.suspension import Suspension
from lbg_runtime.runtime.turns import Turns

_log = structlog.get_logger(__name__)

STATUS_INTERVAL_S = 1.0


@dataclass(frozen=True, slots=True)
class StopReport:
    """How a member left."""

    left_behind: int
    """Deliveries that were read or begun but not settled; they come again, to another member or the next life. Those
    that failed and went with their queue to a next owner that had agreed to take it do not count."""
    still_bound: int
    """Flows that were not unbound in time, or whose unbind got no answer from the broker."""

    @property
    def is_clean(self) -> bool:
        """Whether nothing was left unsettled or bound. What failed here and went to the next owner, which tries it
        again, does not count."""
        return self.left_behind == 0 and self.still_bound == 0

    @property
    def exit_code(self) -> int:
        """0 if clean, else 1."""
        return 0 if self.is_clean else 1


class Supervisor:
    """Runs one life of a member on an open session. Made and used on one event loop; `run` once.

    As the `FlowOwner` of its flows, it passes what they tell on to the parts that need it.
    """

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
        check_ends(policies, settings)
        ends = {policy.then for policy in policies if policy.then is not None}
        self._error_queue: ErrorQueue | None = None
        if moves := ends & {Then.ERROR_QUEUE, Then.DMQ}:
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
        self._handlers = handlers
        self._chance = chance
        self._striping = striping = StripingBook(shape.queue_count, shape.hash_count)
        self._key_book = KeyBook(self._dispatcher, shape, settings.group.hash_function, striping)
        self._parking_lot: ParkingLot | None = None
        if Then.PARK in ends:
            self._parking_lot = ParkingLot(session, settings, membership.member, chance, self._dispatcher, striping)
        places = [first_place(index, membership, settings) for index in range(shape.queue_count)]
        self._flows = MemberFlows(self._make_runner, places)
        self._control = self._make_control(membership) if settings.is_cooperative else None
        drain_timeout_ms = settings.rebind.drain_timeout_ms
        self._leaving = Leaving(self._member, drain_timeout_ms, self._flows, self._dispatcher, self._control)
        self._refusal: LbgError | None = None
        self.report: StopReport | None = None
        """How it left; None until then."""

    def _make_control(self, membership: Membership) -> ControlPlane:
        of_companion = {} if self._companion is None else self._companion.shared
        machine = make_control_machine(
            self._settings,
            membership,
            self._journal.incarnation,
            [runner.machine for runner in self.runners],
            self._chance,
            self._striping,
            settings_alike(self._settings, membership, parks=self._parking_lot is not None, of_companion=of_companion),
        )
        return ControlPlane(
            self._session,
            self._settings.group.control_topic_name,
            machine,
            self.runners,
            self._key_book,
            self._dispatcher,
            self._recorder,
            self._refuse,
            self._add_flows,
            partial(pins, self._settings, membership),
        )

    def _make_runner(self, queue_index: int, place: Place) -> FlowRunner:
        settings, lot = self._settings, self._parking_lot
        machine = make_machine(queue_index, place, settings, self._chance)
        parked = None if lot is None else lot.make(queue_index, machine.queue)
        runner = FlowRunner(
            queue_index,
            machine,
            self._session,
            self._dispatcher,
            self._journal,
            self._turns,
            self,
            QueueHooks(self._handlers.hooks, machine.queue, settings.failure.timeout_ms),
            parked,
        )
        if lot is not None and parked is not None:
            lot.connect(parked, runner)
        return runner

    def _add_flows(self, queue_total: int) -> list[FlowRunner]:
        added = self._flows.add(queue_total)
        if self._leaving.has_begun:
            for runner in added:
                runner.stop()
        return added

    # -- how it lives

    def heed(self, suspension: Suspension) -> None:
        """From now on, when the process was stopped and goes on, give all flow handles up before anything more of their
        queues is started.

        What was received before the stop, or is still on its way from a connection that the broker has closed, may be
        with other members by now; a new handle shows who has the queue.
        """
        self._dispatcher.heed(suspension, self._give_handles_up)

    def _give_handles_up(self, stopped_ns: int) -> None:
        _log.warning("process_was_stopped", member=self._member, stopped_for_ms=stopped_ns // 1_000_000)
        self._flows.give_handles_up()

    def set_able(self, *, is_able: bool) -> None:
        """Set whether messages can be handled here. While they cannot, the queues go to members that can handle them.

        The queues stay if members are counted, or do not talk to each other: then no other member could be given them.
        """
        if self._control is not None:
            self._control.set_weight(self._settings.membership.weight if is_able else 0)

    @property
    def runners(self) -> list[FlowRunner]:
        """Its flows, by the index of their queue."""
        return self._flows.runners

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
        """Run until stopped, and return how the member left; if stopped before its lifespans have begun, bind nothing.

        When cancelled, it does what `stop_now` does and then passes the cancellation on.

        Raises `ConfigError` if the broker does not know or does not allow what the settings say, `HandlerError` if a
        lifespan fails to begin or none yields what a handler asks for, and `MemberSuperseded` if it stood aside for
        another process with its id, which has gone.
        """
        lived = AsyncExitStack()
        # Left last: lifespans are the user's code too, and what ends them may fork.
        lived.enter_context(forked_ended())
        try:
            with self._leaving.beginning:
                if not self._leaving.has_begun:
                    # No bound: lifespans may wait for something that others start, or for the broker; `stop` ends that.
                    await self._look_at_queues_aside()
                    await lived.enter_async_context(self._resources.entered(self._handlers.lifespans))
            if self._leaving.has_begun:
                # Nothing is bound yet, and no other member knows of this one.
                return self._left(StopReport(left_behind=0, still_bound=0))
            check_states(self._handlers, self._resources)
            # Hooks are called in turns, and must see the context variables that lifespans have set.
            self._turns.keep_context()
            return await self._run()
        finally:
            self._leaving.end()
            with self._leaving.end_of_lifespans:
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
            self._flows.run(group)
            try:
                # No bound: a member runs until told to leave; leaving has its bounds.
                await self._flows.have_left.wait()
            except asyncio.CancelledError:
                self.stop_now()
                # Bounded by the tail's timer, which ends the wait.
                with anyio.CancelScope(shield=True):
                    await self._flows.have_left.wait()
                raise
            finally:
                still_bound = self._flows.still_bound
                self._flows.cancel()
                for helper in helpers:
                    helper.cancel()
        report = self._left(StopReport(self._flows.left_behind, still_bound))
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

    def _refuse(self, error: LbgError) -> None:
        self._refusal = self._refusal or error
        self.stop()

    async def _report_status(self) -> None:
        while True:
            await asyncio.sleep(STATUS_INTERVAL_S)
            self._dispatcher.note_awake()
            for runner in self.runners:
                self._journal.status(runner.queue_index, runner.machine, runner.handled)
            self._journal.flush()
            self._flows.end_drains_in_vain(self._dispatcher.is_stopped)

    # -- how it leaves

    def stop(self) -> None:
        """Leave: drain every flow, unbind, end. Returns at once; idempotent."""
        self._leaving.stop()

    def stop_now(self) -> None:
        """Leave without waiting for handlers: they are cancelled, and settle nothing. A lifespan that is beginning or
        ending is cancelled, too.

        Another call does nothing more to handlers, but cancels such a lifespan again.
        """
        self._leaving.stop_now()

    # -- what its flows tell

    def flow_changed(self, runner: FlowRunner) -> None:
        """See `FlowOwner`."""
        self._recorder.flow_changed(
            runner.queue_index, runner.machine, runner.unanswered, is_released=runner.is_released
        )
        if self._companion is not None:
            is_kept = runner.machine.state in (FlowState.STANDBY, FlowState.ACTIVE)
            self._companion.flow_changed(runner.machine.queue, runner.machine.epoch, is_kept=is_kept)
        if self._control is not None:
            self._control.flow_changed()

    def settled(self, runner: FlowRunner, handling: Handling) -> None:
        """See `FlowOwner`."""
        self._key_book.settled(handling)
        topic = self._settings.ops.journal.republish_topic
        if topic is not None:
            self._session.send_direct(Message(topic, note_of(handling, runner.machine.queue, self._member)))

    def bind_refused(self, runner: FlowRunner, refusal: BindFailed) -> None:
        """See `FlowOwner`."""
        if self._flows.note_refusal(runner):
            expected = bindable(self._settings)
            self._refuse(ConfigError("group.name", f"queue {refusal.queue}: {refusal.reason}", expected))

    def stripes_told(self, runner: FlowRunner, news: StripesNews) -> None:
        """See `FlowOwner`."""
        _log.info("stripes_told", queue=runner.machine.queue, epoch=runner.machine.epoch, **facts_of(news))
        if self._control is not None:
            self._control.stripes_told(runner.queue_index, news)

    def probe_asked(self, probe: ProbeAsked) -> None:
        """See `FlowOwner`."""
        if self._control is not None:
            self._control.probe_asked(probe)


def _not_made_by_lbg(settings: Settings) -> Set[str]:
    """The settings that name queues of others, which no command of ours makes."""
    if settings.group.backend is GroupBackend.PARTITIONED or settings.error_queue != settings.error_topic:
        return {"failure.dead_message_queue", "failure.error_queue"}
    return {"failure.dead_message_queue"}
