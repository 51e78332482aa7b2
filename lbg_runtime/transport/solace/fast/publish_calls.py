"""The C functions of the fast publish path, called without the client's Python layer around them.

As in `calls`, they come from our own handles on the library that the client has loaded. Functions that only fill a
message keep the interpreter's lock during the call. Functions that send may wait for a lock of the library, which its
network thread may hold while it waits for the interpreter, so they release it.

No argument types are declared, as that would cost as much as the call: arguments are bytes, small integers, and ctypes
objects of the right size.
"""

from ctypes import CDLL, PyDLL, c_uint32
from typing import Any

from lbg_runtime.transport.solace.fast.calls import pin
from lbg_runtime.transport.solace.library import CORE

WOULD_BLOCK = 1
NOT_READY = 3
"""What the library returns instead of `WOULD_BLOCK` while there is no connection."""

PERSISTENT = c_uint32(0x10)
"""For `set_delivery_mode`."""


class PublishCalls:
    """The functions, with the types of their results. Can be made and used on any thread. Raises `AttributeError` if
    the library lacks one of them."""

    def __init__(self) -> None:
        messages = PyDLL(CORE._name, handle=CORE._handle)
        sessions = CDLL(CORE._name, handle=CORE._handle)
        self.alloc: Any = messages["solClient_msg_alloc"]
        self.reset: Any = messages["solClient_msg_reset"]
        self.free: Any = messages["solClient_msg_free"]
        self.set_delivery_mode: Any = messages["solClient_msg_setDeliveryMode"]
        self.set_dmq_eligible: Any = messages["solClient_msg_setDMQEligible"]
        self.set_destination: Any = messages["solClient_msg_setDestination"]
        self.set_payload: Any = messages["solClient_msg_setBinaryAttachment"]
        self.set_message_id: Any = messages["solClient_msg_setApplicationMessageId"]
        self.set_sent_at: Any = messages["solClient_msg_setSenderTimestamp"]
        self.set_correlation_id: Any = messages["solClient_msg_setCorrelationId"]
        self.set_message_type: Any = messages["solClient_msg_setApplicationMsgType"]
        self.set_sequence_number: Any = messages["solClient_msg_setSequenceNumber"]
        self.set_priority: Any = messages["solClient_msg_setPriority"]
        self.set_tag: Any = messages["solClient_msg_setCorrelationTagPtr"]
        self.create_properties: Any = messages["solClient_msg_createUserPropertyMap"]
        self.add_string: Any = messages["solClient_container_addString"]
        self.add_int64: Any = messages["solClient_container_addInt64"]
        self.add_uint64: Any = messages["solClient_container_addUint64"]
        self.add_boolean: Any = messages["solClient_container_addBoolean"]
        self.add_double: Any = messages["solClient_container_addDouble"]
        self.add_bytes: Any = messages["solClient_container_addByteArray"]
        self.add_null: Any = messages["solClient_container_addNull"]
        self.close: Any = messages["solClient_container_closeMapStream"]
        self.send: Any = sessions["solClient_session_sendMultipleMsg"]
        self.pin: Any = pin
