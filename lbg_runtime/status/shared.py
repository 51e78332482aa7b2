"""One answer for all who ask the same within a short time, so that many who ask cost no more than a few."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Generic, TypeVar

KEPT_S = 0.1
"""How long an answer is given again: no probe asks that often, and it bounds the work that others can cause."""

_Answer = TypeVar("_Answer")


class Shared(Generic[_Answer]):
    """Used from the tasks of one event loop."""

    def __init__(self, work_out: Callable[[], Coroutine[None, None, _Answer]]) -> None:
        """`work_out` must have a bound of its own: it goes on even if those who asked have gone."""
        self._work_out = work_out
        self._answer: asyncio.Task[_Answer] | None = None

    async def answer(self) -> _Answer:
        """The answer under way, or one at most `KEPT_S` old; otherwise a new one. Raises what `work_out` raises."""
        answer = self._answer
        if answer is None:
            # A task of its own, held here: whoever asked first may go while others wait.
            answer = self._answer = asyncio.create_task(self._work_out())
            answer.add_done_callback(self._keep)
        return await asyncio.shield(answer)

    def _keep(self, answer: "asyncio.Task[_Answer]") -> None:
        answer.get_loop().call_later(KEPT_S, self._forget)

    def _forget(self) -> None:
        self._answer = None
