"""The time of a broker, and when each of its parts has something to do."""

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Protocol

from lbg_runtime.broker.engine.effects import Effect

Clock = Callable[[], int]
"""Monotonic milliseconds, from an arbitrary start."""


class Timed(Protocol):
    """A part of an engine that waits for a time."""

    def on_deadline(self) -> list[Effect]:
        """Do what is due by now; it may be called early, or when nothing is due."""
        ...


class Timetable:
    """One per engine. The front end sets `now` before the first client comes; until then no time passes."""

    def __init__(self, now: Clock = lambda: 0) -> None:
        self.now = now
        self._times: dict[Timed, tuple[int, int]] = {}
        """When each part is to be called, and the number of its entry."""
        self._parts: dict[int, Timed] = {}
        """The part of each valid entry."""
        self._order: list[tuple[int, int]] = []
        """Times and numbers of entries. Stale ones stay until they come up, and hold no part."""
        self._entry_count = 0
        self.has_changed = False
        """Whether `next_ms` may have changed; reset by whoever waits for it."""

    @property
    def next_ms(self) -> int | None:
        """When the first part has something to do."""
        while self._order:
            at_ms, entry = self._order[0]
            if entry in self._parts:
                return at_ms
            heappop(self._order)
        return None

    def set(self, part: Timed, at_ms: int | None) -> None:
        """Have a part called at this time instead of its previous one; None for never."""
        known_ms, known_entry = self._times.get(part, (None, 0))
        if known_ms == at_ms:
            return
        self.has_changed = True
        if known_ms is not None:
            del self._times[part], self._parts[known_entry]
        if at_ms is None:
            return
        self._entry_count += 1  # Parts have no order among themselves.
        self._times[part] = at_ms, self._entry_count
        self._parts[self._entry_count] = part
        heappush(self._order, (at_ms, self._entry_count))
        if len(self._order) > 2 * len(self._times) + 64:
            self._order = [each for each in self._order if each[1] in self._parts]
            heapify(self._order)

    def due(self) -> Iterator[Timed]:
        """Every part whose time has come, each once, to be called before the next is asked for: what is not asked for
        stays due."""
        now_ms = self.now()
        entries: list[tuple[int, int]] = []
        while self._order and self._order[0][0] <= now_ms:
            entries.append(heappop(self._order))
        for entry in entries:
            heappush(self._order, entry)
        for _, number in entries:
            if (part := self._parts.pop(number, None)) is not None:
                del self._times[part]
                self.has_changed = True
                yield part
