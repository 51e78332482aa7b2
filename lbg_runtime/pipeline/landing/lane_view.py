"""Reads one lane: how far it goes, its rows, and which of its flushes may hold ids of a range."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from lbg_runtime.model.errors import LandingDamaged, LandingRowsPruned
from lbg_runtime.pipeline.landing.index import DAMAGE_REMEDY, NO_HIGH, NO_LOW, read_entries, read_last_entry
from lbg_runtime.pipeline.landing.layout import IDS_SUFFIX, LaneNote, parts_of
from lbg_runtime.pipeline.landing.pruned_ids import PrunedSegment, read_pruned
from lbg_runtime.pipeline.landing.segment import INDEX_SUFFIX, Segment


@dataclass(frozen=True, slots=True)
class LaneExtent:
    """The rows of a lane: those from `first_row` to before `rows` can be read."""

    first_row: int
    """The first that is not pruned; `rows` where all are."""
    rows: int
    """All that ever landed, so the offset behind the last."""


class Flush(NamedTuple):
    """Rows that landed together. `low` and `high` tell the ids that may have copies, as in the index.

    A tuple, as planning and merging make one for each flush that they look at.
    """

    first_row: int
    rows: int
    """Of the lane, up to and with the last of these."""
    bytes: int
    """These alone."""
    low: int
    high: int
    t_land: int


class LaneView:
    """One lane, as it is whenever it is asked; what can change no more is remembered. For one thread at a time."""

    def __init__(self, root: Path, name: str, note: LaneNote) -> None:
        self.name = name
        self.note = note
        self.folder = root / name
        self._full: dict[int, tuple[int, int, int]] = {}
        """By first row: rows, low and high of segments that are followed by another."""
        self._pruned: dict[int, PrunedSegment] = {}
        self._seen = LaneExtent(0, 0)
        """How far it went when that was last looked at."""

    @property
    def place(self) -> tuple[int, str]:
        """Its place among the lanes of its queue."""
        return self.note.order, self.name

    def extent(self) -> LaneExtent:
        """How far it goes now. Raises `LandingDamaged`, and `FileNotFoundError` where it is gone."""
        while True:
            parts = parts_of(self.folder)
            segments = parts[INDEX_SUFFIX]
            if not segments:
                # Nothing has landed, or all is pruned.
                rows = max((self._pruned_segment(first).rows for first in parts[IDS_SUFFIX]), default=0)
                return LaneExtent(rows, rows)
            try:
                last = read_last_entry(Segment(self.folder, segments[-1]).index_path)
            except FileNotFoundError:
                # Pruned between the two looks.
                continue
            self._seen = LaneExtent(segments[0], segments[-1] if last is None else last.rows)
            return self._seen

    def read(self, start_row: int, end_row: int) -> Iterator[pa.RecordBatch]:
        """The rows from one to before another, in order. Raises as `LandingLog.read`."""
        if start_row < end_row:
            self.check(start_row, end_row)
            yield from self.read_checked(start_row, end_row)

    def read_checked(self, start_row: int, end_row: int) -> Iterator[pa.RecordBatch]:
        """`read`, by whoever has just called `check`; what went since is told as `check` does."""
        row = start_row
        while row < end_row:
            segment = self._segment_of(row)
            before = row
            try:
                for batch in segment.read(row, end_row):
                    row += batch.num_rows
                    yield batch
            except FileNotFoundError:
                # Pruned meanwhile, or taken away by somebody else.
                self.check(row, end_row)
                raise self._missing(row) from None
            if row == before:
                raise self._missing(row)

    def had(self, start_row: int, end_row: int) -> bool:
        """Whether these rows were there when `extent` last looked; enough to plan with, as who reads looks again."""
        return self._seen.first_row <= start_row and end_row <= self._seen.rows

    def check(self, start_row: int, end_row: int) -> None:
        """Raises `LandingRowsPruned` or `LandingDamaged` where these rows are not all there."""
        try:
            extent = self.extent()
        except FileNotFoundError:
            raise LandingRowsPruned(str(self.folder), self.name, start_row, end_row) from None
        if start_row < extent.first_row:
            raise LandingRowsPruned(str(self.folder), self.name, start_row, extent.first_row)
        if end_row > extent.rows:
            what = f"row {end_row - 1} is asked for, and it ends with row {extent.rows - 1}"
            raise LandingDamaged(
                str(self.folder), what, "it has lost rows, or the offsets are of another log: begin anew from its rows"
            )

    def flushes(self, start_row: int, end_row: int, low: int, high: int) -> Iterator[Flush]:
        """Those with rows in this range that may hold ids of that range, in order; not those of pruned segments."""
        for first, following in self._segments():
            if first >= end_row or (following is not None and following <= start_row):
                continue
            rows, segment_low, segment_high = self._segment_range(first, is_full=following is not None)
            if rows > start_row and segment_low <= high and segment_high >= low:
                yield from (
                    each
                    # All of them: a damaged range must not hide what it has.
                    for each in self._flushes_of(first, 0, end_row)
                    if each.rows > start_row and each.first_row < end_row and each.low <= high and each.high >= low
                )

    def all_flushes(self, start_row: int, end_row: int) -> Iterator[Flush]:
        """Those with rows in this range, in order."""
        for first, following in self._segments():
            if first < end_row and (following is None or following > start_row):
                yield from (
                    each
                    for each in self._flushes_of(first, start_row, end_row)
                    if each.rows > start_row and each.first_row < end_row
                )

    def pruned(self, low: int, high: int) -> Iterator[PrunedSegment]:
        """Pruned segments that may have had ids of this range."""
        for first in parts_of(self.folder)[IDS_SUFFIX]:
            pruned = self._pruned_segment(first)
            if pruned.low <= high and pruned.high >= low:
                yield pruned

    def _segments(self) -> Iterator[tuple[int, int | None]]:
        """First row of each, and of the one that follows it."""
        segments = parts_of(self.folder)[INDEX_SUFFIX]
        for number, first in enumerate(segments, 1):
            yield first, segments[number] if number < len(segments) else None

    def _flushes_of(self, first: int, start_row: int, end_row: int) -> list[Flush]:
        entries = read_entries(Segment(self.folder, first).index_path, start_row, end_row)
        table = entries.table
        rows, ends = [entries.first_row, *table["rows"].tolist()], [entries.first_byte, *table["data_bytes"].tolist()]
        ranges = zip(table["low"].tolist(), table["high"].tolist(), table["t_land"].tolist(), strict=True)
        return [
            Flush(rows[number], rows[number + 1], ends[number + 1] - ends[number], low, high, t_land)
            for number, (low, high, t_land) in enumerate(ranges)
        ]

    def _segment_of(self, row: int) -> Segment:
        segments = parts_of(self.folder)[INDEX_SUFFIX]
        first = max((each for each in segments if each <= row), default=None)
        if first is None:
            raise LandingRowsPruned(str(self.folder), self.name, row, min(segments, default=row + 1))
        return Segment(self.folder, first)

    def _segment_range(self, first: int, *, is_full: bool) -> tuple[int, int, int]:
        known = self._full.get(first)
        if known is not None:
            return known
        last = read_last_entry(Segment(self.folder, first).index_path)
        found = (first, NO_LOW, NO_HIGH) if last is None else (last.rows, last.segment_low, last.segment_high)
        if is_full:
            self._full[first] = found
        return found

    def _pruned_segment(self, first: int) -> PrunedSegment:
        if first not in self._pruned:
            self._pruned[first] = read_pruned(self.folder, first)
        return self._pruned[first]

    def _missing(self, row: int) -> LandingDamaged:
        return LandingDamaged(str(self.folder), f"the segment of row {row} is missing", DAMAGE_REMEDY)
