"""Ranks among values."""

from collections.abc import Sequence


def quantile(values: Sequence[float], part: float) -> float:
    """The value of this rank (nearest); there must be one."""
    ordered = sorted(values)
    return ordered[max(0, -int(-part * len(ordered) // 1) - 1)]
