"""Gives the flow runners of a member their turns: one callback of the loop for all that have something to do.

With many queues, a batch seldom has more than one message, so each message pays for a batch: if each runner had a
callback and a journal write of its own, these would cost more than everything else that is done for the message.
"""

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from typing import Protocol

from lbg_runtime.runtime.clock import now_ms


class Taker(Protocol):
    """Takes events in batches, when `Turns` calls it; the flow runners do."""

    def take(self, now_ms: int) -> None:
        """Take the events that have come. Must not raise, except to end the process."""
        ...

    def conclude(self) -> None:
        """Do what comes after the batch's records are written. Must not raise, except to end the process."""
        ...

    def fail(self, error: BaseException) -> None:
        """Called instead of `conclude` if the records could not be written: nothing that depends on them may be
        done."""
        ...


class Turns:
    """One per member, on its loop. In one callback: all batches, then one write of their records, then the conclusions,
    so that a record is with the operating system before its settlement is with the client."""

    def __init__(self, write: Callable[[], None]) -> None:
        """`write`: when it returns, everything that the takers have recorded is with the operating system, or is
        counted as dropped."""
        self._write = write
        self._asked: list[Taker] = []
        self.keep_context()

    def keep_context(self) -> None:
        """From now on, turns run in the context of this call; before it, in that of the creation. So they never run in
        the context of whatever posts an event."""
        self._context = copy_context()

    def ask(self, taker: Taker) -> None:
        """Have the taker called soon. Do not ask again before it is."""
        if not self._asked:
            asyncio.get_running_loop().call_soon(self._call, context=self._context)
        self._asked.append(taker)

    def _call(self) -> None:
        takers, self._asked = self._asked, []
        now = now_ms()
        # Raised only after the turn: the loop goes on running while the member leaves, and that needs every taker.
        exits: list[BaseException] = []
        for taker in takers:
            try:
                taker.take(now)
            except (SystemExit, KeyboardInterrupt) as leaving:
                exits.append(leaving)
        try:
            self._write()
        except BaseException as error:  # noqa: BLE001 - it ends every taker; what must end the process is raised below
            for taker in takers:
                taker.fail(error)
            if not isinstance(error, Exception):
                exits.append(error)
        else:
            for taker in takers:
                try:
                    taker.conclude()
                except (SystemExit, KeyboardInterrupt) as leaving:
                    exits.append(leaving)
        if exits:
            raise exits[0]
