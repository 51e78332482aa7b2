"""Measures the landing log as a source against other sources for Spark: for `lbg bench pipeline`.

The peers: Spark's own Parquet source, the best there is, over the same rows; and a source that fetches in the driver
(`SimpleDataSourceStreamReader`), which is what one writes first. All go to a sink that discards rows. A figure is the
rows of a stream divided by the time its batches took, without the first batch.
"""

import os
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from lbg_runtime.model.errors import InvariantViolated
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.ids import GroupName
from lbg_runtime.pipeline.landing.lane import LaneWriter
from lbg_runtime.pipeline.landing.layout import claim_folder
from lbg_runtime.pipeline.landing.log import LandingLog
from lbg_runtime.pipeline.landing.schema import LANDING_SCHEMA
from lbg_runtime.pipeline.spark.data_source import FORMAT
from lbg_runtime.pipeline.spark.source import landing_schema
from lbg_runtime.pipeline.spark.source_options import read_source_options
from lbg_runtime.runtime.clock import wall_us

PAYLOAD_BYTES = 1000
BATCH_ROWS = 100_000
_FLUSH_ROWS = 1000
_PREFETCH_ROWS = 50_000
_FILE_ROWS = 10_000
_WARM_UP_BATCHES = 5
_NO_BYTE_LIMIT = "1000000000"
_PREFETCH = "lbg_bench_prefetch"


def fill_log(root: Path, queues: int, rows: int) -> None:
    """A landing log of `rows` rows of a kilobyte, in flushes of a thousand; not synced, as it is only read here."""
    shape = GroupShape(GroupName("bench"), "bench", 96, queues)
    claim_folder(root, shape)
    for queue in range(queues):
        lane = LaneWriter(root, queue, "bench", 1, clock_us=wall_us, is_synced=False)
        share = rows // queues
        for first in range(0, share, _FLUSH_ROWS):
            # Not one row more than other logs have: a stream's last batch would be small, and cost as much.
            lane.append(_flush(queue, first, min(_FLUSH_ROWS, share - first)))
        lane.close()


class Sources:
    """The same rows as a landing log of 4 queues, as one of 32, and as files; measures the rate of each source."""

    def __init__(self, spark: SparkSession, folder: Path, rows: int) -> None:
        """Writes everything to `folder`, three times a kilobyte per row."""
        self._spark = spark
        self._folder = folder
        self._options: dict[str, str] = {"maxBytesPerBatch": _NO_BYTE_LIMIT}
        spark.dataSource.register(PrefetchSource)
        fill_log(folder / "4", 4, rows)
        fill_log(folder / "32", 32, rows)
        _as_parquet(folder / "4", folder / "files")
        # Warms up workers and code, also for the files.
        for queues in (4, 32):
            self.landing_log(queues)
        self.parquet()

    def landing_log(self, queues: int) -> float:
        """Rows per second of the landing log."""
        return self._rate(self._load(FORMAT, queues))

    def parquet(self) -> float:
        """Rows per second of Spark's own source for files."""
        schema = landing_schema(read_source_options({"path": str(self._folder / "4")}))
        reader = self._spark.readStream.schema(schema).option("maxFilesPerTrigger", BATCH_ROWS // _FILE_ROWS)
        return self._rate(reader.parquet(str(self._folder / "files")))

    def prefetch(self) -> float:
        """Rows per second of a source that fetches in the driver."""
        return self._rate(self._load(_PREFETCH, 4))

    def _load(self, name: str, queues: int) -> DataFrame:
        options = {**self._options, "path": str(self._folder / str(queues))}
        return self._spark.readStream.format(name).options(**options).load()

    def _rate(self, frame: DataFrame) -> float:
        checkpoint = self._folder / "checkpoint"
        shutil.rmtree(checkpoint, ignore_errors=True)
        # Not availableNow, which a source that fetches in the driver does not support.
        query = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
        try:
            query.processAllAvailable()
            batches = [each for each in query.recentProgress if each.numInputRows][1:]
        finally:
            query.stop()
        spent_ms = sum(each.durationMs["triggerExecution"] for each in batches)
        if not spent_ms:
            raise InvariantViolated("too few rows for two batches")
        return sum(each.numInputRows for each in batches) * 1000 / spent_ms


def measure_age(spark: SparkSession, folder: Path, per_s: int, seconds: float) -> list[float]:
    """The age in milliseconds of the newest row when its batch is done, per batch, at a steady rate over 4 queues.

    Measured from its flush, of 25 rows, to the end of a job that groups the batch by queue, without the first batches.
    """
    claim_folder(folder / "steady", GroupShape(GroupName("bench"), "bench", 96, 4))
    landing = threading.Thread(target=_land_steadily, args=(folder / "steady", per_s, seconds))
    ages: list[float] = []

    def note(batch: DataFrame, number: int) -> None:
        newest = batch.groupBy("queue").agg(f.unix_micros(f.max("t_land")).alias("us")).collect()
        if newest and number > _WARM_UP_BATCHES:
            ages.append((wall_us() - max(row["us"] for row in newest)) / 1000)

    frame = spark.readStream.format(FORMAT).option("path", str(folder / "steady")).load()
    writer = frame.writeStream.option("checkpointLocation", str(folder / "steady-checkpoint"))
    landing.start()
    query = writer.foreachBatch(note).start()
    try:
        landing.join()
        query.processAllAvailable()
    finally:
        query.stop()
    return ages


def _land_steadily(root: Path, per_s: int, seconds: float) -> None:
    lanes = [LaneWriter(root, queue, "bench", 1, clock_us=wall_us) for queue in range(4)]
    rows = 25
    began_s = time.monotonic()
    for number in range(round(per_s * seconds / rows)):
        # Paced by the clock, to make up for slow flushes.
        time.sleep(max(0.0, began_s + number * rows / per_s - time.monotonic()))
        queue = number % 4
        lanes[queue].append(_flush(queue, number * rows, rows))
    for lane in lanes:
        lane.close()


class PrefetchSource(DataSource):
    """The same log, read in the driver, as rows."""

    @classmethod
    def name(cls) -> str:
        """The name that `format` takes."""
        return _PREFETCH

    def schema(self) -> StructType:
        """The schema of the landing log."""
        return landing_schema(read_source_options(self.options))

    def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:  # noqa: ARG002, N802
        return _PrefetchReader(Path(self.options["path"]))


class _PrefetchReader(SimpleDataSourceStreamReader):
    def __init__(self, path: Path) -> None:
        self._log = LandingLog(path)

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {}

    def read(self, start: dict[str, int]) -> tuple[Iterator[tuple[object, ...]], dict[str, int]]:
        end = dict(start)
        share = _PREFETCH_ROWS // len(self._log.queues())
        for queue in self._log.queues():
            whole = {lane: extent.rows for lane, extent in self._log.lanes(queue).items()}
            end.update(self._log.cut(queue, start, whole, share))
        # A list's iterator: Spark keeps a copy of it.
        return iter(list(self.readBetweenOffsets(start, end))), end

    def readBetweenOffsets(  # noqa: N802
        self, start: dict[str, int], end: dict[str, int]
    ) -> Iterator[tuple[object, ...]]:
        for queue in self._log.queues():
            for batch in self._log.read_queue(queue, start, end):
                yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _as_parquet(root: Path, files: Path) -> None:
    """The rows of a log as files of 10,000 rows, as a job that lands files would leave them."""
    files.mkdir()
    log = LandingLog(root)
    schema = to_arrow_schema(landing_schema(read_source_options({"path": str(root)})), timezone="UTC")
    for lane, extent in log.lanes().items():
        for first in range(0, extent.rows, _FILE_ROWS):
            rows = pa.Table.from_batches(log.read(lane, first, min(first + _FILE_ROWS, extent.rows)), LANDING_SCHEMA)
            name = f"{lane.replace('/', '-')}-{first:09d}.parquet"
            pq.write_table(pa.Table.from_arrays(rows.columns, schema=schema), files / name)


def _flush(queue: int, first: int, count: int) -> pa.RecordBatch:
    now, numbers = wall_us(), range(first, first + count)
    sent = f"{now // 1000:013x}"
    columns: Mapping[str, pa.Array] = {
        "queue": pa.array([queue] * count, pa.int32()),
        "shard": pa.array([queue] * count, pa.int32()),
        "key": pa.array([f"{queue}-{number % 100}" for number in numbers]),
        "topic": pa.array([f"bench/{queue}/orders/new"] * count),
        "seq": pa.array([number // 100 + 1 for number in numbers], pa.int64()),
        "broker_id": pa.array([f"{sent}.p/{number // 100 + 1}/{queue}-{number % 100}" for number in numbers]),
        "redelivered": pa.array([False] * count),
        "t_enqueue": pa.array([now] * count, pa.timestamp("us", "UTC")),
        "t_land": pa.array([now] * count, pa.timestamp("us", "UTC")),
        "payload": pa.array([os.urandom(PAYLOAD_BYTES) for _ in numbers]),
        "headers": pa.array([None] * count, LANDING_SCHEMA.field("headers").type),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=LANDING_SCHEMA)
