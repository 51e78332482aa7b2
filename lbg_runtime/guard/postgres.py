"""A guard over PostgreSQL (psycopg 3; the extra `postgres`)."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from hashlib import sha256
from typing import Any

try:
    from psycopg import AsyncConnection, AsyncCursor, sql
    from psycopg.errors import UntranslatableCharacter
    from psycopg.pq import PipelineStatus, TransactionStatus
    from psycopg.rows import tuple_row
except ImportError as error:
    # `lbg check` shows this text if a module of handlers imports this one.
    found = f"PostgresGuard needs psycopg: pip install 'lbg-runtime[postgres]' ({error})"
    raise ImportError(found, name=error.name) from error

from lbg_runtime.guard.protocol import (
    ConnectionInTransaction,
    ConnectionUnfit,
    EffectEndedTransaction,
    EffectSpoiledTransaction,
    TextNotHeld,
    place_of,
    refuse_awaitable,
)
from lbg_runtime.model.message import FencingToken, Message

# Any, as rows have whatever shape the connection's owner chose.
PostgresEffect = Callable[[AsyncConnection[Any]], Awaitable[object]]
"""Writes the effect on the transaction's connection. Must not commit or roll back. Its return value is ignored, unless
that is something still to be awaited or read.

A statement that may fail without ending the effect belongs in a savepoint: `async with connection.transaction()`."""

Connections = Callable[[], AbstractAsyncContextManager[AsyncConnection[Any]]]
"""Lends a connection with no open transaction and not in pipeline mode: for example, the method `connection` of an open
`psycopg_pool.AsyncConnectionPool`. An effect may use pipelines of its own."""

LONGEST_TEXT_BYTES = 800
"""The longest key or publisher that is stored as it is: a row's three texts must fit into one third of a page."""

_DIGEST = "lbg-sha256:"
"""The prefix of a digest that is stored for a text that the table cannot hold."""

_CREATE = sql.SQL("""
CREATE TABLE IF NOT EXISTS {table} (
    scope text NOT NULL,
    key text NOT NULL,
    publisher text NOT NULL,
    number bigint NOT NULL,
    marked_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (scope, key, publisher)
)
""")
# Looks in the schema in which `CREATE TABLE` would create it, not along the search path, which may lead to the table of
# another application.
_FIND = """
SELECT place, to_regclass(quote_ident(place) || '.lbg_guard') IS NOT NULL
FROM (SELECT coalesce(%s::text, current_schema()::text) AS place) AS found
"""
_LOCK = "SELECT pg_advisory_xact_lock(hashtext('lbg_guard'))"
_MARK = sql.SQL("""
INSERT INTO {table} AS mark (scope, key, publisher, number) VALUES (%s, %s, %s, %s)
ON CONFLICT (scope, key, publisher) DO UPDATE SET number = excluded.number, marked_at = excluded.marked_at
WHERE mark.number < excluded.number
RETURNING xmin::text::bigint
""")
# The age of a transaction is 0 as long as it lasts. The question needs no table, as an effect may have set another role
# or search path. If `synchronous_commit` were off, whoever did that, a crash of the server could undo what was
# answered.
_IS_THE_SAME = """
SELECT CASE pg_catalog.current_setting('synchronous_commit')
    WHEN 'off' THEN pg_catalog.set_config('synchronous_commit', 'on', true) END
WHERE pg_catalog.age(%s::pg_catalog.text::pg_catalog.xid) = 0
"""
_MARKED_AS_IT_IS = sql.SQL("SELECT 1 FROM {table} WHERE scope = %s AND key = %s AND publisher = %s AND number >= %s")
# Skips marks that are locked: to wait for that of an effect that hangs would make the keys of all marks that are
# deleted by then wait as well.
_FORGET = sql.SQL("""
DELETE FROM {table} WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM {table} WHERE scope = %s AND marked_at < now() - make_interval(secs => %s) FOR UPDATE SKIP LOCKED
))
""")


class PostgresGuard:
    """A `Guard[PostgresEffect]`. Takes a connection for each effect, so the lender decides how many run at a time.

    When `once` answers, the effect is on the server's disk, even if `synchronous_commit` is off, and on a standby's if
    the server waits for one. That holds for the answer to a copy, too: to ask for its mark locks that, which counts as
    a write.

    Two transactions on one key wait for each other at the mark, before the effect. At an isolation level above READ
    COMMITTED, the later one may instead fail to serialize: then its attempt fails, and is made again. All methods raise
    `ConnectionInTransaction` if a connection is lent with an open transaction, and `ConnectionUnfit` if it is lent in
    pipeline mode.
    """

    def __init__(self, connections: Connections, scope: str) -> None:
        self._connections = connections
        self._scope = scope
        self._schema: str | None = None
        self._table = sql.Identifier("lbg_guard")

    async def create_table(self) -> None:
        """Create the guard's table, `lbg_guard`, if it is missing; any number of members may do so at the same time.

        Call it once before the first use, in `on_assigned` or where the tables of the effect are created. If the table
        is there, in the schema in which it would be created, no right to create one is needed. This guard then keeps to
        that table, whatever search path an effect leaves on a connection.
        """
        async with self._transaction() as connection:
            # Looked up first: `CREATE TABLE IF NOT EXISTS` needs the right to create even if the table exists.
            found = await (await _own_cursor(connection).execute(_FIND, (self._schema,))).fetchone()
            place, is_there = found or (None, False)
            # In a database with the encoding SQL_ASCII, the driver gives text as bytes.
            schema = place.decode() if isinstance(place, bytes) else place
            # None if the search path names no schema that exists; PostgreSQL then says so.
            table = self._table if schema is None else sql.Identifier(schema, "lbg_guard")
            if not is_there:
                # Without the lock, two members that find the table missing would both create it, and one would fail.
                await connection.execute(_LOCK)
                await connection.execute(_CREATE.format(table=table))
        self._schema, self._table = schema, table

    async def once(self, message: Message, effect: PostgresEffect) -> bool:
        """Write the effect and the mark of the message together; False, and no effect, if they are there already.

        See `Guard.once`. The effect is awaited with a connection that is lent for it.
        """
        key, token = place_of(message)
        async with self._transaction() as connection:
            try:
                row = (self._scope, _as_stored(key), _as_stored(token.publisher), token.number)
                marked = await _own_cursor(connection).execute(_MARK.format(table=self._table), row)
                if marked.rowcount not in (0, 1):
                    # This says neither that the message is new nor that it is a copy: to go on could make a second
                    # effect, and to skip it could lose the first.
                    raise ConnectionUnfit(self._scope, f"says that {marked.rowcount} rows were marked")
                found = await marked.fetchone()
                if found is None or await self._is_marked_as_it_is(connection, key, token):
                    return False
            except (UnicodeEncodeError, UntranslatableCharacter) as error:
                raise TextNotHeld(self._scope, connection.info.parameter_status("server_encoding")) from error
            refuse_awaitable(await effect(connection), self._scope)
            status = connection.info.transaction_status
            if status is TransactionStatus.IDLE:
                raise EffectEndedTransaction(self._scope)
            if status is not TransactionStatus.INTRANS:
                # PostgreSQL answers the commit of a failed transaction with a rollback, and reports no error.
                raise EffectSpoiledTransaction(self._scope)
            # Asked of the server: the driver begins a transaction with the next statement, so after a rollback its
            # status would look the same.
            if await (await _own_cursor(connection).execute(_IS_THE_SAME, found)).fetchone() is None:
                raise EffectEndedTransaction(self._scope)
            return True
        # The effect raised `psycopg.Rollback`, which ends the block without an error.
        raise EffectEndedTransaction(self._scope)

    async def forget(self, older_than_s: int) -> int:
        """Like `SqliteGuard.forget`. Does not wait for effects: a mark that one is just raising stays."""
        async with self._transaction() as connection:
            return (await connection.execute(_FORGET.format(table=self._table), (self._scope, older_than_s))).rowcount

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[AsyncConnection[Any]]:
        async with self._connections() as connection:
            # Inside another transaction, ours would be a savepoint, and `once` would report a write that may never
            # happen.
            if connection.info.transaction_status not in (TransactionStatus.IDLE, TransactionStatus.UNKNOWN):
                raise ConnectionInTransaction(self._scope)
            # In a pipeline, a statement returns before its answer is there: every mark would look new.
            if connection.info.pipeline_status is not PipelineStatus.OFF:
                raise ConnectionUnfit(self._scope, "is in pipeline mode")
            async with connection.transaction():
                yield connection

    async def _is_marked_as_it_is(self, connection: AsyncConnection[Any], key: str, token: FencingToken) -> bool:
        """Whether there is a mark from before digests existed, when compressible texts of any length were stored."""
        place = (key, token.publisher)
        # A text that begins like a digest is no such mark: what is stored there is the mark of the text digested.
        has_no_place = any("\0" in text or text.startswith(_DIGEST) for text in place)
        if has_no_place or place == (_as_stored(key), _as_stored(token.publisher)):
            return False
        query = _MARKED_AS_IT_IS.format(table=self._table)
        found = await _own_cursor(connection).execute(query, (self._scope, *place, token.number))
        return await found.fetchone() is not None


def _own_cursor(connection: AsyncConnection[Any]) -> AsyncCursor[tuple[Any, ...]]:
    # With a row factory of its own, as the one that the connection's owner chose need not fit.
    return connection.cursor(row_factory=tuple_row)


def _as_stored(text: str) -> str:
    """A key or publisher as it is stored: itself, or a digest if the database might refuse it.

    No two share a stored form: a text that itself begins like a digest is stored as a digest.
    """
    encoded = text.encode()
    if len(encoded) <= LONGEST_TEXT_BYTES and "\0" not in text and not text.startswith(_DIGEST):
        return text
    return _DIGEST + sha256(encoded).hexdigest()
