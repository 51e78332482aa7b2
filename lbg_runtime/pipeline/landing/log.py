"""The reading side of a landing log: its extent, and the rows between two offsets.

Reading needs neither a lock nor any exchange with the writers: a reader sees what is durable so far.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pyarrow as pa

from lbg_runtime.model.errors import InvariantViolated, LandingRowsPruned
from lbg_runtime.pipeline.landing.lane_view import LaneExtent, LaneView
from lbg_runtime.pipeline.landing.layout import (
    GroupNote,
    find_lane_note,
    lane_names,
    queue_of,
    queues_of,
    read_group_note,
)
from lbg_runtime.pipeline.landing.merge import merged

__all__ = ["LandingLog", "LaneExtent"]

_NEARLY = 4
"""A limit of which at most one part in this many is left counts as reached at the end of a flush."""

_FIRST_LOOK_ROWS = 32
"""How far `pieces` looks ahead at first, and then twice as far each time: most of a backlog is not asked for."""


class Piece(NamedTuple):
    rows: int
    row_bytes: int
    """About how many bytes each takes on the disk."""
    t_land: int
    """When they landed, microseconds since the epoch."""


class LandingLog:
    """The landing log of a group. Cheap to make; for one thread at a time. Lanes are named `queue=003/lane=...`."""

    def __init__(self, path: Path | str) -> None:
        """Raises `UserError` if there is no landing log, `LandingDamaged` or `LandingVersionUnknown`."""
        self.path = Path(path)
        self.group: GroupNote = read_group_note(self.path)
        """Which group it belongs to."""
        self._views: dict[str, LaneView] = {}
        self._closed: dict[int, tuple[Sequence[str], list[LaneView]]] = {}
        """By queue: names and views of all its lanes, as two listings have shown them."""

    def queues(self) -> list[int]:
        """The indices of the queues of which anything has landed, ascending."""
        return queues_of(self.path)

    def lanes(self, queue: int | None = None) -> Mapping[str, LaneExtent]:
        """How far every lane goes, of all queues or of one, in the order in which the lanes were begun.

        Together, the numbers of rows are an offset that `read_queue` can end with: closed, in the sense of `merge.py`,
        for each queue. Costs one listing of the folder, and one look at a size and one small read per lane. Raises
        `LandingDamaged` or `LandingVersionUnknown`.
        """
        extents: dict[str, LaneExtent] = {}
        for each in self.queues() if queue is None else [queue]:
            extents.update(self._extents(each))
        return extents

    def read(self, lane: str, start_row: int, end_row: int) -> Iterator[pa.RecordBatch]:
        """The rows of a lane from `start_row` to before `end_row`, as they landed, with copies.

        Raises `LandingRowsPruned` if some are pruned; `LandingDamaged` if their CRC is wrong or they are missing, after
        what lies before has been read; `LandingVersionUnknown`.
        """
        view = self._view(lane)
        if view is None:
            if start_row < end_row:
                raise LandingRowsPruned(str(self.path), lane, start_row, end_row)
            return
        yield from view.read(start_row, end_row)

    def read_queue(
        self,
        queue: int,
        start: Mapping[str, int],
        end: Mapping[str, int],
        *,
        skips_pruned: bool = False,
        unwanted: Mapping[str, int] = MappingProxyType({}),
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a queue between two offsets: lanes merged, each message once, the order of each key kept.

        Offsets are rows by lane. A lane that `start` does not name is at 0 there; one that `end` does not name gives no
        rows, and what `start` counts of it is taken as read. Lanes of other queues are ignored. The same offsets always
        give the same rows; in any chain of offsets, each message is in exactly one part, and if they come from `lanes`
        and `cut`, the order of each key is that of its first handling. `merge.py` has the rules and the reasons. A copy
        that lands more than seven days after its message was pruned counts as new (`prune.py`).

        Raises as `read`; `LandingRowsPruned` also if `start` lies before what is left of a lane: what had been there
        could not be distinguished from what is new. With `skips_pruned` that is not an error, nor is a lane that is
        gone, also meanwhile: the rows that are left come as if the others had come in their place. The same goes for
        rows of a lane before the one in `unwanted`.
        """
        views: list[LaneView] = []
        passed: dict[str, int] = {}
        left: dict[str, int] = {}
        for name in dict.fromkeys((*start, *end)):
            if queue_of(name) != queue:
                continue
            first, last = start.get(name, 0), end.get(name, 0)
            # Up to here, what is pruned is no error.
            passed[name] = sys.maxsize if skips_pruned else unwanted.get(name, 0)
            view = self._view(name)
            if view is None:
                if max(first, passed[name]) < last:
                    raise LandingRowsPruned(str(self.path), name, max(first, passed[name]), last)
                continue
            if first < passed[name]:
                first = left[name] = max(first, min(view.first_left(), passed[name]))
            try:
                view.check(first, max(first, last))
            except LandingRowsPruned:
                if first >= passed[name]:
                    raise
                # Since it was looked at.
                if not view.is_there():
                    if passed[name] < last:
                        raise
                    continue
            views.append(view)
        yield from merged(sorted(views, key=lambda view: view.place), start, end, left, passed)

    def cut(
        self,
        queue: int,
        start: Mapping[str, int],
        end: Mapping[str, int],
        max_rows: int,
        *,
        skips_pruned: bool = False,
    ) -> Mapping[str, int]:
        """An offset between two of a queue, with at most `max_rows` rows, copies counted, after the first.

        It covers the lanes of that queue that either offset names, and is closed if both are. An offset made in any
        other way is not: `read_queue` might then give the rows of a key in another order. If there are rows, it holds
        at least one. It ends with a flush if that leaves at most a quarter of the limit unused, as a flush that is cut
        is read twice. With `skips_pruned`, pruned rows do not count towards the limit. Raises as `read_queue`.
        """
        if max_rows < 1:
            raise InvariantViolated(f"a part of {max_rows} rows was asked for")
        names = [name for name in dict.fromkeys((*start, *end)) if queue_of(name) == queue]
        reached = {name: start.get(name, 0) for name in names}
        rows_left = max_rows
        for view in self._in_order(names):
            first, last = reached[view.name], end.get(view.name, 0)
            if skips_pruned and first < last:
                # Not before its turn: later rows of older lanes may be copies of these.
                first = reached[view.name] = max(first, min(view.first_left(), last))
            if first >= last:
                continue
            if not view.had(first, last):
                view.check(first, last)
            row = first
            # No further than the limit: a backlog may have many flushes.
            limit = min(last, first + rows_left)
            try:
                for flush in view.all_flushes(first, limit):
                    wanted = min(flush.rows, last) - row
                    if wanted > rows_left:
                        # A part of it, unless little of the limit is left.
                        if _NEARLY * rows_left > max_rows:
                            row += rows_left
                        break
                    row += wanted
                    rows_left -= wanted
                else:
                    # No flush has this row, and whoever asks again would get the same answer for ever.
                    if row == first < limit:
                        raise view.missing(row)
            except LandingRowsPruned:
                if not skips_pruned:
                    raise
                # Since it was looked at. Each time there is less to look at.
                return self.cut(queue, start, end, max_rows, skips_pruned=True)
            reached[view.name] = row
            if row < last:
                break
        return reached

    def pieces(self, queue: int, start: Mapping[str, int], end: Mapping[str, int]) -> Iterator[Piece]:
        """The rows of a queue between two offsets, flush by flush, in the order in which `cut` takes them.

        Without those that are pruned, and only up to one that is missing: `cut` tells of either. Raises as `lanes`.
        """
        for view in self._in_order([name for name in end if queue_of(name) == queue]):
            first, last = start.get(view.name, 0), end[view.name]
            look_rows = _FIRST_LOOK_ROWS
            while first < last:
                until, before = min(last, first + look_rows), first
                try:
                    if not view.had(first, last):
                        view.check(first, last)
                    for flush in view.all_flushes(first, until):
                        reached = min(flush.rows, until)
                        yield Piece(reached - first, flush.bytes // (flush.rows - flush.first_row) or 1, flush.t_land)
                        first = reached
                except LandingRowsPruned:
                    # Perhaps since the lane was last looked at, which may be a batch ago.
                    first = max(first, min(view.first_left(), last))
                if first == before:
                    # No flush has this row, as `cut` tells.
                    return
                look_rows *= 2

    def before(self, queue: int, time_us: int) -> Mapping[str, int]:
        """The offset before the first row that landed at that time or later, microseconds since the epoch.

        Closed as far as the clocks of the landing members agree. Raises as `lanes`.
        """
        while True:
            try:
                return {name: self._row_before(name, extent, time_us) for name, extent in self.lanes(queue).items()}
            except LandingRowsPruned:
                # Between the two looks. No bound: the next ones find less to look at.
                continue

    def view(self, lane: str) -> LaneView:
        """One lane, for a closer look. Raises `LandingRowsPruned` if it is gone."""
        view = self._view(lane)
        if view is None:
            raise LandingRowsPruned(str(self.path), lane, 0, 0)
        return view

    def _extents(self, queue: int) -> dict[str, LaneExtent]:
        # Younger lanes before older ones: what had landed when a younger one was begun is then certainly counted.
        found: list[tuple[str, LaneExtent]] = []
        for view in reversed(self._closed_views(queue)):
            try:
                found.append((view.name, view.extent()))
            except FileNotFoundError:
                # Removed, long after it was pruned.
                self._views.pop(view.name, None)
        return dict(reversed(found))

    def _row_before(self, name: str, extent: LaneExtent, time_us: int) -> int:
        row = extent.first_row
        view = self._view(name)
        for flush in () if view is None else view.all_flushes(row, extent.rows):
            if flush.t_land >= time_us:
                break
            row = min(flush.rows, extent.rows)
        return row

    def _closed_views(self, queue: int) -> list[LaneView]:
        """The lanes of a queue, in order, including every lane that was begun before any of them."""
        # Two listings of the folder: what was begun before any lane of the first is certainly in the second. What two
        # listings have shown alike need not be listed twice again, as long as it is the same.
        names = lane_names(self.path, queue)
        known = self._closed.get(queue)
        if known is not None and known[0] == names:
            return known[1]
        # Forget lanes that are gone: a reader that runs for months sees many of them.
        for gone in () if known is None else set(known[0]).difference(names):
            self._views.pop(gone, None)
        highest = max((view.note.order for view in self._views_of(names)), default=0)
        again = lane_names(self.path, queue)
        views = [view for view in self._views_of(again) if view.note.order <= highest]
        views.sort(key=lambda view: view.place)
        if names == again and len(views) == len(names):
            self._closed[queue] = names, views
        return views

    def _in_order(self, names: Sequence[str]) -> list[LaneView]:
        return sorted(self._views_of(names), key=lambda view: view.place)

    def _views_of(self, names: Sequence[str]) -> list[LaneView]:
        found = (self._view(name) for name in names)
        return [view for view in found if view is not None]

    def _view(self, name: str) -> LaneView | None:
        view = self._views.get(name)
        if view is None or not view.is_there():
            # Removed, or never seen.
            self._views.pop(name, None)
            if queue_of(name) is None:
                return None
            note = find_lane_note(f"{self.path}/{name}")
            if note is None:
                return None
            view = self._views[name] = LaneView(self.path, name, note)
        return view
