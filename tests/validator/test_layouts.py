"""Layouts of a run: the order of its re-stripings, its parts, and when shards lay where."""

from itertools import pairwise
from math import gcd

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_runtime.validator.custody import Hole
from lbg_runtime.validator.layouts import Layouts, part_count, read_layouts
from lbg_runtime.validator.schema import JOURNALS, STRIPES
from lbg_runtime.validator.segments import FAR_FUTURE, FAR_PAST
from lbg_runtime.validator.stays import read_stays
from tests.validator.history import story
from tests.validator.striping import striped_story

MS = 1_000_000

counts_of_runs = st.lists(st.integers(1, 12), min_size=2, max_size=4)


def stripes(*rows: tuple[str, int, int, int, int | None, int]) -> pa.Table:
    """Rows: event, generation, from, to, shard, moment in milliseconds; the queue is the one that the shard leaves."""
    return pa.Table.from_pylist(
        [
            {
                "journal": 0,
                "queue": 0 if shard is None else shard % before,
                "bind_epoch": 1,
                "event": event,
                "generation": generation,
                "from_count": before,
                "to_count": after,
                "shard": shard,
                "t": 0,
                "mono_ns": moment * MS,
            }
            for event, generation, before, after, shard, moment in rows
        ],
        STRIPES,
    )


def read(*rows: tuple[str, int, int, int, int | None, int]) -> Layouts:
    return read_layouts(stripes(*rows), np.zeros(1, dtype=np.int64))


def planned(*counts: int) -> list[tuple[str, int, int, int, int | None, int]]:
    steps = enumerate(pairwise(counts), 1)
    return [("planned", number, before, after, None, number * 1000) for number, (before, after) in steps]


def test_restripings_are_put_in_the_order_of_their_generations() -> None:
    layouts = read(*reversed(planned(8, 12, 6)))

    assert layouts.counts == (8, 12, 6)
    assert layouts.contradictions == ()
    told = [(each.generation, each.from_count, each.to_count) for each in layouts.restripings]
    assert told == [(1, 8, 12), (2, 12, 6)]


def test_a_run_without_restripings_has_no_layouts_and_every_queue_is_a_part() -> None:
    layouts = read()

    assert layouts.counts == ()
    assert layouts.parts_of(np.array([0, 7, 99])).tolist() == [0, 7, 99]


def test_two_restripings_that_do_not_fit_together_leave_a_gap() -> None:
    layouts = read(*planned(8, 12), ("planned", 2, 10, 6, None, 2000))

    assert layouts.counts == (8, 12, 10, 6)
    assert layouts.contradictions == ("re-striping 2 begins with 10 queues, but the one before it ended with 12",)
    assert len(layouts.restripings) == 2


@given(counts_of_runs, st.integers(0, 200))
def test_a_shard_never_leaves_its_part(counts: list[int], shard: int) -> None:
    layouts = read(*planned(*counts))

    queues = np.array([shard % count for count in counts])

    assert len(set(layouts.parts_of(queues).tolist())) == 1
    assert layouts.parts_of(queues)[0] == shard % gcd(*counts)


def test_a_run_is_cut_into_as_many_parts_as_all_its_queue_counts_allow() -> None:
    assert part_count(story().tables().journals, STRIPES.empty_table()) == 3
    striped = striped_story(8, 12, 6).tables()
    assert part_count(striped.journals, striped.stripes) == 2
    assert part_count(JOURNALS.empty_table(), STRIPES.empty_table()) == 1


def test_the_earliest_record_of_a_leaving_counts() -> None:
    layouts = read(*planned(1, 2), ("left", 1, 1, 2, 3, 1500), ("left", 1, 1, 2, 3, 1200), ("left", 1, 1, 2, 3, 1900))

    stays = read_stays(layouts, np.array([3]), [])

    assert stays.queue[:, 0].tolist() == [0, 1]
    assert stays.end_ns[:, 0].tolist() == [1200 * MS, FAR_FUTURE]
    assert stays.recorded_ns[:, 0].tolist() == [FAR_PAST, 1200 * MS]


def test_a_shard_that_a_restriping_does_not_move_stays_on() -> None:
    layouts = read(*planned(2, 4, 3), ("left", 2, 4, 3, 5, 2500))

    stays = read_stays(layouts, np.array([5]), [Hole(1, FAR_PAST, 0)])

    assert stays.queue[:, 0].tolist() == [1, 1, 2]
    assert stays.begin_ns[:, 0].tolist() == [FAR_PAST, FAR_PAST, 2500 * MS]
    assert stays.end_ns[:, 0].tolist() == [2500 * MS, 2500 * MS, FAR_FUTURE]


@pytest.mark.parametrize(
    ("holes", "expected_ms"),
    [
        ([Hole(0, FAR_PAST, 0)], 1500),
        ([Hole(0, FAR_PAST, 0), Hole(0, 1300 * MS, 1400 * MS)], 1300),
        ([Hole(0, FAR_PAST, 0), Hole(0, 1600 * MS, 1700 * MS)], 1500),
        ([Hole(0, FAR_PAST, 950 * MS)], 900),
        ([Hole(1, FAR_PAST, 0)], 900),
    ],
    ids=["owned", "unowned before", "unowned after", "first owner came late", "never owned"],
)
def test_an_unknown_owner_may_have_let_a_shard_go_from_the_plan_on(holes: list[Hole], expected_ms: int) -> None:
    layouts = read(*planned(1, 2), ("left", 1, 1, 2, 3, 1500))

    stays = read_stays(layouts, np.array([3]), holes)

    assert stays.begin_ns[1, 0] == expected_ms * MS
    assert stays.recorded_ns[1, 0] == 1500 * MS


def test_a_shard_that_known_owners_never_let_go_cannot_have_come() -> None:
    layouts = read(*planned(1, 2))

    assert read_stays(layouts, np.array([3]), [Hole(0, FAR_PAST, 0)]).begin_ns[1, 0] == FAR_FUTURE


def test_a_queue_counts_its_removals() -> None:
    layouts = read(*planned(6, 3, 6, 4), ("finished", 1, 6, 3, None, 1900), ("finished", 3, 6, 4, None, 3900))

    def removals(queue: int, moment_ms: int) -> int:
        return int(layouts.removals(np.array([queue]), np.array([moment_ms * MS]))[0])

    assert [removals(5, moment) for moment in (0, 1899, 1900, 3000, 4000)] == [0, 0, 1, 1, 2]
    assert [removals(3, moment) for moment in (0, 1900, 4000)] == [0, 1, 1]
    assert removals(2, 9000) == 0
