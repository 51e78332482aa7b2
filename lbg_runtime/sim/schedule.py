"""Virtual time: a heap of calls that are due."""

import heapq
from collections.abc import Callable

from lbg_runtime.model.errors import LbgError

Call = Callable[[], None]

MOST_CALLS = 1_000_000
"""At one moment: more than any run needs; a run that reaches it is looping without time passing."""


class SimulationLoops(LbgError):
    """Something reschedules itself endlessly."""


class Schedule:
    """Runs calls at their times; calls with the same time run in the order in which they were scheduled."""

    def __init__(self) -> None:
        self.now_ms = 0
        self._due: list[tuple[int, int, Call]] = []
        self._count = 0
        self._calls_now = 0

    def at(self, at_ms: int, call: Call) -> None:
        """Run `call` at a time; if that has passed, at once, but after what is already due."""
        self._count += 1
        heapq.heappush(self._due, (max(at_ms, self.now_ms), self._count, call))

    def after(self, delay_ms: int, call: Call) -> None:
        """Run `call` when this much time has passed."""
        self.at(self.now_ms + delay_ms, call)

    def run(self, until_ms: int, is_done: Callable[[], bool]) -> bool:
        """Let time pass until `is_done`, checked after every call, or until a time; return whether it is done.

        Raises `SimulationLoops`.
        """
        while not is_done():
            if not self._due or self._due[0][0] > until_ms:
                self.now_ms = until_ms
                return False
            at_ms, _, call = heapq.heappop(self._due)
            self._calls_now = self._calls_now + 1 if at_ms == self.now_ms else 1
            if self._calls_now > MOST_CALLS:
                raise SimulationLoops(f"{MOST_CALLS} calls at {at_ms} ms")
            self.now_ms = at_ms
            call()
        return True
