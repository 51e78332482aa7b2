"""What SQLite's write-ahead log contains after the part that SQLite reads."""

import struct
from pathlib import Path

_HEADER = struct.Struct(">8I")
"""The magic number, version, page size and count of runs of a log, two salts, and the checksum of all this."""
_SUMMED_BYTES = 24
_MAGIC = 0x377F0682
"""Without its last bit, which says in which order checksums take the bytes of a word."""
_FRAME_HEADER = struct.Struct(">IIII")
"""A frame's page, the size of the database in pages after a commit (0 in other frames), and two salts."""
_FRAME_HEADER_BYTES = 24


def commits_beyond(log: Path, frames: int, page_bytes: int) -> int:
    """How many commits the log has after `frames` frames, of the run of the log that its header begins.

    SQLite restarts a log at its beginning, with other salts, so the rest of an older run does not count. The header
    reaches the disk before the first frame: a death between the two leaves a new header before the whole of the older
    run. A header that is not what was written begins nothing for SQLite, and says nothing of what was lost behind it:
    every commit counts then. It is never torn, as it is smaller than what a disk writes at once.
    """
    if not log.exists():
        return 0
    frame_bytes = _FRAME_HEADER_BYTES + page_bytes
    count = 0
    with log.open("rb") as file:
        wanted = _salts_of(file.read(_HEADER.size))
        for number in range(frames, (log.stat().st_size - _HEADER.size) // frame_bytes):
            file.seek(_HEADER.size + number * frame_bytes)
            _, pages, *salts = _FRAME_HEADER.unpack(file.read(_FRAME_HEADER.size))
            if pages and wanted in (None, tuple(salts)):
                count += 1
    return count


def _salts_of(header: bytes) -> tuple[int, int] | None:
    """The salts of the run that a header begins; None if it is damaged, or not there yet."""
    if len(header) < _HEADER.size:
        return None
    magic, *_, salt_1, salt_2, sum_1, sum_2 = _HEADER.unpack(header)
    # Zeros have a checksum of zero, so it alone does not tell.
    is_whole = magic & ~1 == _MAGIC and (sum_1, sum_2) == _checksum(header[:_SUMMED_BYTES], ">" if magic & 1 else "<")
    return (salt_1, salt_2) if is_whole else None


def _checksum(data: bytes, order: str) -> tuple[int, int]:
    """As SQLite's file format has it."""
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    first = second = 0
    for one, other in zip(words[::2], words[1::2], strict=True):
        first = (first + one + second) & 0xFFFF_FFFF
        second = (second + other + first) & 0xFFFF_FFFF
    return first, second
