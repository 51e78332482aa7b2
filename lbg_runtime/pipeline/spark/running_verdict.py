"""The verdict so far on a run in progress, part by part in Spark's workers; what is carried is Spark's state.

Every part of the run (nearly always: a queue) is a group of the stream with a `SlicedExamination` of its own, the one
kernel. Spark keeps that as bytes in its state store with every batch, so a query that is started again with the same
checkpoint goes on where the last one stopped; it begins by reporting what was found before, as nobody knows how much of
that a driver that died had reported.
"""

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from threading import Lock, Thread
from typing import TYPE_CHECKING, NamedTuple

import orjson
import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from lbg_runtime.journal.facts import FileFacts
from lbg_runtime.journal.follow import complete_until
from lbg_runtime.journal.layout import NO_RECORDS
from lbg_runtime.journal.reader import check_directory
from lbg_runtime.model.errors import StreamFailed
from lbg_runtime.pipeline.spark.journal_source import FORMAT, JournalSource, check_files, places_of
from lbg_runtime.pipeline.spark.kept_verdict import KeptVerdict, Said
from lbg_runtime.pipeline.spark.stream import SPARK_FAILURES, reason_of
from lbg_runtime.validator.findings import Finding, Standing, first_of_each_law, total
from lbg_runtime.validator.schema import JOURNALS, LEDGERS, RunTables
from lbg_runtime.validator.slices import SlicedExamination

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_LOOK_S = 0.1
_COLUMNS = "part int, told binary"
_STATE = "content binary"


@dataclass
class _Part:
    """What is carried for one part."""

    sliced: SlicedExamination
    files: dict[str, dict[int, FileFacts]] = field(default_factory=lambda: {"journals": {}, "ledgers": {}})
    """By the number of the file, which represents it in the part's records."""
    behind: dict[int, bool] = field(default_factory=dict)
    """Journals with more written than was read at a time."""


class Told(NamedTuple):
    """What a part reports after a batch."""

    standing: Standing
    findings: tuple[Finding, ...]


class RunningVerdict:
    """A query on a directory of record files; called from one thread, except for `catch_up`."""

    def __init__(self, spark: SparkSession, directory: Path, checkpoint: Path, ack_window_ms: int) -> None:
        """Start it. Raises `StreamFailed`, and `UserError` if the checkpoint is that of another directory."""
        self._checkpoint = checkpoint
        self._lock = Lock()
        self._failure: StreamFailed | None = None
        """Of the batch that ended the query."""
        self._kept = KeptVerdict(checkpoint.absolute())
        try:
            self._kept.claim(directory)
            self._said = self._kept.load()
            self._untold = list(self._said.findings)
            self._first: int | None = None
            self._query = _start(spark, directory, checkpoint, ack_window_ms, self._take)
        except (*SPARK_FAILURES, OSError) as error:
            raise StreamFailed(str(checkpoint), reason_of(error)) from error

    def look(self, for_s: float) -> tuple[Standing, Sequence[Finding]]:
        """Let the query run for a while; return the run's standing, and what is unreported. Raises `StreamFailed`."""
        try:
            self._query.awaitTermination(for_s)  # type: ignore[arg-type]  # parts of a second are taken
        except SPARK_FAILURES as error:
            raise self._failure or StreamFailed(str(self._checkpoint), reason_of(error)) from error
        with self._lock:
            untold, self._untold = self._untold, []
            return total(list(self._said.standings.values())), untold

    def catch_up(self) -> None:
        """Return when everything written by now is judged, or when the query has ended."""
        # `look` raises what it ended with.
        with suppress(*SPARK_FAILURES):
            self._query.processAllAvailable()

    @property
    def is_at_the_ends(self) -> bool:
        """Whether a batch that was planned after the start has reached the ends of all files, and is judged.

        `catch_up` does not return while each batch finds more, as in a run that goes on.
        """
        with suppress(*SPARK_FAILURES):
            done = self._query.lastProgress
            # The first batch may have been planned by an earlier query on this checkpoint.
            if done is not None and self._first is not None and done.batchId > self._first:
                [source] = orjson.loads(done.json)["sources"]
                return not any(place.has_more for place in places_of(source["endOffset"]))
        return False

    def stop(self) -> None:
        """End the query. A batch that is cut short is run again by the next query on this checkpoint.

        Raises `StreamFailed` if the query cannot be asked to end.
        """
        try:
            self._query.stop()
        except SPARK_FAILURES as error:
            raise self._failure or StreamFailed(str(self._checkpoint), reason_of(error)) from error

    def _take(self, batch: DataFrame, number: int) -> None:
        # On a thread of Spark's, before the batch is noted as done.
        try:
            rows = batch.collect()
        except SPARK_FAILURES as error:
            # Raised without Spark's own account of it: that is long, and the JVM chokes on it when it comes back there.
            self._failure = StreamFailed(str(self._checkpoint), reason_of(error))
            raise self._failure from None
        told: dict[int, Told] = {row["part"]: pickle.loads(row["told"]) for row in rows}  # noqa: S301  # of our workers
        found = [finding for part in sorted(told) for finding in told[part].findings]
        before = self._said
        if self._first is None:
            # A JVM may outlive its driver, and have noted a batch as done since this process looked.
            self._first, before = number, self._kept.before(number)
        standings = {**before.standings, **{part: each.standing for part, each in told.items()}}
        said = Said(standings, first_of_each_law([*before.findings, *found]))
        self._kept.keep(number, said)
        found = [*(finding for finding in before.findings if finding not in self._said.findings), *found]
        with self._lock:
            self._said = said
            self._untold += found


@contextmanager
def looking_on_spark(
    spark: SparkSession, directory: Path, checkpoint: Path, ack_window_ms: int
) -> Iterator[Callable[[Callable[[Standing, Sequence[Finding]], None]], bool]]:
    """Run a query while the context lasts; yield a function that looks at it and reports what it has found.

    Raises `UserError` if there is no such directory, a file in it cannot be read or the checkpoint is that of another,
    and `StreamFailed`.
    """
    check_directory(directory, "the directory that members write journals to")
    check_files(directory)
    running = RunningVerdict(spark, directory, checkpoint, ack_window_ms)
    # A first look has something to report only when what is there has been judged, which may take long.
    catching_up = Thread(target=running.catch_up, name="lbg-catch-up", daemon=True)
    catching_up.start()

    def look(tell: Callable[[Standing, Sequence[Finding]], None]) -> bool:
        # Asked first: whatever is judged when it has ended is then included below.
        has_more = catching_up.is_alive() and not running.is_at_the_ends
        standing, findings = running.look(_LOOK_S)
        tell(standing, findings)
        return has_more

    try:
        yield look
    finally:
        running.stop()
        catching_up.join()


def _start(
    spark: SparkSession, directory: Path, checkpoint: Path, ack_window_ms: int, take: object
) -> "StreamingQuery":
    spark.dataSource.register(JournalSource)

    def judge(key: tuple[int], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        part: _Part = pickle.loads(state.get[0]) if state.exists else _Part(SlicedExamination(ack_window_ms))  # noqa: S301
        told = _feed(part, frames)
        state.update((pickle.dumps(part),))
        yield pd.DataFrame({"part": [key[0]], "told": [pickle.dumps(told)]})

    frame = spark.readStream.format(FORMAT).option("path", str(directory.absolute())).load()
    judged = frame.groupBy("part").applyInPandasWithState(
        judge, _COLUMNS, _STATE, "update", GroupStateTimeout.NoTimeout
    )
    writer = judged.writeStream.outputMode("update").option("checkpointLocation", str(checkpoint.absolute()))
    return writer.foreachBatch(take).start()  # type: ignore[arg-type]  # takes a frame and a number


def _feed(part: _Part, frames: Iterator[pd.DataFrame]) -> Told:
    """Judge what came for a part in one batch."""
    came: dict[str, list[tuple[int, pa.Table]]] = {name: [(0, table)] for name, table in NO_RECORDS.items()}
    for frame in frames:
        for name, number, has_more, payload in frame[["name", "number", "has_more", "payload"]].itertuples(index=False):
            if name in part.files:
                _learn(part.files[name], int(number), pickle.loads(payload))  # noqa: S301  # of our own workers
                if name == "journals":
                    part.behind[int(number)] = bool(has_more)
            else:
                came[name].append((int(number), pa.ipc.open_stream(payload).read_all()))
    # If two records have the same moment, that of the first file comes first, whichever task was quicker.
    in_order = {name: sorted(batches, key=itemgetter(0)) for name, batches in came.items()}
    tables = RunTables(
        **{name: pa.concat_tables([table for _, table in batches]) for name, batches in in_order.items()},
        journals=_table(part.files["journals"], JOURNALS),
        ledgers=_table(part.files["ledgers"], LEDGERS),
    )
    behind = [part.behind.get(number, False) for number in range(tables.journals.num_rows)]
    findings = part.sliced.feed(tables, complete_until(tables.journals, behind))
    return Told(part.sliced.standing, findings)


def _learn(files: dict[int, FileFacts], number: int, facts: FileFacts) -> None:
    """Combine what is known about a file with the facts of a later piece of it."""
    if number in files:
        files[number].take_in(facts)
    else:
        files[number] = facts


def _table(files: dict[int, FileFacts], schema: pa.Schema) -> pa.Table:
    """The rows at the places given by their numbers; journals and ledgers share the numbers."""
    nothing = dict.fromkeys(schema.names) | {"file": "", "torn": False, "clean": True, "dropped": 0}
    rows = [files[number].row(schema) if number in files else nothing for number in range(max(files, default=-1) + 1)]
    return pa.Table.from_pylist(rows, schema)
