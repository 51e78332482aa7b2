"""Selectors alone: what they say of the fields of a message."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_runtime.broker.engine.matching.selector import compile_selector
from lbg_runtime.model.errors import BrokerRefusal

FIELDS = {"color": "red", "size": 5, "weight": 2.5, "hot": True, "quote": "it's", "path": "a_b%c", "lines": "a\nb"}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("color = 'red'", True),
        ("color <> 'red'", False),
        ("color = 'blue' OR size = 5", True),
        ("color = 'blue' or size > 5 AND hot", False),
        ("(color = 'red' OR size > 5) and NOT hot", False),
        ("NOT color = 'blue'", True),
        ("hot", True),
        ("hot = TRUE", True),
        ("hot <> true", False),
        ("size >= 5 AND size <= 5", True),
        ("size < 5.5", True),
        ("weight = 25E-1", True),
        ("size = 5L", True),
        ("size + 1 * 2 = 7", True),
        ("(size + 1) * 2 = 12", True),
        ("-size = -5", True),
        ("size - -1 = 6", True),
        ("size / 0 = 1", False),
        ("size BETWEEN 1 AND 5 AND hot", True),
        ("size NOT BETWEEN 1 AND 4", True),
        ("color IN ('red', 'green')", True),
        ("color NOT IN ('red')", False),
        ("color LIKE 'r%'", True),
        ("color NOT LIKE 'r_d'", False),
        ("path LIKE 'a!_b!%_' ESCAPE '!'", True),
        ("path LIKE 'a!_b_d' ESCAPE '!'", False),
        ("lines LIKE 'a%b'", True),
        ("path LIKE 'a!' ESCAPE '!'", False),
        ("path LIKE '%!%_' ESCAPE '!'", True),
        ("quote = 'it''s'", True),
        ("missing IS NULL", True),
        ("color IS NOT NULL", True),
        ("missing = 'x'", False),
        ("NOT missing = 'x'", False),
        ("missing = 'x' OR hot", True),
        ("missing = 'x' AND hot", False),
        ("missing IN ('x')", False),
        ("missing NOT IN ('x')", False),
        ("missing NOT LIKE 'x'", False),
        ("size = '5'", False),
        ("size <> '5'", False),
        ("color > 'a'", False),
        ("hot = 1", False),
        ("size", False),
        ("Color = 'red'", False),
        ("color='red'and(size=5)", True),
    ],
)
def test_a_selector_is_true_of_what_it_says(text, wanted):
    assert compile_selector(text)(FIELDS) is wanted


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "9" * 2_000,
        "",
        "color =",
        "color = 'red",
        "= 5",
        "color LIKE 5",
        "size IN (5)",
        "a b",
        "(a",
        "a LIKE 'x' ESCAPE 'yz'",
        "~",
    ],
)
def test_what_is_no_selector_is_refused(text):
    with pytest.raises(BrokerRefusal, match="400 Invalid Selector"):
        compile_selector(text)


@given(st.text(alphabet="ab'()=<>+-*/ 19.eNOTLIKEINAD%_,", max_size=30))
def test_any_text_is_a_selector_or_refused(text):
    try:
        selector = compile_selector(text)
    except BrokerRefusal:
        return
    assert selector({"a": 1, "b": "x"}) in (True, False)


def test_a_selector_nested_too_deep_is_refused_and_not_the_end():
    with pytest.raises(BrokerRefusal):
        compile_selector("NOT " * 100_000 + "a")


def test_a_number_of_many_digits_is_compared_like_any_other():
    assert compile_selector("size < " + "9" * 1_900)(FIELDS)
    assert not compile_selector("weight > " + "9" * 1_900)(FIELDS)
