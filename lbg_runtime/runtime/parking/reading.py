"""Reads a parking queue from outside, to an end that traffic cannot put off.

A broker does not say where a queue ends, and messages may be parked so often that a reader never meets a pause. So a
reader that has met none puts a mark into the queue. When that comes, everything that was there when the reading began
has come. A mark is a small filler (`room.py`) with a name of its own. It means nothing to an owner, which settles it at
once, perhaps before the reader gets there; then a later mark ends the reading. The time between two marks doubles, so
that only a few are left behind where nobody settles them.
"""

import asyncio
import secrets
from dataclasses import dataclass, replace
from typing import Protocol

from lbg_runtime.core.parking.records import RoomKept, encode_entry
from lbg_runtime.model.errors import TransportError
from lbg_runtime.model.ids import QueueName
from lbg_runtime.model.message import Message
from lbg_runtime.model.sole_error import sole_error
from lbg_runtime.transport.base import Browser, Messenger

QUIET_S = 1.0
"""A browsed queue counts as read to its end when nothing comes for this long."""

FIRST_MARK_S = 2.0
"""If there was no such pause, the first mark is sent after this time."""

LONGEST_S = 120.0
"""How long a queue is read that has no pause, and whose marks do not come."""


class Lookout(Browser, Messenger, Protocol):
    """What is needed of a session."""


@dataclass(frozen=True, slots=True)
class Contents:
    """What lies in a parking queue."""

    messages: list[Message]
    """In order, marks included. At least all that were there when the reading began, unless it was `cut`."""
    cut: str
    """Why some of those may be missing; empty if none is."""


async def read_parking_queue(session: Lookout, queue: QueueName) -> Contents:
    """Browse a parking queue within `LONGEST_S` and a pause; raises `TransportError`. Called on the session's loop."""
    reading = _Reading(session, queue)
    with sole_error():
        async with asyncio.TaskGroup() as tasks:
            marking = tasks.create_task(reading.mark_ends())
            found = await session.browse(queue, QUIET_S, reading.is_last)
            marking.cancel()
    return Contents(found, reading.cut)


class _Reading:
    def __init__(self, session: Messenger, queue: QueueName) -> None:
        self._session = session
        self._queue = queue
        # A new name for each reading: a mark that an earlier reading left behind must not end this one.
        self._mark = replace(encode_entry(RoomKept(1), queue), message_id=f"lbg-mark-{secrets.token_hex(8)}")
        self._refusal: TransportError | None = None
        self._is_overdue = False
        self.cut = ""

    async def mark_ends(self) -> None:
        """Send marks until cancelled, or until it takes too long."""
        pause_s = FIRST_MARK_S
        try:
            async with asyncio.timeout(LONGEST_S):
                while True:
                    await asyncio.sleep(pause_s)
                    pause_s *= 2
                    try:
                        await self._session.send(self._mark)
                    except TransportError as error:
                        # A later mark may be taken, or the queue may have a pause; otherwise this is told at the end.
                        self._refusal = error
        except TimeoutError:
            self._is_overdue = True

    def is_last(self, message: Message) -> bool:
        """See `IsLast`. Called on another thread, and only reads what the loop's thread has set."""
        if message.message_id == self._mark.message_id:
            return True
        if self._is_overdue:
            why = "a mark put there has not come" if self._refusal is None else str(self._refusal)
            self.cut = f"{self._queue} is fed all the time, and was read for {LONGEST_S:g} s without an end: {why}"
            return True
        return False
