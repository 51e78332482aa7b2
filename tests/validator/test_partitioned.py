"""Runs on a partitioned queue: every member is fed at once, and a key is with one of them at a time all the same."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from lbg_runtime.journal.reader import read_run
from lbg_runtime.validator.findings import Law, Verdict, VerdictKind
from lbg_runtime.validator.judge import validate
from lbg_runtime.validator.kernel import DEFAULT_ACK_WINDOW_MS
from lbg_runtime.validator.slices import SlicedExamination
from tests.validator.run_files import Run
from tests.validator.script import Life, broken, published
from tests.validator.test_slices import slices_of


def shared_life(run: Run, member: str) -> Life:
    life = Life(run, member)
    life.journal.header = replace(life.journal.header, backend="partitioned")
    return life


def judged(run: Run, last_seq: int) -> Verdict:
    return validate(published(run, last_seq).tables())


def test_members_that_are_fed_at_once_are_in_order() -> None:
    run = Run()
    shared_life(run, "a").flow("active", 1).handle(1, 10, 20, 20).leave(100)
    shared_life(run, "b").flow("active", 1).handle(2, 30, 40, 40).leave(100)
    verdict = judged(run, 2)
    assert (verdict.kind, broken(verdict)) == (VerdictKind.VALID, set())
    assert verdict.moves == (), "what the broker moves between members is on nobody's record"


def test_members_that_are_fed_at_once_are_no_two_owners_while_the_run_goes_on() -> None:
    run = Run()
    shared_life(run, "a").flow("active", 1).handle(1, 10, 20, 20).handle(3, 50, 60, 60).leave(100)
    shared_life(run, "b").flow("active", 1).handle(2, 30, 40, 40).leave(100)
    tables = published(run, 3).tables()
    sliced = SlicedExamination(DEFAULT_ACK_WINDOW_MS)
    told = [finding for part, until_ns in slices_of(tables, 4, 0, Random(1)) for finding in sliced.feed(part, until_ns)]
    assert (told, sliced.standing.kind) == ([], VerdictKind.VALID)


def test_the_same_records_on_an_exclusive_queue_are_two_owners() -> None:
    run = Run()
    Life(run, "a").flow("active", 1).handle(1, 10, 20, 20).handle(3, 50, 60, 60).leave(100)
    Life(run, "b").flow("active", 1).handle(2, 30, 40, 40).leave(100)
    assert Law.TWO_ACTIVE in broken(judged(run, 3))


def test_a_key_that_two_members_handle_at_once_is_found() -> None:
    run = Run()
    shared_life(run, "a").flow("active", 1).handle(1, 10, 40, 40).leave(100)
    shared_life(run, "b").flow("active", 1).handle(2, 30, 50, 50).leave(100)
    assert broken(judged(run, 2)) == {Law.OVERLAP_ACROSS_PROCESSES}


def test_a_hand_off_that_did_not_wait_for_a_handler_is_a_repeat_without_a_fault() -> None:
    run = Run()
    shared_life(run, "a").flow("active", 1).handle(1, 10, 40, 40).leave(100)
    shared_life(run, "b").flow("active", 1).handle(1, 50, 60, 60, redelivered=True).leave(100)
    assert broken(judged(run, 1)) == {Law.DUPLICATE_WITHOUT_FAULT}


def test_the_one_who_got_it_again_may_start_first_and_the_flag_is_where_it_belongs() -> None:
    run = Run()
    shared_life(run, "a").flow("active", 1).handle(1, 30, 40, 40).leave(100)
    shared_life(run, "b").flow("active", 1).handle(1, 20, 25, 25, redelivered=True).leave(100)
    assert broken(judged(run, 1)) == {Law.DUPLICATE_WITHOUT_FAULT}


def test_two_copies_without_a_flag_are_two_messages() -> None:
    run = Run()
    shared_life(run, "a").flow("active", 1).handle(1, 30, 40, 40).leave(100)
    shared_life(run, "b").flow("active", 1).handle(1, 20, 25, 25).leave(100)
    assert broken(judged(run, 1)) == {Law.DUPLICATE_WITHOUT_FAULT, Law.DUPLICATE_UNFLAGGED}


@pytest.mark.parametrize(
    ("born", "laws"), [(Life, {Law.DUPLICATE_UNFLAGGED}), (shared_life, set())], ids=["exclusive", "partitioned"]
)
def test_only_where_members_share_a_queue_may_the_flag_be_with_the_handling_before(
    born: Callable[[Run, str], Life], laws: set[Law]
) -> None:
    run = Run()
    born(run, "a").flow("active", 1).handle(1, 10, 20, None)
    born(run, "b").flow("active", 100).handle(1, 110, 120, None, redelivered=True)
    born(run, "c").flow("active", 200).handle(1, 210, 220, 220).leave(300)
    assert broken(judged(run, 1)) == laws


def test_what_is_lost_may_have_gone_to_a_member_without_a_journal() -> None:
    run = Run()
    shared_life(run, "a").flow("active", -1000).handle(1, 10, 20, 20).leave(100)
    verdict = judged(run, 2)
    assert (verdict.kind, verdict.unproven) == (VerdictKind.UNKNOWN, (Law.LOSS,))


def test_journals_of_both_backends_are_of_two_groups() -> None:
    run = Run()
    Life(run, "a").flow("active", 1).handle(1, 10, 20, 20).leave(100)
    shared_life(run, "b").flow("active", 101).flow("released", 150, cause="stop").close(200)
    verdict = judged(run, 1)
    assert verdict.kind is VerdictKind.UNKNOWN
    assert (
        "the files disagree on backend: 'exclusive' in 0.member.jsonl; 'partitioned' in 1.member.jsonl"
        in verdict.reasons
    )


def test_a_member_that_never_had_a_flow_does_not_speak_for_another_backend(tmp_path: Path) -> None:
    run = Run()
    shared_life(run, "a").flow("active", 1).handle(1, 10, 20, 20).leave(100)
    shared_life(run, "b").close(200)
    published(run, 1).write(tmp_path)
    assert validate(read_run(tmp_path)).reasons == ()
