"""Moments of virtual time, no two of which are equal."""

import asyncio
from bisect import bisect_right
from time import monotonic_ns


class Moments:
    """Nanoseconds on the running loop's clock; what happens at the same time still has an order."""

    def __init__(self) -> None:
        self._noted_ns = [0]
        self._mono_ns = [0]
        """When each was noted, on the process's real clock."""

    def next_ns(self) -> int:
        """The present, later than every earlier moment."""
        self._noted_ns.append(max(self._noted_ns[-1] + 1, int(asyncio.get_running_loop().time() * 1e9)))
        self._mono_ns.append(monotonic_ns())
        return self._noted_ns[-1]

    def at(self, mono_ns: int) -> int:
        """The last moment noted up to `mono_ns` on the process's real clock; those noted later are later."""
        return self._noted_ns[bisect_right(self._mono_ns, mono_ns) - 1]
