"""The contract of the readers, called as Spark calls them, without a JVM.

More than 400 lines, because all of them are on one kind of log.
"""

import os
import pickle
import shutil
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import TypeVar

import orjson
import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from lbg_runtime.model.errors import CheckpointForeign, LandingError, LandingRowsPruned, PayloadNotText, UserError
from lbg_runtime.pipeline.landing.lane import set_aside
from lbg_runtime.pipeline.landing.log import LandingLog
from lbg_runtime.pipeline.landing.prune import prune as prune_log
from lbg_runtime.pipeline.spark import source
from lbg_runtime.pipeline.spark.data_source import LbgDataSource
from lbg_runtime.pipeline.spark.source import LbgBatchReader, LbgStreamReader
from lbg_runtime.pipeline.spark.source_bench import fill_log
from lbg_runtime.pipeline.spark.source_options import read_source_options
from tests.pipeline.landing.landed import LogOnDisk, id_of, rows
from tests.pipeline.spark.logs import fill, not_once

T = TypeVar("T")
Offset = dict[str, object]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogOnDisk]:
    found = LogOnDisk(tmp_path / "log")
    yield found
    found.close()


def stream_reader(root: Path, **options: str) -> LbgStreamReader:
    return LbgStreamReader(read_source_options({"path": str(root), **options}))


def through_json(offset: Offset) -> Offset:
    found: Offset = orjson.loads(orjson.dumps(offset))
    return found


def through_pickle(value: T) -> T:
    found: T = pickle.loads(pickle.dumps(value))  # noqa: S301  # made here
    return found


def read(reader: DataSourceReader | LbgStreamReader, *offsets: Offset) -> list[str]:
    """The ids of a batch, planned and read as Spark does it: reader and partitions go through pickle."""
    found: list[str] = []
    far = through_pickle(reader)
    for partition in reader.partitions(*offsets):
        for batch in far.read(through_pickle(partition)):
            found += batch.column("broker_id").to_pylist()
    return found


def batches(reader: LbgStreamReader, start: Offset | None = None) -> Iterator[tuple[Offset, list[str]]]:
    """All batches of a stream up to now: their ends and their ids."""
    at = through_json(reader.initialOffset()) if start is None else start
    while (end := through_json(reader.latestOffset(at, reader.getDefaultReadLimit()))) != at:
        yield end, read(reader, at, end)
        at = end


def test_every_message_is_in_one_batch_and_keys_keep_their_order(tmp_path: Path) -> None:
    fill(tmp_path / "log", 5, 200)
    reader = stream_reader(tmp_path / "log", maxRowsPerBatch="70")
    found = [each for _, batch in batches(reader) for each in batch]
    assert not not_once(Counter(found), 5, 200)
    of_keys: dict[str, list[int]] = {}
    for each in found:
        _, _, identity = each.partition(".")
        number, _, key = identity.split("/")
        of_keys.setdefault(key, []).append(int(number))
    assert all(numbers == sorted(numbers) for numbers in of_keys.values())


def test_a_batch_that_is_run_again_has_the_same_rows_whatever_came_meanwhile(log: LogOnDisk) -> None:
    lane = log.lane()
    lane.append(rows([id_of("k", 1), id_of("k", 2)]))
    reader = stream_reader(log.root)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(10))
    first = read(reader, start, end)
    lane.append(rows([id_of("k", 3)]))
    log.lane("b", 2).append(rows([id_of("k", 2), id_of("q", 1)]))
    assert first == [id_of("k", 1), id_of("k", 2)]
    assert read(stream_reader(log.root), through_json(start), through_json(end)) == first


def test_a_batch_that_is_run_again_has_the_same_tasks_on_any_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sink makes the numbers of its messages from the task; under others no guard would know the copies."""
    fill(tmp_path / "log", 4, 20)

    def planned(start: Offset, end: Offset, **options: str) -> list[object]:
        return [task.value for task in stream_reader(tmp_path / "log", **options).partitions(start, end)]

    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    reader = stream_reader(tmp_path / "log")
    start = through_json(reader.initialOffset())
    end = through_json(reader.latestOffset(start, ReadAllAvailable()))
    first = planned(start, end)
    assert len(first) == 2
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert planned(start, end) == planned(start, end, queuesPerPartition="1") == first
    # The next start finds no news in the number of its cores, and a checkpoint without it goes on.
    assert stream_reader(tmp_path / "log").latestOffset(end, ReadAllAvailable()) == end
    del end["tasks"]
    assert len(planned(start, end)) == 4
    assert stream_reader(tmp_path / "log").latestOffset(end, ReadAllAvailable()) == end


def test_a_lane_that_a_checkpoint_does_not_know_is_read_from_its_begin(log: LogOnDisk) -> None:
    log.lane("a", queue=0).append(rows([id_of("k", 1)], queue=0))
    reader = stream_reader(log.root)
    ((end, _),) = batches(reader)
    log.lane("b", queue=2).append(rows([id_of("q", 1)], queue=2))
    assert [found for _, found in batches(stream_reader(log.root), end)] == [[id_of("q", 1)]]


def test_an_offset_without_news_stays_and_plans_nothing(log: LogOnDisk) -> None:
    log.lane().append(rows([id_of("k", 1)]))
    reader = stream_reader(log.root)
    ((end, _),) = batches(reader)
    assert reader.latestOffset(end, ReadMaxRows(10)) == end
    assert list(reader.partitions(end, end)) == []


def test_limits_of_rows_and_of_bytes_hold_and_all_available_has_none(log: LogOnDisk) -> None:
    log.lane().append(rows([id_of("k", number) for number in range(1, 101)]))
    reader = stream_reader(log.root)
    start = reader.initialOffset()
    assert len(read(reader, start, reader.latestOffset(start, ReadMaxRows(30)))) == 30
    of_bytes = read(reader, start, reader.latestOffset(start, ReadMaxBytes(2_000)))
    assert 1 <= len(of_bytes) < 30
    small = stream_reader(log.root, maxRowsPerBatch="3")
    assert len(read(small, start, small.latestOffset(start, ReadAllAvailable()))) == 100


def test_available_now_ends_where_the_log_ended_when_it_began(log: LogOnDisk) -> None:
    lane = log.lane()
    lane.append(rows([id_of("k", 1)]))
    reader = stream_reader(log.root)
    reader.prepareForTriggerAvailableNow()
    lane.append(rows([id_of("k", 2)]))
    assert [found for _, found in batches(reader)] == [[id_of("k", 1)]]
    assert reader.reportLatestOffset()["lanes"] == {lane.name: 2}


def test_streams_begin_where_they_are_told_to(log: LogOnDisk) -> None:
    lane = log.lane()
    for second in (1, 2, 3):
        lane.append(rows([id_of("k", second)], t_land=second * 1_000_000))
    latest = stream_reader(log.root, startingOffsets="latest")
    assert list(batches(latest)) == []
    from_two = stream_reader(log.root, startingOffsets="1970-01-01T00:00:02")
    assert [found for _, found in batches(from_two)] == [[id_of("k", 2), id_of("k", 3)]]


def test_only_the_queues_asked_for_are_read_and_packed_into_tasks(tmp_path: Path) -> None:
    fill(tmp_path / "log", 8, 10)
    reader = stream_reader(tmp_path / "log", queues="1,2,4,5,7", queuesPerPartition="2")
    start = reader.initialOffset()
    planned = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    assert [[queue for queue, _, _ in each.value[0]] for each in planned] == [[1, 5], [2, 7], [4]]


def test_rows_of_many_queues_go_to_spark_in_few_pieces(tmp_path: Path) -> None:
    fill(tmp_path / "log", 8, 40)
    reader = stream_reader(tmp_path / "log", queuesPerPartition="8")
    start = reader.initialOffset()
    (task,) = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    (piece,) = reader.read(task)
    assert [len(list(rows)) for _, rows in groupby(piece.column("queue").to_pylist())] == [40] * 8


def test_pieces_are_of_about_as_many_bytes_as_they_may_be(log: LogOnDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    flush = rows([id_of("k", number) for number in range(100)])
    lane = log.lane(segment_bytes=1 << 30)
    for _ in range(4):
        lane.append(flush)
    monkeypatch.setattr(source, "_JOINED_BYTES", 2 * flush.nbytes + flush.nbytes // 10)
    reader = stream_reader(log.root)

    def sizes(first: int, last: int) -> list[int]:
        at, to = ({"version": 1, "lanes": {lane.name: row}} for row in (first, last))
        (task,) = reader.partitions(at, to)
        return [piece.num_rows for piece in reader.read(task)]

    assert sizes(0, 400) == [200, 200]
    # What is left of a flush that was cut is no more than it is.
    assert sizes(50, 350) == [150, 150]
    # A large one goes as it is, unless it is larger than any may be.
    monkeypatch.setattr(source, "_JOINED_BYTES", flush.nbytes // 2)
    assert sizes(0, 400) == [100] * 4
    for limit in ("_BATCH_BYTES", "_JOINED_BYTES"):
        monkeypatch.setattr(source, limit, flush.nbytes // 4)
    small = sizes(0, 100)
    assert sum(small) == 100
    assert max(small) <= 25
    assert len(small) <= 6


def test_the_lag_is_that_of_the_batch_that_was_planned(log: LogOnDisk) -> None:
    lane = log.lane()
    lane.append(rows([id_of("k", 1)]))
    reader = stream_reader(log.root)
    end = reader.latestOffset(reader.initialOffset(), ReadMaxRows(10))
    lane.append(rows([id_of("k", 2)]))
    assert reader.reportLatestOffset()["lanes"] == end["lanes"]
    assert reader.reportLatestOffset()["lanes"] == {lane.name: 2}


def test_logs_that_are_compared_have_as_many_rows(tmp_path: Path) -> None:
    for queues in (2, 8):
        fill_log(tmp_path / str(queues), queues, 2400)
    found = [sum(each.rows for each in LandingLog(path).lanes().values()) for path in sorted(tmp_path.iterdir())]
    assert found == [2400, 2400]


def prune(log: LogOnDisk, lane: str) -> None:
    """The first segment of a lane goes, as by hand."""
    for path in (log.root / lane).glob("000000000000.*"):
        path.unlink()


def test_rows_that_are_gone_are_a_named_error_unless_asked_otherwise(log: LogOnDisk) -> None:
    lane = log.lane(segment_bytes=1)
    lane.append(rows([id_of("k", 1)]))
    lane.append(rows([id_of("k", 2)]))
    reader = stream_reader(log.root)
    start = reader.initialOffset()
    prune(log, lane.name)
    with pytest.raises(LandingRowsPruned) as raised:
        reader.latestOffset(start, ReadMaxRows(10))
    assert (raised.value.lane, raised.value.first_row) == (lane.name, 1)
    careless = stream_reader(log.root, failOnDataLoss="false")
    assert read(careless, start, careless.latestOffset(start, ReadMaxRows(10))) == [id_of("k", 2)]


@pytest.mark.parametrize(("fails", "left"), [("true", None), ("false", [id_of("k", 5), id_of("k", 6)])])
def test_rows_that_go_between_two_batches_of_what_is_available_are_gone_for_the_second(
    log: LogOnDisk, fails: str, left: list[str] | None
) -> None:
    lane = log.lane(segment_bytes=1)
    for number in range(1, 10):
        lane.append(rows([id_of("k", number)], t_land=number))
    reader = stream_reader(log.root, failOnDataLoss=fails)
    reader.prepareForTriggerAvailableNow()
    end = reader.latestOffset(reader.initialOffset(), ReadMaxRows(2))
    list(prune_log(log.root, 5))
    if left is None:
        with pytest.raises(LandingRowsPruned) as raised:
            reader.latestOffset(end, ReadMaxRows(2))
        assert (raised.value.row, raised.value.first_row) == (2, 4)
    else:
        assert read(reader, end, reader.latestOffset(end, ReadMaxRows(2))) == left


def test_what_was_available_may_be_gone_as_a_whole(log: LogOnDisk) -> None:
    lane = log.lane(segment_bytes=1)
    for number in range(1, 10):
        lane.append(rows([id_of("k", number)], t_land=number))
        if number == 4:
            reader = stream_reader(log.root, failOnDataLoss="false")
            reader.prepareForTriggerAvailableNow()
    end = reader.latestOffset(reader.initialOffset(), ReadMaxRows(2))
    list(prune_log(log.root, 7))
    reader.reportLatestOffset()
    end = reader.latestOffset(end, ReadMaxRows(2))
    assert end["lanes"] == {lane.name: 4}
    next_run = stream_reader(log.root, failOnDataLoss="false")
    assert [found for _, found in batches(next_run, end)] == [[id_of("k", number) for number in (7, 8, 9)]]


def test_a_first_batch_that_is_run_again_begins_where_it_began(log: LogOnDisk) -> None:
    """Spark keeps its end, and asks again where the stream begins; the sink would give other rows the same numbers."""
    lane = log.lane(segment_bytes=1)
    for number in (1, 2, 3):
        lane.append(rows([id_of("k", number)], t_land=number))
    reader = stream_reader(log.root)
    end = through_json(reader.latestOffset(through_json(reader.initialOffset()), ReadAllAvailable()))
    list(prune_log(log.root, 2))
    again = stream_reader(log.root)
    with pytest.raises(LandingRowsPruned) as raised:
        read(again, through_json(again.initialOffset()), end)
    assert (raised.value.row, raised.value.first_row) == (0, 1)
    careless = stream_reader(log.root, failOnDataLoss="false")
    assert read(careless, through_json(careless.initialOffset()), end) == [id_of("k", 2), id_of("k", 3)]
    lane.append(rows([id_of("k", 4)], t_land=4))
    assert [found for _, found in batches(again, end)] == [[id_of("k", 4)]]


def test_what_lands_while_a_stream_is_started_belongs_to_it(log: LogOnDisk) -> None:
    reader = stream_reader(log.root, startingOffsets="latest")
    start = through_json(reader.initialOffset())
    lane = log.lane()
    lane.append(rows([id_of("k", 1)]))
    end = through_json(reader.latestOffset(start, ReadAllAvailable()))
    lane.append(rows([id_of("k", 2)]))
    # Spark asks for the begin a second time.
    assert read(reader, through_json(reader.initialOffset()), end) == [id_of("k", 1)]
    assert [found for _, found in batches(reader, end)] == [[id_of("k", 2)]]


def test_a_stream_that_waits_for_its_first_row_takes_nothing_else_for_one(log: LogOnDisk) -> None:
    reader = stream_reader(log.root, startingOffsets="latest")
    start = through_json(reader.initialOffset())
    assert reader.latestOffset(start, ReadAllAvailable()) == start
    log.lane().append(rows([id_of("k", 1)]))
    assert [found for _, found in batches(reader, start)] == [[id_of("k", 1)]]


def test_a_planned_batch_goes_on_without_a_lane_that_is_gone_where_it_may(log: LogOnDisk) -> None:
    """As after a driver that died within a batch, and was started again much later."""
    gone = land(log, "a", 3, 10)
    reader = stream_reader(log.root)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(100))
    remove(log)
    log.lane("b").append(rows([id_of("k", 1)]))
    with pytest.raises(LandingRowsPruned) as raised:
        read(stream_reader(log.root), start, end)
    assert raised.value.lane == gone
    careless = stream_reader(log.root, failOnDataLoss="false")
    assert read(careless, start, end) == []
    assert [found for _, found in batches(careless, end)] == [[id_of("k", 1)]]


@pytest.mark.parametrize("max_rows", ["1", "100"])
def test_rows_of_which_copies_that_come_later_are_pruned_are_not_lost_with_them(log: LogOnDisk, max_rows: str) -> None:
    """A member that lost its flow and has the oldest lane; of its successor's the begin is pruned."""
    ids = [id_of("k", number) for number in range(1, 8)]
    old, new = log.lane("a", segment_bytes=1), log.lane("b", 2, segment_bytes=1)
    old.append(rows(ids[:2]))
    for each in ids[:6]:
        new.append(rows([each], t_land=1))
    start = through_json(stream_reader(log.root).reportLatestOffset())
    start["lanes"] = {old.name: 2, new.name: 3}
    old.append(rows(ids[2:5]))
    new.append(rows(ids[6:], t_land=1))
    list(prune_log(log.root, 1 << 40))
    new.append(rows([id_of("k", 8)]))
    assert LandingLog(log.root).lanes(3)[new.name].first_row == 6
    careless = stream_reader(log.root, failOnDataLoss="false", maxRowsPerBatch=max_rows)
    found = [each for _, batch in batches(careless, start) for each in batch]
    # The third was read, the sixth is gone.
    assert found == [ids[3], ids[4], ids[6], id_of("k", 8)]


def test_copies_that_lie_behind_what_is_pruned_stay_out_as_their_key_would_go_back(log: LogOnDisk) -> None:
    """One handle with two lanes, as where it has ended one so that it can be pruned; then a successor."""
    ids = [id_of("k", number) for number in range(1, 13)]
    for member, epoch, first, last, t_land in (("a", 1, 0, 5, 1), ("a", 1, 5, 10, 100), ("b", 2, 2, 12, 100)):
        lane = log.lane(member, epoch)
        lane.append(rows(ids[first:last], t_land=t_land))
        lane.close()
    start = stream_reader(log.root).initialOffset()
    list(prune_log(log.root, 50))
    careless = stream_reader(log.root, failOnDataLoss="false")
    assert [found for _, found in batches(careless, start)] == [ids[5:]]


def test_a_checkpoint_of_another_log_is_named(tmp_path: Path) -> None:
    for name in ("one", "other"):
        log = LogOnDisk(tmp_path / name)
        log.lane(name).append(rows([id_of("k", 1)]))
        log.close()
    end = stream_reader(tmp_path / "one").reportLatestOffset()
    with pytest.raises(CheckpointForeign, match="an offset of log"):
        stream_reader(tmp_path / "other").latestOffset(end, ReadMaxRows(10))
    # One of before, or of a log of before.
    del end["log"]
    with pytest.raises(CheckpointForeign, match="the log has none of them"):
        stream_reader(tmp_path / "other").latestOffset(end, ReadMaxRows(10))


def test_a_log_that_takes_the_place_of_another_ends_the_stream(tmp_path: Path) -> None:
    def land_one(member: str) -> None:
        log = LogOnDisk(tmp_path / "log")
        log.lane(member).append(rows([id_of("k", 1), id_of("k", 2)]))
        log.close()

    land_one("a")
    reader = stream_reader(tmp_path / "log")
    end = through_json(reader.latestOffset(through_json(reader.initialOffset()), ReadMaxRows(1)))
    (tmp_path / "log").rename(tmp_path / "away")
    with pytest.raises(UserError, match="no such folder"):
        reader.latestOffset(end, ReadMaxRows(1))
    land_one("b")
    with pytest.raises(CheckpointForeign, match="an offset of log"):
        reader.latestOffset(end, ReadMaxRows(1))
    shutil.rmtree(tmp_path / "log")
    (tmp_path / "away").rename(tmp_path / "log")
    assert [found for _, found in batches(reader, end)] == [[id_of("k", 2)]]


def test_a_stream_goes_on_where_the_note_of_its_log_was_lost_and_written_by_hand(log: LogOnDisk) -> None:
    lane = log.lane()
    lane.append(rows([id_of("k", 1)]))
    [(end, _)] = batches(stream_reader(log.root))
    (log.root / "landing.json").write_text('{"group": "orders", "hash_prefix": "hp", "hash_count": 8, "format": 1}')
    lane.append(rows([id_of("k", 2)]))
    assert [found for _, found in batches(stream_reader(log.root), end)] == [[id_of("k", 2)]]


@pytest.mark.parametrize("fails_on_loss", ["true", "false"])
def test_a_log_that_takes_the_place_of_another_gives_nothing_to_what_was_planned(
    tmp_path: Path, fails_on_loss: str
) -> None:
    """Where losses are passed over, all of the batch was missing, and Spark noted it as done."""

    def land_one(member: str) -> None:
        log = LogOnDisk(tmp_path / "log")
        log.lane(member).append(rows([id_of("k", 1)]))
        log.close()

    land_one("a")
    options = {"failOnDataLoss": fails_on_loss}
    stream = stream_reader(tmp_path / "log", **options)
    begin = stream.initialOffset()
    planned = stream.partitions(begin, stream.latestOffset(begin, ReadAllAvailable()))
    batch = LbgBatchReader(read_source_options({"path": str(tmp_path / "log"), **options}))
    planned_batch = batch.partitions()
    (tmp_path / "log").rename(tmp_path / "away")
    land_one("b")
    for reader, partitions in ((stream, planned), (batch, planned_batch)):
        with pytest.raises(LandingError, match="another log has taken its place"):
            list(through_pickle(reader).read(through_pickle(partitions[0])))


DAY_US = 86_400 * 1_000_000


def land(log: LogOnDisk, member: str, queue: int, count: int) -> str:
    """A lane that is done with, of flushes of ten rows."""
    lane = log.lane(member, queue=queue, segment_bytes=1)
    for first in range(0, count, 10):
        found = [id_of(f"{member}{queue}", number) for number in range(first, min(first + 10, count))]
        lane.append(rows(found, queue=queue, t_land=1))
    lane.close()
    return lane.name


def remove(log: LogOnDisk) -> None:
    """All that is done with is pruned, and removed a week later."""
    for day in (1, 9):
        list(prune_log(log.root, 1 << 60, clock_us=lambda day=day: day * DAY_US))


@pytest.mark.parametrize("has_ids", [True, False])
@pytest.mark.parametrize("is_another_left", [True, False])
def test_rows_of_lanes_that_are_wholly_gone_are_a_named_error_too(
    log: LogOnDisk, *, is_another_left: bool, has_ids: bool
) -> None:
    if not has_ids:
        forget_id(log.root)
    half_read, unread = land(log, "a", 0, 100), land(log, "a", 1, 100)
    reader = stream_reader(log.root)
    start = {**reader.initialOffset(), "lanes": {half_read: 40}}
    if is_another_left:
        kept = log.lane("b", queue=0)
        kept.append(rows([id_of("kept", 1)], queue=0))
        start["lanes"] = {half_read: 40, kept.name: 1}
    remove(log)
    land(log, "c", 2, 10)
    with pytest.raises(LandingRowsPruned) as raised:
        stream_reader(log.root).latestOffset(start, ReadMaxRows(1000))
    assert (raised.value.lane, raised.value.row, raised.value.first_row) == (half_read, 40, 100)
    # A lane of which nothing was read.
    start["lanes"] = {**start["lanes"], half_read: 100}
    with pytest.raises(LandingRowsPruned) as raised:
        stream_reader(log.root).latestOffset(start, ReadMaxRows(1000))
    assert (raised.value.lane, raised.value.row) == (unread, 0)
    careless = stream_reader(log.root, failOnDataLoss="false")
    assert [len(found) for _, found in batches(careless, start)] == [10]


@pytest.mark.parametrize("has_ids", [True, False])
def test_lanes_that_are_gone_and_were_read_leave_the_offset(log: LogOnDisk, *, has_ids: bool) -> None:
    if not has_ids:
        forget_id(log.root)
    for queue in range(2):
        land(log, "a", queue, 100)
    *_, (at, _) = batches(stream_reader(log.root))
    remove(log)
    lane = land(log, "b", 1, 20)
    ((at, found),) = batches(stream_reader(log.root), at)
    assert len(found) == 20
    assert at["lanes"] == {lane: 20}
    remove(log)
    ((at, found),) = batches(stream_reader(log.root), at)
    assert (at["lanes"], found) == ({}, [])
    assert list(batches(stream_reader(log.root), at)) == []
    land(log, "c", 0, 30)
    assert [len(found) for _, found in batches(stream_reader(log.root), at)] == [30]


def test_a_lane_whose_remover_died_is_told_of_by_the_next_one(log: LogOnDisk) -> None:
    half_read = land(log, "a", 0, 20)
    reader = stream_reader(log.root)
    at = {**reader.initialOffset(), "lanes": {half_read: 10}}
    list(prune_log(log.root, 1 << 60, clock_us=lambda: DAY_US))
    os.utime(set_aside(log.root / half_read), (0, 0))
    land(log, "b", 0, 10)
    ((at, found),) = batches(stream_reader(log.root), at)
    assert (at["lanes"][half_read], len(found)) == (10, 10)
    list(prune_log(log.root, 0, clock_us=lambda: DAY_US))
    with pytest.raises(LandingRowsPruned) as raised:
        stream_reader(log.root).latestOffset(at, ReadMaxRows(10))
    assert (raised.value.lane, raised.value.row) == (half_read, 10)


def test_what_was_gone_before_a_stream_began_is_no_loss_of_it(log: LogOnDisk) -> None:
    land(log, "a", 0, 100)
    remove(log)
    land(log, "b", 0, 10)
    for start in ("earliest", "1970-01-01T00:00:00"):
        assert [len(found) for _, found in batches(stream_reader(log.root, startingOffsets=start))] == [10]
    assert list(batches(stream_reader(log.root, startingOffsets="latest"))) == []


def test_a_lane_that_goes_while_all_that_is_available_is_read_is_gone_for_the_next_run(log: LogOnDisk) -> None:
    gone = land(log, "a", 0, 10)
    *_, (at, _) = batches(stream_reader(log.root))
    reader = stream_reader(log.root)
    reader.prepareForTriggerAvailableNow()
    remove(log)
    assert list(batches(reader, at)) == []
    ((at, found),) = batches(stream_reader(log.root), at)
    assert (gone in at["lanes"], found) == (False, [])


def test_a_batch_of_nothing_but_a_lane_that_is_gone_does_not_bring_the_first_batch_again(log: LogOnDisk) -> None:
    """It is the second one of its stream, and nothing has landed since the first."""
    land(log, "a", 0, 10)
    left = log.lane("b", queue=1)
    left.append(rows([id_of("k", 1)], queue=1))
    ((at, found),) = batches(stream_reader(log.root))
    assert len(found) == 11
    remove(log)
    ((at, found),) = batches(stream_reader(log.root), at)
    assert (at["lanes"], found) == ({left.name: 1}, [])
    left.append(rows([id_of("k", 2)], queue=1))
    assert [found for _, found in batches(stream_reader(log.root), at)] == [[id_of("k", 2)]]


@pytest.mark.parametrize("has_ids", [True, False])
def test_a_stream_may_go_on_with_other_queues(log: LogOnDisk, *, has_ids: bool) -> None:
    if not has_ids:
        forget_id(log.root)
    for queue in range(2):
        land(log, "a", queue, 10)
    *_, (at, _) = batches(stream_reader(log.root, queues="0"))
    ((at, found),) = batches(stream_reader(log.root, queues="1"), at)
    assert len(found) == 10
    assert list(batches(stream_reader(log.root), at)) == []


def forget_id(root: Path) -> None:
    """Have a log be one of before there were ids, and CRCs of notes."""
    note = orjson.loads((root / "landing.json").read_bytes())
    del note["id"], note["crc"]
    (root / "landing.json").write_bytes(orjson.dumps(note))


def test_the_batch_reader_reads_what_was_there(tmp_path: Path) -> None:
    fill(tmp_path / "log", 3, 40)
    source = LbgDataSource({"path": str(tmp_path / "log")})
    assert not not_once(Counter(read(source.reader(source.schema()))), 3, 40)
    assert isinstance(source.streamReader(source.schema()), DataSourceStreamReader)


@pytest.mark.parametrize("options", [{}, {"startingOffsets": "latest"}, {"queues": "1"}])
def test_a_batch_of_nothing_has_no_rows(log: LogOnDisk, options: dict[str, str]) -> None:
    if options:
        log.lane().append(rows([id_of("k", 1)]))
    source = LbgDataSource({"path": str(log.root), **options})
    reader = source.reader(source.schema())
    # Without one Spark has a partition read that has no value.
    assert len(reader.partitions()) == 1
    assert read(reader) == []


def test_payloads_become_text_or_name_the_one_that_is_none(log: LogOnDisk) -> None:
    log.lane().append(rows([id_of("k", 1)]))
    source = LbgDataSource({"path": str(log.root), "decode": "utf8"})
    assert source.schema()["payload"].dataType.typeName() == "string"
    reader = source.reader(source.schema())
    (batch,) = reader.read(reader.partitions()[0])
    assert batch.column("payload").to_pylist() == [id_of("k", 1)]
    flush = rows([id_of("k", 2), id_of("k", 3)])
    column = flush.schema.get_field_index("payload")
    log.lane("b", 2).append(flush.set_column(column, flush.schema.field(column), pa.array([b"good", b"\xff"])))
    with pytest.raises(PayloadNotText) as raised:
        read(reader)
    assert raised.value.broker_id == id_of("k", 3)


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("maxRowsPerBatch", "0", "a whole number, at least 1"),
        ("maxBytesPerBatch", "64MB", "a whole number, at least 1"),
        ("queues", "1,x", "numbers of queues"),
        ("queuesPerPartition", "many", "a whole number, at least 1"),
        ("startingOffsets", "noon", "earliest, latest, or a time"),
        ("failOnDataLoss", "no", "true or false"),
        ("decode", "xml", "none or utf8"),
        ("group", "bills", "orders, which is what"),
    ],
)
def test_a_wrong_option_is_named(log: LogOnDisk, option: str, value: str, expected: str) -> None:
    with pytest.raises(UserError, match=expected) as raised:
        read_source_options({"path": str(log.root), option.lower(): value})
    assert option in raised.value.where


def test_a_time_that_is_still_to_come_is_refused(log: LogOnDisk) -> None:
    """What lands before it would be read all the same. Spark's own source of this kind refuses it, too."""
    given = {"path": str(log.root), "startingOffsets": "2026-01-31T12:00:00.000001"}
    moment_us = 1_769_860_800_000_001
    with pytest.raises(UserError, match="which is still to come; expected latest, or a time that has passed"):
        read_source_options(given, clock_us=lambda: moment_us - 1)
    assert read_source_options(given, clock_us=lambda: moment_us).start_us == moment_us


def test_a_folder_that_is_no_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no landing\.json in it"):
        read_source_options({"path": str(tmp_path)})
    with pytest.raises(UserError, match="option path: missing"):
        read_source_options({})
