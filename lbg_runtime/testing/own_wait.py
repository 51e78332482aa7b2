"""What a test waits for by itself, such as an event that its handler sets: the kit does not know it, but ends it."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lbg_runtime.testing.standstill import Reasons
from lbg_runtime.testing.virtual_time import VirtualTimeLoop, VirtualTimeStall

OWN_PATIENCE_S = 86_400.0
"""Virtual time; for a small group it takes half a minute. Without an end, members would beat for ever."""


class OwnWait:
    """Fails a test that waits by itself, without the kit, for more than a day of virtual time.

    Used by a group, on the test's loop. Ends the run of the loop with a `VirtualTimeStall` that says what is stuck in
    the group, as what the test waits for may never come for that.
    """

    def __init__(self, why: Callable[[], Reasons]) -> None:
        self._why = why
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Count from now on, anew if it counts already."""
        self.end()
        # Behind a sleep of just as long.
        self._timer = asyncio.get_running_loop().call_later(OWN_PATIENCE_S + 1, self._fail)

    def end(self) -> None:
        """Count no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """While the kit itself waits for the test."""
        self.end()
        try:
            yield
        finally:
            self.begin()

    def _fail(self) -> None:
        loop, reasons = asyncio.get_running_loop(), self._why()
        what = f"the test waits for something that has not come within {OWN_PATIENCE_S:g} s"
        stall = VirtualTimeStall("\n  ".join([what + (":" if reasons.lines else ""), *reasons.lines]))
        stall.__cause__ = reasons.error
        if isinstance(loop, VirtualTimeLoop):
            loop.stall(stall)
