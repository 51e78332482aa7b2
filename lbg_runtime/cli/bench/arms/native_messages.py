"""How many messages the client's C library has out: taken or made, and not yet freed."""

from ctypes import byref, c_int, c_uint32, c_uint64

_IN_USE = c_int(7)
"""The library's statistic of messages that are allocated and not free; found by allocating and freeing some."""


def messages_in_use() -> int:
    """Native messages that have not been freed; loads the client if it is not loaded."""
    from lbg_runtime.transport.solace.library import CORE

    value = c_uint64()
    CORE.solClient_msg_getStat(_IN_USE, c_uint32(0), byref(value))
    return value.value
