"""What is no YAML, or no value of its kind: one line with the place, and nothing of a text that may be a password."""

import pytest

from lbg_runtime.config.document import read_document
from lbg_runtime.model.errors import ConfigError

AS_TEXT = "expected valid YAML, with quotes around values that are meant as text"


def _problem(folder, text):
    path = folder / "config.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_document(path)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(str(path))


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("2026-13-45", "the value is not a date"),
        ("!!timestamp x", "the value is not a date"),
        ("!!int two", "the value is not a whole number"),
        ("!!int ''", "the value is not a whole number"),
        ("0x_", "the value is not a whole number"),
        ("0b_", "the value is not a whole number"),
        ("9" * 5_000, "the value is not a whole number"),
        ("0x" + "f" * 5_000, "the value is not a whole number"),
        ("0b" + "1" * 20_000, "the value is not a whole number"),
        ("1" + ":00" * 200 + ".0", "the value is not a number"),
        ("!!float x", "the value is not a number"),
        ("!!bool x", "the value is not true or false"),
    ],
)
def test_a_value_that_is_none_of_its_kind_is_one_line(tmp_path, value, found):
    assert _problem(tmp_path, f"group:\n  name: {value}\n") == f":2: {found}; {AS_TEXT}"


@pytest.mark.parametrize("value", ["010", "-017", "0_7", "00", "1:30", "12:34", "190:20:30", "!!int 010"])
def test_a_number_that_yaml_would_read_as_another_one_is_refused_and_not_shown(tmp_path, value):
    expected = ":2: a number that YAML reads as another one; expected plain digits, or quotes around what is text"
    assert _problem(tmp_path, f"group:\n  hash_count: {value}\n") == expected


@pytest.mark.parametrize(("value", "number"), [("0", 0), ("-5", -5), ("1_000", 1_000), ("0x10", 16), ('"010"', "010")])
def test_other_numbers_are_what_they_look_like(tmp_path, value, number):
    (tmp_path / "config.yaml").write_text(f"count: {value}")
    assert read_document(tmp_path / "config.yaml") == {"count": number}


@pytest.mark.parametrize("key", ["[a, b]", "{a: b}", "&x [c]"])
def test_a_key_that_can_be_none_is_one_line(tmp_path, key):
    assert _problem(tmp_path, f"a: 1\n? {key}\n: 1\n") == ":2: found unhashable key; expected valid YAML"


@pytest.mark.parametrize(("text", "line"), [('a:\n  b: "x\\ud800"\n', 2), ('"\\udfff": 1\n', 1)])
def test_half_a_character_is_refused_wherever_it_stands(tmp_path, text, line):
    assert _problem(tmp_path, text) == f":{line}: half a character; expected valid YAML"


@pytest.mark.parametrize("text", ["x: " + "[" * 1_000 + "]" * 1_000, "x: " + "{a: " * 800 + "1" + "}" * 800])
def test_brackets_without_end_are_one_line(tmp_path, text):
    assert _problem(tmp_path, text) == ": nested too deep; expected sections a few levels deep"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("password: *Secret1", ":1: found undefined alias"),
        ("{password: *Secret1, username: a}", ":1: found undefined alias"),
        ("password: !Secret1", ":1: could not determine a constructor for the tag"),
        ("password: !Secret1'x", ":1: could not determine a constructor for the tag"),
        ("password: !Secret1!x", ":1: found undefined tag handle"),
        ("password: !!Secret1", ":1: could not determine a constructor for the tag"),
    ],
)
def test_a_password_without_quotes_is_not_told_for_what_yaml_takes_it_for(tmp_path, text, found):
    assert _problem(tmp_path, text) == f"{found}; {AS_TEXT}"


def test_nor_is_the_name_of_an_anchor(tmp_path):
    problem = _problem(tmp_path, "a: &Secret1 b\npassword: &Secret1 c")
    assert problem == ":2: second occurrence; expected valid YAML"


@pytest.mark.parametrize("value", ["!!set {b, a}", "!!set\n    ? b\n    ? a"])
def test_a_set_is_refused_as_it_forgets_the_order_in_which_it_is_written(tmp_path, value):
    assert _problem(tmp_path, f"group: 1\nhandlers: {value}\n") == ":2: a set, which has no order; expected a list"
