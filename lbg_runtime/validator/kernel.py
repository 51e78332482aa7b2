"""The laws of a run, and the one function that checks them on Arrow tables.

A *message* is (publisher, key, number). A *handling* is one dispatch record; it is *complete* when it ended
accepted or rejected. All times of one run are compared on one clock (see "Clocks"). The names are stable: reports
and tests use them.

loss
    Every message that the broker confirmed has a complete handling. This includes the last messages of a key, which
    only the publisher's ledger knows of. The run must be over: a message still on its queue counts as lost. Refused
    messages and those of unknown fate are not expected, and may leave gaps. A loss is not proven where a member whose
    journal is missing may have handled the message: while its queue had no owner on record (custody.py).
order
    Within a part (see below; nearly always: a queue), publisher and key, no handling of a message starts before the
    first complete handling of any message with a lower number starts. Counted per message that came late. Repeats of
    a message already handled do not count. Together with the next law: it does not start before that one is done.
overlap_in_process, overlap_across_processes
    Two handlings of one key in a part never overlap in time, from start to done, complete or not. Counted per
    handling that starts inside another one of its key. In one life of a member the lane forbids it, whatever the
    broker does. Across lives it can happen when a member is cut off from the broker and its handler still runs; it is
    a violation all the same.
duplicate_without_fault
    A *duplicate* is a handling of a message after its first complete one. It is allowed only where a fault explains
    it: since the first complete one it was handled on the same queue, and the handling right before it there was not
    complete, or its settlement may not have reached the broker, because
    (a) its member's life ended uncleanly before the flow was released, or (b) its flow became inactive or went
    down, and the settlement was never sent or was sent at most the acknowledgement window before that end (the
    client sends acknowledgements on a timer of one second).
duplicate_unflagged
    A duplicate carries the broker's redelivered flag. Without it, it is a second copy.
    Each of the two duplicate laws excuses one duplicate of a message whose fate a ledger calls unknown: its publisher
    may have sent it twice under one number. Nothing else explains a second copy.
settled_after_epoch
    No settlement is sent once its epoch is over: after the flow's `released` or `down` record, or after a later
    epoch of the same life and queue has become active.
two_active
    No two flows are fed on one queue at the same time. Only proof counts: a flow is fed from its `active` record to
    the last message it received and handled, or the start of its drain; a flow released in good order also to the
    end of its last handling. A crashed or cut-off member proves nothing after that. Not for members that share a
    partitioned queue: there only keys have one owner at a time, which the laws on overlaps look after.
key_on_two_shards
    A key lies in one shard, whoever published it. Two shards mean two queues, and so no order between them.
shard_in_wrong_queue
    Queue n of N holds the shards s with s mod N = n. N is the queue count of the journal's header or, in a run with
    re-stripings, also one of theirs.
shard_handled_after_leaving, shard_handled_before_arriving
    A shard is handled in the layout of its time (layouts.py). Where a re-striping moves it, no handling starts in its
    old queue after the first record that it has left that one, and none in its new queue before that. Repeats of a
    message already handled do not count. That there is no such record proves something only if known members had the
    old queue all the time: else one whose journal is missing may have written it.

Clocks: journals of one host share its monotonic clock, which is exact. Journals of several hosts are moved to their
wall clocks; a difference between two of them within `HOST_CLOCK_TOLERANCE_MS` (book.py) is then doubtful, not
proven.

Parts: every law but the last step of loss and of key_on_two_shards looks at one part of the run at a time. A part is
a queue; where re-stripings moved shards from queue to queue, a set of queues among which every shard of theirs stayed:
those that are equal modulo the greatest common divisor of all the queue counts. `examine` may be given any set of
whole parts: the dispatches and flows of their queues, the ledger rows of their shards, and unfiltered the tables of
files and of `stripes`, which are small. `layouts.part_count` says how to cut: by queue, and shard, modulo it. `judge`
takes all the examinations, and raises where a part was split between two.
"""

import numpy as np
import pyarrow as pa

from lbg_runtime.validator.accounts import check_messages
from lbg_runtime.validator.arrow import ints
from lbg_runtime.validator.book import Book
from lbg_runtime.validator.columns import NONE, Columns, Handlings, read_columns
from lbg_runtime.validator.custody import find_holes
from lbg_runtime.validator.epochs import (
    Epochs,
    Tenures,
    exposed_handlings,
    read_epochs,
    read_tenures,
    release_causes,
)
from lbg_runtime.validator.findings import Examination, Law, Move, Witness
from lbg_runtime.validator.messages import group_messages
from lbg_runtime.validator.schema import RunTables
from lbg_runtime.validator.segments import FAR_FUTURE, Ints, changes, dense, overlapping
from lbg_runtime.validator.turns import check_stripes, check_turns

DEFAULT_ACK_WINDOW_MS = 1500
"""The client's acknowledgement timer of one second, and a margin for the moment of death."""

_STAMP_ROUNDING_NS = 1_000
"""Wall stamps are cut to microseconds, so a difference of two can be this far off."""


def examine(tables: RunTables, ack_window_ms: int = DEFAULT_ACK_WINDOW_MS) -> Examination:
    """Check the laws on whole parts. A plain function of its tables; raises only for tables of another shape."""
    columns = read_columns(tables)
    handlings, lives, layouts = columns.handlings, columns.lives, columns.layouts
    epochs = read_epochs(handlings, tables.flows, lives)
    tenures = read_tenures(handlings, epochs, tables.flows)
    book = Book(columns, epochs)
    _check_overlaps(book, handlings)
    _check_settlements(book, handlings, epochs)
    if not lives.is_partitioned:
        _check_tenures(book, epochs, tenures)
    exposed = exposed_handlings(handlings, epochs, lives, tables.flows, ack_window_ms * 1_000_000)
    holes = find_holes(epochs, tenures, tables.flows, lives, layouts)
    messages, unplaced = group_messages(handlings), None
    if layouts.steps:
        unplaced = check_turns(book, columns, tables.journals, messages, holes)
    else:
        check_stripes(book, handlings, tables.journals)
    accounts, unhandled, unlisted = check_messages(book, tables, columns, messages, exposed, holes, unplaced)
    # The largest of all; what follows needs room of its own.
    del messages
    return Examination(
        counts=book.counts,
        findings=tuple(book.findings),
        doubtful=book.doubtful,
        unplaced=0 if unplaced is None else int(np.count_nonzero(unplaced)),
        parts=frozenset(layouts.parts_of(np.unique(epochs.queue)).tolist()),
        restripings=layouts.restripings,
        contradictions=layouts.contradictions,
        moves=tuple(_find_moves(tables, columns, epochs, tenures)),
        accounts=accounts,
        unhandled=unhandled,
        unlisted=unlisted,
        key_shards=_find_key_shards(tables, columns),
    )


def _check_overlaps(book: Book, handlings: Handlings) -> None:
    rows = np.flatnonzero(handlings.key != NONE)
    lane = dense(handlings.part[rows], handlings.key[rows])
    earlier, later = overlapping(lane, handlings.start_ns[rows], handlings.done_ns[rows])
    # In the lanes where something overlaps, ask again per life: the other pair may have hidden it.
    rows = rows[np.isin(lane, lane[later])]
    earlier, later = _overlaps(handlings, rows, handlings.part, handlings.key)
    inner_earlier, inner_later = _overlaps(handlings, rows, handlings.part, handlings.key, handlings.journal)
    across = ~np.isin(later, inner_later)
    earlier, later = earlier[across], later[across]
    margin = handlings.done_ns[earlier] - handlings.start_ns[later]
    earlier, later = book.without_doubt(earlier, later, handlings.journal[earlier], handlings.journal[later], margin)

    def find(one: int, other: int) -> tuple[str, tuple[Witness, ...]]:
        first, second = book.handling(one), book.handling(other)
        shared = (int(handlings.done_ns[one]) - int(handlings.start_ns[other])) // 1_000_000
        text = f"key {first.key!r} handled by {first.member} and {second.member} at once, for up to {shared} ms"
        return text, (first, second)

    book.write_pairs(Law.OVERLAP_IN_PROCESS, inner_earlier, inner_later, find)
    book.write_pairs(Law.OVERLAP_ACROSS_PROCESSES, earlier, later, find)


def _overlaps(handlings: Handlings, rows: Ints, *group: Ints) -> tuple[Ints, Ints]:
    lane = dense(*(column[rows] for column in group))
    earlier, later = overlapping(lane, handlings.start_ns[rows], handlings.done_ns[rows])
    return rows[earlier], rows[later]


def _check_settlements(book: Book, handlings: Handlings, epochs: Epochs) -> None:
    over_ns = epochs.over_ns[epochs.of_handling]
    sent = handlings.settle_ns != FAR_FUTURE
    late = np.flatnonzero(sent & (handlings.settle_ns - _STAMP_ROUNDING_NS > over_ns))

    def find(row: int) -> tuple[str, tuple[Witness, ...]]:
        witness = book.handling(row)
        after = (int(handlings.settle_ns[row]) - int(over_ns[row])) // 1_000_000
        text = f"{witness.member} settled {_name(witness)} {after} ms after epoch {witness.epoch} was over"
        return text, (witness, book.flow(int(epochs.of_handling[row]), int(over_ns[row])))

    book.write(Law.SETTLED_AFTER_EPOCH, late, find)


def _check_tenures(book: Book, epochs: Epochs, tenures: Tenures) -> None:
    rows = np.flatnonzero(tenures.start_ns != FAR_FUTURE)
    start, end = tenures.start_ns, tenures.fed_until_ns
    earlier, later = overlapping(epochs.queue[tenures.epoch[rows]], start[rows], end[rows])
    earlier, later = rows[earlier], rows[later]
    journal = epochs.journal[tenures.epoch]
    earlier, later = book.without_doubt(earlier, later, journal[earlier], journal[later], end[earlier] - start[later])

    def find(one: int, other: int) -> tuple[str, tuple[Witness, ...]]:
        first = book.flow(int(tenures.epoch[one]), int(start[one]), int(end[one]))
        second = book.flow(int(tenures.epoch[other]), int(start[other]), int(end[other]))
        shared = (int(end[one]) - int(start[other])) // 1_000_000
        return f"queue {first.queue} fed {first.member} and {second.member} at once, for {shared} ms", (first, second)

    book.write_pairs(Law.TWO_ACTIVE, earlier, later, find)


def _find_moves(tables: RunTables, columns: Columns, epochs: Epochs, tenures: Tenures) -> list[Move]:
    """Owner changes in order of time. A queue's first owner is no move, nor is a new epoch of the same life.

    Members that share a queue do not know what the broker moves between them, so there are none on record. A queue that
    a re-striping removed and another one made anew is two.
    """
    lives = columns.lives
    if lives.is_partitioned:
        return []
    rows = np.flatnonzero(tenures.first_start_ns != FAR_FUTURE)
    queue = epochs.queue[tenures.epoch]
    rows = rows[np.lexsort((tenures.first_start_ns[rows], queue[rows]))]
    journal = epochs.journal[tenures.epoch]
    removals = columns.layouts.removals(queue[rows], tenures.first_start_ns[rows])
    moved = ~changes(queue[rows], removals)[1:] & (journal[rows][1:] != journal[rows][:-1])
    before, after = rows[:-1][moved], rows[1:][moved]
    causes = release_causes(epochs, tables.flows, lives, tenures.epoch[before])
    moves = [
        Move(
            queue=int(queue[old]),
            from_member=lives.member[journal[old]],
            to_member=lives.member[journal[new]],
            cause=cause,
            pause_ms=round((int(tenures.first_start_ns[new]) - int(tenures.last_done_ns[old])) / 1_000_000),
            start_mono_ns=int(tenures.first_start_ns[new]),
            to_incarnation=int(lives.incarnation[journal[new]]),
            to_epoch=int(epochs.number[tenures.epoch[new]]),
        )
        for old, new, cause in zip(before.tolist(), after.tolist(), causes, strict=True)
    ]
    return sorted(moves, key=lambda move: (move.start_mono_ns, move.queue))


def _find_key_shards(tables: RunTables, columns: Columns) -> pa.Table:
    """Distinct pairs of key and shard, each with one message that shows it."""
    handlings = columns.handlings
    key = np.concatenate(columns.keys.columns)
    publisher = np.concatenate(columns.publishers.columns)
    shard = np.concatenate([handlings.shard, ints(tables.confirmed, "shard"), ints(tables.unconfirmed, "shard")])
    seq = np.concatenate([handlings.seq, ints(tables.confirmed, "first_seq"), ints(tables.unconfirmed, "seq")])
    rows = np.flatnonzero((key != NONE) & (shard != NONE))
    _, sample = np.unique(dense(key[rows], shard[rows]), return_index=True)
    rows = rows[sample]
    return pa.table(
        {
            "key": columns.keys.arrow(key[rows]),
            "shard": pa.array(shard[rows]),
            "publisher": columns.publishers.arrow(publisher[rows]),
            "seq": pa.array(seq[rows]),
        }
    )


def _name(witness: Witness) -> str:
    return f"{witness.publisher}/{witness.key}/{witness.seq}"
