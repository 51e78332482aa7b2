"""Ends a member whose event loop hangs, so that its queues go to other members.

A handler that waits without `await`, or never returns, stops everything in a member. But the client's own threads go on
answering the broker, which takes the member for alive and leaves it its queues. So a dedicated thread asks the loop for
a sign of life, and ends the process when there has been none for too long. The broker then gives the queues to the next
in line, and what was not settled comes again there.

That a loop has gone on from one task to the next is a sign of life, too, even if the loop has not come round: handlers
that each block for some time, and were all woken at once, will be done. If the member were ended before that, it would
begin with the same messages again, for ever.

Not detected: code that keeps the interpreter's lock all the time (an extension, one huge regular expression), as it
stops this thread as well.

The same thread knows whether the whole process was stopped, or its host slept.
"""

import asyncio
import gc
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from types import FrameType

import structlog

from lbg_runtime.model.errors import ConfigError
from lbg_runtime.runtime.clock import since_boot_ns
from lbg_runtime.runtime.handlers.batches import CURRENT_BATCH
from lbg_runtime.runtime.runners.handling import CURRENT_HANDLING, Handling, facts_of
from lbg_runtime.runtime.shutdown import end_process
from lbg_runtime.runtime.suspension import Suspension

_log = structlog.get_logger(__name__)

EXIT_CODE = 1

_TICKS = 10
"""How many looks at the loop there are within the limit."""
_LONGEST_TICK_MS = 1_000

_MOST_OF_A_BATCH = 10
"""How many messages of a batch the log names."""


@dataclass(slots=True)
class BlockedTime:
    """How long the loop has given no sign of life, in time that this process was running. Used by one thread."""

    tick_ms: int
    """The intended time between two calls."""
    blocked_ms: int = 0
    _at: object = None
    """What the loop was at when it was last looked at."""

    def count(self, elapsed_ms: int, *, has_answered: bool, at: object) -> int:
        """Count one look, `elapsed_ms` after the last, at a loop that is `at` a task or none; return the time blocked.

        A look that comes late counts as two ticks at most. If this thread could not look in time, the whole process may
        have been suspended, or have got no processor time, and the loop is not to blame.
        """
        goes_on = has_answered or at is not self._at
        self.blocked_ms = 0 if goes_on else self.blocked_ms + min(elapsed_ms, 2 * self.tick_ms)
        self._at = at
        return self.blocked_ms


@contextmanager
def watched_loop(limit_ms: int | None) -> Iterator[Suspension | None]:
    """End the process when the running loop is blocked for longer than the limit, while the context lasts.

    Yields the `Suspension` that tells whether the whole process was stopped. With a limit of None nothing is watched,
    and None is yielded. Enter it on the loop's thread. The process ends at the latest `2 * limit_ms / 10` (at most 2 s)
    after the limit, plus the time it takes to write one log line.

    Raises `ConfigError` if no thread can be started: no member should hold queues unwatched.
    """
    if limit_ms is None:
        yield None
        return
    watchdog = _Watchdog(asyncio.get_running_loop(), limit_ms)
    try:
        watchdog.start()
    except RuntimeError as error:
        raise ConfigError(
            "ops.watchdog", f"no thread for it: {error}", "a limit of threads with room for more"
        ) from error
    try:
        yield watchdog.suspension
    finally:
        watchdog.stop()


class _Watchdog:
    def __init__(self, loop: asyncio.AbstractEventLoop, limit_ms: int) -> None:
        self._loop = loop
        self._loop_thread = threading.get_ident()
        self._limit_ms = limit_ms
        self._tick_ms = max(1, min(limit_ms // _TICKS, _LONGEST_TICK_MS))
        self.suspension = Suspension(since_boot_ns())
        self._answered = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="lbg-watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop watching: after this returns, it no longer ends the process, and the loop may be closed."""
        self._stopped.set()
        # Bounded by one tick and one log line.
        self._thread.join()

    def _watch(self) -> None:
        blocked = BlockedTime(self._tick_ms)
        self._ask()
        looked_ns = since_boot_ns()
        # If two handlers exit, the loop is closed, and nobody has stopped the watchdog.
        while not self._stopped.wait(self._tick_ms / 1_000) and not self._loop.is_closed():
            now_ns = since_boot_ns()
            self.suspension.look(now_ns)
            has_answered = self._answered.is_set()
            at = asyncio.current_task(self._loop)
            blocked_ms = blocked.count((now_ns - looked_ns) // 1_000_000, has_answered=has_answered, at=at)
            looked_ns = now_ns
            if blocked_ms > self._limit_ms:
                self._end(blocked_ms)
            elif has_answered:
                self._ask()

    def _ask(self) -> None:
        self._answered.clear()
        self._loop.call_soon_threadsafe(self._answered.set)

    def _end(self, blocked_ms: int) -> None:
        frame = sys._current_frames().get(self._loop_thread)
        end_process(EXIT_CODE, partial(_tell, blocked_ms, self._limit_ms, self._loop, frame))


def _tell(blocked_ms: int, limit_ms: int, loop: asyncio.AbstractEventLoop, frame: FrameType | None) -> None:
    _log.error(
        "event_loop_blocked",
        blocked_ms=blocked_ms,
        limit_ms=limit_ms,
        **_named(_handled_in(asyncio.current_task(loop))),
        stack="".join(traceback.format_stack(frame)) if frame is not None else "",
    )


def _named(handlings: list[Handling]) -> dict[str, object]:
    """The messages, as fields of a log line: after the end of the process, nothing else tells an operator which message
    to take off its queue."""
    found = [{**facts_of(each), "message_id": each.message.message_id} for each in handlings[:_MOST_OF_A_BATCH]]
    if len(handlings) > 1:
        return {"batch_count": len(handlings), "batch": found}
    return {**found[0]} if found else {}


def _handled_in(task: "asyncio.Task[object] | None") -> list[Handling]:
    """What the task, or the task that started it, is handling: a message, or what is still open of a batch."""
    context = None if task is None else _context_of(task)
    if context is None:
        return []
    if (batch := context.get(CURRENT_BATCH)) is not None:
        return [item.handling for item in batch if item.is_open]
    handling = context.get(CURRENT_HANDLING)
    # A runner's context keeps its last handling.
    return [] if handling is None or handling.done_mono_ns else [handling]


def _context_of(task: "asyncio.Task[object]") -> Context | None:
    if sys.version_info >= (3, 12):
        return task.get_context()
    # Before Python 3.12 a task has no method for it, but its context is the first that it refers to.
    return next((each for each in gc.get_referents(task) if isinstance(each, Context)), None)
