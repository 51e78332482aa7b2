"""Durations as people write them."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_runtime.config.duration import parse_duration_ms


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
