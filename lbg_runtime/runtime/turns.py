"""How one who takes events in batches has itself called."""

import asyncio
from collections.abc import Callable
from contextvars import copy_context


class Turns:
    """Calls of the loop to take what has come, one for all that comes until it is there."""

    def __init__(self, loop: asyncio.AbstractEventLoop, take: Callable[[], None]) -> None:
        self._loop = loop
        self._take = take
        # That of the runner's task, and not of whoever posts.
        self._context = copy_context()
        self._is_asked = False

    def ask(self) -> None:
        """Have it called soon."""
        if not self._is_asked:
            self._is_asked = True
            self._loop.call_soon(self._call, context=self._context)

    def _call(self) -> None:
        self._is_asked = False
        self._take()


def nobody_comes() -> None:
    """Before and after `run`, events wait."""
