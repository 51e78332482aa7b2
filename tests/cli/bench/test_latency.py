"""How the load takes turns, how its figures are made, and a short run."""

import json
from collections import Counter

import pytest

from lbg_runtime.cli.bench.arms.latency import ARMS, KEYS, SLICE, WARM_UP, Latencies, quantiles, turns
from lbg_runtime.cli.bench.arms.receive import WrongCourse
from lbg_runtime.cli.bench.latency import PEER, ratios_of, rows_of
from tests.cli.bench.short_run import short_run


def test_every_arm_gets_as_many_messages_in_slices_and_is_the_first_one_as_often() -> None:
    count = 2 * len(ARMS) * SLICE
    order = list(turns(count))
    assert Counter(order) == dict.fromkeys(ARMS, WARM_UP + count)
    firsts = Counter(order[:: len(ARMS) * SLICE])
    assert len(set(firsts.values())) == 1
    assert all(len(set(order[start : start + SLICE])) == 1 for start in range(0, len(order), SLICE))


def test_quantiles_are_in_microseconds() -> None:
    assert quantiles([number * 1_000 for number in range(100, 0, -1)]) == {"p50": 50.0, "p99": 99.0}


def noted(sent_ns: int, count: int, order: list[int] | None = None) -> Latencies:
    """All messages of the warm-up, slow, and so many others that took a microsecond each."""
    latencies = Latencies(count)
    assert not latencies.take(0, b"the one that was there")
    last = WARM_UP + count - 1
    for number in order or range(WARM_UP + count):
        taken_ns = sent_ns + (10**9 if number < WARM_UP else 1_000)
        assert latencies.take(taken_ns, b"%d %d rest" % (number, sent_ns)) == (order is None and number == last)
    return latencies


def test_the_warm_up_is_in_no_figure(capsys: pytest.CaptureFixture[str]) -> None:
    noted(5, 10).tell()
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"is_ready": True},
        {"p50": 1.0, "p99": 1.0},
    ]


@pytest.mark.parametrize("order", [[0, KEYS, KEYS], [KEYS, 0], [0]], ids=["twice", "out of order", "lost"])
def test_a_wrong_course_is_found_out(order: list[int]) -> None:
    with pytest.raises(WrongCourse):
        noted(5, 10, order).tell()


def test_ratios_are_taken_within_a_round_and_only_the_whole_runtime_has_goals() -> None:
    measured = {
        PEER: [{"p50": 100.0, "p99": 200.0}, {"p50": 300.0, "p99": 2_000.0}],
        "transport": [{"p50": 90.0, "p99": 200.0}, {"p50": 270.0, "p99": 2_000.0}],
        "member": [{"p50": 110.0, "p99": 400.0}, {"p50": 330.0, "p99": 4_000.0}],
    }
    assert {ratio.name: (ratio.values, ratio.is_met) for ratio in ratios_of(measured)} == {
        "transport / callback, p50": ([0.9, 0.9], None),
        "transport / callback, p99": ([1.0, 1.0], None),
        "member / callback, p50": ([1.1, 1.1], True),
        "member / callback, p99": ([2.0, 2.0], False),
    }
    assert [(row.arm, row.unit) for row in rows_of(measured)][:2] == [(PEER, "us, p50"), (PEER, "us, p99")]


@pytest.mark.real_time
@pytest.mark.end_to_end
def test_a_short_run_measures_every_arm() -> None:
    load = ("--messages", "100", "--rate", "4000", "--rounds", "1")
    told = short_run("latency", *load)
    assert [row["arm"] for row in told["rows"]] == [arm for arm in ARMS for _ in range(2)]
    assert all(row["median"] > 0 for row in told["rows"])
