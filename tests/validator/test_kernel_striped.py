"""Runs with re-stripings: correct ones are valid, each fault of a move is caught, the plain reference agrees."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_runtime.model.record import StripesRecord
from lbg_runtime.validator.findings import Law, VerdictKind
from lbg_runtime.validator.judge import judge, validate
from lbg_runtime.validator.kernel import examine
from tests.validator.changes import Change, noise
from tests.validator.reference import count, count_untimely
from tests.validator.run_files import Run
from tests.validator.script import broken
from tests.validator.striping import striped_runs, striped_story
from tests.validator.striping_changes import BREAKING_MOVES
from tests.validator.test_kernel import EXAMPLES, counts_of

UNTIMELY = {Law.SHARD_HANDLED_AFTER_LEAVING, Law.SHARD_HANDLED_BEFORE_ARRIVING}
STORIES = [(3, 4), (8, 12, 6), (4, 6, 3, 6), (2, 1, 2)]


def finished(run: Run) -> set[int]:
    return {record.generation for journal in run.journals for record in journal.stripes if record.event == "finished"}


@pytest.mark.parametrize("counts", STORIES)
@pytest.mark.parametrize("seed", range(4))
def test_a_run_with_one_two_or_three_restripings_is_valid(counts: tuple[int, ...], seed: int) -> None:
    run = striped_story(*counts, seed=seed)
    assert len(finished(run)) == len(counts) - 1

    verdict = validate(run.tables())

    assert verdict.kind is VerdictKind.VALID, verdict
    assert verdict.accounts.duplicates <= verdict.accounts.duplicate_bound
    told = [(restriping.from_count, restriping.to_count) for restriping in verdict.restripings]
    assert told == list(pairwise(counts))


@pytest.mark.parametrize(("laws", "change"), BREAKING_MOVES, ids=[change.__name__ for _, change in BREAKING_MOVES])
def test_a_fault_of_a_move_is_caught_by_its_laws_and_no_other(laws: set[Law], change: Change) -> None:
    run = striped_story(4, 6, 3, 6)
    assert change(run)

    verdict = validate(run.tables())

    assert broken(verdict) == laws
    assert verdict.kind is VerdictKind.INVALID
    assert all(count == 1 for law, count in verdict.counts.items() if law in laws)
    assert all(finding.witnesses for finding in verdict.findings)


@given(run=striped_runs(), breaking=st.sampled_from(BREAKING_MOVES))
@EXAMPLES
def test_a_fault_of_a_move_in_a_random_run_is_detected(run: Run, breaking: tuple[set[Law], Change]) -> None:
    laws, change = breaking
    if not change(run):
        return

    verdict = validate(run.tables())

    found = broken(verdict)
    assert laws - UNTIMELY <= found
    # Where a shard goes back and forth, too early for its second stay may be just too late for its first.
    assert not laws & UNTIMELY or found & UNTIMELY
    assert verdict.kind is VerdictKind.INVALID


@given(run=striped_runs(), data=st.data())
@EXAMPLES
def test_the_kernel_agrees_with_the_plain_reference_on_damaged_runs(run: Run, data: st.DataObject) -> None:
    damaged = data.draw(noise(run))

    expected = count(damaged)
    tables = damaged.tables()
    examination = examine(tables)
    found = counts_of(judge([examination], tables.journals, tables.ledgers))

    untimely = found["shard_handled_after_leaving"] + found["shard_handled_before_arriving"]
    assert untimely + examination.unplaced == count_untimely(damaged)
    if examination.unplaced:
        # Where a journal may be missing, what it may have told is left out of the findings on order.
        assert found.pop("order") <= expected.pop("order")
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize("counts", STORIES)
@pytest.mark.parametrize("seed", range(3))
def test_a_run_without_one_of_its_journals_is_never_called_invalid(counts: tuple[int, ...], seed: int) -> None:
    handled = validate(striped_story(*counts, seed=seed).tables()).accounts.handled_first
    for number in range(len(striped_story(*counts, seed=seed).journals)):
        run = striped_story(*counts, seed=seed)
        del run.journals[number]

        verdict = validate(run.tables())

        assert verdict.kind is not VerdictKind.INVALID, verdict
        if verdict.accounts.handled_first < handled:
            assert verdict.kind is VerdictKind.UNKNOWN


@given(run=striped_runs(), data=st.data())
@EXAMPLES
def test_whatever_records_of_restripings_say_nothing_is_raised_and_no_contradiction_is_valid(
    run: Run, data: st.DataObject
) -> None:
    places = [(j, place) for j in run.journals for place, r in enumerate(j.records) if isinstance(r, StripesRecord)]
    if not places:
        return
    journal, place = data.draw(st.sampled_from(places))
    facts = {"generation": 2, "from_count": 0, "to_count": 7, "shard": None, "event": "left", "queue": 1 << 30}
    name = data.draw(st.sampled_from(sorted(facts)))
    changed = replace(journal.records[place], **{name: facts[name]})
    was_changed = changed != journal.records[place]
    journal.records[place] = changed
    told = [r for j in run.journals for r in j.records if isinstance(r, StripesRecord)]

    examination = examine(run.tables())
    verdict = validate(run.tables())

    # A number of queues may be another one where nothing else tells of the plan: one queue has noted it, and no more.
    is_alone = name == "to_count" and sum(r.generation == changed.generation for r in told) == 1
    if was_changed and name in ("from_count", "to_count", "event") and not is_alone:
        assert examination.contradictions
    if examination.contradictions:
        assert verdict.kind is not VerdictKind.VALID
