"""What the group has not handled yet, read from the broker for all who ask at about the same time."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from lbg_runtime.admin.backlog import Backlog
from lbg_runtime.model.errors import SempError


@dataclass(frozen=True, slots=True)
class GroupBacklog:
    """A backlog, as the broker told it."""

    backlog: Backlog
    has_records: bool
    """Whether it was read during a re-striping: then its oldest messages are records."""


class KeptBacklog:
    """Reads a backlog at most once in `every_s`, however many ask; one that could not be read is kept as long."""

    def __init__(self, read: Callable[[], Awaitable[GroupBacklog]], every_s: float) -> None:
        self._read = read
        self._every_s = every_s
        self._found: GroupBacklog | SempError | None = None
        self._found_at_s = 0.0
        self._reading = asyncio.Lock()

    async def get(self) -> GroupBacklog:
        """The newest one. Raises `SempError` if the broker did not say, or not in time, and what else `read` raises."""
        loop = asyncio.get_running_loop()
        async with self._reading:
            if self._found is None or loop.time() - self._found_at_s >= self._every_s:
                try:
                    self._found = await self._read()
                except SempError as error:
                    # Kept as well: those who wait here must not ask a broker that is away again, one after the other.
                    self._found = error
                self._found_at_s = loop.time()
        if isinstance(self._found, SempError):
            # Each time with a traceback of its own, or it would grow with every asker.
            raise self._found.with_traceback(None)
        return self._found
