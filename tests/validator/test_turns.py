"""A shard that moves from one queue to another: who may handle what, and when, moment by moment."""

from dataclasses import replace

import pytest

from lbg_runtime.model.record import DispatchRecord
from lbg_runtime.validator.findings import Finding, Law, Verdict, VerdictKind
from lbg_runtime.validator.judge import validate
from tests.validator.history import story
from tests.validator.run_files import MS, Run
from tests.validator.script import Life, broken, published
from tests.validator.test_judge import put_on_another_host

SHARD = 1
"""In queue 0 of 1, and in queue 1 of 2. It leaves at 50 ms."""


def giver(run: Run, *, second: tuple[float, float] = (30, 40), left_ms: float | None = 50) -> Life:
    """Member a, owner of queue 0, handles the first two messages, the second at the given time."""
    life = Life(run, "a").flow("active", -900).stripes("planned", 5)
    life.handle(1, 10, 20, 20, shard=SHARD).handle(2, *second, second[1], shard=SHARD)
    if left_ms is not None:
        life.stripes("left", left_ms, shard=SHARD)
    life.stripes("left", 90, shard=3).stripes("finished", 100)
    return life.flow("draining", 499, cause="stop").leave(500)


def taker(run: Run, *, third: tuple[float, float] = (60, 70)) -> Life:
    """Member b, owner of queue 1, handles the next two, the third message at the given time."""
    life = Life(run, "b").flow("active", -900, queue=1).stripes("planned", 6, queue=1)
    life.handle(3, *third, third[1], queue=1, shard=SHARD).handle(4, 80, 89, 89, queue=1, shard=SHARD)
    life.stripes("finished", 101, queue=1)
    life.flow("draining", 499, cause="stop", queue=1).flow("released", 500, cause="stop", queue=1)
    return life.close(600)


def judged(run: Run, *, unknown: tuple[int, ...] = (), last_seq: int = 4) -> Verdict:
    # Confirmed while both queues had their owners.
    return validate(published(run, last_seq, unknown=unknown, shard=SHARD, t_first_ms=60).tables())


def only(verdict: Verdict, law: Law) -> Finding:
    assert broken(verdict) == {law}
    assert verdict.kind is VerdictKind.INVALID
    (finding,) = verdict.findings
    return finding


def test_a_shard_that_moves_in_good_order_is_valid() -> None:
    run = Run()
    giver(run)
    taker(run)

    verdict = judged(run)

    assert verdict.kind is VerdictKind.VALID, verdict
    assert [(each.from_count, each.to_count, each.moved) for each in verdict.restripings] == [(1, 2, 2)]


def test_a_message_lost_in_the_move_is_lost() -> None:
    run = Run()
    giver(run)
    life = taker(run)
    life.journal.records.remove(life.journal.dispatches[0])

    finding = only(judged(run), Law.LOSS)

    assert finding.text == "p/k: 3 confirmed, never handled to an end"


def test_a_message_lost_before_the_move_was_not_handled_in_the_new_queue_while_that_had_no_owner() -> None:
    run = Run()
    a = Life(run, "a").flow("active", -900).stripes("planned", 5).handle(1, 10, 20, 20, shard=SHARD)
    a.handle(3, 30, 40, 40, shard=SHARD).stripes("left", 50, shard=SHARD).leave(500)
    b = Life(run, "b").flow("active", 55, queue=1).handle(4, 60, 70, 70, queue=1, shard=SHARD)
    b.flow("released", 500, queue=1, cause="stop").close(600)

    only(judged(run), Law.LOSS)


def test_a_queue_that_is_made_anew_has_not_changed_its_owner() -> None:
    run = Run()
    b = Life(run, "b", queue_count=2).flow("active", -900, queue=1).handle(1, 10, 20, 20, queue=1, shard=SHARD)
    b.stripes("left", 50, queue=1, shard=SHARD, counts=(2, 1)).stripes("finished", 60, queue=1, counts=(2, 1))
    b.flow("released", 70, queue=1, cause="unwanted").close(600)
    a = Life(run, "a").flow("active", -900).handle(2, 80, 90, 90, shard=SHARD).flow("active", 100, queue=1)
    a.stripes("left", 150, shard=SHARD, counts=(1, 2), generation=2).handle(3, 160, 170, 170, queue=1, shard=SHARD)
    for queue in (0, 1):
        a.flow("released", 500, queue=queue, cause="stop")
    a.close(600)

    verdict = judged(run, last_seq=3)

    assert verdict.kind is VerdictKind.VALID, verdict
    assert verdict.moves == ()


@pytest.mark.parametrize("is_settled", [True, False])
def test_a_message_handled_in_both_queues_is_a_duplicate_that_no_fault_explains(is_settled: bool) -> None:
    run = Run()
    life = giver(run)
    if not is_settled:
        # A crash brings it back to queue 0, not to queue 1.
        life.journal.close = None
        life.journal.records = [r for r in life.journal.records if getattr(r, "event", None) != "released"]
    taker(run).handle(2, 55, 58, 58, queue=1, shard=SHARD, redelivered=True)

    finding = only(judged(run), Law.DUPLICATE_WITHOUT_FAULT)

    assert finding.text == "p/k/2 handled by a in queue 0, again by b in 1, flagged"
    assert [witness.queue for witness in finding.witnesses] == [0, 1]


def test_a_copy_that_nobody_was_given_before_is_a_second_copy_too() -> None:
    run = Run()
    giver(run)
    taker(run).handle(2, 55, 58, 58, queue=1, shard=SHARD)

    verdict = judged(run)

    assert broken(verdict) == {Law.DUPLICATE_WITHOUT_FAULT, Law.DUPLICATE_UNFLAGGED}


def test_a_message_that_was_sent_before_the_marker_and_behind_it_is_excused_once() -> None:
    run = Run()
    giver(run)
    life = taker(run).handle(2, 55, 58, 58, queue=1, shard=SHARD)

    verdict = judged(run, unknown=(2,))

    assert verdict.kind is VerdictKind.VALID, verdict
    assert (verdict.accounts.duplicates, verdict.accounts.duplicates_resent) == (1, 1)

    life.handle(2, 71, 72, 72, queue=1, shard=SHARD)

    assert broken(validate(run.tables())) == {Law.DUPLICATE_WITHOUT_FAULT, Law.DUPLICATE_UNFLAGGED}


def test_a_repeat_between_two_queues_is_explained_by_its_own_queue_alone() -> None:
    run = Run()
    a = Life(run, "a").flow("active", -900).stripes("planned", 5).stripes("left", 50, shard=SHARD)
    a.handle(1, 10, 20, None, shard=SHARD).flow("down", 25)
    a.flow("active", 26, epoch=2).handle(1, 40, 45, 45, shard=SHARD, epoch=2, redelivered=True)
    a.flow("released", 500, epoch=2, cause="stop").close(600)
    b = Life(run, "b").flow("active", -900, queue=1).handle(1, 55, 58, 58, queue=1, shard=SHARD, redelivered=True)
    b.flow("released", 500, queue=1, cause="stop").close(600)

    verdict = judged(run, last_seq=1)

    # The one in queue 0 has the dead handle; the one in queue 1 has nothing.
    assert verdict.counts[Law.DUPLICATE_WITHOUT_FAULT] == 1
    assert verdict.accounts.duplicates == 2


def test_an_unfinished_handling_explains_no_repeat_once_another_queue_handled_the_message() -> None:
    run = Run()
    a = (
        Life(run, "a")
        .flow("active", -900)
        .stripes("planned", 5)
        .handle(1, 10, 20, None, shard=SHARD, outcome="cancelled")
    )
    a.handle(1, 70, 75, 75, shard=SHARD, redelivered=True).stripes("left", 40, shard=SHARD)
    a.leave(500)
    b = Life(run, "b").flow("active", -900, queue=1).handle(1, 55, 58, 58, queue=1, shard=SHARD)
    b.flow("released", 500, queue=1, cause="stop").close(600)

    only(judged(run, last_seq=1), Law.DUPLICATE_WITHOUT_FAULT)


def test_the_new_queue_must_wait_until_the_old_one_has_let_the_shard_go() -> None:
    run = Run()
    giver(run)
    taker(run, third=(45, 49))

    finding = only(judged(run), Law.SHARD_HANDLED_BEFORE_ARRIVING)

    assert finding.text == "shard 1 handled in queue 1 5 ms before queue 0 had let it go"
    handling, record = finding.witnesses
    assert (handling.record, handling.member, handling.seq) == ("dispatch", "b", 3)
    assert (record.record, record.member, record.queue, record.epoch, record.shard) == ("stripes", "a", 0, 1, SHARD)


def test_what_is_behind_the_marker_may_not_begin_while_what_is_before_it_runs() -> None:
    run = Run()
    giver(run)
    taker(run, third=(35, 38))

    assert broken(judged(run)) == {Law.SHARD_HANDLED_BEFORE_ARRIVING, Law.OVERLAP_ACROSS_PROCESSES}


def test_what_is_behind_the_marker_may_not_begin_before_what_is_before_it() -> None:
    run = Run()
    giver(run)
    taker(run, third=(25, 28))

    verdict = judged(run)

    assert broken(verdict) == {Law.SHARD_HANDLED_BEFORE_ARRIVING, Law.ORDER}
    assert any(finding.text == "p/k: 2 handled first after 3 had started" for finding in verdict.findings)


def test_the_old_queue_handles_nothing_of_a_shard_that_has_left() -> None:
    run = Run()
    giver(run, second=(52, 56))
    taker(run)

    finding = only(judged(run), Law.SHARD_HANDLED_AFTER_LEAVING)

    assert finding.text == "shard 1 handled in queue 0 2 ms after it had left"
    assert [witness.record for witness in finding.witnesses] == ["stripes", "dispatch"]


def test_two_members_do_not_handle_a_key_at_once_though_it_comes_through_two_queues() -> None:
    run = Run()
    giver(run, second=(30, 65))
    taker(run)

    finding = only(judged(run), Law.OVERLAP_ACROSS_PROCESSES)

    assert finding.text == "key 'k' handled by a and b at once, for up to 5 ms"


def test_one_member_does_not_either() -> None:
    run = Run()
    life, other = giver(run, second=(30, 65)).journal, taker(run).journal
    life.records += other.records
    run.journals.remove(other)

    only(judged(run), Law.OVERLAP_IN_PROCESS)


def test_a_message_from_a_queue_that_holds_its_shard_by_no_queue_count_is_in_a_wrong_one() -> None:
    run = Run()
    giver(run)
    taker(run).handle(5, 95, 96, 96, queue=2, shard=SHARD)

    finding = only(judged(run, last_seq=5), Law.SHARD_IN_WRONG_QUEUE)

    assert finding.text == "shard 1 came through queue 2, which holds it with none of 1, 2 queues"


def test_a_handling_that_a_crash_repeats_in_the_old_queue_may_come_after_the_leaving() -> None:
    run = Run()
    a = Life(run, "a").flow("active", -900).stripes("planned", 5).handle(1, 10, 20, 20, shard=SHARD)
    a.stripes("left", 50, shard=SHARD)
    b = Life(run, "b").flow("active", -900, queue=1).handle(2, 60, 70, 70, queue=1, shard=SHARD)
    b.flow("active", 100).stripes("planned", 101).handle(1, 105, 106, 106, shard=SHARD, redelivered=True)
    b.stripes("left", 110, shard=SHARD).flow("released", 500, queue=1, cause="stop").flow("released", 500, cause="stop")
    b.close(600)

    verdict = judged(run, last_seq=2)

    assert verdict.kind is VerdictKind.VALID, verdict
    assert verdict.accounts.duplicates == 1


def test_a_shard_that_goes_and_comes_back_has_its_turns_in_both_queues() -> None:
    run = Run()
    a = Life(run, "a").flow("active", -900).stripes("planned", 5).handle(1, 10, 20, 20, shard=SHARD)
    a.stripes("left", 50, shard=SHARD).stripes("planned", 205, generation=2, counts=(2, 1))
    a.handle(3, 260, 270, 270, shard=SHARD).leave(500)
    b = Life(run, "b", queue_count=2).flow("active", -900, queue=1).handle(2, 60, 70, 70, queue=1, shard=SHARD)
    b.stripes("left", 250, queue=1, shard=SHARD, generation=2, counts=(2, 1))
    b.flow("released", 300, queue=1, cause="stop").close(600)

    assert judged(run, last_seq=3).kind is VerdictKind.VALID

    a.handle(4, 245, 248, 248, shard=SHARD)
    finding = next(each for each in validate(run.tables()).findings if each.law is Law.SHARD_HANDLED_BEFORE_ARRIVING)
    assert finding.text == "shard 1 handled in queue 0 5 ms before queue 1 had let it go"

    a.journal.records.pop()
    a.handle(4, 57, 58, 58, shard=SHARD)
    finding = next(each for each in validate(run.tables()).findings if each.law is Law.SHARD_HANDLED_AFTER_LEAVING)
    assert finding.text == "shard 1 handled in queue 0 7 ms after it had left"


def test_a_move_that_known_owners_did_not_record_did_not_happen() -> None:
    run = Run()
    giver(run, left_ms=None)
    taker(run)

    verdict = judged(run)

    assert broken(verdict) == {Law.SHARD_HANDLED_BEFORE_ARRIVING}
    assert verdict.counts[Law.SHARD_HANDLED_BEFORE_ARRIVING] == 2
    assert verdict.findings[0].text == (
        "shard 1 handled in queue 1, but no journal says that its old queue had let it go"
    )


def test_a_member_whose_journal_is_missing_may_have_recorded_the_move() -> None:
    run = Run()
    # Queue 0 had no known owner after 20 ms.
    a = Life(run, "a").flow("active", -900).stripes("planned", 5).handle(1, 10, 20, 20, shard=SHARD)
    a.handle(2, 20, 21, 21, shard=SHARD).flow("released", 22, cause="rebind").close(600)
    taker(run)

    verdict = judged(run)

    assert broken(verdict) == set()
    assert verdict.kind is VerdictKind.UNKNOWN
    assert verdict.reasons == (
        "a member's journal may be missing: 2 handlings of moved shards came before any record that their old queue "
        "had let them go, and it had no owner on record for a time",
    )


def test_what_comes_back_after_an_unknown_owner_proves_no_wrong_order() -> None:
    run = Run()
    # An unknown member had queue 0 until 400 ms, handled the second message and let the shard go; its settlement was
    # lost, so that c handles it again, and says once more that the shard has left.
    a = Life(run, "a").flow("active", -900).stripes("planned", 5).handle(1, 10, 20, 20, shard=SHARD)
    a.flow("released", 22, cause="rebind").close(600)
    taker(run)
    c = Life(run, "c").flow("active", 400).stripes("planned", 401).handle(2, 410, 411, 411, shard=SHARD)
    c.stripes("left", 420, shard=SHARD).leave(500)

    verdict = judged(run)

    assert verdict.counts[Law.ORDER] == verdict.counts[Law.SHARD_HANDLED_BEFORE_ARRIVING] == 0
    assert verdict.kind is VerdictKind.UNKNOWN


def test_a_missing_record_weakens_what_is_said_of_turns() -> None:
    run = Run()
    giver(run)
    life = taker(run, third=(45, 49))
    assert life.journal.close is not None
    life.journal.close = replace(life.journal.close, dropped=1)

    verdict = judged(run)

    assert verdict.kind is VerdictKind.UNKNOWN
    assert verdict.unproven == (Law.SHARD_HANDLED_BEFORE_ARRIVING,)


@pytest.mark.parametrize(("clock_ahead_ms", "expected"), [(20, VerdictKind.UNKNOWN), (200, VerdictKind.INVALID)])
def test_a_turn_that_only_two_hosts_clocks_show_counts_beyond_what_clocks_differ(
    clock_ahead_ms: int, expected: VerdictKind
) -> None:
    run = Run()
    giver(run)
    taker(run)
    published(run, 4, shard=SHARD, t_first_ms=60)
    put_on_another_host(run, "a", clock_ahead_ms * MS)

    verdict = validate(run.tables())

    assert verdict.kind is expected, verdict


@pytest.mark.parametrize(("redelivered", "expected"), [(True, 0), (False, 1)])
def test_of_a_message_without_a_number_the_flag_says_whether_it_is_a_repeat(redelivered: bool, expected: int) -> None:
    run = Run()
    records = giver(run).handle(5, 52, 53, 53, shard=SHARD, redelivered=redelivered).journal.records
    last = records[-1]
    assert isinstance(last, DispatchRecord)
    records[-1] = replace(last, seq=None)
    taker(run)

    assert judged(run).counts[Law.SHARD_HANDLED_AFTER_LEAVING] == expected


def test_messages_of_no_shard_are_in_no_wrong_queue() -> None:
    """A queue may attract other topics than those of its shards."""
    run = story()
    for journal in run.journals:
        journal.records = [
            replace(record, shard=None) if isinstance(record, DispatchRecord) else record for record in journal.records
        ]
    assert validate(run.tables()).kind is VerdictKind.VALID
