"""Durations as people write them."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_runtime.config.duration import duration_text, parse_duration_ms
from lbg_runtime.config.fields import MAX_INTERVAL_MS


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("0ms", 0), ("500ms", 500), ("30s", 30_000), ("1.5s", 1_500), ("0.001s", 1), ("2m", 120_000), ("1h", 3_600_000)],
)
def test_a_number_and_a_unit_are_read(text, milliseconds):
    assert parse_duration_ms(text) == milliseconds


@pytest.mark.parametrize("text", ["", "30", "s", "-1s", "1 s", "1d", "1e3s", "٣s", "1s\n", ".5s", "1.s", None, 30, 1.5])
def test_anything_else_is_refused(text):
    with pytest.raises(ValueError, match="a duration such as 500ms, 30s or 2m"):
        parse_duration_ms(text)


@given(st.text())
def test_no_text_makes_it_fail_otherwise(text):
    with contextlib.suppress(ValueError):
        assert parse_duration_ms(text) >= 0


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0ms"), (50, "50ms"), (1_500, "1500ms"), (60_000, "1m"), (90_000, "90s"), (604_800_000, "168h")],
)
def test_a_duration_is_written_in_the_longest_unit_that_has_it(ms, text):
    assert duration_text(ms) == text


@given(st.integers(0, MAX_INTERVAL_MS))
def test_what_is_written_is_read_as_the_same(ms):
    assert parse_duration_ms(duration_text(ms)) == ms
