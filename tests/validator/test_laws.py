"""Where the laws on keys, settlements and flows begin and end."""

from dataclasses import replace

import pytest

from lbg_runtime.validator.findings import Law, Verdict, VerdictKind
from lbg_runtime.validator.judge import validate
from tests.validator.run_files import Run
from tests.validator.script import Life, broken, published


def judged(run: Run, last_seq: int = 3) -> Verdict:
    return validate(published(run, last_seq).tables())


Given = tuple[str | None, int | None, float, bool]
"""Publisher, number, start and flag of what "b" was given after "a" had lost the queue."""


def ran_on(lost_ms: float, *given: Given, publisher: str | None = "p", seq: int | None = 2) -> Run:
    """A message runs at "a" until 3,000 ms, whose flow is lost meanwhile; "b" is fed from 1,100 ms on."""
    run = Run()
    life = Life(run, "a").flow("active", 1).flow("inactive", lost_ms)
    life.handle(seq, 10, 3_000, None, publisher=publisher).flow("released", 3_001).close(9_000)
    other = Life(run, "b").flow("active", 1_100)
    for of, number, start_ms, redelivered in given:
        done_ms = start_ms + 50
        other.handle(number, start_ms, done_ms, done_ms, publisher=of, redelivered=redelivered)
    other.flow("released", 8_000).close(9_000)
    return run


@pytest.mark.parametrize(
    ("given", "found"),
    [
        # What is newer comes behind the message, flagged or not.
        ([("p", 3, 1_150, True), ("p", 2, 1_200, True)], 1),
        ([("p", 2, 1_150, True), ("p", 3, 1_200, False)], 0),
        # What another publisher sent is not newer; if it is not flagged, it was not in front of the message.
        ([("q", 5, 1_150, True), ("p", 2, 1_200, True)], 0),
        ([("q", 1, 1_150, False), ("p", 2, 1_200, True)], 1),
        # A second copy, or the same number of another publisher, is not the message that comes again.
        ([("p", 2, 1_150, False), ("p", 3, 1_200, False)], 2),
        ([("q", 2, 1_150, True), ("p", 3, 1_200, False)], 1),
        ([(None, None, 1_150, True), ("p", 3, 1_200, False)], 1),
        # What begins when it has ended does not overlap.
        ([("p", 1, 1_150, True), ("p", 3, 3_000, False)], 0),
        ([("p", 1, 1_150, True), ("p", 3, 3_001, False)], 0),
    ],
)
def test_a_loss_explains_what_comes_in_front_of_its_message_flagged_and_all_behind_it(
    given: list[Given], found: int
) -> None:
    assert judged(ran_on(1_000, *given)).counts[Law.OVERLAP_ACROSS_PROCESSES] == found


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ([(None, None, 1_150, True), ("p", 3, 1_200, False)], 0),
        ([(None, None, 1_150, False), ("p", 3, 1_200, False)], 2),
        ([("p", 2, 1_150, True), ("p", 3, 1_200, False)], 1),
    ],
)
def test_any_flagged_message_without_a_number_may_be_the_one_without_that_ran_on(
    given: list[Given], found: int
) -> None:
    verdict = judged(ran_on(1_000, *given, publisher=None, seq=None))

    assert verdict.counts[Law.OVERLAP_ACROSS_PROCESSES] == found


def test_the_loss_of_another_flow_explains_nothing() -> None:
    run = ran_on(1_251, ("p", 2, 1_200, True), ("p", 3, 1_300, False))
    Life(run, "c").flow("inactive", 1_000, queue=1).close(9_000)

    assert judged(run).counts[Law.OVERLAP_ACROSS_PROCESSES] == 2


def test_what_was_given_again_before_a_member_went_on_does_not_explain_what_it_starts_then() -> None:
    run = Run()
    life = Life(run, "a").flow("active", 1).pause(1_000, 41_000).flow("inactive", 41_020)
    life.handle(2, 41_001, 41_050, None).flow("released", 41_051).close(60_000)
    other = Life(run, "b").flow("active", 15_000).handle(2, 15_100, 15_200, 15_200, redelivered=True)
    other.handle(3, 41_005, 41_010, 41_010).flow("released", 50_000).close(60_000)

    assert judged(run).counts[Law.OVERLAP_ACROSS_PROCESSES] == 1


def test_a_loss_explains_each_key_by_what_came_again_of_that_key() -> None:
    run = ran_on(1_000, ("p", 2, 1_150, True))
    run.journals[0].records += Life(Run(), "a").handle(1, 10, 3_000, None, key="l").journal.records
    again = Life(Run(), "b").handle(1, 1_110, 1_115, 1_115, key="l", redelivered=True)
    run.journals[1].records += again.handle(2, 1_120, 1_130, 1_130, key="l").journal.records

    assert judged(run).counts[Law.OVERLAP_ACROSS_PROCESSES] == 0


@pytest.mark.parametrize(("start_ms", "is_sure"), [(2_940, True), (2_960, False)])
def test_an_overlap_behind_a_loss_that_two_hosts_clocks_show_is_in_doubt_if_it_is_short(
    start_ms: int, is_sure: bool
) -> None:
    run = ran_on(1_000, ("p", 1, 1_150, True), ("p", 3, start_ms, False))
    for journal, host in zip(run.journals, ("one", "two"), strict=True):
        journal.header = replace(journal.header, host=host)

    verdict = judged(run)

    assert (Law.OVERLAP_ACROSS_PROCESSES in broken(verdict)) is is_sure
    in_doubt = "1 violations hold only if the clocks of two hosts agree"
    assert any(in_doubt in reason for reason in verdict.reasons) is not is_sure


@pytest.mark.parametrize(("settle_ms", "is_late"), [(30, False), (30.001, False), (30.002, True)])
def test_a_settlement_at_the_end_of_its_epoch_is_in_time_as_far_as_stamps_can_tell(
    settle_ms: float, *, is_late: bool
) -> None:
    run = Run()
    Life(run, "a").flow("active", 1).handle(1, 10, 20, settle_ms).flow("released", 30, cause="stop").close(40)

    assert broken(judged(run, 1)) == ({Law.SETTLED_AFTER_EPOCH} if is_late else set())


@pytest.mark.parametrize(
    ("active_ms", "is_late"), [((None, 50), True), ((50, None), True), ((200, 50), True), ((None, 200), False)]
)
def test_an_epoch_is_over_as_soon_as_any_later_one_of_its_life_is_active(
    active_ms: tuple[float | None, ...], *, is_late: bool
) -> None:
    run = Run()
    life = Life(run, "a").flow("active", 1).handle(1, 10, 20, 100)
    for epoch, moment_ms in enumerate(active_ms, 2):
        life.flow("bound", 30, epoch)
        if moment_ms is not None:
            life.flow("active", moment_ms, epoch)
    life.close(300)

    assert judged(run, 1).counts[Law.SETTLED_AFTER_EPOCH] == is_late


@pytest.mark.parametrize(
    ("events", "start_ms", "done_ms", "redelivered", "is_found"),
    [
        ([("active", 1), ("inactive", 20)], 40, 50, False, True),
        # What was parked comes flagged.
        ([("active", 1), ("inactive", 20)], 40, 50, True, False),
        # It was not seen to start.
        ([("active", 1), ("inactive", 20)], 40, 40, False, False),
        ([("active", 1), ("inactive", 20), ("active", 30), ("draining", 35)], 40, 50, False, False),
        ([("active", 1), ("inactive", 20), ("active", 30), ("inactive", 40)], 40, 50, False, False),
        ([("active", 1), ("inactive", 20), ("active", 30), ("inactive", 39)], 40, 50, False, True),
    ],
)
def test_a_start_is_judged_by_what_its_own_flow_was_told_last(
    events: list[tuple[str, float]], start_ms: float, done_ms: float, *, redelivered: bool, is_found: bool
) -> None:
    run = Run()
    life = Life(run, "a").handle(1, start_ms, done_ms, None, redelivered=redelivered)
    for event, moment_ms in events:
        life.flow(event, moment_ms)
    life.flow("active", 30, queue=1).close(90)

    assert broken(judged(run, 1)) == ({Law.STARTED_AFTER_LOSS} if is_found else set())


@pytest.mark.parametrize("event", ["inactive", "down", "released"])
def test_a_standby_whose_flow_ends_was_not_fed(event: str) -> None:
    run = Run()
    life = Life(run, "a").flow("active", 1).handle(1, 10, 20, 20).handle(2, 110, 120, 120)
    life.flow("draining", 200).flow("released", 201, cause="stop").close(300)
    Life(run, "b").flow("bound", 1).flow(event, 60).flow("down", 61).close(300)

    assert broken(judged(run, 2)) == set()


@pytest.mark.parametrize(("active_ms", "kind"), [(60, VerdictKind.UNKNOWN), (40, VerdictKind.INVALID)])
def test_two_owners_that_only_two_hosts_clocks_show_count_beyond_what_clocks_differ(
    active_ms: float, kind: VerdictKind
) -> None:
    run = Run()
    Life(run, "a").flow("active", 1).handle(1, 10, 20, 20).flow("draining", 100).flow("released", 101).close(400)
    Life(run, "b").flow("active", active_ms).handle(2, 150, 160, 160).flow("released", 300).close(400)
    for journal, host in zip(run.journals, ("one", "two"), strict=True):
        journal.header = replace(journal.header, host=host)

    verdict = judged(run, 2)

    assert (verdict.kind, broken(verdict)) == (kind, {Law.TWO_ACTIVE} if kind is VerdictKind.INVALID else set())


def test_a_message_of_which_no_shard_is_known_does_not_scatter_its_key() -> None:
    run = Run()
    life = Life(run, "a").flow("active", 1).handle(1, 10, 20, 20, key="m", shard=None)
    life.handle(2, 30, 40, 40, key="m").handle(1, 50, 60, 60, shard=1).handle(2, 70, 80, 80, shard=1)
    life.leave(100)

    assert broken(validate(published(run, 2, shard=1).tables())) == set()


def test_each_finding_says_who_did_what_and_by_how_much() -> None:
    run = Run()
    life = Life(run, "a").flow("active", 1).handle(1, 10, 20, 42).handle(2, 30, 40, 40).handle(3, 45, 60, None)
    life.handle(4, 65, 70, 75).handle(5, 90, 100, None, outcome="failed").flow("inactive", 110)
    life.handle(6, 115, 120, None).flow("released", 130).handle(7, 105, 108, 137)
    life.handle(8, 107, 109, 109, outcome="cancelled")
    other = Life(run, "b").flow("active", 50).handle(5, 102, 112, 112, shard=1, redelivered=True)
    other.flow("released", 300).close(400)
    verdict = judged(run, 10)

    assert [finding.text for finding in verdict.findings] == [
        "p/k: 8 to 10 confirmed, never handled to an end",
        "p/k: 6 handled first after 7 had started",
        "key 'k' handled by a and a at once, for up to 1 ms",
        "key 'k' handled by b and a at once, for up to 7 ms",
        "a settled p/k/7 7 ms after epoch 1 was over",
        "a settled p/k/8, whose handling was cancelled or failed",
        "a settled p/k/2 when 1, handled before it, was not settled yet",
        "a settled p/k/4 when 3, handled before it, was never settled",
        "a settled p/k/7 when 3, handled before it, was never settled",
        "a started p/k/6 5 ms after it had lost the flow",
        "queue 0 fed a and b at once, for 15 ms",
        "key 'k' lies in shards 0 and 1",
    ]
    assert verdict.lost.to_pylist() == [{"publisher": "p", "key": "k", "first_seq": 8, "last_seq": 10}]
