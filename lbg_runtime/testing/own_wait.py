"""What a test waits for by itself, such as an event that its handler sets: the kit does not know it, but ends it."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

from lbg_runtime.testing.standstill import Reasons
from lbg_runtime.testing.virtual_time import VirtualTimeLoop, VirtualTimeStall

OWN_PATIENCE_S = 86_400.0
"""Virtual time; for a small group it takes half a minute. Without an end, members would beat for ever."""


class OwnWait:
    """Fails a test that waits by itself, without the kit, for more than a day of virtual time.

    Used by a group, on the loop of its test, where other groups may be: what is asked of any of them counts. Ends the
    run of the loop with a `VirtualTimeStall` that says what is stuck in the group, as what the test waits for may never
    come for that.
    """

    def __init__(self, why: Callable[[], Reasons]) -> None:
        self._why = why
        # `running` takes no other.
        self._loop = cast(VirtualTimeLoop, asyncio.get_running_loop())
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Look at the test from now on."""
        self.note()
        self._look_later(self._loop.time())

    def end(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def note(self) -> None:
        """Note that the test asks for something."""
        self._loop.kit_asked_s = self._loop.time()

    @contextmanager
    def held(self) -> Iterator[None]:
        """While the kit waits for the test."""
        self._loop.kit_waits += 1
        try:
            yield
        finally:
            self._loop.kit_waits -= 1
            self.note()

    def _look_later(self, since_s: float) -> None:
        # Behind a sleep of just as long.
        self._timer = self._loop.call_at(since_s + OWN_PATIENCE_S + 1, self._look)

    def _look(self) -> None:
        loop = self._loop
        since_s = loop.time() if loop.kit_waits else loop.kit_asked_s
        if loop.time() - since_s <= OWN_PATIENCE_S:
            self._look_later(since_s)
            return
        reasons = self._why()
        what = f"the test waits for something that has not come within {OWN_PATIENCE_S:g} s"
        stall = VirtualTimeStall("\n  ".join([what + (":" if reasons.lines else ""), *reasons.lines]))
        stall.__cause__ = reasons.error
        loop.stall(stall)
