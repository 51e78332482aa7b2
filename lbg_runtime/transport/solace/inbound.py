"""Converts messages of the client's Python layer to values of the model."""

import time
from ctypes import (
    byref,
    c_char_p,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
    sizeof,
    string_at,
)
from typing import Any

from lbg_runtime.model.errors import ProtocolError, TransportError
from lbg_runtime.model.ids import DeliveryId, Epoch, QueueName
from lbg_runtime.model.message import DEFAULT_PRIORITY, NO_HEADERS, PUBLISHER_PROPERTY, Delivery, Headers, Message
from lbg_runtime.smf.contents import PayloadKind, decode_contents
from lbg_runtime.smf.frame import ParameterKind, decode_frame
from lbg_runtime.transport.solace.library import (
    CLIENT_ERRORS,
    CORE,
    SOLCLIENT_NOT_FOUND,
    SOLCLIENT_OK,
    Destination,
    get_last_error_info,
)
from lbg_runtime.transport.solace.properties import read_properties, text_of
from lbg_runtime.transport.solace.trace_context import TraceContexts

TEXT_TAG = 7
"""The upper six bits of a string's first byte."""

_NO_PRIORITY = -1
"""The priority that the C library reads from a frame that has none."""


class UnreadableMessage(TransportError):
    """A foreign publisher's message whose key, topic or payload cannot be read; it stays on its queue."""

    def __init__(self, reason: str, delivery_id: DeliveryId | None = None) -> None:
        super().__init__(f"a message cannot be read: {reason}")
        self.reason = reason
        self.delivery_id = delivery_id
        """Its number on its flow handle, if it has one."""


def read_delivery(queue: QueueName, epoch: Epoch, inbound: Any, traces: TraceContexts | None) -> Delivery:
    """The values of the client's message of a flow. Called on the client's threads; raises `UnreadableMessage`.

    `traces`: None if nobody wants the vendor's trace context.
    """
    received_at_ns = time.monotonic_ns()
    native, delivery_id = inbound.solace_message.msg_p, c_uint64()
    code = CORE.solClient_msg_getMsgId(native, byref(delivery_id))
    if code != SOLCLIENT_OK:
        raise UnreadableMessage(str(get_last_error_info(code, "read delivery id")))
    number = DeliveryId(delivery_id.value)
    try:
        message = read_message(inbound, traces)
    except UnreadableMessage as error:
        raise UnreadableMessage(error.reason, number) from error
    # The library returns one byte, of which ctypes makes a number.
    is_redelivered = bool(CORE.solClient_msg_isRedelivered(native) & 0xFF)
    return Delivery(queue, epoch, number, message, is_redelivered, received_at_ns)


def read_message(inbound: Any, traces: TraceContexts | None = None) -> Message:
    """The message alone, without what the flow adds. Called on the client's threads; raises `UnreadableMessage`.

    The library is asked directly, as on the fast path, so that both paths read the same. The client's own methods would
    refuse a message because an id or a time stamp has another type, or a text is not UTF-8.
    """
    native = inbound.solace_message.msg_p
    try:
        properties = read_properties(inbound)
        if traces is not None:
            traces.add_to(properties, native)
        payload = bytes(inbound.get_payload_as_bytes() or b"")
        text = unwrap_text(payload)
        if text is not payload and (PUBLISHER_PROPERTY not in properties or is_text(native)):
            payload = text
        return Message(
            topic=_topic_of(native),
            payload=payload,
            properties=properties,
            message_id=_text(CORE.solClient_msg_getApplicationMessageId, native),
            sent_at_ms=_number(CORE.solClient_msg_getSenderTimestamp, native, c_int64()),
            headers=headers_of(
                _text(CORE.solClient_msg_getCorrelationId, native),
                _text(CORE.solClient_msg_getApplicationMsgType, native),
                _number(CORE.solClient_msg_getSequenceNumber, native, c_uint64()),
                _number(CORE.solClient_msg_getPriority, native, c_int32()),
            ),
        )
    except CLIENT_ERRORS as error:
        raise UnreadableMessage(str(error)) from error


def headers_of(
    correlation_id: str | None, message_type: str | None, sequence_number: int | None, priority: int | None
) -> Headers:
    """The headers with these values, as the client reads them."""
    if priority in (DEFAULT_PRIORITY, _NO_PRIORITY):
        priority = None
    if correlation_id is None and message_type is None and sequence_number is None and priority is None:
        return NO_HEADERS
    return Headers(correlation_id, message_type, sequence_number, priority)


def _topic_of(message: c_void_p) -> str:
    destination = Destination()
    code = CORE.solClient_msg_getDestination(message, byref(destination), c_size_t(sizeof(destination)))
    if code not in (SOLCLIENT_OK, SOLCLIENT_NOT_FOUND):
        raise get_last_error_info(code, "read destination")
    return text_of(destination.dest) if code == SOLCLIENT_OK else ""


def _text(get: Any, message: c_void_p) -> str | None:
    """A text that a message may have. If the client cannot read it, as it has another type, it counts as missing."""
    found = c_char_p()
    return text_of(found.value) if get(message, byref(found)) == SOLCLIENT_OK else None


def _number(get: Any, message: c_void_p, found: c_int32 | c_int64 | c_uint64) -> int | None:
    """Like `_text`, for a number, which the client writes to `found`."""
    return found.value if get(message, byref(found)) == SOLCLIENT_OK else None


def unwrap_text(payload: bytes) -> bytes:
    """Return the UTF-8 text of a message that was published as a string: tag and length before it, a zero byte after
    it.

    Other payloads are returned unchanged, as the same object. Bytes may look like this by chance. Messages of our
    publishers are always bytes, but others may have copied our stamps: for a message with these, `is_text` tells.
    """
    if not payload or payload[0] >> 2 != TEXT_TAG:
        return payload
    start = 2 + (payload[0] & 3)
    declared = int.from_bytes(payload[1:start], "big")
    return payload[start:-1] if declared == len(payload) and payload[-1] == 0 else payload


def is_text(message: c_void_p) -> bool:
    """Whether the native message declares that it was published as a string. Expensive; called for few messages.

    The client has no function for this: its own looks at the first bytes of the payload.
    """
    address, size = c_void_p(), c_uint32()
    if CORE.solClient_msg_getSMFPtr(message, byref(address), byref(size)) != SOLCLIENT_OK:
        return False
    try:
        frame = decode_frame(string_at(address.value or 0, size.value))
        return decode_contents(frame.find(ParameterKind.CONTENTS), frame.body).payload_kind == PayloadKind.STRING
    except ProtocolError:
        return False
