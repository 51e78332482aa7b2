from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_runtime.model.errors import ProtocolError
from lbg_runtime.model.message import Headers, Message
from lbg_runtime.smf.contents import (
    Contents,
    PayloadKind,
    decode_contents,
    encode_contents,
    message_of,
    relay_of,
    with_property,
)
from lbg_runtime.smf.message import make_relay
from lbg_runtime.smf.sdt import Destination, DestinationKind, encode_sdt

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(1 << 63), (1 << 63) - 1), st.floats(allow_nan=False), st.text(), st.binary()
)
maps = st.dictionaries(st.text(), scalars, max_size=4)
named = st.dictionaries(st.text(min_size=1), scalars, max_size=4)


@given(
    contents=st.builds(
        Contents, st.binary(max_size=300), st.sampled_from(PayloadKind), maps, maps, is_reply=st.booleans()
    )
)
def test_contents_are_read_as_they_were_written(contents: Contents) -> None:
    assert decode_contents(*encode_contents(contents)) == contents


@given(
    properties=named,
    payload=st.binary(),
    message_id=st.none() | st.text(),
    sent_at_ms=st.none() | st.integers(0, 1 << 50),
    headers=st.builds(
        Headers,
        st.none() | st.text(),
        st.none() | st.text(),
        st.none() | st.integers(0, (1 << 64) - 1),
        st.none() | st.integers(0, 3) | st.integers(5, 255),
    ),
)
def test_a_message_is_the_same_after_the_way_through_a_broker(
    properties, payload, message_id, sent_at_ms, headers
) -> None:
    message = Message("a/b", payload, properties, message_id, sent_at_ms, headers)
    assert message_of("a/b", relay_of(message)) == message


def test_what_a_message_does_not_say_is_not_written() -> None:
    assert relay_of(Message("a/b", b"payload")).contents is None
    relay = relay_of(Message("a/b", b"payload", headers=Headers(sequence_number=(1 << 64) - 1)))
    assert decode_contents(relay.contents, relay.body).headers == {"sn": -1}
    relay = relay_of(Message("a/b", b"payload", headers=Headers(sequence_number=(1 << 63) - 1)))
    assert decode_contents(relay.contents, relay.body).headers == {"sn": (1 << 63) - 1}


@pytest.mark.parametrize("is_reply", [False, True])
def test_a_reply_says_that_it_is_one(is_reply: bool) -> None:
    contents = Contents(b"payload", is_reply=is_reply)
    assert decode_contents(*encode_contents(contents)) == contents


def test_a_property_is_added_to_those_that_a_message_has() -> None:
    message = Message("a/b", b"payload", {"a": 1, "b": 2}, "id", 5, Headers(priority=9))
    with_more = with_property(relay_of(message), "b", value="c")
    assert message_of("a/b", with_more) == replace(message, properties={"a": 1, "b": "c"})


@pytest.mark.parametrize("size", [0, 1, 255, 256, 65_535, 65_536])
def test_a_section_says_its_size_in_as_few_bytes_as_it_takes(size: int) -> None:
    summary, _ = encode_contents(Contents(bytes(size), properties={"a": 1}))
    assert summary is not None
    said = size.to_bytes(max(1, (size.bit_length() + 7) // 8))
    assert summary[:-2] == bytes((0x21 + len(said),)) + said


def test_sections_that_are_not_known_are_passed_over() -> None:
    contents = decode_contents(bytes.fromhex("1201 2202 3201 5201"), b"xABxx")
    assert contents == Contents(b"AB")
    # A section's head is never shorter than its kind and one byte of size.
    for head in ("20", "21", "22"):
        assert decode_contents(bytes.fromhex(f"{head}02"), b"ABxx") == Contents(b"AB")


def test_a_string_is_its_utf_8() -> None:
    summary, body = encode_contents(Contents(encode_sdt("täxt"), PayloadKind.STRING))
    assert message_of("t", make_relay("t", body, summary)).payload == "täxt".encode()


def test_the_metadata_of_a_string_message_is_what_a_client_writes() -> None:
    attachment = encode_sdt("hello")
    properties = {"QUEUE_PARTITION_KEY": "x", "JMSXGroupID": "grp-1"}
    summary, body = encode_contents(Contents(attachment, PayloadKind.STRING, properties=properties))
    expected = bytes.fromhex("01000000472f0000004718040700 2b0000003e 1c047000 2b00000035") + b"".join(
        encode_sdt(text) for pair in properties.items() for text in pair
    )
    assert body == attachment + expected
    assert summary == bytes((0x22, len(attachment), 0x42, len(expected)))


def test_what_grows_too_long_when_a_property_is_added_stays_as_it_is() -> None:
    nearly = {"filler": bytes((1 << 24) - 100)}
    summary, body = encode_contents(Contents(b"", properties=nearly))
    relay = make_relay("a/b", body, summary)
    assert with_property(relay, "x", value=True) != relay
    assert with_property(relay, "a" * 100, value=True) == relay
    with pytest.raises(ValueError, match="headers and properties of 16777"):
        encode_contents(Contents(b"", properties={"filler": bytes(1 << 24)}))


def test_plain_bytes_need_no_summary() -> None:
    assert encode_contents(Contents(b"plain")) == (None, b"plain")
    assert decode_contents(None, b"plain") == Contents(b"plain")


def test_payloads_are_what_they_were() -> None:
    for kind, payload in (
        (PayloadKind.STRING, "täxt"),
        (PayloadKind.MAP, {"a": 1}),
        (PayloadKind.STREAM, [1, "b"]),
    ):
        assert Contents(encode_sdt(payload), kind).payload == payload  # type: ignore[arg-type]  # a list is a stream
    assert Contents(b"raw").payload == b"raw"


def test_properties_without_a_place_in_a_message_are_left_out() -> None:
    where = Destination(DestinationKind.TOPIC, "t")
    contents = Contents(
        b"",
        headers={"mi": 5, "ts": "x", "ci": 5, "mt": 5, "sn": "x"},
        properties={"a": 1, "where": where, "map": {}, "list": [], "": 1},
    )
    summary, body = encode_contents(contents)
    message = message_of("t", make_relay("t", body, summary))
    assert (dict(message.properties), message.message_id, message.sent_at_ms) == ({"a": 1}, None, None)
    assert message.headers == Headers()


@given(summary=st.binary(max_size=12), body=st.binary(max_size=60))
def test_any_summary_and_body_are_contents_or_a_protocol_error(summary: bytes, body: bytes) -> None:
    try:
        decode_contents(summary, body)
    except ProtocolError as error:
        assert error.what  # noqa: PT017  # which error it is depends on the bytes


@pytest.mark.parametrize(
    ("summary", "body", "what"),
    [
        ("23 00", "", "cut short"),
        ("22 05", "00", "a section of 5 bytes in a body of 1"),
        ("42 01", "01", "without a block"),
        ("42 05", "0101000000", "without a block"),
        ("42 05", "0100000001", "cut short"),
        ("42 07", "01000000020002", "not a preamble and a map"),
        ("42 07", "00000000020002", "without a block"),
        ("42 07", "01010000020002", "without a block"),
        ("42 07", "01000100020002", "cut short"),
        # A preamble of one byte; and one of two, with headers that are a number.
        ("42 12", "01 00 00000d 2f0000000d 180300 2b00000005", "not a preamble and a map"),
        ("42 21", "01 00 00001c 2f0000001c 18040000 2b00000013 1c046800 080a0000000000000005", "'h' that is not a map"),
    ],
)
def test_contents_that_cannot_be_read_are_refused(summary: str, body: str, what: str) -> None:
    with pytest.raises(ProtocolError, match=what):
        decode_contents(bytes.fromhex(summary), bytes.fromhex(body))


def test_a_string_message_without_a_string_is_refused() -> None:
    summary, body = encode_contents(Contents(encode_sdt(5), PayloadKind.STRING))
    with pytest.raises(ProtocolError, match="not a string"):
        message_of("t", make_relay("t", body, summary))
