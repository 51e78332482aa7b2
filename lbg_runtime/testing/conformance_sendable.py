"""What every transport refuses to publish, and what it carries unchanged. Part of `conformance`."""
# ruff: noqa: S101 - see `conformance`

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from types import MappingProxyType

import pytest

from lbg_runtime.model.errors import MessageUnsendable
from lbg_runtime.model.message import Message
from lbg_runtime.testing.conformance_steps import bind, open_transport, publish
from lbg_runtime.testing.flow_recorder import PATIENCE_S
from lbg_runtime.testing.transport_harness import TransportHarness

_TOPIC = "orders/new"


class _Text(StrEnum):
    ONE = "one"


class _Number(IntEnum):
    ONE = 1


class _Kind(Enum):
    ONE = "one"


class _Bytes(bytes):
    pass


_WHEN = datetime(2026, 1, 1, tzinfo=UTC)


def _message(
    topic: object = _TOPIC,
    payload: object = b"",
    properties: object = MappingProxyType({}),
    message_id: object = None,
    sent_at_ms: object = None,
) -> Message:
    """A message that no type checker saw."""
    return Message(topic, payload, properties, message_id, sent_at_ms)  # type: ignore[arg-type]  # that is the point


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
        f"too large {name}": (message, f"payload and properties are up to {size} bytes, and {_LARGEST} are possible")
        for name, message, size in (
            ("payload", _message(payload=bytes(_LARGEST - 63)), _LARGEST + 1),
            ("text", _message(properties={"p": "x" * (_LARGEST - 88)}), _LARGEST + 1),
            ("bytes", _message(properties={"p": bytes(_LARGEST)}), _LARGEST + 89),
            ("together", _message(payload=bytes(_LARGEST - 1_000), properties={"ü": "ö" * 500}), _LARGEST + 90),
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
    "read only": _message(properties=MappingProxyType({"a": 1})),
    "many": _message(properties={f"p{n}": n for n in range(3_000)}),
    "id": _message(message_id="ü" * 1_000),
    "id empty": _message(message_id=""),
    "sent now": _message(sent_at_ms=1_750_000_000_000),
    "sent at first": _message(sent_at_ms=0),
    "sent early": _message(sent_at_ms=-5),
    "sent at last": _message(sent_at_ms=(1 << 63) - 1),
    "topic long": _message("orders/" + "a" * 243),
    "topic odd": _message("orders/ ü/ö "),
    "bytearray": _message(payload=bytearray(b"a\0b")),
    "memoryview": _message(payload=memoryview(b"xa\0bx")[1:4]),
}


class SendableConformance:
    """The same messages are refused by every transport and on every path, with the same reason."""

    @pytest.mark.parametrize("name", UNSENDABLE)
    async def test_what_can_never_be_sent_is_refused_alone(self, harness: TransportHarness, name: str) -> None:
        message, reason = UNSENDABLE[name]
        transport = await open_transport(harness)
        _, recorder = await bind(transport)
        assert await _refusal(transport.send(message)) == reason
        assert await _refusal(transport.send_together([Message(_TOPIC, b"not alone"), message])) == reason
        transport.send_direct(message)
        await publish(transport, "marker")
        await recorder.until_received(1)
        assert recorder.payloads == [b"marker"]

    @pytest.mark.parametrize("name", SENDABLE)
    async def test_what_can_be_sent_comes_as_it_was(self, harness: TransportHarness, name: str) -> None:
        message = SENDABLE[name]
        transport = await open_transport(harness)
        _, recorder = await bind(transport)
        async with asyncio.timeout(PATIENCE_S):
            await transport.send(message)
            await transport.send_together([message])
        for delivery in await recorder.until_received(2):
            come = delivery.message
            assert come == message
            assert type(come.payload) is bytes
            for key, value in come.properties.items():
                assert isinstance(message.properties[key], type(value))


async def _refusal(sending: "asyncio.Future[None]") -> str:
    with pytest.raises(MessageUnsendable) as refusal:
        await asyncio.wait_for(sending, PATIENCE_S)
    return refusal.value.reason
