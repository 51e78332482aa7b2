"""Laws on messages: loss, order, duplicates; and the counts of what was published and handled."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lbg_runtime.validator.arrow import ints, is_one_of
from lbg_runtime.validator.book import Book
from lbg_runtime.validator.columns import NONE, Columns, Ranges
from lbg_runtime.validator.custody import Hole, fits_in_hole
from lbg_runtime.validator.findings import Accounts, Law, Witness
from lbg_runtime.validator.messages import Messages, late_messages
from lbg_runtime.validator.past import SUSPECT, Past
from lbg_runtime.validator.schema import RunTables
from lbg_runtime.validator.segments import (
    FAR_FUTURE,
    FAR_PAST,
    Flags,
    Ints,
    dense,
    merged_ranges,
    positions_in_ranges,
    preceding,
    subtracted,
    united_ranges,
)
from lbg_runtime.validator.stays import read_stays

_CONFIRM_DELAY_MS = 50
"""How long before its publisher learns of the confirm a message can already be handled."""


def check_order(book: Book, columns: Columns, messages: Messages, unplaced: Flags | None = None) -> Ints:
    """Write the findings on order; return the handlings that they rest on.

    `unplaced` is the result of `turns.check_turns`; with it, what earlier slices left undecided is judged again.
    """
    handlings = columns.handlings
    late, ahead = late_messages(messages, handlings)
    is_due = handlings.new[late]
    if unplaced is not None:
        is_due |= handlings.marks[late] & SUSPECT != 0
        # The member that may have let the shard go may have handled the late message before one came back to another.
        is_due &= ~unplaced[ahead] | (handlings.queue[late] == handlings.queue[ahead])
    late, ahead = late[is_due], ahead[is_due]
    rows = np.concatenate([late, ahead])
    margin = handlings.start_ns[late] - handlings.start_ns[ahead]
    late, ahead = book.without_doubt(late, ahead, handlings.journal[late], handlings.journal[ahead], margin)

    def find(row: int, other: int) -> tuple[str, tuple[Witness, ...]]:
        witness, overtaker = book.handling(row), book.handling(other)
        text = f"{witness.publisher}/{witness.key}: {witness.seq} handled first after {overtaker.seq} had started"
        return text, (overtaker, witness)

    book.write_pairs(Law.ORDER, late, ahead, handlings.start_ns[late], find)
    return rows


def count_messages(
    tables: RunTables,
    columns: Columns,
    messages: Messages,
    handled: Ranges,
    exposed: Flags,
    resent: int,
    published: int,
    unnumbered: int,
    ran_on: int,
) -> Accounts:
    """The counts of a run. `columns` must hold all repeats, and every handling that a fault may have hidden."""
    handlings = columns.handlings
    unfinished_repeats = np.count_nonzero(~handlings.complete[messages.repeats])
    bound = int(np.count_nonzero(exposed & handlings.numbered) + unfinished_repeats)
    return Accounts(
        published=published,
        handled_first=int(np.sum(handled.last_seq - handled.first_seq + 1)),
        duplicates=len(messages.repeats),
        duplicate_bound=bound + len(_unknown_messages(tables, columns)),
        duplicates_flagged=int(np.count_nonzero(handlings.redelivered[messages.repeats])),
        duplicates_resent=resent,
        fenced=int(np.count_nonzero(handlings.complete & (handlings.settle_ns == FAR_FUTURE))),
        unnumbered=unnumbered,
        overlaps_after_loss=ran_on,
    )


def check_duplicates(
    book: Book, tables: RunTables, columns: Columns, messages: Messages, exposed: Flags, certain: Flags | None = None
) -> int:
    """Write the findings on duplicates; return how many were excused by a possible second sending.

    `exposed` marks the handlings that a fault may have hidden from the broker (`epochs.exposed_handlings`). With
    `certain`, only the repeats that it marks are examined.
    """
    handlings, resendable = columns.handlings, _unknown_messages(tables, columns)
    repeats, before = messages.repeats, messages.before_repeat
    faultless = handlings.complete[before] & ~exposed[before] | ~messages.came_back
    unflagged = ~handlings.redelivered[repeats]
    if columns.lives.is_partitioned:
        # The broker may have given the message to another member while it waited at the first one, and it may have
        # started there first: then the earlier of the two handlings has the flag.
        unflagged &= (before < 0) | ~handlings.redelivered[before]
    if certain is not None:
        faultless, unflagged = faultless & certain, unflagged & certain

    def find(row: int, repeat: int) -> tuple[str, tuple[Witness, ...]]:
        second = book.handling(repeat)
        flag = "flagged" if second.redelivered else "not flagged"
        if row < 0:
            first = Witness(record="dispatch", publisher=second.publisher, key=second.key, seq=second.seq)
            return f"{second.publisher}/{second.key}/{second.seq} handled again by {second.member}, {flag}", (
                first,
                second,
            )
        first = book.handling(row)
        givers = f"handled by {first.member}, again by {second.member}"
        if first.queue != second.queue:
            givers = f"handled by {first.member} in queue {first.queue}, again by {second.member} in {second.queue}"
        return f"{second.publisher}/{second.key}/{second.seq} {givers}, {flag}", (first, second)

    excused = np.zeros(len(repeats), dtype=np.bool_)
    for law, broken in ((Law.DUPLICATE_WITHOUT_FAULT, faultless), (Law.DUPLICATE_UNFLAGGED, unflagged)):
        by_resend = _first_of_resendable(columns, repeats, broken, resendable)
        found = broken & ~by_resend
        excused |= by_resend
        book.write_pairs(law, before[found], repeats[found], handlings.start_ns[repeats[found]], find)
    return int(np.count_nonzero(excused))


def _first_of_resendable(
    columns: Columns, repeats: Ints, broken: Flags, resendable: set[tuple[int, int, int]]
) -> Flags:
    """The first broken repeat of each message that may lie on its queue twice."""
    # One of two copies is done last: its first handling may follow the other's end without a fault, once, and may be
    # unflagged, once.
    handlings, found, left = columns.handlings, np.zeros(len(repeats), dtype=np.bool_), set(resendable)
    for position in np.flatnonzero(broken).tolist() if left else []:
        row = repeats[position]
        message = (int(handlings.publisher[row]), int(handlings.key[row]), int(handlings.seq[row]))
        if message in left:
            left.remove(message)
            found[position] = True
    return found


def _unknown_messages(tables: RunTables, columns: Columns) -> set[tuple[int, int, int]]:
    """Messages (publisher code, key code, number) that the publisher may have sent twice."""
    rows = np.flatnonzero(is_one_of(tables.unconfirmed, "fate", "unknown"))
    publisher, key = columns.publishers.columns[2][rows], columns.keys.columns[2][rows]
    return set(zip(publisher.tolist(), key.tolist(), ints(tables.unconfirmed, "seq")[rows].tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class Ledgers:
    """What the ledgers list and what was handled, in one group per publisher and key, regardless of parts."""

    publisher: Ints
    """Its code, per group."""
    key: Ints
    group: tuple[Ints, ...]
    """Per handled range, confirmed record, unconfirmed record, and listed range of the past."""
    handled: tuple[Ints, Ints, Ints]
    listed: tuple[Ints, Ints, Ints]
    is_open: Flags
    """Marks the confirmed records that have a number that was not handled."""

    def named(self, columns: Columns, groups: Ints, numbers: Mapping[str, Ints | Flags]) -> pa.Table:
        """The publishers and keys of groups, next to columns of numbers."""
        publisher, key = self.publisher[groups], self.key[groups]
        names = {"publisher": columns.publishers.arrow(publisher), "key": columns.keys.arrow(key)}
        return pa.table(names | {name: pa.array(column) for name, column in numbers.items()})


def read_ledgers(tables: RunTables, past: Past, columns: Columns, handled: Ranges) -> Ledgers:
    """Bring the ledgers and what was handled together."""
    publisher = np.concatenate([handled.publisher, *columns.publishers.columns[1:3], columns.publishers.columns[4]])
    key = np.concatenate([handled.key, *columns.keys.columns[1:3], columns.keys.columns[4]])
    counts = np.cumsum([len(handled.part), tables.confirmed.num_rows, tables.unconfirmed.num_rows])
    # A ledger without a readable header has no publisher (`NONE`), a code that `dense` does not take.
    group_of_row = dense(publisher - NONE, key)
    row_of_group = np.zeros(int(group_of_row.max(initial=-1)) + 1, dtype=np.int64)
    row_of_group[group_of_row] = np.arange(len(group_of_row))
    group = np.split(group_of_row, counts)
    first, last = ints(tables.confirmed, "first_seq"), ints(tables.confirmed, "last_seq")
    ranges = united_ranges(group[0], handled.first_seq, handled.last_seq)
    begin, end = positions_in_ranges(ranges, group[1], first), positions_in_ranges(ranges, group[1], last)
    listed = merged_ranges(
        np.concatenate([group[1], group[3]]),
        np.concatenate([first, ints(past.listed, "first_seq")]),
        np.concatenate([last, ints(past.listed, "last_seq")]),
    )
    is_open = (first <= last) & ((begin < 0) | (begin != end))
    return Ledgers(publisher[row_of_group], key[row_of_group], tuple(group), ranges, listed, is_open)


def listed_rows(columns: Columns, ledgers: Ledgers, handled: Ranges, rows: Ints) -> Flags:
    """Which of these handlings, whose numbers were all handled to an end, have a number that a ledger lists."""
    width = int(handled.key.max(initial=0)) + 1
    pair = handled.publisher * width + handled.key
    order = np.argsort(pair)
    handlings = columns.handlings
    place = np.searchsorted(pair[order], handlings.publisher[rows] * width + handlings.key[rows])
    group = ledgers.group[0][order][place]
    found: Flags = positions_in_ranges(ledgers.listed, group, handlings.seq[rows]) >= 0
    return found


def closed_records(tables: RunTables, past: Past, columns: Columns, ledgers: Ledgers) -> pa.Table:
    """The ledger records whose numbers have all been handled by now, as ranges."""
    rows = np.flatnonzero(~ledgers.is_open)
    first = np.concatenate([ints(tables.confirmed, "first_seq")[rows], ints(past.listed, "first_seq")])
    last = np.concatenate([ints(tables.confirmed, "last_seq")[rows], ints(past.listed, "last_seq")])
    group = np.concatenate([ledgers.group[1][rows], ledgers.group[3]])
    united = united_ranges(group, first, last)
    return ledgers.named(columns, united[0], {"first_seq": united[1], "last_seq": united[2]})


def compare_with_ledgers(
    tables: RunTables, columns: Columns, ledgers: Ledgers, handled: Ranges, holes: list[Hole]
) -> tuple[int, pa.Table, pa.Table]:
    """Count the messages published; return also the confirmed ones not handled and the handled ones in no ledger.

    `holes` are the times for which a journal may be missing (`custody.find_holes`).
    """
    lacking = subtracted(ledgers.listed, ledgers.handled)
    number = ints(tables.unconfirmed, "seq")
    unconfirmed = merged_ranges(ledgers.group[2], number, number)
    strayed = subtracted(subtracted(ledgers.handled, ledgers.listed), unconfirmed)
    numbers: dict[str, Ints | Flags] = {"first_seq": strayed[1], "last_seq": strayed[2]}
    unlisted = ledgers.named(columns, strayed[0], numbers)
    shard, unseen = _may_be_unseen(tables, columns, ledgers, handled, holes, lacking)
    numbers = {"first_seq": lacking[1], "last_seq": lacking[2], "shard": shard, "unseen": unseen}
    unhandled = ledgers.named(columns, lacking[0], numbers)
    return int(np.sum(ledgers.listed[2] - ledgers.listed[1] + 1)), unhandled, unlisted


def _may_be_unseen(
    tables: RunTables,
    columns: Columns,
    ledgers: Ledgers,
    handled: Ranges,
    holes: list[Hole],
    lacking: tuple[Ints, Ints, Ints],
) -> tuple[Ints, Flags]:
    """The shards of the unhandled ranges, and which may have been handled while their queue had no known owner.

    As order is kept, that was after the preceding number was handled and before the following one was; and not before
    the messages were published.
    """
    group, first, _ = lacking
    if not len(group):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.bool_)
    # A number next to an unhandled one is an end of a range.
    handled_group, seq = np.tile(ledgers.group[0], 2), np.concatenate([handled.first_seq, handled.last_seq])
    start_ns = np.concatenate([handled.first_start_ns, handled.last_start_ns])
    order = np.lexsort((np.tile(handled.part, 2), seq, handled_group))
    handled_group, seq, start_ns = handled_group[order], seq[order], start_ns[order]
    lower = preceding(handled_group, seq, group, first)
    earliest = np.where((lower >= 0) & (_at(handled_group, lower) == group), _at(start_ns, lower), FAR_PAST)
    higher = lower + 1
    latest = np.where((higher < len(seq)) & (_at(handled_group, higher) == group), _at(start_ns, higher), FAR_FUTURE)
    opened = np.flatnonzero(ledgers.is_open)
    confirmed_group, first_seq = ledgers.group[1][opened], ints(tables.confirmed, "first_seq")[opened]
    t_first = ints(tables.confirmed, "t_first")[opened]
    order = np.lexsort((t_first, first_seq, confirmed_group))
    row = order[preceding(confirmed_group[order], first_seq[order], group, first)]
    published = t_first[row] * 1000 - columns.lives.wall_ns - _CONFIRM_DELAY_MS * 1_000_000
    shard, earliest = ints(tables.confirmed, "shard")[opened][row], np.maximum(earliest, published)
    if not columns.layouts.steps:
        return shard, fits_in_hole(holes, shard % columns.lives.queue_count, earliest, latest)
    stays, fits = read_stays(columns.layouts, shard, holes), np.zeros(len(shard), dtype=np.bool_)
    for queue, begin, end in zip(stays.queue, stays.begin_ns, stays.end_ns, strict=True):
        first, last = np.maximum(earliest, begin), np.minimum(latest, end)
        fits |= (first < last) & fits_in_hole(holes, queue, first, last)
    return shard, fits


def _at(values: Ints, positions: Ints) -> Ints:
    """Values at positions; the values for positions out of range mean nothing."""
    return values[np.clip(positions, 0, len(values) - 1)] if len(values) else np.zeros(len(positions), dtype=np.int64)
