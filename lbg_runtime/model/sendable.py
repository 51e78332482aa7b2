"""Checks whether a message, or a text of it, can be published at all, with the same answer for every transport.

The limits are those of the official client, so a test with the memory transport refuses what a real one would refuse.
"""

import re
from collections.abc import Mapping

from lbg_runtime.model.errors import MessageUnsendable
from lbg_runtime.model.message import NO_HEADERS, Headers, Message, PropertyValue, as_payload
from lbg_runtime.model.topic import LARGEST_TOPIC_BYTES, is_valid_topic

SMALLEST_INT64 = -(1 << 63)
LARGEST_INT64 = (1 << 63) - 1
LARGEST_UINT64 = (1 << 64) - 1
HIGHEST_PRIORITY = 255

LARGEST_MESSAGE_BYTES = 30_000_000
"""The largest message that the client sends: its payload and properties together; topic and id do not count."""

_FRAME_BYTES = 64
_ITEM_BYTES = 12
"""The most that the client adds to a message, and to a name or value of a property; a number fits in as well."""

_SURROGATE = re.compile(r"[\ud800-\udfff]")


def is_sendable(text: str) -> bool:
    """Whether UTF-8 can hold the text, and so a record, topic or property: JSON and command lines can contain lone
    surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def as_sendable(text: str) -> str:
    """The text with U+FFFD for each lone surrogate, which no UTF-8 can hold."""
    return text if is_sendable(text) else _SURROGATE.sub("\ufffd", text)


def check_sendable(message: Message) -> None:
    """Raise `MessageUnsendable` for a message that no transport can carry, whatever the broker would say."""
    fault = fault_of(message)
    if fault is not None:
        raise MessageUnsendable(message.topic, fault)


def fault_of(message: Message) -> str | None:
    """Why no transport can carry the message, in one line that quotes no values; None if it can be sent.

    The fields may have any type, as perhaps no type checker has seen the message.
    """
    topic: object = message.topic
    if not isinstance(topic, str) or "\0" in topic or not is_valid_topic(topic):
        return f"a topic must be 1 to {LARGEST_TOPIC_BYTES} bytes of UTF-8 without NUL"
    try:
        payload = as_payload(message.payload)
    except TypeError as error:
        return str(error)
    if message.message_id is not None and (fault := _text_fault(message.message_id)):
        return f"message_id {fault}"
    sent_at: object = message.sent_at_ms
    if sent_at is not None and not isinstance(sent_at, int):
        return f"sent_at_ms must be an int or None, and is {_article(sent_at)}"
    if sent_at is not None and not SMALLEST_INT64 <= sent_at <= LARGEST_INT64:
        return "sent_at_ms must be a signed int of at most 64 bits"
    if message.headers is not NO_HEADERS and (fault := _header_fault(message.headers)):
        return fault
    properties: object = message.properties
    if not isinstance(properties, Mapping):
        return f"properties must be a mapping, and are {_article(properties)}"
    for name, value in properties.items():
        if name == "":
            return "a property has no name"
        if fault := _text_fault(name):
            return f"the name of property {name!r:.100} {fault}"
        if fault := _value_fault(value):
            return f"property {name!r:.100} {fault}"
    size = size_bound(payload, properties, message.headers)
    if size > LARGEST_MESSAGE_BYTES:
        return f"payload, properties and headers are up to {size} bytes, and {LARGEST_MESSAGE_BYTES} are possible"
    return None


def size_bound(payload: bytes, properties: Mapping[str, PropertyValue], headers: Headers) -> int:
    """At least what the client counts for a message; at most a hundred bytes more, 24 for each property, and the texts
    of the headers, which it does not count although a broker does."""
    size = _FRAME_BYTES + len(payload) + 2 * _ITEM_BYTES * len(properties)
    if headers is not NO_HEADERS:
        size += _text_bytes(headers.correlation_id or "") + _text_bytes(headers.message_type or "")
    for name, value in properties.items():
        size += _text_bytes(name)
        if isinstance(value, str):
            size += _text_bytes(value)
        elif isinstance(value, bytes):
            size += len(value)
    return size


def _header_fault(headers: object) -> str | None:
    if not isinstance(headers, Headers):
        return f"headers must be Headers, and are {_article(headers)}"
    texts: tuple[tuple[str, object], ...] = (
        ("correlation_id", headers.correlation_id),
        ("message_type", headers.message_type),
    )
    for name, text in texts:
        if text is not None and (fault := _text_fault(text)):
            return f"headers.{name} {fault}"
    numbers: tuple[tuple[str, object, int], ...] = (
        ("sequence_number", headers.sequence_number, LARGEST_UINT64),
        ("priority", headers.priority, HIGHEST_PRIORITY),
    )
    for name, number, largest in numbers:
        if number is not None and not isinstance(number, int):
            return f"headers.{name} must be an int or None, and is {_article(number)}"
        if number is not None and not 0 <= number <= largest:
            return f"headers.{name} must be 0 to {largest}"
    return None


def _value_fault(value: object) -> str | None:
    if isinstance(value, str):
        return _text_fault(value)
    if isinstance(value, int):
        return None if SMALLEST_INT64 <= value <= LARGEST_UINT64 else "must be an int of at most 64 bits"
    if value is None or isinstance(value, float | bytes):
        return None
    return f"must be a str, int, float, bool, bytes or None, and is {_article(value)}"


def _text_fault(text: object) -> str | None:
    if not isinstance(text, str):
        return f"must be a str, and is {_article(text)}"
    if "\0" in text:
        return "must not contain NUL: the client library would truncate it"
    if not text.isascii() and not is_sendable(text):
        return "must not contain half of a surrogate pair"
    return None


def _text_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _article(value: object) -> str:
    name = type(value).__name__
    return f"an {name}" if name[0] in "aeiouAEIOU" else f"a {name}"
