"""Stops one of several processes that a test plays on one event loop, as SIGSTOP stops a real one."""

import asyncio
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from typing import Any


class Step:
    """A callback that a process has scheduled."""

    __slots__ = ("args", "callback", "context", "handle")

    def __init__(self, callback: Callable[..., object], args: tuple[object, ...], context: Context) -> None:
        self.callback = callback
        self.args = args
        self.context = context
        self.handle: asyncio.Handle | None = None
        """The handle by which its owner may cancel it."""


class Freezer:
    """Holds back the steps and timers of the tasks started in its context, and of all tasks that these start.

    Needs a `VirtualTimeLoop`. What others put into such a process (such as a broker's events) still gets there; nothing
    there looks at it.
    """

    def __init__(self) -> None:
        self._is_frozen = False
        self._held: list[Step] = []
        # A dict keeps the order in which they were started, unlike a set.
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def context(self) -> Context:
        """A copy of the current context for the first task of the process."""
        context = copy_context()
        context.run(_FREEZER.set, self)
        return context

    def freeze(self) -> None:
        """Take no further step of the process; one that is being taken goes on to its next `await`."""
        self._is_frozen = True

    def thaw(self) -> None:
        """Let the process go on, with what should have happened meanwhile, in that order."""
        self._is_frozen = False
        held, self._held = self._held, []
        loop = asyncio.get_running_loop()
        for step in held:
            loop.call_soon(_go_on, step, context=step.context)

    def cancel(self) -> None:
        """Cancel every task of the process, frozen or not, and let it go on, to the end of every task that obeys."""
        # All of them before the first goes on, so that none gets further than its next `await`.
        for task in list(self._tasks):
            task.cancel()
        self.thaw()

    def join(self, task: "asyncio.Task[Any]") -> None:
        """Called by the loop for every task that is started in the context."""
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop, context=Context())

    def take(self, step: Step) -> None:
        """Called by the loop, in the step's context, when the step is due."""
        if self._is_frozen:
            self._held.append(step)
        else:
            step.callback(*step.args)


def _go_on(step: Step) -> None:
    # A step that ran before it may have cancelled it.
    if step.handle is None or not step.handle.cancelled():
        step.callback(*step.args)


_FREEZER: ContextVar[Freezer | None] = ContextVar("lbg_freezer", default=None)


def freezer_of(context: Context | None) -> Freezer | None:
    """The freezer of this context, or of the current one."""
    return _FREEZER.get() if context is None else context.get(_FREEZER)
