"""The way from the client's threads onto the event loop: a deque, and one wake-up for what gathers meanwhile.

Only messages that are gathered in C take another way (fast/gathering.py), which keeps the order of this one.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

Item = TypeVar("Item")

QUANTUM = 256
"""How many items are handled in one turn of the loop, so that a flood does not starve the handlers it feeds."""

FULL = 64
"""If so many items wait, a thread that can wait does so: the loop is busy, and more would only pile up."""


class Inbox:
    """Calls the takers of posted items on the loop's thread, in the order of posting.

    `post` may be called from any thread, never blocks, and raises only `MemoryError`; everything else belongs to the
    loop's thread. No lock is needed: deque operations are atomic, and the flag is cleared before items are taken, so
    that every posted item is either seen by the running drain or causes the next one.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # Each item has the type that its taker and its drop function take, as `post` demands; the deque mixes types.
        self._items: deque[tuple[Callable[[Any], None], Any, Callable[[Any], None] | None]] = deque()
        self._armed = False
        self._closed = False
        self._is_awaited = False
        self._is_stuck = False
        """Whether the loop has taken nothing since a thread last waited for it in vain."""
        self._has_room = threading.Event()
        self._at_close: deque[Callable[[], None]] = deque()

    @property
    def is_empty(self) -> bool:
        """Whether no item waits to be taken."""
        return not self._items

    def at_close(self, end: Callable[[], None]) -> None:
        """Have `end()` called once when the inbox is closed: on the loop's thread or, if the loop was closed before, on
        any thread."""
        self._at_close.append(end)

    def post(self, take: Callable[[Item], None], item: Item, drop: Callable[[Item], None] | None = None) -> bool:
        """Have `take(item)` called on the loop or, if the inbox is closed by then, `drop(item)` on any thread.

        One of the two is called, once; without `drop`, the item is forgotten. Returns whether there is room for another
        item; this one is taken in any case.
        """
        self._items.append((take, item, drop))
        # In this order: if the item came in after `close` emptied the deque, that is seen here.
        if self._closed:
            self._drop_all()
        elif not self._armed:
            self._armed = True
            try:
                self._loop.call_soon_threadsafe(self._drain)
            except RuntimeError:
                # The loop was closed before the client's threads ended: there is nobody left to notify.
                self.close()
            except MemoryError:
                # The item stays in the deque, and the next `post` tries again.
                self._armed = False
                raise
        return len(self._items) < FULL

    def wait_for_room(self, timeout_s: float) -> bool:
        """Block until the loop has taken the waiting items, or the inbox is closed; False if that takes too long.

        After that, further calls return False at once until the loop moves. Never called on the loop's thread.
        """
        if self._is_stuck:
            return False
        self._has_room.clear()
        self._is_awaited = True
        # Checked again now that the flag is visible: either this sees that the loop is done, or the loop sees the flag.
        is_full = len(self._items) >= FULL and not self._closed
        self._is_stuck = is_full and not self._has_room.wait(timeout_s)
        self._is_awaited = False
        return not self._is_stuck

    def close(self) -> None:
        """Drop all items, those waiting and those still to come."""
        self._closed = True
        self._has_room.set()
        # Several threads may be here at once: an item belongs to the one that takes it out.
        with suppress(IndexError):
            while True:
                self._at_close.popleft()()
        self._drop_all()

    def _drop_all(self) -> None:
        with suppress(IndexError):
            while True:
                _, item, drop = self._items.popleft()
                if drop is not None:
                    drop(item)

    def _drain(self) -> None:
        self._armed = False
        self._is_stuck = False
        items = self._items
        try:
            for _ in range(min(len(items), QUANTUM)):
                if self._closed:
                    self._drop_all()
                    return
                take, item, _ = items.popleft()
                take(item)
        finally:
            if self._is_awaited and len(items) < FULL:
                self._has_room.set()
            if items and not self._armed:
                self._loop.call_soon(self._drain)
                self._armed = True
