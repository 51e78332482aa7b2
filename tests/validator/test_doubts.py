"""What makes a run unprovable: above all what the clocks of its hosts are worth, as the two sides of a move show it."""

from dataclasses import replace
from random import Random

import pytest

from lbg_runtime.model.record import DispatchRecord, OwnerRecord
from lbg_runtime.validator.findings import Law, VerdictKind
from lbg_runtime.validator.judge import validate
from tests.validator.history import story
from tests.validator.run_files import MS, SECOND, Run, wall_us
from tests.validator.test_judge import handed_over_within, put_on_another_host
from tests.validator.test_slices import verdict_in_slices


def with_hand_over(run: Run, asked_ns: int, taken_ns: int) -> Run:
    """Member b has queue 0 from a, which had asked the broker to release it."""
    told = ("m", "a", "b", "handback", "offer", False, 0, 0, 0)
    givers, takers = run.journals[0].records, run.journals[1].records
    givers.append(OwnerRecord(0, 1, "given", *told, wall_us(asked_ns), asked_ns + MS, asked_ns))
    takers.insert(0, OwnerRecord(0, 1, "taken", *told, wall_us(taken_ns), taken_ns))
    return run


@pytest.mark.parametrize(
    ("member", "clock_ahead_ns", "kind", "unproven"),
    [
        pytest.param("a", 20 * MS, VerdictKind.UNKNOWN, (), id="as clocks differ"),
        pytest.param("a", 900 * MS, VerdictKind.UNKNOWN, (Law.ORDER,), id="the giver is ahead"),
        pytest.param("b", -900 * MS, VerdictKind.UNKNOWN, (Law.ORDER,), id="the taker is behind"),
        pytest.param("b", 900 * MS, VerdictKind.VALID, (), id="as if the move had taken long"),
    ],
)
def test_a_queue_that_is_taken_before_it_is_given_shows_that_clocks_differ_and_nothing_between_members(
    member: str, clock_ahead_ns: int, kind: VerdictKind, unproven: tuple[Law, ...]
) -> None:
    run = with_hand_over(handed_over_within(10 * MS), 2000 * SECOND + 2 * MS, 2000 * SECOND + 9 * MS)
    assert validate(run.tables()).kind is VerdictKind.VALID
    put_on_another_host(run, member, clock_ahead_ns)

    verdict = validate(run.tables())

    assert (verdict.kind, verdict.unproven) == (kind, unproven)
    assert verdict_in_slices(run.tables(), 3, 0, Random(1)) == verdict
    if unproven:
        a_host, b_host = ("other", "host") if member == "a" else ("host", "other")
        assert verdict.reasons == (
            f"wall clocks differ by 893 ms or more: by them, b on {b_host} took a queue before a on {a_host} gave it "
            "up",
        )


def test_what_one_member_did_is_proven_however_clocks_differ() -> None:
    run = with_hand_over(handed_over_within(10 * MS), 2000 * SECOND + 2 * MS, 2000 * SECOND + 9 * MS)
    put_on_another_host(run, "a", 900 * MS)
    takers = run.journals[1]
    takers.records = [
        replace(record, outcome="failed") if isinstance(record, DispatchRecord) else record for record in takers.records
    ]

    verdict = validate(run.tables())

    assert (verdict.kind, verdict.unproven) == (VerdictKind.INVALID, (Law.ORDER,))
    assert verdict.counts[Law.SETTLED_WITHOUT_OUTCOME] == 1


def test_on_one_clock_a_queue_that_is_taken_before_it_is_given_excuses_nothing() -> None:
    run = with_hand_over(handed_over_within(-2 * MS), 2000 * SECOND + 900 * MS, 2000 * SECOND)

    assert validate(run.tables()).kind is VerdictKind.INVALID


def test_two_ledgers_of_one_publisher_prove_nothing() -> None:
    run = story()
    assert validate(run.tables()).kind is VerdictKind.VALID
    publisher = run.ledgers[0].header.publisher
    run.ledgers.append(run.ledgers[0])
    verdict = validate(run.tables())
    assert verdict.kind is VerdictKind.UNKNOWN
    assert f"2 ledgers claim publisher {publisher}: 0.ledger.jsonl, 2.ledger.jsonl" in verdict.reasons


def test_of_many_files_that_disagree_a_few_are_named() -> None:
    run = story()
    [one, *others] = run.journals
    one.header = replace(one.header, run_id="")
    for other in others:
        other.header = replace(other.header, run_id="of another run")

    [told, *_] = validate(replace(run, ledgers=[]).tables()).reasons

    names = f"1.member.jsonl, 2.member.jsonl and {len(others) - 2} more"
    assert told == f"the files disagree on run_id: '' in 0.member.jsonl; 'of another run' in {names}"
