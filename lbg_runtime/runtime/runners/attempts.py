"""Watches the attempts that are running: their deadlines, and how a handler is cancelled without its runner.

A handler runs in the task of its runner, so that task is cancelled. When the handler has ended, its caller makes the
task usable again with `RunnerPool.take_back`.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from math import inf
from typing import NoReturn

from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.runtime.runners.handling import CURRENT_HANDLING, Handling

CLOCK_RESOLUTION_S = 0.001
"""A timer may fire that much too early."""


class InterruptedBy(Enum):
    """Why a running handler was cancelled."""

    TIMEOUT = "timeout"
    """It took too long; this attempt failed."""
    RECALL = "recall"
    """Its flow wants it to end; the delivery has no outcome (L7)."""
    RETURN = "return"
    """Before it was called, its flow took back what had not started; no outcome either, and this was no attempt."""
    STOP = "stop"
    """Before it was called, its queue stopped; the delivery is held, and this was no attempt."""


_RECALLS = (InterruptedBy.RECALL, InterruptedBy.RETURN)


class Attempt:
    """One run of a handler inside a runner's task. Made per message, so it has slots, like `Handling`."""

    __slots__ = ("deadline_s", "ends_waiting", "handling", "interrupted_by", "overdue_count", "task")

    def __init__(self, handling: Handling, task: "asyncio.Task[object]", deadline_s: float) -> None:
        self.handling = handling
        self.task = task
        self.deadline_s = deadline_s
        """On the loop's clock."""
        self.interrupted_by: InterruptedBy | None = None
        self.ends_waiting: InterruptedBy | None = None
        """How it ends if its handler still waits, or comes to wait, to be called: its flow has taken back what has not
        started (RETURN), or starts nothing more (STOP). None: the handler may be called."""
        self.overdue_count = 0

    @property
    def is_stuck(self) -> bool:
        """Whether it ignored a cancellation for a whole timeout."""
        return self.overdue_count > 1

    def interrupt(self, why: InterruptedBy) -> None:
        """Cancel the handler. A recall is final: no timeout makes it a failure, and another recall does nothing. A stop
        does nothing to an attempt that is interrupted already."""
        if why is InterruptedBy.STOP and self.interrupted_by is not None:
            return
        if self.interrupted_by not in _RECALLS:
            self.interrupted_by = why
        elif why in _RECALLS:
            # Flow and member recall it at the same deadline. The handler is cleaning up: do not cancel that.
            return
        self.task.cancel()

    def is_of(self, queue: QueueName, epoch: Epoch) -> bool:
        """Whether its delivery is of this flow handle."""
        delivery = self.handling.delivery
        return delivery.queue == queue and delivery.epoch == epoch


class RunningAttempts:
    """The running attempts with one timeout, watched by one timer: a timer for each would cost more than all the rest.

    With one timeout, the order of starts is the order of deadlines; an attempt that is put off has no deadline until it
    begins. `on_stuck` is called once for a handler that goes on for another whole timeout after it was cancelled; the
    handler keeps its runner and its key.
    """

    def __init__(
        self,
        timeout_ms: int | None,
        on_stuck: Callable[[Handling], None],
        before_begin: Callable[[], None] = lambda: None,
    ) -> None:
        """`timeout_ms` is None for attempts without a deadline, which only a recall ends. `before_begin` is called
        before any attempt that was put off begins; it may recall attempts."""
        self._timeout_s = inf if timeout_ms is None else timeout_ms / 1_000
        self._on_stuck = on_stuck
        self._before_begin = before_begin
        self._attempts: dict[Handling, Attempt] = {}
        """In the order of deadlines."""
        self._put_off: dict[Handling, Attempt] = {}
        """Attempts whose time does not run yet."""
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, handling: Handling, task: "asyncio.Task[object]") -> Attempt:
        """Watch an attempt that begins now in `task`, the current one. Call `end` when the handler has ended."""
        # Looked up once: before Python 3.12 it is a system call.
        loop = self._loop = self._loop or asyncio.get_running_loop()
        attempt = Attempt(handling, task, loop.time() + self._timeout_s)
        self._attempts[handling] = attempt
        if self._timer is None and attempt.deadline_s != inf:
            self._timer = loop.call_at(attempt.deadline_s, self._check_deadlines)
        return attempt

    def put_off(self, handling: Handling) -> None:
        """Stop the time of an attempt until `begin`, as its handler waits to be called; a recall still ends it.

        The time of an interrupted attempt runs on, as its handler may ignore the interruption. Constant time, like
        `begin`.
        """
        if self._attempts[handling].interrupted_by is None:
            attempt = self._put_off[handling] = self._attempts.pop(handling)
            if attempt.ends_waiting is not None:
                attempt.interrupt(attempt.ends_waiting)

    def look_before_begin(self, handling: Handling) -> None:
        """Raise `CancelledError` if the attempt is put off and must not begin any more, as it is interrupted."""
        self._before_begin()
        attempt = self._put_off.get(handling)
        if attempt is not None and attempt.interrupted_by is not None:
            raise asyncio.CancelledError

    def may_begin(self, handling: Handling) -> bool:
        """Whether a running attempt that has had no effect yet may go on and have one. If its flow has taken back what
        has not started, or starts nothing more, it may not, and is interrupted."""
        self._before_begin()
        attempt = self._attempts.get(handling)
        if attempt is None:
            return True
        if attempt.interrupted_by is None and attempt.ends_waiting is not None:
            attempt.interrupt(attempt.ends_waiting)
        return attempt.interrupted_by is None

    def begin(self, handling: Handling) -> None:
        """Give an attempt that is put off its whole time, from now."""
        attempt = self._put_off.pop(handling, None)
        if attempt is None:
            return
        loop = asyncio.get_running_loop()
        attempt.deadline_s = loop.time() + self._timeout_s
        self._attempts[handling] = attempt
        if self._timer is None and attempt.deadline_s != inf:
            self._timer = loop.call_at(attempt.deadline_s, self._check_deadlines)

    def is_put_off(self, handling: Handling) -> bool:
        """Whether its handler waits to be called: its attempt has not begun."""
        return handling in self._put_off

    def is_stuck(self, handling: Handling) -> bool:
        """Whether its handler was reported as stuck."""
        attempt = self._attempts.get(handling)
        return attempt is not None and attempt.is_stuck

    def has_timed_out(self, handling: Handling) -> bool:
        """Whether its running attempt has taken too long, and so fails however its handler ends."""
        attempt = self._attempts.get(handling)
        return attempt is not None and attempt.interrupted_by is InterruptedBy.TIMEOUT

    def end(self, attempt: Attempt) -> None:
        """Forget an attempt whose handler has ended; nothing interrupts it any more. Not while it is put off."""
        del self._attempts[attempt.handling]

    def recall(self, queue: QueueName, epoch: Epoch) -> None:
        """Cancel the running handlers of one flow handle, and what waits to be called."""
        for attempt in self._attempts.values():
            if attempt.is_of(queue, epoch):
                attempt.interrupt(InterruptedBy.RECALL)
        self.recall_put_off(queue, epoch)

    def recall_put_off(self, queue: QueueName, epoch: Epoch) -> None:
        """Cancel what waits to be called, of one flow handle, and whatever of it is put off later."""
        self._end_waiting(queue, epoch, InterruptedBy.RETURN)

    def hold_put_off(self, queue: QueueName, epoch: Epoch) -> None:
        """Like `recall_put_off`, for a flow handle that starts nothing more and keeps what it has."""
        self._end_waiting(queue, epoch, InterruptedBy.STOP)

    def _end_waiting(self, queue: QueueName, epoch: Epoch, why: InterruptedBy) -> None:
        for attempt in self._put_off.values():
            if attempt.is_of(queue, epoch):
                attempt.interrupt(why)
        for attempt in self._attempts.values():
            if attempt.is_of(queue, epoch) and attempt.ends_waiting is not InterruptedBy.RETURN:
                attempt.ends_waiting = why

    def handlings(self) -> list[Handling]:
        """The handlings of all attempts, in the order of deadlines, followed by those that are put off."""
        return [*self._attempts, *self._put_off]

    def started(self) -> list[tuple[Attempt, float]]:
        """Running attempts that have a deadline, each with the start of its time on the loop's clock."""
        if self._timeout_s == inf:
            return []
        # Each timeout that a handler ignored has moved its deadline by one timeout.
        return [
            (each, each.deadline_s - self._timeout_s * (1 + each.overdue_count)) for each in self._attempts.values()
        ]

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _check_deadlines(self) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time() + CLOCK_RESOLUTION_S
        for attempt in list(self._attempts.values()):
            if attempt.deadline_s > now_s:
                break
            attempt.overdue_count += 1
            if attempt.overdue_count == 2:
                self._on_stuck(attempt.handling)
            attempt.interrupt(InterruptedBy.TIMEOUT)
            # To the end of the order, with a new deadline, in case the handler goes on nevertheless.
            attempt.deadline_s = now_s + self._timeout_s
            del self._attempts[attempt.handling]
            self._attempts[attempt.handling] = attempt
        oldest = next(iter(self._attempts.values()), None)
        self._timer = None if oldest is None else loop.call_at(oldest.deadline_s, self._check_deadlines)


class AttemptWatches:
    """All running attempts of a member, by timeout; one per dispatcher."""

    def __init__(self, on_stuck: Callable[[Handling], None], before_begin: Callable[[], None] = lambda: None) -> None:
        """The parameters are those of `RunningAttempts`."""
        self._on_stuck = on_stuck
        self._before_begin = before_begin
        self._watches: dict[int | None, RunningAttempts] = {}

    def of(self, timeout_ms: int | None) -> RunningAttempts:
        """The attempts with this timeout; always the same object."""
        if timeout_ms not in self._watches:
            self._watches[timeout_ms] = RunningAttempts(timeout_ms, self._on_stuck, self._before_begin)
        return self._watches[timeout_ms]

    def recall(self, queue: QueueName, epoch: Epoch) -> None:
        """Cancel what runs for one flow handle."""
        for watch in self._watches.values():
            watch.recall(queue, epoch)

    def recall_put_off(self, queue: QueueName, epoch: Epoch) -> None:
        """See `RunningAttempts.recall_put_off`."""
        for watch in self._watches.values():
            watch.recall_put_off(queue, epoch)

    def hold_put_off(self, queue: QueueName, epoch: Epoch) -> None:
        """See `RunningAttempts.hold_put_off`."""
        for watch in self._watches.values():
            watch.hold_put_off(queue, epoch)

    def handlings(self) -> list[Handling]:
        return [handling for watch in self._watches.values() for handling in watch.handlings()]

    def started(self) -> list[tuple[Attempt, float]]:
        """See `RunningAttempts.started`."""
        return [found for watch in self._watches.values() for found in watch.started()]

    def close(self) -> None:
        """Stop watching."""
        for watch in self._watches.values():
            watch.close()


@contextmanager
def attempt_put_off() -> Iterator[None]:
    """For a handler that waits before it has begun anything: while the context lasts, its time does not run
    (`RunningAttempts.put_off`). Raises `CancelledError` at the end if the handler must not begin any more."""
    handling = CURRENT_HANDLING.get(None)
    if handling is None:
        yield
        return
    attempts = handling.route.attempts
    attempts.put_off(handling)
    try:
        yield
        attempts.look_before_begin(handling)
    finally:
        attempts.begin(handling)


def may_begin(handling: Handling | None) -> bool:
    """See `RunningAttempts.may_begin`; True outside of a member."""
    return handling is None or handling.route.attempts.may_begin(handling)


async def end_unbegun() -> NoReturn:
    """Raise `CancelledError`, in a handler for which `may_begin` was False."""
    # The cancellation that is under way would hit whatever is awaited next: let it be this.
    await asyncio.sleep(0)
    # Nothing came if the handler runs in a task of its own, which nobody has cancelled.
    raise asyncio.CancelledError
