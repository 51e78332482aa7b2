"""A run in slices is judged as in one go, whatever the slices are, and however late they come.

More than 400 lines, as all of it is about one claim.
"""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lbg_runtime.validator.columns import read_lives
from lbg_runtime.validator.epochs import BUFFERED_NS
from lbg_runtime.validator.findings import Examination, Finding, Law, Verdict, VerdictKind
from lbg_runtime.validator.judge import judge, validate
from lbg_runtime.validator.kernel import DEFAULT_ACK_WINDOW_MS, examine
from lbg_runtime.validator.recall import forgotten_messages, handlings_of, recalled, without_faults
from lbg_runtime.validator.schema import RunTables
from lbg_runtime.validator.segments import FAR_FUTURE
from lbg_runtime.validator.slices import SlicedExamination
from tests.validator.changes import BREAKING, Change, noise, swap_two
from tests.validator.history import story
from tests.validator.run_files import MS, SECOND, WALL_OFFSET_NS, Run
from tests.validator.script import Life, at, published
from tests.validator.striping import striped_story
from tests.validator.striping_changes import BREAKING_MOVES
from tests.validator.test_judge import put_on_another_host
from tests.validator.test_kernel import OF_BOTH_KINDS, Runs

EXAMPLES = settings(deadline=None, max_examples=15)

_RECORDS = {"dispatches": "start_mono_ns", "flows": "mono_ns", "confirmed": None, "unconfirmed": None}


def slices_of(tables: RunTables, count: int, delay_ns: int, chance: Random) -> list[tuple[RunTables, int]]:
    """The records in slices, each up to `delay_ns` after its time, and until when each slice leaves nothing missing."""
    offset_ns = read_lives(tables.journals).offset_ns
    moments = {
        name: table.column(time).to_numpy() + offset_ns[table.column("journal").to_numpy()]
        if time
        else np.zeros(table.num_rows, dtype=np.int64)
        for name, time in _RECORDS.items()
        for table in [getattr(tables, name)]
    }
    timed = np.concatenate([moments[name] for name, time in _RECORDS.items() if time])
    begin, end = (int(timed.min()), int(timed.max())) if len(timed) else (0, 0)
    places = {}
    for name, time in _RECORDS.items():
        late = np.array([chance.randint(0, delay_ns) for _ in moments[name]], dtype=np.int64)
        place = (moments[name] + late - begin) * count // (end - begin + 1)
        if time is None:
            place = np.array([chance.randrange(count) for _ in moments[name]], dtype=np.int64)
        places[name] = np.clip(place, 0, count - 1)
    found = []
    for number in range(count):
        missing = [moments[name][places[name] > number] for name, time in _RECORDS.items() if time]
        until = int(np.concatenate(missing).min(initial=end + 1 + BUFFERED_NS)) - chance.choice(
            [0, 0, 1, 30 * MS, 3 * SECOND]
        )
        rows = {name: getattr(tables, name).filter(pa.array(places[name] == number, pa.bool_())) for name in _RECORDS}
        found.append((replace(tables, **rows), until))
    return found


def in_slices(tables: RunTables, slices: Sequence[tuple[RunTables, int]]) -> Examination:
    sliced = SlicedExamination(DEFAULT_ACK_WINDOW_MS)
    for part, until_ns in slices[:-1]:
        sliced.feed(part, until_ns)
    found = sliced.finish(slices[-1][0])
    return with_witnesses(found, tables)


def with_witnesses(found: Examination, tables: RunTables) -> Examination:
    messages = forgotten_messages(found)
    of_each = (handlings_of(tables.dispatches, messages.slice(row, 1)) for row in range(messages.num_rows))
    return recalled(found, [examine(without_faults(tables, rows)) for rows in of_each])


def verdict_in_slices(tables: RunTables, count: int, delay_ns: int, chance: Random) -> Verdict:
    return judge([in_slices(tables, slices_of(tables, count, delay_ns, chance))], tables.journals, tables.ledgers)


any_slices = st.tuples(st.integers(1, 12), st.sampled_from([0, 40 * MS, SECOND, 20 * SECOND]), st.randoms())


@OF_BOTH_KINDS
@given(slices=any_slices, data=st.data())
@EXAMPLES
def test_slices_of_a_damaged_run_give_what_one_go_gives(
    runs_of: Runs, slices: tuple[int, int, Random], data: st.DataObject
) -> None:
    tables = data.draw(noise(data.draw(runs_of()))).tables()

    assert verdict_in_slices(tables, *slices) == validate(tables)


def test_slices_of_a_run_of_two_hosts_give_what_one_go_gives() -> None:
    run = story()
    put_on_another_host(run, "b", 0)
    tables = run.tables()
    expected = validate(tables)
    assert expected.kind is VerdictKind.VALID

    assert verdict_in_slices(tables, 4, SECOND, Random(4)) == expected


@pytest.mark.parametrize(("law", "change"), BREAKING, ids=[change.__name__ for _, change in BREAKING])
def test_each_seeded_fault_is_found_in_slices(law: Law, change: Change) -> None:
    run = story()
    assert change(run)
    tables = run.tables()
    expected = validate(tables)
    assert expected.counts[law] > 0

    for count, delay_ns in ((4, SECOND), (12, 0)):
        assert verdict_in_slices(tables, count, delay_ns, Random(count)) == expected


def told_on_the_way(tables: RunTables) -> tuple[SlicedExamination, list[Finding]]:
    """What is found while the run goes on; what publishers do not know comes first, as in their ledgers."""
    told: list[Finding] = []
    sliced = SlicedExamination(DEFAULT_ACK_WINDOW_MS)
    unknown, tables = tables.unconfirmed, replace(tables, unconfirmed=tables.unconfirmed.slice(0, 0))
    for number, (part, until_ns) in enumerate(slices_of(tables, 12, 0, Random(1))):
        told += sliced.feed(replace(part, unconfirmed=unknown) if number == 0 else part, until_ns)
    return sliced, told


_ONLY_IN_THE_END = {Law.LOSS, Law.KEY_ON_TWO_SHARDS}


@pytest.mark.parametrize(
    ("law", "change"),
    [(law, change) for law, change in BREAKING if law not in _ONLY_IN_THE_END],
    ids=lambda each: each.__name__ if callable(each) else each.value,
)
def test_a_seeded_fault_is_told_once_while_the_run_goes_on(law: Law, change: Change) -> None:
    run = story()
    assert change(run)

    sliced, told = told_on_the_way(run.tables())

    assert {finding.law for finding in told} == {law}
    assert len(told) == sliced.standing.counts[law] == validate(run.tables()).counts[law]
    assert sliced.standing.kind is VerdictKind.INVALID


@pytest.mark.parametrize("change", [change for _, change in BREAKING_MOVES], ids=lambda change: change.__name__)
def test_each_fault_of_a_move_is_found_in_slices(change: Change) -> None:
    run = striped_story(4, 6, 3, 6)
    assert change(run)
    tables = run.tables()
    expected = validate(tables)
    assert expected.kind is VerdictKind.INVALID

    assert verdict_in_slices(tables, 12, 0, Random(1)) == expected


def test_what_is_out_of_order_in_one_queue_is_told_while_a_run_with_moves_goes_on() -> None:
    run = striped_story(4, 6, 3, 6)
    assert swap_two(run)

    sliced, told = told_on_the_way(run.tables())

    assert {finding.law for finding in told} == {Law.ORDER}
    assert len(told) == sliced.standing.counts[Law.ORDER] == validate(run.tables()).counts[Law.ORDER]


@pytest.mark.parametrize("run", [story(), striped_story(4, 6)], ids=["plain", "striped"])
def test_no_slice_of_a_clean_run_finds_anything(run: Run) -> None:
    tables = run.tables()
    sliced = SlicedExamination(DEFAULT_ACK_WINDOW_MS)

    # A ledger says that it does not know of a message before it may say that a second sending was confirmed.
    unknown, tables = tables.unconfirmed, replace(tables, unconfirmed=tables.unconfirmed.slice(0, 0))
    for number, (part, until_ns) in enumerate(slices_of(tables, 12, SECOND, Random(1))):
        assert sliced.feed(replace(part, unconfirmed=unknown) if number == 0 else part, until_ns) == ()
        assert sliced.standing.overtaken == 0
    assert sliced.standing.kind is VerdictKind.VALID
    assert (sliced.standing.on_the_way, sliced.standing.waiting) == (0, 0)
    verdict = judge([sliced.finish(nothing_more(tables))], tables.journals, tables.ledgers)

    assert verdict.kind is VerdictKind.VALID


def nothing_more(tables: RunTables) -> RunTables:
    return replace(tables, **{name: getattr(tables, name).schema.empty_table() for name in _RECORDS})


def of_second_journal(tables: RunTables) -> RunTables:
    is_new = {name: pa.compute.equal(getattr(tables, name).column("journal"), 1) for name in ("dispatches", "flows")}
    return replace(nothing_more(tables), **{name: getattr(tables, name).filter(new) for name, new in is_new.items()})


def one_by_one(tables: RunTables) -> SlicedExamination:
    """A slice for each handling, in order of time; the rest with the first one."""
    sliced = SlicedExamination(DEFAULT_ACK_WINDOW_MS)
    dispatches = tables.dispatches.sort_by("start_mono_ns")
    for row in range(dispatches.num_rows):
        part = replace(tables if row == 0 else nothing_more(tables), dispatches=dispatches.slice(row, 1))
        following = dispatches.slice(row + 1, 1).column("start_mono_ns").to_pylist()
        sliced.feed(part, min(following, default=at(10**6)))
    return sliced


def test_a_late_message_is_found_however_long_ago_it_was_overtaken() -> None:
    run = Run()
    life = Life(run, "a").flow("bound", 0).flow("active", 1)
    for place, seq in enumerate([1, 2, 5, 6, 7, 8, 4, 9, 3]):
        life.handle(seq, 10_000 * place + 10, 10_000 * place + 20, 10_000 * place + 21)
    life.flow("draining", 100_000).flow("released", 100_001).close(200_000)
    tables = published(run, 9).tables()

    sliced = one_by_one(tables)
    found = sliced.finish(nothing_more(tables))

    assert judge([found], tables.journals, tables.ledgers) == validate(tables)
    assert [finding.text for finding in found.findings] == [
        "p/k: 4 handled first after 5 had started",
        "p/k: 3 handled first after 5 had started",
    ]


def test_a_repeat_is_found_however_long_ago_the_message_was_forgotten() -> None:
    run = Run()
    life = Life(run, "a").flow("bound", 0).flow("active", 1)
    for place, name in enumerate(["k1", "k2", "l1", "k3", "k2", "k4", "l1", "k2"]):
        begin = 10_000 * place
        life.handle(int(name[1]), begin + 10, begin + 20, begin + 21, key=name[0], redelivered=place == 4)
    life.flow("draining", 100_000).flow("released", 100_001).close(200_000)
    tables = run.tables()

    found = with_witnesses(one_by_one(tables).finish(nothing_more(tables)), tables)

    assert judge([found], tables.journals, tables.ledgers) == validate(tables)
    assert (found.counts[Law.DUPLICATE_WITHOUT_FAULT], found.counts[Law.DUPLICATE_UNFLAGGED]) == (3, 2)


def test_what_is_carried_does_not_grow_with_the_handlings() -> None:
    run = Run()
    life = Life(run, "a").flow("bound", 0).flow("active", 1)
    for number in range(100):
        begin = 10_000 * number
        life.handle(number // 2 + 1, begin + 10, begin + 20, begin + 21, key="kl"[number % 2])
    life.flow("draining", 1_900_000).flow("released", 1_900_001).close(2_000_000)

    sliced = one_by_one(run.tables())

    assert sliced.carried <= 5
    assert sliced._past.handled.num_rows == 2


@pytest.mark.parametrize("ahead_s", [-5_000, 5_000])
def test_the_first_journal_of_another_clock_moves_what_was_judged_to_its_own_wall_clock(ahead_s: int) -> None:
    run = Run()
    Life(run, "a").flow("active", 1).handle(1, 10, 20, 21).flow("released", 30, cause="stop").close(40)
    published(run, 2)
    first = run.tables()
    Life(run, "b").flow("active", 60_000).handle(2, 60_010, 60_020, 60_021)
    other = run.journals[1]
    other.header = replace(other.header, boot_id="other")
    by_ns = ahead_s * SECOND
    other.wall_offset_ns -= by_ns
    monos = ("mono_ns", "receive_mono_ns", "start_mono_ns", "done_mono_ns")
    other.records = [
        replace(each, **{name: getattr(each, name) + by_ns for name in monos if hasattr(each, name)})  # type: ignore[type-var]
        for each in other.records
    ]
    run.journals[0].header = replace(run.journals[0].header, boot_id="one")
    whole = run.tables()
    sliced = SlicedExamination(DEFAULT_ACK_WINDOW_MS)
    sliced.feed(first, at(50_000))

    found = judge([sliced.finish(of_second_journal(whole))], whole.journals, whole.ledgers)

    assert found == validate(whole)
    assert found.kind is VerdictKind.VALID


def with_another_clock(run: Run) -> RunTables:
    """The tables of a run of one journal when a member of another host has gone on with number 4."""
    run.journals[0].header = replace(run.journals[0].header, boot_id="one")
    Life(run, "b").flow("active", 60_000).handle(4, 60_010, 60_020, 60_021)
    run.journals[1].header = replace(run.journals[1].header, boot_id="other")
    return run.tables()


@pytest.mark.parametrize(
    ("is_held", "published_ms", "kind"),
    [
        pytest.param(True, 0, VerdictKind.INVALID, id="its queue had an owner all the time"),
        pytest.param(False, 10_000, VerdictKind.UNKNOWN, id="a member without a journal may have had it"),
    ],
)
def test_what_is_missing_from_before_another_clock_came_is_lost_as_in_one_go(
    is_held: bool, published_ms: int, kind: VerdictKind
) -> None:
    run = Run()
    life = Life(run, "a").flow("active", 1).handle(1, 10, 20, 21)
    if not is_held:
        life.flow("released", 30, cause="handback").flow("active", 20_000, 2)
    life.handle(3, 20_010, 20_020, 20_021, epoch=1 if is_held else 2)
    first = published(run, 4, t_first_ms=published_ms).tables()
    whole = with_another_clock(run)
    sliced = SlicedExamination(DEFAULT_ACK_WINDOW_MS)
    sliced.feed(first, at(50_000))
    sliced.feed(of_second_journal(whole), at(70_000) + WALL_OFFSET_NS)

    found = judge([sliced.finish(nothing_more(whole))], whole.journals, whole.ledgers)

    assert found == validate(whole)
    assert found.kind is kind


@pytest.mark.parametrize("until_ms", [70_000, 20], ids=["on", "back"])
def test_what_comes_too_late_is_counted_as_well_if_another_clock_comes_with_it(until_ms: int) -> None:
    """Until when nothing is missing may go back, as more of a new journal is still to be read."""
    run = Run()
    life = Life(run, "a").flow("active", 1).handle(1, 10, 20, 21).handle(3, 400, 410, 411)
    life.flow("released", 30_000, cause="stop").close(30_001)
    first = published(run, 4).tables()
    life.handle(2, 25, 20_000, 20_001)
    whole = with_another_clock(run)
    second = of_second_journal(whole)
    late = whole.dispatches.filter(pa.compute.equal(whole.dispatches.column("seq"), 2))
    sliced = SlicedExamination(DEFAULT_ACK_WINDOW_MS)
    sliced.feed(first, at(15_000))

    sliced.feed(replace(second, dispatches=pa.concat_tables([second.dispatches, late])), at(until_ms) + WALL_OFFSET_NS)

    assert sliced.finish(nothing_more(whole)).late == 1


def slow_and_quick(*, is_in_doubt: bool) -> tuple[RunTables, RunTables]:
    """A record that is written long after its handling began: of a key of its own, or one that was handled since."""
    run = Run()
    life = Life(run, "a").flow("bound", 0).flow("active", 1).handle(1, 10, 20, 21)
    life.handle(2, 25, 20_000, 20_001)
    if is_in_doubt:
        life.handle(3, 400, 410, 411)
    life.flow("draining", 30_000).flow("released", 30_001).close(31_000)
    tables = published(run, 3 if is_in_doubt else 2).tables()
    is_slow = pa.compute.equal(tables.dispatches.column("seq"), 2)
    quick = replace(tables, dispatches=tables.dispatches.filter(pa.compute.invert(is_slow)))
    return quick, replace(nothing_more(tables), dispatches=tables.dispatches.filter(is_slow))


def test_a_slow_handler_is_written_down_late_and_judged_as_if_in_time() -> None:
    quick, slow = slow_and_quick(is_in_doubt=False)
    sliced = SlicedExamination(DEFAULT_ACK_WINDOW_MS)
    assert sliced.feed(quick, at(15_000)) == ()

    verdict = judge([sliced.finish(slow)], quick.journals, quick.ledgers)

    assert verdict.kind is VerdictKind.VALID, verdict


def test_what_comes_too_late_for_its_key_is_counted_and_never_called_valid() -> None:
    quick, slow = slow_and_quick(is_in_doubt=True)
    sliced = SlicedExamination(DEFAULT_ACK_WINDOW_MS)
    sliced.feed(quick, at(15_000))

    found = sliced.finish(slow)

    assert found.late == 1
    reason = "1 records came when their time had been judged, and could change what was said of it"
    assert reason in judge([found], quick.journals, quick.ledgers).reasons
    assert found.counts[Law.OVERLAP_IN_PROCESS] == 1


def test_what_comes_too_late_of_a_message_that_is_forgotten_is_counted_and_no_repeat() -> None:
    """Which of its handlings was the repeat can no longer be known."""
    run = Run()
    life = Life(run, "a").flow("bound", 0).flow("active", 1).handle(1, 10, 20, 21).handle(2, 30, 40, 41)
    life.handle(3, 400, 410, 411).handle(2, 25, 20_000, 20_001).flow("released", 30_000).close(31_000)
    tables = published(run, 3).tables()
    is_slow = pa.compute.equal(tables.dispatches.column("start_mono_ns"), at(25))
    sliced = SlicedExamination(DEFAULT_ACK_WINDOW_MS)
    sliced.feed(replace(tables, dispatches=tables.dispatches.filter(pa.compute.invert(is_slow))), at(15_000))

    found = sliced.finish(replace(nothing_more(tables), dispatches=tables.dispatches.filter(is_slow)))

    assert found.late == 1
    assert found.counts[Law.DUPLICATE_WITHOUT_FAULT] == found.counts[Law.DUPLICATE_UNFLAGGED] == 0


def test_what_a_crash_may_have_undone_is_known_when_it_comes_again_much_later() -> None:
    run = Run()
    crashed = Life(run, "a").flow("bound", 0).flow("active", 1)
    successor = Life(run, "b").flow("bound", 20_000).flow("active", 20_001)
    for seq in range(1, 8):
        crashed.handle(seq, 10 * seq, 10 * seq + 5, 10 * seq + 6)
        successor.handle(seq, 30_000 + 10 * seq, 30_005 + 10 * seq, 30_006 + 10 * seq, redelivered=True)
    successor.flow("draining", 40_000).flow("released", 40_001).close(50_000)
    tables = published(run, 7).tables()

    found = one_by_one(tables).finish(nothing_more(tables))

    verdict = judge([found], tables.journals, tables.ledgers)
    assert verdict.kind is VerdictKind.VALID, verdict
    assert verdict.accounts.duplicates == 7


def test_a_handling_that_ran_into_two_later_slices_is_seen_in_both() -> None:
    run = Run()
    one, other = (Life(run, name).flow("bound", 0).flow("active", 1) for name in ("a", "b"))
    one.handle(1, 10, 5_000, None, outcome="cancelled")
    other.handle(2, 15, 9_000, None, outcome="cancelled")
    one.handle(3, 3_000, 3_010, 3_011)
    tables = published(run, 3).tables()

    found = one_by_one(tables).finish(nothing_more(tables))

    assert judge([found], tables.journals, tables.ledgers) == validate(tables)
    assert (found.counts[Law.OVERLAP_IN_PROCESS], found.counts[Law.OVERLAP_ACROSS_PROCESSES]) == (1, 1)


def test_a_gap_is_seen_while_the_run_goes_on_and_a_tail_in_the_end() -> None:
    run = Run()
    life = Life(run, "a").flow("bound", 0).flow("active", 1)
    for seq in (1, 2, 4, 5):
        life.handle(seq, 10_000 * seq, 10_000 * seq + 10, 10_000 * seq + 11)
    life.flow("draining", 100_000).flow("released", 100_001).close(200_000)
    tables = published(run, 7).tables()

    sliced = one_by_one(tables)

    assert (sliced.standing.on_the_way, sliced.standing.overtaken) == (3, 1)
    assert sliced.standing.kind is VerdictKind.UNKNOWN
    found = judge([sliced.finish(nothing_more(tables))], tables.journals, tables.ledgers)
    assert (found.kind, found.counts[Law.LOSS]) == (VerdictKind.INVALID, 3)


@pytest.mark.parametrize("told_ms", [50_000, 101])
def test_a_repeat_whose_fault_is_told_too_late_is_not_proven(told_ms: float) -> None:
    run = Run()
    cut_off = Life(run, "a").flow("bound", 0).flow("active", 1)
    # What is first or last is kept.
    cut_off.handle(1, 5, 8, 9).handle(2, 10, 20, 21).handle(3, 30, 40, 41)
    cut_off.flow("down", 100, cause="connection lost").close(60_000)
    Life(run, "b").flow("active", 200).handle(2, 210, 220, 221, redelivered=True).flow("released", 300).close(60_000)
    tables = published(run, 3).tables()
    assert validate(tables).kind is VerdictKind.VALID
    is_cut = pa.compute.equal(tables.flows.column("event"), "down")
    sliced = SlicedExamination(DEFAULT_ACK_WINDOW_MS)

    sliced.feed(replace(tables, flows=tables.flows.filter(pa.compute.invert(is_cut))), at(told_ms))
    assert sliced.standing.kind is (VerdictKind.INVALID if told_ms == 50_000 else VerdictKind.VALID)
    late = replace(nothing_more(tables), flows=tables.flows.filter(is_cut))
    sliced.feed(late, at(60_001))

    assert (sliced.standing.kind, sliced.standing.late) == (VerdictKind.UNKNOWN, 1)
    verdict = judge([sliced.finish(nothing_more(tables))], tables.journals, tables.ledgers)
    assert verdict.kind is VerdictKind.UNKNOWN


def test_a_repeat_of_what_is_forgotten_gets_its_witness_back_whatever_its_flow_received_later() -> None:
    """Of a life that was cut off, what came last shows which of its settlements had arrived."""
    run = Run()
    life = Life(run, "a").flow("bound", 0).flow("active", 1).handle(1, 5, 8, 9).handle(2, 10, 20, 21)
    life.handle(3, 30, 40, 41).handle(2, 500, 510, 511, redelivered=True).handle(4, 600, 610, 611)
    life.handle(5, 9_000, 9_010, 9_011)
    tables = published(run, 5).tables()
    sliced = SlicedExamination(DEFAULT_ACK_WINDOW_MS)
    sliced.feed(tables, FAR_FUTURE - 1)
    found = sliced.finish(nothing_more(tables))
    assert forgotten_messages(found).num_rows == 1

    findings = with_witnesses(found, tables).findings

    assert findings == validate(tables).findings
    assert [finding.text for finding in findings] == ["p/k/2 handled by a, again by a, flagged"]
