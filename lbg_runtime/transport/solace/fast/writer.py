"""Writes a message of the model into a native message, which is reused.

The writer is a closure instead of a class, for the same reason as in reader.py. If the package was built with a
compiler, compiled_writer.py does the same for all usual messages in a tenth of the time.
"""

from collections.abc import Callable, Mapping
from ctypes import (
    byref,
    c_double,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
    sizeof,
)

from lbg_runtime.model.errors import MessageUnsendable, PublishRefused
from lbg_runtime.model.message import (
    KEY_SEQUENCE_PROPERTY,
    NO_HEADERS,
    PARTITION_KEY_PROPERTY,
    PUBLISHER_PROPERTY,
    Headers,
    Message,
    as_payload,
)
from lbg_runtime.model.sendable import (
    HIGHEST_PRIORITY,
    LARGEST_INT64,
    LARGEST_MESSAGE_BYTES,
    LARGEST_UINT64,
    SMALLEST_INT64,
    check_sendable,
    size_bound,
)
from lbg_runtime.model.topic import LARGEST_TOPIC_BYTES
from lbg_runtime.transport.solace.errors import subcode_and_reason
from lbg_runtime.transport.solace.fast.publish_calls import PERSISTENT, PublishCalls
from lbg_runtime.transport.solace.library import Destination, get_last_error_info

TAG_BYTES = 32
"""How much memory at a tag's address belongs to the tag. The client's Python layer reads 17 bytes at any tag. It is not
told of ours, but if it were, it must not read beyond the memory of one."""

_NAMES: Mapping[str, bytes] = {
    name: name.encode() for name in (PARTITION_KEY_PROPERTY, PUBLISHER_PROPERTY, KEY_SEQUENCE_PROPERTY)
}
"""The properties that our own publishers stamp on every message."""

WriteMessage = Callable[[c_void_p, Message, int], None]
"""Takes a native message, the message to write into it, and the tag of its answer; raises `PublishRefused`.

The native message may be new, or may have been used for any other message: nothing of that remains.
"""


class _NotWritten(Exception):
    """Has the library's reason as its text; none if the message itself is at fault, which `check_sendable`
    describes."""


def message_writer(calls: PublishCalls) -> WriteMessage:
    """Make a writer for one thread: C reads variables of the writer, so two threads must not share it."""
    reset, set_mode, set_dmq_eligible, set_tag = (
        calls.reset,
        calls.set_delivery_mode,
        calls.set_dmq_eligible,
        calls.set_tag,
    )
    set_destination, set_payload = calls.set_destination, calls.set_payload
    set_message_id, set_sent_at = calls.set_message_id, calls.set_sent_at
    create_properties, close = calls.create_properties, calls.close
    add_string, add_int64 = calls.add_string, calls.add_int64
    known_name = _NAMES.get

    # Its type, 0, is that of a topic.
    destination, integer, properties, tag = Destination(), c_int64(), c_void_p(), c_void_p()
    to_destination, to_properties = byref(destination), byref(properties)
    destination_bytes, tag_bytes = c_size_t(sizeof(destination)), c_uint32(TAG_BYTES)

    # A successful call returns `SOLCLIENT_OK`, which is zero, and so false.

    def add_other(name: bytes, value: object) -> int:
        code: int
        if isinstance(value, str):
            code = add_string(properties, _text(value), name)
        elif isinstance(value, bool):
            code = calls.add_boolean(properties, int(value), name)
        elif isinstance(value, int) and SMALLEST_INT64 <= value <= LARGEST_INT64:
            code = add_int64(properties, c_int64(value), name)
        elif isinstance(value, int) and 0 <= value <= LARGEST_UINT64:
            code = calls.add_uint64(properties, c_uint64(value), name)
        elif isinstance(value, float):
            code = calls.add_double(properties, c_double(value), name)
        elif isinstance(value, bytes):
            code = calls.add_bytes(properties, value, c_uint32(len(value)), name)
        elif value is None:
            code = calls.add_null(properties, name)
        else:
            raise _NotWritten
        return code

    def fill_headers(native: c_void_p, headers: Headers) -> None:
        if not isinstance(headers, Headers):
            raise _NotWritten
        if (text := headers.correlation_id) is not None and (code := calls.set_correlation_id(native, _text(text))):
            raise _failed(code, "set correlation id")
        if (text := headers.message_type) is not None and (code := calls.set_message_type(native, _text(text))):
            raise _failed(code, "set application message type")
        number: object = headers.sequence_number
        if number is not None:
            if not (isinstance(number, int) and 0 <= number <= LARGEST_UINT64):
                raise _NotWritten
            if code := calls.set_sequence_number(native, c_uint64(number)):
                raise _failed(code, "set sequence number")
        priority: object = headers.priority
        if priority is not None:
            if not (isinstance(priority, int) and 0 <= priority <= HIGHEST_PRIORITY):
                raise _NotWritten
            if code := calls.set_priority(native, c_int32(priority)):
                raise _failed(code, "set priority")

    def fill(native: c_void_p, message: Message, address: int) -> None:
        if code := reset(native) or set_mode(native, PERSISTENT) or set_dmq_eligible(native, 1):
            raise _failed(code, "prepare message")
        topic = _text(message.topic)
        if not 0 < len(topic) <= LARGEST_TOPIC_BYTES:
            raise _NotWritten
        destination.dest = topic
        if code := set_destination(native, to_destination, destination_bytes):
            raise _failed(code, "set topic")
        payload = as_payload(message.payload)
        # Before the library is called, which would truncate a size that 32 bits cannot hold.
        if size_bound(payload, message.properties, message.headers) > LARGEST_MESSAGE_BYTES:
            raise _NotWritten
        if code := set_payload(native, payload, len(payload)):
            raise _failed(code, "set payload")
        if message.message_id is not None and (code := set_message_id(native, _text(message.message_id))):
            raise _failed(code, "set application message id")
        if message.sent_at_ms is not None:
            sent_at: object = message.sent_at_ms
            if not (isinstance(sent_at, int) and SMALLEST_INT64 <= sent_at <= LARGEST_INT64):
                raise _NotWritten
            integer.value = sent_at
            if code := set_sent_at(native, integer):
                raise _failed(code, "set sender timestamp")
        if message.headers is not NO_HEADERS:
            fill_headers(native, message.headers)
        if items := message.properties.items():
            if code := create_properties(native, to_properties, 0):
                raise _failed(code, "create properties")
            # If this fails half-way, the container is closed with its message.
            for name, value in items:
                encoded_name = known_name(name) or _name(name)
                kind = type(value)
                if kind is str:
                    encoded = value.encode()  # type: ignore[union-attr]  # as has just been found
                    if b"\0" in encoded:
                        raise _NotWritten
                    code = add_string(properties, encoded, encoded_name)
                elif kind is int and SMALLEST_INT64 <= value <= LARGEST_INT64:  # type: ignore[operator]  # likewise
                    integer.value = value  # type: ignore[assignment]  # likewise
                    code = add_int64(properties, integer, encoded_name)
                else:
                    code = add_other(encoded_name, value)
                if code:
                    raise _failed(code, "add property")
            if code := close(to_properties):
                raise _failed(code, "close properties")
        tag.value = address
        if code := set_tag(native, tag, tag_bytes):
            raise _failed(code, "set correlation tag")

    def write(native: c_void_p, message: Message, address: int) -> None:
        try:
            fill(native, message, address)
        # If no type checker has seen the message, anything may be wrong with it; and other messages wait behind it.
        except Exception as error:
            raise _refusal(message, error) from error

    return write


def _text(text: str) -> bytes:
    encoded = text.encode()
    if b"\0" in encoded:
        raise _NotWritten
    return encoded


def _name(name: str) -> bytes:
    if not name:
        raise _NotWritten
    return _text(name)


def _refusal(message: Message, error: Exception) -> PublishRefused:
    try:
        check_sendable(message)
    except MessageUnsendable as refusal:
        return refusal
    except Exception as other:  # noqa: BLE001 - as above
        error = other
    return PublishRefused(message.topic, str(error) or type(error).__name__)


def _failed(code: int, what: str) -> _NotWritten:
    return _NotWritten(subcode_and_reason(get_last_error_info(code, what))[1])
