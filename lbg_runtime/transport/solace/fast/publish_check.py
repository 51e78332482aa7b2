"""Checks, before the fast publish path is used, whether it can be trusted with the installed client.

`check` has checked the interpreter and the client's version before this. Here a session is built and given events, and
messages are written and examined as they would go over the wire.
"""

from ctypes import byref, c_void_p, string_at
from typing import Any

from lbg_runtime.model.errors import ProtocolError, PublishRefused
from lbg_runtime.model.message import (
    KEY_SEQUENCE_PROPERTY,
    PARTITION_KEY_PROPERTY,
    PUBLISHER_PROPERTY,
    Headers,
    Message,
)
from lbg_runtime.smf.contents import message_of
from lbg_runtime.smf.frame import DEAD_MESSAGE_ELIGIBLE, ParameterKind, decode_frame
from lbg_runtime.smf.message import PERSISTENT, read_published
from lbg_runtime.transport.solace import native
from lbg_runtime.transport.solace.errors import subcode_and_reason
from lbg_runtime.transport.solace.fast.calls import Buffer
from lbg_runtime.transport.solace.fast.check import SAMPLE
from lbg_runtime.transport.solace.fast.compiled_writer import writer_of
from lbg_runtime.transport.solace.fast.publish import ACKNOWLEDGED, WINDOW
from lbg_runtime.transport.solace.fast.publish_calls import PublishCalls
from lbg_runtime.transport.solace.fast.publish_session import CONFIRM_MODE, MANY_AT_ONCE, build_heard
from lbg_runtime.transport.solace.library import CLIENT_ERRORS, CORE, SOLCLIENT_OK, MessagingService
from lbg_runtime.transport.solace.settings import SolaceSettings

_NOWHERE = SolaceSettings(hosts=("tcp://127.0.0.1:1",), client_name="check")
_WINDOW_SIZE = "SESSION_PUB_WINDOW_SIZE"
_CAN_SEND = 11
"""An event that the client merely notes."""
_USUAL = Message(
    "fast/check/usual",
    b"\0payload\0",
    {PARTITION_KEY_PROPERTY: "k", PUBLISHER_PROPERTY: "p", KEY_SEQUENCE_PROPERTY: 1 << 40},
    "id",
    1_700_000_000_123,
    Headers("c", "type", 1 << 40, 7),
)
"""A message with the stamps of our own publishers, and with headers."""
_BARE = Message("fast/check/again", b"")


def unexpected() -> str | None:
    """Describe the first thing that is not as the fast path needs it, or return None. Takes about a millisecond."""
    return _session() or _functions()


def _session() -> str | None:
    """Build a session, which is never connected, and have it report events as C would."""
    heard: list[tuple[int, int, int]] = []

    def hear(code: int, response_code: int, tag: int) -> bool:
        heard.append((code, response_code, tag))
        return code == ACKNOWLEDGED

    try:
        service = build_heard(MessagingService.builder().from_properties(_NOWHERE.properties()), hear)
        try:
            return _try_session(service.session, heard)
        finally:
            native.release(service)
    except (*CLIENT_ERRORS, AttributeError, TypeError, ValueError) as error:
        return f"a session is made in another way: {subcode_and_reason(error)[1]}"


def _try_session(session: Any, heard: list[tuple[int, int, int]]) -> str | None:
    if session.get_session_property(CONFIRM_MODE) != MANY_AT_ONCE:
        return "a session tells of every confirm"
    if int(session.get_session_property(_WINDOW_SIZE)) != WINDOW:
        return f"a session keeps other than {WINDOW} messages unconfirmed"
    if not session.session_pointer:
        return "a session does not show its native one"
    # Taken from this session's callback, not from the class: there, the type may be replaced at this moment, for a
    # session that is built on another thread.
    event_type = type(session._event_callback)._argtypes_[1]._type_
    # The client reads what a tag points to, so an event passed on to it has none.
    for code, tag in ((ACKNOWLEDGED, 1 << 40), (_CAN_SEND, None)):
        event = event_type(session_event=code, response_code=200, info_p=b"", correlation_p=tag)
        has_passed_on = session.can_send_received.is_set()
        session._event_callback(None, byref(event), session)
    if heard != [(ACKNOWLEDGED, 200, 1 << 40), (_CAN_SEND, 200, 0)]:
        return "a session's events are told as something else"
    if has_passed_on or not session.can_send_received.is_set():
        return "a session's events do not reach the client as they should"
    return None


def _functions() -> str | None:
    try:
        calls = PublishCalls()
        encode, free_block = CORE.solClient_msg_encodeToSMF, CORE.solClient_datablock_free
    except AttributeError as error:
        return f"the client or the interpreter lacks a function: {error}"
    write = writer_of(calls)
    pointer = c_void_p()
    if calls.alloc(byref(pointer)) != SOLCLIENT_OK:
        return "the client makes no message"
    try:
        # The same native message each time, as in real use: nothing of one message may remain in the next.
        for message in (SAMPLE, _USUAL, _BARE):
            write(pointer, message, 0)
            buffer, block = Buffer(), c_void_p()
            if encode(pointer, byref(buffer), byref(block)) != SOLCLIENT_OK:
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
        calls.free(byref(pointer))
    return None


def _is_frame_of(message: Message, raw: bytes) -> bool:
    frame, published = decode_frame(raw), read_published(raw)
    is_persistent = frame.find(ParameterKind.DELIVERY_MODE) == bytes((PERSISTENT,))
    is_dmq_eligible = bool(frame.flags & DEAD_MESSAGE_ELIGIBLE)
    is_same = message_of(published.topic, published.relay) == message
    return published.assured and is_persistent and is_dmq_eligible and is_same
