"""Queues put together by their publishers' numbers: what is surely earlier comes first, and copies change nothing."""

import random
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import pyarrow as pa
import pytest

from lbg_runtime.model.errors import LandingError
from lbg_runtime.pipeline.replay_order import Run, find_moved, merged
from tests.pipeline.landing.landed import id_of, rows


class Row(NamedTuple):
    latest_us: int
    queue: int
    row_id: str


Landed = Mapping[int, list[tuple[int, str]]]
"""By queue: time and id of each row."""


def find(landed: Landed) -> Mapping[str, list[Run]]:
    def read(queue: int) -> Iterator[pa.RecordBatch]:
        # All in one shard.
        ids = [row_id for _, row_id in landed[queue]]
        for first in range(0, len(ids), 30):
            yield rows(ids[first : first + 30], queue=0)

    return find_moved(read, landed)


def put_together(landed: Landed) -> list[str]:
    streams = {queue: iter([Row(t, queue, row_id) for t, row_id in found]) for queue, found in landed.items()}
    return [row.row_id for row in merged(streams, find(landed), "/log")]


def test_only_what_has_numbers_in_several_queues_is_kept() -> None:
    landed = {
        0: [(1, id_of("k", 1)), (1, id_of("q", 1)), (1, id_of("k", 2)), (2, id_of("k", 5))],
        1: [(1, id_of("k", 3)), (1, id_of("k", 3)), (1, id_of("k", 4)), (1, "0000000000000.!lane/7")],
    }
    assert find(landed) == {"p/k": [Run(0, 1, 2), Run(1, 3, 4), Run(0, 5, 5)]}


def test_numbers_that_are_nowhere_make_no_runs() -> None:
    landed = {
        0: [(1, id_of("k", number)) for number in range(1, 100, 2)],
        1: [(1, id_of("k", number)) for number in range(101, 200, 2)],
    }
    assert find(landed) == {"p/k": [Run(0, 1, 99), Run(1, 101, 199)]}
    assert put_together(landed) == [id_of("k", number) for number in range(1, 200, 2)]


def test_shards_that_never_moved_cost_no_second_reading() -> None:
    readings: list[int] = []

    def read(queue: int) -> Iterator[pa.RecordBatch]:
        readings.append(queue)
        yield rows([id_of("k", 1)], queue=queue)

    assert find_moved(read, (0, 1)) == {}
    assert readings == [0, 1]


def test_the_same_row_landed_in_two_queues_is_no_order() -> None:
    landed = {
        0: [(5, id_of("k", 1)), (5, id_of("k", 2)), (5, id_of("k", 3)), (6, id_of("k", 2))],
        1: [(1, id_of("k", 2)), (1, id_of("k", 3)), (1, id_of("k", 4))],
    }
    numbers = [int(row_id.split(".")[1][0]) for row_id in put_together(landed)]
    assert sorted(numbers) == [1, 2, 2, 2, 3, 3, 4]
    firsts = list(dict.fromkeys(numbers))
    assert firsts == [1, 2, 3, 4]


def test_copies_that_lie_crosswise_do_not_stop_it() -> None:
    # The publisher's second sending of 2 and 3 went to the queue to which `k` had moved.
    landed = {
        0: [(1, id_of("k", 1)), (2, id_of("k", 2)), (3, id_of("k", 3)), (4, id_of("z", 1))],
        1: [(5, id_of("z", 2)), (6, id_of("k", 2)), (7, id_of("k", 3)), (8, id_of("k", 4))],
    }
    assert len(put_together(landed)) == 8


def test_queues_that_contradict_each_other_end_it_before_anything_is_out_of_order() -> None:
    landed = {
        0: [(1, id_of("a", 1)), (2, id_of("k", 2)), (3, id_of("z", 1))],
        1: [(1, id_of("b", 1)), (2, id_of("z", 2)), (3, id_of("k", 1))],
    }
    streams = {queue: iter([Row(t, queue, row_id) for t, row_id in found]) for queue, found in landed.items()}
    given: list[str] = []
    with pytest.raises(LandingError, match="tell no order of its queues at row"):
        given.extend(row.row_id for row in merged(streams, find(landed), "/log"))
    assert given == [id_of("a", 1), id_of("b", 1)]


@pytest.mark.parametrize("seed", range(200))
def test_any_moves_with_any_clocks_and_copies_keep_the_order(seed: int) -> None:
    chance = random.Random(seed)
    queue_count, keys = chance.randint(2, 4), "abcdef"[: chance.randint(1, 6)]
    ahead_us = [chance.choice((0, 50, -50, 100_000)) for _ in range(queue_count)]
    landed: dict[int, list[tuple[int, str]]] = {queue: [] for queue in range(queue_count)}
    latest = [0] * queue_count
    place = {key: chance.randrange(queue_count) for key in keys}
    number = dict.fromkeys(keys, 0)
    sent_all: dict[str, set[int]] = {key: set() for key in keys}
    for now_us in range(200):
        key = chance.choice(keys)
        if chance.random() < 0.1:
            place[key] = chance.randrange(queue_count)
        again = chance.randint(0, 2) if chance.random() < 0.1 else 0
        sent = [number[key] - back for back in range(again, 0, -1) if number[key] - back in sent_all[key]]
        number[key] += 1 if seed % 2 else chance.randint(1, 3)
        sent_all[key].add(number[key])
        for each in [*sent, number[key]]:
            queue = place[key]
            latest[queue] = max(latest[queue], 1_000_000 + now_us + ahead_us[queue])
            landed[queue].append((latest[queue], id_of(key, each)))
    got = put_together(landed)
    assert sorted(got) == sorted(row_id for found in landed.values() for _, row_id in found)
    firsts = list(dict.fromkeys(got))
    for key in keys:
        assert [each for each in firsts if each.endswith(f"/{key}")] == [id_of(key, n) for n in sorted(sent_all[key])]


def test_a_key_whose_own_numbers_contradict_each_other_is_to_be_replayed_by_time() -> None:
    """Alone it would end in the same way."""
    with pytest.raises(LandingError, match="its own numbers contradict each other: replay the rest by time"):
        put_together({0: [(1, id_of("k", 5)), (2, id_of("k", 3))], 1: [(1, id_of("k", 4))]})
