"""Reads a native message once, into the values of the model, and frees it.

The reader is a closure instead of a class: reading is most of what a message costs, and to look up each variable on an
object would add a tenth to that. For the same reason the two values are not made by their constructors, which for
frozen dataclasses set each field by a function call. If the package was built with a compiler, compiled_reader.py does
the same in a fifth of the time.
"""

import sys
import time
from collections.abc import Callable
from ctypes import (
    Structure,
    byref,
    c_char_p,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_ssize_t,
    c_uint32,
    c_uint64,
    c_void_p,
    sizeof,
)

from lbg_runtime.model.ids import DeliveryId, Epoch, QueueName
from lbg_runtime.model.message import (
    PUBLISHER_PROPERTY,
    Delivery,
    Headers,
    Message,
    MessageDraft,
    PropertyValue,
)
from lbg_runtime.transport.solace.fast.calls import FastCalls
from lbg_runtime.transport.solace.inbound import TEXT_TAG, UnreadableMessage, headers_of, is_text, unwrap_text
from lbg_runtime.transport.solace.library import (
    CLIENT_ERRORS,
    SOLCLIENT_EOS,
    SOLCLIENT_NOT_FOUND,
    Destination,
    Field,
    PubSubPlusClientError,
    get_last_error_info,
)
from lbg_runtime.transport.solace.properties import INT64, STRING, add_property, text_of
from lbg_runtime.transport.solace.trace_context import TraceContexts

ReadMessage = Callable[[int, QueueName, Epoch], Delivery]
"""Takes the address of a native message, which it frees whatever happens; raises `UnreadableMessage`."""


class _StringField(Structure):
    """The client's field when it holds a text."""

    _fields_ = (("kind", c_int), ("length", c_uint32), ("value", c_char_p))


class _IntegerField(Structure):
    """The client's field when it holds a 64-bit integer."""

    _fields_ = (("kind", c_int), ("length", c_uint32), ("value", c_int64))


class _DeliveryDraft:
    """A `Delivery` in the making."""

    __slots__ = Delivery.__slots__

    queue: QueueName
    epoch: Epoch
    delivery_id: DeliveryId
    message: Message
    redelivered: bool
    received_at_ns: int


def message_reader(calls: FastCalls, traces: TraceContexts | None = None) -> ReadMessage:
    """Make a reader for one thread: C writes variables of the reader, which it reads afterwards, so two threads must
    not share it.

    `traces`: None if nobody wants the vendor's trace context, which then costs nothing.
    """
    get_payload, get_properties, get_next = calls.payload, calls.properties, calls.next_field
    get_message_id, get_destination, get_sent_at = calls.message_id, calls.destination, calls.sent_at
    get_correlation_id, get_message_type = calls.correlation_id, calls.message_type
    get_sequence_number, get_priority = calls.sequence_number, calls.priority
    get_delivery_id, is_redelivered, free, bytes_at = (
        calls.delivery_id,
        calls.is_redelivered,
        calls.free,
        calls.bytes_at,
    )
    monotonic_ns = time.monotonic_ns

    message = c_void_p()
    # C writes 32 bits of a size, but Python reads all of it.
    address, size = c_void_p(), c_ssize_t()
    size_bits = c_uint32.from_buffer(size, 0 if sys.byteorder == "little" else sizeof(size) - sizeof(c_uint32))
    container, field, name = c_void_p(), Field(), c_char_p()
    text, integer = _StringField.from_buffer(field), _IntegerField.from_buffer(field)
    message_id, destination, sent_at, delivery_id = c_char_p(), Destination(), c_int64(), c_uint64()
    correlation_id, message_type, sequence_number, priority = c_char_p(), c_char_p(), c_uint64(), c_int32()

    to_message, to_address, to_size = byref(message), byref(address), byref(size_bits)
    to_container, to_field, to_name = byref(container), byref(field), byref(name)
    to_message_id, to_destination, to_sent_at = byref(message_id), byref(destination), byref(sent_at)
    to_delivery_id = byref(delivery_id)
    to_correlation_id, to_message_type = byref(correlation_id), byref(message_type)
    to_sequence_number, to_priority = byref(sequence_number), byref(priority)
    field_bytes, destination_bytes = c_size_t(sizeof(field)), c_size_t(sizeof(destination))

    # A successful call returns `SOLCLIENT_OK`, which is zero, and so false.

    def read_headers() -> Headers:
        its_id = None if get_correlation_id(message, to_correlation_id) else text_of(correlation_id.value)
        its_type = None if get_message_type(message, to_message_type) else text_of(message_type.value)
        number = None if get_sequence_number(message, to_sequence_number) else sequence_number.value
        return headers_of(its_id, its_type, number, None if get_priority(message, to_priority) else priority.value)

    def read(pointer: int, queue: QueueName, epoch: Epoch) -> Delivery:
        received_at_ns = monotonic_ns()
        message.value = pointer
        try:
            draft = MessageDraft()
            properties: dict[str, PropertyValue] = {}
            draft.properties = properties
            if not (code := get_properties(message, to_container)):
                # The map is closed with its message.
                while not (code := get_next(container, to_field, field_bytes, to_name)):
                    kind = text.kind
                    if kind == STRING:
                        properties[text_of(name.value)] = text_of(text.value)
                    elif kind == INT64:
                        properties[text_of(name.value)] = integer.value
                    else:
                        add_property(properties, text_of(name.value), field)
                if code != SOLCLIENT_EOS:
                    raise get_last_error_info(code, "read properties")
                # As `read_properties` does; here, so that it is looked up only once.
                properties.pop("", None)
            elif code != SOLCLIENT_NOT_FOUND:
                raise get_last_error_info(code, "read properties")
            if traces is not None:
                traces.add_to(properties, message)

            code = get_payload(message, to_address, to_size)
            if not code and PUBLISHER_PROPERTY in properties:
                payload = bytes_at(address, size)
                # Hardly anything that we publish looks like a text.
                if payload and payload[0] >> 2 == TEXT_TAG:
                    payload = read_foreign_payload(calls, message, payload, is_ours=True)
                draft.payload = payload
            elif not code or code == SOLCLIENT_NOT_FOUND:
                attachment = None if code else bytes_at(address, size)
                is_ours = PUBLISHER_PROPERTY in properties
                draft.payload = read_foreign_payload(calls, message, attachment, is_ours=is_ours)
            else:
                raise get_last_error_info(code, "read payload")

            if not (code := get_destination(message, to_destination, destination_bytes)):
                draft.topic = text_of(destination.dest)
            elif code == SOLCLIENT_NOT_FOUND:
                draft.topic = ""
            else:
                raise get_last_error_info(code, "read destination")
            # If the client cannot read one of these, as it has another type, that is no reason to keep the message
            # back.
            draft.message_id = None if get_message_id(message, to_message_id) else text_of(message_id.value)
            draft.sent_at_ms = None if get_sent_at(message, to_sent_at) else sent_at.value
            draft.headers = read_headers()
            draft.is_first_of_key = False

            if code := get_delivery_id(message, to_delivery_id):
                raise get_last_error_info(code, "read delivery id")
            delivery = _DeliveryDraft()
            delivery.queue = queue
            delivery.epoch = epoch
            delivery.delivery_id = delivery_id.value  # type: ignore[assignment]  # a `NewType` would cost a call
            delivery.redelivered = is_redelivered(message)
            delivery.received_at_ns = received_at_ns
            draft.__class__ = Message  # type: ignore[assignment]  # of the same layout, which is all it needs
            delivery.message = draft  # type: ignore[assignment]
            delivery.__class__ = Delivery  # type: ignore[assignment]
            return delivery  # type: ignore[return-value]
        except CLIENT_ERRORS as error:
            has_no_id = get_delivery_id(message, to_delivery_id)
            raise UnreadableMessage(str(error), None if has_no_id else DeliveryId(delivery_id.value)) from error
        finally:
            free(to_message)

    return read


def read_foreign_payload(calls: FastCalls, message: c_void_p, attachment: bytes | None, *, is_ours: bool) -> bytes:
    """Read a payload that has no attachment or is not from a publisher of ours: it may have XML as well, or instead.

    Also used if the attachment looks like a text although the message has our stamps: a foreign publisher may have
    copied those.
    Raises the client's errors.
    """
    address, size = c_void_p(), c_uint32()
    code = calls.xml(message, byref(address), byref(size))
    if code == SOLCLIENT_NOT_FOUND:
        payload = attachment or b""
    elif code:
        raise get_last_error_info(code, "read payload")
    elif attachment is not None:
        raise PubSubPlusClientError("it has two payloads")
    else:
        payload = calls.bytes_at(address, c_ssize_t(size.value))
    text = unwrap_text(payload)
    return text if text is payload or not is_ours or is_text(message) else payload
