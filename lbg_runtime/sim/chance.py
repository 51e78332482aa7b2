"""Randomness of the simulation: the same numbers for a seed on every Python, so that a failing seed keeps failing."""

from collections.abc import Sequence
from typing import TypeVar

_Item = TypeVar("_Item")
_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15


class SeededChance:
    """SplitMix64. Every part of a simulation forks its own stream, so that a change in one leaves the others alone."""

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def fork(self, label: str) -> "SeededChance":
        """An independent stream, determined by this one's state and the label; this stream does not advance."""
        value = self._state
        for byte in label.encode():
            value = _mix((value * 31 + byte + 1) & _MASK)
        return SeededChance(value)

    def uniform(self, a: float, b: float, /) -> float:
        """A number from `a` up to, but not including, `b`."""
        return a + (b - a) * (self._next() >> 11) / (1 << 53)

    def between(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        return low + self._next() % (high - low + 1)

    def happens(self, probability: float) -> bool:
        """Whether something of this probability happens now."""
        return self.uniform(0, 1) < probability

    def pick(self, items: Sequence[_Item]) -> _Item:
        """One of the items, which must not be empty."""
        return items[self._next() % len(items)]

    def skip(self, count: int) -> None:
        """Continue as if this many numbers had been drawn."""
        self._state = (self._state + count * _STEP) & _MASK

    def _next(self) -> int:
        self._state = (self._state + _STEP) & _MASK
        return _mix(self._state)


def _mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
