"""The C functions of the fast receive path, called without the client's Python layer around them.

They come from our own handles on the library that the client has loaded, so that the client's function objects keep
their types. Functions that read or free a message keep the interpreter's lock during the call: to release it for every
field would wake the client's network thread for every field. Functions that act on a flow release the interpreter's
lock, as they may wait for a lock of the library or write to a socket.

No argument types are declared, as that would cost as much as the call: arguments are ctypes objects of the right size.
"""

from collections.abc import Callable
from ctypes import (
    CDLL,
    PyDLL,
    Structure,
    addressof,
    c_bool,
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

ACCEPTED = c_int(0)
"""The outcome for `settle`."""

_INTERPRETER = PyDLL(pythonapi._name, handle=pythonapi._handle)

pin: Any = _INTERPRETER["PyGILState_Ensure"]
"""Makes the interpreter's state for a client thread outlive the call from C."""

Accept = Callable[[DeliveryId], int]
"""Returns the library's code."""


class Buffer(Structure):
    """The C structure for the place of a frame in memory."""

    _fields_ = (("address", c_void_p), ("size", c_uint32))


class FastCalls:
    """The functions, with the types of their results. Can be made and used on any thread. Raises `AttributeError` if
    the library lacks one of them."""

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
        self.correlation_id: Any = messages["solClient_msg_getCorrelationId"]
        self.message_type: Any = messages["solClient_msg_getApplicationMsgType"]
        self.sequence_number: Any = messages["solClient_msg_getSequenceNumber"]
        self.priority: Any = messages["solClient_msg_getPriority"]
        self.delivery_id: Any = messages["solClient_msg_getMsgId"]
        self.is_redelivered: Any = messages["solClient_msg_isRedelivered"]
        # C's boolean is one byte; the other bytes of an int would be arbitrary.
        self.is_redelivered.restype = c_bool
        self.free: Any = messages["solClient_msg_free"]
        self.settle: Any = flows["solClient_flow_settleMsg"]
        self.start: Any = flows["solClient_flow_start"]
        self.stop: Any = flows["solClient_flow_stop"]
        self.bytes_at: Any = _INTERPRETER["PyBytes_FromStringAndSize"]
        self.bytes_at.restype = py_object
        self.pin: Any = pin

    def accept_of(self, handle: c_void_p) -> Accept:
        """Make a function that settles deliveries of this handle's flow as accepted; for one thread."""
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
    """The address of a C function."""
    return cast(function, c_void_p).value or 0
