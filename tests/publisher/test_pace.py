"""The rate is even, and a stall is not made up for by a flood."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_runtime.publisher.pace import Pace


@pytest.mark.parametrize("rate", [0.5, 3, 400, 1000])
def test_over_a_minute_of_even_ticks_the_rate_is_kept(rate: float) -> None:
    pace = Pace(rate, now_s=50.0)
    sent = sum(pace.due(50.0 + tick * 0.005) for tick in range(12_001))
    assert sent == pytest.approx(rate * 60, abs=1.001)  # both ends of the minute count


def test_the_first_message_is_due_at_once() -> None:
    assert Pace(1, now_s=0.0).due(0.0) == 1


def test_arrears_of_a_short_delay_are_made_up_for() -> None:
    pace = Pace(100, now_s=0.0)
    pace.due(0.0)
    assert pace.due(0.0525) == 5


def test_arrears_of_an_outage_are_not() -> None:
    pace = Pace(100, now_s=0.0)
    pace.due(0.0)
    assert pace.due(60.0) <= 11
    assert pace.due(60.0) == 0


@given(st.floats(0.1, 5000), st.lists(st.floats(0, 2), min_size=1, max_size=50))
def test_no_sequence_of_looks_exceeds_the_rate(rate: float, gaps: list[float]) -> None:
    pace = Pace(rate, now_s=0.0)
    now_s = 0.0
    sent = pace.due(now_s)
    for gap in gaps:
        now_s += gap
        sent += pace.due(now_s)
    assert sent <= now_s * rate + 1.001
