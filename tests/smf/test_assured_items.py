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


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("03", "of 1 bytes"),
        ("030400", "of 3 bytes"),
        ("040400000006", "version 4"),
        ("030400000007", "7 bytes long and is 6"),
        ("020002", "8 bytes long and is 3"),
        ("03040000000706", "without its length"),
        ("0304000000080601", "impossible length"),
        ("0304000000080603", "impossible length"),
        ("0304000000080600", "impossible length"),
        ("03040000000b0600000000", "impossible length"),
        ("03040000000c060000000005", "impossible length"),
    ],
)
def test_a_body_that_cannot_be_read_is_refused(body: str, what: str) -> None:
    with pytest.raises(ProtocolError, match=what):
        decode_assured(bytes.fromhex(body))
