"""Which checkpoints a stream goes on with, and which it refuses because its lake is ahead of them."""

import json
from pathlib import Path

import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from lbg_runtime.model.errors import LakeWriteFailed, UserError
from lbg_runtime.pipeline.spark.checkpoint import check_checkpoint
from lbg_runtime.pipeline.spark.stream import start_stream
from lbg_runtime.pipeline.spark.stream_job import Lake, StreamJob
from tests.pipeline.landing.landed import id_of, rows

QUERY = "2f0c"


def job_of(folder: Path, lake: Lake) -> StreamJob:
    return StreamJob(folder / "log", "orders", lake, folder / "lake", folder / "checkpoint", True, 0, 100)


def write_checkpoint(job: StreamJob, *batches: int, query: str = QUERY) -> None:
    """As Spark makes it, with what it leaves beside."""
    offsets = job.checkpoint / "offsets"
    offsets.mkdir(parents=True)
    (job.checkpoint / "metadata").write_text(json.dumps({"id": query}))
    for name in (*map(str, batches), ".0.crc", ".7.9f2d.tmp"):
        (offsets / name).touch()


def write_lake(job: StreamJob, last: int) -> None:
    if job.lake is Lake.DELTA:
        properties = CommitProperties(app_transactions=[Transaction(QUERY, last)])
        write_deltalake(job.target, rows([id_of("k", 1)]), mode="append", commit_properties=properties)
        return
    (job.target / "_spark_metadata").mkdir(parents=True)
    for name in ("9.compact", "10", f"{last}", ".99.crc"):
        (job.target / "_spark_metadata" / name).touch()


@pytest.mark.parametrize("lake", Lake)
@pytest.mark.parametrize("known", [(), (9,), (10, 11), (11, 12), (111, 112)])
def test_a_checkpoint_that_knows_the_last_batch_of_its_lake_goes_on(
    tmp_path: Path, lake: Lake, known: tuple[int, ...]
) -> None:
    """Its last batch may be in the lake, or be under way; and it may have none, with a lake that is not there yet."""
    job = job_of(tmp_path, lake)
    if known:
        write_checkpoint(job, *known)
    if known and known[-1] > 9:
        write_lake(job, 11)
    check_checkpoint(job)


@pytest.mark.parametrize("lake", Lake)
@pytest.mark.parametrize(("known", "told"), [((), "it has no batch"), ((9, 10), "it ends with batch 10")])
def test_a_checkpoint_behind_its_lake_is_refused(tmp_path: Path, lake: Lake, known: tuple[int, ...], told: str) -> None:
    job = job_of(tmp_path, lake)
    write_checkpoint(job, *known)
    write_lake(job, 11)
    with pytest.raises(UserError) as raised:
        start_stream(None, job)  # type: ignore[arg-type]  # refused before Spark is asked anything
    assert raised.value.where == str(job.checkpoint)
    assert raised.value.found == f"{told}, and {job.target} has batches up to 11"
    assert "a new checkpoint and a new folder" in raised.value.expected


def test_a_new_checkpoint_is_refused_for_a_folder_of_parquet_and_goes_on_for_a_table(tmp_path: Path) -> None:
    """Spark's file sink looks at numbers alone; a table has them by query."""
    parquet, delta = job_of(tmp_path / "parquet", Lake.PARQUET), job_of(tmp_path / "delta", Lake.DELTA)
    write_lake(parquet, 11)
    with pytest.raises(UserError, match="it has no batch"):
        check_checkpoint(parquet)
    write_lake(delta, 11)
    check_checkpoint(delta)
    write_checkpoint(delta, 0, query="another")
    check_checkpoint(delta)


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    job = job_of(tmp_path, Lake.DELTA)
    write_checkpoint(job, 0)
    write_lake(job, 0)
    (job.target / "_delta_log" / f"{0:020d}.json").write_text("{")
    with pytest.raises(LakeWriteFailed) as raised:
        check_checkpoint(job)
    assert raised.value.path == str(job.target)
    (job.checkpoint / "metadata").write_text("")
    with pytest.raises(UserError, match="its metadata cannot be read"):
        check_checkpoint(job)
