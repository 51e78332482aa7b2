"""A call of the library that is interrupted at a step of its event loop, and what is then left of it.

A step is one callback of the loop, so an interruption at each of them meets every `await` of the call, and every moment
at which what it waited for is there and it does not know yet. `faults` says what should not be: an interruption that
was swallowed or became another error, a call that hangs, tasks, timers, connections and threads left behind, exceptions
that nobody retrieved, errors that libraries log, and what the story itself has found.
"""

import asyncio
import logging
import os
import threading
import warnings
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import anyio

from lbg_runtime.testing.virtual_time import VirtualTimeLoop
from tests.garbage import own_garbage
from tests.patience import PATIENCE_S

VIRTUAL_PATIENCE_S = 10_000


class Story:
    """`act` is what is interrupted; `begin` goes before it, and `look` comes after it."""

    IS_VIRTUAL: ClassVar = True
    """Whether it has virtual time; otherwise it has sockets and threads."""
    MAY_RAISE: ClassVar[tuple[type[Exception], ...]] = ()
    """What `act` may raise if it is disturbed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        """An empty one."""
        self.found: list[str] = []

    async def begin(self) -> None:
        pass

    async def act(self) -> None:
        raise NotImplementedError

    def disturb(self) -> None:
        """Have happen what may happen from outside: an outage, say, or that somebody closes what is in use."""

    async def look(self) -> None:
        """Note in `found` what is wrong; end what is not ended by `act`."""


class CountedCallbacks(deque):
    """The callbacks that are ready; the loop takes them out one by one."""

    def __init__(self, loop):
        super().__init__()
        self._loop = loop

    def popleft(self):
        self._loop.begin_step()
        return super().popleft()


class _Stepped:
    """Counts the steps of a loop while `counts`, and interrupts before one of them."""

    def __init__(self):
        super().__init__()
        self._ready = CountedCallbacks(self)
        self.step = 0
        self.counts = False
        self.interrupts_at = None
        self.interrupt = None
        self.told = []
        """What came to the exception handler."""
        self.set_exception_handler(lambda _, context: self.told.append(context))

    def begin_step(self):
        if self.counts:
            self.step += 1
            if self.step == self.interrupts_at:
                self.interrupt()

    def descriptors(self):
        """What the loop watches."""
        return set(self._selector.get_map())

    def timers(self):
        return [each for each in self._scheduled if not each.cancelled()]


class _VirtualLoop(_Stepped, VirtualTimeLoop):
    pass


class _RealLoop(_Stepped, asyncio.SelectorEventLoop):
    pass


Call = Callable[[], Coroutine[object, object, None]]
Way = Callable[[Call, Story], tuple[Call, Callable[[], object], Callable[["asyncio.Task[None]"], bool]]]
"""Of a call: how it is made, what interrupts it, and whether its task has ended as it should if it was interrupted."""


def cancelled(call: Call, story: Story):
    task = None

    async def made() -> None:
        nonlocal task
        task = asyncio.current_task()
        await call()

    # Looked up when it is called: there is no task yet.
    return made, lambda: asyncio.Task.cancel(task), asyncio.Task.cancelled


def cancelled_twice(call: Call, story: Story):
    made, cancel, is_right = cancelled(call, story)

    def interrupt() -> None:
        cancel()
        # After the next two turns, in which it begins to clean up.
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, cancel)

    return made, interrupt, is_right


def in_a_cancelled_scope(call: Call, story: Story):
    """Anyio cancels again in each turn in which the call waits."""
    scope = anyio.CancelScope()

    async def made() -> None:
        with scope:
            await call()

    return made, scope.cancel, _has_returned


def timed_out(call: Call, story: Story):
    bound = asyncio.timeout(None)

    async def made() -> None:
        try:
            async with bound:
                await call()
        except TimeoutError:
            if not bound.expired():
                raise

    return made, lambda: bound.reschedule(asyncio.get_running_loop().time()), _has_returned


def disturbed(call: Call, story: Story):
    def has_ended_well(task: "asyncio.Task[None]") -> bool:
        error = None if task.cancelled() else task.exception()
        return _has_returned(task) or bool(error and _are_of(error, story.MAY_RAISE))

    return call, story.disturb, has_ended_well


def _are_of(error: BaseException, kinds: tuple[type[Exception], ...]) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(_are_of(each, kinds) for each in error.exceptions)
    return isinstance(error, kinds)


def _has_returned(task: "asyncio.Task[None]") -> bool:
    # What ends in the same turn is not interrupted any more.
    return not task.cancelled() and task.exception() is None


WAYS: dict[str, Way] = {
    "cancelled": cancelled,
    "cancelled twice": cancelled_twice,
    "in a cancelled scope": in_a_cancelled_scope,
    "timed out": timed_out,
}


def faults(make_story: Callable[[Path], Story], folder: Path, way: Way = cancelled, step: int | None = None):
    """What is wrong with a story that is interrupted before this step, or with one that is not; and how many steps it
    has had."""
    story = make_story(folder)
    loop = _VirtualLoop() if story.IS_VIRTUAL else _RealLoop()
    patience_s = VIRTUAL_PATIENCE_S if story.IS_VIRTUAL else PATIENCE_S
    threads, descriptors = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))

    async def play() -> None:
        await story.begin()
        tasks, watched, timers = asyncio.all_tasks(), loop.descriptors(), loop.timers()
        made, interrupt, is_right = way(act, story)
        loop.interrupts_at, loop.interrupt = step, interrupt
        task = asyncio.ensure_future(made())
        await asyncio.wait([task], timeout=patience_s)
        # It knows the task, whose error may be all that still holds what nobody has retrieved.
        loop.interrupt = None
        if not task.done():
            story.found.append(f"hangs: {task}")
            task.cancel()
            await asyncio.wait([task], timeout=patience_s)
        elif not (is_right if step is not None and step <= loop.step else _has_returned)(task):
            story.found.append(f"ended with {None if task.cancelled() else task.exception()!r}")
        # What nobody can wait for, such as a server that was not to begin any more, ends by itself.
        if left := asyncio.all_tasks() - tasks:
            _, left = await asyncio.wait(left, timeout=patience_s)
        story.found += [f"task left: {each}" for each in left]
        await story.look()
        story.found += [f"timer left: {each}" for each in loop.timers() if each not in timers]
        if more := loop.descriptors() - watched:
            story.found.append(f"descriptors left: {more}")

    async def act() -> None:
        loop.counts = True
        try:
            await story.act()
        finally:
            loop.counts = False

    with warnings.catch_warnings(record=True) as warned, _errors_logged() as logged, own_garbage():
        warnings.simplefilter("always")
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(play())
    if not story.IS_VIRTUAL:
        story.found += _left_to_the_process(threads, descriptors)
    story.found += [f"told: {each.get('message')} {each.get('exception')!r}" for each in loop.told]
    story.found += [f"warned: {each.message}" for each in warned]
    story.found += [f"logged: {each}" for each in logged]
    return story.found, loop.step


@contextmanager
def _errors_logged() -> Iterator[list[str]]:
    """What libraries log as errors, which is where those of a server put what ended a request of theirs."""
    logged = list[str]()
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: logged.append(handler.format(record))  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    try:
        yield logged
    finally:
        logging.getLogger().removeHandler(handler)


def try_all(make_story: Callable[[Path], Story], way: Way, folder: Path, first: int = 1, stride: int = 1):
    """What is wrong, by step."""
    found, step, is_over = {}, first, False
    while not is_over:
        own = folder / str(step)
        own.mkdir()
        lines, steps = faults(make_story, own, way, step)
        if lines:
            found[step] = lines
        is_over = steps < step
        step += stride
    return found


def _left_to_the_process(threads: set[threading.Thread], descriptors: int) -> list[str]:
    """What is still there when a peer in another thread has had time to end its side of a connection."""
    pause, left = threading.Event(), list[str]()
    for _ in range(PATIENCE_S * 100):
        # Python never forgets the thread of another library that has called it once.
        more = [each for each in threading.enumerate() if each not in threads and type(each).__name__ != "_DummyThread"]
        left = [f"thread left: {each}" for each in more]
        if (count := len(os.listdir("/proc/self/fd")) - descriptors) > 0:
            left.append(f"files left: {count}")
        if not left:
            break
        pause.wait(0.01)
    return left
