"""The C functions of the fast receive path, called without the client's Python layer around them.

They come from handles of our own on the library that the client has loaded, so that the client's function objects keep
their types. What reads or frees a message keeps the interpreter's lock meanwhile: letting go of it for every field
would wake the client's network thread for every field. What concerns a flow may wait for a lock of the library or
write to a socket, and lets go.

No argument types are declared, which would cost as much as the call: arguments are ctypes objects of the right size.
"""

from collections.abc import Callable
from ctypes import (
    CDLL,
    PyDLL,
    Structure,
    addressof,
    c_bool,
    c_char_p,
    c_int,
    c_uint32,
    c_uint64,
    c_void_p,
    cast,
    py_object,
    pythonapi,
)
from typing import Any

from lbg_runtime.model.ids import DeliveryId
from lbg_runtime.transport.solace.fast import compiled
from lbg_runtime.transport.solace.library import CORE

OK = 0
END = 4
NOT_FOUND = 5

ACCEPTED = c_int(0)
"""Outcome for `settle`."""

NOT_TAKEN = 0
TAKEN = 1
"""Answers of a message callback: whose the message is from then on, and who frees it."""

_INTERPRETER = PyDLL(pythonapi._name, handle=pythonapi._handle)

pin: Any = _INTERPRETER["PyGILState_Ensure"]
"""Has the state of a thread of the client outlive the call from C."""

Accept = Callable[[DeliveryId], int]
"""Answers the library's code."""


class Destination(Structure):
    """Where a message was published to, as C describes it."""

    _fields_ = (("kind", c_int), ("name", c_char_p))


class Buffer(Structure):
    """Where a frame lies, as C describes it."""

    _fields_ = (("address", c_void_p), ("size", c_uint32))


class FastCalls:
    """Made on any thread, used on any. Raises `AttributeError` where the library lacks one of the functions."""

    def __init__(self) -> None:
        messages = PyDLL(CORE._name, handle=CORE._handle)
        flows = CDLL(CORE._name, handle=CORE._handle)
        self.payload: Any = messages["solClient_msg_getBinaryAttachmentPtr"]
        self.xml: Any = messages["solClient_msg_getXmlPtr"]
        self.properties: Any = messages["solClient_msg_getUserPropertyMap"]
        self.next_field: Any = messages["solClient_container_getNextField"]
        self.message_id: Any = messages["solClient_msg_getApplicationMessageId"]
        self.destination: Any = messages["solClient_msg_getDestination"]
        self.sent_at: Any = messages["solClient_msg_getSenderTimestamp"]
        self.delivery_id: Any = messages["solClient_msg_getMsgId"]
        self.is_redelivered: Any = messages["solClient_msg_isRedelivered"]
        # C's boolean is one byte; what stands in the others of a whole int is chance.
        self.is_redelivered.restype = c_bool
        self.free: Any = messages["solClient_msg_free"]
        self.settle: Any = flows["solClient_flow_settleMsg"]
        self.start: Any = flows["solClient_flow_start"]
        self.stop: Any = flows["solClient_flow_stop"]
        self.bytes_at: Any = _INTERPRETER["PyBytes_FromStringAndSize"]
        self.bytes_at.restype = py_object
        self.pin: Any = pin

    def accept_of(self, handle: c_void_p) -> Accept:
        """What settles deliveries of the flow of this handle as accepted; for one thread."""
        settle = self.settle
        if compiled.SETTLER is not None:
            return compiled.SETTLER(address_of(settle), addressof(handle), handle).accept
        value = c_uint64()

        def accept(delivery_id: DeliveryId) -> int:
            value.value = delivery_id
            code: int = settle(handle, value, ACCEPTED)
            return code

        return accept


def address_of(function: Any) -> int:
    """Where a function of C begins."""
    return cast(function, c_void_p).value or 0
