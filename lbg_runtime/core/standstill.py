"""Finds what has stood still for too long: reports it once when it is overdue, and once when that is over. No clock."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)


class StandingAt(NamedTuple, Generic[K]):
    """The state of one thing at one look."""

    name: K
    at: Hashable
    """Its position; if it differs from that of the last look, the thing has moved on."""
    since_ms: int | None
    """Since when it has stood there; None if only since this look. Used by the first look that finds it there."""


@dataclass(frozen=True, slots=True)
class Overdue(Generic[K]):
    """What is new at one look. Whatever is reported in `began` is reported in `ended` before it can begin again."""

    began: tuple[tuple[K, int], ...]
    """Names, with how long they have stood still, in milliseconds."""
    ended: tuple[tuple[K, int], ...]
    """Names, with how long they stood still until this look, in milliseconds."""


class _Known:
    __slots__ = ("at", "is_told", "since_ms")

    def __init__(self, at: Hashable, since_ms: int) -> None:
        self.at = at
        self.since_ms = since_ms
        self.is_told = False


class StandstillWatch(Generic[K]):
    """Compares successive looks at the same things. A look is shown all of them, or at least all that may be overdue,
    and is linear in their number."""

    def __init__(self, after_ms: int) -> None:
        self._after_ms = after_ms
        self._known: dict[K, _Known] = {}

    @property
    def count(self) -> int:
        """How many are overdue as of the last look."""
        return sum(known.is_told for known in self._known.values())

    def look(self, found: Iterable[StandingAt[K]], now_ms: int) -> Overdue[K]:
        """Compare with the last look. `now_ms` must never go back, and a name must occur in `found` only once."""
        before, self._known = self._known, {}
        began: list[tuple[K, int]] = []
        ended: list[tuple[K, int]] = []
        for name, at, since_ms in found:
            known = before.pop(name, None)
            if known is None or known.at != at:
                if known is not None and known.is_told:
                    ended.append((name, now_ms - known.since_ms))
                known = _Known(at, now_ms if since_ms is None else since_ms)
            self._known[name] = known
            if not known.is_told and now_ms - known.since_ms >= self._after_ms:
                known.is_told = True
                began.append((name, now_ms - known.since_ms))
        ended += [(name, now_ms - known.since_ms) for name, known in before.items() if known.is_told]
        return Overdue(tuple(began), tuple(ended))
