"""The Delta sink, called as Spark calls it, without a JVM: which tables it adds to, and which it leaves as they are."""

import errno
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql.pandas.types import from_arrow_schema

from lbg_runtime.model.errors import LakeWriteFailed, UserError
from lbg_runtime.pipeline.landing.schema import LANDING_SCHEMA
from lbg_runtime.pipeline.spark import delta
from lbg_runtime.pipeline.spark.delta import DeltaStreamWriter
from tests.pipeline.landing.disk import Disk
from tests.pipeline.landing.landed import id_of, rows


@pytest.fixture(autouse=True)
def task(monkeypatch: pytest.MonkeyPatch) -> None:
    context = SimpleNamespace(getLocalProperty=lambda _: "the query")
    monkeypatch.setattr(delta, "TaskContext", SimpleNamespace(get=lambda: context))


def writer(lake: Path, checkpoint: Path | None = None) -> DeltaStreamWriter:
    options = {"path": str(lake)} if checkpoint is None else {"path": str(lake), "checkpointLocation": str(checkpoint)}
    return DeltaStreamWriter(options, from_arrow_schema(LANDING_SCHEMA))


def note_batch(checkpoint: Path, number: int, end: int, time: int = 1) -> None:
    """As Spark does before it runs the batch."""
    (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
    (checkpoint / "offsets" / str(number)).write_text(f'v1\n{{"batchTimestampMs":{time}}}\n{{"lanes":{{"a":{end}}}}}')


def write_batch(to: DeltaStreamWriter, number: int) -> None:
    to.commit([to.write(iter([rows([id_of("k", number)])]))], number)


def ids(lake: Path) -> list[str]:
    found: list[str] = DeltaTable(lake).to_pyarrow_table().column("broker_id").to_pylist()
    return found


def with_field(name: str, kind: pa.DataType, *, nullable: bool) -> pa.Schema:
    position = LANDING_SCHEMA.get_field_index(name)
    return LANDING_SCHEMA.set(position, pa.field(name, kind, nullable=nullable))


def test_batches_are_added_to_the_table_that_is_there_and_each_once(tmp_path: Path) -> None:
    write_batch(writer(tmp_path), 0)
    again = writer(tmp_path)
    write_batch(again, 0)
    write_batch(again, 1)
    assert sorted(ids(tmp_path)) == [id_of("k", 0), id_of("k", 1)]


def test_a_flipped_bit_is_found_by_readers_that_look_at_checksums(tmp_path: Path) -> None:
    write_batch(writer(tmp_path), 0)
    (path,) = tmp_path.glob("*.parquet")
    column = pq.ParquetFile(path).metadata.row_group(0).column(0)
    damaged = bytearray(path.read_bytes())
    damaged[column.data_page_offset + column.total_compressed_size - 1] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(OSError, match="CRC checksum verification failed"):
        pq.ParquetFile(path, page_checksum_verification=True).read()


def test_a_power_cut_takes_nothing_of_a_batch_for_which_the_folder_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk()
    monkeypatch.setattr(os, "fsync", disk.sync)
    write_batch(writer(tmp_path / "new" / "table"), 0)
    assert disk.lost(tmp_path) == []


def test_a_batch_is_durable_before_spark_notes_it_as_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit as well as its rows; also by a driver that finds it there, as the one before may have died."""
    synced: set[int] = set()
    sync = os.fsync

    def fsync(file: int) -> None:
        synced.add(os.fstat(file).st_ino)
        sync(file)

    def not_synced(*, commits: str) -> list[str]:
        paths = [
            tmp_path,
            tmp_path / "_delta_log",
            *tmp_path.glob("*.parquet"),
            *tmp_path.glob(f"_delta_log/{commits}"),
        ]
        return [path.name for path in paths if path.stat().st_ino not in synced]

    monkeypatch.setattr(os, "fsync", fsync)
    write_batch(writer(tmp_path), 0)
    write_batch(writer(tmp_path), 1)
    assert len(list(tmp_path.glob("_delta_log/*.json"))) == 3
    assert not_synced(commits="*.json") == []
    again = writer(tmp_path)
    files = [again.write(iter([rows([id_of("k", 1)])]))]
    synced.clear()
    again.commit(files, 1)
    assert not_synced(commits="*2.json") == [path.name for path in tmp_path.glob("*.parquet")]


def test_a_commit_that_the_disk_refused_to_sync_is_written_again_before_its_batch_counts_as_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system forgets after the refusal that it was to write it: a second sync would succeed without it."""
    to, log = writer(tmp_path), tmp_path / "_delta_log"
    written = to.write(iter([rows([id_of("k", 0)])]))
    sync = os.fsync

    def refuse(file: int) -> None:
        if os.readlink(f"/proc/self/fd/{file}").endswith(".json"):
            raise OSError(errno.EIO, "Input/output error")
        sync(file)

    with monkeypatch.context() as ill:
        ill.setattr(os, "fsync", refuse)
        with pytest.raises(LakeWriteFailed, match="Input/output error"):
            to.commit([written], 0)
    commit = max(log.glob("*.json"))
    before = commit.read_bytes()
    os.utime(commit, (0, 0))
    to.commit([written], 0)
    assert commit.stat().st_mtime > 0
    assert (commit.read_bytes(), ids(tmp_path)) == (before, [id_of("k", 0)])


def test_a_task_whose_rows_cannot_be_read_to_their_end_leaves_nothing_there(tmp_path: Path) -> None:
    def breaking() -> Iterator[pa.RecordBatch]:
        yield rows([id_of("k", 0)])
        assert list(tmp_path.glob("part-*"))
        raise ValueError("no more rows")

    with pytest.raises(ValueError, match="no more rows"):
        writer(tmp_path).write(breaking())
    assert list(tmp_path.iterdir()) == []


def test_a_task_that_finds_the_disk_full_leaves_nothing_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark tries it again, and so does whoever starts the stream: what each left would keep the disk full."""
    to = writer(tmp_path)
    found = []

    def refuse(*_: object) -> None:
        found.extend(tmp_path.glob("part-*"))
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(LakeWriteFailed, match="No space left on device"):
        to.write(iter([rows([id_of("k", 0)])]))
    assert len(found) == 1
    assert list(tmp_path.iterdir()) == []


def test_what_the_tasks_of_a_batch_that_failed_have_written_is_removed(tmp_path: Path) -> None:
    """The other tasks, where one of them found the disk full: it stayed full, and fuller with each start."""
    lake = tmp_path / "lake"
    to = writer(lake)
    write_batch(to, 0)
    written = [to.write(iter([rows([id_of("k", 1)])])), None, to.write(iter([]))]
    writer(lake).abort(written, 1)
    assert len(list(lake.glob("part-*"))) == 1
    with pytest.raises(LakeWriteFailed):
        to.commit(written, 1)
    write_batch(to, 1)
    assert sorted(ids(lake)) == [id_of("k", 0), id_of("k", 1)]
    for made in ("new", "never"):
        fresh = writer(tmp_path / made)
        fresh.abort([fresh.write(iter([rows([id_of("k", 0)])] if made == "new" else []))], 0)
        assert list((tmp_path / made).glob("*")) == []


def test_what_the_table_has_taken_stays_where_the_commit_has_failed_behind_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = writer(tmp_path)
    written = [to.write(iter([rows([id_of("k", 0)])]))]

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(delta, "note_taken", refuse)
    with pytest.raises(LakeWriteFailed, match="No space left on device"):
        to.commit(written, 0)
    writer(tmp_path).abort(written, 0)
    assert ids(tmp_path) == [id_of("k", 0)]


def test_nothing_is_removed_where_it_cannot_be_known_whether_a_commit_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system without locks: Spark may have given up waiting for a commit that takes the files yet."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    to = writer(tmp_path)
    written = [to.write(iter([rows([id_of("k", 0)])]))]
    writer(tmp_path).abort(written, 0)
    to.commit(written, 0)
    assert ids(tmp_path) == [id_of("k", 0)]


def test_a_file_that_lies_on_another_hosts_disk_is_not_taken_into_the_table(tmp_path: Path) -> None:
    """As on a cluster without shared storage: the batch fails, and Spark does not note it as done."""
    elsewhere, here = writer(tmp_path / "elsewhere"), writer(tmp_path / "here")
    written = elsewhere.write(iter([rows([id_of("k", 0)])]))
    with pytest.raises(LakeWriteFailed, match=r"here/part-.*the folder has to be shared storage"):
        here.commit([written], 0)
    assert not (tmp_path / "here").exists()


def test_the_checkpoint_notes_what_the_table_took_also_if_a_driver_died_before_that(tmp_path: Path) -> None:
    """Else nobody would see that a table which was put back from a backup lacks it."""
    checkpoint = tmp_path / "checkpoint"
    to = writer(tmp_path / "lake", checkpoint)
    for number in (0, 1):
        note_batch(checkpoint, number, end=10 * number + 10)
        write_batch(to, number)
    to.commit([to.write(iter([]))], 2)
    assert json.loads((checkpoint / "lbg_delta").read_bytes()) == {"batch": 1}
    (checkpoint / "lbg_delta").unlink()
    write_batch(writer(tmp_path / "lake", checkpoint), 1)
    assert json.loads((checkpoint / "lbg_delta").read_bytes()) == {"batch": 1}


@pytest.mark.parametrize(("left", "told"), [(0, "has none"), (2, "ends with batch 0")])
def test_a_table_that_was_put_back_while_the_stream_ran_takes_no_batch(tmp_path: Path, left: int, told: str) -> None:
    """With the next batch it would end where the checkpoint does, and lack those before for ever."""
    lake, checkpoint = tmp_path / "lake", tmp_path / "checkpoint"
    to = writer(lake, checkpoint)
    for number in (0, 1):
        note_batch(checkpoint, number, end=10 * number + 10)
        write_batch(to, number)
    for commit in sorted((lake / "_delta_log").glob("*.json"))[left:]:
        commit.unlink()
    note_batch(checkpoint, 2, end=30)
    with pytest.raises(UserError, match=f"its batch 1 is done, and .*lake {told}"):
        write_batch(to, 2)
    assert len(list((lake / "_delta_log").glob("*.json"))) == left


def test_what_delta_takes_out_of_the_table_stays_out(tmp_path: Path) -> None:
    lake, checkpoint = tmp_path / "lake", tmp_path / "checkpoint"
    to = writer(lake, checkpoint)
    for number in range(3):
        note_batch(checkpoint, number, number)
        write_batch(to, number)
    DeltaTable(lake).restore(1)
    write_batch(to, 2)
    assert ids(lake) == [id_of("k", 0)]
    note_batch(checkpoint, 3, 3)
    write_batch(to, 3)
    assert sorted(ids(lake)) == [id_of("k", 0), id_of("k", 3)]


def test_a_batch_before_those_that_are_there_is_refused(tmp_path: Path) -> None:
    for number in (0, 1):
        write_batch(writer(tmp_path), number)
    with pytest.raises(UserError, match=r"ends with batch 0, and .* has batches up to 1; expected the checkpoint"):
        write_batch(writer(tmp_path), 0)
    assert len(ids(tmp_path)) == 2


def test_another_batch_of_the_number_of_the_last_is_refused_and_the_same_is_not(tmp_path: Path) -> None:
    lake, checkpoint = tmp_path / "lake", tmp_path / "checkpoint"
    note_batch(checkpoint, 0, end=10)
    write_batch(writer(lake, checkpoint), 0)
    note_batch(checkpoint, 0, end=10, time=2)
    write_batch(writer(lake, checkpoint), 0)
    note_batch(checkpoint, 0, end=20)
    with pytest.raises(UserError, match=r"its batch 0 is not the one that .*lake has") as raised:
        write_batch(writer(lake, checkpoint), 0)
    assert raised.value.where == str(checkpoint)
    assert ids(lake) == [id_of("k", 0)]


def test_a_batch_that_an_older_version_has_committed_is_known_by_its_number(tmp_path: Path) -> None:
    lake, checkpoint = tmp_path / "lake", tmp_path / "checkpoint"
    write_batch(writer(lake), 0)
    note_batch(checkpoint, 0, end=10)
    write_batch(writer(lake, checkpoint), 0)
    note_batch(checkpoint, 1, end=20)
    write_batch(writer(lake, checkpoint), 1)
    assert sorted(ids(lake)) == [id_of("k", 0), id_of("k", 1)]


def test_a_table_whose_columns_may_all_be_null_takes_rows(tmp_path: Path) -> None:
    DeltaTable.create(tmp_path, pa.schema([field.with_nullable(True) for field in LANDING_SCHEMA]))
    write_batch(writer(tmp_path), 0)
    assert ids(tmp_path) == [id_of("k", 0)]


@pytest.mark.parametrize(
    ("schema", "partitions", "what"),
    [
        (LANDING_SCHEMA, ["queue"], "a table partitioned by queue; expected one without partitions"),
        (with_field("seq", pa.string(), nullable=True), None, 'column seq of type "string"; expected type "long"'),
        (with_field("payload", pa.string(), nullable=False), None, "column payload of type"),
        (with_field("key", pa.string(), nullable=False), None, "column key that must not be null"),
        (pa.schema([pa.field("id", pa.string())]), None, "a table of columns id; expected one of columns queue"),
    ],
)
def test_a_table_that_the_rows_do_not_fit_is_refused_and_left_as_it_is(
    tmp_path: Path, schema: pa.Schema, partitions: list[str] | None, what: str
) -> None:
    early = writer(tmp_path)
    DeltaTable.create(tmp_path, schema, partition_by=partitions)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError) as raised:
        writer(tmp_path)
    assert what in str(raised.value)
    assert sorted(tmp_path.rglob("*")) == before
    # Also where it has become one since the stream began.
    with pytest.raises(UserError):
        write_batch(early, 0)
    assert DeltaTable(tmp_path).version() == 0


def test_a_table_that_maps_its_columns_is_refused(tmp_path: Path) -> None:
    """By the format, its readers would look for `col-0` in a file, and read null. The library writes to it."""
    DeltaTable.create(tmp_path, LANDING_SCHEMA)
    commit = tmp_path / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    for action in actions:
        if table := action.get("metaData"):
            schema = json.loads(table["schemaString"])
            for number, field in enumerate(schema["fields"]):
                field["metadata"] = {
                    "delta.columnMapping.id": number,
                    "delta.columnMapping.physicalName": f"col-{number}",
                }
            table["schemaString"] = json.dumps(schema)
            table["configuration"] = {"delta.columnMapping.mode": "name"}
        if "protocol" in action:
            action["protocol"] = {"minReaderVersion": 2, "minWriterVersion": 5}
    commit.write_text("\n".join(map(json.dumps, actions)))
    with pytest.raises(UserError, match="maps its columns by name"):
        write_batch(writer(tmp_path), 0)


def test_a_table_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    write_batch(writer(tmp_path), 0)
    (tmp_path / "_delta_log" / f"{0:020d}.json").write_text("{")
    with pytest.raises(LakeWriteFailed) as raised:
        writer(tmp_path)
    assert raised.value.path == str(tmp_path)
