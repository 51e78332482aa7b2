import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_runtime.model.errors import ProtocolError
from lbg_runtime.smf.assured_items import AssuredBody, AssuredItem, decode_assured, encode_assured

items = st.builds(
    AssuredItem, st.integers(1, 63), st.binary(max_size=20) | st.binary(min_size=250, max_size=300), st.integers(0, 3)
)
bodies = st.builds(AssuredBody, st.integers(0, 255), st.lists(items, max_size=5).map(tuple))


@given(body=bodies)
def test_a_control_body_is_read_as_it_was_written(body: AssuredBody) -> None:
    assert decode_assured(encode_assured(body)) == body


def test_the_old_form_counts_words_and_pads_with_zeros() -> None:
    body = decode_assured(bytes.fromhex("02 4003 8705713100 0303ff 00"))
    assert body == AssuredBody(4, (AssuredItem(7, b"q1\0", 2), AssuredItem(3, b"\xff")))


def test_the_oldest_version_has_the_old_form() -> None:
    body = decode_assured(bytes.fromhex("01 3006 8606 00000002 820a 0000000000000005 8303ff 0000"))
    assert body == AssuredBody(
        3, (AssuredItem(6, b"\0\0\0\2", 2), AssuredItem(2, b"\0\0\0\0\0\0\0\5", 2), AssuredItem(3, b"\xff", 2))
    )


def test_padding_between_parameters_and_the_marks_of_a_body_are_passed_over() -> None:
    body = decode_assured(bytes.fromhex("83 04 0000000f 40 0603ff 00 0703ff 00"))
    assert body == AssuredBody(4, (AssuredItem(6, b"\xff"), AssuredItem(7, b"\xff")))


def test_a_long_value_takes_the_long_form() -> None:
    for size, lead in ((253, "03 04 00000105 06ff"), (254, "03 04 0000010a 0600 00000104")):
        raw = encode_assured(AssuredBody(4, (AssuredItem(6, bytes(size)),)))
        assert raw == bytes.fromhex(lead) + bytes(size)


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("03", "of 1 bytes"),
        ("030400", "of 3 bytes"),
        ("030403", "of 3 bytes"),
        ("0304000000", "of 5 bytes"),
        ("040400000006", "version 4"),
        ("030400000007", r"7 bytes long and is 6 \(at byte 1\)"),
        ("030401000006", "16777222 bytes long and is 6"),
        ("020002", "8 bytes long and is 3"),
        ("03040000000706", "without its length"),
        ("0304000000080601", "impossible length"),
        ("0304000000080603", "impossible length"),
        ("0304000000080600", "impossible length"),
        ("03040000000b0600000000", "impossible length"),
        ("03040000000c060000000005", "impossible length"),
        ("03040000000c060001000006", "impossible length"),
        ("03040000000c060000000007", "impossible length"),
    ],
)
def test_a_body_that_cannot_be_read_is_refused(body: str, what: str) -> None:
    with pytest.raises(ProtocolError, match=what):
        decode_assured(bytes.fromhex(body))
