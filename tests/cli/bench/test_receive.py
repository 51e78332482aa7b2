"""How the figures of the receive path are made, that a wrong course is found out, and a short run of all arms."""

import pytest

from lbg_runtime.cli.bench.arms.receive import WrongCourse, check_course
from lbg_runtime.cli.bench.receive import ARMS, ratios_of
from tests.cli.bench.short_run import short_run

SHORT = ("--messages", "3000", "--rounds", "1", "--keys", "7")


def test_ratios_are_taken_within_a_round() -> None:
    # The machine was three times as fast in the second round; the arms' relation was the same.
    slow, quick = {"rate": 100.0, "settle_frames": 1.0}, {"rate": 300.0, "settle_frames": 1.0}
    measured = {arm: [slow, quick] for arm in ("callback", "public", "member")}
    measured["fast"] = [{"rate": 1000.0, "settle_frames": 0.1}, {"rate": 3000.0, "settle_frames": 0.2}]
    found = {ratio.label: ratio for ratio in ratios_of(measured, "7 keys")}
    assert found["7 keys: fast / callback"].values == [10.0, 10.0]
    assert found["7 keys: fast / callback"].is_met is True
    assert found["7 keys: fast / public"].is_met is False
    assert found["7 keys: settle frames a message, fast"].is_met is True


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
def test_a_short_run_measures_every_arm() -> None:
    told = short_run("receive", *SHORT)
    rates = {row["arm"]: row["median"] for row in told["rows"] if row["unit"] == "messages/s"}
    assert tuple(rates) == ARMS
    assert all(rate > 0 for rate in rates.values())
    # A ratio of rates is no matter for a shared machine; that settlements go in ranges is.
    met = {ratio["name"]: ratio.get("met") for ratio in told["ratios"]}
    assert met["settle frames a message, fast"] is True
