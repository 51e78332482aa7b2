"""Asks a member's event loop from another thread: it answers, or it has been blocked for some time."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from time import monotonic_ns
from typing import TypeVar

from lbg_runtime.model.errors import InvariantViolated, LbgError

ANSWER_WITHIN_MS = 800
"""A loop that takes longer counts as blocked. Less than the second that probes wait by default, so that they still
learn of it."""

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Blocked:
    """The loop did not answer in time."""

    blocked_ms: int
    """For how long at least: since the first question to which it still owes an answer."""


class MemberLoop:
    """Used from the tasks of one other event loop, in another thread.

    Judges, like the watchdog, by whether the loop gives a sign of life. But it does not need the watchdog, which may be
    off, and does not exist in a member that is part of another program.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._owed_since_ns = 0
        """When the oldest question since the last sign of life was asked; written by the asking thread."""
        self._heard_ns = 0
        """When the member's loop last heard a question; written by that loop."""

    async def ask(self, question: Callable[[], _Answer]) -> _Answer | Blocked:
        """Have the question answered on the member's loop, between two of its steps; what it raises is raised here.

        Returns `Blocked` only if the loop has heard nothing at all for `ANSWER_WITHIN_MS` since it was asked: not if
        the asking loop was busy itself and finds answer and timeout together, nor if other questions were heard first.
        """
        asked_ns = monotonic_ns()
        if self._heard_ns >= self._owed_since_ns:
            self._owed_since_ns = asked_ns
        answer: Future[_Answer] = Future()
        self._loop.call_soon_threadsafe(self._hear, question, answer)
        waiting = asyncio.wrap_future(answer)
        try:
            # Looks at the answer itself, of which this loop is told only in one of its next turns.
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
        """For how long, at least, the loop has given no sign of life; 0 if it gives one in time."""
        found = await self.ask(lambda: None)
        return 0 if found is None else found.blocked_ms

    def _hear(self, question: Callable[[], _Answer], answer: "Future[_Answer]") -> None:
        """Answer a question; called on the member's loop."""
        self._heard_ns = monotonic_ns()
        # Nothing to do if the one who asked has gone.
        if not answer.set_running_or_notify_cancel():
            return
        try:
            answer.set_result(question())
        except LbgError as error:
            answer.set_exception(error)
        finally:
            if not answer.done():
                # An error of ours goes to the loop, which reports it; and the one who asked is not left waiting.
                answer.set_exception(InvariantViolated("a question about the member failed"))
