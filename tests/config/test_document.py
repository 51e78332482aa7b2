"""What is no YAML, or no value of its kind: one line with the place, and nothing of a text that may be a password."""

import os
import threading
from pathlib import Path

import pytest

from lbg_runtime.config.document import LARGEST_BYTES, read_document
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


def _read(folder, text):
    (folder / "config.yaml").write_text(text)
    return read_document(folder / "config.yaml")


@pytest.mark.parametrize(
    ("merged", "count"),
    [
        ("<<: [*first, *second]", 1),
        ("<<: [*second, *first]", 2),
        ("<<: [*first, *second], hash_count: 3", 3),
        ("hash_count: 3, <<: *first", 3),
        ("<<: [*nested, *first]", 2),
        ("<<: {<<: *nested, hash_count: 3}", 3),
    ],
)
def test_of_what_is_merged_the_first_counts_and_what_is_written_beside_it_more(tmp_path, merged, count):
    text = "first: &first {hash_count: 1}\nsecond: &second {hash_count: 2}\nnested: &nested {<<: *second}\n"
    assert _read(tmp_path, f"{text}group: {{{merged}}}\n")["group"] == {"hash_count": count}


def test_what_overrides_what_it_merges_can_be_merged_itself_wherever_it_stands(tmp_path):
    text = "all: {here: {below: &one {<<: &none {count: 0, name: a}, count: 1}}}\ngroup: {<<: *one}\n"
    found = _read(tmp_path, text)
    assert found["group"] == found["all"]["here"]["below"] == {"count": 1, "name": "a"}


def test_keys_given_twice_are_refused_in_what_is_merged_too(tmp_path):
    assert _problem(tmp_path, "group:\n  <<: {a: 1, a: 2}\n") == ":2: a key given twice; expected valid YAML"
    assert _problem(tmp_path, "group:\n  <<: {a: 1}\n  <<: {b: 1}\n") == ":3: a key given twice; expected valid YAML"


@pytest.mark.parametrize("value", ["3", "[3]", "[{a: 1}, [b]]"])
def test_what_is_merged_and_no_mapping_is_one_line(tmp_path, value):
    expected = "what is merged is no mapping; expected a mapping, or a list of mappings"
    assert _problem(tmp_path, f"group:\n  <<: {value}\n") == f":2: {expected}"


def test_a_mapping_that_merges_itself_is_what_it_has_beside_that(tmp_path):
    assert _read(tmp_path, "group: &group {<<: *group, count: 1}\n") == {"group": {"count": 1}}


def test_a_key_that_is_merged_again_and_again_is_one_key(tmp_path):
    lines = ["a0: &a0 {x: 1}", *(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 40))]
    assert _read(tmp_path, "\n".join(lines)) == {f"a{n}": {"x": 1} for n in range(40)}


def test_more_keys_than_anyone_merges_are_one_line(tmp_path):
    lines = [f"a{n}: &a{n} {{{', '.join(f'k{n}_{m}: 1' for m in range(1_000))}}}" for n in range(11)]
    merged = ", ".join(f"*a{n}" for n in range(11))
    problem = ":12: too much is merged; expected valid YAML"
    assert _problem(tmp_path, "\n".join([*lines, f"group: {{<<: [{merged}]}}"])) == problem


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/full"])
def test_what_has_no_end_is_not_read_until_no_memory_is_left(path):
    with pytest.raises(ConfigError) as caught:
        read_document(Path(path))
    assert str(caught.value) == f"{path}: more than {LARGEST_BYTES} bytes; expected a settings file"


def test_a_file_may_be_as_long_as_it_is_said(tmp_path):
    text = "group:\n  name: orders\n"
    text += "#" * (LARGEST_BYTES - len(text))
    (tmp_path / "config.yaml").write_text(text)
    assert read_document(tmp_path / "config.yaml") == {"group": {"name": "orders"}}
    assert _problem(tmp_path, text + "#") == f": more than {LARGEST_BYTES} bytes; expected a settings file"


def test_a_file_may_be_a_pipe(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writing = threading.Thread(target=pipe.write_text, args=("group:\r\n  name: orders\r\n",))
    writing.start()
    assert read_document(pipe) == {"group": {"name": "orders"}}
    writing.join()
