"""A segment: rows of one lane in a data file of Arrow messages, and the index that says how much of it is durable.

The data file begins with the schema, so that up to any entry of the index it is an Arrow stream that other tools can
read. `<first row>.arrow` and `<first row>.index`, with twelve digits, lie in the folder of their lane. Of a pruned
segment, `<first row>.ids` is left (`landing/pruned_ids.py`).

The rule for the writer: data is written and synced, then its entry is written and synced; only then is a flush reported
as done. After an error a segment is never written again, as nobody knows how much of it is on the disk. So a writer
that dies leaves at most one flush without its entry. And no entry is written into files that are no longer in their
place, or no longer as long as they were made, as nobody would find the rows: the files may be unlinked, hidden by
something mounted since, or cut.
"""

import os
import zlib
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from lbg_runtime.model.errors import InvariantViolated, LandingDamaged, LandingVersionUnknown, LandingWriteFailed
from lbg_runtime.pipeline.files import opened, sync_data, sync_folder
from lbg_runtime.pipeline.landing.index import (
    DAMAGE_REMEDY,
    ENTRY_BYTES,
    NO_HIGH,
    NO_LOW,
    FlushEntry,
    IndexRead,
    SegmentHeader,
    read_header,
    read_index,
    read_last_entry,
)
from lbg_runtime.pipeline.landing.schema import LANDING_SCHEMA, may_have_copies, time_of_id

DATA_SUFFIX = ".arrow"
INDEX_SUFFIX = ".index"
IDS_SUFFIX = ".ids"

_PIECE_BYTES = 1 << 20
"""A file is read in pieces of about so many bytes, and never mapped: with a part of a map that the disk cannot read, or
that somebody has cut off the file meanwhile, the system kills the process."""

_HEAD_BYTES = 1 << 16
"""A flush is torn for as long as its lane is there, and planners look ten times a second: an Arrow message says in its
first kilobytes how long it is."""

_MESSAGE_MARK = b"\xff\xff\xff\xff"
"""Precedes the four-byte length of an Arrow message."""

_SCHEMA_BUFFER = LANDING_SCHEMA.serialize()
_SCHEMA_BYTES = _SCHEMA_BUFFER.to_pybytes()


class SegmentWriter:
    """Writes one new segment, from one thread at a time. Its creator closes it."""

    def __init__(self, folder: Path, first_row: int, *, is_synced: bool) -> None:
        """Begin the files; with `is_synced` False, the system decides when they reach the disk.

        Raises `LandingWriteFailed`, also if the segment exists.
        """
        self.rows = first_row
        """Of the lane, up to and including the last completed flush."""
        self.bytes = len(_SCHEMA_BYTES)
        """Of the data file, as far as entries cover it."""
        self._is_synced = is_synced
        self._is_broken = False
        self._low, self._high = NO_LOW, NO_HIGH
        self._index_bytes = ENTRY_BYTES
        self._data: int | None = None
        self._index: int | None = None
        segment = Segment(folder, first_row)
        self._path, self._index_path = segment.data_path, segment.index_path
        header = SegmentHeader(first_row, self.bytes, zlib.crc32(_SCHEMA_BYTES))
        try:
            self._data = _create(self._path)
            _write(self._data, _SCHEMA_BYTES)
            self._sync(self._data)
            self._index = _create(self._index_path)
            _write(self._index, header.encode())
            self._sync(self._index)
            if is_synced:
                sync_folder(folder)
        except OSError as error:
            self.close()
            raise LandingWriteFailed(str(self._path), error.strerror or str(error)) from error

    def append(self, batch: pa.RecordBatch) -> None:
        """Flush rows; on return they are durable.

        `batch` has `LANDING_SCHEMA` and at least one row. Raises `LandingWriteFailed`, after which the segment is
        unusable.
        """
        if self._is_broken or self._data is None or self._index is None:
            raise InvariantViolated(f"{self._path} was written after its end")
        low, high = range_of_ids(batch)
        encoded = batch.serialize()
        entry = FlushEntry(
            rows=self.rows + batch.num_rows,
            data_bytes=self.bytes + encoded.size,
            low=low,
            high=high,
            segment_low=min(low, self._low),
            segment_high=max(high, self._high),
            t_land=batch.column("t_land")[-1].value,
            data_crc=zlib.crc32(encoded),
        )
        # Set until the end: whatever interrupts this, nothing may follow it.
        self._is_broken = True
        try:
            _write(self._data, encoded)
            self._sync(self._data)
            check_in_place(self._data, self._path, entry.data_bytes)
            check_in_place(self._index, self._index_path, self._index_bytes)
            _write(self._index, entry.encode())
            self._sync(self._index)
        except OSError as error:
            raise LandingWriteFailed(str(self._path), error.strerror or str(error)) from error
        self._is_broken = False
        self.rows, self.bytes = entry.rows, entry.data_bytes
        self._index_bytes += ENTRY_BYTES
        self._low, self._high = entry.segment_low, entry.segment_high

    def close(self) -> None:
        """Close the files. Idempotent; raises nothing."""
        for file in (self._data, self._index):
            if file is not None:
                with suppress(OSError):
                    os.close(file)
        self._data = self._index = None

    def _sync(self, file: int) -> None:
        if self._is_synced:
            sync_data(file)


class Segment:
    """Reads one segment; cheap to create. Call again to see what is appended later."""

    def __init__(self, folder: Path | str, first_row: int) -> None:
        self.first_row = first_row
        # Not a `Path`: creating one takes as long as opening a file.
        self._stem = f"{folder}/{first_row:012d}"

    @property
    def data_path(self) -> Path:
        """Path of the file with the rows."""
        return Path(self._stem + DATA_SUFFIX)

    @property
    def index_path(self) -> Path:
        """Path of the file that says which of the rows are durable."""
        return Path(self._stem + INDEX_SUFFIX)

    @property
    def ids_path(self) -> Path:
        """Path of the file with the ids that are left of it when it is pruned."""
        return Path(self._stem + IDS_SUFFIX)

    def last_entry(self) -> FlushEntry | None:
        """As `read_last_entry`; raises `LandingDamaged` also if it is of rows before this segment, or if there are rows
        and the index has no header."""
        last = read_last_entry(self._stem + INDEX_SUFFIX)
        if last is not None and last.rows <= self.first_row:
            # Otherwise the lane would seem to end where another one of its segments does.
            raise self._misnamed()
        if last is None and self.has_rows():
            # Read after the rows: none is written before the header is durable, so by now it is there.
            read_header(self.index_path)
        return last

    def has_rows(self) -> bool:
        """Whether the data file goes on after its schema, even with rows of a torn flush; False if it is gone."""
        try:
            with opened(self._stem + DATA_SUFFIX) as file:
                begin, size = os.pread(file, 8, 0), os.fstat(file).st_size
        except FileNotFoundError:
            return False
        # The length as recorded there: another version of Arrow may write the same schema in more bytes.
        is_whole = len(begin) == 8 and begin.startswith(_MESSAGE_MARK)
        return size > (8 + int.from_bytes(begin[4:], "little") if is_whole else len(_SCHEMA_BYTES))

    def is_cut(self, last: FlushEntry | None) -> bool:
        """Whether a whole flush lies after the last entry, and more after that: there were other entries.

        A segment that is being written may look like that too, as the entry is older than the look at the data. False
        if the data is gone. Raises `LandingDamaged` and `OSError`.
        """
        path = self._stem + DATA_SUFFIX
        try:
            if last is None and not self.has_rows():
                return False
            begin = read_header(self.index_path).data_start if last is None else last.data_bytes
            if os.stat(path).st_size <= begin:
                return False
            with opened(path) as file:
                rest = _read_head(file, begin, os.fstat(file).st_size)
        except FileNotFoundError:
            return False
        return _is_followed(rest)

    def index(self) -> IndexRead:
        """As `read_index`, which documents what is raised; `LandingDamaged` also if it is that of another segment."""
        found = read_index(self._stem + INDEX_SUFFIX)
        if found.first_row != self.first_row:
            raise self._misnamed()
        return found

    def read(self, start_row: int, end_row: int) -> Iterator[pa.RecordBatch]:
        """The rows from `start_row` to before `end_row`, numbered in their lane, without those outside this segment.

        Raises `LandingDamaged`, `LandingVersionUnknown`, `OSError`.
        """
        entries = self.index().between(start_row, end_row)
        if start_row >= end_row or not len(entries.table):
            return
        first, begin = entries.first_row, entries.first_byte
        told = [entries.table[name].tolist() for name in ("rows", "data_bytes", "data_crc")]
        with opened(self._stem + DATA_SUFFIX) as file:
            schema = _read(file, 0, entries.header.data_start)
            check_schema(self._stem + DATA_SUFFIX, schema, entries.header.schema_crc)
            piece, piece_begin = _read(file, 0, 0), begin
            for last, end, crc in zip(*told, strict=True):
                if piece_begin + piece.size < end:
                    # Several flushes at once: with many lanes each gives few, and a look must not be paid for each.
                    fitting = told[1][max(0, bisect_right(told[1], begin + _PIECE_BYTES) - 1)]
                    piece, piece_begin = _read(file, begin, max(end, fitting)), begin
                if piece_begin + piece.size < end:
                    raise self._damaged(f"{os.fstat(file).st_size} bytes, and the index knows of {end}")
                raw = piece.slice(begin - piece_begin, end - begin)
                if zlib.crc32(raw) != crc:
                    raise self._damaged(f"rows {first} to {last - 1} at byte {begin} have a wrong CRC")
                batch = pa.ipc.read_record_batch(raw, LANDING_SCHEMA)
                if batch.num_rows != last - first:
                    raise self._damaged(f"{batch.num_rows} rows at byte {begin}, not {last - first}")
                if first < start_row or last > end_row:
                    offset = max(0, start_row - first)
                    batch = batch.slice(offset, min(end_row, last) - first - offset)
                yield batch
                first, begin = last, end

    def _misnamed(self) -> LandingDamaged:
        return LandingDamaged(str(self.index_path), "its name is not that of its first row", DAMAGE_REMEDY)

    def _damaged(self, what: str) -> LandingDamaged:
        return LandingDamaged(str(self.data_path), what, DAMAGE_REMEDY)


def range_of_ids(batch: pa.RecordBatch) -> tuple[int, int]:
    """The smallest and the largest id, by the times that they begin with; those of a single delivery are left out.

    Raises `ValueError` for what is not an id.
    """
    ids = batch.column("broker_id")
    bounds = pc.min_max(ids).as_py()
    low, high = time_of_id(bounds["min"]), time_of_id(bounds["max"])
    if may_have_copies(bounds["min"]) and may_have_copies(bounds["max"]):
        return low, high
    times = [time_of_id(each) for each in ids.to_pylist() if may_have_copies(each)]
    return (min(times), max(times)) if times else (NO_LOW, NO_HIGH)


def check_schema(path: Path | str, raw: pa.Buffer, crc: int) -> None:
    """Raises `LandingDamaged` or `LandingVersionUnknown` if a data file does not begin as this version writes it."""
    if zlib.crc32(raw) != crc:
        raise LandingDamaged(str(path), "its schema has a wrong CRC", DAMAGE_REMEDY)
    if raw == _SCHEMA_BUFFER:
        return
    # Another version of Arrow may write the same schema in other bytes.
    found = pa.ipc.read_schema(raw)
    if not found.equals(LANDING_SCHEMA):
        other = [field.name for field in found if field not in list(LANDING_SCHEMA)] or ["a column less"]
        raise LandingVersionUnknown(
            str(path), f"another schema, with {other[0]}", "read it with the version that wrote it"
        )


def check_in_place(file: int, path: Path, size: int | None = None) -> None:
    """Raises `LandingWriteFailed` if an open file is not, or no longer, the one at this path, or not of this size."""
    try:
        held = os.fstat(file)
        is_there = os.path.samestat(held, path.stat())
    except OSError as error:
        raise LandingWriteFailed(str(path), error.strerror or str(error)) from error
    if not is_there:
        raise LandingWriteFailed(str(path), "another file has taken its place")
    if size is not None and held.st_size != size:
        raise LandingWriteFailed(str(path), f"{held.st_size} bytes are there, and {size} were written")


def _read(file: int, begin: int, end: int) -> pa.Buffer:
    """These bytes of a file, as far as there are so many."""
    return pa.py_buffer(os.pread(file, max(0, end - begin), begin))


def _read_head(file: int, begin: int, end: int) -> pa.Buffer:
    """These bytes of a file, of which only the first are read, and the others are anything."""
    buffer = pa.allocate_buffer(max(0, end - begin))
    os.preadv(file, [memoryview(buffer)[:_HEAD_BYTES]], begin)
    return buffer


def _is_followed(rest: pa.Buffer) -> bool:
    """Whether these bytes begin with a whole Arrow message, and go on after it; its first `_HEAD_BYTES` tell."""
    if len(rest) < len(_MESSAGE_MARK) or rest.slice(0, len(_MESSAGE_MARK)).to_pybytes() != _MESSAGE_MARK:
        return False
    reader = pa.BufferReader(rest)
    try:
        pa.ipc.read_message(reader)
    except (pa.ArrowException, OSError, EOFError):
        # Torn. Arrow read nothing from the disk, so this is not a disk error.
        return False
    return bool(reader.tell() < len(rest))


def _create(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o644)


def _write(file: int, content: bytes | pa.Buffer) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(file, rest) :]
