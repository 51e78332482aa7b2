"""The rows of a queue between two offsets: its lanes one after another, each message once, the order of each key kept.

An offset says for each lane how many of its rows lie before it. The rows between two offsets are, lane by lane in the
order in which the lanes were begun, every row without an *earlier* copy: none lies before the first offset, in any
lane, and none came before it in the same walk. That depends only on what lies before the second offset, which never
changes; so the same two offsets give the same rows, whatever is appended. And whatever the steps, exactly one of the
copies of a message has no earlier one: each message comes out once. Only what the broker had twice, as two messages
with one id, comes out twice, if both landed in one lane.

Why not go by what landed last ("drop what is below the highest id")? Ids do not land in order. Several keys are handled
side by side; and a message that a member was given and never landed comes again, after others that it had landed.

Why the order of each key is kept. The queues are exclusive: what a handle has lost does not come back to it. So for a
key, the rows of a lane are a run of the queue's messages without gaps, in order: a handle is given them in order, each
is handled after the one before has ended, and a failed one is tried until it lands. The first of the run is the first
that was not settled when the handle was fed, and what is settled had landed before, in a lane that was begun before, as
a lane is begun by its first message. So, lane by lane in the order in which they were begun, each run begins no later
than one past what came before it, and goes on from there: what is new in it comes in order. A member that lost its flow
and still writes only adds copies, or what its successor is about to land, in order too. The offsets must be *closed*
for this: if rows of a lane are counted, nothing that landed before that lane was begun may be missing.
`LandingLog.lanes` gives such offsets, and `LandingLog.cut` those in between.

An id of a single delivery can be twice only where a flush failed after readers could see rows of it, as when the disk
refused to sync its entry: the lane ended with it, and the handle has landed the rows again in a later one. No range of
an index has such ids, so they are looked for where they can be, in what landed last in older lanes of the handle that
the lane's note names. Once that is pruned, a copy comes.

For readers that go on without them, rows that were pruned before they were read do not come out at all; everything else
comes as if they had come in their place. So a copy that lies before them comes, and one that lies after does not: rows
of the same handle may lie in between, in a new lane that it began, and the key would go back.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import pyarrow as pa

from lbg_runtime.model.errors import LandingRowsPruned
from lbg_runtime.pipeline.landing.lane_view import Flush, LaneView, refuse_link
from lbg_runtime.pipeline.landing.schema import may_have_copies

Offsets = Mapping[str, int]
"""Number of rows by lane; a lane that is not named is at 0."""


def merged(
    lanes: Sequence[LaneView], start: Offsets, end: Offsets, left: Offsets, passed: Offsets
) -> Iterator[pa.RecordBatch]:
    """See the module. `lanes` are those of one queue that either offset names, in the order in which they were begun.

    `left` says from which row on a lane is read, if not from `start`, because what lies before is pruned. The caller
    has just checked that the rows from there on exist; what is pruned since is left out before the rows in `passed`.
    No batch is empty. Raises as `LandingLog.read`.
    """
    for position, lane in enumerate(lanes):
        first, last = max(start.get(lane.name, 0), left.get(lane.name, 0)), end.get(lane.name, 0)
        if first >= last:
            continue
        # Not lanes of which nothing is earlier: such a lane may be gone by now, as nobody has asked for its rows.
        others = [
            (each, rows)
            for number, each in enumerate(lanes)
            if each is not lane
            and (rows := max(start.get(each.name, 0), end.get(each.name, 0) if number < position else 0))
        ]
        while first < last:
            try:
                earlier = _Earlier(list(lane.all_flushes(first, last)) if others else (), others)
                for older, rows in others:
                    if lane.note.handle and older.note.handle == lane.note.handle and older.place < lane.place:
                        earlier.take_last(older, rows)
                for batch in lane.read_checked(first, last):
                    first += batch.num_rows
                    kept = earlier.without(batch)
                    if kept.num_rows:
                        yield kept
            except LandingRowsPruned:
                # Since it was checked; nothing is left of a lane that is gone.
                row = lane.first_left()
                row = min(row if row > first else last, passed.get(lane.name, 0))
                if row <= first:
                    raise
                first = row


class _Earlier:
    """The ids in other lanes that may also be in some flushes of one lane; read when needed."""

    def __init__(self, flushes: Sequence[Flush], others: Sequence[tuple[LaneView, int]]) -> None:
        """`others`: each with the number of its rows that are earlier."""
        low = min((each.low for each in flushes), default=1)
        high = max((each.high for each in flushes), default=0)
        self._seen: set[str] = set()
        if low > high:
            return
        for lane, rows in others:
            self._take(lane, rows, low, high)

    def _take(self, lane: LaneView, rows: int, low: int, high: int) -> None:
        # No bound: each further look means that a segment more has gone. And a lane that is gone has no ids any more.
        while lane.is_there():
            try:
                for each in lane.flushes(rows, low, high):
                    for batch in lane.read(each.first_row, min(each.rows, rows)):
                        self._seen.update(batch.column("broker_id").to_pylist())
                # After the rows: what is pruned in between is then found here.
                for pruned in lane.pruned(low, high):
                    self._seen.update(pruned.ids(rows).to_pylist())
            except LandingRowsPruned:
                # Between two looks; nobody has asked for these rows.
                continue
            except FileNotFoundError as error:
                refuse_link(error)
                continue
            return

    def take_last(self, lane: LaneView, rows: int) -> None:
        """Look also at the ids of single deliveries that landed last among these rows of a lane."""
        with suppress(LandingRowsPruned, FileNotFoundError):
            for batch in lane.read_last_landed(rows):
                ids = batch.column("broker_id").to_pylist()
                self._seen.update(each for each in ids if not may_have_copies(each))

    def without(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of the batch that have no copy among these."""
        if not self._seen:
            return batch
        is_new = [each not in self._seen for each in batch.column("broker_id").to_pylist()]
        return batch if all(is_new) else batch.filter(pa.array(is_new))
