"""A message offers what its publisher stamped, and nothing where others published it."""

import pytest

from lbg_runtime.model.message import Message, PropertyValue


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
