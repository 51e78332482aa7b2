"""The kernel applied to one slice of a run after another; `kernel.examine` is the same with one slice.

A slice is whatever records have come since the last one. With it comes the moment before which nothing is missing:
every handling that started before it, and every flow record written before it, has come. Handlings from
`epochs.BUFFERED_NS` before that moment on wait for the next slice, so that everything is judged in order of time,
however the files of several members came in, and with the losses that its members learned of only afterwards.

A record that comes after its time was judged is late. Most late records do no harm: if nothing else of its key has been
handled since a very long handling began, it is judged as if it had come in time. Otherwise it is judged as far as
possible, never reported as violating what is forgotten, and counted: the verdict is not valid then, and what such a
record could explain is not proven.

More than 400 lines, because what is kept from one slice to the next is read and written here alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lbg_runtime.validator.accounts import (
    Ledgers,
    check_duplicates,
    check_order,
    closed_records,
    compare_with_ledgers,
    count_messages,
    listed_rows,
    read_ledgers,
)
from lbg_runtime.validator.arrow import ints
from lbg_runtime.validator.book import Book
from lbg_runtime.validator.columns import NONE, Columns, Handlings, Lives, Ranges, read_columns, read_lives
from lbg_runtime.validator.custody import find_holes
from lbg_runtime.validator.doubts import NEEDS_ITS_TIME, doubts_of_files
from lbg_runtime.validator.epochs import (
    BUFFERED_NS,
    Epochs,
    Tenures,
    exposed_handlings,
    exposed_since,
    read_epochs,
    read_tenures,
)
from lbg_runtime.validator.findings import NOTHING_YET, Examination, Finding, Law, Standing, Witness, first_of_each_law
from lbg_runtime.validator.laws import (
    check_outcomes,
    check_overlaps,
    check_settled_order,
    check_settlements,
    check_starts,
    check_tenures,
    find_key_shards,
    find_moves,
)
from lbg_runtime.validator.messages import Messages, group_messages, handled_ranges, overtaking_rows
from lbg_runtime.validator.past import (
    CHECKED,
    FIRST,
    HANDLED,
    KEY_SHARDS,
    KNOWN,
    LATE,
    LISTED,
    NO_PAST,
    REPEAT,
    SUSPECT,
    Marks,
    Past,
)
from lbg_runtime.validator.schema import DISPATCHES, FLOWS, RunTables
from lbg_runtime.validator.segments import FAR_FUTURE, FAR_PAST, Flags, Ints, dense, subtracted
from lbg_runtime.validator.turns import check_stripes, check_turns, undecided_turns

_LOOKED_AT_ANEW = {Law.TWO_ACTIVE, Law.DUPLICATE_WITHOUT_FAULT, Law.DUPLICATE_UNFLAGGED, Law.ORDER}

_BY_TIME = [(name, "ascending") for name in ("mono_ns", "journal", "queue", "bind_epoch", "event", "cause", "t")]


class SlicedExamination:
    """Checks the laws on whole parts, given in slices; called from one thread. Raises only for tables of another shape.

    Every slice comes with the tables of files and of `stripes` as they are by then, unfiltered. `stripes` should be
    those of the whole run from the first slice on: if a re-striping becomes known from later records, what was judged
    before stays judged by the layout known then.
    """

    def __init__(self, ack_window_ms: int) -> None:
        self._ack_window_ns = ack_window_ms * 1_000_000
        self._past = NO_PAST
        self._flows = FLOWS.empty_table()
        self._waiting = DISPATCHES.empty_table()
        """Handlings that started in a time from which records may still be missing."""
        self._until_ns = FAR_PAST
        self._offsets_ns = np.zeros(0, dtype=np.int64)
        """`Lives.offset_ns` as of the last slice."""
        self._counts = dict.fromkeys(Law, 0)
        self._findings: tuple[Finding, ...] = ()
        self._doubtful = 0
        self._unnumbered = 0
        self._ran_on = 0
        self._late = 0
        self._standing = NOTHING_YET
        self._told: set[tuple[Law, Witness]] = set()

    @property
    def carried(self) -> int:
        """Handlings that are kept for later slices, or wait for one."""
        return int(self._past.dispatches.num_rows + self._waiting.num_rows)

    def feed(self, tables: RunTables, until_ns: int) -> tuple[Finding, ...]:
        """Judge what has come up to a moment, on the run's clock, before which no record is missing.

        Return the earliest new findings of each law, among those that no later record can change.
        """
        # A loss counts from before its record: no later record may excuse what is judged.
        step = self._begin(tables, until_ns - BUFFERED_NS)
        book, columns = step.book, step.columns
        undecided = np.zeros(0, dtype=np.int64)
        if columns.layouts.steps:
            overtakes = check_order(Book(columns, step.epochs), columns, step.messages)
            undecided = np.concatenate([overtakes, undecided_turns(columns)])
        else:
            check_stripes(book, columns.handlings, tables.journals)
            check_order(book, columns, step.messages)
        self._take_notes(step)
        unsettled = _unsettled(step)
        open_book = _what_stands(step, unsettled)
        self._standing = self._stand(step, open_book)
        self._past = _carry(step, undecided, unsettled)
        return self._not_told([*book.findings, *open_book.findings])

    @property
    def standing(self) -> Standing:
        """How the run stands after the last slice; asked for after `feed`."""
        return self._standing

    def finish(self, tables: RunTables) -> Examination:
        """Judge the last slice, and with it what had to wait for the end of the run. Call it once."""
        step = self._begin(tables, FAR_FUTURE)
        book, columns, messages, tables = step.book, step.columns, step.messages, step.tables
        lives, layouts = columns.lives, columns.layouts
        if not lives.is_partitioned:
            check_tenures(book, lives, step.epochs, step.tenures)
        holes = find_holes(step.epochs, step.tenures, lives, layouts)
        unplaced = None
        if layouts.steps:
            unplaced = check_turns(book, columns, tables.journals, messages, holes)
        else:
            check_stripes(book, columns.handlings, tables.journals)
        check_order(book, columns, messages, unplaced)
        resent = check_duplicates(book, tables, columns, messages, step.exposed)
        self._take_notes(step)
        published, unhandled, unlisted = compare_with_ledgers(tables, columns, step.ledgers, step.handled, holes)
        accounts = count_messages(
            tables, columns, messages, step.handled, step.exposed, resent, published, self._unnumbered, self._ran_on
        )
        return Examination(
            counts=self._counts,
            findings=self._findings,
            doubtful=self._doubtful,
            unplaced=0 if unplaced is None else int(np.count_nonzero(unplaced)),
            parts=frozenset(layouts.parts_of(np.unique(step.epochs.queue)).tolist()),
            restripings=layouts.restripings,
            contradictions=layouts.contradictions,
            moves=tuple(find_moves(columns, step.epochs, step.tenures)),
            accounts=accounts,
            unhandled=unhandled,
            unlisted=unlisted,
            key_shards=find_key_shards(tables, self._past, columns),
            late=self._late,
        )

    def _begin(self, tables: RunTables, until_ns: int) -> "_Step":
        """Combine what was carried with what has come, and check the laws that need no more than that."""
        lives = read_lives(tables.journals)
        self._follow_clock(lives)
        past, until_ns = self._past, max(until_ns, self._until_ns)
        self._late += self._count_late_flows(tables.flows, lives)
        # If two records have the same moment, it must not matter which was read first.
        self._flows = pa.concat_tables([self._flows, tables.flows]).sort_by(_BY_TIME)
        tables = replace(
            tables,
            dispatches=pa.concat_tables([past.dispatches, self._due(tables.dispatches, lives, until_ns)]),
            flows=self._flows,
            confirmed=pa.concat_tables([past.confirmed, tables.confirmed]),
            unconfirmed=pa.concat_tables([past.unconfirmed, tables.unconfirmed]),
        )
        columns = read_columns(tables, lives, past)
        handlings = columns.handlings
        self._late += _mark_late(handlings, self._until_ns)
        self._until_ns = until_ns
        self._unnumbered += int(np.count_nonzero(handlings.new & ~handlings.numbered))
        epochs = read_epochs(handlings, tables.flows, lives)
        book = Book(columns, epochs)
        self._ran_on += check_overlaps(book, columns, epochs)
        checked = check_settlements(book, handlings, epochs, until_ns)
        check_outcomes(book, handlings)
        check_starts(book, handlings, epochs)
        messages = group_messages(handlings, columns.handled)
        check_settled_order(book, handlings, epochs, messages)
        handled = handled_ranges(messages, handlings, columns.handled)
        tenures = read_tenures(handlings, epochs)
        return _Step(
            tables=tables,
            past=past,
            columns=columns,
            epochs=epochs,
            tenures=tenures,
            book=book,
            checked=checked,
            exposed=exposed_handlings(handlings, epochs, tenures, lives, self._ack_window_ns),
            messages=messages,
            handled=handled,
            ledgers=read_ledgers(tables, past, columns, handled),
            until_ns=until_ns,
            ack_window_ns=self._ack_window_ns,
        )

    def _due(self, dispatches: pa.Table, lives: Lives, until_ns: int) -> pa.Table:
        """The handlings that started before the moment; the others wait."""
        dispatches = pa.concat_tables([self._waiting, dispatches])
        self._waiting = DISPATCHES.empty_table()
        if until_ns == FAR_FUTURE:
            return dispatches
        due = ints(dispatches, "start_mono_ns") + lives.offset_ns[ints(dispatches, "journal")] < until_ns
        self._waiting = dispatches.filter(pa.array(~due))
        return dispatches.filter(pa.array(due))

    def _count_late_flows(self, flows: pa.Table, lives: Lives) -> int:
        moments = ints(flows, "mono_ns") + lives.offset_ns[ints(flows, "journal")]
        return int(np.count_nonzero(moments < self._until_ns + BUFFERED_NS))

    def _follow_clock(self, lives: Lives) -> None:
        """Convert the moments kept when the first journal of a second host comes, and with it another clock."""
        before, self._offsets_ns = self._offsets_ns, lives.offset_ns
        moved = lives.offset_ns[: len(before)]
        # They are on the clock of the first host, or, if there were several before, by the wall clock already.
        if before.any() or not moved.any() or self._until_ns == FAR_PAST:
            return
        offset_ns = int(np.median(moved[moved != 0]))
        self._until_ns += offset_ns
        handled = self._past.handled
        for name in ("first_start_ns", "last_start_ns"):
            place = handled.schema.get_field_index(name)
            handled = handled.set_column(place, HANDLED.field(name), pc.add(handled.column(name), offset_ns))
        self._past = replace(self._past, handled=handled)

    def _not_told(self, findings: Sequence[Finding]) -> tuple[Finding, ...]:
        new = []
        for finding in first_of_each_law(findings):
            # What every slice examines again is also found again, perhaps with a longer duration.
            name = (finding.law, replace(finding.witnesses[-1], done_mono_ns=None))
            if name not in self._told:
                new.append(finding)
                if finding.law in _LOOKED_AT_ANEW:
                    self._told.add(name)
        return tuple(new)

    def _stand(self, step: "_Step", open_book: Book) -> Standing:
        handled, listed = step.ledgers.handled, step.ledgers.listed
        lacking = subtracted(listed, handled)
        # The last range of a group has its highest number.
        place = np.searchsorted(handled[0], lacking[0], side="right") - 1
        highest = np.full(len(place), FAR_PAST)
        known = np.flatnonzero(place >= 0)
        known = known[handled[0][place[known]] == lacking[0][known]]
        highest[known] = handled[2][place[known]]
        overtaken = np.where(lacking[1] < highest, lacking[2] - lacking[1] + 1, 0)
        repeats, layouts = step.messages.repeats, step.columns.layouts
        doubts = doubts_of_files(step.tables.journals, step.tables.ledgers, layouts.restripings)
        return Standing(
            until_ns=self._until_ns,
            counts={law: count + open_book.counts[law] for law, count in self._counts.items()},
            published=int(np.sum(listed[2] - listed[1] + 1)),
            handled_first=int(np.sum(step.handled.last_seq - step.handled.first_seq + 1)),
            on_the_way=int(np.sum(lacking[2] - lacking[1] + 1)),
            overtaken=int(np.sum(overtaken)),
            duplicates=len(repeats),
            doubtful=self._doubtful + open_book.doubtful,
            waiting=int(self._waiting.num_rows),
            late=self._late,
            unnumbered=self._unnumbered,
            reasons=(*doubts.reasons, *layouts.contradictions),
            weak=doubts.weak | (NEEDS_ITS_TIME if self._late else frozenset()),
        )

    def _take_notes(self, step: "_Step") -> None:
        for law, count in step.book.counts.items():
            self._counts[law] += count
        self._findings = first_of_each_law([*self._findings, *step.book.findings])
        self._doubtful += step.book.doubtful


@dataclass(frozen=True, slots=True)
class _Step:
    """What one slice and the past amount to, before it is decided what to carry on."""

    tables: RunTables
    past: Past
    columns: Columns
    epochs: Epochs
    tenures: Tenures
    book: Book
    checked: Flags
    """Handlings whose settlement was checked in this slice."""
    exposed: Flags
    messages: Messages
    handled: Ranges
    ledgers: Ledgers
    until_ns: int
    ack_window_ns: int


def _mark_late(handlings: Handlings, until_ns: int) -> int:
    """Mark the new handlings that cannot be judged as if they had come in time; return how many."""
    rows = np.flatnonzero(handlings.new & (handlings.start_ns < until_ns) & (handlings.key != NONE))
    if not len(rows):
        return 0
    old = np.flatnonzero(~handlings.new & (handlings.key != NONE))
    lane = dense(*(np.concatenate([column[rows], column[old]]) for column in (handlings.part, handlings.key)))
    busy_until = np.full(int(lane.max()) + 1, FAR_PAST)
    np.maximum.at(busy_until, lane[len(rows) :], handlings.done_ns[old])
    late = rows[busy_until[lane[: len(rows)]] > handlings.start_ns[rows]]
    handlings.marks[late] |= LATE
    return len(late)


def _what_stands(step: _Step, unsettled: Flags) -> Book:
    """For laws judged at the end because they need the whole run, the findings that no later record can change."""
    columns, messages, tenures = step.columns, step.messages, step.tenures
    book = Book(columns, step.epochs)
    if not columns.lives.is_partitioned:
        # Later records can only extend the time for which there is this proof, even that of a loss.
        proven = np.maximum(tenures.start_ns, np.maximum(tenures.start_ns, tenures.last_fed_ns) - BUFFERED_NS)
        check_tenures(book, columns.lives, step.epochs, replace(tenures, fed_until_ns=proven))
    if columns.layouts.steps:
        # Between two queues, what a member without a journal may have done is known only at the end.
        across = np.ones(len(columns.handlings.shard), dtype=np.bool_)
        check_order(book, columns, messages, across)
    before = messages.before_repeat
    certain = (~unsettled[before] | step.exposed[before] | ~messages.came_back) & listed_rows(
        columns, step.ledgers, step.handled, messages.repeats
    )
    check_duplicates(book, step.tables, columns, messages, step.exposed, certain)
    return book


def _carry(step: _Step, undecided: Ints, unsettled: Flags) -> Past:
    """What later slices need from this one and those before it (past.py says why)."""
    tables, columns, messages = step.tables, step.columns, step.messages
    handlings = columns.handlings
    marks: Marks = handlings.marks | np.uint8(KNOWN)
    marks[step.checked] |= CHECKED
    marks[messages.handled[messages.handled >= 0]] |= FIRST
    marks[messages.repeats] |= REPEAT
    marks[undecided] |= SUSPECT
    kept = (handlings.done_ns > step.until_ns) | (marks & (REPEAT | SUSPECT) != 0) | unsettled
    kept[overtaking_rows(messages, handlings, step.handled)] = True
    tenures = step.tenures
    for extreme, moments in (
        (tenures.first_start_ns, handlings.start_ns),
        (tenures.last_done_ns, handlings.done_ns),
        (tenures.last_receive_ns, handlings.receive_ns),
        (tenures.last_fed_ns, np.where(handlings.redelivered, FAR_PAST, handlings.receive_ns)),
    ):
        kept[_one_of_each(tenures.of_handling, moments == extreme[tenures.of_handling])] = True
    lane = dense(handlings.part, handlings.key - NONE)
    # All handlings of a key with a handling that still runs on a lost flow: they show who was given the key.
    runs_on = (handlings.done_ns > step.until_ns) & step.epochs.broken[step.epochs.of_handling]
    kept |= np.isin(lane, lane[runs_on])
    last = np.full(int(lane.max(initial=-1)) + 1, FAR_PAST)
    np.maximum.at(last, lane, handlings.done_ns)
    kept[_one_of_each(lane, handlings.done_ns == last[lane])] = True
    handled, opened = step.handled, pa.array(step.ledgers.is_open)
    numbers = {name: getattr(handled, name) for name in HANDLED.names if name not in ("publisher", "key")}
    by_name = step.ledgers.named(columns, step.ledgers.group[0], numbers)
    return Past(
        dispatches=tables.dispatches.filter(pa.array(kept)).combine_chunks(),
        marks=marks[kept],
        handled=by_name.select(HANDLED.names).cast(HANDLED),
        listed=closed_records(tables, step.past, columns, step.ledgers).cast(LISTED),
        key_shards=find_key_shards(tables, step.past, columns).cast(KEY_SHARDS),
        confirmed=tables.confirmed.filter(opened).combine_chunks(),
        unconfirmed=tables.unconfirmed,
    )


def _unsettled(step: _Step) -> Flags:
    """Handlings whose settlement may still turn out to be too late or in vain, or was in vain."""
    handlings, settle = step.columns.handlings, step.columns.handlings.settle_ns
    is_sent = settle != FAR_FUTURE
    unchecked = is_sent & (handlings.marks & CHECKED == 0) & ~step.checked
    # A life that goes on counts as cut off now, so that what its end may expose is exposed already.
    since_ns = exposed_since(step.columns.lives, step.until_ns, step.ack_window_ns)
    can_be_exposed = settle >= since_ns[handlings.journal]
    unsettled: Flags = unchecked | (handlings.complete & (~is_sent | step.exposed | can_be_exposed))
    return unsettled


def _one_of_each(groups: Ints, chosen: Flags) -> Ints:
    """One of the chosen rows of each group."""
    _, first = np.unique(groups[chosen], return_index=True)
    return np.flatnonzero(chosen)[first]
