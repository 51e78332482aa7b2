"""Correct runs are valid, each law is caught alone, and the kernel agrees with the plain reference."""

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lbg_runtime.model.errors import InvariantViolated
from lbg_runtime.validator.findings import WITNESSED_FINDINGS, Law, Verdict, VerdictKind
from lbg_runtime.validator.judge import judge, validate
from lbg_runtime.validator.kernel import examine
from lbg_runtime.validator.layouts import part_count
from lbg_runtime.validator.schema import RunTables
from tests.validator.changes import BREAKING, Change, noise, shift_stripe
from tests.validator.history import Step, World, runs, story
from tests.validator.reference import count
from tests.validator.run_files import Run
from tests.validator.script import broken
from tests.validator.striping import striped_runs

EXAMPLES = settings(deadline=None, max_examples=25)

Runs = Callable[[], st.SearchStrategy[Run]]
OF_BOTH_KINDS = pytest.mark.parametrize("runs_of", [runs, striped_runs], ids=["with one striping", "with re-stripings"])


def counts_of(verdict: Verdict) -> dict[str, int]:
    accounts = verdict.accounts
    return {
        **{law.value: found for law, found in verdict.counts.items()},
        "published": accounts.published,
        "handled_first": accounts.handled_first,
        "duplicates": accounts.duplicates,
        "duplicates_flagged": accounts.duplicates_flagged,
        "duplicate_bound": accounts.duplicate_bound,
        "fenced": accounts.fenced,
        "unnumbered": accounts.unnumbered,
        "overlaps_after_loss": accounts.overlaps_after_loss,
    }


def parts_of(tables: RunTables) -> list[RunTables]:
    """The parts as the kernel's docstring asks for them."""
    count = part_count(tables.journals, tables.stripes)

    def rows(table: pa.Table, column: str, part: int) -> pa.Table:
        number = pc.fill_null(table.column(column), 0)
        rest = pc.subtract(number, pc.multiply(pc.divide(number, count), count))
        return table.filter(pc.equal(rest, part))

    return [
        replace(
            tables,
            dispatches=rows(tables.dispatches, "queue", part),
            flows=rows(tables.flows, "queue", part),
            confirmed=rows(tables.confirmed, "shard", part),
            unconfirmed=rows(tables.unconfirmed, "shard", part),
        )
        for part in range(count)
    ]


def test_a_run_with_moves_a_crash_and_allowed_redeliveries_is_valid() -> None:
    verdict = validate(story().tables())

    assert verdict.kind is VerdictKind.VALID, verdict
    assert verdict.accounts.duplicates > 0
    assert verdict.accounts.duplicates <= verdict.accounts.duplicate_bound
    assert {move.cause for move in verdict.moves} >= {"rebind", "crash", "stop"}


def test_a_run_in_which_members_are_stopped_for_long_is_valid() -> None:
    steps = (Step.PUBLISH, Step.PUBLISH, Step.HANDLE, Step.STAND_STILL, Step.PUBLISH, Step.HANDLE, Step.CRASH)
    run = World(7).play(steps * 8)
    verdict = validate(run.tables())
    assert verdict.kind is VerdictKind.VALID, verdict
    assert verdict.accounts.duplicates > 0

    without = replace(
        run.tables(), journals=run.tables().journals.drop(["pauses"]).append_column("pauses", no_texts(run))
    )
    assert broken(validate(without)) == {Law.DUPLICATE_WITHOUT_FAULT, Law.TWO_ACTIVE}


def no_texts(run: Run) -> pa.Array:
    return pa.nulls(len(run.journals), pa.string())


@OF_BOTH_KINDS
@given(data=st.data())
@EXAMPLES
def test_every_correct_run_is_valid(runs_of: Runs, data: st.DataObject) -> None:
    verdict = validate(data.draw(runs_of()).tables())

    assert verdict.kind is VerdictKind.VALID, verdict
    assert verdict.accounts.duplicates <= verdict.accounts.duplicate_bound


@pytest.mark.parametrize(("law", "change"), BREAKING, ids=[change.__name__ for _, change in BREAKING])
def test_a_run_that_breaks_one_law_is_caught_by_that_law_and_no_other(law: Law, change: Change) -> None:
    run = story()
    assert change(run)

    verdict = validate(run.tables())

    assert broken(verdict) == {law}
    assert verdict.kind is VerdictKind.INVALID
    assert [finding.law for finding in verdict.findings] == [law] * min(verdict.counts[law], WITNESSED_FINDINGS)
    assert all(finding.witnesses for finding in verdict.findings)


@OF_BOTH_KINDS
@given(data=st.data())
@EXAMPLES
def test_a_single_violation_in_a_random_run_is_detected(runs_of: Runs, data: st.DataObject) -> None:
    run, (law, change) = data.draw(runs_of()), data.draw(st.sampled_from(BREAKING))
    # A shard that is shifted in a run with re-stripings is a fault of a move: see `BREAKING_MOVES`.
    if (runs_of is striped_runs and change is shift_stripe) or not change(run):
        return

    verdict = validate(run.tables())

    assert verdict.counts[law] > 0
    assert verdict.kind is VerdictKind.INVALID


@given(run=runs(), data=st.data())
@EXAMPLES
def test_the_kernel_agrees_with_the_plain_reference_on_damaged_runs(run: Run, data: st.DataObject) -> None:
    damaged = data.draw(noise(run))

    expected = count(damaged)
    found = counts_of(validate(damaged.tables()))

    assert {name: found[name] for name in expected} == expected


@OF_BOTH_KINDS
@given(data=st.data())
@EXAMPLES
def test_one_part_at_a_time_gives_the_same_verdict_as_all_at_once(runs_of: Runs, data: st.DataObject) -> None:
    tables = data.draw(noise(data.draw(runs_of()))).tables()
    whole = validate(tables)
    parts = judge([examine(part) for part in parts_of(tables)], tables.journals, tables.ledgers)

    assert parts.kind is whole.kind
    # A handling whose key was altered is in no ledger row of its part, though perhaps in one of another.
    assert {reason for reason in whole.reasons if "ledger" not in reason} <= set(parts.reasons)
    assert counts_of(parts) == counts_of(whole)
    assert parts.moves == whole.moves
    assert parts.restripings == whole.restripings


def test_a_part_that_was_given_to_two_examinations_is_refused() -> None:
    tables = story().tables()

    with pytest.raises(InvariantViolated, match="part 0 of the run was given to two examinations"):
        judge([examine(tables), examine(parts_of(tables)[0])], tables.journals, tables.ledgers)
