"""What a message says about itself lands among its user properties, and comes out of them again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_runtime.model.ids import DeliveryId
from lbg_runtime.model.message import (
    KEY_SEQUENCE_PROPERTY,
    NO_HEADERS,
    PARTITION_KEY_PROPERTY,
    PUBLISHER_PROPERTY,
    Headers,
    Message,
    PropertyValue,
)
from lbg_runtime.pipeline.landing.message_headers import read
from lbg_runtime.pipeline.landing.rows import Gathered, to_batch

STAMPS: dict[str, PropertyValue] = {PARTITION_KEY_PROPERTY: "k", PUBLISHER_PROPERTY: "p", KEY_SEQUENCE_PROPERTY: 7}
ALL = Headers("request-7", "order", (1 << 64) - 1, 255)

texts = st.none() | st.text()
any_headers = st.builds(
    Headers,
    texts,
    texts,
    st.none() | st.integers(0, (1 << 64) - 1),
    st.none() | st.integers(0, 255),
)


def landed(properties: dict[str, PropertyValue], headers: Headers) -> dict[str, str] | None:
    rows = Gathered()
    message = Message("hp/1/orders", b"x", properties, None, 1_000, headers=headers)
    rows.add(message, 1, "k", DeliveryId(1), redelivered=False)
    [row] = to_batch(0, "m-1.5", rows, 1).to_pylist()
    return None if row["headers"] is None else dict(row["headers"])


def test_they_land_beside_the_user_properties() -> None:
    assert landed({**STAMPS, "colour": "red"}, ALL) == {
        "colour": "red",
        "lbg_correlation_id": "request-7",
        "lbg_message_type": "order",
        "lbg_sequence_number": "18446744073709551615",
        "lbg_priority": "255",
    }
    assert landed(STAMPS, Headers(priority=0)) == {"lbg_priority": "0"}
    assert landed({}, Headers(message_type="")) == {"lbg_message_type": ""}


def test_a_message_without_any_has_no_entry_for_them() -> None:
    assert landed(STAMPS, NO_HEADERS) is None


def test_a_user_property_of_such_a_name_is_the_one_that_lands() -> None:
    assert landed({**STAMPS, "lbg_priority": "high"}, ALL) == {
        "lbg_priority": "high",
        "lbg_correlation_id": "request-7",
        "lbg_message_type": "order",
        "lbg_sequence_number": "18446744073709551615",
    }


@given(any_headers, st.dictionaries(st.text(min_size=1), st.text(), max_size=3))
def test_what_is_read_is_what_was_written(headers: Headers, properties: dict[str, str]) -> None:
    properties = {f"own-{name}": value for name, value in properties.items()}
    assert read(landed({**STAMPS, **properties}, headers) or {}) == (properties, headers)


@pytest.mark.parametrize(
    ("name", "largest"), [("lbg_sequence_number", (1 << 64) - 1), ("lbg_priority", 255)], ids=["sequence", "priority"]
)
def test_a_number_that_cannot_be_sent_stays_a_user_property_and_the_largest_that_can_does_not(
    name: str, largest: int
) -> None:
    for text in (str(largest + 1), "9" * 5_000, "", "07", "\u0667"):
        assert read({name: text}) == ({name: text}, NO_HEADERS)
    for number in (0, largest):
        properties, headers = read({name: str(number)})
        assert (properties, {headers.sequence_number, headers.priority}) == ({}, {number, None})


@given(st.sampled_from(["lbg_sequence_number", "lbg_priority"]), st.text() | st.integers().map(str))
def test_what_is_not_read_as_a_number_stays_a_user_property(name: str, text: str) -> None:
    properties, headers = read({name: text})
    number = headers.priority if name == "lbg_priority" else headers.sequence_number
    assert (properties == {name: text}) is (number is None)
    assert number is None or (str(number) == text and number < (256 if name == "lbg_priority" else 1 << 64))
