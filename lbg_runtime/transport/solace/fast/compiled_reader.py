"""The C reader of the fast receive path (_reader.c), and the choice between it and reader.py.

Both give the same result for every message. For rare cases, and for every error, C calls the functions here.
"""

from ctypes import c_void_p, sizeof

from lbg_runtime.model.errors import InvariantViolated
from lbg_runtime.model.ids import DeliveryId
from lbg_runtime.model.message import (
    DEFAULT_PRIORITY,
    NO_HEADERS,
    PUBLISHER_PROPERTY,
    Delivery,
    Message,
    PropertyValue,
)
from lbg_runtime.transport.solace.fast import compiled
from lbg_runtime.transport.solace.fast.calls import FastCalls, address_of
from lbg_runtime.transport.solace.fast.reader import ReadMessage, message_reader, read_foreign_payload
from lbg_runtime.transport.solace.inbound import UnreadableMessage, headers_of
from lbg_runtime.transport.solace.library import CLIENT_ERRORS, Field, get_last_error_info
from lbg_runtime.transport.solace.properties import add_property
from lbg_runtime.transport.solace.trace_context import TraceContexts


def reader_of(calls: FastCalls, traces: TraceContexts | None = None) -> ReadMessage:
    """The fastest reader available; for one thread."""
    return message_reader(calls, traces) if compiled.READER is None else compiled_reader(calls, traces)


def compiled_reader(calls: FastCalls, traces: TraceContexts | None = None) -> ReadMessage:
    """Like `message_reader` of reader.py. Raises `InvariantViolated` if nothing was compiled."""
    if compiled.READER is None:
        raise InvariantViolated("a compiled reader was asked for, and nothing was compiled")

    def add_rare_property(properties: dict[str, PropertyValue], name: str, field: int) -> None:
        add_property(properties, name, Field.from_address(field))

    def foreign_payload(message: int, attachment: bytes | None, is_ours: bool) -> bytes:
        return read_foreign_payload(calls, c_void_p(message), attachment, is_ours=is_ours)

    def add_context(properties: dict[str, PropertyValue], message: int) -> None:
        if traces is not None:
            traces.add_to(properties, c_void_p(message))

    functions = (
        calls.payload,
        calls.properties,
        calls.next_field,
        calls.message_id,
        calls.destination,
        calls.sent_at,
        calls.correlation_id,
        calls.message_type,
        calls.sequence_number,
        calls.priority,
        calls.delivery_id,
        calls.is_redelivered,
        calls.free,
    )
    return compiled.READER(
        tuple(address_of(each) for each in functions),
        0 if traces is None else address_of(traces.span_id),
        sizeof(Field),
        Message,
        Delivery,
        PUBLISHER_PROPERTY,
        NO_HEADERS,
        DEFAULT_PRIORITY,
        add_rare_property,
        add_context,
        foreign_payload,
        headers_of,
        _fail,
        _refuse,
    ).read


def _fail(code: int, what: str) -> None:
    raise get_last_error_info(code, what)


def _refuse(error: BaseException, delivery_id: int | None = None) -> None:
    if isinstance(error, CLIENT_ERRORS):
        raise UnreadableMessage(str(error), None if delivery_id is None else DeliveryId(delivery_id)) from error
    raise error
