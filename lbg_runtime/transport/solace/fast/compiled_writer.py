"""The C writer of the fast publish path (_writer.c), and the choice between it and writer.py.

Both give the same result for every message: rare ones, and those that cannot be sent, are written again in Python.
"""

from ctypes import c_void_p

from lbg_runtime.model.errors import InvariantViolated
from lbg_runtime.model.message import NO_HEADERS, Message
from lbg_runtime.model.topic import LARGEST_TOPIC_BYTES
from lbg_runtime.transport.solace.fast import compiled
from lbg_runtime.transport.solace.fast.calls import address_of
from lbg_runtime.transport.solace.fast.publish_calls import PERSISTENT, PublishCalls
from lbg_runtime.transport.solace.fast.writer import TAG_BYTES, WriteMessage, message_writer
from lbg_runtime.transport.solace.trace_context import TraceContexts


def writer_of(calls: PublishCalls, traces: TraceContexts | None = None) -> WriteMessage:
    """The fastest writer available; for one thread. `traces`: None if no message is to have the vendor's context."""
    write = message_writer(calls) if compiled.WRITER is None else compiled_writer(calls)
    if traces is None:
        return write

    def write_traced(native: c_void_p, message: Message, address: int) -> None:
        write(native, message, address)
        traces.write(native, message.properties)

    return write_traced


def compiled_writer(calls: PublishCalls) -> WriteMessage:
    """Like `message_writer` of writer.py. Raises `InvariantViolated` if nothing was compiled."""
    if compiled.WRITER is None:
        raise InvariantViolated("a compiled writer was asked for, and nothing was compiled")
    functions = (
        calls.reset,
        calls.set_delivery_mode,
        calls.set_dmq_eligible,
        calls.set_destination,
        calls.set_payload,
        calls.set_message_id,
        calls.set_sent_at,
        calls.create_properties,
        calls.add_string,
        calls.add_int64,
        calls.close,
        calls.set_tag,
        calls.set_correlation_id,
        calls.set_message_type,
        calls.set_sequence_number,
        calls.set_priority,
    )
    addresses = tuple(address_of(each) for each in functions)
    write_usual = compiled.WRITER(addresses, PERSISTENT.value, TAG_BYTES, LARGEST_TOPIC_BYTES, NO_HEADERS).write
    write_any = message_writer(calls)

    def write(native: c_void_p, message: Message, address: int) -> None:
        if not write_usual(native.value or 0, message, address):
            write_any(native, message, address)

    return write
