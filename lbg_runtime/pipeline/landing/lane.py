"""Writes one lane: the rows that one flow handle of one member has landed, in the order in which they landed.

Readers are promised two things, and `log.py` relies on both: no delivery is in a lane twice (the caller that hands rows
over is responsible for this), and a lane is begun only when its flow handle was given a first message. After an error a
lane is not continued: it is unknown how much of the last flush is on the disk, so rows could be there twice. A new lane
is begun.
"""

import fcntl
import os
import shutil
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import structlog

from lbg_runtime.model.errors import InvariantViolated, LandingDamaged, LandingError, LandingWriteFailed, UserError
from lbg_runtime.pipeline.files import sync_folder
from lbg_runtime.pipeline.landing.index import ENTRY_BYTES
from lbg_runtime.pipeline.landing.layout import (
    LANE_NOTE,
    GroupNote,
    LaneNote,
    find_lane_note,
    lane_names,
    queue_folder,
    read_group_note,
    write_note,
)
from lbg_runtime.pipeline.landing.segment import Segment, SegmentWriter, check_in_place

_log = structlog.get_logger(__name__)

SEGMENT_BYTES = 64 << 20
"""A flush that brings a segment to this size is its last; the next goes into a new segment."""

GONE_PREFIX = ".gone-"

_UNKNOWN_STEP = 1 << 20
"""From the highest order that can be read to that of a new lane, if there are notes that cannot be read."""


class LaneWriter:
    """One lane, written from one thread at a time. Its creator closes it."""

    def __init__(
        self,
        root: Path,
        queue: int,
        member: str,
        epoch: int,
        *,
        clock_us: Callable[[], int],
        is_synced: bool = True,
        segment_bytes: int = SEGMENT_BYTES,
        claimed: GroupNote | None = None,
        handle: str = "",
    ) -> None:
        """Begin the lane; if that fails, nothing of it stays. `claimed` is the log that it is for, as returned by
        `claim_folder`; None takes the one that is there. `handle` is as in `LaneNote`.

        Raises `LandingWriteFailed`, also if there is no such log, and `LandingVersionUnknown`.
        """
        self._is_synced = is_synced
        self._segment_bytes = segment_bytes
        self._segment: SegmentWriter | None = None
        self._lock: int | None = None
        self.rows = 0
        """Rows that are durable."""
        self.bytes = 0
        """Bytes written to its segments so far."""
        folder = root / queue_folder(queue)
        # Before anything is created: nobody would look for rows in the place of a log that was moved or unmounted.
        _check_log(root, claimed)
        try:
            folder.mkdir(exist_ok=True)
            began_us = clock_us()
            # Read after the first message came, so that these include every lane of which something was acknowledged
            # before it came.
            order = _next_order(root, queue, began_us)
            note = LaneNote(queue, member, epoch, order, began_us, socket.gethostname(), handle)
            self._folder = root / note.name
            self._make_folder(note)
        except OSError as error:
            raise LandingWriteFailed(str(folder), error.strerror or str(error)) from error

    @property
    def name(self) -> str:
        """`queue=003/lane=...`, as in `LandingLog.lanes`."""
        return f"{self._folder.parent.name}/{self._folder.name}"

    def append(self, batch: pa.RecordBatch) -> None:
        """Flush rows; on return they are durable, in the lane's place.

        Raises `LandingWriteFailed`, also if the lane was moved or removed; the lane is then closed, and removed if
        nothing has landed in it.
        """
        if self._lock is None:
            raise InvariantViolated(f"{self._folder} was written after its end")
        try:
            # Without the lock in its place, another process takes the lane for one that nobody writes.
            check_in_place(self._lock, self._folder / LANE_NOTE)
            if self._segment is None or self._segment.bytes >= self._segment_bytes:
                if self._segment is not None:
                    self._segment.close()
                self._segment = SegmentWriter(self._folder, self.rows, is_synced=self._is_synced)
            before = self._segment.bytes
            self._segment.append(batch)
            self.rows = self._segment.rows
            self.bytes += self._segment.bytes - before
        except BaseException:
            # A disk that refuses is tried again every few seconds, with a new lane each time.
            if not self._may_have_rows():
                _discard(self._folder)
            self.close()
            raise

    def close(self) -> None:
        """Write nothing more. Idempotent; raises nothing."""
        if self._segment is not None:
            self._segment.close()
        lock, self._lock = self._lock, None
        if lock is not None:
            with suppress(OSError):
                os.close(lock)

    def _make_folder(self, note: LaneNote) -> None:
        """Make it appear, with its note in it, and take its lock. Raises `OSError`, after removing it again."""
        queue = self._folder.parent
        made = queue / f".{self._folder.name}"
        made.mkdir()
        try:
            write_note(made / LANE_NOTE, note)
            self._lock = _lock(made / LANE_NOTE)
            # Fails if there is such a lane with anything in it.
            made.rename(self._folder)
            made = self._folder
            sync_folder(queue)
            sync_folder(queue.parent)
        except BaseException:
            _discard(made)
            self.close()
            raise

    def _may_have_rows(self) -> bool:
        """Whether any of its rows was acknowledged, or may have been seen by a reader."""
        if self.rows:
            return True
        try:
            # A flush that failed after its entry was written is visible to readers, though nobody acknowledges it.
            return Segment(self._folder, 0).index_path.stat().st_size >= 2 * ENTRY_BYTES
        except FileNotFoundError:
            return False
        except OSError:
            return True


def is_being_written(folder: Path) -> bool:
    """Whether the writer of a lane lives, and has not closed it. Raises `OSError`."""
    file = os.open(folder / LANE_NOTE, os.O_RDONLY)
    try:
        # Shared: others who look at the same moment must not be taken for the writer.
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def remove_lane(folder: Path) -> None:
    """Remove a lane and everything in it. Raises `OSError`."""
    shutil.rmtree(set_aside(folder))


def set_aside(folder: Path) -> Path:
    """Make a lane cease to be one, durably, and return where it lies now. Raises `OSError`."""
    gone = folder.with_name(f"{GONE_PREFIX}{folder.name}")
    folder.rename(gone)
    # Before anything in it is removed: under its name, a lane without its note is a damaged one.
    sync_folder(folder.parent)
    return gone


def _discard(folder: Path) -> None:
    """Remove a lane in which nothing has landed, or its draft; what the disk does not release is left to pruning."""
    with suppress(OSError):
        remove_lane(folder)


def _check_log(root: Path, claimed: GroupNote | None) -> None:
    """Raises `LandingWriteFailed` if this log is not there."""
    try:
        found = read_group_note(root)
    except UserError as error:
        raise LandingWriteFailed(error.where, error.found) from error
    except LandingError as error:
        raise LandingWriteFailed(error.path, error.what) from error
    if claimed is not None and (found, found.id) != (claimed, claimed.id):
        raise LandingWriteFailed(str(root), f"it is another log, of group {found.group}")


def _next_order(root: Path, queue: int, began_us: int) -> int:
    """An order above that of every existing lane. Raises `OSError` and `LandingVersionUnknown`.

    Lanes that are missing, or whose notes cannot be read, may be put back, and were begun before. So no order is below
    the time, and if there are such notes it is far above the others.
    """
    highest, step = 0, 1
    for name in lane_names(root, queue):
        try:
            note = find_lane_note(root / name)
        except (LandingDamaged, OSError) as error:
            # Landing goes on: readers are stopped by it, and told.
            _log.warning("lane_note_unreadable", lane=name, reason=str(error))
            step = _UNKNOWN_STEP
        else:
            # None: pruned meanwhile.
            highest = max(highest, 0 if note is None else note.order)
    return max(highest + step, began_us)


def _lock(path: Path) -> int:
    """Take the lock, which ends with its process, however that ends."""
    file = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        # On a file system without locks this is tried again every few seconds.
        os.close(file)
        raise
    return file
