"""The validator's one kernel, run by Spark over the parts of a run.

Spark deals out the parts and collects the kernel's result for each; a worker reads the Parquet files of its part
itself, so none of their content goes through the JVM, and nothing is shuffled. On a cluster the run's folder must be
where every executor can read it under the same path.
"""

import pickle
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession

from lbg_runtime.journal.layout import (
    LaidOut,
    drafted,
    finish,
    lay_out_journal,
    lay_out_ledger,
    parts_of,
    read_whole,
    record_files,
)
from lbg_runtime.model.errors import SparkUnavailable, UserError
from lbg_runtime.pipeline.parts import examine_part, judge_run, parts_of_run
from lbg_runtime.pipeline.spark.stream import SPARK_FAILURES, reason_of
from lbg_runtime.validator.findings import Verdict
from lbg_runtime.validator.kernel import DEFAULT_ACK_WINDOW_MS

T = TypeVar("T")
U = TypeVar("U")

_RESULTS = ["number", "result"]


def validate_on_spark(spark: SparkSession, run: Path, ack_window_ms: int = DEFAULT_ACK_WINDOW_MS) -> Verdict:
    """The verdict on a laid out run, the same as from `validate_locally`. Raises `UserError` and as `run_tasks`."""
    parts = list(parts_of_run(run).values())
    examinations = run_tasks(spark, parts, lambda queues: examine_part(run, read_whole(run), queues, ack_window_ms))
    return judge_run(run, examinations)


def lay_out_on_spark(spark: SparkSession, directory: Path, target: Path) -> Path:
    """`journal.layout.lay_out`, several files at once. Raises `UserError` and as `run_tasks`."""
    journals, ledgers = record_files(directory)
    with drafted(target) as draft:
        numbered = list(enumerate(journals))
        laid: list[LaidOut] = run_tasks(spark, numbered, lambda item: lay_out_journal(item[1], item[0], draft))
        count = parts_of(laid)
        numbered = list(enumerate(ledgers))
        laid_ledgers = run_tasks(spark, numbered, lambda item: lay_out_ledger(item[1], item[0], draft, count))
        return finish(draft, laid, laid_ledgers)


def run_tasks(spark: SparkSession, items: Sequence[U], do: "Callable[[U], T]") -> list[T]:
    """Call `do` with each item in Spark's workers, one task each; return the results in the order of the items.

    Items and results must be picklable. Raises the `UserError` of the first task that raised one, and
    `SparkUnavailable` if Spark fails, or a task has failed in it otherwise.
    """
    if not items:
        return []

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                try:
                    outcome: T | UserError = do(items[number])
                except UserError as error:
                    # Raised here, Spark would try again, and tell it as a failure of its own.
                    outcome = error
                result = pickle.dumps(outcome)
                yield pa.record_batch([pa.array([number], pa.int64()), pa.array([result], pa.binary())], _RESULTS)

    try:
        frame = spark.range(0, len(items), 1, len(items))
        rows = frame.mapInArrow(run, "number long, result binary").collect()
    except SPARK_FAILURES as error:
        raise SparkUnavailable(f"Spark failed: {reason_of(error)}", "lbg spark doctor, or --engine local") from error
    results = [pickle.loads(row["result"]) for row in sorted(rows, key=lambda row: int(row["number"]))]  # noqa: S301
    for result in results:
        if isinstance(result, UserError):
            raise result
    return results
