"""What handlers get in one life of a member besides their messages: state, threads, and a way to publish."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar, copy_context
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING, Generic, TypeVar

import structlog

from lbg_runtime.model.errors import HandlerError, InvariantViolated
from lbg_runtime.runtime.forked import call_as_one
from lbg_runtime.runtime.handlers.lifespan import Lifespan
from lbg_runtime.runtime.runners.dispatch_counts import DispatchCounts
from lbg_runtime.runtime.runners.failure_report import error_text
from lbg_runtime.runtime.runners.pool import is_closed
from lbg_runtime.transport.base import Messenger

if TYPE_CHECKING:
    from lbg_runtime.metrics.spans import MessageSpans

_log = structlog.get_logger(__name__)

_Kind = TypeVar("_Kind")
_Answer = TypeVar("_Answer")


class MemberResources:
    """One per life of a member, on its loop; handlers find it in `RESOURCES`."""

    def __init__(
        self,
        messenger: Messenger | None = None,
        thread_count: int | None = None,
        counts: DispatchCounts | None = None,
        spans: "MessageSpans | None" = None,
    ) -> None:
        """`thread_count`: how many threads to keep for handlers that are not async; there are more while more are
        called at the same time. None: the loop's own threads, for which a call may have to wait.
        """
        self.messenger = messenger
        self.spans = spans
        self.counts = counts or DispatchCounts()
        self._owned: dict[object, object] = {}
        self._states: list[object] = []
        self.awaited: str | None = None
        """The lifespan that has begun and not reached its `yield` (`Lifespan.where`); None if there is none."""
        self._found: dict[type, object] = {}
        self._thread_count = thread_count
        self._thread_names = count()
        self._idle: list[ThreadPoolExecutor] = []
        """Executors with one thread each."""

    @asynccontextmanager
    async def entered(self, lifespans: Iterable[Lifespan]) -> AsyncIterator[None]:
        """Enter every lifespan in order, and leave them in reverse; between, `RESOURCES` is this.

        Raises `HandlerError` if a lifespan does not reach its `yield`. What it raises after that is logged.
        """
        token = RESOURCES.set(self)
        try:
            async with AsyncExitStack() as stack:
                for lifespan in lifespans:
                    self.awaited = lifespan.where
                    state = await stack.enter_async_context(_lived(lifespan))
                    if state is not None:
                        self._states.append(state)
                self.awaited = None
                yield
        finally:
            RESOURCES.reset(token)
            # A thread that a handler still uses is ended when the handler gives it back.
            if self._thread_count is not None:
                self._thread_count = 0
            while self._idle:
                self._idle.pop().shutdown(wait=False)

    def state(self, kind: type[_Kind]) -> _Kind:
        """The value of this type that a lifespan yielded; raises `InvariantViolated` if there is none.

        `check_states` has made sure that there is exactly one.
        """
        found = self._found.get(kind)
        if found is None:
            found = next((state for state in self._states if isinstance(state, kind)), None)
            if found is None:
                raise InvariantViolated(f"no lifespan yielded a {kind.__qualname__}")
            self._found[kind] = found
        return found  # type: ignore[return-value]  # looked up by its type

    def states(self, kind: type) -> list[object]:
        """The values of this type that lifespans yielded."""
        return [state for state in self._states if isinstance(state, kind)]

    def own(self, name: object, make: Callable[[], _Kind]) -> _Kind:
        """A handler's own object for this life of the member, by name; made when first asked for."""
        if name not in self._owned:
            self._owned[name] = make()
        return self._owned[name]  # type: ignore[return-value]  # as it was made

    def take_thread(self) -> ThreadPoolExecutor | None:
        """An idle thread for a call that would block the loop, so that no call waits behind one that hangs.

        The number of threads is bounded by the callers: runners, batches, and replacements of those that hang. None
        stands for a thread of the loop's own. Give it back when the call has ended.
        """
        if self._thread_count is None:
            return None
        if self._idle:
            return self._idle.pop()
        # Not one executor with many threads: it would have to keep track of the idle ones itself.
        return ThreadPoolExecutor(1, thread_name_prefix=f"lbg-handler-{next(self._thread_names)}")

    def give_thread_back(self, thread: ThreadPoolExecutor | None) -> None:
        """Take back a thread on which nothing runs any more."""
        if thread is None:
            return
        if self._thread_count is not None and len(self._idle) < self._thread_count:
            self._idle.append(thread)
        else:
            thread.shutdown(wait=False)


RESOURCES: ContextVar[MemberResources] = ContextVar("RESOURCES", default=MemberResources())  # noqa: B039 - of nobody
"""The resources of the member whose handler runs. Outside a member: no state, no way to publish, the loop's threads."""


async def call_in_thread(call: Callable[[], _Answer], give_up: Callable[[], object] | None = None) -> _Answer:
    """Run `call` on a thread, where it cannot be interrupted, and return its answer.

    If this is cancelled before the call has begun, the call is not made. If it has begun, its end is waited for before
    the cancellation is raised, as the key of a handler must be free once the handler has ended (L2). Meanwhile
    `give_up` is called on the loop, perhaps more than once: nobody wants the answer any more, so a call that can end
    early may do so.
    """
    loop = asyncio.get_running_loop()
    work = _Work(call)
    resources = RESOURCES.get()
    thread = resources.take_thread()
    answer: asyncio.Future[_Answer] = loop.run_in_executor(thread, copy_context().run, work.make)
    answer.add_done_callback(lambda _: resources.give_thread_back(thread))
    is_cancelled = False
    while not answer.done():
        try:
            # No bound: see above; if it takes longer than the timeout, the dispatcher reports it and adds another
            # runner.
            await asyncio.wait((answer,))
        except asyncio.CancelledError:
            is_cancelled = True
            if work.abandon():
                # When the thread comes to it, it finds the call abandoned, and makes an exception of that.
                answer.add_done_callback(asyncio.Future.exception)
                raise
            if give_up is not None:
                give_up()
    if is_cancelled:
        answer.exception()  # retrieved, so that asyncio does not report it
        raise asyncio.CancelledError
    return answer.result()


class _Work(Generic[_Answer]):
    """A call that is either made or abandoned, whichever comes first."""

    def __init__(self, call: Callable[[], _Answer]) -> None:
        self._call: Callable[[], _Answer] | None = call
        self._lock = Lock()

    def make(self) -> _Answer:
        """Make the call and return its answer; raises `CancelledError` if it is abandoned."""
        call = self._take()
        if call is None:
            raise asyncio.CancelledError
        try:
            return call_as_one(call)
        except StopIteration as error:
            # A future does not take one, and its waiter would wait for ever (PEP 479 does the same for coroutines).
            raise RuntimeError("the call raised StopIteration") from error

    def abandon(self) -> bool:
        """Abandon the call, unless it was made already; return whether it was abandoned."""
        return self._take() is not None

    def _take(self) -> Callable[[], _Answer] | None:
        with self._lock:
            call, self._call = self._call, None
        return call


@asynccontextmanager
async def _lived(lifespan: Lifespan) -> AsyncIterator[object]:
    context = lifespan.make()
    task = asyncio.current_task()
    cancelled_before = task.cancelling() if task is not None else 0
    try:
        state = await context.__aenter__()
    except BaseException as error:  # the handler boundary: it is the user's code
        if _is_passed_on(error, task, cancelled_before):
            raise
        raise HandlerError(lifespan.where, error_text(error), "a lifespan that reaches its yield") from error
    try:
        yield state
    finally:
        # A cancellation that is under way by now is raised after this anyway.
        cancelled_before = task.cancelling() if task is not None else 0
        try:
            await context.__aexit__(None, None, None)
        except BaseException as error:  # as above; the member leaves anyway
            if _is_passed_on(error, task, cancelled_before):
                raise
            _log.error("lifespan_failed", function=lifespan.where, exc_info=error)


def _is_passed_on(error: BaseException, task: "asyncio.Task[object] | None", cancelled_before: int) -> bool:
    """Whether an error of a lifespan is raised and not logged: it ends the process, or is our own cancellation of the
    task."""
    match error:
        case SystemExit() | KeyboardInterrupt():
            return True
        case GeneratorExit():
            return task is None or is_closed(task)
        case asyncio.CancelledError():
            # Otherwise it comes from a task that the user cancelled and awaited.
            return task is not None and task.cancelling() > cancelled_before
        case _:
            return False
