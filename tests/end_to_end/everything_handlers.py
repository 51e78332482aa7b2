"""Handlers of the members of `everything`, which copies this file beside their settings: it is imported there alone.

Each handling that came to its end is a line of the file `handled`: life of the publisher and key, and number. Its lines
are in the order in which they were written, whichever process did. Effects are in PostgreSQL where there is a file that
says how to connect, and else in an SQLite file.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool

from lbg_runtime import Handlers, Message, State
from lbg_runtime.guard.postgres import PostgresGuard
from lbg_runtime.guard.sqlite import SqliteGuard

PARTS = 2
"""Messages that are published for each one, in one transaction."""

_FAILURES = 0.001
_WORK_S = (0.0, 0.010)
_SESSION = {"options": "-c idle_in_transaction_session_timeout=3s"}
"""One of a member that is stopped in the middle keeps the key from all others for no longer."""

_folder = Path(__file__).parent
_database = _folder / "database"

handlers = Handlers()


class PretendedFailure(Exception):
    """A handler's failure; the message is tried again, or parked."""


class Effects:
    """Where each message has its effect once."""

    def __init__(self, once: Callable[[Message, str, int], Awaitable[object]]) -> None:
        self.once = once


@handlers.lifespan
async def effects() -> AsyncIterator[Effects]:
    """A guard, and what it needs."""
    async with _in_postgres() if _database.exists() else _in_sqlite() as found:
        yield found


@asynccontextmanager
async def _in_sqlite() -> AsyncIterator[Effects]:
    guard = SqliteGuard(_folder / "effects.sqlite", "everything")
    written = "INSERT INTO effect (place, number) VALUES (?, ?)"
    yield Effects(lambda message, *values: guard.once(message, lambda connection: connection.execute(written, values)))
    await guard.close()


@asynccontextmanager
async def _in_postgres() -> AsyncIterator[Effects]:
    written = "INSERT INTO effect (place, number) VALUES (%s, %s)"
    # Not waited for: the server may be away.
    async with AsyncConnectionPool(_database.read_text(), open=False, min_size=1, max_size=8, kwargs=_SESSION) as pool:
        guard = PostgresGuard(pool.connection, "everything")

        async def once(message: Message, *values: str | int) -> None:
            async def write(connection: AsyncConnection[Any]) -> None:
                await connection.execute(written, values)

            await guard.once(message, write)

        yield Effects(once)


@handlers.handler("orders/>", transacted=True)
async def on_order(message: Message, effects: State[Effects]) -> AsyncIterator[Message]:
    """Have an effect once and publish in a transaction; fail now and then, and always for the key that is poisoned."""
    if (_folder / "poisoned").read_text() == message.key or random.random() < _FAILURES:
        raise PretendedFailure("for the soak")
    if random.random() < 0.5:
        await asyncio.sleep(random.uniform(*_WORK_S))
    token = message.fencing_token
    if token is None:
        raise ValueError("no fencing token")
    place = f"{token.publisher}/{message.key}"
    await effects.once(message, place, token.number)
    for part in range(PARTS):
        yield Message(f"parts/{_folder.name}", f"{place} {token.number} {part}".encode())
    with open(_folder / "handled", "ab", buffering=0) as handled:  # noqa: ASYNC230  # a line, which waits for nobody
        handled.write(f"{place} {token.number}\n".encode())
