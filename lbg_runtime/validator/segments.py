"""Array operations within groups of rows, without a loop over rows."""

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

FAR_PAST = np.iinfo(np.int64).min
FAR_FUTURE = np.iinfo(np.int64).max

_LARGEST_SPAN = 1 << 62


def dense(*columns: Ints) -> Ints:
    """One number per row, equal where all columns are equal, ordered as the columns are, from 0 without gaps.

    Every column must hold values from 0 below 2**31.
    """
    codes, span = np.zeros(len(columns[0]), dtype=np.int64), 1
    for column in columns:
        width = int(column.max(initial=0)) + 1
        if span * width > _LARGEST_SPAN:
            # Afterwards there are no more codes than rows, so the product fits.
            codes, span = _without_gaps(codes, span), len(codes)
        codes, span = codes * width + column, span * width
    return _without_gaps(codes, span)


def _without_gaps(codes: Ints, span: int) -> Ints:
    if span <= 8 * len(codes):
        # A table of all possible codes is cheaper than a sort.
        used = np.zeros(span, dtype=np.bool_)
        used[codes] = True
        return (np.cumsum(used) - 1)[codes]
    _, numbers = np.unique(codes, return_inverse=True)
    return numbers.astype(np.int64, copy=False)


def changes(*columns: Ints) -> Flags:
    """Marks the rows that differ from the row before in any column; the first row counts as a change."""
    flags = np.zeros(len(columns[0]), dtype=np.bool_)
    flags[:1] = True
    for column in columns:
        flags[1:] |= column[1:] != column[:-1]
    return flags


def running_max(groups: Ints, values: Ints) -> Ints:
    """Per row, the index of the largest value in its group so far, the row itself included.

    Rows of a group must be adjacent. Works on ranks, so no sum of a group and a time can leave 64 bits.
    """
    count = len(values)
    by_value = np.argsort(values, kind="stable")
    rank = np.empty(count, dtype=np.int64)
    rank[by_value] = np.arange(count)
    group_number = np.cumsum(changes(groups)) - 1
    best = np.maximum.accumulate(group_number * count + rank)
    longest: Ints = by_value[best - group_number * count]
    return longest


def overlapping(groups: Ints, starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Rows that begin before an earlier row of their group has ended: (indices of the earlier, of the later).

    One pair for each later row, with the earlier row that ends last. Touching is not overlapping.
    """
    order = np.lexsort((ends, starts, groups))
    group, start, end = groups[order], starts[order], ends[order]
    # If any two rows of a group overlap, then some neighbours do: later starts lie between. Usually none does.
    suspicious = ~changes(group)
    suspicious[1:] &= end[:-1] > start[1:]
    rows = np.flatnonzero(np.isin(group, group[suspicious]))
    group, start, end, order = group[rows], start[rows], end[rows], order[rows]
    longest = running_max(group, end)
    later = np.flatnonzero(~changes(group))
    earlier = longest[later - 1]
    hit = end[earlier] > start[later]
    return order[earlier[hit]], order[later[hit]]


def merged_ranges(groups: Ints, firsts: Ints, lasts: Ints) -> tuple[Ints, Ints, Ints]:
    """The same numbers as disjoint ranges, sorted by group and first; empty ranges are dropped."""
    order = np.lexsort((firsts, groups))
    group, first, last = groups[order], firsts[order], lasts[order]
    reach = last[running_max(group, last)]
    follows = ~changes(group)
    first[1:] = np.where(follows[1:], np.maximum(first[1:], reach[:-1] + 1), first[1:])
    kept = first <= last
    return group[kept], first[kept], last[kept]


def preceding(groups: Ints, numbers: Ints, wanted_groups: Ints, wanted_numbers: Ints) -> Ints:
    """Per wanted pair, the index of the last row at or before it, or -1; rows are sorted by group and number.

    The row found can be of an earlier group: the caller checks.
    """
    keys = np.concatenate([groups, wanted_groups])
    values = np.concatenate([numbers, wanted_numbers])
    # A row sorts before a wanted pair that equals it.
    order = np.lexsort((np.arange(len(keys)), values, keys))
    found = np.empty(len(keys), dtype=np.int64)
    found[order] = np.cumsum(order < len(groups)) - 1
    return found[len(groups) :]


def positions_in_ranges(ranges: tuple[Ints, Ints, Ints], groups: Ints, numbers: Ints) -> Ints:
    """Per point, the index of the merged range that holds it, or -1."""
    range_group, first, last = ranges
    if not len(range_group):
        return np.full(len(groups), -1, dtype=np.int64)
    found = preceding(range_group, first, groups, numbers)
    safe = np.maximum(found, 0)
    inside = (found >= 0) & (range_group[safe] == groups) & (last[safe] >= numbers)
    return np.where(inside, found, -1)


def joined_ranges(groups: Ints, firsts: Ints, lasts: Ints) -> tuple[Ints, Ints]:
    """Which rows begin and which end a range that has no gap; rows are disjoint ranges, sorted by group and first."""
    begins = changes(groups)
    begins[1:] |= firsts[1:] != lasts[:-1] + 1
    begin = np.flatnonzero(begins)
    return begin, np.append(begin[1:], len(groups))[: len(begin)] - 1


def united_ranges(groups: Ints, firsts: Ints, lasts: Ints) -> tuple[Ints, Ints, Ints]:
    """The same numbers as the fewest possible disjoint ranges, sorted by group and first."""
    group, first, last = merged_ranges(groups, firsts, lasts)
    begin, end = joined_ranges(group, first, last)
    return group[begin], first[begin], last[end]


def subtracted(ranges: tuple[Ints, Ints, Ints], others: tuple[Ints, Ints, Ints]) -> tuple[Ints, Ints, Ints]:
    """The parts of ranges that no range of `others` covers; each side is disjoint, the answer sorted."""
    sides = (ranges, others)
    group = np.concatenate([column for side in sides for column in (side[0], side[0])])
    cut = np.concatenate([column for side in sides for column in (side[1], side[2] + 1)])
    counts = [len(side[0]) for side in sides]
    own, other = (np.repeat([*weights], np.repeat(counts, 2)) for weights in ((1, -1, 0, 0), (0, 0, 1, -1)))
    order = np.lexsort((cut, group))
    group, cut = group[order], cut[order]
    is_held, is_covered = np.cumsum(own[order]) > 0, np.cumsum(other[order]) > 0
    # Between one cut and the next nothing changes.
    piece = np.flatnonzero((is_held & ~is_covered)[:-1] & (cut[1:] > cut[:-1]) & (group[1:] == group[:-1]))
    return group[piece], cut[piece], cut[piece + 1] - 1
