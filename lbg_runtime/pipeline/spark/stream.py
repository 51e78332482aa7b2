"""Streams the landing log of a group into a lake: each row once, whatever is killed meanwhile.

`parquet:DIR` is Spark's own file sink: its folder must be read by Spark, or by readers that know its `_spark_metadata`,
as files of unfinished batches lie there too. `delta:DIR` is a Delta table, and any reader of such tables reads it
correctly.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import orjson
from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]  # it has no types
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from lbg_runtime.model.errors import StreamFailed
from lbg_runtime.pipeline.spark.checkpoint import claim_lake, release_lake
from lbg_runtime.pipeline.spark.data_source import FORMAT
from lbg_runtime.pipeline.spark.session import is_local
from lbg_runtime.pipeline.spark.stream_job import Lake, StreamJob, StreamProgress

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

SPARK_FAILURES = (PySparkException, Py4JError, ConnectionError)
"""What a call to Spark raises; the latter two if the JVM is gone."""

STARTS = 3
"""A query begins with a process of Python, for which Spark waits 10 s, whatever it is told: too short now and then on a
machine that is very busy, or whose disk is cold."""

_LOOK_S = 0.5
_UNHEARD = "Python worker failed to connect back"
"""What Spark says then."""
_RAISED = re.compile(r"^[\w.]*(Error|Exception): .+$")
_SAYS_NOTHING = re.compile(r"^\[STREAM_FAILED\] Query \[[^\]]*\] terminated with exception: | SQLSTATE: \w+")
"""What Spark puts around what happened."""
_OURS = re.compile(r"lbg_runtime\.model\.errors\.(\w+): (.+)")


def run_stream(
    spark: SparkSession,
    job: StreamJob,
    *,
    stopped: Callable[[], bool],
    on_progress: Callable[[StreamProgress], None] = lambda _: None,
) -> StreamProgress:
    """Run a stream until it has read what there is (`available_now`) or is stopped.

    Raises `StreamFailed`, and as `claim_lake` before anything is read. Started again, up to `STARTS` times in all, if a
    process with which Spark reads does not start in time.

    A stop may cut a batch short; the next stream on the checkpoint runs it again, and nothing of this shows.
    """
    progress = StreamProgress(-1, 0, 0)
    starts = 0
    ended = False
    while not ended:
        starts += 1
        try:
            query = start_stream(spark, job)
            while not ended:
                ended = bool(query.awaitTermination(_LOOK_S))  # type: ignore[arg-type]  # parts of a second are taken
                for number, rows, behind in _batches(query, progress.batch):
                    progress = StreamProgress(number, progress.rows + rows, behind)
                    on_progress(progress)
                if not ended and stopped():
                    if progress.batch < 0:
                        progress = replace(progress, behind=None)
                    query.stop()
        except SPARK_FAILURES as error:
            # With any other error it is not known that the query has ended: a JVM that does not answer may still write.
            if isinstance(error, PySparkException):
                release_lake(job)
            reason = reason_of(error)
            if _UNHEARD in reason and progress.batch < 0 and starts < STARTS and not stopped():
                continue
            if reason.startswith("java.io.") and "/" not in reason:
                # Java says neither file nor disk.
                reason = f"{reason}, in {job.target}, {job.checkpoint} or the folder for temporary files"
            raise StreamFailed(str(job.target), reason) from error
    release_lake(job)
    return progress


def start_stream(spark: SparkSession, job: StreamJob) -> "StreamingQuery":
    """Start it, and return at once; raises as `claim_lake`. Errors in the options end the query."""
    claim_lake(job)
    # For what is left of a first offset that could not be written, Spark would refuse the checkpoint for ever, because
    # of a state store. These streams have none.
    spark.conf.set("spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart", "false")
    writer = read_landing(spark, job).writeStream.option("checkpointLocation", str(job.checkpoint.absolute()))
    if job.lake is Lake.DELTA:
        from lbg_runtime.pipeline.spark.delta import FORMAT as DELTA_FORMAT
        from lbg_runtime.pipeline.spark.delta import LbgDeltaSource

        spark.dataSource.register(LbgDeltaSource)
        writer = writer.format(DELTA_FORMAT).option("path", str(job.target.absolute()))
    else:
        writer = writer.format("parquet").option("path", str(job.target.absolute())).option("compression", "zstd")
    if job.available_now:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{job.trigger_ms} milliseconds").start()


def read_landing(spark: SparkSession, job: StreamJob) -> DataFrame:
    """The rows of the job's landing log, as a stream."""
    reader = (
        spark.readStream.format(FORMAT)
        .option("path", str(job.landing.absolute()))
        .option("group", job.group)
        .option("maxRowsPerBatch", str(job.max_rows))
        .option("failOnDataLoss", "false" if job.skips_pruned else "true")
    )
    if not is_local(spark.sparkContext.master):
        # How many cores this machine has says nothing about a cluster.
        reader = reader.option("queuesPerPartition", "1")
    return reader.load()


def reason_of(error: BaseException) -> str:
    """The one line of a Spark error that says what happened: that of our error if any, else the last that names one.

    The latter goes on with what was behind all else, such as a full disk behind a task that failed.
    """
    if isinstance(error, (Py4JNetworkError, ConnectionError)):
        return "the JVM of Spark does not answer any more"
    lines = _lines_of(str(error))
    for line in reversed(lines):
        if found := _OURS.search(line):
            return found[2]
    said, root = _telling(lines), _telling(_lines_of(_root_of(error)))
    return (said if root in said else f"{said} {root}") or type(error).__name__


def _lines_of(text: str) -> list[str]:
    # The text of an exception of the JVM follows a colon.
    return [line.strip().removeprefix(": ") for line in text.splitlines() if line.strip()]


def _telling(lines: Sequence[str]) -> str:
    """The last that names an error, or else the first; empty if there are none."""
    raised = [line for line in lines if _RAISED.match(line)]
    return _SAYS_NOTHING.sub("", raised[-1] if raised else lines[0] if lines else "")


def _root_of(error: BaseException) -> str:
    """What was behind all else in the JVM; empty if there is nothing."""
    cause = getattr(error, "_cause", None)
    while (behind := getattr(cause, "_cause", None)) is not None:
        cause = behind
    return str(getattr(cause, "_desc", ""))


def _batches(query: "StreamingQuery", known: int) -> Iterator[tuple[int, int, int]]:
    """Number, rows and lag of the batches after a known one, as Spark reports them; those without rows are included."""
    last = query.lastProgress
    if last is None or last.batchId <= known:
        return
    # Spark keeps a hundred, each with the names of all lanes in its offsets, and makes them anew for each look.
    for progress in [last] if last.batchId == known + 1 else query.recentProgress:
        facts = orjson.loads(progress.json)
        if facts["batchId"] <= known:
            continue
        behind = 0
        for source in facts["sources"]:
            end, latest = (_lanes(source[name]) for name in ("endOffset", "latestOffset"))
            behind += sum(max(0, rows - end.get(lane, 0)) for lane, rows in latest.items())
        yield facts["batchId"], facts["numInputRows"], behind


def _lanes(offset: object) -> Mapping[str, int]:
    if isinstance(offset, str):
        offset = orjson.loads(offset)
    return offset.get("lanes", {}) if isinstance(offset, dict) else {}
