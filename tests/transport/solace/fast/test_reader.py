"""A native message is read whole, or refused, and freed either way."""

from collections.abc import Callable
from ctypes import CFUNCTYPE, c_int, c_void_p
from dataclasses import FrozenInstanceError
from typing import Any, Protocol

import pytest

from lbg_runtime.model.ids import DeliveryId, Epoch, QueueName
from lbg_runtime.model.message import NO_HEADERS, PUBLISHER_PROPERTY, Delivery, Headers, Message
from lbg_runtime.model.sendable import fault_of
from lbg_runtime.smf.contents import Contents, PayloadKind, encode_contents, relay_of
from lbg_runtime.smf.frame import Parameter, ParameterKind, encode_parameter
from lbg_runtime.smf.message import Relay, make_relay
from lbg_runtime.smf.sdt import Destination, DestinationKind, encode_sdt
from lbg_runtime.transport.solace.fast import compiled
from lbg_runtime.transport.solace.fast.calls import FastCalls
from lbg_runtime.transport.solace.fast.check import native_message
from lbg_runtime.transport.solace.fast.compiled_reader import compiled_reader
from lbg_runtime.transport.solace.fast.reader import ReadMessage, message_reader
from lbg_runtime.transport.solace.inbound import UnreadableMessage
from lbg_runtime.transport.solace.trace_context import TraceContexts

QUEUE, EPOCH = QueueName("orders/0"), Epoch(3)
XML, ATTACHMENT = 1, 2
"""Kinds of sections of a body."""
FAILED = -1
"""What the library returns for an error."""
MakeReader = Callable[[FastCalls], ReadMessage]
STAMPS = {"JMSXGroupID": "k", PUBLISHER_PROPERTY: "p", "lbg_key_sequence": 7}


class CountingCalls(FastCalls):
    """Counts what it frees."""

    def __init__(self) -> None:
        super().__init__()
        self.freed = 0
        free = self.free

        def count(reference: int) -> int:
            self.freed += 1
            return int(free(c_void_p(reference)))

        self.free = CFUNCTYPE(c_int, c_void_p)(count)


@pytest.fixture(params=["interpreted", "compiled"])
def make_reader(request: pytest.FixtureRequest) -> MakeReader:
    if request.param == "interpreted":
        return message_reader
    if compiled.READER is None:
        pytest.skip("the package was built without a compiler")
    return compiled_reader


def frame_of(relay: Relay, delivery_id: int = 1, *, redelivered: bool = False) -> bytes:
    return relay.delivery_prefix(delivery_id, 0, 1, redelivered=redelivered) + relay.carried + relay.body


class Read(Protocol):
    def __call__(self, relay: Relay, delivery_id: int = 1, *, redelivered: bool = False) -> Delivery: ...


@pytest.fixture
def read(make_reader: MakeReader) -> Read:
    def read_with(relay: Relay, delivery_id: int = 1, *, redelivered: bool = False) -> Delivery:
        calls = CountingCalls()
        pointer = native_message(frame_of(relay, delivery_id, redelivered=redelivered))
        try:
            return make_reader(calls)(pointer, QUEUE, EPOCH)
        finally:
            assert calls.freed == 1

    return read_with


@pytest.mark.parametrize(
    "message",
    [
        Message("t", b""),
        Message("orders/ä/1", bytes(range(256)), {**STAMPS, "ü": "ö", "nothing": None, "raw": b"\0a\0"}, "id-ß", 1),
        Message("t", b"\0" * 100_000, {**STAMPS, "large": 2**63 - 1, "small": -(2**63), "ratio": 0.1, "yes": True}),
        Message("t", b"\x1c\x04a\0", STAMPS),
        Message("t", b"x", {"JMSXGroupID": ""}, "", 0),
        Message("t", b"x", STAMPS, "id", 1, Headers("c-ü", "type", (1 << 64) - 1, 255)),
        Message("t", b"x", headers=Headers(correlation_id="c")),
        Message("t", b"x", headers=Headers(message_type="type")),
        Message("t", b"x", headers=Headers(sequence_number=0)),
        Message("t", b"x", headers=Headers(priority=0)),
        Message("t", b"x", headers=Headers("", "")),
    ],
    ids=[
        "bare",
        "full",
        "numbers",
        "looks like a text",
        "empty",
        "headers",
        "correlation id",
        "message type",
        "sequence number",
        "priority",
        "empty headers",
    ],
)
def test_a_message_is_read_whole(read: Read, message: Message) -> None:
    delivery = read(relay_of(message))
    assert delivery.message == message
    assert dict(delivery.message.properties) == dict(message.properties)


def test_what_is_read_is_what_its_constructors_make(read: Read) -> None:
    delivery = read(relay_of(Message("t", b"x", STAMPS, "id", 5)), delivery_id=9, redelivered=True)
    made = Delivery(QUEUE, EPOCH, DeliveryId(9), Message("t", b"x", STAMPS, "id", 5), True, delivery.received_at_ns)
    assert (type(delivery), type(delivery.message)) == (Delivery, Message)
    assert (delivery, repr(delivery)) == (made, repr(made))
    assert delivery.message.key == "k"
    assert delivery.message.is_first_of_key is False
    with pytest.raises(FrozenInstanceError):
        delivery.queue = QueueName("another")  # type: ignore[misc]  # that is the point
    with pytest.raises(FrozenInstanceError):
        delivery.message.topic = "another"  # type: ignore[misc]


def test_a_message_that_says_nothing_has_the_headers_of_all_that_say_nothing(make_reader: MakeReader) -> None:
    reader = make_reader(FastCalls())
    without_priority = relay_of(Message("t", b"x"))
    carried = without_priority.carried.replace(encode_parameter(Parameter(ParameterKind.PRIORITY, b"\4")), b"")
    assert carried != without_priority.carried
    shorter = Relay.of(without_priority.head, carried, without_priority.body, without_priority.contents)
    for relay in (without_priority, shorter, relay_of(Message("t", b"x", STAMPS))):
        assert reader(native_message(frame_of(relay)), QUEUE, EPOCH).message.headers is NO_HEADERS


CONTEXT = b"\x14" + b"c" * 16 + b"d" * 8 + b"\1\0\0\0\0\0\3c=1"
"""As it is sent; see docs/protocol.md."""


@pytest.mark.parametrize("make", [message_reader, compiled_reader], ids=["interpreted", "compiled"])
@pytest.mark.parametrize(
    ("context", "is_found"),
    [
        (CONTEXT, True),
        (CONTEXT[:-10] + b"\xff\xff" + b"c=1", True),
        (CONTEXT[:10], False),
        (b"", False),
        (b"\0" * 32, False),
        (b"\xff", False),
        ("text", False),
        (7, False),
    ],
)
def test_a_trace_context_that_cannot_be_read_is_none(
    make: Callable[[FastCalls, TraceContexts], ReadMessage], context: bytes | str | int, is_found: bool
) -> None:
    if make is compiled_reader and compiled.READER is None:
        pytest.skip("the package was built without a compiler")
    summary, body = encode_contents(Contents(b"x", headers={"ctx": context}, properties={"colour": "red"}))
    message = native_message(frame_of(make_relay("t", body, summary, 4)))
    properties = make(FastCalls(), TraceContexts())(message, QUEUE, EPOCH).message.properties
    assert (properties["colour"], "traceparent" in properties) == ("red", is_found)


@pytest.mark.parametrize("redelivered", [True, False])
def test_ids_and_the_flag_are_those_of_the_delivery(read: Read, redelivered: bool) -> None:
    delivery = read(relay_of(Message("t", b"")), delivery_id=2**40 + 1, redelivered=redelivered)
    assert (delivery.delivery_id, delivery.redelivered) == (2**40 + 1, redelivered)
    assert (delivery.queue, delivery.epoch) == (QUEUE, EPOCH)
    assert delivery.received_at_ns > 0


def test_one_message_leaves_nothing_for_the_next(make_reader: MakeReader) -> None:
    reader = make_reader(FastCalls())
    full = Message("a/b", b"payload", STAMPS, "id", 5, Headers("c", "type", 7, 9))
    for message in (full, Message("c", b""), full):
        assert reader(native_message(frame_of(relay_of(message))), QUEUE, EPOCH).message == message


def test_a_text_of_a_foreign_publisher_is_its_utf8(read: Read) -> None:
    summary, body = encode_contents(Contents(encode_sdt("täxt"), PayloadKind.STRING, properties={"a": "b"}))
    assert read(make_relay("t", body, summary)).message.payload == "täxt".encode()


@pytest.mark.parametrize("text", ["", "täxt", "x" * 300, "y" * 70_000])
def test_a_text_is_its_utf8_though_its_publisher_has_copied_our_stamps(read: Read, text: str) -> None:
    """As a plain client does that publishes again, with all properties, what lies on an error queue."""
    for sdt in (encode_sdt(text), b"\x1f" + (len(text.encode()) + 6).to_bytes(4, "big") + text.encode() + b"\0"):
        summary, body = encode_contents(Contents(sdt, PayloadKind.STRING, properties=STAMPS))
        assert read(make_relay("t", body, summary)).message.payload == text.encode()


@pytest.mark.parametrize("raw", [b"\x1f\0\0\0\x07x\0", b"\x1c\x03\0", b"\x1c\x05a\0", b"\x1c", b"\x1f\x8b gzip"])
def test_bytes_with_our_stamps_are_left_alone_whatever_they_look_like(read: Read, raw: bytes) -> None:
    assert read(relay_of(Message("t", raw, STAMPS))).message.payload == raw


def test_a_destination_is_its_name_and_containers_are_left_out(read: Read) -> None:
    properties = {"where": Destination(DestinationKind.TOPIC, "orders/there"), "map": {"a": 1}, "list": [1], "last": 1}
    summary, body = encode_contents(Contents(b"x", properties=properties))
    assert dict(read(make_relay("t", body, summary)).message.properties) == {"where": "orders/there", "last": 1}


@pytest.mark.parametrize("properties", [{"a": "b"}, STAMPS], ids=["foreign", "ours"])
def test_a_payload_that_came_as_xml_is_taken(read: Read, properties: dict[str, Any]) -> None:
    summary, body = encode_contents(Contents(b"", properties=properties))
    assert summary is not None
    metadata_section = summary[2:]
    message = read(make_relay("t", b"<a/>" + body, bytes((XML << 4 | 2, 4)) + metadata_section)).message
    assert (message.payload, dict(message.properties)) == (b"<a/>", properties)


def test_a_message_with_two_payloads_is_refused(read: Read) -> None:
    summary = bytes((XML << 4 | 2, 4, ATTACHMENT << 4 | 2, 3))
    with pytest.raises(UnreadableMessage, match="two payloads"):
        read(make_relay("t", b"<a/>abc", summary))


def test_what_is_no_text_is_replaced_in_names_and_values_however_many_there_are(make_reader: MakeReader) -> None:
    reader = make_reader(FastCalls())
    for number in range(40):
        relay = relay_of(Message("t", b"x", {f"abcd{number}": "abcd", "name": "efgh"}))
        spoilt = Relay.of(relay.head, relay.carried, relay.body.replace(b"abcd", b"a\xff\xffd"), relay.contents)
        message = reader(native_message(frame_of(spoilt)), QUEUE, EPOCH).message
        assert dict(message.properties) == {f"a\ufffd\ufffdd{number}": "a\ufffd\ufffdd", "name": "efgh"}


def test_what_is_read_can_be_sent_on_whatever_properties_a_publisher_of_another_protocol_has_given_it(
    read: Read,
) -> None:
    """Else a message that its handler refuses could not be moved to the error queue, and would hold up its key."""
    relay = relay_of(Message("t", b"x", {"": 1, "zero": b"no", "last": "abcd"}))
    zero_character = relay.body.replace(b"\x18\x04no", b"\x14\x04\0\0")
    message = read(Relay.of(relay.head, relay.carried, zero_character, relay.contents)).message
    assert dict(message.properties) == {"zero": "\ufffd", "last": "abcd"}
    assert fault_of(message) is None


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (Headers(correlation_id="abcd"), Headers(correlation_id="a\ufffd\ufffdd")),
        (Headers(message_type="abcd"), Headers(message_type="a\ufffd\ufffdd")),
        (Headers("c", "abcd", 1, 1), Headers("c", "a\ufffd\ufffdd", 1, 1)),
    ],
)
def test_a_header_that_is_no_text_keeps_no_message_back(read: Read, headers: Headers, expected: Headers) -> None:
    relay = relay_of(Message("t", b"x", headers=headers))
    spoilt = Relay.of(relay.head, relay.carried, relay.body.replace(b"abcd", b"a\xff\xffd"), relay.contents)
    assert read(spoilt).message.headers == expected


def test_properties_that_are_cut_short_are_refused(read: Read) -> None:
    relay = relay_of(Message("t", b"x", {"name": "abcd"}))
    at = relay.body.index(b"abcd")
    # The length of the text says more than there is.
    spoilt = Relay.of(relay.head, relay.carried, relay.body[: at - 1] + b"\xf0" + relay.body[at:], relay.contents)
    with pytest.raises(UnreadableMessage) as refusal:
        read(spoilt, 7)
    assert refusal.value.delivery_id == 7
    assert str(refusal.value) == f"a message cannot be read: {refusal.value.reason}"


@pytest.mark.parametrize("part", ["properties", "next_field", "payload", "xml", "destination"])
def test_a_message_of_which_a_part_cannot_be_read_is_refused_and_not_read_without_it(
    make_reader: MakeReader, part: str
) -> None:
    """Without its stamps a message would have another key, and without its payload be handled as an empty one."""
    calls = CountingCalls()
    # Whatever else it is called with is left where it is.
    setattr(calls, part, CFUNCTYPE(c_int, c_void_p)(lambda _: FAILED))
    with pytest.raises(UnreadableMessage):
        make_reader(calls)(native_message(frame_of(relay_of(Message("t", b"", {"name": "abcd"})))), QUEUE, EPOCH)
    assert calls.freed == 1


def test_a_message_without_the_id_of_a_delivery_is_refused(make_reader: MakeReader) -> None:
    relay = relay_of(Message("t", b""))
    direct = relay.direct_prefix() + relay.carried + relay.body
    calls = CountingCalls()
    with pytest.raises(UnreadableMessage) as refusal:
        make_reader(calls)(native_message(direct), QUEUE, EPOCH)
    assert refusal.value.delivery_id is None
    assert calls.freed == 1
