"""The time of a broker, and which of its parts has something to do when."""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Protocol

from lbg_runtime.broker.engine.effects import Effect

Clock = Callable[[], int]
"""Milliseconds that only grow, from anywhere."""


class Timed(Protocol):
    """Part of an engine that waits for a time."""

    def on_deadline(self) -> list[Effect]:
        """Do what was to be done by now; it may be called early, or for nothing."""
        ...


class Timetable:
    """One per engine. The front end sets `now` before the first client comes; until then no time passes."""

    def __init__(self, now: Clock = lambda: 0) -> None:
        self.now = now
        self._times: dict[Timed, int] = {}
        self._order: list[tuple[int, int, Timed]] = []
        """Entries of times that have changed since stay until they come up."""
        self._entry_count = 0
        self.has_changed = False
        """Whether `next_ms` may be another one; for whoever waits for it to set back."""

    @property
    def next_ms(self) -> int | None:
        """When the first part has something to do."""
        while self._order:
            at_ms, _, part = self._order[0]
            if self._times.get(part) == at_ms:
                return at_ms
            heappop(self._order)
        return None

    def set(self, part: Timed, at_ms: int | None) -> None:
        """Call a part at this time instead of the time it had; None for never."""
        if self._times.get(part) == at_ms:
            return
        self.has_changed = True
        if at_ms is None:
            del self._times[part]
            return
        self._times[part] = at_ms
        self._entry_count += 1  # Parts have no order among themselves.
        heappush(self._order, (at_ms, self._entry_count, part))
        if len(self._order) > 2 * len(self._times) + 64:
            self._order = [entry for entry in self._order if self._times.get(entry[2]) == entry[0]]
            heapify(self._order)

    def call_due(self) -> list[Effect]:
        """Call every part whose time has come, each once."""
        now_ms = self.now()
        due: list[Timed] = []
        while (at_ms := self.next_ms) is not None and at_ms <= now_ms:
            part = heappop(self._order)[2]
            del self._times[part]
            due.append(part)
        return [effect for part in due for effect in part.on_deadline()]
