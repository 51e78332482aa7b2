"""The index of a segment: which part of its data file is whole and durable, in one entry of 64 bytes per flush.

An entry is written after the data that it describes is synced, so a torn data file is never wrong: data without an
entry is not there. Little endian throughout; every entry, and the header, ends with a CRC-32 of the rest of it. A power
failure leaves of the last entries nothing, a part of one, or zeros: all read as nothing. Anything else whose CRC does
not match is damage.
"""

import os
import struct
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lbg_runtime.model.errors import LandingDamaged
from lbg_runtime.pipeline.files import opened, read_whole
from lbg_runtime.pipeline.landing.schema import FORMAT, check_format

ENTRY_BYTES = 64
MAGIC = b"LBGLAND\x00"

NO_LOW, NO_HIGH = 1 << 62, -1
"""The range of no ids."""

DAMAGE_REMEDY = "the queue is not read beyond it; restore the file, or see docs/landing.md"

_HEADER = struct.Struct("<8sIIQQ28x")
_ENTRY = struct.Struct("<QQqqqqqI")
_CRC = struct.Struct("<I")

_ENTRY_TYPE = np.dtype(
    [
        ("rows", "<u8"),
        ("data_bytes", "<u8"),
        ("low", "<i8"),
        ("high", "<i8"),
        ("segment_low", "<i8"),
        ("segment_high", "<i8"),
        ("t_land", "<i8"),
        ("data_crc", "<u4"),
        ("crc", "<u4"),
    ]
)


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """Where a segment begins."""

    first_row: int
    """Its number in the lane."""
    data_start: int
    """Bytes of the schema at the beginning of the data file."""
    schema_crc: int

    def encode(self) -> bytes:
        """As it stands in the file."""
        return sealed(_HEADER.pack(MAGIC, FORMAT, self.schema_crc, self.first_row, self.data_start))


class FlushEntry(NamedTuple):
    """The state of the segment after one flush, in the order of the file. Ids are given by the time that they begin
    with, in milliseconds."""

    rows: int
    """Of the lane, up to and including this flush."""
    data_bytes: int
    """Of the data file, up to and including this flush."""
    low: int
    """Smallest id of the flush; ids of a single delivery are left out."""
    high: int
    segment_low: int
    """Smallest id of the segment up to here."""
    segment_high: int
    t_land: int
    """When the flush landed, microseconds since the epoch."""
    data_crc: int
    """CRC-32 of the flush's bytes in the data file."""

    def encode(self) -> bytes:
        """As it stands in the file."""
        return sealed(_ENTRY.pack(*self))


@dataclass(frozen=True, slots=True)
class Entries:
    header: SegmentHeader
    first_row: int
    """The row of the lane at which the first of them begins."""
    first_byte: int
    """And its byte in the data file."""
    table: npt.NDArray[np.void]
    """With the fields of `FlushEntry`."""


def read_header(path: Path) -> SegmentHeader:
    """The header of an index file; raises `LandingDamaged` or `LandingVersionUnknown`, and `OSError`."""
    with path.open("rb") as file:
        return _parse_header(path, file.read(ENTRY_BYTES))


def read_last_entry(path: Path | str) -> FlushEntry | None:
    """The state of the segment now: one look at the size, one small read. None if nothing is flushed.

    Raises `LandingDamaged` and `OSError`.
    """
    with opened(path) as file:
        count = (os.fstat(file).st_size - ENTRY_BYTES) // ENTRY_BYTES
        if count <= 0:
            return None
        raw = os.pread(file, ENTRY_BYTES, count * ENTRY_BYTES)
    if not _is_sealed(raw):
        # The end is torn, or damaged: reading all entries shows which.
        table = read_entries(path).table
        return FlushEntry(*table[-1].item()[:-1]) if len(table) else None
    return FlushEntry(*_ENTRY.unpack(raw[: _ENTRY.size]))


class IndexRead:
    """An index file as it was when it was read; entries never change, but others may follow."""

    def __init__(self, path: Path | str, raw: bytes, header: SegmentHeader, table: npt.NDArray[np.void]) -> None:
        """As `read_index` makes it."""
        self.bytes = len(raw)
        self.first_row = header.first_row
        """Of the lane, at which the segment begins."""
        self.rows = int(table["rows"][-1]) if len(table) else header.first_row
        """Of the lane, up to and including the last flush."""
        self._path = path
        self._raw = raw
        self._header = header
        self._table = table

    def between(self, start_row: int, end_row: int) -> Entries:
        """The entries of the flushes that have rows in this range, in order. Raises `LandingDamaged` if one has a wrong
        CRC."""
        raw, table = self._raw, self._table
        rows = table["rows"]
        first = int(rows.searchsorted(start_row, side="right"))
        last = min(len(table), int(rows.searchsorted(end_row, side="left")) + 1)
        # The one before is checked too: it tells where the first begins.
        for number in range(max(1, first), last + 1):
            if not _is_sealed(_entry_of(raw, number)):
                raise LandingDamaged(str(self._path), f"entry {number} has a wrong CRC", DAMAGE_REMEDY)
        if not first:
            return Entries(self._header, self._header.first_row, self._header.data_start, table[:last])
        before = table[first - 1]
        return Entries(self._header, int(before["rows"]), int(before["data_bytes"]), table[first:last])


def read_entries(path: Path | str) -> Entries:
    """The entries of all flushes, in order, with their CRCs checked.

    Raises `LandingDamaged`, `LandingVersionUnknown` and `OSError`.
    """
    return read_index(path).between(0, sys.maxsize)


def read_index(path: Path | str) -> IndexRead:
    """All of an index file; the CRCs of the header and the last entry are checked. Raises as `read_entries`."""
    raw = read_whole(path)
    header = _parse_header(path, raw[:ENTRY_BYTES])
    count = max(0, len(raw) // ENTRY_BYTES - 1)
    while count and not _is_sealed(_entry_of(raw, count)):
        if any(_entry_of(raw, count)):
            raise LandingDamaged(str(path), f"entry {count} has a wrong CRC", DAMAGE_REMEDY)
        count -= 1
    table = np.frombuffer(raw, _ENTRY_TYPE, count, ENTRY_BYTES)
    rows, ends = table["rows"], table["data_bytes"]
    if not ((rows[1:] > rows[:-1]).all() and (ends[1:] > ends[:-1]).all()):
        raise LandingDamaged(str(path), "entries do not follow each other", DAMAGE_REMEDY)
    return IndexRead(path, raw, header, table)


def _entry_of(raw: bytes, number: int) -> bytes:
    """An entry by its number, from 1: the header takes the place of the 0th."""
    return raw[number * ENTRY_BYTES : (number + 1) * ENTRY_BYTES]


def _parse_header(path: Path | str, raw: bytes) -> SegmentHeader:
    schema_crc, first_row, data_start = unseal_header(path, raw, _HEADER, MAGIC, "no index of a segment")
    return SegmentHeader(first_row, data_start, schema_crc)


def sealed(content: bytes) -> bytes:
    """A header or an entry, with its CRC at its end."""
    return content + _CRC.pack(zlib.crc32(content))


def unseal_header(path: Path | str, raw: bytes, form: struct.Struct, magic: bytes, otherwise: str) -> tuple[int, ...]:
    """What a header of this form has after magic and version.

    Raises `LandingDamaged`, with `otherwise` if it has another magic, and `LandingVersionUnknown`.
    """
    if len(raw) < ENTRY_BYTES or raw[: len(magic)] != magic:
        raise LandingDamaged(str(path), otherwise, DAMAGE_REMEDY)
    _, version, *fields = form.unpack(raw[: form.size])
    check_format(path, version)
    if not _is_sealed(raw):
        raise LandingDamaged(str(path), "its header has a wrong CRC", DAMAGE_REMEDY)
    return tuple(fields)


def _is_sealed(raw: bytes) -> bool:
    return len(raw) == ENTRY_BYTES and _CRC.unpack(raw[-_CRC.size :])[0] == zlib.crc32(raw[: -_CRC.size])
