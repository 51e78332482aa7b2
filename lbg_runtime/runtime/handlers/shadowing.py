"""Finds a handler's subscription that can get nothing, as an earlier one takes all its topics."""

from lbg_runtime.model.topic import level_matches


def covers(wide: str, narrow: str) -> bool:
    """Whether `wide` attracts every topic that `narrow` attracts, so that `narrow` after it gets nothing.

    Both must be valid (`subscription_fault`). Linear in the number of levels.
    """
    above, below = wide.split("/"), narrow.split("/")
    for position, level in enumerate(above):
        if level == ">":
            return len(below) > position
        # A `>` attracts any number of levels; a subscription without one only as many as it has.
        if position >= len(below) or below[position] == ">" or not _level_covers(level, below[position]):
            return False
    return len(above) == len(below)


def _level_covers(wide: str, narrow: str) -> bool:
    return level_matches(wide, narrow.removesuffix("*")) if wide.endswith("*") else wide == narrow
