"""Removes old rows from a landing log, and keeps what distinguishes late copies from new messages.

Whole segments are removed, from the beginning of a lane; the ids of each stay in its place. They stay for
`IDS_KEPT_US`, and at most the last `IDS_KEPT` of a lane. The second bound is the broker's own: no more messages than
that can be unsettled on a flow, and settlements take effect in order, so only the last rows of a lane can still come
again. The first is ours: a message that landed, was never settled, and lay in a queue that nobody consumed for that
long after its row was pruned counts as new. The last segment of a lane stays while its writer lives. With the last of
its ids, a lane is removed as a whole, and noted as gone (`removed.py`).

Ids are written before their rows are removed: the other way round, a process that dies in between would leave nothing
to recognise copies by. So pruning itself needs some room, and frees nothing on a disk that has none.
"""

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lbg_runtime.model.errors import LandingDamaged, LandingError, LandingRowsPruned
from lbg_runtime.pipeline.files import sync_folder
from lbg_runtime.pipeline.landing.index import DAMAGE_REMEDY
from lbg_runtime.pipeline.landing.lane import GONE_PREFIX, is_being_written, set_aside
from lbg_runtime.pipeline.landing.lane_view import LaneView, followed, unindexed
from lbg_runtime.pipeline.landing.layout import (
    LANE_NOTE,
    find_lane_note,
    lane_names,
    parts_of,
    queue_folder,
    queues_of,
)
from lbg_runtime.pipeline.landing.pruned_ids import read_pruned, write_pruned
from lbg_runtime.pipeline.landing.removed import note_removed
from lbg_runtime.pipeline.landing.segment import IDS_SUFFIX, INDEX_SUFFIX, Segment
from lbg_runtime.runtime.clock import wall_us

IDS_KEPT_US = 7 * 24 * 3_600 * 1_000_000
IDS_KEPT = 1_000_000
"""The highest value that `maxDeliveredUnackedMsgsPerFlow` of a queue can have."""

DRAFT_KEPT_S = 3_600.0
"""A draft folder older than this belongs to a process that died."""

IsAged = Callable[[str, int, int], bool]
"""Whether the rows of a lane up to one of them surely landed so long ago that they may go; last, how many the lane has
now."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """A segment that was removed, or would be."""

    lane: str
    first_row: int
    rows: int
    """Of the lane, up to and including its last."""
    bytes: int


@dataclass(frozen=True, slots=True)
class Unpruned:
    """A lane in which something old may have stayed, or a queue that could not be listed."""

    lane: str
    """`queue=003/lane=...`, or `queue=003`."""
    error: LandingError | OSError


def prune(
    root: Path,
    before_us: int,
    *,
    clock_us: Callable[[], int] = wall_us,
    is_dry: bool = False,
    failures: list[Unpruned] | None = None,
    is_aged: IsAged = lambda *_: False,
) -> Iterator[Pruned]:
    """Remove the segments whose last row landed before a time, one by one; yield each when it is done.

    Any process may do this, also several at once, and while others write and read. `is_dry`: remove nothing. A segment
    that is dated after now landed when a clock was ahead, and no date tells when: `is_aged` says whether it goes.

    No segment is removed whose ids cannot be kept, because it is damaged or the disk has no room for them. In a lane
    with a `LandingError` or `OSError`, that segment and what follows it stay; so does a queue that cannot be listed.
    Pruning goes on with the others; this one is added to `failures`, or, if no such list is given, the first error is
    raised at the end. Raises `OSError` if the folder of the log cannot be listed.
    """
    failed = [] if failures is None else failures
    for queue in queues_of(root):
        try:
            names = lane_names(root, queue)
        except OSError as error:
            failed.append(Unpruned(queue_folder(queue), error))
            continue
        for name in names:
            try:
                yield from _prune_lane(root, name, before_us, clock_us(), is_aged, is_dry=is_dry)
            except (FileNotFoundError, LandingRowsPruned):
                # Another process prunes it too, and is ahead.
                pass
            except (LandingError, OSError) as error:
                failed.append(Unpruned(name, error))
        if not is_dry:
            _remove_drafts(root, queue, failed)
    if failures is None and failed:
        raise failed[0].error


def _prune_lane(
    root: Path, name: str, before_us: int, now_us: int, is_aged: IsAged, *, is_dry: bool
) -> Iterator[Pruned]:
    folder = root / name
    note = find_lane_note(folder)
    if note is None:
        return
    view = LaneView(root, name, note)
    # Before the files are looked at: a lane that is not being written now never is again.
    is_live = is_being_written(folder)
    lane_rows = view.extent().rows
    for first, following in followed(parts_of(folder)[INDEX_SUFFIX]):
        if is_live and following is None:
            break
        segment = Segment(folder, first)
        last = segment.last_entry()
        rows = first if last is None else last.rows
        if following is not None and rows != following:
            # Its newest rows, and their ids, are not known; `extent` has checked the last segment.
            raise LandingDamaged(str(segment.index_path), "it has lost its end", DAMAGE_REMEDY)
        if (
            last is not None
            and last.t_land >= before_us
            and not (last.t_land > now_us and is_aged(name, rows, lane_rows))
        ):
            break
        try:
            size = segment.data_path.stat().st_size + segment.index_path.stat().st_size
            if not is_dry:
                _prune_segment(view, segment, rows, lane_rows, now_us)
        except FileNotFoundError:
            # Another process that prunes removes the index first.
            if segment.index_path.exists():
                raise LandingDamaged(str(segment.data_path), "it is missing", DAMAGE_REMEDY) from None
            raise
        yield Pruned(name, first, rows, size)
    if not is_dry:
        _remove_rests(root, name, lane_rows - IDS_KEPT, now_us, is_live=is_live)


def _prune_segment(view: LaneView, segment: Segment, rows: int, lane_rows: int, now_us: int) -> None:
    first_kept = max(segment.first_row, lane_rows - IDS_KEPT)
    ids = [each for batch in view.read(first_kept, rows) for each in batch.column("broker_id").to_pylist()]
    write_pruned(view.folder, segment.first_row, rows, ids, now_us)
    # The index first: without it the rows are not there, with it they must be.
    segment.index_path.unlink()
    segment.data_path.unlink()
    sync_folder(view.folder)


def _remove_rests(root: Path, name: str, forgotten_rows: int, now_us: int, *, is_live: bool) -> None:
    folder = root / name
    parts = parts_of(folder)
    segments, pruned = parts[INDEX_SUFFIX], parts[IDS_SUFFIX]
    # Data files that a process left behind when it died between two steps.
    left = [first for first in unindexed(parts) if not is_live or (segments and first < segments[-1])]
    for first in left:
        Segment(folder, first).data_path.unlink()
    if left:
        # Before the ids, which mark rows without an index as pruned.
        sync_folder(folder)
    kept = {first: read_pruned(folder, first) for first in pruned}
    old = [first for first, ids in kept.items() if ids.pruned_us <= now_us - IDS_KEPT_US or ids.rows <= forgotten_rows]
    if not is_live and not segments and old == pruned:
        note_age_us = now_us - int((folder / LANE_NOTE).stat().st_mtime_ns // 1_000)
        if pruned or note_age_us > IDS_KEPT_US:
            _remove_aside(root, name, set_aside(folder))
        return
    if not segments:
        # The last of them tells how far the lane went.
        old = [first for first in old if first != pruned[-1]]
    for first in old:
        kept[first].path.unlink()


def _remove_aside(root: Path, name: str, gone: Path) -> None:
    """Remove what was set aside of a lane; if that fails, it is left for the next pruning.

    Raises `OSError`, and as `note_removed`.
    """
    # Nothing of it is removed before it is noted, so this is all of it, or it is noted already.
    rows = max((read_pruned(gone, first).rows for first in parts_of(gone)[IDS_SUFFIX]), default=0)
    if rows:
        note_removed(root, name, rows)
    shutil.rmtree(gone)


def _remove_drafts(root: Path, queue: int, failed: list[Unpruned]) -> None:
    folder = root / queue_folder(queue)
    try:
        left = [each for each in folder.iterdir() if each.name.startswith((".lane=", GONE_PREFIX))]
    except OSError as error:
        failed.append(Unpruned(folder.name, error))
        return
    for path in left:
        name = f"{folder.name}/{path.name.removeprefix(GONE_PREFIX)}"
        try:
            if path.stat().st_mtime >= time.time() - DRAFT_KEPT_S:
                continue
            if path.name.startswith(GONE_PREFIX):
                _remove_aside(root, name, path)
            else:
                shutil.rmtree(path)
        except FileNotFoundError:
            # Another process removes it too.
            pass
        except (LandingError, OSError) as error:
            failed.append(Unpruned(name, error))
