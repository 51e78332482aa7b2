"""The clocks of a member's shell; pure rooms get their readings."""

import asyncio
import time
from collections.abc import Callable


def now_ms() -> int:
    """The event loop's monotonic clock, for machines and deadlines; virtual in tests."""
    return round(asyncio.get_running_loop().time() * 1_000)


def call_at_ms(deadline_ms: int, callback: Callable[[], None]) -> asyncio.TimerHandle:
    """Have the event loop call back when `now_ms` reaches the deadline."""
    return asyncio.get_running_loop().call_at(deadline_ms / 1_000, callback)


def wall_us() -> int:
    """Wall clock, microseconds since the epoch; for records only."""
    return time.time_ns() // 1_000
