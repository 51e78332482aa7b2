"""Whole frames as a real client sent or took them: what is read of them, and that writing gives the same bytes."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_runtime.model.errors import ProtocolError
from lbg_runtime.smf.assured_ctrl import (
    AckOutcome,
    AckRange,
    Bind,
    ClientAck,
    FlowChange,
    OpenFlow,
    Unbind,
    bound_flow_body,
    flow_body,
    flow_change_body,
    opened_flow_body,
    publisher_ack_body,
    read_assured,
)
from lbg_runtime.smf.assured_items import AssuredKind, decode_assured, encode_assured
from lbg_runtime.smf.client_ctrl import ClientKind, decode_client_ctrl, encode_client_ctrl
from lbg_runtime.smf.endpoint import Endpoint
from lbg_runtime.smf.frame import FrameReader, Protocol, decode_frame, encode_frame
from lbg_runtime.smf.message import read_published
from lbg_runtime.smf.response import OK, answer, response_of
from lbg_runtime.smf.smp import SubscriptionKind, SubscriptionRequest, decode_subscription, encode_subscription

TAG = bytes.fromhex("000001")

LOGIN_REPLY = bytes.fromhex(
    """
    038c00ff00000014000000d20808000000c84f4b0100000000be
    000000000e31302e382e312e3000
    01000000104a616e2031203230323500
    020000001270726f746f2062726f6b657200
    050000000a636c2d3100
    060000000b6d7976706e00
    080000001c235032502f763a70726f746f2f616263642f636c2d3100
    0a0000000d763a70726f746f00
    0c0000000b70726f746f00
    090000002b 1bbfffffe0 0000000009 00002710 0100000006 00 0200000009 01c9c380 0300000009 01c9c380
    1300000014 00 0400000007 0103 0500000007 0101
    """
)
OPEN_FLOW = bytes.fromhex(
    "030900010000000c0000002c 030000000020 820a0000000000000000 810a0000000000000000 8303ff 0a0300"
)
OPENED_FLOW = bytes.fromhex(
    """
    038900ff0000001400000050 0808000000c84f4b 03000000003c
    060600000001 020a0000000000000000 010a0000000000000000 0303ff 230600000001
    0a13 6362646630303832343739626261326200
    """
)
OLD_OPEN_FLOW_BODY = bytes.fromhex("020008 820a0000000000000000 810a0000000000000000 8303ff 0a0300 000000")
# The body's 27 bytes are what its summary says: 8 of attachment, 19 of metadata.
MESSAGE_BODY = bytes.fromhex("1f00000008616200 01000000 0e 2f0000000e 18040700 2b00000005")
PUBLISHED = (
    bytes.fromhex(
        """
        1b8d00ff0000004700000062
        980b6f72646572732f3100 960622084213 030304 900301 2c 170600000001 010600000001
        920a0000000000000000 910a0000000000000001 260008
        """
    )
    + MESSAGE_BODY
)
PUBLISHER_ACK = bytes.fromhex(
    "038900ff000000140000002d 0808000000c84f4b 030300000019 060600000001 020a0000000000000001 0303ff"
)
BIND = bytes.fromhex("030900010000001000000027 23000001 030400000017 8705713100 830300 0b0301 920303 210301")
BOUND = bytes.fromhex(
    """
    038900ff0000001800000069 23000001 0808000000c84f4b 030400000051
    060600000002 0705713100 0c0301 15060000000f 110600000000 020a0000000000000000
    0e0600000000 030300 160301 130600001388 140600989680 2c0600000001
    310600002710 200301
    """
)
DELIVERY = (
    bytes.fromhex(
        """
        1b8d00ff0000004600000061
        910a0000000000000001 920a0000000000000000 970600000002
        980b6f72646572732f3100 960622084213 030304 900301 010600000001 260008
        """
    )
    + MESSAGE_BODY
)
CONSUMER_ACK = bytes.fromhex(
    """
    030900010000000c00000037 03030000002b
    860600000002 820a0000000000000002 8303ff
    851200000000000000020000000000000002
    """
)
CONSUMER_REFUSAL = bytes.fromhex(
    """
    030900010000000c00000038 03030000002c
    860600000002 820a0000000000000002 8303ff
    85130000000000000002000000000000000201
    """
)
PROMOTION = bytes.fromhex("038900ff0000000c0000001b 030c0000000f 060600000004 200301")
UNBIND = bytes.fromhex("030900010000000c00000018 03050000000c 860600000002")
UNBOUND = bytes.fromhex("038900ff0000001400000020 0808000000c84f4b 03050000000c 060600000002")
SUBSCRIPTION = bytes.fromhex("038f0001000000100000001c 23000002 800000000c0c 612f2a2f6300")
SUBSCRIPTION_REPLY = bytes.fromhex("038f00ff0000001800000024 23000002 0808000000c84f4b 800000000c0c 612f2a2f6300")
QUEUE_SUBSCRIPTION = bytes.fromhex("038f00010000001000000023 23000003 82000000130c 0670726f763100 0570762f3e00")
KEEP_ALIVE = bytes.fromhex("038b00010000000c0000000c")
KEEP_ALIVE_REPLY = bytes.fromhex("038b00ff0000000c0000000c")

GOLDEN = {
    name: value
    for name, value in globals().items()
    if name.isupper()
    and isinstance(value, bytes)
    and len(value) >= 12
    and name not in ("MESSAGE_BODY", "OLD_OPEN_FLOW_BODY")
}
each_golden = pytest.mark.parametrize("raw", GOLDEN.values(), ids=GOLDEN.keys())

_BODY_CODECS = {
    Protocol.ASSURED_CTRL: lambda body: encode_assured(decode_assured(body)),
    Protocol.CLIENT_CTRL: lambda body: encode_client_ctrl(decode_client_ctrl(body)),
    Protocol.SUBSCRIPTION: lambda body: encode_subscription(decode_subscription(body)),
}


@each_golden
def test_a_frame_is_written_as_it_was_read(raw: bytes) -> None:
    assert encode_frame(decode_frame(raw)) == raw


@each_golden
def test_a_body_is_written_as_it_was_read(raw: bytes) -> None:
    frame = decode_frame(raw)
    assert _BODY_CODECS.get(frame.protocol, bytes)(frame.body) == frame.body


@each_golden
def test_a_golden_frame_with_a_changed_bit_is_read_or_is_a_protocol_error(raw: bytes) -> None:
    for at, bit in product(range(len(raw)), range(8)):
        changed = bytearray(raw)
        changed[at] ^= 1 << bit
        read_or_refuse(bytes(changed))


@given(st.sampled_from(list(GOLDEN.values())), st.data())
def test_a_golden_frame_with_changed_bytes_is_read_or_is_a_protocol_error(raw: bytes, data: st.DataObject) -> None:
    changed = bytearray(raw)
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    read_or_refuse(bytes(changed))


def read_or_refuse(stream: bytes) -> None:
    try:
        read_everything(stream)
    except ProtocolError as error:
        assert error.what  # noqa: PT017  # which error it is depends on the change


def read_everything(stream: bytes) -> None:
    reader = FrameReader(1 << 20)
    reader.feed(stream)
    while (raw := reader.next_frame()) is not None:
        frame = decode_frame(raw)
        response_of(frame)
        if frame.protocol == Protocol.ASSURED_CTRL:
            read_assured(frame.body)
        elif frame.protocol == Protocol.CLIENT_CTRL:
            decode_client_ctrl(frame.body)
        elif frame.protocol == Protocol.SUBSCRIPTION:
            decode_subscription(frame.body)
        elif frame.protocol == Protocol.MESSAGE:
            read_published(raw)


def test_the_login_reply_says_who_and_what_the_broker_is() -> None:
    frame = decode_frame(LOGIN_REPLY)
    assert response_of(frame) == OK
    body = decode_client_ctrl(frame.body)
    assert body.find(ClientKind.CLIENT_NAME) == b"cl-1\0"
    assert body.find(ClientKind.INBOX) == b"#P2P/v:proto/abcd/cl-1\0"


def test_requests_are_read() -> None:
    assert read_assured(decode_frame(OPEN_FLOW).body) == OpenFlow("", 0, 255, transacted=False)
    assert read_assured(OLD_OPEN_FLOW_BODY) == OpenFlow("", 0, 255, transacted=False)
    assert decode_frame(BIND).tag == TAG
    assert read_assured(decode_frame(BIND).body) == Bind(
        queue="q1",
        window=0,
        durable=True,
        browser=False,
        wants_changes=True,
        last_received_id=None,
        selector="",
        replay=None,
        transacted=False,
    )
    assert read_assured(decode_frame(CONSUMER_ACK).body) == ClientAck(2, 2, 255, (AckRange(2, 2, AckOutcome.ACCEPTED),))
    assert read_assured(decode_frame(CONSUMER_REFUSAL).body) == ClientAck(
        2, 2, 255, (AckRange(2, 2, AckOutcome.FAILED),)
    )
    assert read_assured(decode_frame(UNBIND).body) == Unbind(2)
    assert decode_subscription(decode_frame(SUBSCRIPTION).body) == SubscriptionRequest(
        SubscriptionKind.ADD, 0x0C, "a/*/c"
    )
    assert decode_subscription(decode_frame(QUEUE_SUBSCRIPTION).body) == SubscriptionRequest(
        SubscriptionKind.ADD_TO_QUEUE, 0x0C, "pv/>", "prov1"
    )


def test_answers_are_written_as_the_client_takes_them() -> None:
    control = Protocol.ASSURED_CTRL
    opened = opened_flow_body(1, "cbdf0082479bba2b", 0)
    assert answer(control, opened, OK) == OPENED_FLOW
    assert answer(control, publisher_ack_body(1, 1), OK) == PUBLISHER_ACK
    assert answer(control, flow_body(AssuredKind.UNBIND, 2), OK) == UNBOUND
    assert answer(control, flow_change_body(FlowChange(4, active=True)), None) == PROMOTION
    endpoint = Endpoint("q1", True, 0x0F, 0, 5000, 10_000_000, respects_ttl=True)
    bound = bound_flow_body(2, endpoint, active=True, max_unacked=10_000)
    assert answer(control, bound, OK, TAG) == BOUND


def test_a_published_message_is_delivered_with_the_ids_of_the_new_hop() -> None:
    published = read_published(PUBLISHED)
    assert (published.topic, published.assured, published.flow_id) == ("orders/1", True, 1)
    assert published.message_id == 1
    relay = published.relay
    delivered = relay.delivery_prefix(1, 0, 2, redelivered=False) + relay.carried + relay.body
    # The same parameters; the order of those before the topic is ours.
    assert sorted(map(repr, decode_frame(delivered).parameters)) == sorted(map(repr, decode_frame(DELIVERY).parameters))
    assert len(delivered) == len(DELIVERY)
    assert decode_frame(delivered).body == MESSAGE_BODY
