"""A histogram of durations in plain integers, so that to count a duration costs no more than a look-up."""

from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of the buckets, inclusive; one more bucket has everything above the last."""

BOUNDS_NS = tuple(round(bound_s * 1e9) for bound_s in BOUNDS_S)


@dataclass(frozen=True, slots=True)
class DurationsReading:
    """The histogram at one moment."""

    counts: tuple[int, ...]
    """How many durations each bucket has, not cumulative; there is one bucket more than bounds."""
    sum_s: float

    def cumulative(self) -> list[tuple[str, int]]:
        """The buckets in the form of Prometheus: upper bounds, each with the number of durations up to it."""
        return list(zip((*map(str, BOUNDS_S), "+Inf"), accumulate(self.counts), strict=True))


class Durations:
    """Written and read on one thread."""

    __slots__ = ("counts", "sum_ns")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        """How many durations each bucket has. Public, because a call for each message would cost more than the counting
        itself: see `MemberMeters.ended`."""
        self.sum_ns = 0

    def count(self, duration_ns: int) -> None:
        """Count one duration. Constant time, and no memory."""
        self.counts[bisect_left(BOUNDS_NS, duration_ns)] += 1
        self.sum_ns += duration_ns

    def read(self) -> DurationsReading:
        """What was counted until now."""
        return DurationsReading(tuple(self.counts), self.sum_ns / 1e9)
