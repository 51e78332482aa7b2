"""`App`, the public entry point of a member: made of handlers and settings, it runs for one life of the member."""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    nullcontext,
)
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
import uvloop

from lbg_runtime.admin.stored import Difference, load_group_settings, watch_of, watching
from lbg_runtime.config.broker_names import check_client_name, client_name
from lbg_runtime.config.settings import GroupBackend, Provision, Settings
from lbg_runtime.journal.writer import RUN_VARIABLE
from lbg_runtime.model.errors import ConfigError, ConnectFailed, HandlerError, InvariantViolated
from lbg_runtime.runtime.companion import Companion
from lbg_runtime.runtime.handlers.lifespan import LifespanFailed
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.runtime.handlers.routes import moves_messages
from lbg_runtime.runtime.journal import open_journal
from lbg_runtime.runtime.membership import Membership, membership_of_process
from lbg_runtime.runtime.meters import MemberMeters
from lbg_runtime.runtime.own_task import until_ended
from lbg_runtime.runtime.provisioning import provision_queues
from lbg_runtime.runtime.session import Session, open_session
from lbg_runtime.runtime.shutdown import EXIT_GRACE_S, TAIL_MS, ExitGuard, Interruption, end_all_tasks, exit_code_of
from lbg_runtime.runtime.stop import StopCause, insist_on_own_loop, stop_requests
from lbg_runtime.runtime.supervisor import StopReport, Supervisor
from lbg_runtime.runtime.suspension import Suspension
from lbg_runtime.runtime.watchdog import watched_loop

if TYPE_CHECKING:
    from lbg_runtime.status.server import StatusServer

_log = structlog.get_logger(__name__)


def _tail_s() -> float:
    """How long a member may take to leave once it waits for no handler any more, in seconds."""
    return 2 * TAIL_MS / 1_000 + EXIT_GRACE_S


class App:
    """One member of a group. Use `run_sync` for a process of its own, `run` in a program that has an event loop.

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
        """`settings` may be the path of the file. `session`: a transport that it opens, uses and closes instead of one
        of its own.

        `companion` lives alongside the member; that of a sidecar is made by `sidecar.sidecar_app`.
        """
        self.settings: Settings = settings if isinstance(settings, Settings) else load_group_settings(Path(settings))
        """Those that it was made with, read if they were a file."""
        given: object = handlers  # Perhaps no type checker saw it.
        if not isinstance(given, Handlers):
            expected = "a Handlers, such as `orders.handlers` of a module `orders`"
            raise HandlerError("handlers", f"a {type(given).__name__}", expected)
        if not handlers:
            raise HandlerError("handlers", "none", "at least one function with @handlers.handler(...)")
        if self.settings.sidecar is not None and companion is None:
            raise ConfigError("sidecar", "set for an App of handlers", "`lbg run`, or `sidecar_app` for the App")
        self._companion = companion
        self._handlers = handlers
        self._session = session
        self.membership: Membership = membership_of_process(self.settings, member_index, member_count, member_id)
        if session is None:
            check_client_name(self.settings.group.name, self.membership.member, self.settings.connection.client_name)
        self._supervisor: Supervisor | None = None
        self._beginning = Interruption()
        """The scope in which it now connects, makes queues, or waits for its companion; a request to stop ends that."""
        self._stop_wanted = False
        self._is_able = True
        """What the companion has said last."""
        self._was_run = False
        self._hears_signals = False
        """Whether a SIGINT is a request to leave, and raises no `KeyboardInterrupt`."""
        self._begin_watch: Callable[[], Suspension | None] = lambda: None
        """Starts the watch on the loop; called before anything is bound."""

    @property
    def handlers(self) -> Handlers:
        """The handlers of its messages."""
        return self._handlers

    async def run(self) -> StopReport:
        """Be a member until `stop`; return how it left. Takes no signals. When cancelled, it cancels its handlers and
        unbinds; when cancelled again, it leaves the unbinding to the end of its session.

        If asked to stop while it connects, it gives up connecting and counts as having left cleanly. Raises
        `LifespanFailed` if a lifespan cancels it, and `MemberSuperseded` if it stood aside for another process with its
        id, which has gone.
        Runs once: a second call raises `InvariantViolated`.
        """
        if self._was_run:
            raise InvariantViolated("an App is a member once; make another one")
        self._was_run = True
        # A task of its own, to tell two kinds of cancellation apart: the caller's task is cancelled only from outside,
        # this one only by the member. With one task for both, `cancelling()` would not tell, because a task group may
        # leave a count behind (until Python 3.13).
        life = asyncio.get_running_loop().create_task(self._live())
        await until_ended(life)
        try:
            return life.result()
        except asyncio.CancelledError as cancellation:
            if not self._handlers.lifespans:
                raise
            raise LifespanFailed from cancellation

    async def _live(self) -> StopReport:
        group = self.settings.group
        for warning in shape_warnings(self.settings, self.membership):
            _log.warning("group_uneven", group=group.name, reason=warning)
        journal_path = self.settings.ops.journal.path
        journal = open_journal(
            Path(journal_path) if journal_path else None,
            group.shape(),
            self.membership.member,
            os.environ.get(RUN_VARIABLE, ""),
            # Nothing is metered unless somebody can ask for it.
            MemberMeters() if self.settings.ops.status is not None else None,
            group.backend.value,
        )
        status = self._status_server()
        try:
            async with (
                status or nullcontext(),
                self._open_session() as session,
                self._settings_watched() as changed,
                self._attended(session, changed),
            ):
                supervisor = Supervisor(
                    self.settings, self.membership, self._handlers, session, journal, random.Random(), self._companion
                )
                self._supervisor = supervisor
                if not self._is_able:
                    supervisor.set_able(is_able=False)
                if self._stop_wanted:
                    supervisor.stop()
                if status is not None:
                    source = supervisor.status()
                    source.changed_settings = lambda: tuple(each.setting for each in changed())
                    status.show(source)
                # Not before: if many members start at once, the imports of a start may block the loop for longer than
                # the watchdog's limit, although nobody waits for queues of this member yet.
                if (suspension := self._begin_watch()) is not None:
                    supervisor.heed(suspension)
                report = await supervisor.run()
                if status is not None:
                    # Here, so that it stops while the session ends, and leaving takes no longer.
                    status.stop()
            return report
        except (ConfigError, ConnectFailed) as error:
            if not self._stop_wanted or self._supervisor is not None:
                raise
            # It was asked to leave, and has bound nothing, so it no longer matters what kept it from the broker.
            _log.info("left_before_start", member=self.membership.member, reason=str(error))
            return StopReport(left_behind=0, still_bound=0)
        finally:
            ended, self._supervisor = self._supervisor, None
            # Reported also if it left because of an error, such as a superseding process that has gone. Without a
            # supervisor nothing was bound, whatever the reason.
            left = None if ended is None else ended.report
            journal.close(clean=ended is None or (left is not None and left.is_clean))

    def run_sync(self, *, parent_pid: int | None = None, ends_process: bool = False) -> StopReport:
        """Be a member until SIGTERM, SIGINT or SIGHUP, or until the process `parent_pid` has gone; return how it left.
        Only for the main thread, and only where no loop runs. In a notebook or an application server, use `run`.
        Raises what `run` raises.

        `ends_process`: the caller does nothing more but end the process, within a bound, so these signals are ignored
        once the member has left. Otherwise they do again what the program had told them to.

        Ends the process with exit code 1 if handlers, lifespans or their threads keep it from leaving long after its
        deadlines, or block the event loop for longer than `ops.watchdog`. A `SystemExit` of a handler is raised here. A
        code of 0 becomes 1, as the handler's message is left behind, and so does 2, which is for mistakes of the user.
        A `KeyboardInterrupt` of a handler becomes a `SystemExit` with 1; one from a signal is possible only before the
        member runs, and after it.
        """
        insist_on_own_loop()
        guard = ExitGuard()
        first: SystemExit | None = None
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                try:
                    return runner.run(self._run_as_process(guard, parent_pid, ends_process=ends_process))
                except BaseException as error:
                    # These two leave the loop at once, and asyncio's runner then waits for every other handler.
                    guard.arm(_tail_s())
                    given: object = None
                    if isinstance(error, SystemExit):
                        first, given = error, error.code
                    elif isinstance(error, KeyboardInterrupt) and self._hears_signals:
                        first, given = SystemExit(1), type(error).__name__
                    if first is not None:
                        # Logged now, as the guard may end the process while asyncio's runner waits.
                        _log.error("ended_by_handler", exit_code=exit_code_of(first.code), given=given)
                        end_all_tasks(runner)
                    raise
        except (SystemExit, KeyboardInterrupt) as last:
            # While asyncio's runner ended, another handler may have raised one.
            leaving = first or last
            if isinstance(leaving, KeyboardInterrupt):
                raise
            exit_code = exit_code_of(leaving.code)
            if leaving.code == exit_code or not isinstance(leaving.code, int | None):
                raise leaving from None
            raise SystemExit(exit_code) from leaving
        finally:
            # Only here: until now asyncio's runner may have waited for threads of what was cancelled.
            guard.disarm()

    def stop(self) -> None:
        """Drain, unbind and leave; `stop_now` cuts this short. Call it on the loop's thread."""
        self._stop_wanted = True
        self._beginning.cut()
        if self._supervisor is not None:
            self._supervisor.stop()

    def stop_now(self) -> None:
        """Leave without waiting: handlers are cancelled, their messages come again. Call it on the loop's thread."""
        self._stop_wanted = True
        self._beginning.cut()
        if self._supervisor is not None:
            self._supervisor.stop_now()

    async def _run_as_process(self, guard: ExitGuard, parent_pid: int | None, *, ends_process: bool) -> StopReport:
        def leave(cause: StopCause) -> None:
            _log.info("stop_requested", cause=cause.value)
            if self._stop_wanted and cause.hurries:
                guard.arm(_tail_s())
                self.stop_now()
            elif not self._stop_wanted:
                guard.arm(self.settings.rebind.drain_timeout_ms / 1_000 + _tail_s())
                self.stop()

        with stop_requests(leave, parent_pid=parent_pid, ends_process=ends_process), ExitStack() as watch:
            self._hears_signals = True
            self._begin_watch = lambda: watch.enter_context(watched_loop(self.settings.ops.watchdog_ms))
            try:
                return await self.run()
            finally:
                # Asyncio's runner waits for threads, even if nobody has asked this process to leave. The member has
                # left, so the guard allows no more than the tail: the rest of the drain timeout is for handlers.
                guard.arm(_tail_s())

    def _set_able(self, is_able: bool) -> None:
        self._is_able = is_able
        if self._supervisor is not None:
            self._supervisor.set_able(is_able=is_able)

    def _status_server(self) -> "StatusServer | None":
        ops = self.settings.ops
        if ops.status is None:
            return None
        # Imported here, because members in tests and trials mostly serve no status.
        from lbg_runtime.status.server import StatusServer

        token = ops.status_token.get_secret_value() if ops.status_token else None
        return StatusServer(ops.status, token, str if self._companion is None else self._companion.waits_for)

    @asynccontextmanager
    async def _settings_watched(self) -> AsyncIterator[Callable[[], tuple[Difference, ...]]]:
        """Yield a function that returns the settings that by now differ on the broker."""
        # They are only told. A member goes on with the settings it started with: its queues are still its own, and only
        # publishers decide where a key goes.
        watch = watch_of(self.settings, random.Random())
        if watch is None:
            yield tuple
            return

        def tell(error: Exception) -> None:
            _log.error("group_settings_not_watched", reason=str(error), exc_info=error)

        async with watching(watch, tell):
            yield lambda: watch.found

    @asynccontextmanager
    async def _attended(self, session: Session, changed: Callable[[], tuple[Difference, ...]]) -> AsyncIterator[None]:
        # Before a companion begins to publish: the broker confirms even a message that no queue attracts, and nobody
        # gets it.
        await self._provision(session)
        if self._companion is None:
            yield
            return
        async with AsyncExitStack() as attended:
            self._beginning = Interruption()
            with self._beginning:
                if not self._stop_wanted:
                    # No bound: the companion may wait for a disk, or for something that others start; `stop` ends that.
                    await attended.enter_async_context(self._companion.attend(session, self._set_able, changed))
                    await self._companion.until_ready()
            # Again: the wait may have been long, and queues that are missing now would count as a mistake.
            await self._provision(session)
            yield

    async def _provision(self, session: Session) -> None:
        # A new one each time, as an `Interruption` is entered only once.
        self._beginning = Interruption()
        with self._beginning:
            if not self._stop_wanted:
                await provision_queues(session, self.settings.group)

    @asynccontextmanager
    async def _open_session(self) -> AsyncIterator[Session]:
        session: Session | None = None
        async with AsyncExitStack() as opened:
            with self._beginning:
                if not self._stop_wanted:
                    session = await opened.enter_async_context(self._session_to_open())
            if session is None:
                host = ",".join(self.settings.connection.host)
                raise ConnectFailed(host, "no longer waited for, as the member is to leave")
            yield session

    def _session_to_open(self) -> AbstractAsyncContextManager[Session]:
        if self._session is not None:
            return _opened(self._session)
        settings = self.settings
        name, path = client_name(settings.group.name, self.membership.member), settings.transport.client_path
        makes_queues = settings.group.provision is Provision.CREATE_MISSING
        return open_session(
            settings.connection,
            name,
            path,
            max_in_flight=settings.dispatch.max_in_flight,
            # A trace context that others have put into a message must survive its move.
            carries_traces=settings.carries_traces or moves_messages(self._handlers, settings.failure),
            embedded_group=settings.group.shape() if makes_queues else None,
        )


@asynccontextmanager
async def _opened(session: Session) -> AsyncIterator[Session]:
    await session.open()
    try:
        yield session
    finally:
        await session.close()


def shape_warnings(settings: Settings, membership: Membership) -> list[str]:
    """Warnings about what is allowed but probably not meant."""
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
