"""That a wrong burst is found out, and short runs of the benches that are made of bursts."""

from collections.abc import Sequence

import pytest

from lbg_runtime.cli.bench.group_trial import check_burst
from lbg_runtime.cli.bench.processes import BenchFailed
from tests.cli.bench.short_run import short_run


def test_a_right_burst_is_in_the_order_of_each_key_wherever_it_was_handled() -> None:
    check_burst([[102, 100, 104], [101, 103, 105]], first=100, messages=6, keys=2 * 3)
    check_burst([[100, 102, 104], [101, 103, 105]], first=100, messages=6, keys=2)


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ([[0, 1], [2]], "3 messages were handled, 3 of 4"),
        ([[0, 1, 2, 3], [3]], "5 messages were handled, 4 of 4"),
        ([[0, 1, 2, 2, 3]], "message 2 came after 2"),
        ([[2, 1, 0, 3]], "message 0 came after 2"),
    ],
    ids=["lost", "at two members", "twice", "out of order"],
)
def test_a_wrong_burst_is_found_out(numbers: Sequence[Sequence[int]], words: str) -> None:
    with pytest.raises(BenchFailed, match=words):
        check_burst(numbers, first=0, messages=4, keys=2)


@pytest.mark.real_time
@pytest.mark.end_to_end
def test_two_processes_share_the_messages() -> None:
    told = short_run("processes", "--messages", "1000", "--rounds", "1")
    assert {row["arm"] for row in told["rows"]} == {"1 process", "2 processes"}
    assert [ratio["goal"] for ratio in told["ratios"]] == [1.4]


@pytest.mark.real_time
@pytest.mark.end_to_end
def test_many_queues_and_keys_beside_few() -> None:
    told = short_run("scale", "--messages", "1000", "--queues", "30", "--keys", "2000", "--rounds", "1")
    assert {row["case"] for row in told["rows"]} == {"8 queues, 100 keys", "30 queues, 2000 keys"}
    assert {ratio["name"] for ratio in told["ratios"]} == {
        "cost of a message, many / few",
        "MB more memory after all keys",
    }


@pytest.mark.real_time
@pytest.mark.end_to_end
def test_a_handler_that_does_nothing_settles_in_ranges() -> None:
    told = short_run("acks", "--messages", "1000", "--rounds", "1")
    met = {ratio["name"]: ratio["met"] for ratio in told["ratios"]}
    assert met["settle frames a message, no-op handler"] is True


@pytest.mark.real_time
@pytest.mark.end_to_end
def test_failures_without_number_and_a_burst_cost_no_message_and_no_memory() -> None:
    told = short_run("faults", "--raises", "20000", "--burst", "30000")
    figures = {(row["arm"], row["unit"]): row["median"] for row in told["rows"]}
    assert figures["handler that raises", "failures"] == 20_000
    assert all(ratio["met"] for ratio in told["ratios"])
