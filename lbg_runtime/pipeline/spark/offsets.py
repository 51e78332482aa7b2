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

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeGuard

from lbg_runtime.model.errors import CheckpointForeign
from lbg_runtime.pipeline.landing.layout import queue_of

VERSION = 1

Rows = Mapping[str, int]
"""Rows read, by lane."""

Cut = Callable[[int, Rows, Rows, int, int | None], Rows]
"""`LandingLog.cut`: the offset of a queue that lies this many rows and bytes after the first, and not beyond the
second."""

Size = Callable[[int, Rows, Rows], int]
"""`LandingLog.size`: about how many bytes lie between two offsets of a queue."""

Landed = Callable[[int, Rows, Rows], int]
"""`LandingLog.landed`: when the last row between two offsets of a queue landed."""

_FEW = 100
"""Of more rows, one is less than what bursts set queues apart by."""


class Place(NamedTuple):
    """Where a stream stands."""

    rows: Rows
    removed: Mapping[int, int]
    """By queue: bytes of the notes of removed lanes."""
    tasks: int | None = None
    """Of the batch that ends here; None if none is planned yet, or by an older version."""
    began: Rows | None = None
    """Rows that count as read where the stream began, as long as no batch with rows has ended before this."""

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
    start: Rows,
    end: Rows,
    cut: Cut,
    size: Size,
    landed: Landed,
    max_rows: int | None,
    max_bytes: int | None,
) -> dict[str, int]:
    """How far the next batch goes, at most to `end`: within the limits, but at least one row if there is one.

    Each queue gets a share in proportion to the rows that wait in it, so that queues that catch up advance alike in
    time: what is far behind another queue lies behind Spark's watermark, and is dropped. If that is too much for the
    limit of bytes, each gets the same part of its share. Shares are rounded up, unless the last of a few rows landed
    later than what the queue with most rows gives, which gives at least one. If there are fewer rows than queues,
    queues take turns. Lanes with nothing new stay where they are. Raises as `by_queue`.
    """
    reached = dict(start)
    waiting = [_Waiting(queue, start, lanes) for queue, lanes in sorted(by_queue(end).items())]
    waiting = [each for each in waiting if each.rows]
    if max_rows is None and max_bytes is None:
        for each in waiting:
            reached.update((lane, max(rows, start.get(lane, 0))) for lane, rows in each.end.items())
    elif max_rows is not None and max_rows < len(waiting):
        # Not the same queue first each time: it would be the only one served until it has nothing left.
        turn = sum(start.values()) % len(waiting)
        for each in (waiting[turn:] + waiting[:turn])[:max_rows]:
            reached.update(cut(each.queue, each.start, each.end, 1, None))
    elif waiting:
        waiting.sort(key=lambda each: each.rows)
        _share_rows(waiting, cut, max_rows)
        if max_bytes is not None:
            _share_bytes(waiting, cut, size, max_bytes)
        _keep_in_step(waiting, cut, landed)
        for each in waiting:
            reached.update(each.reached)
    return reached


class _Waiting:
    """What waits in one queue, and how far a batch goes there."""

    def __init__(self, queue: int, start: Rows, end: Rows) -> None:
        self.queue = queue
        # Of this queue alone: otherwise each would go through the lanes of all others.
        self.start = {lane: start[lane] for lane in end if lane in start}
        self.end = end
        self.rows = self._rows_to(end)
        self.row_share = self.rows
        self.byte_share: int | None = None
        self.reached: Rows = self.start

    @property
    def taken(self) -> int:
        """Rows of the batch. At most the share: what is skipped because it was pruned takes nothing from others."""
        return min(self.row_share, self._rows_to(self.reached))

    def cut_off(self, cut: Cut) -> None:
        """Take as much as the shares say."""
        self.reached = cut(self.queue, self.start, self.end, self.row_share, self.byte_share)

    def _rows_to(self, end: Rows) -> int:
        return sum(max(0, rows - self.start.get(lane, 0)) for lane, rows in end.items())


def _share_rows(waiting: Sequence[_Waiting], cut: Cut, max_rows: int | None) -> None:
    """Of the queues in the order of their rows, each takes its share, rounded up, and leaves the others a row each."""
    waiting_left = sum(each.rows for each in waiting)
    rows_left = waiting_left if max_rows is None else max_rows
    for others, each in zip(reversed(range(len(waiting))), waiting, strict=True):
        each.row_share = min(-(-rows_left * each.rows // waiting_left), rows_left - others)
        waiting_left -= each.rows
        each.cut_off(cut)
        rows_left -= each.taken


def _share_bytes(waiting: Sequence[_Waiting], cut: Cut, size: Size, max_bytes: int) -> None:
    """If the rows are too large together, each queue takes the same part of its bytes: with shares in proportion to
    rows, one with large rows would fall behind the others."""
    sizes = [size(each.queue, each.start, each.reached) for each in waiting]
    if (whole := sum(sizes)) <= max_bytes:
        return
    for each, taken_bytes in zip(waiting, sizes, strict=True):
        # Another row, for all but the fullest queue.
        rounding = 0 if each is waiting[-1] else taken_bytes // max(1, each.taken) - 1
        each.byte_share = max(1, max_bytes * taken_bytes // whole + rounding)
        each.cut_off(cut)


def _keep_in_step(waiting: Sequence[_Waiting], cut: Cut, landed: Landed) -> None:
    """With a share that was rounded up in each batch, a queue with few rows would be ahead of the fullest one, which is
    the last; so it takes the last of them when that one has come as far in time."""
    fullest = waiting[-1]
    if all(fullest.reached[lane] >= rows for lane, rows in fullest.end.items()):
        return
    until_us = landed(fullest.queue, fullest.start, fullest.reached)
    for each in waiting[:-1]:
        if each.taken <= _FEW and landed(each.queue, each.start, each.reached) > until_us:
            each.row_share = each.taken - 1
            if each.row_share:
                each.cut_off(cut)
            else:
                each.reached = each.start


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
