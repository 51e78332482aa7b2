"""What is left of a lane whose folder was removed: that it existed, and how many rows it had.

A reader has its own offset, and could not tell a lane of which it never read a row from one that never existed. So each
queue has a file, `removed.lanes`, with a line for each lane that is gone, which only grows: some 110 bytes for each
life of a flow handle that landed something. Besides its rows, a reader keeps how many bytes of that file it knows.

A lane is set aside first, then noted here, then removed. A process that dies in between leaves it set aside, for the
next one that prunes. So a noted lane no longer exists, and one that is gone is noted, now or later.
"""

import fcntl
import os
from pathlib import Path
from typing import NamedTuple

from lbg_runtime.model.errors import LandingDamaged
from lbg_runtime.pipeline.files import opened, sync_folder
from lbg_runtime.pipeline.landing.index import DAMAGE_REMEDY
from lbg_runtime.pipeline.landing.layout import REMOVED_NOTES, queue_folder
from lbg_runtime.pipeline.landing.sealed import seal, unseal

_LONGEST_LINE = 1 << 12
"""Bytes; the name of a folder has 255 at most."""


class RemovedLane(NamedTuple):
    lane: str
    """`queue=003/lane=...`"""
    rows: int
    """All that ever landed in it."""


def note_removed(root: Path, lane: str, rows: int) -> None:
    """Note that a lane is gone; durable on return, and recorded once, however often noted. Any process may do this.

    Raises `OSError`, and `LandingDamaged` as `read_removed`.
    """
    folder = root / lane.rpartition("/")[0]
    path = folder / REMOVED_NOTES
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        end = _whole_lines(file)
        # Cut half a line that a process wrote before it died.
        os.ftruncate(file, end)
        content = os.pread(file, end, 0)
        lines, lanes = content.splitlines(keepends=True), [each.lane for each in _lines(path, content)]
        place = lanes.index(lane) if lane in lanes else len(lines)
        line = seal({"lane": lane, "rows": rows}) if lane not in lanes else lines[place]
        # Even if it was there: its writer may have died before it was on the disk. And if the disk had refused to sync
        # it, the system takes it for written, so that a sync alone would succeed without it.
        _write(file, line, sum(map(len, lines[:place])))
        os.fsync(file)
    finally:
        os.close(file)
    sync_folder(folder)


def removed_end(root: Path, queue: int) -> int:
    """How many bytes of notes a queue has; 0 if no lane of it was ever removed. Raises `OSError`."""
    path = f"{root}/{queue_folder(queue)}/{REMOVED_NOTES}"
    try:
        with opened(path) as file:
            return _whole_lines(file)
    except (FileNotFoundError, NotADirectoryError):
        return 0


def read_removed(root: Path, queue: int, start: int, end: int) -> list[RemovedLane]:
    """The lanes that were noted between two places returned by `removed_end`, in order.

    Raises `OSError`, and `LandingDamaged` if the notes are not as they were written, or some are lost.
    """
    if start == end:
        return []
    path = root / queue_folder(queue) / REMOVED_NOTES
    if start > end:
        raise LandingDamaged(
            str(path), f"it has lost lines: {start} bytes of it were read, it has {end}", DAMAGE_REMEDY
        )
    with opened(path) as file:
        # With the end of the line before, as `removed_end` never returns a place within a line.
        before = os.pread(file, 1, start - 1) if start else b"\n"
        content = os.pread(file, end - start, start)
    if before != b"\n":
        raise LandingDamaged(str(path), f"no line begins at byte {start}, up to which it was read", DAMAGE_REMEDY)
    return _lines(path, content)


def _write(file: int, content: bytes, begin: int) -> None:
    rest = memoryview(content)
    while rest:
        done = os.pwrite(file, rest, begin)
        rest, begin = rest[done:], begin + done


def _lines(path: Path, content: bytes) -> list[RemovedLane]:
    try:
        found = [unseal(line) for line in content.splitlines()]
        return [RemovedLane(str(each["lane"]), int(str(each["rows"]))) for each in found]
    except (KeyError, ValueError):
        raise LandingDamaged(str(path), "not as it was written", DAMAGE_REMEDY) from None


def _whole_lines(file: int) -> int:
    """Bytes up to the end of the last complete line."""
    size = os.fstat(file).st_size
    first = max(0, size - _LONGEST_LINE)
    return first + os.pread(file, size - first, first).rfind(b"\n") + 1
