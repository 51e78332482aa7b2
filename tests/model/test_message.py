"""A message offers what its publisher stamped, and nothing where others published it."""

import pytest

from lbg_runtime.model.message import FencingToken, Message, PropertyValue


def test_stamps_are_read_back() -> None:
    message = Message("o/1/t", b"", {"JMSXGroupID": "k", "lbg_publisher": "p", "lbg_key_sequence": 7})
    assert (message.key, message.publisher_id, message.key_sequence) == ("k", "p", 7)


def test_a_message_of_another_publisher_has_none() -> None:
    message = Message("o/1/t", b"")
    assert (message.key, message.publisher_id, message.key_sequence) == (None, None, None)


@pytest.mark.parametrize("value", [1.5, b"k", None])
def test_a_stamp_of_the_wrong_type_is_none(value: PropertyValue) -> None:
    message = Message("o/1/t", b"", {"JMSXGroupID": value, "lbg_publisher": value, "lbg_key_sequence": value})
    assert (message.key, message.publisher_id, message.key_sequence) == (None, None, None)


def test_a_message_cannot_be_changed() -> None:
    message = Message("t", b"")
    with pytest.raises(AttributeError):
        message.topic = "u"  # type: ignore[misc]  # the point of the test


def test_the_token_is_the_publishers_number_within_the_key() -> None:
    stamps = {"JMSXGroupID": "k", "lbg_publisher": "p", "lbg_key_sequence": 7}
    assert Message("o/1/t", b"", stamps).fencing_token == FencingToken("p", 7)


@pytest.mark.parametrize("missing", ["JMSXGroupID", "lbg_publisher", "lbg_key_sequence"])
def test_there_is_no_token_where_a_stamp_is_missing(missing: str) -> None:
    stamps: dict[str, PropertyValue] = {"JMSXGroupID": "k", "lbg_publisher": "p", "lbg_key_sequence": 7}
    del stamps[missing]
    assert Message("o/1/t", b"", stamps).fencing_token is None


def test_what_a_member_adds_for_its_handler_is_no_part_of_equality() -> None:
    assert Message("t", b"", is_first_of_key=True) == Message("t", b"")
