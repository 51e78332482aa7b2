"""Which faults excuse which duplicates, who was fed when, and how owner changes are told.

More than 400 lines, as all cases are scripts of the same few lives.
"""

from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lbg_runtime.validator.book import HOST_CLOCK_TOLERANCE_MS
from lbg_runtime.validator.findings import Law, Verdict, VerdictKind
from lbg_runtime.validator.judge import judge, validate
from lbg_runtime.validator.kernel import DEFAULT_ACK_WINDOW_MS
from lbg_runtime.validator.report import as_text
from lbg_runtime.validator.schema import RunTables
from lbg_runtime.validator.slices import SlicedExamination
from tests.validator.run_files import Run
from tests.validator.script import Life, at, broken, published


def judged(run: Run, last_seq: int = 1, *, unknown: tuple[int, ...] = ()) -> Verdict:
    return validate(published(run, last_seq, unknown=unknown).tables())


def repeat_by_b(run: Run, start_ms: float) -> None:
    life = Life(run, "b").flow("active", start_ms - 1).handle(1, start_ms, start_ms + 1, start_ms + 1, redelivered=True)
    life.leave(start_ms + 100)


@pytest.mark.parametrize(("settle_ms", "is_allowed"), [(1000, True), (999, False)])
def test_a_crash_excuses_settlements_up_to_the_window_before_the_last_that_came(
    settle_ms: float, is_allowed: bool
) -> None:
    run = Run()
    Life(run, "a").flow("active", 1).handle(1, 10, 20, settle_ms).handle(2, 2500, 2510, 2510)
    repeat_by_b(run, 3000)

    verdict = judged(run, 2)

    assert broken(verdict) == (set() if is_allowed else {Law.DUPLICATE_WITHOUT_FAULT})
    assert verdict.accounts.duplicate_bound == (2 if is_allowed else 1)


def test_a_crash_excuses_nothing_of_a_flow_that_had_been_released() -> None:
    run = Run()
    Life(run, "a").flow("active", 1).handle(1, 10, 20, None).flow("released", 30, cause="rebind")
    repeat_by_b(run, 100)

    assert broken(judged(run)) == {Law.DUPLICATE_WITHOUT_FAULT}


def test_leaving_with_work_in_flight_excuses_as_a_crash_does() -> None:
    run = Run()
    Life(run, "a").flow("active", 1).handle(1, 10, 20, None).close(30, clean=False)
    repeat_by_b(run, 100)

    assert broken(judged(run)) == set()


def test_a_clean_end_excuses_nothing() -> None:
    run = Run()
    Life(run, "a").flow("active", 1).handle(1, 10, 20, 20).flow("released", 30, cause="stop").close(40)
    repeat_by_b(run, 100)

    assert broken(judged(run)) == {Law.DUPLICATE_WITHOUT_FAULT}


@pytest.mark.parametrize("event", ["inactive", "down"])
@pytest.mark.parametrize(("settle_ms", "is_allowed"), [(500, True), (499, False), (None, True), (14_001, True)])
def test_a_lost_flow_excuses_settlements_since_it_may_have_been_dead_and_within_the_window_before_that(
    event: str, settle_ms: float | None, is_allowed: bool
) -> None:
    run = Run()
    # What it was given last does not tell that what it said was heard.
    life = Life(run, "a").flow("active", 1).handle(1, 10, 20, settle_ms).handle(2, 13_990, 13_995, 13_995)
    life.flow(event, 14_000).close(20_000)
    repeat_by_b(run, 15_000)

    expected = set() if is_allowed else {Law.DUPLICATE_WITHOUT_FAULT}
    if (event, settle_ms) == ("down", 14_001):
        expected = {Law.SETTLED_AFTER_EPOCH}
    if settle_ms is None or settle_ms > 13_995:
        expected |= {Law.SETTLED_OUT_OF_ORDER}
    assert broken(judged(run, 2)) == expected


@pytest.mark.parametrize(("end_ms", "is_allowed"), [(13_520, True), (13_521, False)])
def test_a_crash_excuses_what_was_settled_into_a_network_that_was_silent_from_then_on(
    end_ms: float, is_allowed: bool
) -> None:
    run = Run()
    # Its last record, of another flow, does not tell that this one heard anything.
    Life(run, "a").flow("active", 1).handle(1, 10, 20, 20).flow("bound", end_ms, queue=1)
    repeat_by_b(run, 14_000)

    assert broken(judged(run)) == (set() if is_allowed else {Law.DUPLICATE_WITHOUT_FAULT})


def test_a_handle_that_lived_on_excuses_only_what_was_near_an_interruption() -> None:
    run = Run()
    life = Life(run, "a").flow("active", 1).flow("inactive", 100).flow("active", 200)
    life.handle(1, 300, 310, 310).leave(9000)
    repeat_by_b(run, 9500)

    assert broken(judged(run)) == {Law.DUPLICATE_WITHOUT_FAULT}


def test_a_flow_that_was_lost_without_a_record_of_its_activity_excuses_only_what_was_near_that() -> None:
    run = Run()
    Life(run, "a").flow("bound", 1).handle(1, 10, 20, 20).flow("inactive", 14_000).close(20_000)
    repeat_by_b(run, 15_000)

    assert broken(judged(run)) == {Law.DUPLICATE_WITHOUT_FAULT}


def test_the_loss_of_another_flow_excuses_nothing_of_one_that_was_lost_much_later() -> None:
    run = Run()
    life = Life(run, "a").flow("active", 1).handle(1, 10, 20, 20).flow("inactive", 14_000).close(20_000)
    life.flow("active", 1, queue=1).flow("inactive", 1_000, queue=1)
    repeat_by_b(run, 15_000)

    assert broken(judged(run)) == {Law.DUPLICATE_WITHOUT_FAULT}


def test_a_repeat_after_a_cancelled_handling_needs_no_fault() -> None:
    run = Run()
    life = Life(run, "a").flow("active", 1).handle(1, 10, 20, None, outcome="cancelled")
    life.flow("draining", 15, cause="stop").flow("released", 30, cause="stop").close(40)
    repeat_by_b(run, 100)

    verdict = judged(run)

    assert broken(verdict) == set()
    assert verdict.accounts.duplicates == 0


def test_a_message_sent_twice_is_excused_once() -> None:
    run = Run()
    life = Life(run, "a").flow("active", 1).handle(1, 10, 20, 20).handle(1, 30, 40, 40)
    life.leave(100)

    assert broken(judged(run, unknown=(1,))) == set()

    life.handle(1, 50, 60, 60)

    assert broken(validate(run.tables())) == {Law.DUPLICATE_WITHOUT_FAULT, Law.DUPLICATE_UNFLAGGED}


def test_a_cut_off_member_may_finish_its_drain_while_another_is_fed() -> None:
    run = Run()
    life = Life(run, "a").flow("active", 1).handle(1, 10, 20, 20).flow("inactive", 100)
    life.flow("draining", 101, cause="inactive").flow("released", 300, cause="inactive").close(400)
    Life(run, "b").flow("active", 50).handle(2, 60, 70, 70).leave(500)

    assert broken(judged(run, 2)) == set()


@pytest.mark.parametrize(
    ("receive_ms", "end", "found"), [(149, "down", 0), (151, "down", 1), (149, "released", 1), (151, "inactive", 1)]
)
def test_what_a_flow_received_last_before_it_was_lost_may_have_lain_in_the_members_buffers(
    receive_ms: float, end: str, found: int
) -> None:
    run = Run()
    life = Life(run, "a").flow("active", 1).handle(1, 10, 20, 20).handle(2, receive_ms, receive_ms + 1, None)
    life.flow(end, 160).close(400)
    Life(run, "b").flow("active", 99).handle(2, 170, 171, 171, redelivered=True).leave(500)
    tables = published(run, 2).tables()
    sliced = SlicedExamination(DEFAULT_ACK_WINDOW_MS)
    sliced.feed(tables, at(300))

    assert validate(tables).counts[Law.TWO_ACTIVE] == found
    # While a run goes on, the flow may still turn out to have been lost.
    assert sliced.standing.counts[Law.TWO_ACTIVE] == (found if receive_ms > 149 else 0)


def test_the_end_of_a_release_may_be_recorded_after_the_next_owner_is_fed() -> None:
    run = Run()
    life = Life(run, "a").flow("active", 1).handle(1, 10, 20, 20).flow("draining", 21, cause="rebind")
    life.flow("released", 31, cause="rebind").close(400)
    Life(run, "b").flow("active", 30).handle(2, 32, 33, 33).leave(500)

    assert broken(judged(run, 2)) == set()


def test_a_release_in_good_order_before_the_last_handling_has_ended_is_caught() -> None:
    run = Run()
    life = Life(run, "a").flow("active", 1).handle(1, 10, 40, None).flow("released", 25, cause="rebind")
    life.close(400)
    Life(run, "b").flow("active", 30).handle(2, 50, 60, 60).leave(500)

    assert Law.TWO_ACTIVE in broken(judged(run, 2))


def test_a_handle_that_becomes_active_again_is_an_owner_twice() -> None:
    run = Run()
    life = Life(run, "a").flow("active", 1).handle(1, 10, 20, 20).flow("inactive", 30)
    life.flow("active", 100).handle(3, 110, 120, 120).leave(200)
    life = Life(run, "b").flow("active", 40).handle(2, 50, 60, 60).flow("released", 90, cause="rebind")
    life.close(300)

    verdict = judged(run, 3)

    assert broken(verdict) == set()
    assert [(move.from_member, move.to_member) for move in verdict.moves] == [("a", "b"), ("b", "a")]


@pytest.mark.parametrize(
    ("events", "is_closed", "cause"),
    [
        ([("draining", "rebind"), ("released", "rebind")], True, "rebind"),
        ([("released", "stop")], True, "stop"),
        ([("draining", "stop"), ("released", "")], True, "stop"),
        ([("released", "")], True, "unknown"),
        ([("inactive", ""), ("draining", "inactive"), ("released", "inactive")], True, "inactive"),
        ([("inactive", "")], False, "inactive"),
        ([("down", "server unbind")], True, "down"),
        ([], False, "crash"),
        ([("draining", "stop")], False, "crash"),
        ([], True, "unknown"),
    ],
)
def test_a_move_tells_how_the_old_owner_ended(events: list[tuple[str, str]], is_closed: bool, cause: str) -> None:
    run = Run()
    life = Life(run, "a").flow("active", 1).handle(1, 10, 20, 20)
    for event, why in events:
        life.flow(event, 25, cause=why)
    if is_closed:
        life.close(30)
    Life(run, "b").flow("active", 50).handle(2, 100, 110, 110).leave(500)

    (move,) = judged(run, 2).moves

    assert (move.queue, move.from_member, move.to_member) == (0, "a", "b")
    assert (move.cause, move.pause_ms) == (cause, 80)


def test_a_first_owner_and_a_new_epoch_of_the_same_life_are_no_moves() -> None:
    run = Run()
    life = Life(run, "a").flow("active", 1).handle(1, 10, 20, 20).flow("released", 30, cause="rebind")
    life.flow("active", 40, epoch=2).handle(2, 50, 60, 60, epoch=2).flow("released", 70, epoch=2, cause="stop")
    life.close(80)

    assert judged(run, 2).moves == ()


def test_a_member_that_comes_back_from_a_crash_has_moved_to_itself() -> None:
    run = Run()
    Life(run, "a").flow("active", 1).handle(1, 10, 20, 20)
    Life(run, "a", incarnation=2).flow("active", 50).handle(2, 60, 70, 70).leave(500)

    (move,) = judged(run, 2).moves

    assert (move.from_member, move.to_member, move.cause) == ("a", "a", "crash")


def test_a_hand_back_that_was_given_up_leaves_one_owner_and_a_hop_makes_none() -> None:
    run = Run()
    a = Life(run, "a").flow("active", 1).flow("draining", 10, cause="handback").flow("active", 40)
    a.handle(1, 5, 60, 60).handle(2, 70, 80, 80)
    a.flow("draining", 90, cause="handback").flow("released", 100, cause="handback")
    # Not ours to have: it was active at the broker, and let go without a record of it.
    Life(run, "c").flow("bound", 1).flow("released", 105, cause="hop").flow("bound", 110, epoch=2).close(300)
    a.flow("bound", 110, epoch=2).flow("released", 115, epoch=2, cause="hop").close(300)
    Life(run, "b").flow("bound", 1).flow("active", 110).handle(3, 120, 130, 130).flow("released", 200).close(300)

    verdict = judged(run, 3)

    assert broken(verdict) == set()
    assert [(move.from_member, move.to_member, move.cause) for move in verdict.moves] == [("a", "b", "handback")]


STOPPED_MS, AWAKE_MS = 1_000, 41_000
"""A process that is stopped for much longer than the broker waits for it."""


@pytest.mark.parametrize(
    ("settle_ms", "is_told", "is_allowed"), [(600, True, True), (600, False, False), (-11_501, True, False)]
)
@pytest.mark.parametrize("event", ["inactive", "down"])
def test_what_a_member_settled_before_it_was_stopped_may_not_have_left_it(
    event: str, settle_ms: float, is_told: bool, is_allowed: bool
) -> None:
    run = Run()
    life = Life(run, "a").flow("active", -20_000).handle(1, settle_ms - 20, settle_ms - 10, settle_ms)
    if is_told:
        life.pause(STOPPED_MS, AWAKE_MS)
    life.flow(event, AWAKE_MS + 1_000).close(60_000)
    repeat_by_b(run, 15_000)

    assert broken(judged(run)) == (set() if is_allowed else {Law.DUPLICATE_WITHOUT_FAULT})


def test_a_member_that_is_killed_when_it_goes_on_has_told_nobody_either() -> None:
    run = Run()
    Life(run, "a").flow("active", 1).handle(1, 10, 20, 600).pause(STOPPED_MS, AWAKE_MS).flow("bound", 41_100, queue=1)
    repeat_by_b(run, 15_000)

    assert broken(judged(run)) == set()


@pytest.mark.parametrize(("receive_ms", "laws"), [(AWAKE_MS + 1_999, set()), (AWAKE_MS + 2_001, {Law.TWO_ACTIVE})])
def test_what_a_member_receives_when_it_goes_on_may_have_been_sent_long_before(
    receive_ms: float, laws: set[Law]
) -> None:
    run = Run()
    life = Life(run, "a").flow("active", 1).handle(1, 10, 20, 20).pause(STOPPED_MS, AWAKE_MS)
    life.handle(2, receive_ms, receive_ms + 1, None, outcome="cancelled").flow("down", 45_000).close(60_000)
    other = Life(run, "b").flow("active", 15_000).handle(2, 15_100, 15_200, 15_200).handle(3, 42_900, 42_950, 42_950)
    other.flow("released", 50_000, cause="stop").close(60_000)

    # That it is handled again is what a member that was cut off cannot help.
    assert broken(judged(run, 3)) & {Law.TWO_ACTIVE} == laws


# It has run for 100 ms when it receives the message.
@pytest.mark.parametrize(("again_ms", "laws"), [(AWAKE_MS + 1_899, set()), (AWAKE_MS + 1_901, {Law.TWO_ACTIVE})])
def test_what_a_member_receives_behind_a_second_standstill_may_have_been_sent_before_the_first(
    again_ms: float, laws: set[Law]
) -> None:
    run = Run()
    life = Life(run, "a").flow("active", 1).handle(1, 10, 20, 20)
    life.pause(STOPPED_MS, AWAKE_MS).pause(again_ms, 60_000)
    life.handle(2, 60_100, 60_101, None, outcome="cancelled").flow("down", 60_200).close(70_000)
    other = Life(run, "b").flow("active", 15_000).handle(2, 15_100, 15_200, 15_200).handle(3, 42_900, 42_950, 42_950)
    other.flow("released", 61_000, cause="stop").close(70_000)

    assert broken(judged(run, 3)) & {Law.TWO_ACTIVE} == laws


Rest = tuple[tuple[str, float], ...]
STANDBY_DIES: Rest = (("down", 45_000),)
GOOD_ORDER: Rest = (("draining", AWAKE_MS + 20), ("released", AWAKE_MS + 30))


@pytest.mark.parametrize(
    ("active_ms", "other_ms", "receive_ms", "rest", "found"),
    [
        (AWAKE_MS + 1, 15_000, None, STANDBY_DIES, 0),
        (AWAKE_MS + 1, 15_000, AWAKE_MS + 1_999, STANDBY_DIES, 0),
        (AWAKE_MS + 1, STOPPED_MS + 1, None, STANDBY_DIES, 0),
        # The other had the queue before, and all the time.
        (AWAKE_MS + 1, STOPPED_MS - 1, None, STANDBY_DIES, 1),
        # It was fed when the other was.
        (AWAKE_MS + 1, 15_000, AWAKE_MS + 2_001, STANDBY_DIES, 1),
        (AWAKE_MS + 1, 15_000, None, GOOD_ORDER, 1),
        # It had not stood still.
        (AWAKE_MS + 2_001, 15_000, None, STANDBY_DIES, 1),
        (STOPPED_MS - 1, 500, None, STANDBY_DIES, 1),
    ],
)
def test_an_activity_of_which_a_member_hears_when_it_goes_on_may_have_been_over_long_before(
    active_ms: float, other_ms: float, receive_ms: float | None, rest: Rest, found: int
) -> None:
    run = Run()
    life = Life(run, "a").flow("bound", 1).pause(STOPPED_MS, AWAKE_MS).flow("active", active_ms)
    if receive_ms is not None:
        life.handle(2, receive_ms, receive_ms + 1, None, outcome="cancelled")
    for event, moment_ms in rest:
        life.flow(event, moment_ms)
    other = Life(run, "b").flow("active", other_ms).handle(1, 15_100, 15_200, 15_200).handle(2, 44_000, 44_050, 44_050)
    other.flow("draining", 50_000).flow("released", 50_001, cause="stop").close(60_000)
    tables = published(run, 2).tables()
    sliced = SlicedExamination(DEFAULT_ACK_WINDOW_MS)
    sliced.feed(tables, at(49_000))

    assert validate(tables).counts[Law.TWO_ACTIVE] == found
    # What only a drain proves waits for the end.
    assert sliced.standing.counts[Law.TWO_ACTIVE] == (0 if rest is GOOD_ORDER else found)


def run_on(loss_ms: float, *again_ms: tuple[int, float]) -> Run:
    """Message 2 runs at "a" until 3,000 ms, whose flow is lost meanwhile; what "b" is given from 1,100 on, up to 2
    flagged."""
    run = Run()
    life = Life(run, "a").flow("active", 1).handle(1, 2, 8, 8).flow("inactive", loss_ms).handle(2, 10, 3_000, None)
    life.flow("released", 3_001).close(9_000)
    other = Life(run, "b").flow("active", 1_100)
    for seq, start_ms in again_ms:
        other.handle(seq, start_ms, start_ms + 50, start_ms + 50, redelivered=seq <= 2)
    other.flow("released", 8_000).close(9_000)
    return run


def test_what_runs_on_where_its_flow_is_lost_overlaps_with_what_comes_again_and_is_no_violation() -> None:
    verdict = judged(run_on(1_000, (2, 1_200), (3, 1_300)), 3)
    assert (verdict.kind, broken(verdict)) == (VerdictKind.VALID, set())
    assert verdict.accounts.overlaps_after_loss == 2
    assert "overlaps 0, and 2 with what ran on where the queue was lost" in as_text(verdict)


@pytest.mark.parametrize(
    ("run", "found"),
    [
        # Its message never comes again, or behind its successor.
        (run_on(1_000, (3, 1_300)), 1),
        (run_on(1_000, (3, 1_200), (2, 1_300)), 1),
        # What was handled before may come again in front of it, and what was not may not.
        (run_on(1_000, (1, 1_150), (2, 1_200)), 0),
        (run_on(1_000, (1, 1_100), (3, 1_150), (2, 1_200)), 1),
        # Nobody had told "a" yet; or the loss lay behind what the broker had sent before.
        (run_on(1_251, (2, 1_200), (3, 1_300)), 2),
        (run_on(1_250, (2, 1_200), (3, 1_300)), 0),
    ],
)
def test_a_lost_flow_explains_no_more_than_that_its_message_is_handled_again(run: Run, found: int) -> None:
    assert judged(run).counts[Law.OVERLAP_ACROSS_PROCESSES] == found


def test_what_ended_just_before_its_member_learned_of_the_loss_overlaps_with_what_comes_again() -> None:
    run = Run()
    Life(run, "a").flow("active", 1).handle(1, 10, 20, 20).flow("down", 21).close(400)
    Life(run, "b").flow("active", 15).handle(1, 16, 30, 30, redelivered=True).leave(500)
    tables = published(run, 1).tables()
    sliced = SlicedExamination(DEFAULT_ACK_WINDOW_MS)

    # Whatever is known when: the loss may be on record only behind the slice.
    for number, until_ms in enumerate(range(0, 100, 3)):
        due = pc.less(tables.flows.column("mono_ns"), at(until_ms))
        new = pc.and_(due, pc.greater_equal(tables.flows.column("mono_ns"), at(until_ms - 3)))
        part = replace(tables, flows=tables.flows.filter(new))
        assert sliced.feed(part if number == 0 else replace(part, **no_more(tables)), at(until_ms)) == ()
    assert sliced.standing.waiting == 0
    assert broken(validate(tables)) == set()


def no_more(tables: RunTables) -> dict[str, pa.Table]:
    return {name: getattr(tables, name).slice(0, 0) for name in ("dispatches", "confirmed", "unconfirmed")}


@pytest.mark.parametrize("cut_ms", [1_120, 1_160, 1_190, 1_210, 1_310])
def test_what_comes_again_is_known_before_the_message_that_ran_on_does(cut_ms: float) -> None:
    tables = published(run_on(1_000, (1, 1_150), (2, 1_200), (3, 1_300)), 3).tables()
    early = pc.less(tables.dispatches.column("start_mono_ns"), at(cut_ms))
    due = pc.less(tables.flows.column("mono_ns"), at(cut_ms))
    examination = SlicedExamination(DEFAULT_ACK_WINDOW_MS)
    first = replace(tables, dispatches=tables.dispatches.filter(early), flows=tables.flows.filter(due))
    rest = replace(
        tables, dispatches=tables.dispatches.filter(pc.invert(early)), flows=tables.flows.filter(pc.invert(due))
    )
    assert examination.feed(first, at(cut_ms)) == ()
    found = judge(
        [examination.finish(replace(rest, confirmed=tables.confirmed.slice(0, 0)))], tables.journals, tables.ledgers
    )
    assert found.counts[Law.OVERLAP_ACROSS_PROCESSES] == 0
    assert found.accounts.overlaps_after_loss == 3


def test_a_loss_and_a_start_of_two_hosts_that_nearly_agree_prove_nothing() -> None:
    run = run_on(1_000 + HOST_CLOCK_TOLERANCE_MS // 2, (2, 1_000), (3, 1_300))
    for journal, host in zip(run.journals, ("one", "two"), strict=True):
        journal.header = replace(journal.header, host=host)
    assert judged(run, 3).counts[Law.OVERLAP_ACROSS_PROCESSES] == 0


def test_what_another_host_had_handled_before_a_loss_that_came_at_once_is_no_overlap() -> None:
    run = Run()
    life = Life(run, "a").flow("active", 1).handle(1, 955, 960, 960).flow("released", 961, cause="rebind")
    life.flow("active", 1_060, epoch=2).handle(2, 1_070, 1_080, 1_080, epoch=2, redelivered=True)
    life.flow("released", 2_000, epoch=2, cause="stop").close(2_100)
    other = Life(run, "b").flow("active", 962).handle(2, 970, 1_100, None).flow("inactive", 1_000)
    other.flow("released", 1_101).close(2_100)
    for journal, host in zip(run.journals, ("one", "two"), strict=True):
        journal.header = replace(journal.header, host=host)

    verdict = judged(run, 2)

    assert (verdict.kind, broken(verdict)) == (VerdictKind.VALID, set())
    assert verdict.accounts.overlaps_after_loss == 1


@pytest.mark.parametrize(("loss_ms", "found"), [(AWAKE_MS + 1_999, 0), (AWAKE_MS + 2_001, 1)])
def test_a_member_that_stands_still_is_told_of_the_loss_when_it_goes_on(loss_ms: float, found: int) -> None:
    run = Run()
    life = Life(run, "a").flow("active", 1).pause(STOPPED_MS, AWAKE_MS).flow("inactive", loss_ms)
    life.handle(1, STOPPED_MS - 10, loss_ms + 10, None).flow("released", loss_ms + 11).close(60_000)
    other = Life(run, "b").flow("active", 15_000).handle(1, 15_100, 15_200, 15_200, redelivered=True)
    other.flow("released", 50_000, cause="stop").close(60_000)

    assert judged(run).counts[Law.OVERLAP_ACROSS_PROCESSES] == found


@pytest.mark.parametrize(("redelivered", "laws"), [(True, set()), (False, {Law.TWO_ACTIVE})])
def test_what_is_flagged_may_have_come_from_the_broker_before_another_was_fed(
    *, redelivered: bool, laws: set[Law]
) -> None:
    # What was parked, and is tried once more by a member that does not know yet that it was cut off.
    run = Run()
    life = Life(run, "a").flow("active", 1).handle(1, 10, 20, 20)
    life.handle(2, 15_100, 15_200, None, redelivered=redelivered).flow("down", 16_000).close(60_000)
    Life(run, "b").flow("active", 15_000).handle(3, 15_300, 15_400, 15_400).flow("released", 50_000).close(60_000)

    assert broken(judged(run, 3)) & {Law.TWO_ACTIVE} == laws


# What it received long after it had settled shows that the network was not silent, and not that it was heard itself.
@pytest.mark.parametrize("later_ms", [0, 12_000])
def test_a_member_that_stands_still_is_waited_for_while_the_run_goes_on(later_ms: float) -> None:
    run = Run()
    life = Life(run, "a").flow("active", 1).handle(1, 10, 20, 600)
    if later_ms:
        life.handle(2, later_ms, later_ms + 10, later_ms + 20)
    repeat_by_b(run, later_ms + 15_000)
    published(run, 2 if later_ms else 1)
    before = run.tables()
    life.pause(later_ms + STOPPED_MS, later_ms + AWAKE_MS)
    after = run.tables()
    life.flow("down", later_ms + AWAKE_MS + 1_000)
    whole = run.tables()
    sliced = SlicedExamination(DEFAULT_ACK_WINDOW_MS)

    def nothing_of(tables: RunTables) -> RunTables:
        empty = {
            name: getattr(tables, name).slice(0, 0) for name in ("dispatches", "flows", "confirmed", "unconfirmed")
        }
        return replace(tables, **empty)

    assert sliced.feed(before, at(later_ms + 39_000)) == ()
    assert sliced.feed(nothing_of(after), at(later_ms + 41_500)) == ()
    lost = whole.flows.filter(pc.equal(whole.flows["event"], "down"))
    assert sliced.feed(replace(nothing_of(whole), flows=lost), at(200_000)) == ()
    found = judge([sliced.finish(nothing_of(whole))], whole.journals, whole.ledgers)
    assert found == validate(whole)
    assert found.kind is VerdictKind.VALID
