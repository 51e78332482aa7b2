"""How the figures of a course are made, and that the whole thing ends with a verdict."""

import pytest

from lbg_runtime.cli.bench.moves import Course, Handling, Phase, longest_gaps_ms, repeats, tail
from tests.cli.bench.short_run import short_run

MS = 1_000_000


def test_a_tail_is_of_nearest_ranks() -> None:
    assert tail([]) is None
    assert tail([3.0, 1.0, 2.0, 4.0]) == {"median": 2.0, "p99": 4.0, "max": 4.0}
    assert tail(list(range(1, 101))) == {"median": 50, "p99": 99, "max": 100}


def handling(start_ms: int, queue: int = 0, number: int | None = None) -> Handling:
    return Handling(start_ms * MS, queue, ("p", "k", start_ms if number is None else number))


def test_a_gap_counts_inside_its_phase_only_and_by_queue() -> None:
    phase = Phase("join", 10 * MS, 100 * MS)
    handlings = [handling(start) for start in (0, 10, 12, 52, 60, 99, 200)]
    assert longest_gaps_ms([*handlings, handling(55, queue=1)], phase) == {0: 40.0, 1: 0.0}
    assert longest_gaps_ms([], phase) == {}


def test_a_repeat_counts_in_the_phase_in_which_it_came() -> None:
    handlings = [handling(1, number=1), handling(2, number=2), handling(15, number=1), handling(25, number=1)]
    assert repeats(handlings, Phase("a", 10 * MS, 20 * MS)) == 1
    assert repeats(handlings, Phase("b", 0, 10 * MS)) == 0


def test_phases_are_kept_in_order_and_each_begins_after_the_one_before() -> None:
    course = Course()
    for name in ("steady", "join"):
        with course.phase(name):
            pass
    steady, join = course.phases
    assert (steady.name, join.name) == ("steady", "join")
    assert steady.start_ns <= steady.end_ns <= join.start_ns <= join.end_ns


@pytest.mark.real_time
@pytest.mark.end_to_end
def test_a_short_run_is_valid_and_moves_nothing_in_peace() -> None:
    result = short_run("moves", "--rate", "150", "--steady", "2s")
    cooperative = result["details"]["cooperative"]
    assert (cooperative["invalid_rounds"], cooperative["violations"]) == (0, 0)
    changes = {name: phase["owner_changes"] for name, phase in cooperative["phases"].items()}
    # 16 queues: a joiner takes a quarter of them, a leaver gives what it had, and nobody else's move.
    assert changes == {"steady": 0, "join": 4, "sigterm": 4, "rejoin": 4, "sigkill": 4}
    twice = {name: phase["duplicates"] for name, phase in cooperative["phases"].items()}
    assert {name for name, count in twice.items() if count} <= {"sigkill"}
    assert any(row["arm"] == "takeover after the kill" for row in result["rows"])
