"""The contents of a message: payload, headers and user properties, both ways.

A broker passes the body on unread; this is for code that makes or reads messages in Python.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from types import MappingProxyType

from lbg_runtime.model.errors import ProtocolError
from lbg_runtime.model.message import DEFAULT_PRIORITY, NO_HEADERS, NO_PROPERTIES, Headers, Message, PropertyValue
from lbg_runtime.model.sendable import LARGEST_INT64, LARGEST_UINT64
from lbg_runtime.smf.message import Relay, make_relay
from lbg_runtime.smf.sdt import SdtValue, decode_sdt, encode_map, encode_sdt, encode_stream

MESSAGE_ID = "mi"
CORRELATION_ID = "ci"
MESSAGE_TYPE = "mt"
SEQUENCE_NUMBER = "sn"
"""Header: 64 bits that clients write as signed and read as unsigned."""
SENT_AT = "ts"
"""Header: the sender's clock, milliseconds since the epoch."""

_HEADERS = "h"
_PROPERTIES = "p"
_NO_HEADERS: Mapping[str, SdtValue] = MappingProxyType({})
_SDT_BLOCK = 0
_IS_REPLY = 0x80
_METADATA_HEAD_BYTES = 5
_LARGEST_BLOCK_BYTES = (1 << 24) - 1


class PayloadKind(IntEnum):
    """How the attachment is to be read."""

    BYTES = 0
    STRING = 0x07
    MAP = 0x0A
    STREAM = 0x0B


class _Section(IntEnum):
    ATTACHMENT = 2
    METADATA = 4


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of a message. `payload_kind` says whether the attachment decodes to a string, map or stream."""

    attachment: bytes
    payload_kind: int = PayloadKind.BYTES
    headers: Mapping[str, SdtValue] = field(default_factory=dict)
    properties: Mapping[str, SdtValue] = field(default_factory=dict)
    is_reply: bool = False

    @property
    def payload(self) -> SdtValue:
        """The payload as it was published: bytes, string, map or stream; raises `ProtocolError`."""
        if self.payload_kind in (PayloadKind.STRING, PayloadKind.MAP, PayloadKind.STREAM):
            return decode_sdt(self.attachment)
        return self.attachment


def encode_contents(contents: Contents) -> tuple[bytes | None, bytes]:
    """Encode contents as the contents summary, None if none is needed, and the body.

    Raises `ValueError` for headers and properties of 16 MB or more, and for values that `encode_sdt` refuses.
    """
    maps: dict[str, SdtValue] = {}
    if contents.headers:
        maps[_HEADERS] = contents.headers
    if contents.properties:
        maps[_PROPERTIES] = contents.properties
    if not maps and contents.payload_kind == PayloadKind.BYTES and not contents.is_reply:
        return None, contents.attachment
    preamble = encode_sdt(bytes((contents.payload_kind, _IS_REPLY if contents.is_reply else 0)))
    block = encode_map(maps)
    # A stream of two items, written by hand because its items are already encoded.
    stream = encode_stream(())[:1] + (5 + len(preamble) + len(block)).to_bytes(4, "big") + preamble + block
    if len(stream) > _LARGEST_BLOCK_BYTES:
        raise ValueError(f"headers and properties of {len(stream)} bytes, not {_LARGEST_BLOCK_BYTES} at most")
    metadata = bytes((1, _SDT_BLOCK)) + len(stream).to_bytes(3, "big") + stream
    summary = _section(_Section.ATTACHMENT, len(contents.attachment)) + _section(_Section.METADATA, len(metadata))
    return summary, contents.attachment + metadata


def decode_contents(summary: bytes | None, body: bytes) -> Contents:
    """Read the body of a message by its contents summary; raises `ProtocolError`."""
    if summary is None:
        return Contents(body)
    attachment, metadata = _sections(summary, body)
    return _decode_metadata(attachment, metadata) if metadata else Contents(attachment)


def relay_of(message: Message) -> Relay:
    """Convert a message of this process to the form in which a broker keeps published ones."""
    headers: dict[str, SdtValue] = {}
    if message.message_id is not None:
        headers[MESSAGE_ID] = message.message_id
    if message.sent_at_ms is not None:
        headers[SENT_AT] = message.sent_at_ms
    said = message.headers
    if said.correlation_id is not None:
        headers[CORRELATION_ID] = said.correlation_id
    if said.message_type is not None:
        headers[MESSAGE_TYPE] = said.message_type
    if (number := said.sequence_number) is not None:
        headers[SEQUENCE_NUMBER] = number - (1 << 64) if number > LARGEST_INT64 else number
    summary, body = encode_contents(Contents(message.payload, headers=headers, properties=message.properties))
    return make_relay(message.topic, body, summary, DEFAULT_PRIORITY if said.priority is None else said.priority)


def with_property(relay: Relay, name: str, *, value: SdtValue) -> Relay:
    """The same message with one more user property; unchanged if its contents cannot be read, or would be too long."""
    try:
        contents = decode_contents(relay.contents, relay.body)
        # Numbers may take more bytes than before.
        summary, body = encode_contents(replace(contents, properties={**contents.properties, name: value}))
    except (ProtocolError, ValueError):
        return relay
    return relay.with_contents(summary, body)


def message_of(topic: str, relay: Relay) -> Message:
    """A published message as the runtime sees it; raises `ProtocolError` for contents that cannot be read.

    A string payload becomes its UTF-8, a map or a stream its encoding. Properties of types that the runtime has no
    values for (destinations, maps, streams, messages) are left out, and those without a name, which nobody can send.
    """
    contents = decode_contents(relay.contents, relay.body)
    payload = contents.attachment
    if contents.payload_kind == PayloadKind.STRING:
        text = contents.payload
        if not isinstance(text, str):
            raise ProtocolError("a string message whose attachment is not a string")
        payload = text.encode()
    message_id = contents.headers.get(MESSAGE_ID)
    sent_at_ms = contents.headers.get(SENT_AT)
    properties: dict[str, PropertyValue] = {
        name: value
        for name, value in contents.properties.items()
        if name and (value is None or isinstance(value, str | int | float | bytes))
    }
    return Message(
        topic=topic,
        payload=payload,
        properties=MappingProxyType(properties) if properties else NO_PROPERTIES,
        message_id=message_id if isinstance(message_id, str) else None,
        sent_at_ms=sent_at_ms if isinstance(sent_at_ms, int) else None,
        headers=_headers_of(contents.headers, relay.priority),
    )


def _headers_of(headers: Mapping[str, SdtValue], priority: int) -> Headers:
    correlation_id, message_type = headers.get(CORRELATION_ID), headers.get(MESSAGE_TYPE)
    number = headers.get(SEQUENCE_NUMBER)
    found = Headers(
        correlation_id if isinstance(correlation_id, str) else None,
        message_type if isinstance(message_type, str) else None,
        number & LARGEST_UINT64 if isinstance(number, int) else None,
        None if priority == DEFAULT_PRIORITY else priority,
    )
    return NO_HEADERS if found == NO_HEADERS else found


def _section(kind: _Section, size: int) -> bytes:
    size_bytes = max(1, (size.bit_length() + 7) // 8)
    return bytes((kind << 4 | size_bytes + 1,)) + size.to_bytes(size_bytes, "big")


def _sections(summary: bytes, body: bytes) -> tuple[bytes, bytes]:
    """The attachment and the metadata; sections of other kinds are skipped."""
    found = {_Section.ATTACHMENT: b"", _Section.METADATA: b""}
    position = offset = 0
    while position < len(summary):
        kind = summary[position] >> 4
        end = position + max(summary[position] & 0x0F, 2)
        if end > len(summary):
            raise ProtocolError("a contents summary cut short", position)
        size = int.from_bytes(summary[position + 1 : end], "big")
        if offset + size > len(body):
            raise ProtocolError(f"a section of {size} bytes in a body of {len(body)}", position)
        if kind in (_Section.ATTACHMENT, _Section.METADATA):
            found[_Section(kind)] = body[offset : offset + size]
        offset += size
        position = end
    return found[_Section.ATTACHMENT], found[_Section.METADATA]


def _decode_metadata(attachment: bytes, metadata: bytes) -> Contents:
    # Clients write only one block; anything after the first is not theirs.
    if len(metadata) < _METADATA_HEAD_BYTES or metadata[0] < 1 or metadata[1] != _SDT_BLOCK:
        raise ProtocolError("metadata without a block of structured data")
    end = _METADATA_HEAD_BYTES + int.from_bytes(metadata[2:_METADATA_HEAD_BYTES], "big")
    if end > len(metadata):
        raise ProtocolError("a block of metadata cut short", 2)
    match decode_sdt(metadata[_METADATA_HEAD_BYTES:end]):
        case [bytes(preamble), dict(maps)] if len(preamble) >= 2:
            return Contents(
                attachment,
                preamble[0],
                _map_at(maps, _HEADERS),
                _map_at(maps, _PROPERTIES),
                bool(preamble[1] & _IS_REPLY),
            )
        case _:
            raise ProtocolError("metadata that is not a preamble and a map", _METADATA_HEAD_BYTES)


def _map_at(maps: Mapping[str, SdtValue], name: str) -> Mapping[str, SdtValue]:
    found = maps.get(name, _NO_HEADERS)
    if not isinstance(found, Mapping):
        raise ProtocolError(f"metadata {name!r} that is not a map", _METADATA_HEAD_BYTES)
    return found
