"""What a user runs: handlers and settings, made into a member."""

import asyncio
import os
import random
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
import uvloop

from lbg_runtime.admin.stored import load_group_settings, watch_of
from lbg_runtime.config.broker_names import check_client_name, client_name
from lbg_runtime.config.settings import GroupBackend, Settings
from lbg_runtime.model.errors import ConfigError, ConnectFailed, HandlerError, InvariantViolated
from lbg_runtime.runtime.companion import Companion
from lbg_runtime.runtime.handlers.lifespan import LifespanFailed
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.runtime.journal import open_journal
from lbg_runtime.runtime.membership import Membership, find_membership
from lbg_runtime.runtime.meters import MemberMeters
from lbg_runtime.runtime.session import Session, open_session
from lbg_runtime.runtime.shutdown import EXIT_GRACE_S, ExitGuard
from lbg_runtime.runtime.stop import StopCause, stop_requests
from lbg_runtime.runtime.supervisor import TAIL_MS, StopReport, Supervisor, provision_queues
from lbg_runtime.runtime.watchdog import watched_loop

if TYPE_CHECKING:
    from lbg_runtime.status.server import StatusServer

_log = structlog.get_logger(__name__)

RUN_VARIABLE = "LBG_RUN_ID"
"""Environment variable that names the run in the journal, so that the records of one trial can be told from others."""

USER_MISTAKE = 2
"""Exit code of a member that was given something wrong, or could not reach the broker when it started.

To start it again would change nothing, where it was not at work before. No handler has a say in it.
"""


class App:
    """One member of a group. `run_sync` for a process of its own, `run` inside a program that has an event loop.

    Everything that can be wrong with handlers, settings or the broker's address is raised as `UserError` before the
    first message is taken.
    """

    def __init__(
        self,
        handlers: Handlers,
        settings: Settings | Path | str,
        *,
        member_index: int | None = None,
        member_count: int | None = None,
        member_id: str | None = None,
        session: Session | None = None,
        companion: Companion | None = None,
    ) -> None:
        """`settings` may be the path of their file. `session`: a transport to use, and to open and close, instead.

        `companion` lives beside the member; the one of a sidecar is made by `sidecar.sidecar_app`.
        """
        self.settings = settings if isinstance(settings, Settings) else load_group_settings(Path(settings))
        if not handlers:
            raise HandlerError("handlers", "none", "at least one function with @handlers.handler(...)")
        if self.settings.sidecar is not None and companion is None:
            raise ConfigError("sidecar", "set for an App of handlers", "`lbg run`, or `sidecar_app` for the App")
        self._companion = companion
        self._handlers = handlers
        self._session = session
        self.membership = find_membership(
            self.settings.membership,
            self.settings.group.queue_count,
            os.environ,
            socket.gethostname(),
            os.getpid(),
            member_index,
            member_count,
            member_id,
        )
        if session is None:
            check_client_name(self.settings.group.name, self.membership.member, self.settings.connection.client_name)
        self._supervisor: Supervisor | None = None
        self._stop_wanted = False
        self._was_run = False

    @property
    def handlers(self) -> Handlers:
        """What it handles messages with."""
        return self._handlers

    async def run(self) -> StopReport:
        """Be a member until `stop`; how it left. Takes no signals. Cancelled, it cancels its handlers and unbinds.

        Asked to stop while it connects, it has left cleanly even where it cannot connect. Raises `LifespanFailed` where
        a lifespan cancels it, `MemberSuperseded` where it stood aside for another process with its id, which has gone.
        Once: raises `InvariantViolated` for a second time.
        """
        if self._was_run:
            raise InvariantViolated("an App is a member once; make another one")
        self._was_run = True
        group = self.settings.group
        for warning in shape_warnings(self.settings, self.membership):
            _log.warning("group_uneven", group=group.name, reason=warning)
        journal_path = self.settings.ops.journal.path
        journal = open_journal(
            Path(journal_path) if journal_path else None,
            group.shape(),
            self.membership.member,
            os.environ.get(RUN_VARIABLE, ""),
            # Counted only where somebody can ask for it.
            MemberMeters() if self.settings.ops.status is not None else None,
            group.backend.value,
        )
        is_clean = False
        task = asyncio.current_task()
        cancelled_before = task.cancelling() if task is not None else 0
        status = self._status_server()
        try:
            async with (
                status or nullcontext(),
                self._open_session() as session,
                self._attended(session),
                self._settings_watched() as changed_settings,
            ):
                supervisor = Supervisor(
                    self.settings, self.membership, self._handlers, session, journal, random.Random(), self._companion
                )
                self._supervisor = supervisor
                if self._stop_wanted:
                    supervisor.stop()
                if status is not None:
                    sight = supervisor.sight()
                    sight.changed_settings = changed_settings
                    status.show(sight)
                report = await supervisor.run()
                if status is not None:
                    # Beside the end of the session, so that leaving takes no longer for it.
                    status.stop()
            is_clean = report.is_clean
            return report
        except (ConfigError, ConnectFailed) as error:
            if not self._stop_wanted or self._supervisor is not None:
                raise
            # It was to leave, and has bound nothing: what kept it from the broker is nobody's concern any more.
            _log.info("left_before_start", member=self.membership.member, reason=str(error))
            is_clean = True
            return StopReport(left_behind=0, still_bound=0)
        except asyncio.CancelledError as cancellation:
            # A task group or the like ends the task that it is in, and takes that back when it is left.
            if not self._handlers.lifespans or (task is not None and task.cancelling() > cancelled_before):
                raise
            raise LifespanFailed from cancellation
        finally:
            self._supervisor = None
            journal.close(clean=is_clean)

    def run_sync(self, *, parent_pid: int | None = None, ends_process: bool = False) -> StopReport:
        """Be a member until SIGTERM or SIGINT, or until this parent process is gone; how it left.

        `ends_process`: nothing follows but the end of the process, so both signals are ignored once it has left. See
        that what follows has a bound.

        Ends the process with exit code 1 if handlers, lifespans or their threads keep it from leaving long after its
        deadlines, or block the event loop for longer than `ops.watchdog`. A `SystemExit` of a handler is raised, with 1
        where it says 0, as what it was called for is left, or `USER_MISTAKE`.
        """
        guard = ExitGuard()
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                return runner.run(self._run_as_process(guard, parent_pid, ends_process=ends_process))
        except SystemExit as leaving:
            _log.error("ended_by_handler", exit_code=leaving.code)
            if leaving.code and leaving.code != USER_MISTAKE:
                raise
            raise SystemExit(1) from leaving
        finally:
            # Only here: the runner waits for the threads of what was cancelled.
            guard.disarm()

    def stop(self) -> None:
        """Drain, unbind and leave; `stop_now` cuts it short. On the loop's thread."""
        self._stop_wanted = True
        if self._companion is not None:
            self._companion.leave()
        if self._supervisor is not None:
            self._supervisor.stop()

    def stop_now(self) -> None:
        """Leave without waiting: handlers are cancelled, their messages come again. On the loop's thread."""
        self._stop_wanted = True
        if self._companion is not None:
            self._companion.leave()
        if self._supervisor is not None:
            self._supervisor.stop_now()

    async def _run_as_process(self, guard: ExitGuard, parent_pid: int | None, *, ends_process: bool) -> StopReport:
        tail_s = 2 * TAIL_MS / 1_000 + EXIT_GRACE_S

        def leave(cause: StopCause) -> None:
            _log.info("stop_requested", cause=cause.value)
            # Whoever asks twice is in a hurry; a parent that ends after its signal is not.
            if self._stop_wanted and cause is not StopCause.PARENT_GONE:
                guard.arm(tail_s)
                self.stop_now()
            elif not self._stop_wanted:
                guard.arm(self.settings.rebind.drain_timeout_ms / 1_000 + tail_s)
                self.stop()

        with (
            stop_requests(leave, parent_pid=parent_pid, ends_process=ends_process),
            watched_loop(self.settings.ops.watchdog_ms),
        ):
            try:
                return await self.run()
            finally:
                # The runner waits for what is on threads, also where nobody has asked this process to leave. It has
                # left: the rest of the drain timeout is not for that.
                guard.arm(tail_s)

    def _be_able(self, is_able: bool) -> None:
        if self._supervisor is not None:
            self._supervisor.be_able(is_able=is_able)

    def _status_server(self) -> "StatusServer | None":
        ops = self.settings.ops
        if ops.status is None:
            return None
        # Imported here, because most members of a test or a trial serve nothing.
        from lbg_runtime.status.server import StatusServer

        return StatusServer(ops.status, ops.status_token.get_secret_value() if ops.status_token else None)

    @asynccontextmanager
    async def _settings_watched(self) -> AsyncIterator[Callable[[], tuple[str, ...]]]:
        """Names of settings that are others on the broker by now: said, and not acted on."""
        # A member goes on with what it has started with: its queues are still its own, and which key goes where is the
        # publishers' to change.
        watch = watch_of(self.settings, random.Random())
        if watch is None:
            yield tuple
            return
        looking = asyncio.create_task(watch.run())
        try:
            yield lambda: tuple(each.setting for each in watch.found)
        finally:
            looking.cancel()
            await asyncio.wait([looking])

    @asynccontextmanager
    async def _attended(self, session: Session) -> AsyncIterator[None]:
        # Before a companion begins to publish: the broker confirms what no queue attracts, and nobody gets it.
        await provision_queues(session, self.settings.group)
        if self._companion is None:
            yield
            return
        async with self._companion.attend(session, self._be_able):
            # No bound: it waits for what somebody else starts; a request to stop ends that.
            await self._companion.until_ready()
            if not self._stop_wanted:
                # Again, as that may have been long, and queues that are missing now would be taken for a mistake.
                await provision_queues(session, self.settings.group)
            yield

    @asynccontextmanager
    async def _open_session(self) -> AsyncIterator[Session]:
        if self._session is None:
            settings = self.settings
            name, path = client_name(settings.group.name, self.membership.member), settings.transport.client_path
            cap = settings.dispatch.max_in_flight
            async with open_session(settings.connection, name, path, max_in_flight=cap) as session:
                yield session
            return
        await self._session.open()
        try:
            yield self._session
        finally:
            await self._session.close()


def shape_warnings(settings: Settings, membership: Membership) -> list[str]:
    """What is allowed and probably not meant."""
    group = settings.group
    warnings: list[str] = []
    if group.backend is GroupBackend.PARTITIONED:
        return warnings
    if not group.shape().is_even:
        warnings.append(f"{group.hash_count} shards do not divide evenly among {group.queue_count} queues")
    place = membership.place
    if place is not None and group.queue_count % place.count:
        warnings.append(f"{group.queue_count} queues do not divide evenly among {place.count} members")
    return warnings
