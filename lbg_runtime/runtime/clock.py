"""The clocks of a member's shell; pure rooms get their readings."""

import asyncio
import sys
import time
from collections.abc import Callable
from functools import partial

if sys.platform == "linux":
    since_boot_ns = partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME)
    """A monotonic clock that goes on while the host sleeps, for code that must notice such a sleep. Other systems have
    none.

    Everything else goes by `time.monotonic_ns`, which stands still during a sleep. A `partial`, as it is faster than a
    function of ours and called for every message."""
else:
    since_boot_ns = time.monotonic_ns


def now_ms() -> int:
    """The event loop's monotonic clock, for machines and deadlines; virtual in tests."""
    return round(asyncio.get_running_loop().time() * 1_000)


def slept_s() -> float:
    """How long the host has slept since it started, in seconds, as far as that is known. Only differences between two
    calls mean something."""
    # In this order, so that a stop of the process in between adds to the result and does not reduce it.
    awake_ns = time.monotonic_ns()
    return (since_boot_ns() - awake_ns) / 1e9


def steady_s() -> float:
    """The clock of the running loop, in seconds, plus the time that the host has slept, in which that stands still."""
    return asyncio.get_running_loop().time() + slept_s()


class DeadlineTimer:
    """Has the event loop call back when `now_ms` reaches the deadline that was set last. Used on the loop's thread."""

    __slots__ = ("_callback", "_deadline_ms", "_handle")

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._deadline_ms: int | None = None
        self._handle: asyncio.TimerHandle | None = None

    @property
    def is_set(self) -> bool:
        """Whether it will call back."""
        return self._handle is not None

    def set(self, deadline_ms: int | None) -> None:
        """Call back at this deadline, instead of at one set before; None for never."""
        if deadline_ms == self._deadline_ms:
            return
        self.cancel()
        if deadline_ms is not None:
            self._deadline_ms = deadline_ms
            self._handle = asyncio.get_running_loop().call_at(deadline_ms / 1_000, self._ring)

    def cancel(self) -> None:
        """Call back no more until the next `set`."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = self._deadline_ms = None

    def _ring(self) -> None:
        self._handle = self._deadline_ms = None
        self._callback()


def wall_us() -> int:
    """Wall clock, microseconds since the epoch; for records only."""
    return time.time_ns() // 1_000
