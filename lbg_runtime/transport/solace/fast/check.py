"""Checks, before the fast receive path is used, whether it can be trusted with the installed client.

The path relies on parts of the client that nobody has promised to keep. When a transport is opened, each of them is
checked, and the functions of the C library are tried on a message made from a frame. The first surprise is reported,
and the public path is taken.
"""

import platform
import sys
import sysconfig
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    addressof,
    byref,
    c_char_p,
    c_int,
    c_void_p,
    create_string_buffer,
    py_object,
)
from typing import Any

from lbg_runtime.model.errors import TransportError
from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.model.message import (
    KEY_SEQUENCE_PROPERTY,
    PARTITION_KEY_PROPERTY,
    PUBLISHER_PROPERTY,
    Headers,
    Message,
)
from lbg_runtime.smf.contents import relay_of
from lbg_runtime.transport.solace.fast.calls import Buffer, FastCalls
from lbg_runtime.transport.solace.fast.compiled_reader import reader_of
from lbg_runtime.transport.solace.library import CORE, SOLCLIENT_OK, START_METHOD, PersistentReceiver

KNOWN_CLIENTS = frozenset({"pubsubplus-python-client 1.11.0 / C API 7.33.0.3"})
"""The names that the Python layer and the C library below it give themselves. Both, as the C library need not be the
one that came with the Python layer."""

NEWEST_PYTHON = (3, 15)
"""The newest version of Python on which the tests of the transport have passed: others may not keep thread states."""

_CALLBACK_PARTS = ("_flow_msg_callback_func_routine", "_event_callback_func_routine")
_CALLBACK = CFUNCTYPE(c_int, c_void_p, c_void_p, py_object)

SAMPLE = Message(
    "fast/check",
    b"\0payload\0",
    {PARTITION_KEY_PROPERTY: "k", PUBLISHER_PROPERTY: "p", KEY_SEQUENCE_PROPERTY: 1 << 40, "raw": b"\0", "is": True},
    "id",
    1_700_000_000_123,
    Headers("c", "type", (1 << 63) + 1, 7),
)
"""A message with something of everything that our own publishers send, and more."""
_BARE = Message("fast/check/bare", b"")
"""A message without everything that a message can be without."""
_SAMPLE_ID = (1 << 40) + 1


class _Version(Structure):
    _fields_ = (("version", c_char_p), ("date", c_char_p), ("variant", c_char_p))


def unexpected() -> str | None:
    """Describe the first thing that is not as the fast path needs it, or return None. Takes about a millisecond."""
    return _interpreter() or _client() or _receiver() or _functions()


def _interpreter() -> str | None:
    if platform.python_implementation() != "CPython":
        return f"the interpreter is {platform.python_implementation()}, not CPython"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "this Python is a free-threaded build (no GIL)"
    if sys.version_info[:2] > NEWEST_PYTHON:
        return f"Python {platform.python_version()} is newer than {'.'.join(map(str, NEWEST_PYTHON))}"
    return None


def _client() -> str | None:
    found: Any = POINTER(_Version)()
    if CORE.solClient_version_get(byref(found)) != SOLCLIENT_OK:
        return "the client does not tell its version"
    name = (found.contents.version or b"").decode(errors="replace")
    return None if name in KNOWN_CLIENTS else f"the client is {name!r}"


def _receiver() -> str | None:
    start = getattr(PersistentReceiver, START_METHOD)
    for part in _CALLBACK_PARTS:
        if part not in start.__code__.co_names:
            return f"a receiver starts without {part}"
    # ctypes caches function types: equal signatures share one type.
    if getattr(PersistentReceiver, "msg_callback_func_type", None) is not _CALLBACK:
        return "a message callback has another signature"
    return None


def _functions() -> str | None:
    try:
        calls = FastCalls()
    except AttributeError as error:
        return f"the client or the interpreter lacks a function: {error}"
    read = reader_of(calls)
    for sample in (SAMPLE, _BARE):
        relay = relay_of(sample)
        frame = relay.delivery_prefix(_SAMPLE_ID, 0, 1, redelivered=True) + relay.rest
        try:
            delivery = read(native_message(frame), QueueName("check"), Epoch(0))
        except TransportError as error:
            return f"a message could not be read: {error}"
        if (delivery.message, delivery.delivery_id, delivery.redelivered) != (sample, _SAMPLE_ID, True):
            return "a message was read as something else"
    return None


def native_message(frame: bytes) -> int:
    """Return the address of a native message like the one a flow hands over for this frame; raises `TransportError`.

    The caller frees it.
    """
    memory = create_string_buffer(frame, len(frame))
    buffer, message = Buffer(addressof(memory), len(frame)), c_void_p()
    if CORE.solClient_msg_decodeFromSmf(byref(buffer), byref(message)) != SOLCLIENT_OK or not message.value:
        raise TransportError("the client makes no message of a frame")
    return message.value
