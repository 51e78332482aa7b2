"""Handlers of the members of `everything`, which copies this file beside their settings: it is imported there alone.

Each handling that came to its end is a line of the file `handled`: key and number. Its lines are in the order in which
they were written, whichever process did.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

from lbg_runtime import Handlers, Message
from lbg_runtime.guard.sqlite import SqliteGuard

PARTS = 2
"""Messages that are published for each one, in one transaction."""

_FAILURES = 0.001
_WORK_S = (0.0, 0.010)

_folder = Path(__file__).parent

handlers = Handlers()
guard = SqliteGuard(_folder / "effects.sqlite", "everything")


class PretendedFailure(Exception):
    """A handler's failure; the message is tried again, or parked."""


@handlers.handler("orders/>", transacted=True)
async def on_order(message: Message) -> AsyncIterator[Message]:
    """Have an effect once and publish in a transaction; fail now and then, and always for the key that is poisoned."""
    if (_folder / "poisoned").read_text() == message.key or random.random() < _FAILURES:
        raise PretendedFailure("for the soak")
    if random.random() < 0.5:
        await asyncio.sleep(random.uniform(*_WORK_S))
    place = (message.key, message.key_sequence)
    await guard.once(message, lambda connection: connection.execute("INSERT INTO effect VALUES (?, ?)", place))
    for part in range(PARTS):
        yield Message(f"parts/{_folder.name}", f"{message.key} {message.key_sequence} {part}".encode())
    with open(_folder / "handled", "ab", buffering=0) as handled:  # noqa: ASYNC230  # a line, which waits for nobody
        handled.write(f"{message.key} {message.key_sequence}\n".encode())
