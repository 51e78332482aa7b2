"""A fixed number of long-lived tasks that take the turns of ready lanes; no task is made per message."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from typing import TypeVar

from lbg_runtime.core.lanes import KeyLanes, Lane
from lbg_runtime.model.errors import InvariantViolated
from lbg_runtime.runtime.runners.batch_turns import BatchTurns
from lbg_runtime.runtime.runners.handling import Handling

TURNS_WITHOUT_A_PAUSE = 32
"""How many turns a runner takes in a row: without a pause, handlers that never wait would keep the loop from everything
else."""

LONGEST_WITHOUT_A_PAUSE_NS = 20_000_000
"""How long all runners together take turns without a pause, if handlers block. Nothing is settled meanwhile: handlers
of which each blocks for much less than the watchdog allows could together exceed its limit. The member would be ended,
and begin again with the same messages, for ever."""

_Answer = TypeVar("_Answer")

TurnHandler = Callable[[Lane[Handling], "asyncio.Task[object]"], Awaitable[None]]
"""Takes the turn of a lane, in the given task."""


class RunnerPool:
    """One per dispatcher, on its loop. The turn handler must not raise, except to end the process or when cancelled."""

    def __init__(self, lanes: KeyLanes[Handling], runner_count: int, handle_turn: TurnHandler) -> None:
        self._lanes = lanes
        self._runner_count = runner_count
        self.batch_turns = BatchTurns(runner_count)
        self._handle_turn = handle_turn
        self._surplus = 0
        """How many runners are to end, because others were added in their place."""
        self._idle: deque[asyncio.Future[None]] = deque()
        self._is_waking = False
        self._now_ns: Callable[[], int] | None = None
        """Set by `limit_turns`."""
        self._turns_since_ns: int | None = None
        """When the first turn of this round of the loop began, if turns are limited."""
        self._soiled: set[asyncio.Task[object]] = set()
        """Runners whose context a handler has changed."""
        self._is_ending = False
        """Whether runners are being cancelled or will be: the pool is cancelled, or one of its tasks has failed."""
        self._group: asyncio.TaskGroup | None = None
        self._context: Context | None = None

    async def run(self) -> None:
        """Take turns until cancelled; on return no handler of the pool runs."""
        self._context = copy_context()
        self._context.run(CURRENT_POOL.set, self)
        async with asyncio.TaskGroup() as self._group:
            try:
                for _ in range(self._runner_count):
                    self._add_runner(self._group)
                # No bound: until cancelled. The block is not left earlier, because a group that waits for its end may
                # silently start no more tasks.
                await asyncio.get_running_loop().create_future()
            finally:
                self._is_ending = True
                self._group = None

    def limit_turns(self, now_ns: Callable[[], int]) -> None:
        """From now on, pause as `LONGEST_WITHOUT_A_PAUSE_NS` says, by this clock.

        Not done where nobody ends a blocked loop, as in virtual time: there, the order of turns depends on no clock.
        """
        self._now_ns = now_ns

    def wake(self) -> None:
        """Give a ready lane a runner, if one is idle."""
        # One at a time: a runner that wakes up wakes the next if more is ready, so a burst wakes none for nothing.
        if self._is_waking or not self._lanes.ready:
            return
        while self._idle:
            wake_up = self._idle.popleft()
            if not wake_up.done():  # done: its runner was cancelled
                self._is_waking = True
                wake_up.set_result(None)
                return

    @property
    def is_open(self) -> bool:
        """Whether the pool goes on, so that what is started now may come to its end; for what the pool runs."""
        return not self._is_ending

    def start(self, work: Callable[[], Coroutine[object, object, _Answer]]) -> "asyncio.Task[_Answer]":
        """Start `work` as a task beside the turns, which is cancelled when they are; a task that is cancelled before it
        has begun does not call `work`."""
        if self._group is None or self._context is None:
            raise InvariantViolated("a task was started beside a pool that does not run")
        return self._group.create_task(self._beside(work), context=self._context.copy())

    async def take_back(self, task: "asyncio.Task[object]") -> None:
        """Make a runner's task as good as new after a handler that has ended and left it cancelled. Called in the task.

        Either the handler took too long or was recalled; or it cancelled itself; or a task group in it did, which
        before Python 3.13 does not undo that if a child fails at the group's end. Raises `CancelledError` if the runner
        is to end.
        """
        with suppress(asyncio.CancelledError):
            # A cancellation that is not delivered yet would hit the next handler.
            await asyncio.sleep(0)
        self._forget_cancellations(task)

    def soil(self, task: "asyncio.Task[object]") -> None:
        """In a runner: note that a handler left the context changed, which the next turn must not see."""
        self._soiled.add(task)

    def stand_in(self) -> None:
        """Add a runner in place of one that hangs, as long as it hangs."""
        if self._group is not None and not self._is_ending:
            self._add_runner(self._group)

    def stand_down(self) -> None:
        """Take one runner away, as the one that hung goes on: the next that would begin a turn ends instead."""
        self._surplus += 1

    def _add_runner(self, group: asyncio.TaskGroup) -> None:
        # In a fresh context, not in that of the turn in which it is added.
        context = None if self._context is None else self._context.copy()
        group.create_task(self._take_turns(), name="lbg-runner", context=context)

    async def _take_turns(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise InvariantViolated("a runner was started outside a task")
        while True:
            try:
                await self._take_turns_until_surplus(task)
            except asyncio.CancelledError:
                # If the runner is not to end, this was meant for a handler, and came after the handler had ended.
                self._forget_cancellations(task)
            except BaseException:
                self._is_ending = True
                raise
            else:
                return

    async def _take_turns_until_surplus(self, task: "asyncio.Task[object]") -> None:
        turns = 0
        while True:
            # Checked before a turn, so that a surplus runner does not first run one more handler; and without a pause
            # since the last turn, so that a soiled runner ends itself and no other.
            if self._surplus:
                self._surplus -= 1
                self.wake()
                return
            now_ns, since_ns = self._now_ns, self._turns_since_ns
            if turns == TURNS_WITHOUT_A_PAUSE or (
                now_ns is not None and since_ns is not None and now_ns() - since_ns > LONGEST_WITHOUT_A_PAUSE_NS
            ):
                await asyncio.sleep(0)
                turns = 0
                continue
            lane = self._lanes.next_ready()
            if lane is None:
                await self._wait_for_turn()
                turns = 0
                continue
            # The next runner is woken before the handler runs: if this one waits, other ready keys must not.
            if not self._is_waking:
                self.wake()
            if now_ns is not None and since_ns is None:
                self._begin_round(now_ns())
            await self._handle_turn(lane, task)
            turns += 1
            if self._soiled and task in self._soiled:
                self._soiled.remove(task)
                self.stand_in()
                self.stand_down()

    def _begin_round(self, now_ns: int) -> None:
        self._turns_since_ns = now_ns
        # Called in the next round of the loop, before any runner that pauses after this.
        asyncio.get_running_loop().call_soon(self._end_round)

    def _end_round(self) -> None:
        self._turns_since_ns = None

    async def _beside(self, work: Callable[[], Coroutine[object, object, _Answer]]) -> _Answer:
        try:
            return await work()
        except asyncio.CancelledError:
            raise
        except BaseException:
            # The group now cancels the runners.
            self._is_ending = True
            raise

    def _forget_cancellations(self, task: "asyncio.Task[object]") -> None:
        if self._is_ending:
            raise asyncio.CancelledError
        while task.cancelling():
            task.uncancel()

    async def _wait_for_turn(self) -> None:
        wake_up = asyncio.get_running_loop().create_future()
        self._idle.append(wake_up)
        try:
            await wake_up
        finally:
            if wake_up.done() and not wake_up.cancelled():
                # Even if this runner was cancelled after it had been woken.
                self._is_waking = False


def is_changed(context: Context) -> bool:
    """Whether the current context has changed since this copy of it was made."""
    try:
        # If nothing was set, this compares two pointers.
        return copy_context() != context
    except Exception:  # noqa: BLE001 - the values are the user's: to compare them may raise anything
        return True


def is_closed(task: "asyncio.Task[object]") -> bool:
    """In a coroutine of the task: whether the coroutine is being closed, as when its loop has ended, so that it must
    not wait again.

    By the `GeneratorExit` alone, that cannot be told from a handler that raises one itself.
    """
    # While a task runs, it is the current one, and its coroutine cannot be closed.
    return asyncio.current_task(task.get_loop()) is not task


CURRENT_POOL: ContextVar[RunnerPool] = ContextVar("CURRENT_POOL")
"""In a runner: the pool that it belongs to."""


@contextmanager
def aside() -> Iterator[None]:
    """For a handler, in a turn, that waits for something that other turns or other parties bring: while the context
    lasts, another runner takes the place of this one, so that as many handlers run as before.
    """
    pool = CURRENT_POOL.get()
    pool.stand_in()
    try:
        yield
    finally:
        pool.stand_down()
