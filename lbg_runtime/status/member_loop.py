"""A member's event loop as seen from another thread: it answers, or it has been blocked for some time."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from time import monotonic_ns
from typing import TypeVar

from lbg_runtime.model.errors import InvariantViolated, LbgError

ANSWER_WITHIN_MS = 800
"""A loop that takes longer is blocked. Below the second that probes wait by default, so that they still learn of it."""

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Blocked:
    """The loop did not answer in time."""

    blocked_ms: int
    """Since the first question that it still owes an answer to; it may be longer."""


class MemberLoop:
    """Used from the tasks of one other event loop, in another thread.

    Judges as the watchdog does, by whether the loop gives a sign of life; but does without the watchdog, as there is
    none in a member that is part of another program, or if it is off.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._owed_since_ns = 0
        """When the oldest question since the last sign of life was put; written by whoever asks."""
        self._heard_ns = 0
        """When the loop last heard a question; written by the loop."""

    async def ask(self, question: Callable[[], _Answer]) -> _Answer | Blocked:
        """Have the question answered on the member's loop, between two of its steps; what it raises is raised here.

        `Blocked` only if the loop has heard nothing at all for `ANSWER_WITHIN_MS` since it was asked: not if the asking
        loop was busy itself and finds answer and time-out at once, nor if other questions were heard first.
        """
        asked_ns = monotonic_ns()
        if self._heard_ns >= self._owed_since_ns:
            self._owed_since_ns = asked_ns
        answer: Future[_Answer] = Future()
        self._loop.call_soon_threadsafe(self._hear, question, answer)
        waiting = asyncio.wrap_future(answer)
        try:
            # Look at the answer itself: this loop learns that it is there only in one of its next turns.
            while not answer.done():
                now_ns, heard_ns = monotonic_ns(), self._heard_ns
                left_ns = ANSWER_WITHIN_MS * 1_000_000 - (now_ns - max(asked_ns, heard_ns))
                if left_ns <= 0:
                    since_ns = max(min(asked_ns, self._owed_since_ns), heard_ns)
                    return Blocked((now_ns - since_ns) // 1_000_000)
                await asyncio.wait({waiting}, timeout=left_ns / 1_000_000_000)
            return await waiting
        finally:
            waiting.cancel()

    async def blocked_ms(self) -> int:
        """0 if the loop gives a sign of life in time; otherwise how long it has given none, at least."""
        found = await self.ask(lambda: None)
        return 0 if found is None else found.blocked_ms

    def _hear(self, question: Callable[[], _Answer], answer: "Future[_Answer]") -> None:
        """On the member's loop."""
        self._heard_ns = monotonic_ns()
        # Whoever asked may have gone; then there is nobody to work for.
        if not answer.set_running_or_notify_cancel():
            return
        try:
            answer.set_result(question())
        except LbgError as error:
            answer.set_exception(error)
        finally:
            if not answer.done():
                # A mistake of ours goes to the loop, which reports it; and whoever asked is not left waiting.
                answer.set_exception(InvariantViolated("a question about the member failed"))
