"""What a process holds: memory, and messages of the client's C library."""

import resource
from ctypes import byref, c_int, c_uint32, c_uint64
from pathlib import Path

_IN_USE = c_int(7)
"""The library's statistic of messages that are allocated and not free; found by allocating and freeing some."""


def memory_bytes() -> int:
    """Resident memory of this process now; the peak would hide every leak behind an earlier need for more."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()


def messages_in_use() -> int:
    """Native messages that were taken or made and have not been freed; loads the client if it is not loaded."""
    from lbg_runtime.transport.solace.library import CORE

    value = c_uint64()
    CORE.solClient_msg_getStat(_IN_USE, c_uint32(0), byref(value))
    return value.value
