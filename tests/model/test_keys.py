"""A key rule reads the same key in a publisher and in a member, and never raises for what a payload holds."""

import json
from enum import Enum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_runtime.model.errors import UserError
from lbg_runtime.model.keys import PARTITION_KEY, KeyOrigin, KeySource
from lbg_runtime.model.message import PropertyValue


def extract(
    rule: str, topic: str = "t", properties: dict[str, PropertyValue] | None = None, payload: bytes = b""
) -> str | None:
    return KeySource.parse(rule).extract(topic, properties or {}, payload)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("topic", KeySource(KeyOrigin.TOPIC)),
        ("topic_level:2", KeySource(KeyOrigin.TOPIC_LEVEL, "2")),
        ("property:order:id", KeySource(KeyOrigin.PROPERTY, "order:id")),
        ("json:/a/0/b~1c", KeySource(KeyOrigin.JSON, "/a/0/b~1c")),
        ("json:/", KeySource(KeyOrigin.JSON, "/")),
    ],
)
def test_written_rules_are_understood(text: str, expected: KeySource) -> None:
    assert KeySource.parse(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", "topics", "topic:", "topic:1", "topic_level", "topic_level:", "topic_level:-1", "topic_level:x"),
        *("topic_level:\u0661", "topic_level:" + "9" * 5000, "property", "property:"),
        *("json", "json:", "json:a", "json:/a~", "json:/a~2", "JSON:/a", " topic"),
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UserError):
        KeySource.parse(text)


def test_topic_levels_count_from_zero() -> None:
    assert extract("topic_level:0", "orders/4711") == "orders"
    assert extract("topic_level:1", "orders/4711") == "4711"
    assert extract("topic_level:2", "orders/4711") is None


def test_the_whole_topic_can_be_the_key() -> None:
    assert extract("topic", "orders/4711") == "orders/4711"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a", "a"),
        ("", ""),
        (5, "5"),
        (-5, "-5"),
        (True, None),
        (1.0, None),
        (b"a", None),
        (None, None),
        ("\ud800", None),
    ],
)
def test_text_and_integers_are_keys_and_nothing_else(value: PropertyValue, expected: str | None) -> None:
    assert extract("property:p", properties={"p": value}) == expected


def test_a_publishers_value_of_a_class_of_its_own_is_the_key_that_members_read() -> None:
    class Text(str, Enum):  # noqa: UP042 - not a `StrEnum`, which gives its text everywhere
        RED = "red"

    class Number(int, Enum):
        SEVEN = 7

    keys = [extract("property:p", properties={"p": value}) for value in (Text.RED, Number.SEVEN)]
    assert keys == ["red", "7"]
    assert [type(key) for key in keys] == [str, str]


def test_a_missing_property_is_no_key() -> None:
    assert extract("property:p") is None


def test_the_stamped_key_is_read_by_its_property() -> None:
    assert PARTITION_KEY.extract("t", {"JMSXGroupID": "k"}, b"") == "k"


@pytest.mark.parametrize(
    ("pointer", "expected"),
    [
        ("/order/id", "4711"),
        ("/order/lines/1/sku", "B"),
        ("/order/lines/2/sku", None),
        ("/order/lines/01/sku", None),
        ("/order/lines/-/sku", None),
        ("/order/lines/99999999999999999999", None),
        ("/a~1b", "slash"),
        ("/m~0n", "tilde"),
        ("/~01", "escaped"),
        ("/", "empty name"),
        ("/order", None),
        ("/flag", None),
        ("/nothing", None),
        ("/order/id/deeper", None),
    ],
)
def test_json_pointers_lead_to_the_key(pointer: str, expected: str | None) -> None:
    payload = {
        "order": {"id": 4711, "lines": [{"sku": "A"}, {"sku": "B"}]},
        "a/b": "slash",
        "m~n": "tilde",
        "~1": "escaped",
        "": "empty name",
        "flag": True,
        "nothing": None,
    }
    assert extract(f"json:{pointer}", payload=json.dumps(payload).encode()) == expected


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{",
        b"\xff\xfe\xfd",
        b"[" * 200_000,
        b'{"a":' * 100_000,
        b"9" * 10_000,
        b"NaN",
        b"null",
        b'"text"',
        rb'{"a": "\ud800"}',
    ],
    ids=[
        "empty",
        "cut",
        "not UTF-8",
        "deep list",
        "deep object",
        "huge number",
        "NaN",
        "null",
        "text",
        "half a character",
    ],
)
def test_a_payload_without_the_key_has_none_and_raises_nothing(payload: bytes) -> None:
    assert extract("json:/a", payload=payload) is None


def _from_below(frames: int, payload: bytes) -> str | None:
    return extract("json:/a", payload=payload) if frames == 0 else _from_below(frames - 1, payload)


@pytest.mark.parametrize(("levels", "expected"), [(499, "k"), (500, None)])
@pytest.mark.parametrize("frames", [0, 300])
def test_whether_a_key_is_found_does_not_depend_on_python_nor_on_the_caller(
    levels: int, expected: str | None, frames: int
) -> None:
    assert _from_below(frames, b'{"a": "k", "b": %s%s}' % (b"[" * levels, b"]" * levels)) == expected


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32-le"])
def test_a_payload_may_be_in_any_unicode(encoding: str) -> None:
    assert extract("json:/ä", payload='{"ä": "k"}'.encode(encoding)) == "k"


@given(st.binary(max_size=200))
def test_no_payload_raises(payload: bytes) -> None:
    extract("json:/a/0", payload=payload)
