import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_runtime.model.errors import ProtocolError
from lbg_runtime.smf.sdt import (
    MAX_DEPTH,
    Destination,
    DestinationKind,
    EncodedMessage,
    SdtValue,
    decode_sdt,
    encode_map,
    encode_sdt,
)

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
    st.builds(Destination, st.sampled_from(DestinationKind), st.text()),
    st.builds(EncodedMessage, st.binary()),
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=10
)


@given(value=values)
def test_every_value_is_read_as_it_was_written(value: SdtValue) -> None:
    again = decode_sdt(encode_sdt(value))
    assert again == value
    assert type(again) is type(value)


@given(data=st.binary(max_size=60))
def test_any_bytes_are_a_value_or_a_protocol_error(data: bytes) -> None:
    try:
        decode_sdt(data)
    except ProtocolError as error:
        assert error.what  # noqa: PT017  # which error it is depends on the bytes


@given(value=values, data=st.data())
def test_a_garbled_value_is_a_value_or_a_protocol_error(value: SdtValue, data: st.DataObject) -> None:
    changed = bytearray(encode_sdt(value))
    changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode_sdt(bytes(changed))
    except ProtocolError as error:
        assert error.what  # noqa: PT017  # which error it is depends on the bytes


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (None, "0002"),
        (True, "040301"),
        (False, "040300"),
        (5, "080a0000000000000005"),
        (-1, "080affffffffffffffff"),
        (-1 << 63, "080a8000000000000000"),
        ((1 << 63) - 1, "080a7fffffffffffffff"),
        (1 << 63, "0c0a8000000000000000"),
        ((1 << 64) - 1, "0c0affffffffffffffff"),
        (0.5, "100a3fe0000000000000"),
        (b"\7\0", "18040700"),
        ("p", "1c047000"),
        ({}, "2b00000005"),
        ([], "2f00000005"),
        (Destination(DestinationKind.TOPIC, "a"), "2005006100"),
    ],
)
def test_values_are_written_as_clients_write_them(value: SdtValue, encoded: str) -> None:
    assert encode_sdt(value).hex() == encoded


@pytest.mark.parametrize(
    ("encoded", "value"),
    [
        ("080380", -128),
        ("0804ff7f", -129),
        ("0806000000ff", 255),
        ("0c03ff", 255),
        ("10063f000000", 0.5),
        ("14040041", "A"),
        ("1d00054100", "A"),
        ("14040000", "\ufffd"),
    ],
)
def test_other_sizes_are_read(encoded: str, value: SdtValue) -> None:
    assert decode_sdt(bytes.fromhex(encoded)) == value


def test_not_a_number_stays_one() -> None:
    value = decode_sdt(encode_sdt(math.nan))
    assert isinstance(value, float)
    assert math.isnan(value)


@pytest.mark.parametrize(
    ("encoded", "what"),
    [
        ("", "without its length"),
        ("00", "without its length"),
        ("0001", "impossible length"),
        ("0003", "impossible length"),
        ("000200", "bytes behind"),
        ("1c0341", "closing zero"),
        ("1404d800", "not UTF-16-BE"),
        ("2805", "impossible length"),
        ("2b00000008040301", "not a string"),
        ("2b000000091c047000", "without its value"),
        ("2002", "empty destination"),
        ("2005056100", "destination of kind 5"),
        ("2f0000000a 1c054101ff", r"closing zero \(at byte 10\)"),
        ("0402", "type 1 in 0 bytes"),
        ("fc02", "type 63"),
    ],
)
def test_what_cannot_be_read_is_refused(encoded: str, what: str) -> None:
    with pytest.raises(ProtocolError, match=what):
        decode_sdt(bytes.fromhex(encoded))


@pytest.mark.parametrize("head", [b"\x2f", b"\x1c\3\0\x2b"], ids=["streams", "maps"])
def test_the_stack_is_not_a_peers_to_exhaust(head: bytes) -> None:
    key, kind = head[:-1], head[-1:]
    data = b""
    for _ in range(MAX_DEPTH):
        data = key + kind + (5 + len(data)).to_bytes(4, "big") + data
    decode_sdt(data[len(key) :])
    for _ in range(5000):
        data = key + kind + (5 + len(data)).to_bytes(4, "big") + data
    with pytest.raises(ProtocolError, match="nested deeper"):
        decode_sdt(data[len(key) :])


def test_what_has_no_type_is_refused() -> None:
    for number in (1 << 64, (-1 << 63) - 1):
        with pytest.raises(ValueError, match="64 bits"):
            encode_sdt(number)
    with pytest.raises(TypeError, match="object"):
        encode_sdt(object())  # type: ignore[arg-type]  # on purpose


def test_a_long_string_takes_a_longer_length() -> None:
    assert encode_sdt("x" * 252)[:2] == b"\x1c\xff"
    assert encode_sdt("x" * 253)[:3] == b"\x1d\x01\x01"
    assert encode_sdt(bytes(70_000))[:4] == b"\x1a\x01\x11\x74"


def test_a_map_keeps_the_order_of_its_keys() -> None:
    assert list(decode_sdt(encode_map({"b": 1, "a": 2}))) == ["b", "a"]  # type: ignore[arg-type]  # it is a map
