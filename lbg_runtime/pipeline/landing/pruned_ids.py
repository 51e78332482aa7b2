"""What is left of a pruned segment: the ids of its rows, so that a copy that lands later is recognised as one.

64 bytes of header, then an Arrow file of one column, `broker_id`, compressed: about a tenth of the size of the ids, or
a hundredth of rows of a kilobyte. The header has the rows, the range of the ids, when it was pruned, and CRCs.
"""

import errno
import io
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from lbg_runtime.model.errors import LandingDamaged, LandingError
from lbg_runtime.pipeline.files import write_whole
from lbg_runtime.pipeline.landing.index import DAMAGE_REMEDY, ENTRY_BYTES, NO_HIGH, NO_LOW, sealed, unseal_header
from lbg_runtime.pipeline.landing.schema import FORMAT, may_have_copies, time_of_id
from lbg_runtime.pipeline.landing.segment import Segment

_MAGIC = b"LBGIDS\x00\x00"
_HEADER = struct.Struct("<8sIIQQqqQ4x")

_COLUMN = pa.schema([pa.field("broker_id", pa.string(), nullable=False)])


@dataclass(frozen=True, slots=True)
class PrunedSegment:
    """The rows that a pruned segment had. `low` and `high` as in the index."""

    path: Path
    first_row: int
    rows: int
    """Of the lane, up to and including the last of the segment."""
    low: int
    high: int
    pruned_us: int
    """When it was pruned, microseconds since the epoch."""

    def ids(self, end_row: int | None = None) -> pa.Array:
        """The ids that other rows may have too, of all rows or of those before row `end_row` of the lane.

        If the segment has rows on both sides, and not all ids are kept, also those of later rows. Raises
        `LandingDamaged` and `OSError`.
        """
        if end_row is not None and end_row <= self.first_row:
            return pa.array([], pa.string())
        raw = self.path.read_bytes()
        content = raw[ENTRY_BYTES:]
        # By the header that is there now: another process may have pruned it again meanwhile, and kept fewer of them.
        if zlib.crc32(content) != _header(self.path, raw)[0]:
            raise LandingDamaged(str(self.path), "its ids have a wrong CRC", DAMAGE_REMEDY)
        found = pa.ipc.open_file(io.BytesIO(content)).read_all().column("broker_id").combine_chunks()
        if end_row is None or len(found) < self.rows - self.first_row:
            # To which rows they belong is known only if all are kept.
            return found
        return found[: end_row - self.first_row]


def write_pruned(folder: Path, first_row: int, rows: int, ids: Sequence[str], now_us: int) -> None:
    """Keep the ids of a segment that is about to be removed, except those of a single delivery; if that fails, nothing
    of them stays.

    Raises `OSError`, and `LandingError` if the disk has no room for them.
    """
    kept = [each for each in ids if may_have_copies(each)]
    times = [time_of_id(each) for each in kept]
    low, high = (min(times), max(times)) if times else (NO_LOW, NO_HIGH)
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(sink, _COLUMN, options=options) as writer:
        writer.write_batch(pa.record_batch([pa.array(kept, pa.string())], schema=_COLUMN))
    content = sink.getvalue()
    header = _HEADER.pack(_MAGIC, FORMAT, zlib.crc32(content), first_row, rows, low, high, now_us)
    path = Segment(folder, first_row).ids_path
    try:
        write_whole(path, sealed(header) + content)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            what = f"{error.strerror}; the rows stay, as they go after their ids are kept, which need room"
            raise LandingError(str(path), what, "free some of the disk, and have --quota below what it holds") from None
        raise


def read_pruned(folder: Path, first_row: int) -> PrunedSegment:
    """Raises `LandingDamaged`, `LandingVersionUnknown` and `OSError`."""
    path = Segment(folder, first_row).ids_path
    with path.open("rb") as file:
        raw = file.read(ENTRY_BYTES)
    _, first, rows, low, high, pruned_us = _header(path, raw)
    if first != first_row:
        raise LandingDamaged(str(path), "its name is not that of its first row", DAMAGE_REMEDY)
    return PrunedSegment(path, first, rows, low, high, pruned_us)


def _header(path: Path, raw: bytes) -> tuple[int, ...]:
    return unseal_header(path, raw[:ENTRY_BYTES], _HEADER, _MAGIC, "no ids of a pruned segment")
