"""A segment and its index: what is flushed is read again, what is torn is not there, what is damaged is said."""

import errno
import os
import shutil
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from lbg_runtime.model.errors import InvariantViolated, LandingDamaged, LandingVersionUnknown, LandingWriteFailed
from lbg_runtime.pipeline.landing import segment as segment_module
from lbg_runtime.pipeline.landing.index import ENTRY_BYTES, NO_HIGH, NO_LOW, read_entries, read_last_entry
from lbg_runtime.pipeline.landing.schema import LANDING_SCHEMA
from lbg_runtime.pipeline.landing.segment import Segment, SegmentWriter
from tests.open_files import open_below
from tests.pipeline.landing.landed import id_of, ids_of, rows

FIRST = 1_000


@pytest.fixture(params=["at once", "flush by flush"])
def flushed(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Segment:
    """Rows 1000 to 1009: flushes of 4, 1 and 5; read with one look at the file, or with one for each flush."""
    if request.param == "flush by flush":
        monkeypatch.setattr(segment_module, "_PIECE_BYTES", 1)
    writer = SegmentWriter(tmp_path, FIRST, is_synced=True)
    for numbers in (range(4), range(4, 5), range(5, 10)):
        writer.append(rows(id_of("k", number) for number in numbers))
    writer.close()
    return Segment(tmp_path, FIRST)


def numbers_of(segment: Segment, start: int, end: int) -> list[int]:
    return [int(each.split("/")[0].split(".")[1]) for each in ids_of(segment.read(start, end))]


def test_rows_are_read_again_as_they_were_written(tmp_path: Path) -> None:
    batch = rows([id_of("k", 1), id_of("ü", 2)])
    writer = SegmentWriter(tmp_path, 0, is_synced=False)
    writer.append(batch)
    assert writer.rows == 2
    assert list(Segment(tmp_path, 0).read(0, 2)) == [batch]
    writer.close()


@pytest.mark.parametrize(("start", "end"), [(0, 10), (3, 4), (3, 7), (4, 5), (9, 10), (0, 4), (5, 5)])
def test_exactly_the_rows_that_are_asked_for(flushed: Segment, start: int, end: int) -> None:
    assert numbers_of(flushed, FIRST + start, FIRST + end) == list(range(start, end))


def test_an_entry_tells_rows_bytes_and_ids(flushed: Segment) -> None:
    entries = read_entries(flushed.index_path).table
    assert entries["rows"].tolist() == [1004, 1005, 1010]
    assert [entries[name].tolist() for name in ("low", "high")] == [[0, 4, 5], [3, 4, 9]]
    assert [entries[name].tolist() for name in ("segment_low", "segment_high")] == [[0, 0, 0], [3, 4, 9]]
    last = read_last_entry(flushed.index_path)
    assert last is not None
    assert (last.rows, last.data_bytes) == (1010, flushed.data_path.stat().st_size)
    assert flushed.index_path.stat().st_size == 4 * ENTRY_BYTES


def test_ids_of_one_delivery_have_no_part_in_the_range(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, 0, is_synced=False)
    writer.append(rows([f"{0:013x}.!lane/7", id_of("k", 5)]))
    writer.append(rows([f"{3:013x}.!lane/8"]))
    writer.close()
    entries = read_entries(Segment(tmp_path, 0).index_path).table
    assert [entries[name].tolist() for name in ("low", "high")] == [[5, NO_LOW], [5, NO_HIGH]]


def test_the_data_file_is_a_stream_for_other_tools(flushed: Segment) -> None:
    with pa.ipc.open_stream(flushed.data_path.read_bytes()) as stream:
        assert sum(batch.num_rows for batch in stream) == 10


def test_data_that_no_entry_tells_of_is_not_there(flushed: Segment) -> None:
    with flushed.data_path.open("ab") as file:
        file.write(b"\xff" * 1_000)
    assert numbers_of(flushed, FIRST, FIRST + 100) == list(range(10))


@pytest.mark.parametrize("tail", [b"\x07" * 10, b"\x00" * ENTRY_BYTES, b"\x00" * (2 * ENTRY_BYTES + 5)])
def test_a_torn_entry_is_not_there(flushed: Segment, tail: bytes) -> None:
    with flushed.index_path.open("ab") as file:
        file.write(tail)
    last = read_last_entry(flushed.index_path)
    assert last is not None
    assert last.rows == 1010
    assert numbers_of(flushed, FIRST, FIRST + 100) == list(range(10))


@pytest.mark.parametrize("flush_count", [0, 1])
def test_a_torn_entry_is_not_there_in_a_segment_that_has_hardly_begun(tmp_path: Path, flush_count: int) -> None:
    writer, segment = SegmentWriter(tmp_path, 0, is_synced=False), Segment(tmp_path, 0)
    for number in range(flush_count):
        writer.append(rows([id_of("k", number)]))
    writer.close()
    os.truncate(segment.index_path, (2 + flush_count) * ENTRY_BYTES)
    last = read_last_entry(segment.index_path)
    assert (0 if last is None else last.rows) == flush_count


@pytest.mark.parametrize(
    ("start", "end", "ends"), [(0, 4, [4]), (3, 5, [4, 5]), (4, 5, [5]), (4, 6, [5, 10]), (9, 20, [10]), (10, 20, [])]
)
def test_the_entries_are_those_of_the_rows_that_are_asked_for(
    flushed: Segment, start: int, end: int, ends: list[int]
) -> None:
    entries = flushed.index().between(FIRST + start, FIRST + end)
    assert [row - FIRST for row in entries.table["rows"].tolist()] == ends
    assert entries.first_row - FIRST == max(each for each in (0, 4, 5, 10) if each <= start)


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 0x10
    path.write_bytes(content)


def test_every_flipped_bit_of_the_data_is_noticed(flushed: Segment) -> None:
    whole = flushed.data_path.read_bytes()
    for offset in range(0, len(whole), 97):
        flip(flushed.data_path, offset)
        with pytest.raises(LandingDamaged):
            numbers_of(flushed, FIRST, FIRST + 10)
        flushed.data_path.write_bytes(whole)


def test_every_flipped_bit_of_the_index_is_noticed(flushed: Segment) -> None:
    whole = flushed.index_path.read_bytes()
    for offset in range(len(whole)):
        flip(flushed.index_path, offset)
        with pytest.raises((LandingDamaged, LandingVersionUnknown)):
            numbers_of(flushed, FIRST, FIRST + 10)
        flushed.index_path.write_bytes(whole)


def test_damage_costs_only_what_lies_behind_it(flushed: Segment) -> None:
    flip(flushed.data_path, flushed.data_path.stat().st_size - 20)
    batches = flushed.read(FIRST, FIRST + 10)
    assert len(ids_of([next(batches), next(batches)])) == 5
    with pytest.raises(LandingDamaged, match=r"rows 1005 to 1009 .* wrong CRC; the queue is not read beyond it"):
        next(batches)


def test_damage_of_the_index_costs_only_what_it_tells_of(flushed: Segment) -> None:
    flip(flushed.index_path, 2 * ENTRY_BYTES - 1)
    assert numbers_of(flushed, FIRST + 5, FIRST + 10) == list(range(5, 10))
    with pytest.raises(LandingDamaged, match="entry 1 has a wrong CRC"):
        numbers_of(flushed, FIRST + 4, FIRST + 10)


def test_data_that_is_missing_is_damage(flushed: Segment) -> None:
    os.truncate(flushed.data_path, flushed.data_path.stat().st_size - 1)
    with pytest.raises(LandingDamaged, match="the index knows of"):
        numbers_of(flushed, FIRST, FIRST + 10)


def test_a_part_that_is_missing_as_a_whole_is_damage(flushed: Segment) -> None:
    os.truncate(flushed.data_path, 2_000)
    with pytest.raises(LandingDamaged, match="2000 bytes, and the index knows of"):
        numbers_of(flushed, FIRST + 5, FIRST + 10)


def test_a_file_that_becomes_shorter_while_it_is_read_is_damage_and_kills_nobody(tmp_path: Path) -> None:
    """As one does that is restored from a backup while it is read."""
    writer = SegmentWriter(tmp_path, FIRST, is_synced=True)
    batch = rows(id_of("k" * 1_000, number) for number in range(200))
    for _ in range(10):
        writer.append(batch)
    writer.close()
    segment = Segment(tmp_path, FIRST)
    read = segment.read(FIRST, FIRST + 2_000)
    assert next(read) == batch
    os.truncate(segment.data_path, segment.data_path.stat().st_size // 2)
    with pytest.raises(LandingDamaged, match="bytes, and the index knows of"):
        list(read)


@pytest.mark.parametrize(("beyond", "is_cut"), [(-1, False), (0, False), (1, True)])
def test_large_flushes_behind_the_index_show_whether_it_was_cut(tmp_path: Path, *, beyond: int, is_cut: bool) -> None:
    """Only the first bytes of them are read, however often a planner looks."""
    writer = SegmentWriter(tmp_path, FIRST, is_synced=True)
    batch = rows(id_of("k" * 1_000, number) for number in range(200))
    for _ in range(3):
        writer.append(batch)
    writer.close()
    segment = Segment(tmp_path, FIRST)
    first, second = segment.index().between(0, FIRST + 400).table["data_bytes"].tolist()
    os.truncate(segment.index_path, 2 * ENTRY_BYTES)
    os.truncate(segment.data_path, second + beyond)
    assert (last := segment.last_entry()) is not None
    assert last.data_bytes == first
    assert segment.is_cut(last) == is_cut


def test_rows_stay_when_their_file_is_pruned(flushed: Segment) -> None:
    kept = list(flushed.read(FIRST, FIRST + 10))
    flushed.data_path.unlink()
    assert ids_of(kept) == [id_of("k", number) for number in range(10)]


@pytest.mark.parametrize("first_row", [FIRST - 1, FIRST + 3])
def test_a_segment_by_the_name_of_another_is_not_read(flushed: Segment, first_row: int) -> None:
    other = Segment(flushed.data_path.parent, first_row)
    shutil.copy(flushed.data_path, other.data_path)
    shutil.copy(flushed.index_path, other.index_path)
    with pytest.raises(LandingDamaged, match="its name is not that of its first row"):
        list(other.read(first_row, FIRST + 10))


def test_a_segment_does_not_end_before_its_first_row(flushed: Segment) -> None:
    other = Segment(flushed.data_path.parent, FIRST + 10)
    shutil.copy(flushed.index_path, other.index_path)
    with pytest.raises(LandingDamaged, match="its name is not that of its first row"):
        other.last_entry()


def test_another_version_is_told_by_name(flushed: Segment) -> None:
    content = bytearray(flushed.index_path.read_bytes())
    content[8] = 9
    flushed.index_path.write_bytes(content)
    with pytest.raises(LandingVersionUnknown, match="format 9; this version reads format 1"):
        numbers_of(flushed, FIRST, FIRST + 10)


def test_another_schema_is_told_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = LANDING_SCHEMA.append(pa.field("colour", pa.string()))
    monkeypatch.setattr(segment_module, "_SCHEMA_BYTES", other.serialize().to_pybytes())
    writer = SegmentWriter(tmp_path, 0, is_synced=False)
    writer.append(rows([id_of("k", 1)]))
    writer.close()
    with pytest.raises(LandingVersionUnknown, match="another schema, with colour"):
        list(Segment(tmp_path, 0).read(0, 1))


def test_a_segment_that_was_begun_with_a_longer_schema_has_no_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = LANDING_SCHEMA.append(pa.field("colour", pa.string()))
    with monkeypatch.context() as patched:
        patched.setattr(segment_module, "_SCHEMA_BYTES", other.serialize().to_pybytes())
        writer = SegmentWriter(tmp_path, 0, is_synced=False)
    segment = Segment(tmp_path, 0)
    assert not segment.has_rows()
    writer.append(rows([id_of("k", 1)]))
    writer.close()
    assert segment.has_rows()


@pytest.mark.parametrize("at_sync", [1, 2])
def test_a_flush_that_cannot_be_synced_ends_the_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_sync: int
) -> None:
    writer = SegmentWriter(tmp_path, 0, is_synced=True)
    writer.append(rows([id_of("k", 1)]))
    syncs: list[int] = []

    def sync(file: int) -> None:
        syncs.append(file)
        if len(syncs) == at_sync:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fdatasync", sync)
    with pytest.raises(LandingWriteFailed, match="No space left on device; messages stay in the broker") as caught:
        writer.append(rows([id_of("k", 2)]))
    assert caught.value.reason == "No space left on device"
    with pytest.raises(InvariantViolated):
        writer.append(rows([id_of("k", 2)]))
    writer.close()
    assert writer.rows == 1


def test_data_is_synced_before_its_entry_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = SegmentWriter(tmp_path, 0, is_synced=True)
    segment = Segment(tmp_path, 0)
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(
        os,
        "fdatasync",
        lambda _: seen.append((segment.data_path.stat().st_size, segment.index_path.stat().st_size)),
    )
    writer.append(rows([id_of("k", 1)]))
    assert [index for _, index in seen] == [ENTRY_BYTES, 2 * ENTRY_BYTES]
    assert seen[0][0] == segment.data_path.stat().st_size
    writer.close()


def test_where_there_is_no_sync_of_data_alone_the_whole_file_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = SegmentWriter(tmp_path, 0, is_synced=True)
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    monkeypatch.delattr(os, "fdatasync")
    monkeypatch.setattr(sys, "platform", "darwin")
    writer.append(rows([id_of("k", 1)]))
    monkeypatch.undo()
    writer.close()
    assert len(set(synced)) == 2


@pytest.mark.parametrize("by", [-1, -64, 1])
@pytest.mark.parametrize("name", ["data_path", "index_path"])
def test_nothing_is_acknowledged_behind_a_file_that_is_not_as_long_as_it_was_written(
    tmp_path: Path, name: str, by: int
) -> None:
    writer, segment = SegmentWriter(tmp_path, 0, is_synced=False), Segment(tmp_path, 0)
    writer.append(rows([id_of("k", 1)]))
    writer.append(rows([id_of("k", 2)]))
    path: Path = getattr(segment, name)
    os.truncate(path, path.stat().st_size + by)
    index_bytes = segment.index_path.stat().st_size
    with pytest.raises(LandingWriteFailed, match="bytes are there, and") as caught:
        writer.append(rows([id_of("k", 3)]))
    writer.close()
    assert (caught.value.path, writer.rows) == (str(path), 2)
    assert segment.index_path.stat().st_size == index_bytes


def test_a_segment_is_never_written_over(flushed: Segment) -> None:
    with pytest.raises(LandingWriteFailed, match="exists"):
        SegmentWriter(flushed.data_path.parent, FIRST, is_synced=False)


def test_a_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    shutil.rmtree(tmp_path)
    with pytest.raises(LandingWriteFailed, match="No such file"):
        SegmentWriter(tmp_path, 0, is_synced=False)


def test_what_is_closed_or_was_not_begun_keeps_no_file_open(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, 0, is_synced=False)
    writer.append(rows([id_of("k", 1)]))
    assert len(open_below(tmp_path)) == 2
    writer.close()
    assert not open_below(tmp_path)
    with pytest.raises(InvariantViolated):
        writer.append(rows([id_of("k", 2)]))
    with (tmp_path / "another").open("wb"):
        writer.close()
        assert len(open_below(tmp_path)) == 1, "a number that another file has by now is not closed"
    Segment(tmp_path, 7).index_path.touch()
    with pytest.raises(LandingWriteFailed):
        SegmentWriter(tmp_path, 7, is_synced=False)
    assert not open_below(tmp_path)
