"""The source of randomness that pure rooms take as a parameter, and what several of them draw from it."""

from typing import Protocol

_MOST_DOUBLINGS = 30
"""Only to keep the number small; the longest wait is reached long before."""


class RandomSource(Protocol):
    """The part of `random.Random` that is needed; seeded in tests and simulations."""

    def uniform(self, a: float, b: float, /) -> float:
        """A number between `a` and `b`."""
        ...


def shortened_ms(longest_ms: int, jitter: float, random: RandomSource) -> int:
    """`longest_ms`, shortened at random by up to the share `jitter` (0 to 1) of it; at least 1 ms."""
    kept_share = 1 - random.uniform(0, jitter)
    return max(1, round(longest_ms * kept_share))


def doubled_ms(first_ms: int, longest_ms: int, failures: int, random: RandomSource) -> int:
    """The wait after so many failures in a row (1 or more): it doubles each time, up to `longest_ms`; its second half
    is random."""
    ceiling_ms = min(longest_ms, first_ms << min(failures - 1, _MOST_DOUBLINGS))
    return max(1, round(random.uniform(ceiling_ms / 2, ceiling_ms)))


def nonce(random: RandomSource) -> int:
    """A random number of 53 bits: for practical purposes, nobody else draws the same."""
    return int(random.uniform(0, 1 << 53))
