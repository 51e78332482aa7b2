"""An asyncio event loop on which waiting takes no time: sleeping jumps the clock to the next deadline.

Only for code whose every wait is a timer of this loop. A loop with no timer, nothing ready and something still awaited
would wait for ever; that is reported as `VirtualTimeStall` instead.
"""

import asyncio
import selectors
from collections.abc import Mapping
from selectors import SelectorKey
from typing import TYPE_CHECKING

from lbg_runtime.model.errors import LbgError

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike


class VirtualTimeStall(LbgError):
    """Every task waits for something that no timer will bring."""


class _JumpingSelector(selectors.BaseSelector):
    """Asks the real selector without waiting, and moves the clock by what the loop was ready to wait."""

    def __init__(self) -> None:
        self._real = selectors.DefaultSelector()
        self.now_s = 0.0

    def register(self, fileobj: "FileDescriptorLike", events: int, data: object = None) -> SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: "FileDescriptorLike") -> SelectorKey:
        return self._real.unregister(fileobj)

    def modify(self, fileobj: "FileDescriptorLike", events: int, data: object = None) -> SelectorKey:
        return self._real.modify(fileobj, events, data)

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        ready = self._real.select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if timeout is None:
            raise VirtualTimeStall("the test waits for something that no timer will bring")
        self.now_s += timeout
        return []

    def close(self) -> None:
        self._real.close()

    def get_map(self) -> "Mapping[FileDescriptorLike, SelectorKey]":
        return self._real.get_map()


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A selector loop whose `time()` starts at 0 and jumps."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Seconds of virtual time since the loop was made."""
        return self._jumping.now_s
