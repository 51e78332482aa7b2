"""Quantiles, for the tables of commands."""

import math
from collections.abc import Sequence


def quantile(values: Sequence[float], part: float) -> float:
    """The value of the nearest rank; there must be at least one value."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]
