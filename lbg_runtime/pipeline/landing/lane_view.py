"""Reads one lane: how far it goes, its rows, and which of its flushes may hold ids of a range."""

import os
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from lbg_runtime.model.errors import LandingDamaged, LandingRowsPruned
from lbg_runtime.pipeline.landing.index import DAMAGE_REMEDY, NO_HIGH, NO_LOW, Entries, FlushEntry, IndexRead
from lbg_runtime.pipeline.landing.lane import is_being_written
from lbg_runtime.pipeline.landing.layout import LaneNote, parts_among, parts_of
from lbg_runtime.pipeline.landing.pruned_ids import PrunedSegment, read_pruned
from lbg_runtime.pipeline.landing.segment import DATA_SUFFIX, IDS_SUFFIX, INDEX_SUFFIX, Segment

_KEPT_BYTES = 1 << 16
"""Largest index that is kept: a thousand flushes."""


@dataclass(frozen=True, slots=True)
class LaneExtent:
    """The rows of a lane: those from `first_row` up to, but not including, `rows` can be read."""

    first_row: int
    """The first that is not pruned; `rows` if all are."""
    rows: int
    """All that ever landed, thus the offset after the last."""


class Flush(NamedTuple):
    """Rows that landed together. `low` and `high` bound the ids that may have copies, as in the index.

    A tuple, as planning and merging create one for each flush that they look at.
    """

    first_row: int
    rows: int
    """Of the lane, up to and including the last of these."""
    bytes: int
    """Of these rows alone."""
    low: int
    high: int
    t_land: int


class LaneView:
    """One lane, in its state at each call; what can no longer change is remembered. For one thread at a time."""

    def __init__(self, root: Path, name: str, note: LaneNote) -> None:
        self.name = name
        self.note = note
        self.is_in_place = note.name == name
        """Whether the note is of a lane of this name."""
        # Not a `Path`: creating one takes as long as opening a file, and a task creates a view of each lane.
        self._folder = f"{root}/{name}"
        self._full: dict[int, tuple[int, int, int]] = {}
        """By first row: rows, low and high of segments that are followed by another."""
        self._pruned: dict[int, PrunedSegment] = {}
        self._seen = LaneExtent(0, 0)
        """How far it went when last looked at."""
        self._names: list[str] = []
        """The names in its folder at that time."""
        self._parts: Mapping[str, list[int]] = {INDEX_SUFFIX: [], IDS_SUFFIX: []}
        """And the parts that these are."""
        self._unindexed: Sequence[int] = ()
        """Among these, the first rows of data files without an index."""
        self._planned: tuple[int, IndexRead] | None = None
        """First row of the segment whose flushes were last requested, and its index if that is not large."""

    @property
    def folder(self) -> Path:
        """Where it lies."""
        return Path(self._folder)

    @property
    def place(self) -> tuple[int, str]:
        """Its place among the lanes of its queue."""
        return self.note.order, self.name

    def is_there(self) -> bool:
        """Whether its folder exists: a lane can be removed, long after it was pruned.

        Raises `OSError` if that cannot be told: a lane that is taken for gone has no copies to leave out.
        """
        try:
            os.stat(self._folder)
        except FileNotFoundError:
            return False
        return True

    def extent(self) -> LaneExtent:
        """How far it goes now.

        Raises `LandingDamaged`, also if it lies elsewhere than its note says, and `FileNotFoundError` if it is gone.
        """
        if not self.is_in_place:
            # A copy, or a lane that somebody meant to take away: its rows would come twice, or out of order.
            what = f"its note is of {self.note.name}"
            raise LandingDamaged(self._folder, what, "bring it back to that place, or take it out of the log")
        while True:
            names = os.listdir(self._folder)
            if names != self._names:
                self._names, self._parts = names, parts_among(names)
                self._unindexed = unindexed(self._parts)
            for first in self._unindexed:
                check_unindexed(self._folder, first)
            segments = self._parts[INDEX_SUFFIX]
            if not segments:
                # Nothing has landed, or all is pruned.
                try:
                    rows = max((self._pruned_segment(first).rows for first in self._parts[IDS_SUFFIX]), default=0)
                except FileNotFoundError as error:
                    refuse_link(error)
                    # Forgotten between the two looks.
                    continue
                self._seen = LaneExtent(rows, rows)
                return self._seen
            segment = Segment(self._folder, segments[-1])
            try:
                last = segment.last_entry()
                check_cut(self._folder, segment, last)
            except FileNotFoundError as error:
                refuse_link(error)
                # Pruned between the two looks.
                continue
            self._seen = LaneExtent(segments[0], segments[-1] if last is None else last.rows)
            return self._seen

    def first_left(self) -> int:
        """The first row that is not pruned; 0 if the lane is gone, as nothing is then known of it."""
        try:
            return self.extent().first_row
        except FileNotFoundError:
            return 0

    def read(self, start_row: int, end_row: int) -> Iterator[pa.RecordBatch]:
        """The rows from `start_row` up to, but not including, `end_row`, in order. Raises as `LandingLog.read`."""
        if start_row < end_row:
            self.check(start_row, end_row)
            yield from self.read_checked(start_row, end_row)

    def read_checked(self, start_row: int, end_row: int) -> Iterator[pa.RecordBatch]:
        """`read`, for callers that have just called `check`; what has gone since is reported as `check` does."""
        row = start_row
        while row < end_row:
            segment = self._segment_of(row)
            before = row
            try:
                for batch in segment.read(row, end_row):
                    row += batch.num_rows
                    yield batch
            except FileNotFoundError:
                # Pruned meanwhile, or removed by somebody else.
                self.check(row, end_row)
                raise self.missing(row) from None
            if row == before:
                raise self.missing(row)

    def had(self, start_row: int, end_row: int) -> bool:
        """Whether these rows were there when `extent` last looked; enough to plan with, as readers look again."""
        return self._seen.first_row <= start_row and end_row <= self._seen.rows

    def check(self, start_row: int, end_row: int) -> None:
        """Raises `LandingRowsPruned` or `LandingDamaged` if these rows are not all there."""
        try:
            extent = self.extent()
        except FileNotFoundError:
            if start_row == end_row:
                return
            raise LandingRowsPruned(self._folder, self.name, start_row, end_row) from None
        if start_row < extent.first_row:
            raise LandingRowsPruned(self._folder, self.name, start_row, extent.first_row)
        if end_row > extent.rows:
            what = f"row {end_row - 1} is asked for, and it ends with row {extent.rows - 1}"
            raise LandingDamaged(
                self._folder, what, "it has lost rows, or the offsets are of another log: begin anew from its rows"
            )

    def flushes(self, end_row: int, low: int, high: int) -> Iterator[Flush]:
        """Flushes with rows before `end_row` that may hold ids in this range, in order; none of pruned segments."""
        for first, following in followed(parts_of(self._folder)[INDEX_SUFFIX]):
            if first >= end_row:
                continue
            rows, segment_low, segment_high = self._segment_range(first, is_full=following is not None)
            if following is not None and rows != following:
                raise self.missing(rows)
            if segment_low <= high and segment_high >= low:
                yield from (
                    each
                    # All flushes: a damaged range must not hide what it has.
                    for each in _flushes(Segment(self._folder, first).index().between(0, end_row))
                    if each.first_row < end_row and each.low <= high and each.high >= low
                )

    def all_flushes(self, start_row: int, end_row: int) -> Iterator[Flush]:
        """Flushes with rows in this range, in order. Raises as `LandingLog.read`.

        What is known of the range is not checked again: enough to plan with, as readers check again.
        """
        if not self.had(start_row, end_row):
            self.extent()
        for first, following in followed(self._parts[INDEX_SUFFIX]):
            if first < end_row and (following is None or following > start_row):
                try:
                    index = self._index_of(first, end_row if following is None else following)
                except FileNotFoundError:
                    # Pruned since it was listed, or removed by somebody else.
                    self.check(max(first, start_row), end_row)
                    raise self.missing(first) from None
                yield from _flushes(index.between(start_row, end_row))

    def read_last_landed(self, end_row: int) -> Iterator[pa.RecordBatch]:
        """The rows before `end_row` that landed at the same time as the last of them, without those that are pruned.

        Several flushes may have landed together, if their payload is large. Raises as `LandingLog.read`.
        """
        t_land, row = None, end_row
        while row:
            # None if it is pruned.
            flush = next(self.all_flushes(row - 1, row), None)
            if flush is None or t_land not in (None, flush.t_land):
                return
            yield from self.read(flush.first_row, row)
            t_land, row = flush.t_land, flush.first_row

    def pruned(self, low: int, high: int) -> Iterator[PrunedSegment]:
        """Pruned segments that may have held ids of this range."""
        for first in parts_of(self._folder)[IDS_SUFFIX]:
            pruned = self._pruned_segment(first)
            if pruned.low <= high and pruned.high >= low:
                yield pruned

    def _index_of(self, first: int, end_row: int) -> IndexRead:
        """The index of a segment, at least up to this row, as far as there are rows."""
        if self._planned is not None and self._planned[0] == first and self._planned[1].rows >= end_row:
            return self._planned[1]
        index = Segment(self._folder, first).index()
        # A large index is read again rather than kept: there can be thousands of lanes.
        self._planned = (first, index) if index.bytes <= _KEPT_BYTES else None
        return index

    def _segment_of(self, row: int) -> Segment:
        segments = self._parts[INDEX_SUFFIX]
        number = bisect_right(segments, row)
        if not number:
            raise LandingRowsPruned(self._folder, self.name, row, segments[0] if segments else row + 1)
        return Segment(self._folder, segments[number - 1])

    def _segment_range(self, first: int, *, is_full: bool) -> tuple[int, int, int]:
        known = self._full.get(first)
        if known is not None:
            return known
        last = Segment(self._folder, first).last_entry()
        found = (first, NO_LOW, NO_HIGH) if last is None else (last.rows, last.segment_low, last.segment_high)
        if is_full:
            self._full[first] = found
        return found

    def _pruned_segment(self, first: int) -> PrunedSegment:
        if first not in self._pruned:
            self._pruned[first] = read_pruned(self.folder, first)
        return self._pruned[first]

    def missing(self, row: int) -> LandingDamaged:
        """The error for a row that no segment has, though later ones are there."""
        return LandingDamaged(self._folder, f"the segment of row {row} is missing", DAMAGE_REMEDY)


def refuse_link(error: FileNotFoundError) -> None:
    """Raises `LandingDamaged` if the file is a link that leads nowhere, which no further look will find gone."""
    if os.path.islink(error.filename):
        raise LandingDamaged(str(error.filename), "it is a link that leads nowhere", DAMAGE_REMEDY) from None


def unindexed(parts: Mapping[str, Sequence[int]]) -> Sequence[int]:
    """First rows of a lane's data files for which no index was seen, ascending."""
    return sorted(set(parts[DATA_SUFFIX]).difference(parts[INDEX_SUFFIX]))


def check_unindexed(folder: Path | str, first_row: int) -> None:
    """Raises `LandingDamaged` if a data file has rows but has lost its index.

    A process that dies may leave one without an index, but then without rows if it was writing, or with the ids next to
    it if it was pruning.
    """
    segment = Segment(folder, first_row)
    index, ids = segment.index_path, segment.ids_path
    # In this order: a writer writes rows after it has created the index. Pruning removes the index after the ids are
    # written, and the ids after the data is gone.
    if segment.has_rows() and not os.path.exists(index) and not os.path.exists(ids) and segment.has_rows():
        raise LandingDamaged(str(index), "it is missing, and its data file has rows", DAMAGE_REMEDY)


def check_cut(folder: Path | str, segment: Segment, last: FlushEntry | None) -> None:
    """Raises `LandingDamaged` if a segment has lost entries after the last one that was read, and `OSError`.

    A lane that is being written is never reported: what it does meanwhile is no damage, and what it lands after a cut
    does not fit what is left.
    """
    # Read again after the lock: by then all entries of a writer that has ended are there.
    if segment.is_cut(last) and not _is_live(Path(folder)) and segment.last_entry() == last:
        raise LandingDamaged(
            str(segment.index_path), "it has lost its end: more than one flush lies behind its entries", DAMAGE_REMEDY
        )


def _is_live(folder: Path) -> bool:
    try:
        return is_being_written(folder)
    except FileNotFoundError:
        # The note is lost: the writer of the lane is about to notice.
        return False


def _flushes(entries: Entries) -> list[Flush]:
    table = entries.table
    rows, ends = [entries.first_row, *table["rows"].tolist()], [entries.first_byte, *table["data_bytes"].tolist()]
    ranges = zip(table["low"].tolist(), table["high"].tolist(), table["t_land"].tolist(), strict=True)
    return [
        Flush(rows[number], rows[number + 1], ends[number + 1] - ends[number], low, high, t_land)
        for number, (low, high, t_land) in enumerate(ranges)
    ]


def followed(segments: Sequence[int]) -> Iterator[tuple[int, int | None]]:
    """The first row of each segment, and of the one that follows it."""
    yield from zip_longest(segments, segments[1:])
