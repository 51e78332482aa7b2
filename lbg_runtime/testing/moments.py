"""Moments of virtual time, of which no two are alike."""

import asyncio


class Moments:
    """Nanoseconds on the running loop's clock; what happens at the same time still has an order."""

    def __init__(self) -> None:
        self._last_ns = 0

    def next_ns(self) -> int:
        """The present, later than every moment before."""
        self._last_ns = max(self._last_ns + 1, int(asyncio.get_running_loop().time() * 1e9))
        return self._last_ns
