"""One way to use every adapter, so that the same tests are put to all of them."""

import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from psycopg_pool import AsyncConnectionPool

from lbg_runtime.guard.memory import MemoryGuard
from lbg_runtime.guard.postgres import PostgresGuard
from lbg_runtime.guard.sqlite import SqliteGuard
from lbg_runtime.model.message import KEY_SEQUENCE_PROPERTY, PARTITION_KEY_PROPERTY, PUBLISHER_PROPERTY, Message

SCOPE = "orders"
CREATE_EFFECTS = "CREATE TABLE effects (position SERIAL, key TEXT, text TEXT)"


class Crash(Exception):
    """What happens between an effect and its commit."""


def message(number: int, key: str = "k", publisher: str = "p") -> Message:
    """A message as a hashed publisher stamps it."""
    stamps = {PARTITION_KEY_PROPERTY: key, PUBLISHER_PROPERTY: publisher, KEY_SEQUENCE_PROPERTY: number}
    return Message("h/0/orders/new", f"{publisher}{number}".encode(), stamps)


def lets_sqlite_roll_back(database: sqlite3.Connection) -> None:
    """An effect whose statement fails in a way that ends the transaction."""
    database.execute("CREATE TABLE once (number UNIQUE)")
    database.execute("INSERT INTO once VALUES (1)")
    with suppress(sqlite3.IntegrityError):
        database.execute("INSERT OR ROLLBACK INTO once VALUES (1)")


class Bench(Protocol):
    """An adapter whose effect is to write the payload down, and what stands in its store."""

    async def apply(self, message: Message, *, crash: bool = False) -> bool:
        """Guard one effect; `crash`: raise `Crash` when it has been written and not committed."""
        ...

    async def written(self, key: str = "k") -> list[str]:
        """The payloads that were written down, in order."""
        ...


class MemoryBench:
    def __init__(self) -> None:
        self.guard: MemoryGuard[tuple[str, ...]] = MemoryGuard()

    async def apply(self, message: Message, *, crash: bool = False) -> bool:
        def effect(before: tuple[str, ...] | None) -> tuple[str, ...]:
            after = (*(before or ()), message.payload.decode())
            if crash:
                raise Crash
            return after

        return await self.guard.once(message, effect)

    async def written(self, key: str = "k") -> list[str]:
        entry = self.guard.entries.get(key)
        return [] if entry is None else list(entry.value)


class SqliteBench:
    def __init__(self, path: Path, scope: str = SCOPE) -> None:
        self.path = path
        self.guard = SqliteGuard(path, scope)
        with sqlite3.connect(path) as database:
            database.execute(
                CREATE_EFFECTS.replace("SERIAL", "INTEGER PRIMARY KEY").replace("TABLE", "TABLE IF NOT EXISTS")
            )
        database.close()

    async def apply(
        self, message: Message, *, crash: bool = False, meanwhile: Callable[[], object] | None = None
    ) -> bool:
        def effect(database: sqlite3.Connection) -> None:
            if meanwhile is not None:
                meanwhile()
            row = (message.key, message.payload.decode())
            database.execute("INSERT INTO effects (key, text) VALUES (?, ?)", row)
            if crash:
                raise Crash

        return await self.guard.once(message, effect)

    async def written(self, key: str = "k") -> list[str]:
        database = sqlite3.connect(self.path)
        try:
            return [
                text for (text,) in database.execute("SELECT text FROM effects WHERE key = ? ORDER BY position", (key,))
            ]
        finally:
            database.close()


class PostgresBench:
    def __init__(self, pool: AsyncConnectionPool, scope: str = SCOPE) -> None:
        self.pool = pool
        self.guard = PostgresGuard(pool.connection, scope)

    async def apply(self, message: Message, *, crash: bool = False, meanwhile=None) -> bool:
        async def effect(connection) -> None:
            if meanwhile is not None:
                await meanwhile()
            # What the effect may not hold is no matter of the guard's.
            row = [text.replace("\0", "") for text in (message.key or "", message.payload.decode())]
            await connection.execute("INSERT INTO effects (key, text) VALUES (%s, %s)", row)
            if crash:
                raise Crash

        return await self.guard.once(message, effect)

    async def written(self, key: str = "k") -> list[str]:
        async with self.pool.connection() as connection:
            query = "SELECT text FROM effects WHERE key = %s ORDER BY position"
            return [text for (text,) in await (await connection.execute(query, (key,))).fetchall()]
