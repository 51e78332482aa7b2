"""One life of a member in a test: its own process, as far as one event loop can play several."""

import asyncio
import random
from collections.abc import Callable
from contextvars import Context
from enum import Enum

from lbg_runtime.config.settings import Settings
from lbg_runtime.runtime.handlers.lifespan import LifespanFailed
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.runtime.journal import MemberJournal
from lbg_runtime.runtime.membership import Membership
from lbg_runtime.runtime.provisioning import provision_queues
from lbg_runtime.runtime.shutdown import TAIL_MS
from lbg_runtime.runtime.supervisor import StopReport, Supervisor
from lbg_runtime.testing.failures import NotReached
from lbg_runtime.testing.freezer import Freezer
from lbg_runtime.testing.group_broker import GroupBroker
from lbg_runtime.testing.handler_watch import CURRENT_WATCH, HandlerWatch, Wrapper
from lbg_runtime.testing.life_records import LifeRecords
from lbg_runtime.testing.moments import Moments
from lbg_runtime.transport.memory.transport import RECONNECT_WAIT_S

KEEP_ALIVE_S = 10.5
"""How long a broker keeps the connection of a silent client."""


class LifeState(Enum):
    """The state of a member; the values appear in messages to the user."""

    RUNNING = "running"
    PARTITIONED = "partitioned"
    PAUSED = "paused"
    KILLED = "killed"
    STOPPED = "stopped"
    """It was asked to leave; it may still be leaving."""


class Life:
    """Begins when it is created. Called by the group, on the event loop and outside the life's own context."""

    def __init__(
        self,
        number: int,
        membership: Membership,
        settings: Settings,
        handlers: Handlers,
        broker: GroupBroker,
        moments: Moments,
        seed: int,
        around: Wrapper | None,
        on_change: Callable[[], None],
    ) -> None:
        """`number`: of this life in its group, from 1. `on_change` is called when something in it begins or ends."""
        self.member = membership.member
        self.is_counted = membership.place is not None
        self.backend = settings.group.backend
        self.number = number
        self.state = LifeState.RUNNING
        self.records = LifeRecords(moments)
        self.watch = HandlerWatch(self.member, moments, on_change, around)
        self.cut_off_ns: list[int] = []
        """Moments from which the test kept it without a connection, whether it knew or not."""
        self.resumed_ns: list[int] = []
        """Moments at which it went on after a pause, or a partition."""
        self.client_name = f"{self.member}/{number}"
        self._moments = moments
        self._session = broker.make_transport(self.client_name)
        self._drain_timeout_s = settings.rebind.drain_timeout_ms / 1_000
        chance = random.Random(f"{seed}/{self.member}/{number}")
        journal = MemberJournal(self.records, number)
        self._freezer = Freezer()
        self._keep_alive: asyncio.TimerHandle | None = None
        self._is_failure_told = False
        self._has_lifespans = bool(handlers.lifespans)
        self.supervisor: Supervisor | None = None
        """None until it is connected."""

        async def run() -> StopReport:
            await self._session.open()
            try:
                self.supervisor = Supervisor(
                    settings, membership, handlers.wrapped(self.watch.wrap), self._session, journal, chance
                )
                await provision_queues(self._session, settings.group)
                return await self.supervisor.run()
            finally:
                await self._session.close()
                left = None if self.supervisor is None else self.supervisor.report
                journal.close(clean=left is not None and left.is_clean)

        context = self._freezer.context()
        context.run(CURRENT_WATCH.set, self.watch)
        self._task = asyncio.get_running_loop().create_task(run(), context=context)
        self._task.add_done_callback(lambda _: on_change())

    @property
    def is_at_work(self) -> bool:
        """Whether it runs, reaches the broker, and has not been asked to leave."""
        return self.state is LifeState.RUNNING and not self._task.done()

    def take_failure(self) -> BaseException | None:
        """The error that ended it, if that was neither the test nor a stop; returned once."""
        if self._is_failure_told or self.watch.is_over or not self._task.done():
            return None
        failure = self._failure()
        if failure is not None:
            self._is_failure_told = True
            self.state = LifeState.STOPPED
        return failure

    def _failure(self) -> BaseException | None:
        """The error with which it has ended, as `App.run` would raise it."""
        if not self._task.cancelled():
            return self._task.exception()
        # The test cancels it only before it is connected.
        return None if self.supervisor is None or not self._has_lifespans else LifespanFailed()

    # -- faults

    def kill(self) -> None:
        """End as by SIGKILL: no further line of the process runs, and the broker sees the connection break."""
        self.state = LifeState.KILLED
        self.watch.is_over = True
        self.records.cut()
        self._freezer.freeze()
        self._session.kill()

    def partition(self) -> None:
        """Break the connection, and keep it from coming back."""
        self.state = LifeState.PARTITIONED
        self._session.may_reconnect = False
        self._lose_connection(self._moments.next_ns())

    def pause(self) -> None:
        """Stop the process; the broker finds out after `KEEP_ALIVE_S`, and breaks the connection."""
        self.state = LifeState.PAUSED
        self._freezer.freeze()
        self._session.may_reconnect = False
        paused_ns = self._moments.next_ns()
        # Not in the caller's context, which may be that of a handler of this process.
        self._keep_alive = asyncio.get_running_loop().call_later(
            KEEP_ALIVE_S, self._lose_connection, paused_ns, context=Context()
        )

    def recover(self) -> None:
        """End a partition or a pause."""
        self.state = LifeState.RUNNING
        self._session.may_reconnect = True
        if self._keep_alive is not None:
            self._keep_alive.cancel()
            self._keep_alive = None
        self.resumed_ns.append(self._moments.next_ns())
        self._freezer.thaw()

    # -- its end

    async def stop(self) -> StopReport:
        """Leave in good order; return how it left. Raises `NotReached` if a handler prevents that."""
        self.state = LifeState.STOPPED
        if self.supervisor is None:
            self._task.cancel()
        else:
            self.supervisor.stop()
        bound_s = self._drain_timeout_s + 3 * TAIL_MS / 1_000
        await asyncio.wait([self._task], timeout=bound_s)
        if not self._task.done():
            running = [attempt for attempt in self.watch.attempts if attempt.is_running]
            raise NotReached(
                f"{self.member} did not leave", bound_s, [f"{each}, though it was cancelled" for each in running]
            )
        self._is_failure_told = True
        if (failure := self._failure()) is not None:
            raise failure
        return StopReport(0, 0) if self._task.cancelled() else self._task.result()

    def end(self) -> None:
        """Kill it, if anything is left of it."""
        if not self._task.done() and not self.watch.is_over:
            self.kill()

    async def dispose(self) -> None:
        """Cancel what is left of a killed life. What its handlers then do does not count.

        A handler that catches every cancellation and goes on is stopped for good.
        """
        if not self._task.done():
            self._freezer.cancel()
            await asyncio.wait([self._task], timeout=3 * TAIL_MS / 1_000)
        if not self._task.done():
            # Time would jump from one of its timers to the next, for ever, while the loop's runner waits for it.
            self._freezer.freeze()

    def _lose_connection(self, since_ns: int) -> None:
        self.cut_off_ns.append(since_ns)
        Context().run(self._session.drop_connection, RECONNECT_WAIT_S)
