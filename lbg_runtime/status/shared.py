"""One answer for all who ask within a short time, so that many questions cost no more than a few."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Generic, TypeVar

KEPT_S = 0.1
"""How long an answer is used again: no probe asks that often, and this bounds the work that others can cause."""

_Answer = TypeVar("_Answer")


class Shared(Generic[_Answer]):
    """Used from the tasks of one event loop."""

    def __init__(self, work_out: Callable[[], Coroutine[None, None, _Answer]]) -> None:
        """`work_out` makes an answer. It must have a bound of its own, as it goes on even if all who asked have
        gone."""
        self._work_out = work_out
        self._answer: asyncio.Task[_Answer] | None = None

    async def answer(self) -> _Answer:
        """The answer under way, or one at most `KEPT_S` old; otherwise a new one. Raises what `work_out` raises."""
        answer = self._answer
        if answer is None:
            # In a task of its own, as the one who asked first may go while others wait.
            answer = self._answer = asyncio.create_task(self._work_out())
            answer.add_done_callback(self._keep)
        return await asyncio.shield(answer)

    def _keep(self, answer: "asyncio.Task[_Answer]") -> None:
        answer.get_loop().call_later(KEPT_S, self._forget)

    def _forget(self) -> None:
        self._answer = None
