"""Whether one topic subscription leaves another one nothing."""

from lbg_runtime.model.topic import level_matches


def covers(wide: str, narrow: str) -> bool:
    """Whether `wide` attracts every topic that `narrow` attracts, so that `narrow` behind it gets nothing.

    Both without faults (`subscription_fault`). Linear in the number of levels.
    """
    above, below = wide.split("/"), narrow.split("/")
    for position, level in enumerate(above):
        if level == ">":
            return len(below) > position
        # A `>` attracts any number of levels, and what has none of its own only as many as it has.
        if position >= len(below) or below[position] == ">" or not _level_covers(level, below[position]):
            return False
    return len(above) == len(below)


def _level_covers(wide: str, narrow: str) -> bool:
    return level_matches(wide, narrow.removesuffix("*")) if wide.endswith("*") else wide == narrow
