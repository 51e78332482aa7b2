"""What SQLite's write-ahead log contains after the part that SQLite reads."""

import struct
from pathlib import Path

_HEADER_BYTES = 32
_FRAME_HEADER = struct.Struct(">IIII")
"""A frame's page, the size of the database in pages after a commit (0 in other frames), and two salts."""
_FRAME_HEADER_BYTES = 24


def commits_beyond(log: Path, frames: int) -> int:
    """How many commits the log has after `frames` frames, of the same run of the log as its first frame.

    SQLite restarts a log at its beginning, with other salts, so the rest of an older run does not count.
    """
    if not log.exists():
        return 0
    size = log.stat().st_size
    count = 0
    first_salts: tuple[int, int] | None = None
    with log.open("rb") as file:
        page_bytes = int.from_bytes(file.read(_HEADER_BYTES)[8:12], "big")
        if page_bytes < 512:
            return 0
        for number in range((size - _HEADER_BYTES) // (_FRAME_HEADER_BYTES + page_bytes)):
            file.seek(_HEADER_BYTES + number * (_FRAME_HEADER_BYTES + page_bytes))
            _, pages, *salts = _FRAME_HEADER.unpack(file.read(_FRAME_HEADER.size))
            if first_salts is None:
                first_salts = (salts[0], salts[1])
            elif number >= frames and pages and (salts[0], salts[1]) == first_salts:
                count += 1
    return count
