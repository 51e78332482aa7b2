"""Runs an engine's deadlines on the event loop, for whoever carries its effects out."""

import asyncio
from collections.abc import Callable, Iterable

from lbg_runtime.broker.engine.effects import Effect
from lbg_runtime.broker.engine.engine import Engine


class EngineTimer:
    """Gives an engine the loop's time, real or virtual, and calls it when a deadline comes. One per engine."""

    def __init__(self, engine: Engine, carry_out: Callable[[Iterable[Effect]], None]) -> None:
        self._timetable = engine.surroundings.timetable
        self._carry_out = carry_out
        self._at_ms: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timetable.now = _loop_ms

    def arm(self) -> None:
        """Check the engine's deadline again, after any call to the engine that may have moved it."""
        if not self._timetable.has_changed:
            return
        self._timetable.has_changed = False
        at_ms = self._timetable.next_ms
        if at_ms == self._at_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = self._at_ms = None
        if at_ms is not None:
            self._at_ms = at_ms
            self._timer = asyncio.get_running_loop().call_at(at_ms / 1_000, self._due)

    def stop(self) -> None:
        """Make no more calls to the engine until armed again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = self._at_ms = None
            self._timetable.has_changed = True

    def _due(self) -> None:
        self._timer = self._at_ms = None
        self._timetable.has_changed = True
        effects: list[Effect] = []
        try:
            for part in self._timetable.due():
                effects += part.on_deadline()
        finally:
            # An error of one part does not affect the others: the effects so far are carried out, the rest stays due.
            self._carry_out(effects)
            self.arm()


def _loop_ms() -> int:
    # A loop may call a timer early by less than its clock resolves; what is due must not be missed for that.
    return round(asyncio.get_running_loop().time() * 1_000)
