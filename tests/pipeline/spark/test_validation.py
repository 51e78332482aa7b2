"""Tasks for Spark's workers, run here: what of them needs no JVM."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from lbg_runtime.model.errors import UserError
from lbg_runtime.pipeline.spark.validation import run_tasks

Run = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class Here:
    """A session whose workers are this process, with a task for each number, the last one first."""

    def range(self, start: int, end: int, step: int, tasks: int) -> SimpleNamespace:
        assert (start, step, tasks) == (0, 1, end)

        def collect(run: Run) -> list[dict[str, Any]]:
            batches = [pa.record_batch([pa.array([number])], ["id"]) for number in reversed(range(end))]
            return [row for batch in batches for found in run(iter([batch])) for row in found.to_pylist()]

        return SimpleNamespace(mapInArrow=lambda run, _: SimpleNamespace(collect=lambda: collect(run)))


def test_results_come_in_the_order_of_the_items() -> None:
    assert run_tasks(Here(), ["a", "b", "c"], str.upper) == ["A", "B", "C"]  # type: ignore[arg-type]  # no JVM


def test_a_mistake_of_the_user_that_a_task_finds_is_told_as_such_and_not_as_a_failure_of_spark() -> None:
    """Spark would try the task again, and then tell a stack of its own."""

    def judge(path: str) -> str:
        if path == "good":
            return path
        raise UserError(path, "cannot be read: a wrong checksum", "a run as it was laid out")

    with pytest.raises(UserError) as raised:
        run_tasks(Here(), ["good", "run/1", "run/2"], judge)  # type: ignore[arg-type]  # no JVM
    error = raised.value
    assert (error.where, error.found) == ("run/1", "cannot be read: a wrong checksum")
