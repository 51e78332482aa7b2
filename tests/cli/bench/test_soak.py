"""What a soak finds fault with and what a cut explains; and a short one from beginning to end."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lbg_runtime.cli.bench.soak import (
    FOLDER_VARIABLE,
    CountingBoard,
    Course,
    grown,
    is_explained,
    looks_of,
    problems_of,
)
from lbg_runtime.validator.findings import Finding, Law, VerdictKind, Witness
from tests.cli.bench.short_run import short_run

MS = 1_000_000


def finding(*spans: tuple[str, int, int]) -> Finding:
    """By member, from when to when it handled the message, in milliseconds."""
    witnesses = [
        Witness("dispatch", member=member, start_mono_ns=start_ms * MS, done_mono_ns=done_ms * MS)
        for member, start_ms, done_ms in spans
    ]
    return Finding(Law.OVERLAP_ACROSS_PROCESSES, "two at once", tuple(witnesses))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (finding(("cut", 990, 1_020), ("other", 1_010, 1_015)), True),
        (finding(("other", 1_010, 1_015), ("cut", 990, 1_020)), True),
        (finding(("other", 1_005, 1_020), ("cut", 1_012, 1_015)), True),
        (finding(("third", 990, 1_020), ("other", 1_010, 1_015)), False),
        (finding(("cut", 980, 995), ("other", 985, 990)), False),
        (finding(("cut", 980, 995), ("other", 1_005, 1_010)), False),
        (finding(("cut", 990, 9_000), ("other", 7_000, 7_010)), False),
        (finding(("cut", 990, 1_020), ("cut", 1_010, 1_015)), False),
    ],
    ids=[
        "its handler still ran",
        "in either order",
        "a message was on its way to it",
        "somebody else was cut off",
        "before the cut",
        "its handler was done",
        "long after it",
        "the same member twice",
    ],
)
def test_a_finding_is_explained_by_a_cut_of_one_of_the_two_and_by_nothing_else(found: Finding, expected: bool) -> None:
    assert is_explained(found, Course(cuts=[("cut", 1_000 * MS, 1_000 * MS)])) is expected


def test_a_silence_explains_what_was_handled_while_it_lasted_and_shortly_after() -> None:
    course = Course(cuts=[("cut", 1_000 * MS, 9_000 * MS)])
    assert is_explained(finding(("cut", 990, 8_520), ("other", 8_500, 8_510)), course)
    assert not is_explained(finding(("cut", 990, 20_000), ("other", 15_000, 15_010)), course)


def verdict(counts: dict[Law, int], *findings: Finding) -> Any:
    kind = VerdictKind.INVALID if counts else VerdictKind.VALID
    return SimpleNamespace(kind=kind, counts=counts, findings=findings)


def test_what_a_cut_explains_is_no_problem_and_all_else_is_one() -> None:
    course = Course(cuts=[("cut", 1_000 * MS, 1_000 * MS)])
    explained = finding(("cut", 990, 1_020), ("other", 1_010, 1_015))
    strange = finding(("a", 1, 3), ("b", 2, 4))
    assert problems_of(verdict({}), course) == []
    assert problems_of(verdict({Law.OVERLAP_ACROSS_PROCESSES: 1, Law.LOSS: 0}, explained), course) == []
    assert problems_of(verdict({Law.LOSS: 2}), course) == ["loss: 2"]
    assert problems_of(verdict({Law.OVERLAP_ACROSS_PROCESSES: 2}, explained, strange), course) == [
        "overlap_across_processes, and nobody was cut off: two at once"
    ]
    assert problems_of(verdict({Law.TWO_ACTIVE: 21}), course) == ["two_active: 21, more than can be looked at"]


def test_memory_is_compared_by_the_highest_of_the_last_part_and_of_the_first() -> None:
    assert grown([5.0, 9.0, 5.0, 5.0, 5.0, 5.0, 10.0, 7.0]) == 1.0
    assert grown([3.0, 2.0]) == -1.0


def test_messages_are_counted_by_how_far_each_key_has_come() -> None:
    board = CountingBoard()
    for key, number, outcome in [("a", 1, "accepted"), ("a", 2, "accepted"), ("a", 1, "accepted"), ("b", 1, "none")]:
        board.apply("m", 1, {"kind": "dispatch", "publisher": "p", "key": key, "seq": number, "outcome": outcome})
    assert board.handled == 2


def test_a_member_that_wrote_nothing_has_no_looks(tmp_path: Path) -> None:
    assert looks_of(tmp_path / "nothing") == []


@pytest.mark.real_time
@pytest.mark.end_to_end
def test_a_short_soak_is_valid_and_leaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    # It is set for the members, and gone again after this test.
    monkeypatch.setenv(FOLDER_VARIABLE, "")
    options = ["--duration", "6s", "--rate", "50", "--keys", "50", "--seed", "1"]
    told = short_run("soak", *options)
    assert told["details"]["handled"] == told["details"]["published"] > 0
    assert sum(told["details"]["steps"].values()) >= 1
