"""A fixed number of long-lived tasks that take the turns of ready lanes; no task is made per message."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from typing import TypeVar

from lbg_runtime.core.lanes import KeyLanes, Lane
from lbg_runtime.model.errors import InvariantViolated
from lbg_runtime.runtime.attempts import this_task
from lbg_runtime.runtime.handling import Handling

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
        self._handle_turn = handle_turn
        self._surplus = 0
        """Runners to end, because others were added in their place."""
        self._idle: deque[asyncio.Future[None]] = deque()
        self._is_waking = False
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

    def start(self, work: Coroutine[object, object, _Answer]) -> "asyncio.Task[_Answer]":
        """A task beside the turns, which ends with them at the latest."""
        if self._group is None or self._context is None:
            work.close()
            raise InvariantViolated("a task was started beside a pool that does not run")
        return self._group.create_task(work, context=self._context.copy())

    def stand_in(self) -> None:
        """Add a runner in place of one that hangs, for as long as that hangs."""
        if self._group is not None:
            self._add_runner(self._group)

    def stand_down(self) -> None:
        """The one that hung goes on: called within its turn, ends its runner after it."""
        self._surplus += 1

    def _add_runner(self, group: asyncio.TaskGroup) -> None:
        # In a context of its own, not in that of the turn in which it is added.
        context = None if self._context is None else self._context.copy()
        group.create_task(self._take_turns(), name="lbg-runner", context=context)

    async def _take_turns(self) -> None:
        task = this_task()
        turns = 0
        while True:
            lane = self._lanes.next_ready()
            if lane is None:
                await self._wait_for_turn()
                turns = 0
                continue
            # Handed over before the handler may wait, so that one that waits strands no other key.
            if not self._is_waking:
                self.wake()
            await self._handle_turn(lane, task)
            if self._surplus:
                self._surplus -= 1
                self.wake()
                return
            turns += 1
            if turns == TURNS_WITHOUT_A_PAUSE:
                turns = 0
                await asyncio.sleep(0)

    async def _wait_for_turn(self) -> None:
        wake_up = asyncio.get_running_loop().create_future()
        self._idle.append(wake_up)
        await wake_up
        self._is_waking = False


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
