import pytest

from lbg_runtime.model.whole import whole_number


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("7", 7), ("007", 7), ("9999", 9999)])
def test_a_number_is_read(text: str, number: int) -> None:
    assert whole_number(text, 4) == number


@pytest.mark.parametrize("text", ["", "-1", "+1", " 1", "1_0", "1.0", "1e3", "x", "²", "٣", "10000", "9" * 10_000])
def test_anything_else_is_none(text: str) -> None:
    assert whole_number(text, 4) is None
