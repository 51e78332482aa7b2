"""Offsets through JSON, shares of a batch, and queues dealt out to tasks."""

from collections.abc import Iterator, Mapping, Sequence

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_runtime.model.errors import CheckpointForeign
from lbg_runtime.pipeline.landing.log import Piece
from lbg_runtime.pipeline.spark.offsets import Place, Rows, decode, encode, pack, plan_end

LANES = {queue: [f"queue={queue:03d}/lane={name}" for name in "ab"] for queue in range(5)}


class Log:
    """As `LandingLog`, with flushes of some rows of ten bytes, all within the same time, but for some queues."""

    def __init__(
        self,
        row_bytes: Mapping[int, int] | None = None,
        rows: Mapping[str, int] | None = None,
        flush_rows: int = 1,
        times: Mapping[int, Sequence[int]] | None = None,
    ) -> None:
        """`rows`: how many a lane has in the end, landed in equal distances. `times`: those of a queue's rows."""
        self._row_bytes = dict.fromkeys(LANES, 10) | dict(row_bytes or {})
        self._rows = rows or {}
        self._flush_rows = flush_rows
        self._times = times or {}

    def cut(self, queue: int, start: Rows, end: Rows, max_rows: int) -> Mapping[str, int]:
        reached, left = {}, max_rows
        for lane in LANES[queue]:
            first = start.get(lane, 0)
            taken = max(0, min(left, end.get(lane, 0) - first))
            reached[lane], left = first + taken, left - taken
        return reached

    def pieces(self, queue: int, start: Rows, end: Rows) -> Iterator[Piece]:
        for lane in LANES[queue]:
            row, last = start.get(lane, 0), end.get(lane, 0)
            while row < last:
                reached = min(last, row - row % self._flush_rows + self._flush_rows)
                landed = (
                    row * 1_000 // self._rows.get(lane, last) if queue not in self._times else self._times[queue][row]
                )
                yield Piece(reached - row, self._row_bytes[queue], landed)
                row = reached


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
    end = {"queue=000/lane=a": 10, "queue=001/lane=a": 100, "queue=002/lane=a": 1_000}
    log, start = Log(row_bytes, end), dict[str, int]()
    while start != end:
        reached = plan_end(start, end, log.pieces, log.cut, max_rows, max_bytes)
        start = {lane: reached.get(lane, 0) for lane in end}
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
        reached = plan_end(start, end, log.pieces, log.cut, 1_000, max_bytes)
        start = {lane: reached.get(lane, 0) for lane in end}
        shares = [start[lane] / rows for lane, rows in end.items()]
        assert max(shares) - min(shares) <= 1 / little


def test_bursts_do_not_set_queues_apart() -> None:
    """With shares in proportion to rows, a queue whose rows had come late was far ahead of one whose had come early."""
    early, late = "queue=000/lane=a", "queue=001/lane=a"
    end = {early: 1_000, late: 1_000}
    log = Log(times={0: range(1_000), 1: range(10_000, 11_000)})
    assert plan_end({}, end, log.pieces, log.cut, 500, None) == {early: 500, LANES[0][1]: 0}
    reached = plan_end({early: 900}, end, log.pieces, log.cut, 500, None)
    assert (reached[early], reached[late]) == (1_000, 400)


def test_a_clock_that_was_set_back_puts_no_row_before_others_of_its_queue_or_of_later_ones() -> None:
    end = {"queue=000/lane=a": 4, "queue=001/lane=a": 4}
    log = Log(times={0: (10, 50, 20, 30), 1: (15, 25, 60, 70)})
    taken = []
    for rows in range(1, 9):
        reached = plan_end({}, end, log.pieces, log.cut, rows, None)
        taken.append(tuple(reached.get(lane, 0) for lane in end))
    assert taken == [(1, 0), (1, 1), (1, 2), (2, 2), (3, 2), (4, 2), (4, 3), (4, 4)]


def test_a_flush_is_cut_only_where_the_batch_ends() -> None:
    end = {"queue=000/lane=a": 100, "queue=001/lane=a": 100}
    log = Log(rows=end, flush_rows=10)
    reached = plan_end({}, end, log.pieces, log.cut, 45, None)
    assert [reached[lane] for lane in end] == [25, 20]


def test_what_was_pruned_takes_no_room_and_is_passed_by_at_once() -> None:
    end = {LANES[0][0]: 1_000, LANES[1][0]: 1_000, LANES[2][0]: 7}
    left = {0: 900, 1: 0, 2: 7}
    log = Log()

    def begun(queue: int, start: Rows) -> Rows:
        return {**start, LANES[queue][0]: max(start.get(LANES[queue][0], 0), left[queue])}

    def cut(queue: int, start: Rows, last: Rows, max_rows: int) -> Rows:
        return log.cut(queue, begun(queue, start), last, max_rows)

    def pieces(queue: int, start: Rows, last: Rows) -> Iterator[Piece]:
        return log.pieces(queue, begun(queue, start), last)

    reached = plan_end({}, end, pieces, cut, 950, None)
    assert [reached[lane] for lane in end] == [925, 925, 7]


def test_a_row_that_is_larger_than_the_limit_is_a_batch() -> None:
    end = {"queue=000/lane=a": 2, "queue=001/lane=a": 2}
    log = Log({0: 1_000, 1: 10}, end)
    assert [plan_end({}, end, log.pieces, log.cut, None, 50)[lane] for lane in ("queue=000/lane=a",)] == [1]


def test_without_limits_a_batch_is_all_there_is() -> None:
    end = dict.fromkeys(LANES[0], 10)
    assert plan_end({LANES[0][0]: 3}, end, LOG.pieces, LOG.cut, None, None) == end


@given(
    st.dictionaries(
        st.sampled_from([lane for lanes in LANES.values() for lane in lanes]), st.integers(0, 40), max_size=10
    ),
    st.integers(1, 30),
    st.one_of(st.none(), st.integers(1, 400)),
    st.integers(1, 15),
)
def test_limits_hold_and_every_row_is_reached(
    end: dict[str, int], max_rows: int, max_bytes: int | None, flush_rows: int
) -> None:
    log, start = Log(rows=end, flush_rows=flush_rows), dict[str, int]()
    while sum(start.values()) < sum(end.values()):
        reached = plan_end(start, end, log.pieces, log.cut, max_rows, max_bytes)
        taken = sum(reached.values()) - sum(start.values())
        assert 1 <= taken <= max_rows
        assert max_bytes is None or taken <= max(1, max_bytes // 10)
        assert all(start.get(lane, 0) <= rows <= end.get(lane, 0) for lane, rows in reached.items())
        start = reached


@given(st.lists(st.integers(0, 100), unique=True), st.integers(1, 10))
def test_every_queue_is_dealt_to_one_task(queues: list[int], tasks: int) -> None:
    dealt = pack(queues, tasks)
    assert sorted(queue for task in dealt for queue in task) == sorted(queues)
    assert len(dealt) == min(tasks, len(queues))
