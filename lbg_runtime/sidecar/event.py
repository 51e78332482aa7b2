"""Turns a message into a CloudEvents 1.0 event, as one JSON object or as headers and body, with what the runtime adds.

On the broker, attributes are user properties `ce_<name>`, and the data is the payload. So an event that an application
publishes comes out as it went in, and any other member can read the payload.
"""

import base64
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote

import orjson

from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.model.message import NO_HEADERS, Headers, Message
from lbg_runtime.model.sendable import HIGHEST_PRIORITY, LARGEST_UINT64
from lbg_runtime.model.trace_context import trace_context

ATTRIBUTE_PREFIX = "ce_"
CONTENT_TYPE_ATTRIBUTE = "datacontenttype"
KEY_ATTRIBUTE = "partitionkey"
CORRELATION_ATTRIBUTE = "correlationid"
TYPE_ATTRIBUTE = "messagetype"
SEQUENCE_ATTRIBUTE = "sequencenumber"
PRIORITY_ATTRIBUTE = "priority"

STRUCTURED_TYPE = "application/cloudevents+json"
BYTES_TYPE = "application/octet-stream"
_TEXT_TYPE = "text/plain"
_JSON_TYPE = "application/json"

EVENT_TYPE = "com.dapr.event.sent"
"""The type of an event whose message names none: the one that applications for Dapr know."""

KEY_HEADER = "lbg-key"
FENCING_HEADER = "lbg-fencing-token"

_NAME = re.compile(r"[a-z0-9]{1,40}")
_DIGITS = re.compile(r"[0-9]{1,20}")
_OWN_ATTRIBUTES = frozenset({"specversion", "data", "topic", "pubsubname"})
_REQUIRED_TEXTS = frozenset({"id", "source", "type"})
"""The attributes that every event has, and that are never empty: a strict reader would refuse such an event each time
that it comes."""
_PLAIN = re.compile(r"[!#$&-~]*")
_SAFE = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
_MEDIA_TYPE = re.compile(r"[!-~]+/[ -~]+")


class Event(NamedTuple):
    """One attempt to handle a message, with what an application may want to know about it.

    A tuple, as one is made for each attempt, which takes a fifth of the time of a frozen dataclass.
    """

    message: Message
    topic: str
    """The original topic, without hash prefix and shard."""
    key: str | None
    shard: int | None
    queue: QueueName
    epoch: Epoch
    attempt: int
    """The number of the attempt in this life of the member, from 1."""
    redelivered: bool
    event_id: str
    """The id for a message that has none of its own."""
    source: str
    """The source for a message that names none."""


def facts(event: Event) -> dict[str, str]:
    """What the runtime knows about the delivery: texts that a header can carry, by the header's name."""
    told = {
        "lbg-queue": header_text(event.queue),
        "lbg-epoch": str(event.epoch),
        "lbg-attempt": str(event.attempt),
        "lbg-redelivered": "true" if event.redelivered else "false",
    }
    if event.key is not None:
        told[KEY_HEADER] = header_text(event.key)
    if event.shard is not None:
        told["lbg-shard"] = str(event.shard)
    message = event.message
    publisher, number = message.publisher_id, message.key_sequence
    # Like `Message.fencing_token`, without making one.
    if publisher is not None and number is not None and message.key is not None:
        told[FENCING_HEADER] = str(number)
        told["lbg-publisher"] = header_text(publisher)
    return told | trace_context(message.properties)


def structured(event: Event, pubsub_name: str, *, is_raw: bool = False) -> bytes:
    """The event as one JSON object. With `is_raw`, the payload is sent as bytes, whatever its content type."""
    return orjson.dumps(_as_object(event, pubsub_name, is_raw))


def binary(event: Event, pubsub_name: str) -> tuple[dict[str, str], bytes]:
    """The event as headers and body."""
    attributes = _attributes(event, pubsub_name)
    content_type = attributes.pop(CONTENT_TYPE_ATTRIBUTE, None)
    payload = event.message.payload
    if not isinstance(content_type, str) or _MEDIA_TYPE.fullmatch(content_type) is None:
        content_type = _guessed_type(payload)
    headers = {f"ce-{name}": header_text(_as_text(value)) for name, value in attributes.items()}
    return {**headers, "content-type": content_type}, payload


def bulk_entry(event: Event, pubsub_name: str, entry_id: str, *, is_raw: bool) -> dict[str, object]:
    """The event as one entry of a bulk, in Dapr's form."""
    if is_raw:
        told: object = base64.b64encode(event.message.payload).decode()
        content_type = BYTES_TYPE
    else:
        told, content_type = _as_object(event, pubsub_name, is_raw=False), STRUCTURED_TYPE
    return {"entryId": entry_id, "event": told, "metadata": facts(event), "contentType": content_type}


_LONGEST_KEPT = 500
"""The longest text, in characters, whose written form is cached: attributes of publishers may have any length."""


def header_text(value: str) -> str:
    """A text as CloudEvents writes it in a header: `"`, `%` and everything but visible ASCII are percent-encoded."""
    return _kept_text(value) if len(value) <= _LONGEST_KEPT else _written(value)


@lru_cache(maxsize=4096)
def _kept_text(value: str) -> str:
    return _written(value)


def _written(value: str) -> str:
    return value if _PLAIN.fullmatch(value) else quote(value, safe=_SAFE)


def is_json_type(content_type: str) -> bool:
    """Whether a media type says that the body is JSON."""
    name = content_type.partition(";")[0].strip().lower()
    return name.endswith(("/json", "+json"))


def attribute_properties(attributes: Mapping[str, object]) -> dict[str, str | int | bool]:
    """The user properties that carry these attributes; without those whose name or value no attribute can have."""
    return {
        f"{ATTRIBUTE_PREFIX}{name}": value
        for name, value in attributes.items()
        if is_attribute(name) and isinstance(value, str | int)
    }


def attribute_headers(attributes: Mapping[str, object]) -> Headers:
    """The message's headers that these attributes correspond to, for consumers that read no attributes.

    An attribute with a value that the header cannot have stays only an attribute: publishers name extensions, and may
    mean another thing by the name.
    """
    found = Headers(
        _text(attributes.get(CORRELATION_ATTRIBUTE)),
        _text(attributes.get(TYPE_ATTRIBUTE)),
        _number(attributes.get(SEQUENCE_ATTRIBUTE), LARGEST_UINT64),
        _number(attributes.get(PRIORITY_ATTRIBUTE), HIGHEST_PRIORITY),
    )
    return NO_HEADERS if found == NO_HEADERS else found


def is_attribute(name: str) -> bool:
    """Whether a publisher may set an attribute of this name; some are set by the sidecar alone."""
    return name not in _OWN_ATTRIBUTES and _NAME.fullmatch(name) is not None


def is_integer(value: int) -> bool:
    """Whether an attribute can have this number as its value: integers of events have 32 bits."""
    return -(2**31) <= value < 2**31


def _as_object(event: Event, pubsub_name: str, is_raw: bool) -> dict[str, object]:
    told = _attributes(event, pubsub_name)
    payload = event.message.payload
    said = BYTES_TYPE if is_raw else told.get(CONTENT_TYPE_ATTRIBUTE)
    told.update(_data(payload, said if isinstance(said, str) else None))
    return told


def _data(payload: bytes, content_type: str | None) -> dict[str, object]:
    """The data and its content type, which is guessed from the payload if the publisher has not given it."""
    if (content_type is None or is_json_type(content_type)) and _is_json(payload):
        # Inserted as it is, so that numbers keep all their digits.
        return {CONTENT_TYPE_ATTRIBUTE: content_type or _JSON_TYPE, "data": orjson.Fragment(payload)}
    if content_type is None or _is_text_type(content_type):
        text = _text_of(payload)
        if text is not None:
            return {CONTENT_TYPE_ATTRIBUTE: content_type or _TEXT_TYPE, "data": text}
    return {CONTENT_TYPE_ATTRIBUTE: content_type or BYTES_TYPE, "data_base64": base64.b64encode(payload).decode()}


def _attributes(event: Event, pubsub_name: str) -> dict[str, object]:
    message = event.message
    told: dict[str, object] = {
        "specversion": "1.0",
        "id": message.message_id or event.event_id,
        "source": event.source,
        "type": EVENT_TYPE,
        "topic": event.topic,
        "pubsubname": pubsub_name,
    }
    if message.sent_at_ms is not None and (time := _time_text(message.sent_at_ms)) is not None:
        told["time"] = time
    if message.headers is not NO_HEADERS:
        told |= _said_by(message.headers)
    for name, value in message.properties.items():
        if name.startswith(ATTRIBUTE_PREFIX) and isinstance(value, str | int):
            attribute = name.removeprefix(ATTRIBUTE_PREFIX)
            if attribute in _REQUIRED_TEXTS:
                told[attribute] = _as_text(value) or told[attribute]
            elif is_attribute(attribute):
                told[attribute] = value if isinstance(value, str) or is_integer(value) else str(value)
    # Replaces whatever the publisher wrote there: an application may go by it, and only this key is kept in order.
    told.pop(KEY_ATTRIBUTE, None)
    if event.key:
        told[KEY_ATTRIBUTE] = event.key
    return told


def _said_by(headers: Headers) -> dict[str, object]:
    said: dict[str, object] = {}
    if headers.correlation_id:
        said[CORRELATION_ATTRIBUTE] = headers.correlation_id
    if headers.message_type:
        said[TYPE_ATTRIBUTE] = headers.message_type
    if headers.sequence_number is not None:
        # Always as text, as it may be too large for an integer of an event.
        said[SEQUENCE_ATTRIBUTE] = str(headers.sequence_number)
    if headers.priority is not None:
        said[PRIORITY_ATTRIBUTE] = headers.priority
    return said


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _number(value: object, largest: int) -> int | None:
    if isinstance(value, str) and _DIGITS.fullmatch(value):
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= largest else None


def _as_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _time_text(time_ms: int) -> str | None:
    seconds, ms = divmod(time_ms, 1_000)
    text = _second_text(seconds)
    return text and f"{text}.{ms:03}Z"


@lru_cache(maxsize=64)
def _second_text(seconds: int) -> str | None:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return None  # a publisher may stamp anything


def _guessed_type(payload: bytes) -> str:
    if _is_json(payload):
        return _JSON_TYPE
    return _TEXT_TYPE if _text_of(payload) is not None else BYTES_TYPE


def _is_text_type(content_type: str) -> bool:
    name = content_type.partition(";")[0].strip().lower()
    return name.startswith("text/") or name.endswith(("/xml", "+xml"))


def _is_json(payload: bytes) -> bool:
    try:
        orjson.loads(payload)
    except orjson.JSONDecodeError:
        return False
    return True


def _text_of(payload: bytes) -> str | None:
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return None
