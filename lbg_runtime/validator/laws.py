"""Laws on keys, settlements and flows, and the report on owner changes; `kernel.py` says what each law demands."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from lbg_runtime.validator.arrow import ints
from lbg_runtime.validator.book import HOST_CLOCK_TOLERANCE_MS, Book
from lbg_runtime.validator.columns import NONE, Columns, Handlings, Lives
from lbg_runtime.validator.epochs import BUFFERED_NS, Epochs, Tenures, release_causes
from lbg_runtime.validator.findings import Law, Move, Witness
from lbg_runtime.validator.messages import Messages
from lbg_runtime.validator.past import CHECKED, Past
from lbg_runtime.validator.schema import ENDS, LOSSES, RunTables
from lbg_runtime.validator.segments import (
    FAR_FUTURE,
    FAR_PAST,
    Flags,
    Ints,
    changes,
    dense,
    overlapping,
    running_max,
)

_STAMP_ROUNDING_NS = 1_000
"""Wall stamps are truncated to microseconds, so the difference of two can be this far off."""

_SETTLE_ROUNDING_NS = 5_000
"""Each of the two moments of settling that are compared is computed from such a difference."""

_HOST_CLOCK_TOLERANCE_NS = HOST_CLOCK_TOLERANCE_MS * 1_000_000


def check_overlaps(book: Book, columns: Columns, epochs: Epochs) -> int:
    """Write the findings on overlapping handlings of one key, of which one is new; return how many are excused, as the
    flow of the earlier one was lost before, and the later one results from what was given to others again.
    """
    handlings = columns.handlings
    rows = _rows_of_overlapping_lanes(handlings)
    # Per life as well: among all lives, another pair may hide one within a life.
    inner_earlier, inner_later = _overlaps(handlings, rows, handlings.done_ns, handlings.journal)
    _, any_later = _overlaps(handlings, rows, handlings.done_ns)
    earlier, later, margin = _overlaps_across_lives(columns, epochs, rows)
    excused = np.setdiff1d(np.setdiff1d(any_later, inner_later), later)
    across = ~np.isin(later, inner_later)
    earlier, later, margin = earlier[across], later[across], margin[across]
    earlier, later = book.without_doubt(earlier, later, handlings.journal[earlier], handlings.journal[later], margin)

    def find(one: int, other: int) -> tuple[str, tuple[Witness, ...]]:
        first, second = book.handling(one), book.handling(other)
        shared = (int(handlings.done_ns[one]) - int(handlings.start_ns[other])) // 1_000_000
        text = f"key {first.key!r} handled by {first.member} and {second.member} at once, for up to {shared} ms"
        return text, (first, second)

    book.write_pairs(Law.OVERLAP_IN_PROCESS, inner_earlier, inner_later, handlings.start_ns[inner_later], find)
    book.write_pairs(Law.OVERLAP_ACROSS_PROCESSES, earlier, later, handlings.start_ns[later], find)
    return len(excused)


def _rows_of_overlapping_lanes(handlings: Handlings) -> Ints:
    """All handlings of the keys that have any two overlapping: nearly always none."""
    rows = np.flatnonzero(handlings.key != NONE)
    lane = dense(handlings.part[rows], handlings.key[rows])
    _, later = overlapping(lane, handlings.start_ns[rows], handlings.done_ns[rows])
    rows = rows[np.isin(lane, lane[later])]
    facts = (handlings.complete, handlings.redelivered, handlings.settle_ns, handlings.seq, handlings.publisher)
    origin = (handlings.bind_epoch, handlings.queue, handlings.journal)
    # Among equal ones it must not matter which was read first.
    return rows[np.lexsort([column[rows] for column in (*facts, *origin)])]


def _overlaps_across_lives(columns: Columns, epochs: Epochs, rows: Ints) -> tuple[Ints, Ints, Ints]:
    """Pairs whose later one began before the earlier had ended for others, or does not result from it; and by how much.

    Pairs within one life are included.
    """
    handlings = columns.handlings
    ends_ns, unexplained = _ends_for_others(columns, epochs, rows)
    earlier, later = _overlaps(handlings, rows, ends_ns)
    margin = ends_ns[earlier] - handlings.start_ns[later]
    known = set(later.tolist())
    behind = np.asarray([pair for pair in unexplained if pair[1] not in known], dtype=np.int64).reshape(-1, 2)
    behind_margin = handlings.done_ns[behind[:, 0]] - handlings.start_ns[behind[:, 1]]
    pairs = ((earlier, behind[:, 0]), (later, behind[:, 1]), (margin, behind_margin))
    earlier, later, margin = (np.concatenate(both) for both in pairs)
    return earlier, later, margin


def _overlaps(handlings: Handlings, rows: Ints, ends_ns: Ints, *group: Ints) -> tuple[Ints, Ints]:
    lane = dense(*(column[rows] for column in (handlings.part, handlings.key, *group)))
    earlier, later = overlapping(lane, handlings.start_ns[rows], ends_ns[rows])
    earlier, later = rows[earlier], rows[later]
    is_due = handlings.new[earlier] | handlings.new[later]
    return earlier[is_due], later[is_due]


def _ends_for_others(columns: Columns, epochs: Epochs, rows: Ints) -> tuple[Ints, list[tuple[int, int]]]:
    """Per handling (whole lanes are examined), until when nobody else may handle its key; and pairs of one that ran on
    after that, and another that does not result from the loss.

    A member that has lost its flow lets what runs end, and settles none of it. The broker gives the next member what
    was not settled, flagged and in its order: what is no newer than this message, then the message itself, then what
    follows.
    """
    handlings = columns.handlings
    ends_ns: Ints = handlings.done_ns.copy()
    lane = dense(handlings.part[rows], handlings.key[rows])
    by_lane = np.argsort(lane, kind="stable")
    lane, mates = lane[by_lane], rows[by_lane]
    place_of = dict(zip(mates.tolist(), lane.tolist(), strict=True))
    longest: dict[int, int] = {}
    hosts = columns.lives.host
    for row, lost_ns in _losses_while_running(columns, epochs, rows):
        ends_ns[row] = lost_ns
        begin, end = np.searchsorted(lane, [place_of[row], place_of[row] + 1]).tolist()
        others = mates[begin:end]
        others = others[handlings.journal[others] != handlings.journal[row]]
        # By another host's clock it may have been given again before that; `without_doubt` is told by how little.
        same_clock = hosts[handlings.journal[others]] == hosts[handlings.journal[row]]
        since_ns = np.where(same_clock, lost_ns, lost_ns - _HOST_CLOCK_TOLERANCE_NS)
        others = others[handlings.start_ns[others] >= since_ns]
        # A handling that started before this one, by its clock, is compared with it the other way round.
        is_behind = handlings.start_ns[others] >= handlings.start_ns[row]
        for other in others[is_behind & ~_comes_of(handlings, row, others)].tolist():
            if other not in longest or handlings.done_ns[row] > handlings.done_ns[longest[other]]:
                longest[other] = row
    is_new = handlings.new
    return ends_ns, [(row, other) for other, row in longest.items() if is_new[row] or is_new[other]]


def _losses_while_running(columns: Columns, epochs: Epochs, rows: Ints) -> Iterator[tuple[int, int]]:
    """Handlings that were running when their flow was lost, and when that was."""
    handlings = columns.handlings
    is_loss = epochs.flow_is(*LOSSES)
    rows = rows[epochs.broken[epochs.of_handling[rows]]]
    for handle in np.unique(epochs.of_handling[rows]).tolist():
        losses_ns = np.sort(epochs.flow_ns[is_loss & (epochs.of_flow == handle)])
        own = rows[epochs.of_handling[rows] == handle]
        own = own[handlings.start_ns[own] <= losses_ns[-1]]
        lost_ns = losses_ns[np.searchsorted(losses_ns, handlings.start_ns[own])]
        # A member that stood still could not know of the loss before it went on, and no other at once.
        lost_ns = columns.lives.happened_at(handlings.journal[own], lost_ns) - BUFFERED_NS
        lost_ns = np.maximum(lost_ns, handlings.start_ns[own])
        ran_on = lost_ns < handlings.done_ns[own]
        yield from zip(own[ran_on].tolist(), lost_ns[ran_on].tolist(), strict=True)


def _comes_of(handlings: Handlings, row: int, others: Ints) -> Flags:
    """Which of the others, after the loss of its flow, are what the broker gave again, or start when `row` is done."""
    start_ns, flagged, numbered = handlings.start_ns[others], handlings.redelivered[others], handlings.numbered[others]
    if handlings.numbered[row]:
        of_publisher = numbered & (handlings.publisher[others] == handlings.publisher[row])
        same = flagged & of_publisher & (handlings.seq[others] == handlings.seq[row])
        is_newer = of_publisher & (handlings.seq[others] > handlings.seq[row])
    else:
        # Which message it is cannot be known; that somebody had it before shows in the flag.
        same, is_newer = flagged & ~numbered, np.zeros(len(others), dtype=np.bool_)
    again_ns = np.min(start_ns[same], initial=FAR_FUTURE)
    explained: Flags = (flagged & ~is_newer) | (start_ns > again_ns) | (start_ns >= handlings.done_ns[row])
    return explained


def check_settlements(book: Book, handlings: Handlings, epochs: Epochs, until_ns: int) -> Flags:
    """Write the findings on settlements sent before `until_ns` and not checked yet; return which these are."""
    over_ns = epochs.over_ns[epochs.of_handling]
    sent: Flags = (handlings.settle_ns < until_ns) & (handlings.marks & CHECKED == 0)
    late = np.flatnonzero(sent & (handlings.settle_ns - _STAMP_ROUNDING_NS > over_ns))

    def find(row: int) -> tuple[str, tuple[Witness, ...]]:
        witness = book.handling(row)
        after = (int(handlings.settle_ns[row]) - int(over_ns[row])) // 1_000_000
        text = f"{witness.member} settled {_name(witness)} {after} ms after epoch {witness.epoch} was over"
        return text, (witness, book.flow(int(epochs.of_handling[row]), int(over_ns[row])))

    book.write(Law.SETTLED_AFTER_EPOCH, late, handlings.settle_ns[late], find)
    return sent


def check_outcomes(book: Book, handlings: Handlings) -> None:
    """Write the findings on new handlings that were settled without an outcome that settles."""
    rows = np.flatnonzero(~handlings.complete & (handlings.settle_ns != FAR_FUTURE) & handlings.new)

    def find(row: int) -> tuple[str, tuple[Witness, ...]]:
        witness = book.handling(row)
        return f"{witness.member} settled {_name(witness)}, whose handling was cancelled or failed", (witness,)

    book.write(Law.SETTLED_WITHOUT_OUTCOME, rows, handlings.settle_ns[rows], find)


def check_settled_order(book: Book, handlings: Handlings, epochs: Epochs, messages: Messages) -> None:
    """Write the findings on new handlings that were settled before an earlier one of their flow handle.

    In slices: one that started earlier and was not settled yet when its slice ended, or never is, is carried.
    """
    known = messages.handled >= 0
    rows, sequence = messages.handled[known], messages.sequence[known]
    start, settle = handlings.start_ns[rows], handlings.settle_ns[rows]
    # If the numbers follow the starts, a violation shows between neighbours by number; if not, all are examined.
    suspicious = ~changes(sequence)
    suspicious[1:] &= (settle[1:] < settle[:-1]) | (start[1:] < start[:-1])
    if not suspicious.any():
        return
    chosen = np.isin(sequence, sequence[suspicious])
    rows, sequence = rows[chosen], sequence[chosen]
    handle, settle = epochs.of_handling[rows], handlings.settle_ns[rows]
    order = np.lexsort((handlings.seq[rows], settle, handlings.done_ns[rows], handlings.start_ns[rows]))
    order = order[np.lexsort((handle[order], sequence[order]))]
    rows, settle, group = rows[order], settle[order], dense(sequence[order], handle[order])
    later = np.flatnonzero(~changes(group))
    earlier = running_max(group, settle)[later - 1]
    hit = (settle[earlier] - _SETTLE_ROUNDING_NS > settle[later]) & handlings.new[rows[later]]
    earlier, later = rows[earlier[hit]], rows[later[hit]]

    def find(one: int, other: int) -> tuple[str, tuple[Witness, ...]]:
        first, second = book.handling(one), book.handling(other)
        what = "was never settled" if first.settle_mono_ns is None else "was not settled yet"
        return f"{second.member} settled {_name(second)} when {first.seq}, handled before it, {what}", (first, second)

    book.write_pairs(Law.SETTLED_OUT_OF_ORDER, earlier, later, handlings.settle_ns[later], find)


def check_starts(book: Book, handlings: Handlings, epochs: Epochs) -> None:
    """Write the findings on new handlings that started after their flow had been lost."""
    is_end = epochs.flow_is(*ENDS)
    first_end = np.full(len(epochs.journal), FAR_FUTURE, dtype=np.int64)
    np.minimum.at(first_end, epochs.of_flow[is_end], epochs.flow_ns[is_end])
    epoch, start = epochs.of_handling, handlings.start_ns
    rows = np.flatnonzero(start > first_end[epoch])
    # A handling of no length was not seen to start.
    rows = rows[handlings.new[rows] & ~handlings.redelivered[rows] & (start[rows] < handlings.done_ns[rows])]
    if not len(rows):
        return
    is_active = epochs.flow_is("active")
    lost_ns = np.zeros(len(rows), dtype=np.int64)
    for handle in np.unique(epoch[rows]).tolist():
        chosen, is_own = epoch[rows] == handle, epochs.of_flow == handle
        lost_ns[chosen] = _last_before(epochs.flow_ns[is_own & is_end], start[rows[chosen]] - 1)
        # A handle may become active again.
        active_ns = _last_before(epochs.flow_ns[is_own & is_active], start[rows[chosen]])
        lost_ns[chosen] = np.where(active_ns >= lost_ns[chosen], FAR_FUTURE, lost_ns[chosen])
    is_lost = lost_ns != FAR_FUTURE
    rows, moment_of = rows[is_lost], dict(zip(rows[is_lost].tolist(), lost_ns[is_lost].tolist(), strict=True))

    def find(row: int) -> tuple[str, tuple[Witness, ...]]:
        witness, lost = book.handling(row), moment_of[row]
        after = (int(start[row]) - lost) // 1_000_000
        text = f"{witness.member} started {_name(witness)} {after} ms after it had lost the flow"
        return text, (book.flow(int(epoch[row]), lost), witness)

    book.write(Law.STARTED_AFTER_LOSS, rows, start[rows], find)


def _last_before(moments_ns: Ints, wanted_ns: Ints) -> Ints:
    """Per wanted moment, the last of the moments not after it, or `FAR_PAST`."""
    ordered = np.concatenate([[FAR_PAST], np.sort(moments_ns)])
    found: Ints = ordered[np.searchsorted(ordered, wanted_ns, side="right") - 1]
    return found


def check_tenures(book: Book, lives: Lives, epochs: Epochs, tenures: Tenures) -> None:
    """Write the findings on two members being fed at once."""
    rows = np.flatnonzero(tenures.start_ns != FAR_FUTURE)
    start, end, journal = tenures.start_ns, tenures.fed_until_ns, epochs.journal[tenures.epoch]
    # An activity that only its own record proves, and that the member noticed right after a standstill, may have begun
    # at any moment of the standstill: another member that has been fed since then may have come after it.
    begin = np.where(end > start, start, lives.happened_at(journal, start))
    proven = np.where(end > start, end, begin)
    earlier, later = overlapping(epochs.queue[tenures.epoch[rows]], begin[rows], proven[rows])
    earlier, later = rows[earlier], rows[later]
    known = end[earlier] > start[later]
    earlier, later = earlier[known], later[known]
    earlier, later = book.without_doubt(earlier, later, journal[earlier], journal[later], end[earlier] - start[later])

    def find(one: int, other: int) -> tuple[str, tuple[Witness, ...]]:
        first = book.flow(int(tenures.epoch[one]), int(start[one]), int(end[one]))
        second = book.flow(int(tenures.epoch[other]), int(start[other]), int(end[other]))
        shared = (int(end[one]) - int(start[other])) // 1_000_000
        return f"queue {first.queue} fed {first.member} and {second.member} at once, for {shared} ms", (first, second)

    book.write_pairs(Law.TWO_ACTIVE, earlier, later, start[later], find)


def find_moves(columns: Columns, epochs: Epochs, tenures: Tenures) -> list[Move]:
    """Owner changes in order of time. A queue's first owner is not a move, nor is a new epoch of the same life.

    Members that share a queue do not know what the broker moves between them, so there are none on record. A queue that
    one re-striping removed and another created again counts as two.
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
    causes = release_causes(epochs, lives, tenures.epoch[before])
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


def find_key_shards(tables: RunTables, past: Past, columns: Columns) -> pa.Table:
    """The distinct pairs of key and shard seen so far, each with one message that shows it."""
    handlings, keys, publishers = columns.handlings, columns.keys, columns.publishers
    carried = past.key_shards
    key = np.concatenate([*keys.columns[:3], keys.columns[5]])
    publisher = np.concatenate([*publishers.columns[:3], publishers.columns[5]])
    listed = ((tables.confirmed, "first_seq"), (tables.unconfirmed, "seq"), (carried, "seq"))
    shard = np.concatenate([handlings.shard, *(ints(table, "shard") for table, _ in listed)])
    seq = np.concatenate([handlings.seq, *(ints(table, name) for table, name in listed)])
    rows = np.flatnonzero((key != NONE) & (shard != NONE))
    code, rank, seq_of = dense(key[rows], shard[rows]), publishers.ranks()[publisher[rows]], seq[rows]
    # The first publisher by name, and the lowest of its numbers: not what happened to be read first.
    kept = _lowest(code, rank)
    kept = kept[_lowest(code[kept], seq_of[kept])]
    _, sample = np.unique(code[kept], return_index=True)
    rows = rows[kept[sample]]
    return pa.table(
        {
            "key": keys.arrow(key[rows]),
            "shard": pa.array(shard[rows]),
            "publisher": publishers.arrow(publisher[rows]),
            "seq": pa.array(seq[rows]),
        }
    )


def _lowest(code: Ints, values: Ints) -> Ints:
    """The rows that have the lowest value of their code."""
    lowest = np.full(int(code.max(initial=-1)) + 1, FAR_FUTURE)
    np.minimum.at(lowest, code, values)
    return np.flatnonzero(values == lowest[code])


def _name(witness: Witness) -> str:
    return f"{witness.publisher}/{witness.key}/{witness.seq}"
