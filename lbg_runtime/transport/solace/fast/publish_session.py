"""Builds a client session that reports its events to us first, and many confirms with one event.

The client's Python layer spends more time on each event than everything else takes. A session makes two things when its
service is built: its event callback, from the function type that its class holds, and its native properties, with a
method of its class. While a service of ours is being built, we replace both: the session gets a callback around its
own, and one more property.

With that property the library reports only the last of the messages that one frame of the broker confirms, instead of
every one: they are confirmed in the order in which they were sent.
"""

import threading
from collections.abc import Callable
from ctypes import CFUNCTYPE, c_int, c_void_p, cast, pointer
from typing import Any

from lbg_runtime.transport.solace.library import ClientSession

HANDLED = 0
"""What an event callback returns."""

CALLBACK_TYPE = "_event_callback_func_type"
MAKE_PROPERTIES = "_SolaceSession__prepare_session_props"
"""The names of the two attributes of the session's class."""

CONFIRM_MODE = "SESSION_ACK_EVENT_MODE"
MANY_AT_ONCE = "SESSION_ACK_EVENT_MODE_WINDOWED"

Hear = Callable[[int, int, int], bool]
"""Takes an event's code, response code and correlation tag, on the network thread; says whether it was for us.

It must neither raise nor block. Events that were not meant for us go to the client.
"""

_HeardCallback = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p)
"""To C, the same as the client's type; but the event comes as an address, at a third of the cost of the client's
object."""

_building = threading.Lock()


def build_heard(builder: Any, hear: Hear) -> Any:
    """Build a service whose session reports each event to `hear` first; raises the client's errors."""
    # Other threads may build services meanwhile: those must get what they would have got.
    thread = threading.get_ident()
    with _building:
        its_type, make_its_properties = getattr(ClientSession, CALLBACK_TYPE), getattr(ClientSession, MAKE_PROPERTIES)

        def make_callback(routine: Any) -> Any:
            return heard_callback(its_type, routine, hear) if threading.get_ident() == thread else its_type(routine)

        def make_properties(session: Any, config: Any) -> Any:
            properties = make_its_properties(session, config)
            if threading.get_ident() == thread:
                add_confirm_mode(properties)
            return properties

        setattr(ClientSession, CALLBACK_TYPE, staticmethod(make_callback))
        setattr(ClientSession, MAKE_PROPERTIES, make_properties)
        try:
            return builder.build()
        finally:
            setattr(ClientSession, CALLBACK_TYPE, its_type)
            setattr(ClientSession, MAKE_PROPERTIES, make_its_properties)


def heard_callback(its_type: Any, routine: Any, hear: Hear) -> Any:
    """Make a callback of the client's type that keeps everything it needs alive."""
    event_at = its_type._argtypes_[1]._type_.from_address

    def on_event(session: Any, address: int, user: Any) -> Any:
        event = event_at(address)
        if hear(event.session_event, event.response_code, event.correlation_p or 0):
            return HANDLED
        return routine(session, pointer(event), user)

    return cast(_HeardCallback(on_event), its_type)


def add_confirm_mode(properties: Any) -> None:
    """Add the property to an array of names and values, which ends at the first missing name; raises `ValueError`."""
    end = list(properties).index(None)
    if len(properties) < end + 3:
        raise ValueError("the session's properties leave no room")
    properties[end : end + 2] = [CONFIRM_MODE.encode(), MANY_AT_ONCE.encode()]
