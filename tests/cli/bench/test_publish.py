"""That a wrong course of publishing is found out, and a short run of all arms."""

from typing import Any

import pytest

from lbg_runtime.cli.bench.arms.publish import KEYS, PUBLISHER
from lbg_runtime.cli.bench.processes import BenchFailed
from lbg_runtime.cli.bench.publish import ARMS, PEERS, check_content, ratios_of
from tests.cli.bench.short_run import short_run


def content(*numbers: int, **instead: list[Any]) -> dict[str, list[Any]]:
    """What a broker says that has these messages on its queue."""
    said: dict[str, list[Any]] = {
        "numbers": list(numbers),
        "keys": [f"key-{number % KEYS}" for number in numbers],
        "ids": [f"{PUBLISHER}-{number + 1}" for number in numbers],
    }
    return said | instead


def test_a_right_course_is_in_the_order_of_each_key() -> None:
    check_content("arm", content(1, 0, 2), 3)
    check_content("arm", content(*range(2 * KEYS)), 2 * KEYS)


@pytest.mark.parametrize(
    ("found", "count", "words"),
    [
        (content(0, 1), 3, "arm: 2 messages came, not 3"),
        (content(0, 1, 1), 3, "arm: message 1 came after 1"),
        (content(KEYS, *range(KEYS)), KEYS + 1, f"arm: message 0 came after {KEYS}"),
        (content(0, 1, keys=["key-0", "key-0"]), 2, "arm: message 1 has the key key-0 and the id bench-2"),
        (content(0, 1, ids=["bench-1", None]), 2, "arm: message 1 has the key key-1 and the id None"),
    ],
    ids=["lost", "twice", "out of order", "another key", "no id"],
)
def test_a_wrong_course_is_found_out(found: dict[str, list[Any]], count: int, words: str) -> None:
    with pytest.raises(BenchFailed, match=words):
        check_content("arm", found, count)


def test_ratios_are_taken_within_a_round() -> None:
    # The machine was three times as fast in the second round; the arms' relation was the same.
    measured = {arm: [{"rate": 100.0}, {"rate": 300.0}] for arm in PEERS}
    measured |= {"fast": [{"rate": 800.0}, {"rate": 2400.0}], "hashed": [{"rate": 900.0}, {"rate": 2700.0}]}
    assert {ratio.name: (ratio.values, ratio.is_met) for ratio in ratios_of(measured)} == {
        "fast / receipts": ([8.0, 8.0], None),
        "fast / await_ack": ([8.0, 8.0], None),
        "hashed / receipts": ([9.0, 9.0], True),
        "hashed / await_ack": ([9.0, 9.0], False),
    }


@pytest.mark.real_time
@pytest.mark.end_to_end
def test_a_short_run_measures_every_arm() -> None:
    told = short_run("publish", "--messages", "600", "--rounds", "1")
    # Ratios are no matter for a machine that others use.
    rates = {row["arm"]: row["median"] for row in told["rows"] if row["unit"] == "messages/s"}
    assert tuple(rates) == ARMS
    assert all(rate > 0 for rate in rates.values())
