"""Ranks among values."""

import math
from collections.abc import Sequence


def quantile(values: Sequence[float], part: float) -> float:
    """The value of this rank (nearest); there must be one."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]
