"""A guard over PostgreSQL (psycopg 3; the extra `postgres`)."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from hashlib import sha256
from typing import Any

try:
    from psycopg import AsyncConnection, AsyncCursor
    from psycopg.pq import PipelineStatus, TransactionStatus
    from psycopg.rows import tuple_row
except ImportError as error:
    # If a module of handlers imports this, `lbg check` shows the text.
    found = f"PostgresGuard needs psycopg: pip install 'lbg-runtime[postgres]' ({error})"
    raise ImportError(found, name=error.name) from error

from lbg_runtime.guard.protocol import (
    ConnectionInTransaction,
    ConnectionUnfit,
    EffectEndedTransaction,
    EffectSpoiledTransaction,
    place_of,
    refuse_awaitable,
)
from lbg_runtime.model.message import FencingToken, Message

# Any: rows have whatever shape the connection's owner chose.
PostgresEffect = Callable[[AsyncConnection[Any]], Awaitable[object]]
"""Writes the effect on the transaction's connection. Must not commit or roll back; its return value is ignored, unless
that is something that has not run.

A statement that may fail without ending the effect belongs in a savepoint: `async with connection.transaction()`."""

Connections = Callable[[], AbstractAsyncContextManager[AsyncConnection[Any]]]
"""Lends a connection with no open transaction and not in pipeline mode: for example, the method `connection` of an open
`psycopg_pool.AsyncConnectionPool`. An effect may use pipelines of its own."""

LONGEST_TEXT_BYTES = 800
"""Longest key or publisher that is stored as it is: a row's three texts must fit into one third of a page."""

_DIGEST = "lbg-sha256:"
"""Prefix of the digest that represents a text that the table cannot hold."""

_CREATE = """
CREATE TABLE IF NOT EXISTS lbg_guard (
    scope text NOT NULL,
    key text NOT NULL,
    publisher text NOT NULL,
    number bigint NOT NULL,
    marked_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (scope, key, publisher)
)
"""
# Where `CREATE TABLE` would look for it, and not where it would be found: another application's marks may lie there.
_FIND = "SELECT 1 WHERE to_regclass(quote_ident(current_schema()) || '.lbg_guard') IS NOT NULL"
_LOCK = "SELECT pg_advisory_xact_lock(hashtext('lbg_guard'))"
# With `synchronous_commit` off, a crash of the server would take what was answered.
_MARK = """
INSERT INTO lbg_guard AS mark (scope, key, publisher, number) VALUES (%s, %s, %s, %s)
ON CONFLICT (scope, key, publisher) DO UPDATE SET number = excluded.number, marked_at = excluded.marked_at
WHERE mark.number < excluded.number
RETURNING xmin::text,
    CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', true) END
"""
# The age of a transaction is 0 as long as it lasts. Asked of no table: an effect may have set another role or path.
_IS_THE_SAME = "SELECT 1 WHERE pg_catalog.age(%s::pg_catalog.text::pg_catalog.xid) = 0"
_MARKED_AS_IT_IS = "SELECT 1 FROM lbg_guard WHERE scope = %s AND key = %s AND publisher = %s AND number >= %s"
_FORGET = "DELETE FROM lbg_guard WHERE scope = %s AND marked_at < now() - make_interval(secs => %s)"


class PostgresGuard:
    """A `Guard[PostgresEffect]`. Takes a connection for each effect, so the lender decides how many run at a time.

    What `once` has answered is on the server's disk, also where `synchronous_commit` is off.

    Two transactions on one key wait for each other at the mark, before the effect. Above READ COMMITTED, the later one
    may instead be refused with a serialization failure: a failed attempt, which is made again. All methods raise
    `ConnectionInTransaction` if a connection is lent with an open transaction, and `ConnectionUnfit` if it is lent in
    pipeline mode.
    """

    def __init__(self, connections: Connections, scope: str) -> None:
        self._connections = connections
        self._scope = scope

    async def create_table(self) -> None:
        """Create the guard's table, `lbg_guard`, if it is missing; any number of members may do so at the same time.

        Call it once before the first use, in `on_assigned` or where the tables of the effect are created. If the table
        is there, in the schema in which it would be created, no right to create one is needed.
        """
        async with self._transaction() as connection:
            # PostgreSQL asks for the right to create before it looks whether there is anything to do.
            if await (await _own_cursor(connection).execute(_FIND)).fetchone() is not None:
                return
            # Without the lock, two members that find the table missing would both create it, and one would fail.
            await connection.execute(_LOCK)
            await connection.execute(_CREATE)

    async def once(self, message: Message, effect: PostgresEffect) -> bool:
        """See `Guard.once`."""
        key, token = place_of(message)
        row = (self._scope, _as_stored(key), _as_stored(token.publisher), token.number)
        async with self._transaction() as connection:
            marked = await _own_cursor(connection).execute(_MARK, row)
            if marked.rowcount not in (0, 1):
                # Not a new message, and not a copy: to go on could be a second effect, to skip could lose it.
                raise ConnectionUnfit(self._scope, f"says that {marked.rowcount} rows were marked")
            found = await marked.fetchone()
            if found is None or await self._is_marked_as_it_is(connection, key, token):
                return False
            refuse_awaitable(await effect(connection), self._scope)
            status = connection.info.transaction_status
            if status is TransactionStatus.IDLE:
                raise EffectEndedTransaction(self._scope)
            if status is not TransactionStatus.INTRANS:
                # PostgreSQL answers the commit of a failed transaction with a rollback, and reports no error.
                raise EffectSpoiledTransaction(self._scope)
            # The driver begins a transaction with the next statement, so the status is the same after a rollback.
            if await (await _own_cursor(connection).execute(_IS_THE_SAME, found[:1])).fetchone() is None:
                raise EffectEndedTransaction(self._scope)
            return True
        # The effect raised `psycopg.Rollback`, which ends the block without an error.
        raise EffectEndedTransaction(self._scope)

    async def forget(self, older_than_s: int) -> int:
        """Like `SqliteGuard.forget`."""
        async with self._transaction() as connection:
            return (await connection.execute(_FORGET, (self._scope, older_than_s))).rowcount

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[AsyncConnection[Any]]:
        async with self._connections() as connection:
            # Inside another transaction ours would be a savepoint: `once` would report a write that might never happen.
            if connection.info.transaction_status not in (TransactionStatus.IDLE, TransactionStatus.UNKNOWN):
                raise ConnectionInTransaction(self._scope)
            # In a pipeline a statement has no answer yet when it returns: every mark would look new.
            if connection.info.pipeline_status is not PipelineStatus.OFF:
                raise ConnectionUnfit(self._scope, "is in pipeline mode")
            async with connection.transaction():
                yield connection

    async def _is_marked_as_it_is(self, connection: AsyncConnection[Any], key: str, token: FencingToken) -> bool:
        """Whether there is a mark from before digests existed: back then, compressible texts of any length were
        stored."""
        place = (key, token.publisher)
        if place == (_as_stored(key), _as_stored(token.publisher)) or any("\0" in text for text in place):
            return False
        found = await _own_cursor(connection).execute(_MARKED_AS_IT_IS, (self._scope, *place, token.number))
        return await found.fetchone() is not None


def _own_cursor(connection: AsyncConnection[Any]) -> AsyncCursor[tuple[Any, ...]]:
    # The shape that the connection's owner chose need not fit what the guard asks.
    return connection.cursor(row_factory=tuple_row)


def _as_stored(text: str) -> str:
    """A key or publisher as it is stored: itself, or a digest if the database might refuse it.

    No two share a stored form: a text that itself begins like a digest is stored as a digest.
    """
    encoded = text.encode()
    if len(encoded) <= LONGEST_TEXT_BYTES and "\0" not in text and not text.startswith(_DIGEST):
        return text
    return _DIGEST + sha256(encoded).hexdigest()
