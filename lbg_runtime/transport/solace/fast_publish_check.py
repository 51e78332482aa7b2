"""Whether the installed client is as the fast publish path needs it, and how the sessions of a transport publish.

`fast_check` has looked at the interpreter and at the client's version before this. Here the session's event callback is
tried on a session that is none, and messages are written and looked at as they would go over the wire.
"""

from ctypes import Structure, byref, c_uint32, c_void_p, string_at
from functools import partial
from types import SimpleNamespace
from typing import Any

import structlog

from lbg_runtime.config.settings import ReceivePathChoice
from lbg_runtime.model.errors import ConfigError, ProtocolError, PublishRefused
from lbg_runtime.model.message import KEY_SEQUENCE_PROPERTY, PARTITION_KEY_PROPERTY, PUBLISHER_PROPERTY, Message
from lbg_runtime.smf.contents import message_of
from lbg_runtime.smf.frame import DEAD_MESSAGE_ELIGIBLE, ParameterKind, decode_frame
from lbg_runtime.smf.message import PERSISTENT, read_published
from lbg_runtime.transport.solace.fast_publish import ACKNOWLEDGED, FastPublisher
from lbg_runtime.transport.solace.fast_publish_calls import OK, PublishCalls
from lbg_runtime.transport.solace.fast_publish_events import CALLBACK_TYPE, HANDLED, heard_callback
from lbg_runtime.transport.solace.fast_publish_writer import message_writer
from lbg_runtime.transport.solace.library import CORE, ClientSession
from lbg_runtime.transport.solace.publisher import MakePublisher, PublicPublisher

_MAKE_CALLBACKS = "_SolaceSession__create_session_func_info"
_FULL = Message(
    "fast/check",
    b"\0payload\0",
    {PARTITION_KEY_PROPERTY: "k", PUBLISHER_PROPERTY: "p", KEY_SEQUENCE_PROPERTY: 1 << 40, "raw": b"\0", "is": True},
    "id",
    1_700_000_000_123,
)
_BARE = Message("fast/check/again", b"")

_log = structlog.get_logger(__name__)


class _Buffer(Structure):
    _fields_ = (("address", c_void_p), ("size", c_uint32))


def choose_publisher(choice: ReceivePathChoice, *, receives_fast: bool) -> MakePublisher:
    """How the sessions of one transport publish, for its loop alone; raises `ConfigError` where `fast` is impossible.

    What keeps a transport from receiving by the fast path, keeps it from publishing by it; that has been said by then.
    """
    if not receives_fast:
        return PublicPublisher
    surprise = unexpected()
    if surprise is None:
        calls = PublishCalls()
        return partial(FastPublisher, calls, message_writer(calls))
    if choice is ReceivePathChoice.FAST:
        raise ConfigError("transport.receive_path", f"fast, and {surprise}", "auto or public with this client")
    _log.warning("publish_path_is_public", reason=surprise)
    return PublicPublisher


def unexpected() -> str | None:
    """The first thing that is not as the fast path needs it, in words; None where all is. Takes about a millisecond."""
    for look in (_session, _functions):
        found = look()
        if found is not None:
            return found
    return None


def _session() -> str | None:
    if not isinstance(getattr(ClientSession, "session_pointer", None), property):
        return "a session does not show its native one"
    heard: list[tuple[int, int, int]] = []
    passed_on: list[Any] = []
    try:
        return _try_callback(heard, passed_on)
    except (AttributeError, TypeError, IndexError) as error:
        return f"a session's event callback is made in another way: {error}"


def _try_callback(heard: list[tuple[int, int, int]], passed_on: list[Any]) -> str | None:
    """Have a session that is none make its callbacks, and call the one for events as C would."""
    its_type = getattr(ClientSession, CALLBACK_TYPE)

    def hear(code: int, response_code: int, tag: int) -> bool:
        heard.append((code, response_code, tag))
        return code == ACKNOWLEDGED

    def routine(_session: Any, info: Any, _user: Any) -> int:
        passed_on.append((info.contents.session_event, info.contents.correlation_p))
        return HANDLED

    stand_in = SimpleNamespace(
        _event_callback=None,
        _msg_callback=None,
        _msg_callback_func_type=ClientSession._msg_callback_func_type,
        _SolaceSession__service_event_callback_routine=routine,
        _SolaceSession__service_msg_rx_callback_routine=routine,
    )
    setattr(stand_in, CALLBACK_TYPE, lambda inner: heard_callback(its_type, inner, hear))
    callbacks = getattr(ClientSession, _MAKE_CALLBACKS)(stand_in)
    event_type = its_type._argtypes_[1]._type_
    for code in (ACKNOWLEDGED, ACKNOWLEDGED + 5):
        event = event_type(session_event=code, response_code=200, info_p=b"", correlation_p=1 << 40)
        callbacks.event_info.callback_p(None, byref(event), stand_in)
    if heard != [(ACKNOWLEDGED, 200, 1 << 40), (ACKNOWLEDGED + 5, 200, 1 << 40)]:
        return "a session's events are told as something else"
    if passed_on != [(ACKNOWLEDGED + 5, 1 << 40)]:
        return "a session's events do not reach the client as they are"
    return None


def _functions() -> str | None:
    try:
        calls = PublishCalls()
        encode, free_block = CORE.solClient_msg_encodeToSMF, CORE.solClient_datablock_free
    except AttributeError as error:
        return f"the client or the interpreter lacks a function: {error}"
    write = message_writer(calls)
    native = c_void_p()
    if calls.alloc(byref(native)) != OK:
        return "the client makes no message"
    try:
        # Twice the same native message, as it is used: nothing of the first may remain in the second.
        for message in (_FULL, _BARE):
            write(native, message, 0)
            buffer, block = _Buffer(), c_void_p()
            if encode(native, byref(buffer), byref(block)) != OK:
                return "the client makes no frame of a message"
            try:
                if not _is_frame_of(message, string_at(buffer.address, buffer.size)):
                    return "a message was written as something else"
            finally:
                free_block(byref(block))
    except PublishRefused as refusal:
        return f"a message could not be written: {refusal.reason}"
    except ProtocolError as error:
        return f"a message was written as something else: {error}"
    finally:
        calls.free(byref(native))
    return None


def _is_frame_of(message: Message, raw: bytes) -> bool:
    frame, published = decode_frame(raw), read_published(raw)
    is_persistent = frame.find(ParameterKind.DELIVERY_MODE) == bytes((PERSISTENT,))
    is_dmq_eligible = bool(frame.flags & DEAD_MESSAGE_ELIGIBLE)
    is_same = message_of(published.topic, published.relay) == message
    return published.assured and is_persistent and is_dmq_eligible and is_same
