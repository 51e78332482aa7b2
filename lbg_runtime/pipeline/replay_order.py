"""The order of a key across queues, told by its publishers' numbers and not by the clocks of who landed it.

The rows of a queue come in order. A re-striping moves keys from queue to queue, and only `t_land` says how the rows of
two queues lie in time: wrongly, if two hosts' clocks differ by more than the move took, or one was set back. But a
publisher's numbers within a key only grow. So a row, and with it its queue, waits as long as lower numbers of its
publisher and key have yet to come from another queue. What the clocks say decides only between rows of which none waits
for the other: rows of different keys, of different publishers, and of publishers that do not number.
"""

import heapq
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple, Protocol, TypeVar

import pyarrow as pa

from lbg_runtime.model.errors import LandingError
from lbg_runtime.pipeline.landing.schema import TIME_DIGITS, may_have_copies

_REMEDY = "what was published before it is in order; replay the rest key by key (--key)"
_REMEDY_WITHIN_KEY = (
    "what was published before it is in order; its own numbers contradict each other: replay the rest by time (--from)"
)


class Run(NamedTuple):
    """Numbers that one queue has of a publisher and key, both ends included; those in a gap are nowhere."""

    queue: int
    first: int
    last: int


class Placed(Protocol):
    """A row in its queue."""

    @property
    def queue(self) -> int:
        """Its index."""

    @property
    def latest_us(self) -> int:
        """The latest time at which it or anything before it in its queue landed; never decreases."""

    @property
    def row_id(self) -> str:
        """As in the log."""


Row = TypeVar("Row", bound=Placed)


def find_moved(read: Callable[[int], Iterator[pa.RecordBatch]], queues: Collection[int]) -> Mapping[str, list[Run]]:
    """The runs of each publisher and key that has numbers in several queues. `read` gives the rows of a queue.

    Reads all rows unless there is one queue, and those of moved shards once more; takes memory for each publisher and
    key of such shards, and for each gap in its numbers. Raises as `read`: what lies behind damage cannot be placed.
    """
    if len(queues) < 2:
        return {}
    shards = {queue: {shard for batch in read(queue) for shard in _shards(batch)} for queue in queues}
    queue_count: dict[int | None, int] = {}
    for of_queue in shards.values():
        for shard in of_queue:
            queue_count[shard] = queue_count.get(shard, 0) + 1
    moved = {shard for shard, count in queue_count.items() if count > 1}
    runs: dict[str, list[Run]] = {}
    for queue in (queue for queue, of_queue in shards.items() if not moved.isdisjoint(of_queue)):
        for batch in read(queue):
            for shard, row_id in zip(
                batch.column("shard").to_pylist(), batch.column("broker_id").to_pylist(), strict=True
            ):
                if shard in moved and may_have_copies(row_id):
                    number, sender = _stamp(row_id)
                    _add(runs.setdefault(sender, []), queue, number)
    return {
        sender: _joined(found) for sender, found in runs.items() if any(run.queue != found[0].queue for run in found)
    }


def merged(queues: Mapping[int, Iterator[Row]], moved: Mapping[str, list[Run]], path: str) -> Iterator[Row]:
    """The rows of all queues: those of a queue in order, lower numbers of a publisher and key before higher ones.

    What is there twice waits for nothing and keeps nothing waiting. Raises `LandingError` with the `path` of the log,
    before it gives a row out of order, if no queue can go on, as each waits for another.
    """
    heads: list[tuple[int, int, Row]] = []
    waiting: dict[str, list[Row]] = {}
    """Rows at the head of their queues, by the publisher and key whose lower numbers they wait for."""
    highest: dict[str, int] = {}
    """Given so far, of those in `moved`."""

    def push(row: Row) -> None:
        heapq.heappush(heads, (row.latest_us, row.queue, row))

    for rows in queues.values():
        head = next(rows, None)
        if head is not None:
            push(head)
    while heads:
        row = heapq.heappop(heads)[-1]
        number, sender = _stamp(row.row_id) if moved and may_have_copies(row.row_id) else (0, "")
        runs = moved.get(sender)
        if runs is not None:
            given = highest.get(sender)
            if _must_wait(runs, row.queue, number, given):
                waiting.setdefault(sender, []).append(row)
                continue
            highest[sender] = number if given is None else max(number, given)
        yield row
        following = next(queues[row.queue], None)
        if following is not None:
            push(following)
        for each in waiting.pop(sender, ()):
            push(each)
    if waiting:
        row = min((each for rows in waiting.values() for each in rows), key=lambda each: each.latest_us)
        remedy = _REMEDY if len(moved) > 1 else _REMEDY_WITHIN_KEY
        raise LandingError(
            path, f"the numbers of its publishers tell no order of its queues at row {row.row_id}", remedy
        )


def _must_wait(runs: list[Run], queue: int, number: int, given: int | None) -> bool:
    """Whether another queue has a lower number that was not yet given."""
    return any(
        run.queue != queue and max(run.first, run.first if given is None else given + 1) <= min(run.last, number - 1)
        for run in runs
    )


def _add(runs: list[Run], queue: int, number: int) -> None:
    if runs and runs[-1].queue == queue:
        _, first, last = runs[-1]
        if first <= number <= last + 1:
            runs[-1] = Run(queue, first, max(last, number))
            return
    runs.append(Run(queue, number, number))


def _joined(runs: list[Run]) -> list[Run]:
    """In order, and one for what several queues do not share: a group may take only some topics of a key."""
    joined: list[Run] = []
    for run in sorted(runs, key=lambda each: each.first):
        if joined and joined[-1].queue == run.queue:
            joined[-1] = Run(run.queue, joined[-1].first, max(joined[-1].last, run.last))
        else:
            joined.append(run)
    return joined


def _stamp(row_id: str) -> tuple[int, str]:
    """The number, and publisher and key in one, of a message that our publisher stamped."""
    number, _, sender = row_id[TIME_DIGITS + 1 :].partition("/")
    return int(number), sender


def _shards(batch: pa.RecordBatch) -> list[int | None]:
    return batch.column("shard").unique().to_pylist()  # type: ignore[no-any-return]
