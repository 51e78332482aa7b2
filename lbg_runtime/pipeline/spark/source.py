"""`format("lbg")` as a source: the rows of a landing log, of all queues of its group, each once and in order per queue.

No flow is held here, and nothing is acknowledged: messages were acknowledged when they landed. So a batch that is run
again reads the same rows from the disk, whatever has happened to the group meanwhile.

Spark keeps the planner, which plans batches, in one process and runs `read` in others; the readers have only their
options, and open the log again each time.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StringType, StructField, StructType

from lbg_runtime.model.errors import CheckpointForeign, LandingError, LandingRowsPruned, PayloadNotText
from lbg_runtime.pipeline.landing.layout import lane_names, read_group_note
from lbg_runtime.pipeline.landing.log import LandingLog, LaneExtent
from lbg_runtime.pipeline.landing.removed import read_removed, removed_end
from lbg_runtime.pipeline.landing.schema import LANDING_SCHEMA
from lbg_runtime.pipeline.spark.offsets import Place, Rows, by_queue, decode, encode, pack, plan_end, queues_between
from lbg_runtime.pipeline.spark.source_options import Decode, SourceOptions, Start

_BATCH_ROWS = 10_000
_BATCH_BYTES = 8_000_000
"""Rows go to Spark in pieces of at most about this size."""
_JOINED_BYTES = 1_000_000
"""Flushes can be of a few rows, and each piece has a cost: they are joined up to this size. A larger flush is passed on
as it is: copying it costs more than the pieces saved, above all if the copies do not fit into the caches."""

_QUEUE_COLUMN = LANDING_SCHEMA.get_field_index("queue")


def landing_schema(options: SourceOptions) -> StructType:
    """The columns of a source, as Spark has them."""
    schema: StructType = from_arrow_schema(LANDING_SCHEMA)
    if options.decode is Decode.NONE:
        return schema
    return StructType(
        [StructField("payload", StringType(), nullable=False) if f.name == "payload" else f for f in schema.fields]
    )


class QueueRows(InputPartition):
    """What one task reads: rows of several queues, one queue after the other."""

    def __init__(self, parts: Sequence[tuple[int, Rows, Rows]], log_id: str | None) -> None:
        """Per queue, the rows up to which its lanes were read before, and are to be read now; and of which log."""
        super().__init__((tuple(parts), log_id))


class _Reader:
    """What both readers share."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def _plan(self, log: LandingLog, start: Rows, end: Rows, task_count: int | None = None) -> Sequence[InputPartition]:
        """The tasks that read from one offset to another; none if there is nothing to read."""
        queues = queues_between(start, end)
        first, last = by_queue(start), by_queue(end)
        tasks = pack(queues, task_count or self._options.task_count(len(queues)))
        return [QueueRows([(each, first.get(each, {}), last[each]) for each in task], log.group.id) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task; raises what `LandingLog.read_queue` raises, and `PayloadNotText`.

        `LandingError` also if another log has taken the place of the one that was planned for: in that, the rows would
        be missing like pruned ones.
        """
        schema = to_arrow_schema(landing_schema(self._options), timezone="UTC")
        log = LandingLog(self._options.path)
        planned, log_id = partition.value
        if log.group.id != log_id:
            what = f"another log has taken its place, {log.group.id}, since rows of {log_id} were planned"
            raise LandingError(str(self._options.path), what, "bring that log back")
        goes_on = not self._options.fail_on_loss
        parts = (log.read_queue(queue, start, end, skips_pruned=goes_on) for queue, start, end in planned)
        # Joined across queues: with many of them a batch has few rows of each.
        for batch in _joined(chain.from_iterable(parts)):
            columns = list(batch.columns)
            if self._options.decode is Decode.UTF8:
                columns[batch.schema.get_field_index("payload")] = _as_text(batch)
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


class LbgBatchReader(_Reader, DataSourceReader):
    """`spark.read`: all rows from `startingOffsets` to the moment the job is planned."""

    def partitions(self) -> Sequence[InputPartition]:
        """See `DataSourceReader.partitions`; raises what `LandingLog.lanes` raises."""
        log = LandingLog(self._options.path)
        # The beginning first: what comes meanwhile lies after it.
        start = _first_rows(log, self._options)
        # Spark takes an empty list for one partition without a value, and has that read.
        return self._plan(log, start, _all_rows(log, self._options)) or [QueueRows([], log.group.id)]


class LbgStreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream`; offsets are those of `offsets.py`."""

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options)
        self._log = LandingLog(options.path)
        self._target: Place | None = None
        """With `availableNow`: where the stream ends, fixed when it began."""
        self._seen: Place | None = None
        """Everything that had landed when the batch was planned, until Spark asks for it, which it does next."""

    def __getstate__(self) -> dict[str, object]:
        """What goes to the tasks: they read using only the options, each with its own log."""
        return {"_options": self._options, "_target": None, "_seen": None}

    def initialOffset(self) -> dict[str, object]:  # noqa: N802
        """Where a stream without a checkpoint begins. Spark calls this more than once: it changes nothing.

        Also when it runs the first batch again, perhaps long after: so that is read from where its end says.
        """
        # Lanes first: one that goes meanwhile was pruned long ago, which is no loss for a stream that begins now.
        first = _first_rows(self._log, self._options)
        return self._encode(Place(first, _removed_ends(self._log, self._options), began=first))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix where the stream ends."""
        self._target = _look(self._log, self._options)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The limit of rows; the limit of bytes applies as well, and the smaller one counts."""
        return ReadMaxRows(self._options.max_rows)

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:  # noqa: N802
        """How far the next batch goes; `start` if there is nothing new.

        Raises `CheckpointForeign`, also if another log has taken the place of this one, as `read_group_note`, and
        `LandingRowsPruned` if rows that were never read are gone.
        """
        place = decode(start, str(self._log.path), self._options.group, read_group_note(self._log.path).id)
        end = self._target
        if end is None:
            end = self._seen = _look(self._log, self._options)
        if self._log.group.id is None or "log" not in start:
            self._check_shared(place.rows, end.rows)
        first = self._without_removed(place, end)
        cut = partial(self._log.cut, skips_pruned=not self._options.fail_on_loss)
        reached = plan_end(first, end.rows, self._log.pieces, cut, *self._limits(limit))
        queues = queues_between(first, reached)
        # Without news it stays as it is: Spark takes any other offset for news.
        tasks = self._options.task_count(len(queues)) if queues else place.tasks
        offset = self._encode(Place(reached, {**place.removed, **end.removed}, tasks, place.began))
        if not place.is_begin and offset != start:
            # Another batch than the first, even if it is only of lanes that are gone.
            offset.pop("began", None)
        return offset

    def reportLatestOffset(self) -> dict[str, object]:  # noqa: N802
        """Everything that has landed; the lag is what lies between the end of a batch and this."""
        seen, self._seen = self._seen, None
        return self._encode(_look(self._log, self._options) if seen is None else seen)

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> Sequence[InputPartition]:
        """The tasks of a batch. A batch that is run again has the same ones, as both offsets are the same.

        That holds on another number of cores too, and with another `queuesPerPartition`.
        """
        if start == end:
            return []
        last = self._decode(end)
        first = self._decode(start).rows if last.began is None else last.began
        return self._plan(self._log, first, last.rows, last.tasks)

    def _without_removed(self, place: Place, end: Place) -> dict[str, int]:
        """Rows read, without the lanes gone by now. Raises `LandingRowsPruned` if one was not read completely."""
        rows = dict(place.rows)
        for queue, end_byte in end.removed.items():
            for gone in read_removed(self._log.path, queue, place.removed.get(queue, 0), end_byte):
                row = rows.pop(gone.lane, 0)
                if row < gone.rows and self._options.fail_on_loss:
                    raise LandingRowsPruned(str(self._options.path), gone.lane, row, gone.rows)
        return rows

    def _check_shared(self, rows: Rows, end: Rows) -> None:
        """For an offset or a log without an id: raises `CheckpointForeign` if the log never had any of its lanes."""
        if not rows or not end or rows.keys() & end.keys():
            return
        path = self._log.path
        for queue in self._log.queues():
            removed = read_removed(path, queue, 0, removed_end(path, queue))
            if not rows.keys().isdisjoint((*lane_names(path, queue), *(gone.lane for gone in removed))):
                return
        found = f"lanes such as {min(rows)}, and the log has none of them"
        raise CheckpointForeign(str(self._options.path), found)

    def _limits(self, limit: ReadLimit) -> tuple[int | None, int | None]:
        match limit:
            case ReadAllAvailable():
                return None, None
            case ReadMaxRows():
                return limit.max_rows, self._options.max_bytes
            case ReadMaxBytes():
                return self._options.max_rows, limit.max_bytes
            case _:
                return self._options.max_rows, self._options.max_bytes

    def _encode(self, place: Place) -> dict[str, object]:
        return encode(place, self._options.group, self._log.group.id)

    def _decode(self, offset: Mapping[str, object]) -> Place:
        return decode(offset, str(self._options.path), self._options.group, self._log.group.id)


def _first_rows(log: LandingLog, options: SourceOptions) -> Rows:
    match options.start:
        case Start.EARLIEST:
            return {lane: extent.first_row for lane, extent in _lanes(log, options).items()}
        case Start.LATEST:
            return _all_rows(log, options)
        case Start.TIME:
            rows: dict[str, int] = {}
            for queue in _queues(log, options):
                rows.update(log.before(queue, options.start_us))
            return rows


def _look(log: LandingLog, options: SourceOptions) -> Place:
    # The notes first: a lane that is noted by then is not among the existing ones.
    removed = _removed_ends(log, options)
    return Place(_all_rows(log, options), removed)


def _removed_ends(log: LandingLog, options: SourceOptions) -> dict[int, int]:
    return {queue: removed_end(log.path, queue) for queue in _queues(log, options)}


def _queues(log: LandingLog, options: SourceOptions) -> Sequence[int]:
    return log.queues() if options.queues is None else options.queues


def _all_rows(log: LandingLog, options: SourceOptions) -> Rows:
    return {lane: extent.rows for lane, extent in _lanes(log, options).items()}


def _lanes(log: LandingLog, options: SourceOptions) -> Mapping[str, LaneExtent]:
    if options.queues is None:
        return log.lanes()
    return {lane: extent for queue in options.queues for lane, extent in log.lanes(queue).items()}


def _joined(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in fewer batches, joined up to about `_BATCH_ROWS` rows or `_JOINED_BYTES` bytes."""
    waiting: list[pa.RecordBatch] = []
    rows, size = 0, 0
    for batch in batches:
        for piece, piece_bytes in _pieces(batch):
            if waiting and (rows + piece.num_rows > _BATCH_ROWS or size + piece_bytes > _JOINED_BYTES):
                yield pa.concat_batches(waiting) if len(waiting) > 1 else waiting[0]
                waiting, rows, size = [], 0, 0
            waiting.append(piece)
            rows, size = rows + piece.num_rows, size + piece_bytes
    if waiting:
        yield pa.concat_batches(waiting) if len(waiting) > 1 else waiting[0]


def _pieces(batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Pieces of a batch, each with its approximate size in bytes."""
    if not batch.num_rows:
        return
    size = _bytes_of(batch)
    if batch.num_rows <= _BATCH_ROWS and size <= _BATCH_BYTES:
        yield batch, size
        return
    step = max(1, min(_BATCH_ROWS, _BATCH_BYTES * batch.num_rows // size))
    for first in range(0, batch.num_rows, step):
        yield (piece := batch.slice(first, step)), piece.num_rows * size // batch.num_rows


def _bytes_of(batch: pa.RecordBatch) -> int:
    """An approximation; `nbytes` is exact, and takes as long as the CRC of a hundred rows."""
    held: int = batch.get_total_buffer_size()
    # A slice of a flush holds all of it. The column has four bytes for each row of the whole.
    rows_held: int = batch.column(_QUEUE_COLUMN).buffers()[1].size // 4
    about: int = held * batch.num_rows // max(1, rows_held)
    return max(1, about)


def _as_text(batch: pa.RecordBatch) -> pa.Array:
    try:
        return batch.column("payload").cast(pa.string())
    except pa.ArrowInvalid:
        for row in range(batch.num_rows):
            try:
                batch.column("payload")[row].as_py().decode()
            except UnicodeDecodeError:
                queue, row_id = batch.column("queue")[row].as_py(), batch.column("broker_id")[row].as_py()
                raise PayloadNotText(queue, row_id) from None
        raise
