"""Transaction control as the official client sends it, and as it takes its answer. Bodies are those of a capture."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_runtime.model.errors import ProtocolError
from lbg_runtime.smf.assured_items import AssuredBody, AssuredItem, AssuredKind, encode_assured
from lbg_runtime.smf.transactions import (
    ConsumedPart,
    PublishedPart,
    TransactionKind,
    TransactionRequest,
    answer_body,
    read_transaction,
)

COMMIT = bytes.fromhex(
    "030b0000003f9703029806000000019a0a00000002000000039e2600000003000000000000000100000000000000010000"
    "00010000000000000003000000ff"
)
PUBLISHED = bytes.fromhex("030b0000002b9703029806000000019a0a00000002000000039c1200000002000000020000000000000004")
OPEN_AGAIN = bytes.fromhex("030b000000249703009a0a000000010000000299117472616e7361637465642d312d3100")


def test_a_commit_of_what_was_consumed():
    assert read_transaction(COMMIT) == TransactionRequest(
        TransactionKind.COMMIT,
        1,
        bytes.fromhex("0000000200000003"),
        (),
        (ConsumedPart(flow_id=3, first=1, last=1, count=1, received_id=3, window=255),),
        "",
    )


def test_a_commit_of_what_was_published():
    assert read_transaction(PUBLISHED).published == (PublishedPart(flow_id=2, count=2, last_id=4),)


def test_a_session_that_is_opened_again_says_its_name():
    request = read_transaction(OPEN_AGAIN)
    assert (request.kind, request.session_id, request.name) == (TransactionKind.OPEN, 0, "transacted-1-1")


def test_an_answer_repeats_what_names_the_transaction():
    request = read_transaction(PUBLISHED)
    body = answer_body(TransactionKind.COMMIT, request, 1, last_ids={2: 4})
    assert body.hex() == "030b0000002b1703021806000000011a0a00000002000000031d12000000020000000000000004000000ff"


def test_what_was_done_on_several_flows_is_read_in_order():
    items = (
        (0x17, b"\x02"),
        (0x1C, bytes.fromhex("00000001 00000002 0100000000000003 00000004 00000005 0000000000000006")),
        (0x1E, bytes.fromhex("00000007 0000000000000008 0000000000000009 0000000a 000000000000000b 0000000c") * 2),
        (0x1C, bytes.fromhex("0000000d 0000000e 000000000000000f")),
    )
    request = read_transaction(body_of(*items))
    assert request.published == (PublishedPart(1, 2, 1 << 56 | 3), PublishedPart(4, 5, 6), PublishedPart(13, 14, 15))
    assert request.consumed == (ConsumedPart(7, 8, 9, 10, 11, 12),) * 2
    assert (request.session_id, request.transaction, request.name) == (0, b"", "")


def test_an_answer_says_a_name_and_a_state_only_where_there_is_a_name_and_no_empty_transaction():
    request = read_transaction(body_of((0x17, b"\x00")))
    opened = "030b000000181703041806000001021b03001906742d3100"
    assert answer_body(TransactionKind.OPENED, request, 258, "t-1").hex() == opened
    assert answer_body(TransactionKind.CLOSE, request, 258).hex() == "030b0000000f170301180600000102"


def body_of(*items: tuple[int, bytes]) -> bytes:
    return encode_assured(AssuredBody(AssuredKind.TRANSACTION, tuple(AssuredItem(*item) for item in items)))


@pytest.mark.parametrize(
    "items",
    [
        (),
        ((0x17, b""),),
        ((0x17, b"\x63"),),
        ((0x17, b"\x02"), (0x18, bytes(5))),
        ((0x17, b"\x02"), (0x18, b"")),
        ((0x17, b"\x02"), (0x1C, bytes(15))),
        ((0x17, b"\x02"), (0x1C, b"")),
        ((0x17, b"\x02"), (0x1E, b"")),
        ((0x17, b"\x02"), (0x1E, bytes(1))),
        ((0x17, b"\x00"), (0x19, b"no zero")),
    ],
)
def test_what_cannot_be_read_is_the_peers_mistake(items):
    with pytest.raises(ProtocolError):
        read_transaction(body_of(*items))


@given(st.binary(max_size=80))
def test_any_bytes_are_read_or_refused(body):
    try:
        request = read_transaction(body)
    except ProtocolError:
        return
    assert answer_body(request.kind, request, request.session_id)
