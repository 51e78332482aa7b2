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
"""Handlers that never wait would otherwise keep the loop from everything else."""

_Answer = TypeVar("_Answer")

TurnHandler = Callable[[Lane[Handling], "asyncio.Task[object]"], Awaitable[None]]
"""Takes the turn of a lane, in the task that is given too."""


class RunnerPool:
    """Belongs to one dispatcher. A turn's handler must not raise, but to end the process or when it is cancelled."""

    def __init__(self, lanes: KeyLanes[Handling], runner_count: int, handle_turn: TurnHandler) -> None:
        self._lanes = lanes
        self._runner_count = runner_count
        self.batch_turns = BatchTurns(runner_count)
        self._handle_turn = handle_turn
        self._surplus = 0
        """Runners to end, because others were added in their place."""
        self._idle: deque[asyncio.Future[None]] = deque()
        self._is_waking = False
        self._soiled: set[asyncio.Task[object]] = set()
        """Runners whose context a handler has changed."""
        self._is_ending = False
        """Runners are cancelled, or will be: the pool is, or a task of it has failed."""
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
                # No bound: until cancelled. The group is not left to wait for its end, as it would take no task then
                # and not say so.
                await asyncio.get_running_loop().create_future()
            finally:
                self._is_ending = True
                self._group = None

    def wake(self) -> None:
        """See to it that a ready lane gets a runner, if one is idle."""
        # One at a time: who wakes up hands on where more is ready, so a burst wakes no runner for nothing.
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
        """Whether it runs and is not about to end."""
        return self._group is not None and not self._is_ending

    def start(self, work: Callable[[], Coroutine[object, object, _Answer]]) -> "asyncio.Task[_Answer]":
        """A task beside the turns, which ends with them at the latest; `work` is not called where it ends before."""
        if self._group is None or self._context is None:
            raise InvariantViolated("a task was started beside a pool that does not run")
        return self._group.create_task(self._beside(work), context=self._context.copy())

    async def take_back(self, task: "asyncio.Task[object]") -> None:
        """In a runner, when what it called is out and has left its task cancelled: make the task as good as new.

        Cancelled were a handler that took too long or was recalled, or it cancelled itself, or a task group in it did,
        which until Python 3.13 does not undo that where a child fails at its end. Raises `CancelledError` where the
        runner is to end.
        """
        with suppress(asyncio.CancelledError):
            # What was not delivered yet would hit the next handler.
            await asyncio.sleep(0)
        self._forget_cancellations(task)

    def soil(self, task: "asyncio.Task[object]") -> None:
        """In a runner: a handler left its context changed, and the next turn must not see that."""
        self._soiled.add(task)

    def stand_in(self) -> None:
        """Add a runner in place of one that hangs, for as long as that hangs."""
        if self._group is not None and not self._is_ending:
            self._add_runner(self._group)

    def stand_down(self) -> None:
        """The one that hung goes on: called within its turn, ends its runner after it, or an idle one before."""
        self._surplus += 1

    def _add_runner(self, group: asyncio.TaskGroup) -> None:
        # In a context of its own, not in that of the turn in which it is added.
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
                # Where the runner is not to end, what cancels a handler came when the handler was out.
                self._forget_cancellations(task)
            except BaseException:
                self._is_ending = True
                raise
            else:
                return

    async def _take_turns_until_surplus(self, task: "asyncio.Task[object]") -> None:
        turns = 0
        while True:
            # Before a turn, so that one that is to end runs no handler beside the others first; and with no pause since
            # the last turn, as one that is soiled is to end itself.
            if self._surplus:
                self._surplus -= 1
                self.wake()
                return
            if turns == TURNS_WITHOUT_A_PAUSE:
                turns = 0
                await asyncio.sleep(0)
            lane = self._lanes.next_ready()
            if lane is None:
                await self._wait_for_turn()
                turns = 0
                continue
            # Handed over before the handler may wait, so that one that waits strands no other key.
            if not self._is_waking:
                self.wake()
            await self._handle_turn(lane, task)
            turns += 1
            if self._soiled and task in self._soiled:
                self._soiled.remove(task)
                self.stand_in()
                self.stand_down()

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
                # Also where it is cancelled when it has been woken.
                self._is_waking = False


def is_changed(context: Context) -> bool:
    """Whether the current context is another than when this copy of it was made."""
    try:
        # Where nobody set anything this compares two pointers.
        return copy_context() != context
    except Exception:  # noqa: BLE001 - values of others, which need not be comparable, nor say so in a certain way
        return True


CURRENT_POOL: ContextVar[RunnerPool] = ContextVar("CURRENT_POOL")
"""In a runner: the pool that it belongs to."""


@contextmanager
def aside() -> Iterator[None]:
    """In a turn: its handler waits for something that other turns, or somebody else, will bring.

    Another runner takes its place meanwhile, so that as many handlers run as ever.
    """
    pool = CURRENT_POOL.get(None)
    if pool is None:
        yield
        return
    pool.stand_in()
    try:
        yield
    finally:
        pool.stand_down()
