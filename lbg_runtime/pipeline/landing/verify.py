"""Walks through a landing log and reports what is wrong: checks every CRC, every id, every row against its lane."""

import os
from array import array
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from lbg_runtime.model.errors import LandingError, LandingRowsPruned
from lbg_runtime.pipeline.landing.index import ENTRY_BYTES, FlushEntry, read_header
from lbg_runtime.pipeline.landing.lane_view import LaneView, check_cut, check_unindexed, unindexed
from lbg_runtime.pipeline.landing.layout import (
    REMOVED_NOTES,
    foreign_files,
    lane_names,
    parts_of,
    queue_folder,
)
from lbg_runtime.pipeline.landing.log import LandingLog
from lbg_runtime.pipeline.landing.pruned_ids import read_pruned
from lbg_runtime.pipeline.landing.removed import read_removed, removed_end
from lbg_runtime.pipeline.landing.schema import may_have_copies
from lbg_runtime.pipeline.landing.segment import DATA_SUFFIX, IDS_SUFFIX, INDEX_SUFFIX, Segment


class Grade(Enum):
    """How bad it is."""

    DAMAGE = "damage"
    """Rows are lost or cannot be trusted; reading the queue ends there."""
    NOTE = "note"
    """Can happen: no acknowledged row is lost or changed by it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One deviation from what was written."""

    grade: Grade
    path: str
    what: str


@dataclass(slots=True)
class Walked:
    lanes: int = 0
    segments: int = 0
    rows: int = 0
    bytes: int = 0
    on_bytes: Callable[[int], None] = lambda _: None
    """Called with the size of each segment after it was looked at."""


def verify(log: LandingLog, walked: Walked) -> Iterator[Finding]:
    """Everything that is wrong, lane by lane; `walked` grows meanwhile.

    Members may write meanwhile: what is there when its lane is reached is checked. What cannot be read is damage too.
    Raises `OSError` if the folder of the log cannot be listed.
    """
    for path in foreign_files(log.path):
        yield Finding(Grade.NOTE, str(path), "no part of a landing log")
    for queue in log.queues():
        folder = log.path / queue_folder(queue)
        try:
            end = removed_end(log.path, queue)
            read_removed(log.path, queue, 0, end)
            yield from _torn_line(folder / REMOVED_NOTES, end)
        except (LandingError, OSError) as error:
            yield _damage(error, folder / REMOVED_NOTES)
        try:
            names = lane_names(log.path, queue)
        except OSError as error:
            yield _damage(error, folder)
            continue
        for name in names:
            try:
                yield from _Lane(log.view(name), queue, walked).findings()
            except (LandingRowsPruned, FileNotFoundError):
                # Gone since it was listed.
                pass
            except (LandingError, OSError) as error:
                yield _damage(error, log.path / name)


class _Lane:
    """One lane with all of its files, as they were listed when the walk reached it."""

    def __init__(self, view: LaneView, queue: int, walked: Walked) -> None:
        """`queue` is the one in whose folder it lies."""
        self._view = view
        self._queue = queue
        self._walked = walked
        self._folder = view.folder
        self._parts = parts_of(view.folder)
        self._hashes = array("q")
        """Of the ids that were read: the ids themselves need not fit into memory."""

    def findings(self) -> Iterator[Finding]:
        self._walked.lanes += 1
        is_damaged = False
        for finding in self._files():
            is_damaged |= finding.grade is Grade.DAMAGE
            yield finding
        if not self._view.is_in_place:
            is_damaged = True
            yield Finding(Grade.DAMAGE, str(self._folder), f"its note is of {self._view.note.name}")
        if is_damaged:
            return
        twice = self._twice()
        if twice is not None:
            # The rows do not show which of the two it is.
            what = f"id {twice} is in it twice: the broker had the message twice, or the lane was written wrongly"
            yield Finding(Grade.NOTE, str(self._folder), what)

    def _files(self) -> Iterator[Finding]:
        expected = yield from self._pruned()
        for number, first in enumerate(self._parts[INDEX_SUFFIX]):
            segment = Segment(self._folder, first)
            try:
                last = segment.last_entry()
                if last is None and not _has_header(segment):
                    what = "an index without a header: its writer died early"
                    yield Finding(Grade.NOTE, str(segment.index_path), what)
                    # Thus nothing follows it.
                    expected = first
                    continue
                if expected not in (None, first) and (number or not self._is_pruned_since()):
                    yield Finding(Grade.DAMAGE, str(segment.index_path), f"begins with row {first}, not {expected}")
                if first and not (number or self._parts[IDS_SUFFIX] or self._is_pruned_since()):
                    # When that was, nothing says any more.
                    what = f"begins with row {first}, and no ids are left of those before: pruned long ago, or lost"
                    yield Finding(Grade.NOTE, str(segment.index_path), what)
                expected = first if last is None else last.rows
                yield from self._segment(segment, expected)
                check_cut(self._folder, segment, last)
                yield from _torn_ends(segment, last)
            except FileNotFoundError as error:
                if os.path.lexists(segment.index_path):
                    yield Finding(Grade.DAMAGE, str(error.filename), "it is missing")
                else:
                    # Pruned meanwhile: the next one follows what nobody has looked at.
                    expected = None
            except (LandingError, OSError) as error:
                # The segments after it are checked all the same.
                yield _damage(error, segment.index_path)
        for first in unindexed(self._parts):
            path = Segment(self._folder, first).data_path
            try:
                check_unindexed(self._folder, first)
            except (LandingError, OSError) as error:
                yield _damage(error, path)
            else:
                yield Finding(Grade.NOTE, str(path), "a segment without an index: its writer died when it began it")

    def _is_pruned_since(self) -> bool:
        """Whether segments have been pruned since the parts of the lane were listed, or while they were."""
        return parts_of(self._folder)[IDS_SUFFIX] != self._parts[IDS_SUFFIX]

    def _pruned(self) -> Generator[Finding, None, int | None]:
        """Check what is left of pruned segments; return the row after the last of them, None if that is not known."""
        rows: int | None = None
        for first in self._parts[IDS_SUFFIX]:
            try:
                pruned = read_pruned(self._folder, first)
                ids = pruned.ids().to_pylist()
                if first in self._parts[INDEX_SUFFIX]:
                    # The process that pruned it died before removing its rows, which count.
                    continue
                self._hashes.extend(hash(each) for each in ids)
                rows = pruned.rows
            except FileNotFoundError as error:
                # Gone since it was listed.
                if os.path.islink(error.filename):
                    yield Finding(Grade.DAMAGE, error.filename, "it is a link that leads nowhere")
            except (LandingError, OSError) as error:
                yield _damage(error, Segment(self._folder, first).ids_path)
                rows = None
        return rows

    def _segment(self, segment: Segment, rows: int) -> Iterator[Finding]:
        self._walked.segments += 1
        size = segment.data_path.stat().st_size
        self._walked.bytes += size
        try:
            for batch in segment.read(segment.first_row, rows):
                self._walked.rows += batch.num_rows
                self._hashes.extend(hash(each) for each in batch.column("broker_id").to_pylist())
                if pc.any(pc.not_equal(batch.column("queue"), self._queue)).as_py():
                    what = f"holds rows of another queue than {self._queue}"
                    yield Finding(Grade.DAMAGE, str(segment.data_path), what)
        finally:
            self._walked.on_bytes(size)

    def _twice(self) -> str | None:
        """An id that is in the lane twice. Hashes, which fit into memory, are compared first."""
        ordered = np.sort(np.frombuffer(self._hashes, np.int64)) if self._hashes else np.zeros(0, np.int64)
        suspects = set(ordered[1:][ordered[1:] == ordered[:-1]].tolist())
        if not suspects:
            return None
        seen: set[str] = set()
        row_id: str
        indexed = self._parts[INDEX_SUFFIX]
        pruned = (each for part in self._view.pruned(0, 1 << 62) for each in part.ids().to_pylist())
        batches = self._view.read(indexed[0] if indexed else 0, self._view.extent().rows)
        landed = (each for batch in batches for each in batch.column("broker_id").to_pylist())
        for row_id in chain(pruned, landed):
            if hash(row_id) in suspects and may_have_copies(row_id):
                if row_id in seen:
                    return row_id
                seen.add(row_id)
        return None


def _torn_line(path: Path, end: int) -> Iterator[Finding]:
    rest = path.stat().st_size - end if path.exists() else 0
    if rest > 0:
        yield Finding(Grade.NOTE, str(path), f"a torn line of {rest} bytes at its end")


def _has_header(segment: Segment) -> bool:
    header = segment.index_path.read_bytes()[:ENTRY_BYTES]
    return len(header) == ENTRY_BYTES and any(header)


def _torn_ends(segment: Segment, last: FlushEntry | None) -> Iterator[Finding]:
    rest = segment.index_path.stat().st_size % ENTRY_BYTES
    if rest:
        yield Finding(Grade.NOTE, str(segment.index_path), f"a torn entry of {rest} bytes at its end")
    begin = read_header(segment.index_path).data_start if last is None else last.data_bytes
    beyond = segment.data_path.stat().st_size - begin
    if beyond > 0:
        yield Finding(Grade.NOTE, str(segment.data_path), f"{beyond} bytes of a flush that was not completed")


def _damage(error: LandingError | OSError, path: Path) -> Finding:
    """`path` is where it was met; an error that names a file overrides it."""
    if isinstance(error, LandingError):
        return Finding(Grade.DAMAGE, error.path, error.what)
    return Finding(Grade.DAMAGE, str(error.filename or path), f"cannot be read: {error.strerror or error}")


def folder_bytes(root: Path) -> int:
    """Total bytes of all data files, for the progress; what cannot be looked at is not counted."""
    total = 0
    for path in root.glob(f"queue=*/lane=*/*{DATA_SUFFIX}"):
        with suppress(OSError):
            total += path.stat().st_size
    return total
