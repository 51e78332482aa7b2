"""What every transport refuses to publish, and what it carries unchanged. Part of `conformance`."""
# ruff: noqa: S101 - see `conformance`

import asyncio
from collections.abc import Mapping
from dataclasses import astuple
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from types import MappingProxyType, NoneType

import pytest

from lbg_runtime.model.errors import MessageUnsendable
from lbg_runtime.model.message import DEFAULT_PRIORITY, NO_HEADERS, Headers, Message
from lbg_runtime.testing.conformance_steps import bind, browse, open_transport, publish
from lbg_runtime.testing.flow_recorder import PATIENCE_S
from lbg_runtime.testing.transport_harness import TransportHarness

_TOPIC = "orders/new"


class _Text(StrEnum):
    ONE = "one"


class _Number(IntEnum):
    ONE = 1


class _Name(str, Enum):  # noqa: UP042 - not a `StrEnum`, which gives its text everywhere
    PROPERTY = "property"
    TOPIC = _TOPIC


class _Kind(Enum):
    ONE = "one"


class _Bytes(bytes):
    pass


def _released() -> memoryview:
    buffer = memoryview(b"x")
    buffer.release()
    return buffer


_WHEN = datetime(2026, 1, 1, tzinfo=UTC)


def _message(
    topic: object = _TOPIC,
    payload: object = b"",
    properties: object = MappingProxyType({}),
    message_id: object = None,
    sent_at_ms: object = None,
    headers: object = NO_HEADERS,
) -> Message:
    """A message that no type checker saw."""
    return Message(topic, payload, properties, message_id, sent_at_ms, headers)  # type: ignore[arg-type]  # the point


def _said(**headers: object) -> Message:
    return _message(headers=Headers(**headers))  # type: ignore[arg-type]  # likewise


_CUT = "must not contain NUL: the client library would truncate it"
_HALF = "must not contain half of a surrogate pair"
_NO_VALUE = "must be a str, int, float, bool, bytes or None, and is"
_LARGEST = 30_000_000
"""Payload and properties in bytes. The bound of a bare message has 64 more, that of a property 24 more."""
_BAD_TOPIC = "a topic must be 1 to 250 bytes of UTF-8 without NUL"

UNSENDABLE: Mapping[str, tuple[Message, str]] = {
    **{
        f"topic {name}": (_message(topic), _BAD_TOPIC)
        for name, topic in {
            "empty": "",
            "long": "a" * 251,
            "long in bytes": "ü" * 126,
            "NUL": "orders/a\0b",
            "half": "orders/\ud800",
            "None": None,
            "bytes": b"orders/new",
        }.items()
    },
    "payload str": (_message(payload="text"), "a payload is bytes, and no str"),
    "payload None": (_message(payload=None), "a payload is bytes, and no NoneType"),
    "payload int": (_message(payload=1 << 63), "a payload is bytes, and no int"),
    "payload released": (_message(payload=_released()), "a payload is bytes, and no memoryview that was released"),
    "payload list": (_message(payload=[1]), "a payload is bytes, and no list"),
    "id int": (_message(message_id=7), "message_id must be a str, and is an int"),
    "id bytes": (_message(message_id=b"7"), "message_id must be a str, and is a bytes"),
    "id NUL": (_message(message_id="a\0b"), f"message_id {_CUT}"),
    "id half": (_message(message_id="\ud800"), f"message_id {_HALF}"),
    **{
        f"sent at {name}": (_message(sent_at_ms=at), f"sent_at_ms must be {what}")
        for name, at, what in (
            ("float", 1.5, "an int or None, and is a float"),
            ("str", "now", "an int or None, and is a str"),
            ("datetime", _WHEN, "an int or None, and is a datetime"),
            ("large", 1 << 63, "a signed int of at most 64 bits"),
            ("small", -(1 << 63) - 1, "a signed int of at most 64 bits"),
        )
    },
    "headers None": (_message(headers=None), "headers must be Headers, and are a NoneType"),
    "headers dict": (_message(headers={"priority": 1}), "headers must be Headers, and are a dict"),
    **{
        f"{name} {text!r}": (_said(**{name: text}), f"headers.{name} {fault}")
        for name in ("correlation_id", "message_type")
        for text, fault in ((7, "must be a str, and is an int"), ("a\0b", _CUT), ("\ud800", _HALF))
    },
    **{
        f"{name} {number!r}": (_said(**{name: number}), f"headers.{name} must be {what}")
        for name, number, what in (
            ("sequence_number", "1", "an int or None, and is a str"),
            ("sequence_number", -1, f"0 to {(1 << 64) - 1}"),
            ("sequence_number", 1 << 64, f"0 to {(1 << 64) - 1}"),
            ("priority", 1.0, "an int or None, and is a float"),
            ("priority", -1, "0 to 255"),
            ("priority", 256, "0 to 255"),
        )
    },
    "properties None": (_message(properties=None), "properties must be a mapping, and are a NoneType"),
    "properties list": (_message(properties=[]), "properties must be a mapping, and are a list"),
    "properties pairs": (_message(properties=[("a", 1)]), "properties must be a mapping, and are a list"),
    "properties int": (_message(properties=5), "properties must be a mapping, and are an int"),
    "name empty": (_message(properties={"": 1}), "a property has no name"),
    "name int": (_message(properties={1: "x"}), "the name of property 1 must be a str, and is an int"),
    "name None": (_message(properties={None: "x"}), "the name of property None must be a str, and is a NoneType"),
    "name bytes": (_message(properties={b"a": "x"}), "the name of property b'a' must be a str, and is a bytes"),
    "name NUL": (_message(properties={"a\0b": "x"}), f"the name of property 'a\\x00b' {_CUT}"),
    "name half": (_message(properties={"\ud800": "x"}), f"the name of property '\\ud800' {_HALF}"),
    "NUL": (_message(properties={"p": "a\0b"}), f"property 'p' {_CUT}"),
    "half": (_message(properties={"p": "\ud800"}), f"property 'p' {_HALF}"),
    "large": (_message(properties={"p": 1 << 64}), "property 'p' must be an int of at most 64 bits"),
    "small": (_message(properties={"p": -(1 << 63) - 1}), "property 'p' must be an int of at most 64 bits"),
    **{
        what: (_message(properties={"p": value}), f"property 'p' {_NO_VALUE} {what}")
        for what, value in {
            "a Decimal": Decimal("1.2"),
            "a datetime": _WHEN,
            "a bytearray": bytearray(b"ab"),
            "a memoryview": memoryview(b"ab"),
            "a dict": {"a": 1},
            "a list": [1],
            "a tuple": (1,),
            "a complex": 1j,
            "an object": object(),
            "a _Kind": _Kind.ONE,
        }.items()
    },
    **{
        f"too large {name}": (
            message,
            f"payload, properties and headers are up to {size} bytes, and {_LARGEST} are possible",
        )
        for name, message, size in (
            ("payload", _message(payload=bytes(_LARGEST - 63)), _LARGEST + 1),
            ("text", _message(properties={"p": "x" * (_LARGEST - 88)}), _LARGEST + 1),
            ("bytes", _message(properties={"p": bytes(_LARGEST)}), _LARGEST + 89),
            ("together", _message(payload=bytes(_LARGEST - 1_000), properties={"ü": "ö" * 500}), _LARGEST + 90),
            ("headers", _message(payload=bytes(_LARGEST - 1_000), headers=Headers("ü" * 600)), _LARGEST + 264),
        )
    },
    "the last": (_message(properties={"a": 1, "b": "x", "p": Decimal(1)}), f"property 'p' {_NO_VALUE} a Decimal"),
}
"""The message, and why it is refused."""

_CLIENT = "solace.messaging.message."
"""Begins the names of the client's own settings of a message."""

SENDABLE: Mapping[str, Message] = {
    "settings of the client": _message(
        properties={
            f"{_CLIENT}application-message-id": "another",
            f"{_CLIENT}application-message-type": "type",
            f"{_CLIENT}correlation-id": 7,
            f"{_CLIENT}persistent.dmq-eligible": False,
            f"{_CLIENT}persistent.sequence-number": -1,
            f"{_CLIENT}persistent.time-to-live": "for ever",
            f"{_CLIENT}priority": 300,
            f"{_CLIENT}sender-id": None,
            f"{_CLIENT}sequence-number": 3,
        },
        message_id="own",
    ),
    "texts": _message(properties={"a": "", "ü": "ö" * 40_000, "n" * 300: "x", " ": "\n\u202e"}),
    "integers": _message(
        properties={"low": -(1 << 63), "high": (1 << 63) - 1, "unsigned": 1 << 63, "u": (1 << 64) - 1}
    ),
    "others": _message(properties={"none": None, "yes": True, "no": False, "float": 1.5, "endless": float("-inf")}),
    "bytes": _message(properties={"none": b"", "zeros": b"\0a\0", "all": bytes(range(256)) * 400}),
    "subclasses": _message(properties={"text": _Text.ONE, "number": _Number.ONE, "bytes": _Bytes(b"a\0b")}),
    "names of subclasses": _message(properties={_Text.ONE: 1, _Name.PROPERTY: _Name.PROPERTY}),
    "topic of a subclass": _message(_Name.TOPIC),
    "read only": _message(properties=MappingProxyType({"a": 1})),
    "many": _message(properties={f"p{n}": n for n in range(3_000)}),
    "id": _message(message_id="ü" * 1_000),
    "id empty": _message(message_id=""),
    "id of a subclass": _message(message_id=_Text.ONE),
    "sent now": _message(sent_at_ms=1_750_000_000_000),
    "sent at first": _message(sent_at_ms=0),
    "sent early": _message(sent_at_ms=-5),
    "sent at last": _message(sent_at_ms=(1 << 63) - 1),
    "headers": _said(correlation_id="c-ü", message_type="order.created", sequence_number=7, priority=9),
    "headers of stamps": _message(
        properties={"JMSXGroupID": "k", "lbg_publisher": "p"}, headers=Headers("c", "t", (1 << 63) - 1, 255)
    ),
    "headers beside bytes": _message(properties={"raw": b"\0"}, headers=Headers("c", "t", 1, 1)),
    "headers empty": _said(correlation_id="", message_type=""),
    "headers long": _said(correlation_id="ü" * 1_000, message_type="t" * 3_000),
    "headers lowest": _said(sequence_number=0, priority=0),
    "headers highest": _said(sequence_number=(1 << 64) - 1, priority=255),
    "headers half": _said(sequence_number=1 << 63),
    "headers of subclasses": _said(correlation_id=_Text.ONE, sequence_number=_Number.ONE, priority=_Number.ONE),
    "headers that say nothing": _said(),
    "topic long": _message("orders/" + "a" * 243),
    "topic odd": _message("orders/ ü/ö "),
    "bytearray": _message(payload=bytearray(b"a\0b")),
    "memoryview": _message(payload=memoryview(b"xa\0bx")[1:4]),
}


class SendableConformance:
    """The same messages are refused by every transport and on every path, with the same reason; others come whole."""

    async def test_what_can_never_be_sent_is_refused_alone(self, harness: TransportHarness) -> None:
        transport = await open_transport(harness)
        _, recorder = await bind(transport)
        for name, (message, reason) in UNSENDABLE.items():
            assert await _refusal(transport.send(message)) == reason, name
            assert await _refusal(transport.send_together([Message(_TOPIC, b"not alone"), message])) == reason, name
            transport.send_direct(message)
            await publish(transport, name)
        await recorder.until_received(len(UNSENDABLE))
        assert recorder.payloads == [name.encode() for name in UNSENDABLE]

    async def test_what_can_be_sent_comes_as_it_was(self, harness: TransportHarness) -> None:
        transport = await open_transport(harness)
        _, recorder = await bind(transport)
        for number, (name, message) in enumerate(SENDABLE.items()):
            async with asyncio.timeout(PATIENCE_S):
                await transport.send(message)
                await transport.send_together([message])
            for delivery in (await recorder.until_received(2 * number + 2))[-2:]:
                come = delivery.message
                assert come == message, name
                assert type(come.payload) is bytes, name
                for key, value in come.properties.items():
                    sent = message.properties[key]
                    assert isinstance(sent, type(value)), name
                    assert isinstance(sent, bool) == isinstance(value, bool), name
                # Of a member of an enum, nothing but its value is on the wire.
                said = (come.topic, come.message_id, *astuple(come.headers))
                kinds = set(map(type, (*said, *come.properties, *come.properties.values())))
                assert kinds <= {str, int, float, bool, bytes, NoneType}, name

    async def test_each_header_comes_alone_and_none_stays_for_the_next_message(self, harness: TransportHarness) -> None:
        said = [
            Headers("c", "t", 1, 9),
            NO_HEADERS,
            Headers(correlation_id="c"),
            Headers(message_type="t"),
            Headers(sequence_number=1),
            Headers(priority=0),
            NO_HEADERS,
        ]
        transport = await open_transport(harness)
        _, recorder = await bind(transport)
        heard: asyncio.Queue[Message] = asyncio.Queue()
        await transport.subscribe("events/>", heard.put_nowait)
        async with asyncio.timeout(PATIENCE_S):
            for headers in said:
                # One after another, so that each is written where the one before was.
                await transport.send(_message(headers=headers))
                transport.send_direct(_message("events/a", headers=headers))
                assert (await heard.get()).headers == headers
            await transport.send_together([_message(headers=headers) for headers in said])
        come = [delivery.message.headers for delivery in await recorder.until_received(2 * len(said))]
        assert come == [*said, *said]
        assert all(headers is NO_HEADERS for headers in come if headers == NO_HEADERS)
        assert [message.headers for message in await browse(transport, len(come))] == come

    async def test_the_priority_of_messages_that_name_none_comes_as_none(self, harness: TransportHarness) -> None:
        transport = await open_transport(harness)
        _, recorder = await bind(transport)
        async with asyncio.timeout(PATIENCE_S):
            await transport.send(_said(priority=DEFAULT_PRIORITY))
            await transport.send(_said(correlation_id="c", priority=DEFAULT_PRIORITY))
        come = [delivery.message.headers for delivery in await recorder.until_received(2)]
        assert come == [NO_HEADERS, Headers("c")]


async def _refusal(sending: "asyncio.Future[None]") -> str:
    with pytest.raises(MessageUnsendable) as refusal:
        await asyncio.wait_for(sending, PATIENCE_S)
    return refusal.value.reason
