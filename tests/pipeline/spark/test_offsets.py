"""Offsets through JSON, shares of a batch, and queues dealt out to tasks."""

from collections.abc import Mapping

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_runtime.model.errors import CheckpointForeign
from lbg_runtime.pipeline.spark.offsets import Place, Rows, by_queue, decode, encode, pack, plan_end

LANES = {queue: [f"queue={queue:03d}/lane={name}" for name in "ab"] for queue in range(5)}


class Log:
    """As `LandingLog`, with rows of ten bytes, but for those of some queues."""

    def __init__(self, row_bytes: Mapping[int, int] | None = None, rows: Mapping[str, int] | None = None) -> None:
        """`rows`: how many a lane has in the end, as far as that matters."""
        self._row_bytes = dict.fromkeys(LANES, 10) | dict(row_bytes or {})
        self._rows = rows or {}

    def cut(self, queue: int, start: Rows, end: Rows, max_rows: int, max_bytes: int | None) -> Mapping[str, int]:
        fitting = max_rows if max_bytes is None else max_bytes // self._row_bytes[queue]
        reached, left = {}, max(1, min(max_rows, fitting))
        for lane in LANES[queue]:
            first = start.get(lane, 0)
            taken = max(0, min(left, end.get(lane, 0) - first))
            reached[lane], left = first + taken, left - taken
        return reached

    def size(self, queue: int, start: Rows, end: Rows) -> int:
        return self._row_bytes[queue] * sum(rows - start.get(lane, 0) for lane, rows in end.items())

    def landed(self, queue: int, start: Rows, end: Rows) -> int:
        """Rows of each lane have landed in equal distances, all within the same time."""
        at = [rows * 1_000 // self._rows.get(lane, rows) for lane, rows in end.items() if rows > start.get(lane, 0)]
        return max(at, default=0)


LOG = Log()


def test_an_offset_goes_through_json() -> None:
    place = Place({"queue=001/lane=a": 7, "queue=000/lane=b": 3}, {12: 90}, 2, {"queue=001/lane=a": 5})
    offset = orjson.loads(orjson.dumps(encode(place, "orders", "17")))
    lanes = {"queue=000/lane=b": 3, "queue=001/lane=a": 7}
    rest = {"removed": {"12": 90}, "tasks": 2, "began": {"queue=001/lane=a": 5}}
    assert offset == {"version": 1, "group": "orders", "log": "17", "lanes": lanes, **rest}
    assert decode(offset, "log", "orders", "17") == place


def test_a_checkpoint_without_group_and_log_is_read() -> None:
    lanes = {"queue=000/lane=a": 3}
    assert decode({"version": 1, "lanes": lanes}, "log", "orders", "17") == Place(lanes, {})
    # As is one of a log that has an id, by a log that has lost it.
    assert decode({"version": 1, "log": "17", "lanes": lanes}, "log", "orders", None) == Place(lanes, {})


@pytest.mark.parametrize(
    ("offset", "what"),
    [
        ({"version": 2, "lanes": {}}, "version 2"),
        ({"lanes": {}}, "version None"),
        ([], "version None"),
        ({"version": 1, "lanes": {"a": -1}}, "none of a landing log"),
        ({"version": 1, "lanes": {"a": True}}, "none of a landing log"),
        ({"version": 1, "group": "bills", "lanes": {}}, "group bills"),
        ({"version": 1, "log": "18", "lanes": {}}, "of log 18, and this is 17"),
        ({"version": 1, "lanes": {}, "removed": {"a": 1}}, "none of a landing log"),
        ({"version": 1, "lanes": {}, "removed": {"3": -1}}, "none of a landing log"),
        ({"version": 1, "lanes": {}, "tasks": 0}, "none of a landing log"),
        ({"version": 1, "lanes": {}, "began": {"a": "1"}}, "none of a landing log"),
    ],
)
def test_a_checkpoint_of_something_else_is_named(offset: object, what: str) -> None:
    with pytest.raises(CheckpointForeign, match=what) as raised:
        decode(offset, "the log", "orders", "17")
    assert raised.value.where == "the log"


@pytest.mark.parametrize(
    ("max_rows", "max_bytes", "row_bytes"),
    [(105, None, {}), (1_000, 1_050, {}), (1_000, 10_500, {1: 1_000}), (1_000, 31_800, {0: 200, 2: 300})],
)
def test_queues_that_catch_up_advance_alike_so_that_none_falls_behind_a_watermark(
    max_rows: int, max_bytes: int | None, row_bytes: Mapping[int, int]
) -> None:
    """With even shares, a stream with a watermark dropped most of the rows of the queue that had most; with shares of
    bytes in proportion to rows, those of the queue whose rows were larger."""
    log = Log(row_bytes)
    end = {"queue=000/lane=a": 10, "queue=001/lane=a": 100, "queue=002/lane=a": 1_000}
    start: dict[str, int] = {}
    while start != end:
        reached = plan_end(start, end, log.cut, log.size, log.landed, max_rows, max_bytes)
        start = {lane: reached[lane] for lane in end}
        shares = [start[lane] / rows for lane, rows in end.items()]
        assert max(shares) - min(shares) <= 0.1


@pytest.mark.parametrize("max_bytes", [None, 5_000])
@pytest.mark.parametrize("little", [5, 19, 47])
def test_a_queue_with_little_keeps_in_step_with_others_with_much_that_catch_up(
    little: int, max_bytes: int | None
) -> None:
    """With a row in each batch it set a watermark that lay before most of theirs, and with whole rows of its share
    alone it fell behind theirs."""
    end = {"queue=000/lane=a": little, "queue=001/lane=a": 10_000}
    log, start = Log(rows=end), dict[str, int]()
    while start != end:
        reached = plan_end(start, end, log.cut, log.size, log.landed, 1_000, max_bytes)
        start = {lane: reached.get(lane, 0) for lane in end}
        shares = [start[lane] / rows for lane, rows in end.items()]
        assert max(shares) - min(shares) <= 1 / little


def test_a_queue_with_little_gets_a_row_beside_others_with_much() -> None:
    end = {lanes[0]: 1 if queue == 2 else 1_000_000 for queue, lanes in LANES.items()}
    reached = plan_end({}, end, LOG.cut, LOG.size, LOG.landed, len(LANES), None)
    assert {lane: reached[lane] for lane in end} == dict.fromkeys(end, 1)


def test_a_limit_below_a_row_for_each_queue_starves_none() -> None:
    end = {lane: 10 for lanes in LANES.values() for lane in lanes}
    start: dict[str, int] = {}
    for _ in range(100):
        start = plan_end(start, end, LOG.cut, LOG.size, LOG.landed, 1, None)
    assert {lane: start[lane] for lane in end} == end


def test_with_a_limit_below_a_row_for_each_queue_they_take_turns() -> None:
    end = {lane: 10 for lanes in LANES.values() for lane in lanes}
    at: dict[str, int] = {}
    turns = []
    for _ in range(10):
        reached = plan_end(at, end, LOG.cut, LOG.size, LOG.landed, 2, None)
        turns += [queue for queue, lanes in LANES.items() for lane in lanes if reached.get(lane, 0) > at.get(lane, 0)]
        at = reached
    assert [sorted(turns[first : first + 4]) for first in (0, 10)] == [[0, 1, 2, 3]] * 2
    assert {queue: turns.count(queue) for queue in LANES} == dict.fromkeys(LANES, 4)


def test_what_a_queue_skips_takes_no_rows_from_the_others() -> None:
    end = {LANES[0][0]: 1000, LANES[1][0]: 1000}

    def skip(queue: int, start: Rows, last: Rows, max_rows: int, max_bytes: int | None) -> Mapping[str, int]:
        return LOG.cut(queue, {LANES[0][0]: 900, **start} if queue == 0 else start, last, max_rows, max_bytes)

    reached = plan_end({}, end, skip, LOG.size, LOG.landed, 20, None)
    assert (reached[LANES[0][0]], reached[LANES[1][0]]) == (910, 10)


def test_without_limits_a_batch_is_all_there_is() -> None:
    end = dict.fromkeys(LANES[0], 10)
    assert plan_end({LANES[0][0]: 3}, end, LOG.cut, LOG.size, LOG.landed, None, None) == end


@given(
    st.dictionaries(
        st.sampled_from([lane for lanes in LANES.values() for lane in lanes]), st.integers(0, 40), max_size=10
    ),
    st.integers(1, 30),
    st.one_of(st.none(), st.integers(1, 400)),
)
def test_limits_hold_and_every_row_is_reached(end: dict[str, int], max_rows: int, max_bytes: int | None) -> None:
    start: dict[str, int] = {}
    while sum(start.values()) < sum(end.values()):
        reached = plan_end(start, end, LOG.cut, LOG.size, LOG.landed, max_rows, max_bytes)
        taken = sum(reached.values()) - sum(start.values())
        assert 1 <= taken <= max_rows
        # A queue of which the share is less than a row gives one nevertheless.
        assert max_bytes is None or taken <= max(1, max_bytes // 10) + len(by_queue(end)) - 1
        assert all(start.get(lane, 0) <= rows <= end.get(lane, 0) for lane, rows in reached.items())
        start = reached


@given(st.lists(st.integers(0, 100), unique=True), st.integers(1, 10))
def test_every_queue_is_dealt_to_one_task(queues: list[int], tasks: int) -> None:
    dealt = pack(queues, tasks)
    assert sorted(queue for task in dealt for queue in task) == sorted(queues)
    assert len(dealt) == min(tasks, len(queues))
