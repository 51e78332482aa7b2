"""How the flow runners of a member have themselves called: one call of the loop for all that something has come for.

With many queues there are hardly more messages than batches, so what comes once a batch is paid once a message: a call
of the loop and a write of the journal of each runner's own cost more than all that is done for the message.
"""

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from typing import Protocol

from lbg_runtime.runtime.clock import now_ms


class Taker(Protocol):
    """One who takes events in batches."""

    def take(self, now_ms: int) -> None:
        """Take what has come. Must not raise, but to end the process."""
        ...

    def conclude(self) -> None:
        """Do what goes behind the records of the batch. Must not raise either."""
        ...

    def fail(self, error: BaseException) -> None:
        """The records could not be written, and what goes behind them must not be done."""
        ...


class Turns:
    """One per member, on its loop. All batches of one call first, then one write of their records, then what goes
    behind: so a record is with the operating system before its settlement is with the client."""

    def __init__(self, write: Callable[[], None]) -> None:
        """`write`: on return, what the takers have recorded is with the operating system, or counted as dropped."""
        self._write = write
        # That of whoever makes it, and not of whoever posts.
        self._context = copy_context()
        self._asked: list[Taker] = []

    def ask(self, taker: Taker) -> None:
        """Have it called soon. Not twice before it is."""
        if not self._asked:
            asyncio.get_running_loop().call_soon(self._call, context=self._context)
        self._asked.append(taker)

    def _call(self) -> None:
        takers, self._asked = self._asked, []
        now = now_ms()
        for taker in takers:
            taker.take(now)
        try:
            self._write()
        except Exception as error:  # noqa: BLE001 - each of them ends with it
            for taker in takers:
                taker.fail(error)
            return
        for taker in takers:
            taker.conclude()
