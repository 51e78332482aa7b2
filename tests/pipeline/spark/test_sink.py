"""What the sink of a stream notes and compares from batch to batch, without a JVM."""

import pickle
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.sql.types import StringType, StructField, StructType

from lbg_runtime.model.errors import SinkKeySplit, UserError
from lbg_runtime.pipeline.spark.data_source import LbgDataSource
from lbg_runtime.pipeline.spark.run_hashing import NOTE
from lbg_runtime.pipeline.spark.sink import Published

SCHEMA = StructType([StructField("key", StringType()), StructField("payload", StringType())])
CHECKPOINTS = "spark.sql.streaming.checkpointLocation"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "group.yaml"
    path.write_text("group: {name: g, hash_prefix: hp, hash_count: 8, queue_count: 2}\nhandlers: [handlers.orders]\n")
    return path


def copied(what: Any) -> Any:
    return pickle.loads(pickle.dumps(what))  # noqa: S301 - our own


def run_batch(config: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str], default: str | None) -> None:
    """A batch without rows: Spark plans it, has a task write it, and commits it."""
    given = {"config": str(config), "topic": "t", **options}
    context = TaskContext()
    context._localProperties = {
        "sql.streaming.queryId": "query",
        "streaming.sql.batchId": "0",
        "spark.jobGroup.id": "run",
        **({} if default is None else {CHECKPOINTS: default}),
    }
    monkeypatch.setattr(TaskContext, "_taskContext", context)
    committer = copied(LbgDataSource(given))
    writer = copied(LbgDataSource(given).streamWriter(SCHEMA, overwrite=False))
    message = writer.write(iter([]))
    committer.streamWriter(SCHEMA, overwrite=False).commit([message], 0)


@pytest.mark.parametrize(
    ("options", "default"),
    [
        ({"checkpointLocation": "{}/checkpoints/name"}, None),
        ({"checkpointLocation": "file:{}/checkpoints/name"}, None),
        ({"checkpointLocation": "File://{}/checkpoints/name"}, "/elsewhere"),
        ({"queryName": "name"}, "{}/checkpoints"),
        ({"queryName": "name"}, "file://{}/checkpoints"),
    ],
)
def test_a_run_keeps_to_its_hash_wherever_spark_is_told_of_its_checkpoint(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str], default: str | None
) -> None:
    folder = str(tmp_path / "a%20b c")
    (tmp_path / "a%20b c" / "checkpoints" / "name" / "offsets").mkdir(parents=True)
    options = {name: value.format(folder) for name, value in options.items()}
    default = None if default is None else default.format(folder)
    run_batch(config, monkeypatch, options, default)
    run_batch(config, monkeypatch, options, default)
    config.write_text(config.read_text().replace("hash_count: 8", "hash_count: 16"))
    with pytest.raises(UserError, match="16, and the query has published with 8"):
        run_batch(config, monkeypatch, options, default)


def test_a_query_whose_checkpoint_has_a_name_that_spark_draws_notes_nothing(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "checkpoints" / "drawn" / "offsets").mkdir(parents=True)
    run_batch(config, monkeypatch, {}, str(tmp_path / "checkpoints"))
    assert list(tmp_path.rglob(NOTE)) == []


def test_a_batch_that_was_published_ends_also_if_the_settings_of_the_group_cannot_be_read_then(tmp_path: Path) -> None:
    options = {"config": str(tmp_path / "gone.yaml"), "topic": "t"}
    committer = copied(LbgDataSource(options)).streamWriter(SCHEMA, overwrite=False)
    committer.commit([Published(frozenset({1})), None], 0)
    committer.abort([None], 0)
    with pytest.raises(SinkKeySplit):
        committer.commit([Published(frozenset({1})), Published(frozenset({1}))], 0)
    with pytest.raises(UserError, match="No such file"):
        LbgDataSource(options).streamWriter(SCHEMA, overwrite=False)
