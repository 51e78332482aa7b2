"""The source of randomness that pure rooms take as a parameter."""

from typing import Protocol


class RandomSource(Protocol):
    """The part of `random.Random` that is needed; seeded in tests and simulations."""

    def uniform(self, a: float, b: float, /) -> float:
        """A number between `a` and `b`."""
        ...
