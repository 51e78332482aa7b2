"""An asyncio event loop on which waiting takes no time: sleeping jumps the clock to the next deadline.

Only for code whose every wait is a timer of this loop, or a thread that the loop has started (`asyncio.to_thread`,
`run_in_executor`): while such a thread works, time stands still. A loop with no timer, nothing ready and something
still awaited would wait forever, and one on which something is always ready would come to no timer; both are reported
as `VirtualTimeStall` instead.
"""

import asyncio
import selectors
from asyncio.futures import Future
from collections import Counter
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor
from contextvars import Context, ContextVar, copy_context
from selectors import SelectorKey
from time import thread_time
from typing import Any, TypeVar, TypeVarTuple, Unpack

from lbg_runtime.model.errors import LbgError
from lbg_runtime.testing.freezer import Step, freezer_of

THREAD_PATIENCE_S = 30.0
"""Real time that a thread may work while the loop has nothing else to do."""

MOMENT_PATIENCE_S = 30.0
"""Processor time that the loop may spend while time stands still. Not real time, which goes on in a debugger, too."""

_LOOK_EVERY_TURNS = 100

AT_WORK: ContextVar[str] = ContextVar("lbg_at_work")
"""In a handler: its name, for the text of a `VirtualTimeStall`."""

_Answer = TypeVar("_Answer")
_Args = TypeVarTuple("_Args")


class VirtualTimeStall(LbgError):
    """Every task waits for something that no timer will bring; or no timer's turn comes, as something is always ready.

    A callback or a task that never returns to the loop at all cannot be reported.
    """


class _JumpingSelector(selectors.DefaultSelector):
    """Polls without waiting, and advances the clock by the time that the loop was going to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.threads_at_work = 0
        self.stalled: VirtualTimeStall | None = None
        """To be raised next, once."""
        self.busy: Counter[str] | None = None
        """Counts who has something ready while it is to be found out why time stands still; otherwise None."""
        self._turns = 0
        """Since time has last moved."""
        self._began_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        if (stalled := self.stalled) is not None:
            self.stalled = None
            raise stalled
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            self._count_turn()
            return ready
        if self.threads_at_work:
            ready = super().select(THREAD_PATIENCE_S)
            if not ready:
                raise VirtualTimeStall(f"the test waits for a thread that is not done after {THREAD_PATIENCE_S:g} s")
            return ready
        if timeout is None:
            raise VirtualTimeStall("the test waits for something that no timer will bring")
        self.now_s += timeout
        self._turns, self.busy = 0, None
        return []

    def _count_turn(self) -> None:
        self._turns += 1
        if self._turns % _LOOK_EVERY_TURNS:
            return
        # Asked for at each jump of the clock, this was an eighth of the work of a loop that only jumps.
        if self._turns == _LOOK_EVERY_TURNS:
            self._began_s = thread_time()
            return
        if (busy := self.busy) is not None:
            # The tasks that are cancelled because of this error have as much time again.
            self._turns, self.busy = 0, None
            names = "".join(f"; most of all in {name}" for name, _ in busy.most_common(1))
            raise VirtualTimeStall(
                f"time stands still: after {MOMENT_PATIENCE_S:g} s of work something is ready again and again{names}"
            )
        if thread_time() - self._began_s >= MOMENT_PATIENCE_S:
            self.busy = Counter()


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A selector loop whose `time()` starts at 0 and jumps. Tasks can be started in the context of a `Freezer`."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        self.kit_asked_s = 0.0
        """When the test last asked something of a group (`OwnWait`)."""
        self.kit_waits = 0
        """How many waits of groups the test awaits."""
        super().__init__(self._jumping)

    def time(self) -> float:
        """Seconds of virtual time since the loop was created."""
        return self._jumping.now_s

    def stall(self, error: VirtualTimeStall) -> None:
        """Have what runs this loop raise this, from a callback that has found it."""
        self._jumping.stalled = error

    # -- what a freezer holds back

    def create_task(
        self,
        coro: Generator[Any, None, _Answer] | Coroutine[Any, Any, _Answer],
        **options: Any,
    ) -> asyncio.Task[_Answer]:
        task = super().create_task(coro, **options)
        freezer = freezer_of(options.get("context"))
        if freezer is not None:
            freezer.join(task)
        return task

    def call_soon(
        self, callback: Callable[[Unpack[_Args]], object], *args: *_Args, context: Context | None = None
    ) -> asyncio.Handle:
        if (busy := self._jumping.busy) is not None:
            name = AT_WORK.get(None) if context is None else context.get(AT_WORK)
            busy.update([] if name is None else [name])
        freezer = freezer_of(context)
        if freezer is None:
            return super().call_soon(callback, *args, context=context)
        step = Step(callback, args, context if context is not None else copy_context())
        step.handle = super().call_soon(freezer.take, step, context=step.context)
        return step.handle

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[_Args]], object],
        *args: *_Args,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        freezer = freezer_of(context)
        if freezer is None:
            return super().call_at(when, callback, *args, context=context)
        step = Step(callback, args, context if context is not None else copy_context())
        step.handle = timer = super().call_at(when, freezer.take, step, context=step.context)
        return timer

    # -- threads

    def run_in_executor(
        self,
        executor: Executor | None,
        func: Callable[[Unpack[_Args]], _Answer],
        *args: *_Args,
    ) -> Future[_Answer]:
        """See `asyncio.loop.run_in_executor`; time stands still until the thread is done."""
        answer = super().run_in_executor(executor, func, *args)
        self._jumping.threads_at_work += 1
        # In its own context, which no freezer holds back.
        answer.add_done_callback(self._thread_is_done, context=Context())
        return answer

    async def shutdown_default_executor(self, *bound: Any) -> None:
        self._jumping.threads_at_work += 1
        try:
            await super().shutdown_default_executor(*bound)
        finally:
            self._jumping.threads_at_work -= 1

    def _thread_is_done(self, _: Future[Any]) -> None:
        self._jumping.threads_at_work -= 1
