"""Laws on messages: loss, order, duplicates; and the counts of what was published and handled."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from lbg_runtime.validator.arrow import ints, is_one_of
from lbg_runtime.validator.book import Book
from lbg_runtime.validator.columns import NONE, Columns
from lbg_runtime.validator.custody import Hole, fits_in_hole
from lbg_runtime.validator.findings import Accounts, Law, Witness
from lbg_runtime.validator.messages import Messages, late_messages
from lbg_runtime.validator.schema import RunTables
from lbg_runtime.validator.segments import (
    FAR_FUTURE,
    FAR_PAST,
    Flags,
    Ints,
    dense,
    gaps,
    merged_ranges,
    positions_in_ranges,
    preceding,
)
from lbg_runtime.validator.stays import read_stays

_CONFIRM_DELAY_MS = 50
"""A message can be handled so long before its publisher learns that it was confirmed."""


def check_messages(
    book: Book,
    tables: RunTables,
    columns: Columns,
    messages: Messages,
    exposed: Flags,
    holes: list[Hole],
    unplaced: Flags | None,
) -> tuple[Accounts, pa.Table, pa.Table]:
    """Write the findings on order and duplicates; return the counts and what `judge` needs for loss.

    `exposed` marks the handlings that a fault may have hidden from the broker (`epochs.exposed_handlings`), `holes` are
    the times for which a journal may be missing (`custody.find_holes`), `unplaced` what `turns.check_turns` said.
    """
    handlings = columns.handlings
    _check_order(book, columns, messages, unplaced)
    resendable = _unknown_messages(tables, columns)
    excused = _check_duplicates(book, columns, messages, exposed, resendable)
    published, unhandled, unlisted = _compare_with_ledgers(tables, columns, messages, holes)
    unfinished_repeats = np.count_nonzero(~handlings.complete[messages.repeats])
    accounts = Accounts(
        published=published,
        handled_first=int(np.count_nonzero(messages.handled >= 0)),
        duplicates=len(messages.repeats),
        duplicate_bound=int(np.count_nonzero(exposed & handlings.numbered) + unfinished_repeats) + len(resendable),
        duplicates_flagged=int(np.count_nonzero(handlings.redelivered[messages.repeats])),
        duplicates_resent=excused,
        fenced=int(np.count_nonzero(handlings.complete & (handlings.settle_ns == FAR_FUTURE))),
        unnumbered=int(np.count_nonzero(~handlings.numbered)),
    )
    return accounts, unhandled, unlisted


def _check_order(book: Book, columns: Columns, messages: Messages, unplaced: Flags | None) -> None:
    handlings = columns.handlings
    late, ahead = late_messages(messages, handlings)
    if unplaced is not None:
        # The member that may have let the shard go may have handled the late message, before one came back to another.
        proven = ~unplaced[ahead] | (handlings.queue[late] == handlings.queue[ahead])
        late, ahead = late[proven], ahead[proven]
    margin = handlings.start_ns[late] - handlings.start_ns[ahead]
    late, ahead = book.without_doubt(late, ahead, handlings.journal[late], handlings.journal[ahead], margin)

    def find(row: int, other: int) -> tuple[str, tuple[Witness, ...]]:
        witness, overtaker = book.handling(row), book.handling(other)
        text = f"{witness.publisher}/{witness.key}: {witness.seq} handled first after {overtaker.seq} had started"
        return text, (overtaker, witness)

    book.write_pairs(Law.ORDER, late, ahead, find)


def _check_duplicates(
    book: Book, columns: Columns, messages: Messages, exposed: Flags, resendable: set[tuple[int, int, int]]
) -> int:
    """Write the findings on duplicates; return how many were excused by a possible second sending."""
    handlings = columns.handlings
    repeats, before = messages.repeats, messages.before_repeat
    faultless = handlings.complete[before] & ~exposed[before] | ~messages.came_back
    unflagged = ~handlings.redelivered[repeats]

    def find(row: int, repeat: int) -> tuple[str, tuple[Witness, ...]]:
        first, second = book.handling(row), book.handling(repeat)
        flag = "flagged" if second.redelivered else "not flagged"
        givers = f"handled by {first.member}, again by {second.member}"
        if first.queue != second.queue:
            givers = f"handled by {first.member} in queue {first.queue}, again by {second.member} in {second.queue}"
        return f"{second.publisher}/{second.key}/{second.seq} {givers}, {flag}", (first, second)

    excused = np.zeros(len(repeats), dtype=np.bool_)
    for law, broken in ((Law.DUPLICATE_WITHOUT_FAULT, faultless), (Law.DUPLICATE_UNFLAGGED, unflagged)):
        by_resend = _first_of_resendable(columns, repeats, broken, resendable)
        found = broken & ~by_resend
        excused |= by_resend
        book.write_pairs(law, before[found], repeats[found], find)
    return int(np.count_nonzero(excused))


def _first_of_resendable(
    columns: Columns, repeats: Ints, broken: Flags, resendable: set[tuple[int, int, int]]
) -> Flags:
    """The first broken repeat of each message that may lie on its queue twice."""
    # Of two copies, one ends last: what precedes its first handling may be the other's end, once; and it is new once.
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


def _compare_with_ledgers(
    tables: RunTables, columns: Columns, messages: Messages, holes: list[Hole]
) -> tuple[int, pa.Table, pa.Table]:
    """Messages published; the confirmed ones that nobody here handled; the handled ones that no ledger here has."""
    handled = messages.handled[messages.handled >= 0]
    publisher = np.concatenate([*columns.publishers.columns[1:], columns.handlings.publisher[handled]])
    key = np.concatenate([*columns.keys.columns[1:], columns.handlings.key[handled]])
    # A ledger without a readable header has no publisher, which is no code that `dense` takes.
    group = dense(publisher - NONE, key)
    bounds = [tables.confirmed.num_rows, tables.confirmed.num_rows + tables.unconfirmed.num_rows]
    confirmed_group, unconfirmed_group, handled_group = np.split(group, bounds)
    seq = columns.handlings.seq[handled]

    ranges = merged_ranges(confirmed_group, ints(tables.confirmed, "first_seq"), ints(tables.confirmed, "last_seq"))
    holder = positions_in_ranges(ranges, handled_group, seq)
    lacking = gaps(ranges, holder, seq)
    strayed = np.flatnonzero(holder < 0)
    number = ints(tables.unconfirmed, "seq")
    listed = positions_in_ranges(merged_ranges(unconfirmed_group, number, number), handled_group[strayed], seq[strayed])
    strayed = strayed[listed < 0]

    _, sample = np.unique(group, return_index=True)
    unlisted = _named(columns, publisher, key, sample[handled_group[strayed]], {"seq": seq[strayed]})
    moments = (handled_group, seq, columns.handlings.start_ns[handled])
    unseen = _may_be_unseen(tables, columns, holes, confirmed_group, moments, lacking)
    numbers: dict[str, Ints | Flags] = {"first_seq": lacking[1], "last_seq": lacking[2], "unseen": unseen}
    unhandled = _named(columns, publisher, key, sample[lacking[0]], numbers)
    return int(np.sum(ranges[2] - ranges[1] + 1)), unhandled, unlisted


def _may_be_unseen(
    tables: RunTables,
    columns: Columns,
    holes: list[Hole],
    confirmed_group: Ints,
    handled: tuple[Ints, Ints, Ints],
    lacking: tuple[Ints, Ints, Ints],
) -> Flags:
    """Which of the ranges that nobody handled may have been handled while their queue had no known owner.

    That was after the number before was handled and before the number after was, as order is kept; and not before the
    messages were published. `handled` is (group, number, start) of what was handled.
    """
    group, first, _ = lacking
    if not len(group):
        return np.zeros(0, dtype=np.bool_)
    handled_group, seq, start_ns = handled
    order = np.lexsort((seq, handled_group))
    handled_group, seq, start_ns = handled_group[order], seq[order], start_ns[order]
    lower = preceding(handled_group, seq, group, first)
    earliest = np.where((lower >= 0) & (_at(handled_group, lower) == group), _at(start_ns, lower), FAR_PAST)
    higher = lower + 1
    latest = np.where((higher < len(seq)) & (_at(handled_group, higher) == group), _at(start_ns, higher), FAR_FUTURE)
    first_seq = ints(tables.confirmed, "first_seq")
    order = np.lexsort((first_seq, confirmed_group))
    row = order[preceding(confirmed_group[order], first_seq[order], group, first)]
    published = ints(tables.confirmed, "t_first")[row] * 1000 - columns.lives.wall_ns - _CONFIRM_DELAY_MS * 1_000_000
    shard, earliest = ints(tables.confirmed, "shard")[row], np.maximum(earliest, published)
    if not columns.layouts.steps:
        return fits_in_hole(holes, shard % columns.lives.queue_count, earliest, latest)
    stays, fits = read_stays(columns.layouts, shard, holes), np.zeros(len(shard), dtype=np.bool_)
    for queue, begin, end in zip(stays.queue, stays.begin_ns, stays.end_ns, strict=True):
        first, last = np.maximum(earliest, begin), np.minimum(latest, end)
        fits |= (first < last) & fits_in_hole(holes, queue, first, last)
    return fits


def _at(values: Ints, positions: Ints) -> Ints:
    """Values at positions, of which those outside mean nothing."""
    return values[np.clip(positions, 0, len(values) - 1)] if len(values) else np.zeros(len(positions), dtype=np.int64)


def _named(columns: Columns, publisher: Ints, key: Ints, rows: Ints, numbers: Mapping[str, Ints | Flags]) -> pa.Table:
    names = {"publisher": columns.publishers.arrow(publisher[rows]), "key": columns.keys.arrow(key[rows])}
    return pa.table(names | {name: pa.array(column) for name, column in numbers.items()})
