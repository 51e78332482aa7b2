"""A guard over an SQLite database, for members on one host that share its file."""

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from lbg_runtime.guard.protocol import EffectEndedTransaction, place_of, refuse_awaitable
from lbg_runtime.model.message import FencingToken, Message

SqliteEffect = Callable[[sqlite3.Connection], object]
"""Writes the effect, on the guard's thread. Must not commit, roll back (savepoints are its own affair) or close the
connection (`executescript` and `with connection:` commit), nor touch anything of the event loop's; its return value is
ignored, unless that is something that has not run."""

Answer = TypeVar("Answer")

LOCK_PATIENCE_S = 5.0
"""How long a transaction waits for another process to end its own; then it raises `sqlite3.OperationalError`."""

_CREATE = """
CREATE TABLE IF NOT EXISTS lbg_guard (
    scope TEXT NOT NULL,
    key TEXT NOT NULL,
    publisher TEXT NOT NULL,
    number INTEGER NOT NULL,
    marked_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
    PRIMARY KEY (scope, key, publisher)
) WITHOUT ROWID
"""
_MARK = """
INSERT INTO lbg_guard (scope, key, publisher, number) VALUES (?, ?, ?, ?)
ON CONFLICT (scope, key, publisher) DO UPDATE SET number = excluded.number, marked_at = excluded.marked_at
WHERE number < excluded.number
"""
_FORGET = "DELETE FROM lbg_guard WHERE scope = ? AND marked_at < datetime('now', ?)"


class _Lent(sqlite3.Connection):
    """The connection as effects get it: what would end the guard's transaction is refused at its line, and noted."""

    is_lent = False
    is_misused = False

    def authorize(self, action: int, *_: object) -> int:
        """SQLite's question about a statement that it compiles."""
        return self._refuse() if action == sqlite3.SQLITE_TRANSACTION and self.is_lent else sqlite3.SQLITE_OK

    def close(self) -> None:
        """See `sqlite3.Connection.close`."""
        if self.is_lent:
            self._refuse()
            raise sqlite3.ProgrammingError("the guard closes the connection")
        super().close()

    def _refuse(self) -> int:
        self.is_misused = True
        return sqlite3.SQLITE_DENY


class SqliteGuard:
    """A `Guard[SqliteEffect]`. Opens the database on first use, on a thread of its own, and creates its table there.

    One transaction at a time, which SQLite requires anyway. An effect that has begun goes on if its handler is
    cancelled, and may be written; the next attempt is then told so.
    """

    def __init__(self, path: Path | str, scope: str) -> None:
        self._path = path
        self._scope = scope
        self._connection: _Lent | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lbg-guard")

    async def once(self, message: Message, effect: SqliteEffect) -> bool:
        """See `Guard.once`."""
        key, token = place_of(message)
        return await self._on_thread(lambda: self._write(key, token, effect))

    async def forget(self, older_than_s: int) -> int:
        """Delete the marks that were last raised more than `older_than_s` seconds ago; return how many.

        Marks pile up, one for each key and life of a publisher. Marks younger than the longest time for which the
        broker or a handler may hold a message must be kept.
        """
        return await self._on_thread(lambda: self._forget(older_than_s))

    async def close(self) -> None:
        """Close the database after any effect that has begun; the guard reopens it if it is used again."""
        await self._on_thread(self._close)

    async def _on_thread(self, work: Callable[[], Answer]) -> Answer:
        # No bound here: the handler's timeout applies, and a thread cannot be stopped.
        return await asyncio.get_running_loop().run_in_executor(self._thread, _done, work)

    # -- on the thread

    def _write(self, key: str, token: FencingToken, effect: SqliteEffect) -> bool:
        connection = self._open()
        # Take the write lock at once: a transaction that begins by reading may be refused it later.
        connection.execute("BEGIN IMMEDIATE")
        try:
            marked = connection.execute(_MARK, (self._scope, key, token.publisher, token.number))
            if marked.rowcount == 0:
                return False
            self._run(effect, connection)
            # By method: `execute` would keep a compiled COMMIT, about which an effect that executes it is not asked.
            connection.commit()
            return True
        finally:
            connection.rollback()
            if connection.is_misused:
                # It may not be as it was: Python sets an isolation level before the commit that this means.
                self._close()

    def _run(self, effect: SqliteEffect, connection: _Lent) -> None:
        connection.is_lent = True
        try:
            refuse_awaitable(effect(connection), self._scope)
        except Exception as error:
            if connection.is_misused:
                raise EffectEndedTransaction(self._scope) from error
            raise
        finally:
            connection.is_lent = False
        # SQLite itself may have rolled back, as `INSERT OR ROLLBACK` does.
        if connection.is_misused or not connection.in_transaction:
            raise EffectEndedTransaction(self._scope)

    def _forget(self, older_than_s: int) -> int:
        with self._open() as connection:
            return connection.execute(_FORGET, (self._scope, f"-{older_than_s} seconds")).rowcount

    def _open(self) -> _Lent:
        if self._connection is None:
            # With Python's implicit transactions: if SQLite rolls back within an effect, the effect's next change
            # begins one, which is refused, and is not committed by itself.
            connection = sqlite3.connect(self._path, timeout=LOCK_PATIENCE_S, factory=_Lent)
            connection.execute(_CREATE)
            connection.set_authorizer(connection.authorize)
            self._connection = connection
        return self._connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _done(work: Callable[[], Answer]) -> Answer:
    try:
        return work()
    except StopIteration as error:
        # A future cannot carry StopIteration, and the caller would wait for ever.
        raise RuntimeError("the effect raised StopIteration") from error
