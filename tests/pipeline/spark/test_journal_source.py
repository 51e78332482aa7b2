"""The stream of record files without a JVM: offsets, what a batch reads, and that a batch run again reads the same."""

import json
import pickle
from pathlib import Path

import orjson
import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from lbg_runtime.journal import pieces
from lbg_runtime.journal.facts import FileFacts
from lbg_runtime.model.errors import UserError
from lbg_runtime.pipeline.spark.journal_source import JournalReader, check_files
from lbg_runtime.validator.schema import LEDGERS
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


def files_in(rows: list[dict[str, object]]) -> list[FileFacts]:
    return [pickle.loads(row["payload"]) for row in rows if row["name"] in ("journals", "ledgers")]  # type: ignore[arg-type]  # noqa: S301


@pytest.mark.parametrize("share", [0.1, 0.6, 1])
def test_a_line_that_is_no_record_is_told_of_by_its_number(tmp_path: Path, share: float) -> None:
    story().write(tmp_path)
    contents = {path: path.read_bytes() for path in tmp_path.iterdir()}
    spoilt = min(tmp_path.glob("*.member.jsonl"))
    lines = contents[spoilt].splitlines(keepends=True)
    contents[spoilt] = b"".join([*lines[:5], b"not a record\n", *lines[5:]])
    reader, rows = JournalReader(tmp_path), []
    offset = reader.initialOffset()
    for each in (share, 1):
        for path, content in contents.items():
            path.write_bytes(content[: round(len(content) * each)])
        end = next_offset(reader, offset)
        rows += read(reader, offset, end)
        offset = end

    assert {facts.defect for facts in files_in(rows) if facts.name != spoilt.name} == {None}
    assert (6, "line 6: not a record") in {facts.defect for facts in files_in(rows) if facts.name == spoilt.name}


@pytest.mark.parametrize("content", [b"", b'{"kind":"jour'])
@pytest.mark.parametrize("name", ["zz.member.jsonl", "zz.ledger.jsonl"])
def test_a_file_without_a_whole_line_is_told_of_once(tmp_path: Path, name: str, content: bytes) -> None:
    story().write(tmp_path)
    (tmp_path / name).write_bytes(content)
    reader = JournalReader(tmp_path)
    start = reader.initialOffset()
    end = next_offset(reader, start)

    facts = [facts for facts in files_in(read(reader, start, end)) if facts.name == name]

    assert [each.row(LEDGERS)["defect"] for each in facts] == ["the file is empty"] * 3
    assert next_offset(reader, end) == end


def test_that_a_piece_was_not_all_is_said_until_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the rest is shorter than a line, and where it is nothing."""
    story().write(tmp_path)
    journal = min(tmp_path.glob("*.member.jsonl"))
    content = journal.read_bytes()
    monkeypatch.setattr(pieces, "_PIECE_BYTES", len(content))
    for written, expected in (
        (content[:-1], [False]),
        (content, [True, False]),
        (content + b'{"ki', [True, False]),
    ):
        journal.write_bytes(written)
        reader, told = JournalReader(tmp_path), []
        offset: Offset = reader.initialOffset()
        while (end := next_offset(reader, offset)) != offset:
            own = [row for row in read(reader, offset, end) if (row["name"], row["number"]) == ("journals", 0)]
            told += [row["has_more"] for row in own if row["part"] == 0]
            offset = end
        assert told == expected


@pytest.mark.parametrize(
    ("first", "others", "parts"),
    [
        (3, 3, 3),
        (200_000_000, 3, 1),
        (200_000_000, 2, 2),
        (1 << 40, 3, 3),
        (200_000_000, 200_000_000, 1000),
    ],
)
def test_parts_hold_together_what_any_header_says_and_are_not_many(
    tmp_path: Path, first: int, others: int, parts: int
) -> None:
    story().write(tmp_path)
    for place, path in enumerate(sorted(tmp_path.glob("*.member.jsonl"))):
        header, rest = path.read_bytes().split(b"\n", 1)
        facts = orjson.loads(header) | {"queue_count": others if place else first}
        path.write_bytes(orjson.dumps(facts) + b"\n" + rest)
    reader = JournalReader(tmp_path)
    start = reader.initialOffset()
    end = next_offset(reader, start)
    assert end["parts"] == parts
    assert len(files_in(read(reader, start, end))) == parts * len(list(tmp_path.iterdir()))


def test_a_header_that_comes_later_and_divides_otherwise_leaves_nothing_proven(tmp_path: Path) -> None:
    story().write(tmp_path)
    later = max(tmp_path.glob("*.member.jsonl"))
    content = later.read_bytes().replace(b'"queue_count":3', b'"queue_count":4', 1)
    later.unlink()
    reader = JournalReader(tmp_path)
    start = reader.initialOffset()
    offset = next_offset(reader, start)
    later.write_bytes(content)

    facts = files_in(read(reader, offset, next_offset(reader, offset)))

    assert {each.name: each.defect for each in facts} == {
        later.name: (1, "queue_count 4, but the run was divided by 3 when this file came")
    }


def test_a_folder_in_place_of_a_file_is_the_users_mistake(tmp_path: Path) -> None:
    story().write(tmp_path)
    check_files(tmp_path)
    (tmp_path / "zz.member.jsonl").mkdir()
    reader = JournalReader(tmp_path)
    for look in (lambda: check_files(tmp_path), lambda: next_offset(reader, reader.initialOffset())):
        with pytest.raises(UserError, match="Is a directory; expected a readable record file"):
            look()


def test_a_file_that_is_gone_is_missed_also_if_all_of_it_was_read(tmp_path: Path) -> None:
    """As without Spark: what its member writes from then on is nowhere."""
    story().write(tmp_path)
    reader = JournalReader(tmp_path)
    offset = next_offset(reader, reader.initialOffset())
    path = min(tmp_path.glob("*.member.jsonl"))
    path.unlink()
    with pytest.raises(UserError, match="No such file or directory; expected a readable record file") as raised:
        next_offset(JournalReader(tmp_path), offset)
    assert raised.value.where == str(path)


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
