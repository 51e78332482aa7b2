"""What a missing journal leaves behind: time without an owner on record, in which a loss is not proven."""

import sys

import pytest

from lbg_runtime.validator.findings import Law, VerdictKind
from lbg_runtime.validator.judge import validate
from tests.validator.history import story
from tests.validator.run_files import Run
from tests.validator.script import Life, published


def owned_by(run: Run, member: str, begin_ms: float, end_ms: float, *seqs: int) -> Life:
    """One tenure in good order, whose handlings are 10 ms apart from its begin on."""
    life = Life(run, member).flow("active", begin_ms)
    for place, seq in enumerate(seqs):
        moment = begin_ms + 10 * (place + 1)
        life.handle(seq, moment, moment + 1, moment + 1)
    return life.flow("draining", end_ms - 1, cause="rebind").flow("released", end_ms, cause="rebind").close(end_ms + 1)


def published_at_begin(run: Run, last_seq: int) -> Run:
    """Confirmed while the first owner was there."""
    published(run, last_seq, t_first_ms=200)
    return run


def test_a_message_missing_between_two_handlings_of_one_tenure_is_lost() -> None:
    run = Run()
    owned_by(run, "a", 100, 1000, 1, 3)

    verdict = validate(published_at_begin(run, 3).tables())

    assert verdict.kind is VerdictKind.INVALID
    assert verdict.counts[Law.LOSS] == 1


def test_messages_missing_from_a_time_without_an_owner_may_have_been_handled_by_a_member_without_a_journal() -> None:
    run = Run()
    owned_by(run, "a", 100, 1000, 1)
    owned_by(run, "b", 2000, 3000, 4)

    verdict = validate(published_at_begin(run, 4).tables())

    assert verdict.kind is VerdictKind.UNKNOWN
    assert verdict.unproven == (Law.LOSS,)
    assert verdict.counts[Law.LOSS] == 2
    assert any("a member's journal may be missing: 2 messages" in reason for reason in verdict.reasons)


def test_a_loss_beside_a_time_without_an_owner_is_still_proven() -> None:
    run = Run()
    owned_by(run, "a", 100, 1000, 1)
    owned_by(run, "b", 2000, 3000, 4, 6)

    verdict = validate(published_at_begin(run, 6).tables())

    assert verdict.kind is VerdictKind.INVALID
    assert verdict.counts[Law.LOSS] == 3


def test_a_message_missing_at_a_handover_between_known_members_is_lost() -> None:
    run = Run()
    owned_by(run, "a", 100, 1000, 1)
    owned_by(run, "b", 1090, 3000, 3)

    assert validate(published_at_begin(run, 3).tables()).kind is VerdictKind.INVALID


def test_a_message_missing_at_a_crash_is_lost_where_a_known_member_took_over_at_once() -> None:
    run = Run()
    Life(run, "a").flow("active", 100).handle(1, 110, 111, 111)
    owned_by(run, "b", 1100, 3000, 3)

    assert validate(published_at_begin(run, 3).tables()).kind is VerdictKind.INVALID


@pytest.mark.parametrize(("begin_ms", "kind"), [(1211, VerdictKind.INVALID), (1212, VerdictKind.UNKNOWN)])
def test_a_member_that_was_cut_off_kept_others_out_until_its_next_status_was_due_and_a_handover_longer(
    begin_ms: float, kind: VerdictKind
) -> None:
    run = Run()
    Life(run, "a").flow("active", 100).handle(1, 110, 111, 111)
    owned_by(run, "b", begin_ms, 3000, 3)

    assert validate(published_at_begin(run, 3).tables()).kind is kind


@pytest.mark.parametrize("event", ["inactive", "down", "released"])
def test_a_flow_that_ended_kept_nobody_out_though_its_member_lived_on(event: str) -> None:
    run = Run()
    Life(run, "a").flow("active", 100).handle(1, 110, 111, 111).flow(event, 1000).close(5000)

    verdict = validate(published_at_begin(run, 2).tables())

    assert (verdict.kind, verdict.unproven) == (VerdictKind.UNKNOWN, (Law.LOSS,))


def test_between_two_times_of_one_flow_another_may_have_had_the_queue() -> None:
    run = Run()
    life = Life(run, "a").flow("active", 100).handle(1, 110, 111, 111).flow("inactive", 1000)
    life.flow("active", 3000).handle(3, 3010, 3011, 3011).flow("inactive", 4000).flow("active", 4050)
    life.flow("released", 5000).close(5001)

    assert validate(published_at_begin(run, 3).tables()).kind is VerdictKind.UNKNOWN


@pytest.mark.parametrize(("next_ms", "kind"), [(905, VerdictKind.UNKNOWN), (900, VerdictKind.INVALID)])
def test_who_came_behind_a_release_may_have_been_fed_before_it_was_recorded(next_ms: float, kind: VerdictKind) -> None:
    run = Run()
    life = Life(run, "a").flow("active", 100).handle(1, 110, 111, 111).handle(3, next_ms, next_ms + 1, next_ms + 1)
    life.flow("released", 1000, cause="rebind").close(1001)
    owned_by(run, "b", 2000, 3000, 4)

    assert validate(published_at_begin(run, 4).tables()).kind is kind


def test_the_last_messages_are_lost_where_the_last_owner_stayed_to_the_end() -> None:
    run = Run()
    owned_by(run, "a", 100, 1000, 1, 2)

    assert validate(published_at_begin(run, 3).tables()).kind is VerdictKind.INVALID


def test_the_last_messages_are_not_proven_lost_where_the_run_went_on_without_an_owner() -> None:
    run = Run()
    owned_by(run, "a", 100, 1000, 1, 2)
    Life(run, "b").flow("bound", 100).close(5000)

    assert validate(published_at_begin(run, 3).tables()).kind is VerdictKind.UNKNOWN


def test_a_queue_that_nobody_known_ever_held_loses_nothing_for_sure() -> None:
    run = Run()
    Life(run, "a").flow("bound", 100).close(5000)

    verdict = validate(published_at_begin(run, 3).tables())

    assert verdict.kind is VerdictKind.UNKNOWN
    assert verdict.counts[Law.LOSS] == 3


def test_a_record_of_a_restriping_shows_that_its_member_still_had_the_queue() -> None:
    run = Run()
    # A release may be recorded late, so its last moments prove nothing by themselves.
    a = Life(run, "a").flow("active", 100).handle(1, 110, 111, 111, shard=1)
    a.stripes("planned", 700).stripes("left", 950, shard=1).flow("released", 1000, cause="rebind").close(1001)
    Life(run, "b").flow("active", 100, queue=1).flow("released", 5000, queue=1, cause="stop").close(5001)

    verdict = validate(published(run, 2, t_first_ms=920, shard=1).tables())

    assert verdict.counts[Law.LOSS] == 1
    assert verdict.kind is VerdictKind.INVALID
    assert verdict.reasons == ()


@pytest.mark.parametrize("seed", range(5))
def test_a_run_without_one_of_its_journals_is_never_called_lossy_or_valid(seed: int) -> None:
    handled = validate(story(seed).tables()).accounts.handled_first
    for number, journal in enumerate(story(seed).journals):
        run = story(seed)
        del run.journals[number]

        verdict = validate(run.tables())

        if verdict.accounts.handled_first < handled:
            assert verdict.kind is VerdictKind.UNKNOWN, (journal.header.member, verdict.reasons)


def calls_to_judge(interruptions: int) -> int:
    """Calls of Python functions for one member that is interrupted so often on one flow handle."""
    run = Run()
    life = Life(run, "a")
    for number in range(interruptions):
        begin_ms = 100 + 10 * number
        life.flow("active", begin_ms).handle(number + 1, begin_ms + 1, begin_ms + 2, begin_ms + 3)
        life.flow("inactive", begin_ms + 5)
    life.close(200 + 10 * interruptions)
    tables = published_at_begin(run, interruptions).tables()
    calls = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        validate(tables)
    finally:
        sys.setprofile(None)
    return calls


def test_twice_as_many_interruptions_are_twice_the_work() -> None:
    calls_to_judge(1)
    assert calls_to_judge(1000) < 3 * calls_to_judge(500)
