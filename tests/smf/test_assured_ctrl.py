from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_runtime.model.errors import ProtocolError
from lbg_runtime.smf.assured_ctrl import (
    WINDOW,
    AckOutcome,
    AckRange,
    Bind,
    ClientAck,
    CloseFlow,
    CreateQueue,
    DeleteQueue,
    FlowChange,
    OpenFlow,
    Unbind,
    UnknownRequest,
    bound_flow_body,
    named_queue_body,
    opened_flow_body,
    read_assured,
)
from lbg_runtime.smf.assured_items import (
    AssuredBody,
    AssuredItem,
    AssuredKind,
    ItemKind,
    assured_body,
    decode_assured,
    encode_assured,
)
from lbg_runtime.smf.endpoint import Endpoint, EndpointWishes

ENDPOINT = Endpoint("q", True, 0x0F, 0x01, 1, 1, respects_ttl=False)


def test_an_acknowledgement_has_any_number_of_ranges() -> None:
    first = bytes(8) + b"\1" + bytes(6) + b"\5"
    second = b"\1" + bytes(6) + b"\7" + b"\1" + bytes(6) + b"\x08"
    request = assured_body(
        AssuredKind.CLIENT_ACK,
        (ItemKind.FLOW_ID, b"\0\0\0\2"),
        (ItemKind.APPLICATION_ACK, first),
        (ItemKind.APPLICATION_ACK, second + b"\3"),
    )
    assert read_assured(request) == ClientAck(
        2,
        None,
        None,
        (AckRange(0, 1 << 56 | 5, AckOutcome.ACCEPTED), AckRange(1 << 56 | 7, 1 << 56 | 8, AckOutcome.REJECTED)),
    )
    for window in (b"\0", b"\xff"):
        request = assured_body(
            AssuredKind.CLIENT_ACK,
            (ItemKind.FLOW_ID, b"\1\0\0\2"),
            (ItemKind.LAST_ACKED, b"\1" + bytes(7)),
            (ItemKind.WINDOW, window),
        )
        assert read_assured(request) == ClientAck(1 << 24 | 2, 1 << 56, window[0], ())


@pytest.mark.parametrize("outcome", AckOutcome)
def test_a_range_says_how_it_ended(outcome: AckOutcome) -> None:
    request = assured_body(
        AssuredKind.CLIENT_ACK,
        (ItemKind.FLOW_ID, bytes(4)),
        (ItemKind.APPLICATION_ACK, bytes(16) + bytes((outcome,))),
    )
    assert read_assured(request) == ClientAck(0, None, None, (AckRange(0, 0, outcome),))


def test_a_publisher_flow_is_opened_with_all_that_is_said_and_with_nothing() -> None:
    assert read_assured(assured_body(AssuredKind.OPEN_FLOW)) == OpenFlow("", 0, WINDOW, transacted=False)
    everything = assured_body(
        AssuredKind.OPEN_FLOW,
        (ItemKind.FLOW_NAME, b"name\0"),
        (ItemKind.LAST_ACKED, b"\1" + bytes(7)),
        (ItemKind.LAST_SENT, b"\2" + bytes(7)),
        (ItemKind.WINDOW, b"\x32"),
        (ItemKind.TRANSACTED_SESSION, b"\1\0\0\2"),
    )
    assert read_assured(everything) == OpenFlow("name", 1 << 56, 50, transacted=True, session_id=1 << 24 | 2)
    # Another session's number may be zero.
    opened = read_assured(assured_body(AssuredKind.OPEN_FLOW, (ItemKind.TRANSACTED_SESSION, bytes(4))))
    assert opened == OpenFlow("", 0, WINDOW, transacted=True)


def test_a_consumer_is_bound_with_all_that_is_said_and_with_nothing() -> None:
    assert read_assured(assured_body(AssuredKind.BIND)) == Bind(
        "", 0, durable=True, browser=False, wants_changes=False, last_received_id=None, selector="", replay=None,
        transacted=False,
    )  # fmt: skip
    everything = assured_body(
        AssuredKind.BIND,
        (ItemKind.QUEUE, b"q\0"),
        (ItemKind.WINDOW, b"\xff"),
        (ItemKind.DURABILITY, b"\2"),
        (ItemKind.FLOW_TYPE, b"\2"),
        (ItemKind.WANTS_CHANGES, b"\1"),
        (ItemKind.LAST_RECEIVED, b"\1" + bytes(7)),
        (ItemKind.SELECTOR, b"k = 'v'\0"),
        (ItemKind.REPLAY_START, b"\0"),
        (ItemKind.TRANSACTED_SESSION, b"\1\0\0\2"),
        (ItemKind.PARTITION_GROUP, b"\1\2"),
        (ItemKind.NO_LOCAL, b""),
        (ItemKind.QUOTA_MEGABYTES, b"\0\0\0\7"),
    )
    assert read_assured(everything) == Bind(
        "q", 255, durable=False, browser=True, wants_changes=True, last_received_id=1 << 56, selector="k = 'v'",
        replay=b"\0", transacted=True, session_id=1 << 24 | 2, partition_group=0x102,
        no_local=True, wishes=EndpointWishes(quota_megabytes=7),
    )  # fmt: skip


def test_the_first_of_a_kind_counts() -> None:
    request = assured_body(AssuredKind.UNBIND, (ItemKind.FLOW_ID, b"\0\0\0\2"), (ItemKind.FLOW_ID, b"\0\0\0\3"))
    assert read_assured(request) == Unbind(2)


def test_other_requests_are_read() -> None:
    create = assured_body(
        AssuredKind.CREATE, (ItemKind.QUEUE, b"q\0"), (ItemKind.DURABILITY, b"\1"), (ItemKind.ACCESS, b"\2")
    )
    assert read_assured(create) == CreateQueue("q", durable=True, wishes=EndpointWishes(exclusive=False))
    create = assured_body(
        AssuredKind.CREATE, (ItemKind.QUEUE, b"q\0"), (ItemKind.DURABILITY, b"\2"), (ItemKind.ACCESS, b"\1")
    )
    assert read_assured(create) == CreateQueue("q", durable=False)
    assert read_assured(assured_body(AssuredKind.CREATE)) == CreateQueue("", durable=True)
    assert read_assured(assured_body(AssuredKind.DELETE, (ItemKind.QUEUE, b"q\0"))) == DeleteQueue("q")
    assert read_assured(assured_body(AssuredKind.DELETE)) == DeleteQueue("")
    assert read_assured(assured_body(AssuredKind.CLOSE_FLOW, (ItemKind.FLOW_ID, b"\0\0\0\2"))) == CloseFlow(2)
    change = assured_body(AssuredKind.FLOW_CHANGE, (ItemKind.FLOW_ID, b"\0\0\0\2"), (ItemKind.ACTIVE, b"\1"))
    assert read_assured(change) == FlowChange(2, active=True)
    change = assured_body(AssuredKind.FLOW_CHANGE, (ItemKind.FLOW_ID, b"\0\0\0\2"), (ItemKind.ACTIVE, b"\0"))
    assert read_assured(change) == FlowChange(2, active=False)
    assert read_assured(assured_body(0x0A)) == UnknownRequest(0x0A)


def test_the_answer_to_a_bind_says_whose_the_numbers_of_messages_are_where_that_is_known() -> None:
    def said(spooler: int | None) -> list[bytes]:
        answer = bound_flow_body(2, ENDPOINT, active=True, max_unacked=1, spooler=spooler)
        return [item.value for item in decode_assured(answer).items if item.kind == ItemKind.SPOOLER]

    assert said(0xA5CE52B0FE834771) == [bytes.fromhex("a5ce52b0fe834771")]
    assert said(None) == []


def test_a_share_of_a_partitioned_queue_is_bound_again_under_the_name_in_the_answer() -> None:
    answer = decode_assured(bound_flow_body(2, ENDPOINT, active=True, max_unacked=1, partition_group=0x1234))
    [share] = [item for item in answer.items if item.kind == ItemKind.PARTITION_GROUP]
    again = read_assured(encode_assured(AssuredBody(AssuredKind.BIND, (AssuredItem(ItemKind.QUEUE, b"q\0"), share))))
    assert isinstance(again, Bind)
    assert again.partition_group == 0x1234


@pytest.mark.parametrize(("exclusive", "access"), [(True, b"\1"), (False, b"\2")])
@pytest.mark.parametrize("active", [True, False])
def test_the_answer_to_a_bind_says_how_the_queue_is_shared_and_whether_the_flow_is_fed(
    exclusive: bool, access: bytes, active: bool
) -> None:
    body = bound_flow_body(2, replace(ENDPOINT, exclusive=exclusive), active=active, max_unacked=1)
    said = {item.kind: item.value for item in decode_assured(body).items}
    assert (said[ItemKind.ACCESS], said[ItemKind.ACTIVE]) == (access, bytes((active,)))


def test_the_answer_about_a_flow_of_a_transacted_session_says_which() -> None:
    def said(session_id: int | None) -> list[bytes]:
        answer = opened_flow_body(1, "f", 0, session_id=session_id)
        return [item.value for item in decode_assured(answer).items if item.kind == ItemKind.TRANSACTED_SESSION]

    assert (said(None), said(0), said(258)) == ([], [bytes(4)], [b"\0\0\1\2"])


def test_answers_without_flows() -> None:
    assert assured_body(AssuredKind.BIND).hex() == "030400000006"
    assert named_queue_body(AssuredKind.DELETE, "q").hex() == "03090000000a07047100"


@pytest.mark.parametrize(
    ("request_body", "what"),
    [
        (assured_body(AssuredKind.UNBIND), "without flow_id"),
        (assured_body(AssuredKind.UNBIND, (ItemKind.FLOW_ID, b"\2")), "flow_id of 1 bytes, not 4"),
        (assured_body(AssuredKind.BIND, (ItemKind.QUEUE, b"q")), "closing zero"),
        (
            assured_body(AssuredKind.CLIENT_ACK, (ItemKind.FLOW_ID, bytes(4)), (ItemKind.APPLICATION_ACK, b"")),
            "of 0 bytes",
        ),
        (
            assured_body(AssuredKind.CLIENT_ACK, (ItemKind.FLOW_ID, bytes(4)), (ItemKind.APPLICATION_ACK, bytes(18))),
            "of 18 bytes",
        ),
        (
            assured_body(
                AssuredKind.CLIENT_ACK, (ItemKind.FLOW_ID, bytes(4)), (ItemKind.APPLICATION_ACK, bytes(16) + b"\4")
            ),
            r"outcome 4 \(at byte 16\)",
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
