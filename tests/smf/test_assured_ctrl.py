import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_runtime.model.errors import ProtocolError
from lbg_runtime.smf.assured_ctrl import (
    AckOutcome,
    AckRange,
    Bind,
    BoundFlow,
    ClientAck,
    CloseFlow,
    CreateQueue,
    FlowChange,
    UnknownRequest,
    bound_flow_body,
    created_queue_body,
    read_assured,
    refusal_body,
)
from lbg_runtime.smf.assured_items import (
    AssuredBody,
    AssuredItem,
    AssuredKind,
    ItemKind,
    decode_assured,
    encode_assured,
)


def body(kind: int, *items: tuple[ItemKind, bytes]) -> bytes:
    return encode_assured(AssuredBody(kind, tuple(AssuredItem(item, value) for item, value in items)))


def test_an_acknowledgement_has_any_number_of_ranges() -> None:
    first = bytes(8) + bytes(7) + b"\5"
    second = bytes(7) + b"\7" + bytes(7) + b"\x08"
    request = body(
        AssuredKind.CLIENT_ACK,
        (ItemKind.FLOW_ID, b"\0\0\0\2"),
        (ItemKind.APPLICATION_ACK, first),
        (ItemKind.APPLICATION_ACK, second + b"\3"),
    )
    assert read_assured(request) == ClientAck(
        2, None, None, (AckRange(0, 5, AckOutcome.ACCEPTED), AckRange(7, 8, AckOutcome.REJECTED))
    )


def test_other_requests_are_read() -> None:
    create = body(AssuredKind.CREATE, (ItemKind.QUEUE, b"q\0"), (ItemKind.DURABILITY, b"\1"), (ItemKind.ACCESS, b"\2"))
    assert read_assured(create) == CreateQueue("q", durable=True, exclusive=False)
    assert read_assured(body(AssuredKind.CLOSE_FLOW, (ItemKind.FLOW_ID, b"\0\0\0\2"))) == CloseFlow(2)
    change = body(AssuredKind.FLOW_CHANGE, (ItemKind.FLOW_ID, b"\0\0\0\2"), (ItemKind.ACTIVE, b"\1"))
    assert read_assured(change) == FlowChange(2, active=True)
    assert read_assured(body(0x0A)) == UnknownRequest(0x0A)


def test_the_answer_to_a_bind_says_whose_the_numbers_of_messages_are_where_that_is_known() -> None:
    def said(spooler: int | None) -> list[bytes]:
        answer = bound_flow_body(BoundFlow(2, "q", True, True, 1, 1, 1, spooler))
        return [item.value for item in decode_assured(answer).items if item.kind == ItemKind.SPOOLER]

    assert said(0xA5CE52B0FE834771) == [bytes.fromhex("a5ce52b0fe834771")]
    assert said(None) == []


def test_a_share_of_a_partitioned_queue_is_bound_again_under_the_name_in_the_answer() -> None:
    answer = decode_assured(bound_flow_body(BoundFlow(2, "q", False, True, 1, 1, 1, None, partition_group=0x1234)))
    [share] = [item for item in answer.items if item.kind == ItemKind.PARTITION_GROUP]
    again = read_assured(encode_assured(AssuredBody(AssuredKind.BIND, (AssuredItem(ItemKind.QUEUE, b"q\0"), share))))
    assert isinstance(again, Bind)
    assert again.partition_group == 0x1234


def test_answers_without_flows() -> None:
    assert refusal_body(AssuredKind.BIND).hex() == "030400000006"
    assert created_queue_body("q").hex() == "03080000000a07047100"


@pytest.mark.parametrize(
    ("request_body", "what"),
    [
        (body(AssuredKind.UNBIND), "without flow_id"),
        (body(AssuredKind.UNBIND, (ItemKind.FLOW_ID, b"\2")), "flow_id of 1 bytes, not 4"),
        (body(AssuredKind.BIND, (ItemKind.QUEUE, b"q")), "closing zero"),
        (body(AssuredKind.CLIENT_ACK, (ItemKind.FLOW_ID, bytes(4)), (ItemKind.APPLICATION_ACK, b"")), "of 0 bytes"),
        (
            body(AssuredKind.CLIENT_ACK, (ItemKind.FLOW_ID, bytes(4)), (ItemKind.APPLICATION_ACK, bytes(16) + b"\4")),
            "outcome 4",
        ),
    ],
)
def test_a_request_that_cannot_be_read_is_refused(request_body: bytes, what: str) -> None:
    with pytest.raises(ProtocolError, match=what):
        read_assured(request_body)


@given(kind=st.integers(0, 16), data=st.binary(max_size=60))
def test_any_bytes_are_a_request_or_a_protocol_error(kind: int, data: bytes) -> None:
    for raw in (data, bytes((3, kind)) + (6 + len(data)).to_bytes(4, "big") + data):
        try:
            read_assured(raw)
        except ProtocolError as error:
            assert error.what  # noqa: PT017  # which error it is depends on the bytes
