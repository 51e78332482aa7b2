"""The one way from the client's threads onto the event loop: a deque and one wake-up for all that gathers meanwhile."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

Item = TypeVar("Item")

QUANTUM = 256
"""Items handled in one turn of the loop, so that a flood does not starve the handlers it feeds."""


class Inbox:
    """Calls the takers of posted items on the loop's thread, in the order they were posted.

    `post` may be called from any thread and never blocks or raises; everything else belongs to the loop's thread. No
    lock is needed: deque operations are atomic, and the flag is cleared before items are taken, so that whatever is
    posted is either seen by the running drain or causes the next one.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # An item and its taker have one type, which `post` checks; the deque mixes them.
        self._items: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._armed = False
        self._closed = False

    def post(self, take: Callable[[Item], None], item: Item) -> None:
        """Have `take(item)` called on the loop. Dropped once the inbox or its loop is closed."""
        if self._closed:
            return
        self._items.append((take, item))
        if not self._armed:
            self._armed = True
            try:
                self._loop.call_soon_threadsafe(self._drain)
            except RuntimeError:
                # The loop was closed before the client's threads ended: nobody is left to tell.
                self._closed = True
                self._items.clear()

    def close(self) -> None:
        """Drop what is there and what still comes."""
        self._closed = True
        self._items.clear()

    def _drain(self) -> None:
        self._armed = False
        try:
            for _ in range(min(len(self._items), QUANTUM)):
                take, item = self._items.popleft()
                take(item)
                if self._closed:
                    return
        finally:
            if self._items and not self._armed:
                self._armed = True
                self._loop.call_soon(self._drain)
