"""A message offers what its publisher stamped, and nothing where others published it."""

from dataclasses import FrozenInstanceError, fields, replace

import pytest

from lbg_runtime.model.message import FencingToken, Headers, Message, PropertyValue, make_message


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


@pytest.mark.parametrize("value", [True, -1, 1 << 63])
def test_what_no_publisher_counts_and_no_store_holds_is_no_number(value: PropertyValue) -> None:
    message = Message("o/1/t", b"", {"JMSXGroupID": "k", "lbg_publisher": "p", "lbg_key_sequence": value})
    assert (message.key_sequence, message.fencing_token) == (None, None)


@pytest.mark.parametrize("number", [0, (1 << 63) - 1])
def test_a_number_is_one_whatever_it_starts_with_and_however_far_it_goes(number: int) -> None:
    message = Message("o/1/t", b"", {"JMSXGroupID": "k", "lbg_publisher": "p", "lbg_key_sequence": number})
    assert message.fencing_token == FencingToken("p", number)


def test_what_is_made_without_its_constructor_is_what_the_constructor_makes() -> None:
    made = make_message("t", b"p", {"k": 1}, "id", 7, Headers("c"))
    constructed = Message("t", b"p", {"k": 1}, "id", 7, Headers("c"))
    # By field, as a new field that is not made would be missing without a word.
    for each in fields(constructed):
        assert getattr(made, each.name) == getattr(constructed, each.name)
    assert (type(made), made, repr(made)) == (Message, constructed, repr(constructed))
    with pytest.raises(FrozenInstanceError):
        made.topic = "other"  # type: ignore[misc]


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


def test_headers_are_part_of_a_message_and_stay_with_every_copy() -> None:
    said = Headers("c", "type", 7, 9)
    stamps: dict[str, PropertyValue] = {"JMSXGroupID": "k", "lbg_publisher": "p", "lbg_key_sequence": 7}
    came = Message("o/1/t", b"", stamps, headers=said)
    assert came != Message("o/1/t", b"", stamps)
    for copy in (came.as_first_of_key(), came.without_token(), came.in_lane_of("lane").without_token()):
        assert copy.headers is said


def test_the_copy_for_the_first_of_a_key_is_the_message_in_all_else() -> None:
    came = Message("o/1/t", b"x", {"a": 1}, "id", 5, Headers("c"))
    first = came.as_first_of_key()
    assert (type(first), first, first.is_first_of_key, came.is_first_of_key) == (Message, came, True, False)


def test_what_a_member_adds_for_its_handler_is_no_part_of_equality() -> None:
    assert Message("t", b"", is_first_of_key=True) == Message("t", b"")


def test_a_handlers_message_has_the_key_of_its_lane_and_is_otherwise_as_it_came() -> None:
    stamps: dict[str, PropertyValue] = {"JMSXGroupID": "k", "customer": "c"}
    came = Message("o/1/t", b"x", stamps, "id", 7, Headers("c", "type", 7, 9))
    for handled in (came.in_lane_of("lane"), came.in_lane_of("lane").as_first_of_key()):
        assert (handled.key, came.key) == ("lane", "k")
        assert all(getattr(handled, each.name) == getattr(came, each.name) for each in fields(came) if each.compare)
    assert came.in_lane_of("lane").as_first_of_key().is_first_of_key
    assert replace(came.in_lane_of("lane"), payload=b"y").key == "lane"


@pytest.mark.parametrize("stamped_key", [{}, {"JMSXGroupID": "k"}])
def test_a_number_within_another_key_is_no_number_within_that_of_the_lane(
    stamped_key: dict[str, PropertyValue],
) -> None:
    handled = Message("o/1/t", b"", {**stamped_key, "lbg_publisher": "p", "lbg_key_sequence": 7}).in_lane_of("lane")
    assert (handled.fencing_token, handled.publisher_id, handled.key_sequence) == (None, None, None)


def test_what_a_handler_publishes_does_not_have_the_key_of_a_lane() -> None:
    came = Message("o/1/t", b"", {"customer": "c"}, headers=Headers("c"))
    published = came.in_lane_of("lane").without_token()
    assert published == came
    assert published.properties is not came.properties
