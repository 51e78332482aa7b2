"""Which checkpoints a stream goes on with, and which it refuses because their lake is another one."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest
from deltalake import CommitProperties, Transaction, write_deltalake
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException

from lbg_runtime.model.errors import CheckpointForeign, LakeWriteFailed, StreamFailed, UserError
from lbg_runtime.pipeline.landing.layout import claim_folder
from lbg_runtime.pipeline.spark import stream
from lbg_runtime.pipeline.spark.checkpoint import STREAM_NOTE, claim_lake, note_taken, release_lake
from lbg_runtime.pipeline.spark.stream import run_stream, start_stream
from lbg_runtime.pipeline.spark.stream_job import Lake, StreamJob, StreamProgress, check_apart, check_folder
from tests.pipeline.landing.landed import SHAPE, LogOnDisk, id_of, rows

QUERY = "2f0c"


def job_of(folder: Path, lake: Lake) -> StreamJob:
    return StreamJob(folder / "log", "orders", lake, folder / "lake", folder / "checkpoint", True, 0, 100)


def write_checkpoint(job: StreamJob, *batches: int, done: Sequence[int] | None = None, query: str = QUERY) -> None:
    """As Spark makes it, with what it leaves beside; without `done`, when it has begun the last batch.

    No batch has rows, as the log has none.
    """
    claim_folder(job.landing, SHAPE)
    ended = [batch - 1 for batch in batches[-1:] if batch] if done is None else done
    for folder, numbers in (("offsets", batches), ("commits", ended)):
        (job.checkpoint / folder).mkdir(parents=True)
        for name in (*map(str, numbers), ".99.crc", ".97.9f2d.tmp"):
            (job.checkpoint / folder / name).touch()
    for batch in batches:
        write_offset(job, batch, {})
    (job.checkpoint / "metadata").write_text(json.dumps({"id": query}))


def write_offset(job: StreamJob, batch: int, lanes: Mapping[str, int], group: str = "orders") -> None:
    offset = {"version": 1, "group": group, "lanes": lanes}
    (job.checkpoint / "offsets" / str(batch)).write_text(f'v1\n{{"batchTimestampMs":1}}\n{json.dumps(offset)}')


def write_lake(job: StreamJob, last: int) -> None:
    if job.lake is Lake.DELTA:
        properties = CommitProperties(app_transactions=[Transaction(QUERY, last)])
        write_deltalake(job.target, rows([id_of("k", 1)]), mode="append", commit_properties=properties)
        return
    write_parquet(job, 9, 10, last)


def write_parquet(job: StreamJob, *batches: int) -> None:
    (job.target / "_spark_metadata").mkdir(parents=True, exist_ok=True)
    for name in ("9.compact" if number == 9 else f"{number}" for number in batches):
        (job.target / "_spark_metadata" / name).write_text('v1\n{"path":"a"}\n')
    (job.target / "_spark_metadata" / ".99.crc").touch()


@pytest.mark.parametrize("lake", Lake)
@pytest.mark.parametrize("known", [(), (0,), (10, 11), (11, 12), (111, 112)])
def test_a_checkpoint_that_knows_the_last_batch_of_its_lake_goes_on(
    tmp_path: Path, lake: Lake, known: tuple[int, ...]
) -> None:
    """Its last batch may be in the lake, or be under way; and it may have none, with a lake that is not there yet."""
    job = job_of(tmp_path, lake)
    if known:
        write_checkpoint(job, *known)
    if known and known[-1] > 9:
        # A table has no batches without rows.
        write_lake(job, 11 if lake is Lake.DELTA else max(11, known[-1] - 1))
    claim_lake(job)


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
        claim_lake(parquet)
    write_lake(delta, 11)
    claim_lake(delta)
    write_checkpoint(delta, 0, query="another")
    claim_lake(delta)


@pytest.mark.parametrize(("last", "told"), [(9, "ends with batch 9"), (None, "has none")])
def test_a_folder_of_parquet_without_what_its_checkpoint_has_done_is_refused(
    tmp_path: Path, last: int | None, told: str
) -> None:
    """One that was restored, say, or a new one: Spark's file sink would fail in the end, or read as if all were there.

    A table has no batches without rows, so there it is no sign.
    """
    job = job_of(tmp_path, Lake.PARQUET)
    write_checkpoint(job, 9, 10, 11, done=(9, 10))
    if last is not None:
        write_parquet(job, last)
    with pytest.raises(UserError) as raised:
        claim_lake(job)
    assert raised.value.found == f"its batch 10 is done, and {job.target} {told}"
    write_parquet(job, 10)
    claim_lake(job)


@pytest.mark.parametrize(("last", "told"), [(9, "ends with batch 9"), (None, "has none")])
def test_a_table_without_what_it_took_with_this_checkpoint_is_refused(
    tmp_path: Path, last: int | None, told: str
) -> None:
    """Batches without rows are not in a table, so being done alone is no sign: what it took is noted."""
    job = job_of(tmp_path, Lake.DELTA)
    write_checkpoint(job, 9, 10, 11, done=(9, 10, 11))
    if last is not None:
        write_lake(job, last)
    claim_lake(job)
    note_taken(str(job.checkpoint), 10)
    with pytest.raises(UserError) as raised:
        claim_lake(job)
    assert raised.value.found == f"its batch 10 is done, and {job.target} {told}"
    write_lake(job, 10)
    claim_lake(job)
    (job.checkpoint / "lbg_delta").write_text("{")
    with pytest.raises(UserError, match="it names no batch"):
        claim_lake(job)


@pytest.mark.parametrize(
    ("last", "told"), [(None, "batch 2 is done, and .* has none"), (0, "ends with batch 0"), (1, None)]
)
def test_a_table_without_rows_that_a_checkpoint_without_note_has_done_is_refused(
    tmp_path: Path, last: int | None, told: str | None
) -> None:
    """The checkpoint is an older version's, or that of a stream to Parquet. Of batch 2 all rows are copies."""
    job = job_of(tmp_path, Lake.DELTA)
    log = LogOnDisk(job.landing)
    first, second = log.lane("a"), log.lane("b", 2)
    first.append(rows([id_of("k", 1), id_of("k", 2)]))
    second.append(rows([id_of("k", 2)]))
    log.close()
    write_checkpoint(job, 0, 1, 2, done=(0, 1, 2))
    for batch, read in enumerate(({first.name: 1}, {first.name: 2}, {first.name: 2, second.name: 1})):
        write_offset(job, batch, read)
    if last is not None:
        write_lake(job, last)
    if told is None:
        claim_lake(job)
        return
    with pytest.raises(UserError, match=told):
        claim_lake(job)


def test_a_table_without_rows_that_were_done_behind_its_note_is_refused(tmp_path: Path) -> None:
    """An older version went on after the note, and did not touch it; then the table was put back."""
    job = job_of(tmp_path, Lake.DELTA)
    log = LogOnDisk(job.landing)
    lane = log.lane("a")
    lane.append(rows([id_of("k", 1), id_of("k", 2)]))
    log.close()
    write_checkpoint(job, 0, 1, done=(0, 1))
    for batch in (0, 1):
        write_offset(job, batch, {lane.name: batch + 1})
    note_taken(str(job.checkpoint), 0)
    write_lake(job, 0)
    with pytest.raises(UserError) as raised:
        claim_lake(job)
    assert raised.value.found == f"its batch 1 is done, and {job.target} ends with batch 0"
    write_lake(job, 1)
    claim_lake(job)


def test_a_checkpoint_without_note_must_be_one_of_the_log(tmp_path: Path) -> None:
    job = job_of(tmp_path, Lake.DELTA)
    write_checkpoint(job, 0, done=(0,))
    write_offset(job, 0, {}, group="others")
    with pytest.raises(CheckpointForeign):
        claim_lake(job)
    (job.checkpoint / "offsets" / "0").write_text("v1\n{}\n{")
    with pytest.raises(UserError, match="offsets/0: not what Spark has written"):
        claim_lake(job)


def test_what_a_table_took_is_noted_only_in_a_checkpoint_that_is_there(tmp_path: Path) -> None:
    note_taken(None, 1)
    note_taken(str(tmp_path / "elsewhere"), 1)
    assert not list(tmp_path.iterdir())


def test_a_folder_of_parquet_is_of_one_checkpoint_for_good(tmp_path: Path) -> None:
    """From before anything is written there, whoever makes the checkpoint's note; and whatever the numbers are."""
    job = job_of(tmp_path, Lake.PARQUET)
    claim_lake(job)
    query = json.loads((job.checkpoint / "metadata").read_bytes())
    claim_lake(job)
    assert json.loads((job.target / STREAM_NOTE).read_bytes()) == query
    for checkpoint in ("new", "other"):
        other = replace(job, checkpoint=tmp_path / checkpoint)
        if checkpoint == "other":
            write_checkpoint(other, 0, query="another")
            write_parquet(job, 0)
        with pytest.raises(UserError) as raised:
            claim_lake(other)
        assert raised.value.where == str(other.checkpoint)
        assert raised.value.found == f"{job.target} is the folder of another checkpoint"
    assert not (tmp_path / "new" / "metadata").exists()


def test_a_folder_that_an_older_version_wrote_becomes_that_of_the_checkpoint_that_fits(tmp_path: Path) -> None:
    job = job_of(tmp_path, Lake.PARQUET)
    write_parquet(job, 11)
    write_checkpoint(job, 11, done=(10, 11))
    claim_lake(job)
    other = replace(job, checkpoint=tmp_path / "other")
    write_checkpoint(other, 11, done=(11,), query="another")
    with pytest.raises(UserError, match="is the folder of another checkpoint"):
        claim_lake(other)


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    job = job_of(tmp_path, Lake.DELTA)
    write_checkpoint(job, 0)
    write_lake(job, 0)
    (job.target / "_delta_log" / f"{0:020d}.json").write_text("{")
    with pytest.raises(LakeWriteFailed) as raised:
        claim_lake(job)
    assert raised.value.path == str(job.target)
    (job.checkpoint / "metadata").write_text("")
    with pytest.raises(UserError, match="metadata: it names no query"):
        claim_lake(job)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    job = job_of(tmp_path / "a file" / "and below", Lake.PARQUET)
    (tmp_path / "a file").touch()
    with pytest.raises(LakeWriteFailed) as raised:
        claim_lake(job)
    assert raised.value.path.startswith(str(tmp_path / "a file"))
    assert raised.value.reason == "Not a directory"


def test_a_folder_that_cannot_be_looked_at_is_a_wrong_option() -> None:
    with pytest.raises(UserError) as raised:
        check_folder("--to", Path("/" + 300 * "a") / "lake")
    assert raised.value.where == "--to"
    assert raised.value.found.endswith("aa/lake: File name too long")


@pytest.mark.parametrize("lake", Lake)
@pytest.mark.parametrize(
    ("done", "told"), [((9,), "begins batch 11, and has ended none after batch 9"), ((), "no batch")]
)
def test_a_checkpoint_that_was_copied_while_a_stream_ran_is_refused(
    tmp_path: Path, lake: Lake, done: Sequence[int], told: str
) -> None:
    """Spark runs its last batch again and none before it, whose rows would be missing."""
    job = job_of(tmp_path, lake)
    write_checkpoint(job, 9, 10, 11, done=done)
    with pytest.raises(UserError, match=told):
        claim_lake(job)


def test_a_start_that_fails_before_any_batch_leaves_the_folder_to_the_next(tmp_path: Path) -> None:
    job = job_of(tmp_path, Lake.PARQUET)
    other = replace(job, checkpoint=tmp_path / "other")

    def fail_to_start(error: Exception) -> None:
        def fail(*_: str) -> NoReturn:
            raise error

        with pytest.raises(StreamFailed):
            run_stream(SimpleNamespace(conf=SimpleNamespace(set=fail)), job, stopped=bool)  # type: ignore[arg-type]

    # A JVM that does not answer may still write.
    fail_to_start(Py4JNetworkError())
    with pytest.raises(UserError, match="is the folder of another checkpoint"):
        claim_lake(other)
    fail_to_start(PySparkException("no"))
    claim_lake(other)
    with pytest.raises(UserError, match="is the folder of another checkpoint"):
        claim_lake(job)


def test_a_stream_that_is_stopped_before_any_batch_leaves_the_folder_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(tmp_path, Lake.PARQUET)

    def started(_: object, job: StreamJob) -> SimpleNamespace:
        claim_lake(job)
        return SimpleNamespace(awaitTermination=lambda _: True, lastProgress=None)

    monkeypatch.setattr(stream, "start_stream", started)
    run_stream(None, job, stopped=lambda: True)  # type: ignore[arg-type]  # not asked
    claim_lake(replace(job, checkpoint=tmp_path / "other"))


def test_how_much_a_stream_that_is_stopped_in_its_first_batch_leaves_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_over = iter((False, True))
    query = SimpleNamespace(awaitTermination=lambda _: next(is_over), stop=lambda: None, lastProgress=None)
    monkeypatch.setattr(stream, "start_stream", lambda *_: query)
    left = run_stream(None, job_of(tmp_path, Lake.PARQUET), stopped=lambda: True)  # type: ignore[arg-type]  # not asked
    assert left == StreamProgress(-1, 0, None)


@pytest.mark.parametrize("begun", ["in the checkpoint", "in the folder", "by another"])
def test_a_folder_of_parquet_stays_claimed_where_a_batch_may_be(tmp_path: Path, begun: str) -> None:
    job = job_of(tmp_path, Lake.PARQUET)
    claim_lake(job)
    ended = replace(job, checkpoint=tmp_path / "other") if begun == "by another" else job
    if begun == "in the checkpoint":
        write_checkpoint(job, 0, query=json.loads((job.checkpoint / "metadata").read_bytes())["id"])
    elif begun == "in the folder":
        write_parquet(job, 0)
    release_lake(ended)
    assert (job.target / STREAM_NOTE).exists()


@pytest.mark.parametrize("content", [b"", b"v1\n{", b"v2\n"])
@pytest.mark.parametrize("name", ["10", "10.compact"])
def test_a_folder_of_parquet_with_a_torn_note_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    job = job_of(tmp_path, Lake.PARQUET)
    write_checkpoint(job, 9, 10)
    write_parquet(job, 9)
    note = job.target / "_spark_metadata" / name
    note.write_bytes(b"v1\n")
    claim_lake(job)
    note.write_bytes(content)
    with pytest.raises(UserError, match="not what Spark has written"):
        claim_lake(job)


def test_a_folder_of_parquet_that_was_moved_is_refused_until_its_old_place_leads_there(tmp_path: Path) -> None:
    """Spark's notes have full paths: its reader would look for the files where they were, and fail, or find others."""
    old, job = tmp_path / "the old lake", replace(job_of(tmp_path, Lake.PARQUET), target=tmp_path / "moved")
    write_checkpoint(job, 9, 10, 11)
    write_parquet(job, 9, 10, 11)
    # The last batch has no files, as it had no rows.
    contents = {"9.compact": [job.target], "10": [old], "11": []}
    for name, folders in contents.items():
        files = "".join(f'{{"path":"{folder.as_uri()}/part-0.parquet"}}\n' for folder in folders)
        (job.target / "_spark_metadata" / name).write_text(f"v1\n{files}")
    with pytest.raises(UserError, match=r"moved: by its notes, its files are in .*the old lake; expected it there"):
        claim_lake(job)
    old.symlink_to(job.target)
    claim_lake(job)


def test_a_uri_is_no_folder() -> None:
    with pytest.raises(UserError, match="without a scheme"):
        check_folder("--checkpoint", Path("file:///tmp/checkpoint"))


@pytest.mark.parametrize("lake", Lake)
@pytest.mark.parametrize(
    ("landing", "checkpoint", "option"), [("log", "lake/../lake", "--checkpoint"), ("lake", "checkpoint", "--dir")]
)
def test_a_lake_has_a_folder_of_its_own(tmp_path: Path, lake: Lake, landing: str, checkpoint: str, option: str) -> None:
    """One stream would wait for its own lock on a folder of Parquet."""
    job = replace(job_of(tmp_path, lake), landing=tmp_path / landing, checkpoint=tmp_path / checkpoint)
    check_apart(job_of(tmp_path, lake))
    with pytest.raises(UserError, match=f"the folder of {option} too"):
        check_apart(job)


def test_nothing_lies_where_the_vacuum_of_a_delta_table_would_remove_it(tmp_path: Path) -> None:
    job = replace(job_of(tmp_path, Lake.DELTA), checkpoint=tmp_path / "lake" / "checkpoint")
    with pytest.raises(UserError, match="vacuum would remove it") as raised:
        check_apart(job)
    assert raised.value.where == "--checkpoint"
    with pytest.raises(UserError, match="vacuum would remove it") as raised:
        check_apart(replace(job_of(tmp_path, Lake.DELTA), target=tmp_path))
    assert raised.value.where == "--dir"
    check_apart(replace(job, checkpoint=tmp_path / "lake" / "_checkpoint"))
    check_apart(replace(job, lake=Lake.PARQUET))
