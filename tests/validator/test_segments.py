"""The array questions, against the plain way to answer them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lbg_runtime.validator.segments import (
    FAR_FUTURE,
    FAR_PAST,
    Ints,
    dense,
    merged_ranges,
    overlapping,
    positions_in_ranges,
    running_max,
    subtracted,
    united_ranges,
)


def array(values: list[int]) -> Ints:
    return np.array(values, dtype=np.int64)


small = st.integers(0, 4)
wide = st.sampled_from([0, 1, 2, 7, 2**31 - 1])
moments = st.one_of(st.integers(0, 30), st.sampled_from([FAR_PAST, FAR_FUTURE]))
spans = st.tuples(small, st.integers(0, 40), st.integers(0, 10))
points = st.lists(st.tuples(small, st.integers(0, 25)), max_size=30)
ranges = st.lists(st.tuples(small, st.integers(0, 20), st.integers(-1, 6)), max_size=12)


@given(st.lists(st.tuples(wide, wide, wide), max_size=30))
def test_dense_numbers_rows_in_their_order_without_gaps(rows: list[tuple[int, int, int]]) -> None:
    codes = dense(*(array([row[place] for row in rows]) for place in range(3)))

    distinct = sorted(set(rows))
    assert codes.tolist() == [distinct.index(row) for row in rows]


@given(st.lists(st.tuples(small, moments), max_size=30))
def test_running_max_finds_the_largest_so_far_in_the_group(rows: list[tuple[int, int]]) -> None:
    rows.sort(key=lambda row: row[0])
    groups, values = array([row[0] for row in rows]), array([row[1] for row in rows])

    found = running_max(groups, values)

    for place, (group, _) in enumerate(rows):
        so_far = [value for other, value in rows[: place + 1] if other == group]
        assert values[found[place]] == max(so_far)
        assert groups[found[place]] == group
        assert found[place] <= place


@given(st.lists(spans, max_size=25))
def test_overlapping_finds_every_row_that_begins_inside_an_earlier_one(rows: list[tuple[int, int, int]]) -> None:
    rows = [(group, start, start + length) for group, start, length in rows]
    earlier, later = overlapping(*(array([row[place] for row in rows]) for place in range(3)))

    ordered = sorted(rows, key=lambda row: row[1:])
    expected = sum(
        any(other[0] == row[0] and other[2] > row[1] for other in ordered[:place]) for place, row in enumerate(ordered)
    )
    assert len(later) == len(set(later.tolist())) == expected
    for one, two in zip(earlier.tolist(), later.tolist(), strict=True):
        assert rows[one][0] == rows[two][0]
        assert rows[one][1] <= rows[two][1] < rows[one][2]


@given(ranges, points)
def test_ranges_and_points_behave_like_sets_of_numbers(
    written: list[tuple[int, int, int]], handled: list[tuple[int, int]]
) -> None:
    rows = [(group, first, first + length) for group, first, length in written]
    merged = merged_ranges(*(array([row[place] for row in rows]) for place in range(3)))
    groups, numbers = array([point[0] for point in handled]), array([point[1] for point in handled])

    holder = positions_in_ranges(merged, groups, numbers)
    lacking = subtracted(merged, united_ranges(groups, numbers, numbers))

    wanted = {(group, number) for group, first, last in rows for number in range(first, last + 1)}
    assert expanded(merged) == sorted(wanted)
    assert expanded(lacking) == sorted(wanted - set(handled))
    assert [place >= 0 for place in holder.tolist()] == [point in wanted for point in handled]
    united = united_ranges(*(array([row[place] for row in rows]) for place in range(3)))
    assert expanded(united) == sorted(wanted)
    assert len(united[0]) == sum((group, number - 1) not in wanted for group, number in wanted), "the fewest possible"


def expanded(found: tuple[Ints, Ints, Ints]) -> list[tuple[int, int]]:
    """Every number of the ranges; a number in two ranges shows up twice."""
    rows = zip(*(column.tolist() for column in found), strict=True)
    return sorted((group, number) for group, first, last in rows for number in range(first, last + 1))
