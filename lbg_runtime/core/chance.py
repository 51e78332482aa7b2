"""The source of randomness that pure rooms take as a parameter."""

from typing import Protocol


class RandomSource(Protocol):
    """What a `random.Random` offers of it; seeded in tests and simulations."""

    def uniform(self, a: float, b: float, /) -> float:
        """A number between `a` and `b`."""
        ...
