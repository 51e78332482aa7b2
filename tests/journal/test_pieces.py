"""A record file that is read in pieces says in the end what one reading of the whole says."""

from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from lbg_runtime.journal import pieces
from lbg_runtime.journal.pieces import Place, cut_piece, read_piece
from lbg_runtime.journal.reader import RECORD_KINDS, RecordFile, kind_of, read_file
from lbg_runtime.model.record import OwnerRecord
from lbg_runtime.validator.schema import JOURNALS
from tests.validator.history import story


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Of a member that was stopped twice, far apart, gave a queue to another at last, and lacks records."""
    story().write(tmp_path)
    path = max(tmp_path.glob("*.member.jsonl"), key=lambda each: each.stat().st_size)
    header, *records, _ = path.read_bytes().splitlines()
    pauses = [b'{"kind":"pause","from_mono_ns":%d,"to_mono_ns":%d}' % (at, at + 5) for at in (10, 90)]
    owner = OwnerRecord(0, 1, "given", "m/2", "m", "taker", "stop", "stop", False, 1, 1, 0, 1, 5, asked_mono_ns=3)
    taken = replace(owner, move_id="m/1", event="taken", asked_mono_ns=None)
    lines = [header, pauses[0], *records, pauses[1], orjson.dumps(taken), orjson.dumps(owner)]
    close = {"kind": "close", "written": len(lines), "dropped": 3, "clean": False, "t": 1, "mono_ns": 1 << 50}
    path.write_bytes(b"\n".join([*lines, orjson.dumps(close)]) + b"\n")
    return path


def read_in_pieces(path: Path) -> tuple[RecordFile, dict[str, int], int]:
    """The facts of all pieces, taken in by the first; the number of records of each kind; and how many pieces."""
    whole, counts, piece_count = None, dict.fromkeys(RECORD_KINDS["journal"], 0), 0
    begin = Place()
    while (end := cut_piece(path, begin)).end_bytes > begin.end_bytes:
        piece = read_piece(path, 0, begin, end)
        for kind, batches in piece.batches.items():
            counts[kind] += sum(batch.num_rows for batch in batches)
        if whole is None:
            whole = piece
        else:
            whole.facts.take_in(piece.facts)
        begin, piece_count = end, piece_count + 1
    assert whole is not None
    return whole, counts, piece_count


def test_a_journal_read_in_pieces_has_the_records_and_the_facts_of_the_whole(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once = read_file(journal, "journal", 0)
    monkeypatch.setattr(pieces, "_PIECE_BYTES", journal.stat().st_size // 4)
    found, counts, piece_count = read_in_pieces(journal)
    assert piece_count >= 4
    row = at_once.row(JOURNALS)
    assert (row["pauses"], row["dropped"], row["torn"], row["defect"]) == ("10:15 90:95", 3, False, None)
    assert "taker" in str(row["named"])
    assert (row["given"], row["taken"]) == ('{"m/2":3}', '{"m/1":5}')
    assert found.row(JOURNALS) == row
    assert counts == {kind: sum(batch.num_rows for batch in got) for kind, got in at_once.batches.items()}


def test_the_facts_are_those_of_the_whole_wherever_it_is_cut(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header, *lines = journal.read_bytes().splitlines(keepends=True)
    # So many that there are pieces, the first among them, without anything that shows a clock.
    pauses = [b'{"kind":"pause","from_mono_ns":%d,"to_mono_ns":%d}\n' % (at, at + 5) for at in range(10, 400, 10)]
    journal.write_bytes(b"".join([header, *pauses, *lines[:-2], *pauses, *lines[-2:]]))
    row = read_file(journal, "journal", 0).row(JOURNALS)
    longest = max(map(len, [header, *lines]))
    for piece_bytes in range(longest, 2 * longest, 50):
        monkeypatch.setattr(pieces, "_PIECE_BYTES", piece_bytes)
        found = read_in_pieces(journal)[0].row(JOURNALS)
        # The first record of a block tells the clocks' distance, to a microsecond.
        assert abs(found.pop("wall_offset_ns") - row["wall_offset_ns"]) < 1_000
        assert found == {name: value for name, value in row.items() if name != "wall_offset_ns"}


def test_a_header_that_says_later_that_records_are_missing_is_believed(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header, *lines, _close = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(header[:-2] + b',"is_whole":true }\n' + lines[0])
    first = cut_piece(journal, Place())
    found = read_piece(journal, 0, Place(), first)
    assert found.row(JOURNALS)["dropped"] == 0
    journal.write_bytes(b"".join([header[:-2], b',"is_whole":false}\n', *lines]))
    found.facts.take_in(read_piece(journal, 0, first, cut_piece(journal, first)).facts)
    assert found.row(JOURNALS) == read_file(journal, "journal", 0).row(JOURNALS)
    assert found.row(JOURNALS)["dropped"] == 1


def test_a_line_that_is_no_record_counts_also_at_the_end_of_a_piece(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = journal.read_bytes().splitlines(keepends=True)
    lines.insert(2, b"no record\n")
    journal.write_bytes(b"".join(lines))
    monkeypatch.setattr(pieces, "_PIECE_BYTES", sum(map(len, lines[:3])))
    found, _, piece_count = read_in_pieces(journal)
    assert piece_count > 1
    whole = read_file(journal, "journal", 0)
    assert found.row(JOURNALS)["defect"] == whole.row(JOURNALS)["defect"] == "line 3: not a record"


def test_a_record_after_the_close_is_a_defect_also_in_the_next_pieces(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = journal.read_bytes()
    monkeypatch.setattr(pieces, "_PIECE_BYTES", len(before))
    first = cut_piece(journal, Place())
    status = b'{"kind":"status","mono_ns":1}\n'
    journal.write_bytes(before + status)
    second = cut_piece(journal, first)
    journal.write_bytes(before + status + status)
    third = cut_piece(journal, second)
    number = first.line_count + 1
    assert read_piece(journal, 0, first, second).row(JOURNALS)["defect"] == f"line {number}: a record after the close"
    assert read_piece(journal, 0, second, third).row(JOURNALS)["defect"] == (
        f"line {number + 1}: a record after the close"
    )
    found, *_ = read_in_pieces(journal)
    assert found.row(JOURNALS) == read_file(journal, "journal", 0).row(JOURNALS)


def test_a_piece_ends_with_a_line_and_says_whether_there_is_more(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines)[:-5])
    monkeypatch.setattr(pieces, "_PIECE_BYTES", len(lines[0]) + 5)
    first = cut_piece(journal, Place())
    assert (first.end_bytes, first.line_count, first.header_at) == (len(lines[0]), 1, 0)
    assert (first.has_more, first.is_closed, first.ends_unreadable, first.is_endless) == (True, False, False, False)
    monkeypatch.setattr(pieces, "_PIECE_BYTES", 1 << 20)
    second = cut_piece(journal, first)
    assert (second.end_bytes, second.line_count) == (sum(map(len, lines[:-1])), len(lines) - 1)
    assert not second.has_more
    assert cut_piece(journal, second) == second, "half a line is none"
    journal.write_bytes(b"".join(lines))
    assert cut_piece(journal, second).is_closed


def test_a_line_without_an_end_is_given_up_once(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = journal.read_bytes().splitlines(keepends=True)[0]
    journal.write_bytes(header + b"\0" * 20_000)
    monkeypatch.setattr(pieces, "_PIECE_BYTES", 9_000)
    first = cut_piece(journal, Place())
    end = cut_piece(journal, first)
    assert end == first._replace(is_endless=True, has_more=False)
    assert cut_piece(journal, end) == end
    assert read_piece(journal, 0, Place(), first).row(JOURNALS)["defect"] is None
    assert read_piece(journal, 0, first, end).row(JOURNALS)["defect"] == "line 2: not a record"


def test_a_ledger_is_told_by_its_name(journal: Path) -> None:
    path = next(journal.parent.glob("*.ledger.jsonl"))
    found = read_piece(path, 0, Place(), cut_piece(path, Place()))
    assert found.facts.defect is None
    assert sum(batch.num_rows for batch in found.batches["confirmed"]) > 0
    assert (kind_of(path.name), kind_of(journal.name)) == ("ledger", "journal")


def test_a_header_is_found_behind_lines_that_are_no_records(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = journal.read_bytes().splitlines(keepends=True)
    rubbish = [b"{}\n", b'{"kind":7,"a":"close"}\n'] * (max(map(len, lines)) // 20)
    journal.write_bytes(b"".join([*rubbish, *lines]))
    monkeypatch.setattr(pieces, "_PIECE_BYTES", max(map(len, lines)))
    first = cut_piece(journal, Place())
    assert (first.header_at, first.is_closed, first.ends_unreadable) == (None, False, True)
    found = read_in_pieces(journal)[0].row(JOURNALS)
    row = read_file(journal, "journal", 0).row(JOURNALS)
    assert row["defect"] == "line 1: not a record"
    assert {**found, "wall_offset_ns": 0} == {**row, "wall_offset_ns": 0}


def test_a_text_that_reads_like_a_close_is_none(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header, *lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(header + b'{"kind":"status","state":"close","mono_ns":1}\n{"kind":"close"}\n')
    assert not cut_piece(journal, Place()).is_closed
    journal.write_bytes(b"".join([header, *lines]))
    assert cut_piece(journal, Place()).is_closed


def test_a_file_that_has_become_shorter_than_what_was_read_of_it_is_refused(journal: Path) -> None:
    """As one that is gone: its member's next records lie before the place from which on it would be read."""
    end = cut_piece(journal, Place())
    assert cut_piece(journal, end) == end
    with journal.open("rb+") as file:
        file.truncate(end.end_bytes - 1)
    with pytest.raises(OSError, match="it has become shorter"):
        cut_piece(journal, end)


def test_a_piece_that_is_not_all_there_any_more_is_not_read_as_if_it_were(journal: Path) -> None:
    """What is missing would count as read: a file that is copied over is shorter for a moment."""
    whole = journal.read_bytes()
    end = cut_piece(journal, Place())
    journal.write_bytes(whole[:-200])
    with pytest.raises(OSError, match="it has become shorter"):
        read_piece(journal, 0, Place(), end)
    journal.write_bytes(whole)
    assert read_piece(journal, 0, Place(), end).row(JOURNALS) == read_file(journal, "journal", 0).row(JOURNALS)
