"""The stream of record files without a JVM: offsets, what a batch reads, and that a batch run again reads the same."""

import json
import pickle
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from lbg_runtime.model.errors import UserError
from lbg_runtime.pipeline.spark.journal_source import JournalReader
from tests.validator.history import story
from tests.validator.striping import striped_story

Offset = dict[str, object]


def next_offset(reader: JournalReader, start: Offset) -> Offset:
    # As Spark keeps it.
    offset: Offset = json.loads(json.dumps(reader.latestOffset(start, ReadAllAvailable())))
    return offset


def read(reader: JournalReader, start: Offset, end: Offset) -> list[dict[str, object]]:
    return [
        row
        for partition in reader.partitions(start, end)
        for batch in reader.read(pickle.loads(pickle.dumps(partition)))  # noqa: S301  # as Spark sends it
        for row in batch.to_pylist()
    ]


def unnumbered(table: pa.Table) -> list[str]:
    """Files are numbered as they are found, not by their names."""
    return sorted(map(repr, table.drop(table.schema.names[0]).to_pylist()))


def records(rows: list[dict[str, object]], name: str) -> list[str]:
    tables = [pa.ipc.open_stream(row["payload"]).read_all() for row in rows if row["name"] == name]
    return sorted(record for table in tables for record in unnumbered(table))


def test_batches_have_every_record_once_and_in_its_part(tmp_path: Path) -> None:
    run = story()
    run.write(tmp_path)
    contents = {path: path.read_bytes() for path in tmp_path.iterdir()}
    reader, rows = JournalReader(tmp_path), []
    offset = reader.initialOffset()
    for share in (0.4, 0.7, 1):
        for path, content in contents.items():
            path.write_bytes(content[: round(len(content) * share)])
        end = next_offset(reader, offset)
        batch = read(reader, offset, end)
        assert read(JournalReader(tmp_path), offset, end) == batch
        rows += batch
        offset = end

    tables = run.tables()
    for name in ("dispatches", "flows", "confirmed", "unconfirmed"):
        assert records(rows, name) == unnumbered(getattr(tables, name)), name
    for row in rows:
        if row["name"] == "dispatches":
            queues = pa.ipc.open_stream(row["payload"]).read_all().column("queue").to_pylist()
            assert {queue % 3 for queue in queues} == {row["part"]}
    # What is known of a file is for every part.
    assert {row["part"] for row in rows if row["name"] == "journals"} == {0, 1, 2}
    assert next_offset(reader, offset) == offset
    assert reader.partitions(offset, offset) == []


def test_a_line_that_is_no_record_is_told_of_and_line_counts_of_pieces_are_not(tmp_path: Path) -> None:
    story().write(tmp_path)
    contents = {path: path.read_bytes() for path in tmp_path.iterdir()}
    spoilt = min(tmp_path.glob("*.member.jsonl"))
    lines = contents[spoilt].splitlines(keepends=True)
    contents[spoilt] = b"".join([*lines[:5], b"not a record\n", *lines[5:]])
    reader, rows = JournalReader(tmp_path), []
    offset = reader.initialOffset()
    for share in (0.6, 1):
        for path, content in contents.items():
            path.write_bytes(content[: round(len(content) * share)])
        end = next_offset(reader, offset)
        rows += read(reader, offset, end)
        offset = end

    facts = [pickle.loads(row["payload"]) for row in rows if row["name"] in ("journals", "ledgers")]  # noqa: S301
    assert {row["defect"] for row in facts if row["file"] != spoilt.name} == {None}
    assert "not a record" in {row["defect"] for row in facts if row["file"] == spoilt.name}


def test_nothing_is_read_before_a_member_has_said_who_it_is(tmp_path: Path) -> None:
    (tmp_path / "0.member.jsonl").write_bytes(b'{"kind": "jour')
    reader = JournalReader(tmp_path)
    start = reader.initialOffset()
    assert next_offset(reader, start) == start


def test_a_group_that_changes_its_queues_is_refused_with_what_to_do(tmp_path: Path) -> None:
    striped_story(4, 6).write(tmp_path)
    reader = JournalReader(tmp_path)
    start = reader.initialOffset()
    with pytest.raises(UserError, match="without --engine spark"):
        read(reader, start, next_offset(reader, start))
