import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_runtime.model.errors import ProtocolError
from lbg_runtime.model.message import DEFAULT_PRIORITY
from lbg_runtime.smf.extended import ExtendedKind, decode_extended
from lbg_runtime.smf.frame import (
    ASSURED,
    DISCARDED,
    Frame,
    LightKind,
    Parameter,
    ParameterKind,
    Protocol,
    decode_frame,
    encode_frame,
    encode_parameter,
)
from lbg_runtime.smf.message import Relay, make_relay, read_published

TOPIC = Parameter(ParameterKind.TOPIC, b"a/b\0", mark=2)
PRIORITY = Parameter(ParameterKind.PRIORITY, b"\4")
TTL = Parameter(ParameterKind.TIME_TO_LIVE, bytes(8))
OF_ONE_HOP = (
    Parameter(LightKind.ACK_IMMEDIATELY, light=True),
    Parameter(LightKind.CORRELATION_TAG, b"\0\0\1", light=True),
    Parameter(ParameterKind.MESSAGE_ID, bytes(7) + b"\7", mark=2),
    Parameter(ParameterKind.PREVIOUS_ID, bytes(7) + b"\6", mark=2),
    Parameter(ParameterKind.REDELIVERED, mark=2),
    Parameter(ParameterKind.FLOW_ID, b"\0\0\0\5"),
    Parameter(ParameterKind.DELIVERY_MODE, b"\1", mark=2),
    Parameter(ParameterKind.RESPONSE, b"\0\0\1\xf7no"),
)


def message(*parameters: Parameter, flags: int = ASSURED, body: bytes = b"body") -> bytes:
    return encode_frame(Frame(Protocol.MESSAGE, parameters, body, flags=flags, service=0x20))


def whole(prefix: bytes, relay: Relay) -> Frame:
    return decode_frame(prefix + relay.carried + relay.body)


@given(order=st.permutations([TOPIC, PRIORITY, TTL, *OF_ONE_HOP]))
def test_what_belongs_to_one_hop_is_taken_out_wherever_it_stands(order: list[Parameter]) -> None:
    published = read_published(message(*order))
    assert (published.topic, published.assured) == ("a/b", True)
    assert (published.flow_id, published.message_id) == (5, 7)
    carried = tuple(parameter for parameter in order if parameter not in OF_ONE_HOP)
    assert whole(published.relay.direct_prefix(), published.relay).parameters == carried


@pytest.mark.parametrize("body_bytes", [0, 1, 100_000])
@pytest.mark.parametrize("parameters", [(TOPIC, *OF_ONE_HOP), (*OF_ONE_HOP, TOPIC), (TOPIC,)])
def test_a_body_of_any_size_passes_unchanged_and_belongs_to_the_message_alone(
    parameters: tuple[Parameter, ...], body_bytes: int
) -> None:
    body = bytes(range(256)) * (body_bytes // 256) + b"x" * (body_bytes % 256)
    sent = encode_frame(Frame(Protocol.MESSAGE, parameters, body))
    relay = read_published(sent).relay
    assert type(relay.rest) is bytes
    assert (relay.carried, relay.body) == (encode_parameter(TOPIC), body)
    assert relay == Relay.of(relay.head, relay.carried, body, None)
    assert relay.size_bytes == len(encode_parameter(TOPIC)) + body_bytes


@pytest.mark.parametrize("number", [0, 1, 2**63])
@pytest.mark.parametrize("redelivered", [False, True])
def test_a_delivery_says_its_own_ids_and_its_number_if_it_has_one_and_keeps_everything_else(
    redelivered: bool, number: int
) -> None:
    relay = read_published(message(TOPIC, *OF_ONE_HOP, PRIORITY, flags=ASSURED | 8)).relay
    delivery = whole(relay.delivery_prefix(9, 8, 3, redelivered=redelivered, number=number), relay)
    of_its_number = (Parameter(ParameterKind.EXTENDED, b"\x40\x29" + number.to_bytes(8, "big")),) if number else ()
    assert delivery.parameters == (
        Parameter(ParameterKind.MESSAGE_ID, bytes(7) + b"\x09", mark=2),
        Parameter(ParameterKind.PREVIOUS_ID, bytes(7) + b"\x08", mark=2),
        Parameter(ParameterKind.FLOW_ID, b"\0\0\0\3", mark=2),
        *of_its_number,
        *([Parameter(ParameterKind.REDELIVERED, mark=2)] if redelivered else []),
        Parameter(ParameterKind.DELIVERY_MODE, b"\1", mark=2),
        TOPIC,
        PRIORITY,
    )
    assert (delivery.flags, delivery.service, delivery.body) == (ASSURED | 8, 0x20, b"body")
    for each in of_its_number:
        assert decode_extended(each.value) == {ExtendedKind.MESSAGE_NUMBER: number.to_bytes(8, "big")}


def test_a_message_without_ids_is_a_direct_one() -> None:
    published = read_published(message(TOPIC, flags=8))
    assert (published.assured, published.flow_id, published.message_id) == (False, 0, 0)


def test_that_messages_were_lost_before_it_is_no_news_of_the_message_itself() -> None:
    relay = read_published(message(TOPIC, flags=DISCARDED | 8)).relay
    assert whole(relay.delivery_prefix(1, 0, 3, redelivered=False), relay).flags == ASSURED | 8
    assert whole(relay.direct_prefix(), relay).flags == 8


@pytest.mark.parametrize("body", [b"", b"\xff" * 20_000], ids=["alone", "with a large body"])
def test_what_is_not_known_passes_whatever_its_size(body: bytes) -> None:
    unknown = (
        Parameter(2, b"\1\2", light=True),
        Parameter(3, b"", light=True, mark=1),
        Parameter(0x1E, bytes(250)),
        Parameter(0x1F, bytes(300)),
        Parameter(0x04, b""),
    )
    kept = tuple(each for each in unknown if (each.kind, each.light) != (LightKind.ACK_IMMEDIATELY, True))
    relay = read_published(message(*unknown, TOPIC, body=body)).relay
    assert whole(relay.direct_prefix(), relay).parameters == (*kept, TOPIC)
    assert relay.body == body


@pytest.mark.parametrize(
    ("parameters", "priority"),
    [
        ((TOPIC,), DEFAULT_PRIORITY),
        ((TOPIC, Parameter(ParameterKind.PRIORITY, b"\x09"), TTL), 9),
        ((Parameter(ParameterKind.PRIORITY, b"\xff", mark=2), TOPIC), 255),
    ],
)
def test_the_priority_is_what_the_publisher_gave(parameters: tuple[Parameter, ...], priority: int) -> None:
    assert read_published(message(*parameters)).relay.priority == priority


@pytest.mark.parametrize(("service", "expected"), [(0x00, 0), (0x1F, 1), (0x20, 2), (0x30, 2), (0xF0, 2)])
def test_a_class_of_service_above_the_highest_is_the_highest(service: int, expected: int) -> None:
    sent = encode_frame(Frame(Protocol.MESSAGE, (TOPIC,), service=service))
    assert read_published(sent).relay.class_of_service == expected


def test_a_direct_message_becomes_an_assured_delivery_and_back() -> None:
    relay = read_published(message(TOPIC, flags=8)).relay
    assert whole(relay.delivery_prefix(1, 0, 3, redelivered=False), relay).flags == ASSURED | 8
    relay = read_published(message(TOPIC, *OF_ONE_HOP)).relay
    direct = whole(relay.direct_prefix(), relay)
    assert (direct.flags, direct.protocol, direct.service, direct.parameters) == (0, Protocol.MESSAGE, 0x20, (TOPIC,))


@pytest.mark.parametrize("contents", [b"\x01\x02", None])
def test_a_message_with_other_contents_keeps_all_else_that_is_carried(contents: bytes | None) -> None:
    before = Parameter(ParameterKind.CONTENTS, b"\x05", mark=2)
    relay = read_published(message(TOPIC, before, *OF_ONE_HOP, PRIORITY, TTL)).relay.with_contents(contents, b"other")
    told = [] if contents is None else [Parameter(ParameterKind.CONTENTS, contents, mark=2)]
    direct = whole(relay.direct_prefix(), relay)
    assert (direct.parameters, direct.body) == ((TOPIC, PRIORITY, TTL, *told), b"other")


def test_lost_messages_are_told_with_the_next_direct_one() -> None:
    relay = make_relay("a/b", b"body")
    assert whole(relay.direct_prefix(discarded=True), relay).flags & DISCARDED
    assert not whole(relay.direct_prefix(), relay).flags & DISCARDED


def test_a_message_made_here_reads_like_a_published_one() -> None:
    relay = make_relay("täglich/1", b"body", b"\x22\4")
    assert relay.head.hex() == "1b8d00ff"
    assert relay.carried.hex(" ") == "98 0d 74 c3 a4 67 6c 69 63 68 2f 31 00 96 04 22 04 03 03 04"
    published = read_published(relay.direct_prefix() + relay.carried + relay.body)
    assert published.topic == "täglich/1"
    assert published.relay == relay


@pytest.mark.parametrize(
    ("parameters", "what"),
    [
        ((PRIORITY,), "without a topic"),
        ((Parameter(ParameterKind.TOPIC, b""),), "closing zero"),
        ((Parameter(ParameterKind.TOPIC, b"a/b"),), "closing zero"),
        ((Parameter(ParameterKind.TOPIC, b"ab\xff\0"),), r"not UTF-8 \(at byte 16\)"),
        ((Parameter(ParameterKind.TOPIC, b"t" * 251 + b"\0"),), "a topic of more than 250 bytes"),
        ((TOPIC, Parameter(ParameterKind.FLOW_ID, b"\0")), "an id of 1 bytes where 4 are"),
        ((TOPIC, Parameter(ParameterKind.MESSAGE_ID, b"\0")), "an id of 1 bytes where 8 are"),
        ((TOPIC, Parameter(ParameterKind.MESSAGE_ID, b"\x80" + bytes(7))), "9223372036854775807 is the largest"),
        ((TOPIC, Parameter(ParameterKind.TIME_TO_LIVE, bytes(9))), "a number of 9 bytes where 8 are the most"),
        ((TOPIC, Parameter(ParameterKind.PRIORITY, bytes(300))), "a number of 300 bytes where 8 are the most"),
    ],
)
def test_a_message_that_cannot_be_read_is_refused(parameters: tuple[Parameter, ...], what: str) -> None:
    with pytest.raises(ProtocolError, match=what):
        read_published(message(*parameters))


def test_a_message_of_another_length_than_it_says_is_refused() -> None:
    for raw in (message(TOPIC) + b"x", message(TOPIC)[:-1]):
        with pytest.raises(ProtocolError, match=rf"22 bytes long and is {len(raw)} \(at byte 8\)"):
            read_published(raw)


@pytest.mark.parametrize("data", ["1801", "1e0102", "1802", "180361", "960a0000", "9600", "180000000005", "110b"])
@pytest.mark.parametrize("body", [b"", b"\0" * 20, b"\2" * 20])
def test_a_parameter_of_a_message_does_not_run_into_the_body(data: str, body: bytes) -> None:
    raw = message(TOPIC, body=bytes.fromhex(data) + body)
    raw = raw[:4] + (18 + len(data) // 2).to_bytes(4, "big") + raw[8:]
    with pytest.raises(ProtocolError):
        read_published(raw)


def test_a_topic_may_take_250_bytes_and_in_a_store_more() -> None:
    assert read_published(message(Parameter(ParameterKind.TOPIC, b"t" * 250 + b"\0"))).topic == "t" * 250
    kept = message(Parameter(ParameterKind.TOPIC, b"t" * 300 + b"\0"))
    assert read_published(kept, longest_topic_bytes=len(kept)).topic == "t" * 300


def test_an_empty_topic_in_the_long_form_has_no_closing_zero_either() -> None:
    raw = bytes.fromhex("038d0001 00000012 00000012 180000000006")
    with pytest.raises(ProtocolError, match="closing zero"):
        read_published(raw)


def test_the_largest_id_is_read() -> None:
    largest = Parameter(ParameterKind.MESSAGE_ID, b"\x7f" + b"\xff" * 7)
    assert read_published(message(TOPIC, largest)).message_id == 2**63 - 1


@given(data=st.binary(max_size=100))
def test_any_parameters_of_a_message_are_read_or_a_protocol_error(data: bytes) -> None:
    size = 12 + len(data)
    raw = bytes((3, 0x8D, 0, 1)) + size.to_bytes(4, "big") * 2 + data
    try:
        read_published(raw)
    except ProtocolError as error:
        assert 12 <= error.offset <= size  # noqa: PT017  # the place of the fault is within the parameters
