"""How the figures of the receive path are made, that a wrong course is found out, and a short run of all arms."""

import json
import subprocess
import sys

import pytest

from lbg_runtime.cli.bench.receive import ARMS, BenchFailed, lines, measure, spread, summary
from lbg_runtime.cli.bench.receive_arms import WrongCourse, check_course

SHORT = ("--messages", "3000", "--rounds", "1", "--keys", "7")


def test_a_spread_is_of_median_and_extremes() -> None:
    assert spread([3.0, 1.0, 2.0]) == {"median": 2.0, "min": 1.0, "max": 3.0}
    assert spread([0.123456]) == {"median": 0.1235, "min": 0.1235, "max": 0.1235}


def test_ratios_are_taken_within_a_round() -> None:
    # The machine was three times as fast in the second round; the arms' relation was the same.
    measured = {arm: [{"rate": 100.0}, {"rate": 300.0}] for arm in ("callback", "public", "member")}
    measured["fast"] = [{"rate": 1000.0}, {"rate": 3000.0}]
    assert summary(measured)["fast"]["times_callback"] == {"median": 10.0, "min": 10.0, "max": 10.0}
    assert summary(measured)["callback"]["times_callback"]["median"] == 1.0


def test_a_right_course_is_in_the_order_of_each_key() -> None:
    check_course(["0", "2", "1", "4", "3", "5"], count=6, key_count=2)
    check_course([], count=0, key_count=1)


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (["0", "1", "2"], "3 messages came, not 4"),
        (["0", "1", "2", "2", "3"], "message 2 came after 2"),
        (["2", "1", "0", "3"], "message 0 came after 2"),
    ],
    ids=["lost", "twice", "out of order"],
)
def test_a_wrong_course_is_found_out(ids: list[str], words: str) -> None:
    with pytest.raises(WrongCourse, match=words):
        check_course(ids, count=4, key_count=2)


@pytest.mark.real_time
@pytest.mark.end_to_end
def test_an_arm_that_fails_is_told_with_its_last_line() -> None:
    with pytest.raises(BenchFailed, match=r"nonsense: .*there is no arm 'nonsense'"):
        measure("nonsense", 10, 1)


@pytest.mark.real_time
@pytest.mark.end_to_end
@pytest.mark.timeout(150)
def test_a_short_run_measures_every_arm() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "lbg_runtime.cli", "bench", "receive", "--json", *SHORT],
        capture_output=True,
        text=True,
        timeout=140,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert set(told["machine"]) == {"cores", "processor", "python"}
    arms = told["keys"]["7"]
    assert tuple(arms) == ARMS
    for facts in arms.values():
        assert facts["rate"]["median"] > 0
        assert facts["settle_frames"]["median"] > 0
    # A ratio of rates is no matter for a shared machine; that settlements go in ranges is.
    assert arms["fast"]["settle_frames"]["median"] < 0.25
    assert any("fast" in line for line in lines(told))
