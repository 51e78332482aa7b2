"""Where a stream stands in a landing log, how far its next batch goes, and which task reads which queue. Pure.

An offset is `{"version": 1, "group": name, "log": id, "lanes": {lane: rows}, "removed": {queue: bytes}, "tasks": n,
"began": {lane: rows}}`: for each lane, how many rows from its beginning have been read. Of a lane that is not named,
nothing has been read yet, so lanes that come later need no new checkpoint. Lanes that are gone are not named either:
those noted in the first `bytes` of `removed.lanes` (`landing/removed.py`) are dealt with. `tasks` says to how many
tasks the batch that ends here is dealt out: a batch that is run again on other cores has the same ones, and the sink
numbers messages by task. `began` says where the first batch of a stream began: of that, Spark keeps only the end, and
where a stream without a checkpoint begins depends on when it is asked. Older offsets have neither `log` nor `removed`
nor `tasks` nor `began`.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import chain
from typing import NamedTuple, TypeGuard

from lbg_runtime.model.errors import CheckpointForeign
from lbg_runtime.pipeline.landing.layout import queue_of
from lbg_runtime.pipeline.landing.log import Piece

VERSION = 1

Rows = Mapping[str, int]
"""Rows read, by lane."""

Cut = Callable[[int, Rows, Rows, int], Rows]
"""`LandingLog.cut`: the offset of a queue that lies this many rows after the first, and not beyond the second."""

Pieces = Callable[[int, Rows, Rows], Iterator[Piece]]
"""`LandingLog.pieces`: what lies between two offsets of a queue."""


_Landed = tuple[int, int, Piece]
"""When a piece counts as landed, microseconds since the epoch, and its queue."""


class Place(NamedTuple):
    """Where a stream stands."""

    rows: Rows
    removed: Mapping[int, int]
    """By queue: bytes of the notes of removed lanes."""
    tasks: int | None = None
    """Of the batch that ends here; None if none is planned yet, or by an older version."""
    began: Rows | None = None
    """Rows that count as read where the stream began, as long as no batch but the first has ended before this."""

    @property
    def is_begin(self) -> bool:
        """Whether nothing was read yet."""
        return self.began == self.rows


def encode(place: Place, group: str, log_id: str | None) -> dict[str, object]:
    """The offset of a place, as values that JSON knows."""
    offset: dict[str, object] = {"version": VERSION, "group": group}
    if log_id is not None:
        offset["log"] = log_id
    offset["lanes"] = _counted(place.rows)
    if any(place.removed.values()):
        offset["removed"] = {str(queue): count for queue, count in sorted(place.removed.items()) if count}
    if place.tasks is not None:
        offset["tasks"] = place.tasks
    if place.began is not None:
        offset["began"] = _counted(place.began)
    return offset


def decode(offset: object, where: str, group: str, log_id: str | None) -> Place:
    """The place of an offset that a checkpoint has kept; raises `CheckpointForeign`. `where` names the log."""
    if not isinstance(offset, Mapping) or offset.get("version") != VERSION:
        version = offset.get("version") if isinstance(offset, Mapping) else None
        raise CheckpointForeign(where, f"an offset of version {version}, this version of lbg reads {VERSION}")
    lanes, began = offset.get("lanes"), offset.get("began")
    if not _is_rows(lanes) or not (began is None or _is_rows(began)):
        raise CheckpointForeign(where, "an offset that is none of a landing log")
    if offset.get("group", group) != group:
        raise CheckpointForeign(where, f"an offset of group {offset['group']}, and the log is that of {group}")
    if log_id is not None and offset.get("log", log_id) != log_id:
        raise CheckpointForeign(where, f"an offset of log {offset['log']}, and this is {log_id}")
    removed, tasks = offset.get("removed", {}), offset.get("tasks")
    if (
        not isinstance(removed, Mapping)
        or not all(str(queue).isdecimal() and _is_count(count) for queue, count in removed.items())
        or not (tasks is None or (_is_count(tasks) and tasks))
    ):
        raise CheckpointForeign(where, "an offset that is none of a landing log")
    return Place(
        dict(lanes),
        {int(queue): int(count) for queue, count in removed.items()},
        tasks,
        None if began is None else dict(began),
    )


def by_queue(rows: Rows) -> dict[int, dict[str, int]]:
    """The rows of each queue's lanes; raises `CheckpointForeign` for a name that no lane has."""
    found: dict[int, dict[str, int]] = {}
    for lane, count in rows.items():
        found.setdefault(_queue(lane), {})[lane] = count
    return found


def queues_between(start: Rows, end: Rows) -> list[int]:
    """The queues with rows from one offset to another, ascending. Raises as `by_queue`."""
    return sorted({_queue(lane) for lane in end if end[lane] > start.get(lane, 0)})


def plan_end(
    start: Rows, end: Rows, pieces: Pieces, cut: Cut, max_rows: int | None, max_bytes: int | None
) -> dict[str, int]:
    """How far the next batch goes, at most to `end`: within the limits, but at least one row if there is one.

    Rows are taken as they landed, whichever queue they are in, so that queues that catch up advance alike in time: what
    is far behind another queue lies behind Spark's watermark, and is dropped. A row counts as having landed no earlier
    than those before it in its queue, whatever the clocks of landing members showed. Lanes with nothing new stay where
    they are. Raises as `by_queue`.
    """
    reached = dict(start)
    starts: dict[int, Rows] = {}
    ends: dict[int, Rows] = {}
    for queue, lanes in by_queue(end).items():
        if any(rows > start.get(lane, 0) for lane, rows in lanes.items()):
            # Only the lanes of this queue: otherwise each queue would go through those of all others.
            starts[queue] = {lane: start[lane] for lane in lanes if lane in start}
            ends[queue] = lanes
    if max_rows is None and max_bytes is None:
        for whole in ends.values():
            reached.update((lane, max(rows, start.get(lane, 0))) for lane, rows in whole.items())
        return reached
    waiting = {queue: _landed(queue, pieces(queue, starts[queue], ends[queue])) for queue in sorted(ends)}
    for queue, rows in _take(waiting, max_rows, max_bytes).items():
        reached.update(cut(queue, starts[queue], ends[queue], rows))
    return reached


def _take(waiting: Mapping[int, Iterator[_Landed]], max_rows: int | None, max_bytes: int | None) -> Mapping[int, int]:
    """How many rows each queue gives, of those that give any."""
    taken = Counter[int]()
    filled: list[Iterator[_Landed]] = []
    for queue, landed in waiting.items():
        if (first := next(landed, None)) is None:
            # All of it is pruned, which takes no room; or it is an error, which the cut tells.
            taken[queue] = 1
        else:
            filled.append(chain((first,), landed))
    rows_left = sys.maxsize if max_rows is None else max_rows
    bytes_left = sys.maxsize if max_bytes is None else max_bytes
    least = 1
    for _, queue, piece in merge(*filled):
        # The first row in any case: it may exceed the limit alone.
        fitting = max(least, min(piece.rows, rows_left, bytes_left // piece.row_bytes))
        taken[queue] += fitting
        if fitting < piece.rows:
            break
        least = 0
        rows_left -= fitting
        bytes_left -= fitting * piece.row_bytes
    return +taken


def _landed(queue: int, pieces: Iterator[Piece]) -> Iterator[_Landed]:
    """Pieces of a queue with the time as of which they count."""
    latest_us = 0
    for piece in pieces:
        latest_us = max(latest_us, piece.t_land)
        yield latest_us, queue, piece


def pack(queues: Sequence[int], task_count: int) -> list[tuple[int, ...]]:
    """Deal queues out to tasks in turn; no task is empty. Each queue has one task, which reads it in order.

    Many queues on few cores are slow if each is a task of its own: a task costs more than most batches of a queue.
    """
    count = max(1, min(task_count, len(queues)))
    return [tuple(queues[first::count]) for first in range(count) if queues[first::count]]


def _queue(lane: str) -> int:
    queue = queue_of(lane)
    if queue is None:
        raise CheckpointForeign(lane, "a lane that is none of a landing log")
    return queue


def _counted(rows: Rows) -> dict[str, int]:
    return {lane: count for lane, count in sorted(rows.items()) if count}


def _is_rows(value: object) -> TypeGuard[Rows]:
    return isinstance(value, Mapping) and all(type(name) is str and _is_count(count) for name, count in value.items())


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0
