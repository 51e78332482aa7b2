"""Hearing a session's events before the client's Python layer does, which takes longer for each than all the rest.

A session makes its event callback once, when its service is built, of the function type that its class holds. For as
long as that takes, what stands there is ours, and the session is given a callback of ours around its own.
"""

import threading
from collections.abc import Callable
from ctypes import CFUNCTYPE, c_int, c_void_p, cast, pointer
from typing import Any

from lbg_runtime.transport.solace.library import ClientSession

HANDLED = 0
"""What an event callback answers."""

CALLBACK_TYPE = "_event_callback_func_type"
"""The attribute of the session's class."""

Hear = Callable[[int, int, int], bool]
"""Takes code, response code and correlation tag of an event, on the network thread; whether it was meant for us.

It must neither raise nor block. What was not meant for us goes to the client.
"""

_HeardCallback = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p)
"""As the client's, for C; but the event comes as an address: a third of the price of what the client makes of it."""

_building = threading.Lock()


def build_heard(builder: Any, hear: Hear) -> Any:
    """Build a service whose session tells `hear` of each event first; raises the client's errors."""
    # Others may build services of their own meanwhile, on other threads.
    thread = threading.get_ident()
    with _building:
        its_type = getattr(ClientSession, CALLBACK_TYPE)

        def make(routine: Any) -> Any:
            return heard_callback(its_type, routine, hear) if threading.get_ident() == thread else its_type(routine)

        setattr(ClientSession, CALLBACK_TYPE, staticmethod(make))
        try:
            return builder.build()
        finally:
            setattr(ClientSession, CALLBACK_TYPE, its_type)


def heard_callback(its_type: Any, routine: Any, hear: Hear) -> Any:
    """A callback of the client's type, which keeps all that it needs."""
    event_at = its_type._argtypes_[1]._type_.from_address

    def on_event(session: Any, address: int, user: Any) -> Any:
        event = event_at(address)
        if hear(event.session_event, event.response_code, event.correlation_p or 0):
            return HANDLED
        return routine(session, pointer(event), user)

    return cast(_HeardCallback(on_event), its_type)
