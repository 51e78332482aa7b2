"""Converts messages of the client's Python layer to values of the model."""

import time
from collections.abc import Callable
from ctypes import byref, c_uint32, c_void_p, string_at
from typing import Any

from lbg_runtime.model.errors import ProtocolError, TransportError
from lbg_runtime.model.ids import DeliveryId, Epoch, QueueName
from lbg_runtime.model.message import DEFAULT_PRIORITY, NO_HEADERS, PUBLISHER_PROPERTY, Delivery, Headers, Message
from lbg_runtime.model.sendable import LARGEST_INT64
from lbg_runtime.smf.contents import PayloadKind, decode_contents
from lbg_runtime.smf.frame import ParameterKind, decode_frame
from lbg_runtime.transport.solace.library import CLIENT_ERRORS, CORE, SOLCLIENT_OK
from lbg_runtime.transport.solace.properties import read_properties

TEXT_TAG = 7
"""The upper six bits of a string's first byte."""

_NO_PRIORITY = -1
"""What the C library reads where a frame has none."""


class UnreadableMessage(TransportError):
    """A foreign publisher's message with parts that cannot be read; it stays on its queue."""


def read_delivery(queue: QueueName, epoch: Epoch, inbound: Any) -> Delivery:
    """Take everything out of a message of a flow. Called on the client's threads; raises `UnreadableMessage`."""
    received_at_ns = time.monotonic_ns()
    message = read_message(inbound)
    delivery_id = DeliveryId(inbound.message_id.value)
    return Delivery(queue, epoch, delivery_id, message, inbound.is_redelivered(), received_at_ns)


def read_message(inbound: Any) -> Message:
    """Take the message itself out. Called on the client's threads; raises `UnreadableMessage`."""
    try:
        properties = read_properties(inbound)
        payload = bytes(inbound.get_payload_as_bytes() or b"")
        text = unwrap_text(payload)
        if text is not payload and (PUBLISHER_PROPERTY not in properties or is_text(inbound.solace_message.msg_p)):
            payload = text
        return Message(
            topic=inbound.get_destination_name() or "",
            payload=payload,
            properties=properties,
            message_id=inbound.get_application_message_id(),
            sent_at_ms=_signed(inbound.get_sender_timestamp()),
            headers=headers_of(
                _header_text(inbound.get_correlation_id),
                _header_text(inbound.get_application_message_type),
                inbound.get_sequence_number(),
                inbound.get_priority(),
            ),
        )
    except CLIENT_ERRORS as error:
        raise UnreadableMessage(f"a message cannot be read: {error}") from error


def headers_of(
    correlation_id: str | None, message_type: str | None, sequence_number: int | None, priority: int | None
) -> Headers:
    """What a message says by these, as the client reads them."""
    if priority in (DEFAULT_PRIORITY, _NO_PRIORITY):
        priority = None
    if correlation_id is None and message_type is None and sequence_number is None and priority is None:
        return NO_HEADERS
    return Headers(correlation_id, message_type, sequence_number, priority)


def _header_text(get: Callable[[], str | None]) -> str | None:
    """A text for applications: one that is no UTF-8 is no reason to keep the message from them."""
    try:
        return get()
    except UnicodeDecodeError as error:
        return error.object.decode(errors="replace")


def _signed(timestamp: int | None) -> int | None:
    # The client reads it as unsigned, although it is written as signed.
    return timestamp - (1 << 64) if timestamp is not None and timestamp > LARGEST_INT64 else timestamp


def unwrap_text(payload: bytes) -> bytes:
    """Return the UTF-8 text of a message that was published as a string: tag and length before it, a zero byte after
    it.

    Other payloads are returned unchanged, as the same object. Bytes may look like this by chance: for a message with
    our stamps, which our publishers send as bytes and others may have copied, `is_text` tells.
    """
    if not payload or payload[0] >> 2 != TEXT_TAG:
        return payload
    start = 2 + (payload[0] & 3)
    declared = int.from_bytes(payload[1:start], "big")
    return payload[start:-1] if declared == len(payload) and payload[-1] == 0 else payload


def is_text(message: c_void_p) -> bool:
    """Whether the native message declares that it was published as a string. Expensive; called for few messages.

    The client has no function for this: its own goes by the first bytes of the payload.
    """
    address, size = c_void_p(), c_uint32()
    if CORE.solClient_msg_getSMFPtr(message, byref(address), byref(size)) != SOLCLIENT_OK:
        return False
    try:
        frame = decode_frame(string_at(address.value or 0, size.value))
        return decode_contents(frame.find(ParameterKind.CONTENTS), frame.body).payload_kind == PayloadKind.STRING
    except ProtocolError:
        return False
