"""Back-pressure: how many messages, and how many bytes, may be on their way without a confirm."""

import asyncio
from collections import OrderedDict


class UnconfirmedWindow:
    """Room for a bounded number of messages and bytes, granted strictly in the order of the requests.

    Called from the event loop only. A message larger than the whole bound is let through when nothing else is under
    way; otherwise it would wait for ever.
    """

    def __init__(self, max_count: int, max_bytes: int) -> None:
        self.count = 0
        self.size_bytes = 0
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._waiters: OrderedDict[asyncio.Future[None], int] = OrderedDict()
        """The callers in line, with the bytes they ask for. A dictionary, so that any of thousands may leave without a
        search."""
        self._closed = False

    def take(self, size_bytes: int) -> bool:
        """Take room if there is some and nobody waits for it; return whether it did. If not, use `reserve`."""
        if self._waiters or self._closed or not self._has_room(size_bytes):
            return False
        self.count += 1
        self.size_bytes += size_bytes
        return True

    async def reserve(self, size_bytes: int) -> bool:
        """Wait for room and take it; False, with nothing taken, once the window is closed.

        Does not yield to the loop if there is room. A cancelled caller has taken nothing and loses its place. The wait
        has no bound of its own: it lasts as long as an outage does.
        """
        if self._waiters or not self._has_room(size_bytes):
            await self._wait_for_turn(size_bytes)
        if self._closed:
            return False
        self.count += 1
        self.size_bytes += size_bytes
        self._wake_first()
        return True

    def release(self, size_bytes: int) -> None:
        """Give back the room of one message."""
        self.count -= 1
        self.size_bytes -= size_bytes
        self._wake_first()

    def close(self) -> None:
        """Grant no more room; every `reserve` that waits returns False."""
        self._closed = True
        for turn in self._waiters:
            if not turn.done():
                turn.set_result(None)

    async def _wait_for_turn(self, size_bytes: int) -> None:
        if self._closed:
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiters[turn] = size_bytes
        try:
            await turn
        except BaseException:  # also if the caller's coroutine is closed: its place must not stay taken
            del self._waiters[turn]
            self._wake_first()
            raise
        # A woken caller stays at the head of the line until it runs: later callers queue behind it.
        del self._waiters[turn]

    def _wake_first(self) -> None:
        if self._waiters:
            turn, size_bytes = next(iter(self._waiters.items()))
            if not turn.done() and self._has_room(size_bytes):
                turn.set_result(None)

    def _has_room(self, size_bytes: int) -> bool:
        if self.count == 0:
            return True
        return self.count < self._max_count and self.size_bytes + size_bytes <= self._max_bytes
