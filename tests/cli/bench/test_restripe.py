"""How the figures of a re-striping are made, and that the whole thing, interrupted, ends with a valid verdict."""

from types import SimpleNamespace
from typing import Any

import pytest

from lbg_runtime.cli.bench.restripe import Change, Handling, change_summary, wrong_of
from lbg_runtime.validator.findings import VerdictKind
from tests.cli.bench.short_run import short_run

MS = 1_000_000


def test_moving_and_staying_shards_are_told_apart_within_the_time_of_the_change() -> None:
    change = Change(2, 4, 100 * MS, 200 * MS, interrupted=False)
    handlings = [
        Handling(2, 50 * MS, 80.0),
        Handling(0, 150 * MS, 7.0),
        Handling(1, 160 * MS, 2.0),
        Handling(2, 120 * MS, 40.0),
        Handling(2, 130 * MS, 9.0),
        Handling(3, 250 * MS, 99.0),
    ]
    told = change_summary(change, handlings)
    assert told["moving_shards"] == 1
    assert told["longest_wait_of_moving_shards_ms"] == {"median": 40.0, "p99": 40.0, "max": 40.0}
    assert told["longest_wait_of_staying_shards_ms"] == {"median": 2.0, "p99": 7.0, "max": 7.0}


def test_what_was_handled_twice_is_wrong_where_nobody_was_killed() -> None:
    verdict: Any = SimpleNamespace(kind=VerdictKind.VALID, accounts=SimpleNamespace(duplicates=2))
    assert wrong_of(verdict, was_killed=False) == ["2 messages were handled twice"]
    assert wrong_of(verdict, was_killed=True) == []


@pytest.mark.real_time
@pytest.mark.end_to_end
def test_a_group_that_shrinks_under_load_while_its_conductor_is_killed_loses_and_reorders_nothing() -> None:
    options = ["--rate", "50", "--queues", "3", "--to", "2", "--kill"]
    result = short_run("restripe", *options)["details"]
    assert (result["verdict"], result["violations"]) == ("valid", 0)
    assert len(result["changes"]) == 1
