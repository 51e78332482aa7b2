"""Laws on shards and queues: a shard is handled in the queue that holds it, and while that queue holds it."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lbg_runtime.validator.arrow import ints
from lbg_runtime.validator.book import Book
from lbg_runtime.validator.columns import NONE, Columns, Handlings
from lbg_runtime.validator.custody import Hole
from lbg_runtime.validator.findings import Law, Witness
from lbg_runtime.validator.layouts import Layouts
from lbg_runtime.validator.messages import Messages
from lbg_runtime.validator.segments import Flags, Ints, dense
from lbg_runtime.validator.stays import Stays, read_stays

_LATEST_NS = 1 << 62
"""Later than any moment of a record, and early enough to be subtracted from."""


def check_stripes(book: Book, handlings: Handlings, journals: pa.Table) -> None:
    """Write the findings on shards in wrong queues, in a run without re-stripings."""
    queue_count = ints(journals, "queue_count", 0)[handlings.journal]
    known = (handlings.shard != NONE) & (queue_count > 0)
    strayed = np.flatnonzero(handlings.new & known & (handlings.shard % np.maximum(queue_count, 1) != handlings.queue))

    def find(row: int) -> tuple[str, tuple[Witness, ...]]:
        witness = book.handling(row)
        return f"shard {witness.shard} came through queue {witness.queue} of {queue_count[row]}", (witness,)

    book.write(Law.SHARD_IN_WRONG_QUEUE, strayed, handlings.start_ns[strayed], find)


@dataclass(frozen=True, slots=True)
class Turns:
    """How the queue held the shard, for each handling."""

    rows: Ints
    code: Ints
    """Per row, the column of `stays`."""
    stays: Stays
    held: Flags
    """Its queue holds the shard in one of the layouts, whenever that was."""
    in_turn: Flags
    on_record: Flags
    """In its turn, whatever a member without a journal did."""


def read_turns(columns: Columns, holes: list[Hole]) -> Turns:
    """Compare the handlings with the stays of their shards, in a run with re-stripings."""
    handlings, layouts = columns.handlings, columns.layouts
    rows = np.flatnonzero(handlings.shard != NONE)
    shard, queue, start = handlings.shard[rows], handlings.queue[rows], handlings.start_ns[rows]
    code = dense(shard)
    shards = np.zeros(int(code.max(initial=-1)) + 1, dtype=np.int64)
    shards[code] = shard
    stays = read_stays(layouts, shards, holes)
    held, in_turn, on_record = (np.zeros(len(rows), dtype=np.bool_) for _ in range(3))
    for layout in range(len(layouts.counts)):
        here = stays.queue[layout][code] == queue
        held |= here
        here &= start <= stays.end_ns[layout][code]
        in_turn |= here & (start >= stays.begin_ns[layout][code])
        on_record |= here & (start >= stays.recorded_ns[layout][code])
    return Turns(rows, code, stays, held, in_turn, on_record)


def undecided_turns(columns: Columns) -> Ints:
    """Handlings for which later records decide whether they came through the right queue, and at the right time."""
    turns = read_turns(columns, [])
    return turns.rows[~turns.on_record]


def check_turns(book: Book, columns: Columns, journals: pa.Table, messages: Messages, holes: list[Hole]) -> Flags:
    """Write the findings on shards in the wrong queue, or at the wrong time, in a run with re-stripings.

    Return the handlings that came in time only if a member whose journal is missing let their shard go.
    """
    handlings, layouts = columns.handlings, columns.layouts
    turns = read_turns(columns, holes)
    rows, held, in_turn = turns.rows, turns.held, turns.in_turn
    own_count = ints(journals, "queue_count", 0)[handlings.journal[rows]]
    by_header = (own_count > 0) & (handlings.shard[rows] % np.maximum(own_count, 1) == handlings.queue[rows])
    _write_wrong(book, handlings, rows[~held & ~by_header], layouts)
    # A fault may bring a message back to a queue that its shard has left. Without a number, only its flag shows that.
    is_first = handlings.numbered | ~handlings.redelivered
    is_first[messages.repeats] = False
    _write_untimely(book, columns, turns, np.flatnonzero(held & ~in_turn & is_first[rows]))
    unplaced = np.zeros(len(handlings.shard), dtype=np.bool_)
    unplaced[rows[in_turn & ~turns.on_record & is_first[rows]]] = True
    return unplaced


def _write_wrong(book: Book, handlings: Handlings, strayed: Ints, layouts: Layouts) -> None:
    counts = ", ".join(str(count) for count in sorted(set(layouts.counts)))

    def find(row: int) -> tuple[str, tuple[Witness, ...]]:
        witness = book.handling(row)
        text = f"shard {witness.shard} came through queue {witness.queue}, which holds it with none of {counts} queues"
        return text, (witness,)

    book.write(Law.SHARD_IN_WRONG_QUEUE, strayed, handlings.start_ns[strayed], find)


def _write_untimely(book: Book, columns: Columns, turns: Turns, untimely: Ints) -> None:
    """`untimely` are positions in `turns.rows`; each is compared with the nearest end of a stay of its shard in its
    queue."""
    handlings, layouts, stays = columns.handlings, columns.layouts, turns.stays
    handling, column = turns.rows[untimely], turns.code[untimely]
    start = handlings.start_ns[handling]
    margin = np.full(len(untimely), _LATEST_NS)
    is_late = np.zeros(len(untimely), dtype=np.bool_)
    record = np.full(len(untimely), -1)
    for layout in range(len(layouts.counts)):
        here = stays.queue[layout][column] == handlings.queue[handling]
        for late, moment, row in ((True, stays.end_ns, stays.end_row), (False, stays.begin_ns, stays.begin_row)):
            bound = np.clip(moment[layout][column], -_LATEST_NS, _LATEST_NS)
            distance = start - bound if late else bound - start
            nearer = here & (distance > 0) & (distance <= margin)
            margin, is_late = np.where(nearer, distance, margin), np.where(nearer, late, is_late)
            record = np.where(nearer, row[layout][column], record)
    journal = np.where(record >= 0, layouts.journal[np.maximum(record, 0)], handlings.journal[handling])

    def find_late(row: int, other: int) -> tuple[str, tuple[Witness, ...]]:
        said, witness = book.stripes(row), book.handling(other)
        after = (int(handlings.start_ns[other]) - int(layouts.moment_ns[row])) // 1_000_000
        return f"shard {witness.shard} handled in queue {witness.queue} {after} ms after it had left", (said, witness)

    def find_early(row: int, other: int) -> tuple[str, tuple[Witness, ...]]:
        witness = book.handling(other)
        what = f"shard {witness.shard} handled in queue {witness.queue}"
        if row < 0:
            return f"{what}, but no journal says that its old queue had let it go", (witness,)
        said = book.stripes(row)
        before = (int(layouts.moment_ns[row]) - int(handlings.start_ns[other])) // 1_000_000
        return f"{what} {before} ms before queue {said.queue} had let it go", (witness, said)

    for law, chosen, find in (
        (Law.SHARD_HANDLED_AFTER_LEAVING, is_late, find_late),
        (Law.SHARD_HANDLED_BEFORE_ARRIVING, ~is_late, find_early),
    ):
        firsts, seconds = record[chosen], handling[chosen]
        sure = book.without_doubt(firsts, seconds, journal[chosen], handlings.journal[seconds], margin[chosen])
        book.write_pairs(law, *sure, handlings.start_ns[sure[1]], find)
