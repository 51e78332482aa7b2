"""The PostgreSQL guard on a real server: connections that meet on one key, and sessions that die.

Over 400 lines, as all of them share the one server and its table.
"""

import asyncio
import re
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from pathlib import Path

import psycopg
import pytest
from psycopg.rows import class_row, dict_row
from psycopg_pool import AsyncConnectionPool

from lbg_runtime.guard.postgres import PostgresGuard
from lbg_runtime.guard.protocol import (
    ConnectionInTransaction,
    ConnectionUnfit,
    EffectEndedTransaction,
    EffectNotRun,
    EffectSpoiledTransaction,
    TextNotHeld,
)
from tests.guard.bench import PostgresBench, message
from tests.guard.conftest import open_pool
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.real_time


HANDLERS_PAGE = Path(__file__).parents[2] / "docs/handlers.md"


@pytest.fixture
async def bench(pool: AsyncConnectionPool) -> PostgresBench:
    made = PostgresBench(pool)
    await made.guard.create_table()
    return made


async def begun(bench: PostgresBench, number: int = 1) -> tuple[asyncio.Future[bool], asyncio.Event]:
    """An effect of this message that has begun, and what lets it end."""
    has_begun, may_end = asyncio.Event(), asyncio.Event()

    async def meanwhile() -> None:
        has_begun.set()
        await may_end.wait()

    applying = asyncio.ensure_future(bench.apply(message(number), meanwhile=meanwhile))
    await asyncio.wait_for(has_begun.wait(), PATIENCE_S)
    return applying, may_end


def test_without_its_driver_the_import_says_what_brings_it() -> None:
    without = "import sys; sys.modules['psycopg'] = None; import lbg_runtime.guard.postgres"
    ended = subprocess.run(
        [sys.executable, "-c", without], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert "ImportError: PostgresGuard needs psycopg: pip install 'lbg-runtime[postgres]'" in ended.stderr


async def test_the_table_can_be_made_by_all_members_at_once(pool: AsyncConnectionPool) -> None:
    benches = [PostgresBench(pool) for _ in range(8)]
    await asyncio.gather(*(bench.guard.create_table() for bench in benches))
    assert await benches[0].apply(message(1))


async def test_the_second_of_two_on_one_message_waits_and_then_skips(bench: PostgresBench) -> None:
    old_owner, may_end = await begun(bench)
    new_owner = asyncio.ensure_future(bench.apply(message(1)))
    await until_somebody_waits_for_a_lock(bench.pool)
    assert not new_owner.done()
    may_end.set()
    assert (await old_owner, await new_owner) == (True, False)
    assert await bench.written() == ["p1"]


async def test_the_second_takes_over_where_the_session_of_the_first_dies_before_its_commit(
    bench: PostgresBench, database: str
) -> None:
    old_owner, _ = await begun(bench)
    new_owner = asyncio.ensure_future(bench.apply(message(1)))
    await until_somebody_waits_for_a_lock(bench.pool)
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as admin:
        await admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND state = 'idle in transaction'"
        )
    assert await asyncio.wait_for(new_owner, PATIENCE_S)
    old_owner.cancel()
    await asyncio.wait([old_owner])
    assert await bench.written() == ["p1"]


async def test_a_key_goes_on_when_the_server_ends_the_session_that_has_its_mark(
    bench: PostgresBench, database: str
) -> None:
    """As where its client has vanished: what the page of handlers asks for."""
    # The server waits as long for the mark itself, from a loop that may be late.
    async with open_pool(database, options="-c idle_in_transaction_session_timeout=2s") as pool:
        vanished, _ = await begun(PostgresBench(pool))
        assert await asyncio.wait_for(bench.apply(message(1)), PATIENCE_S)
        vanished.cancel()
        await asyncio.wait([vanished])
    assert await bench.written() == ["p1"]


async def test_a_cancelled_handler_leaves_nothing(bench: PostgresBench) -> None:
    applying, _ = await begun(bench)
    applying.cancel()
    await asyncio.wait([applying])
    assert applying.cancelled()
    assert await bench.apply(message(1))
    assert await bench.written() == ["p1"]


async def test_two_members_on_one_key_leave_every_effect_once_and_in_order(bench: PostgresBench) -> None:
    async def member() -> int:
        return sum([await bench.apply(message(number)) for number in range(1, 101)])

    assert sum(await asyncio.gather(member(), member(), member())) == 100
    assert await bench.written() == [f"p{number}" for number in range(1, 101)]


@pytest.mark.parametrize("isolation", ["repeatable\\ read", "serializable"])
async def test_above_read_committed_the_second_of_two_on_one_message_fails_and_is_then_told(
    bench: PostgresBench, database: str, isolation: str
) -> None:
    async with open_pool(database, options=f"-c default_transaction_isolation={isolation}") as pool:
        strict = PostgresBench(pool)
        old_owner, may_end = await begun(strict)
        new_owner = asyncio.ensure_future(strict.apply(message(1)))
        await until_somebody_waits_for_a_lock(bench.pool)
        may_end.set()
        assert await old_owner
        with pytest.raises(psycopg.errors.SerializationFailure):
            await new_owner
        assert not await strict.apply(message(1))
    assert await bench.written() == ["p1"]


async def test_an_effect_that_commits_is_found_out(bench: PostgresBench) -> None:
    with pytest.raises(EffectEndedTransaction):
        await bench.guard.once(message(1), lambda connection: connection.execute("COMMIT"))


async def test_an_effect_that_rolls_back_is_found_out(bench: PostgresBench) -> None:
    async def effect(_: object) -> None:
        raise psycopg.Rollback

    with pytest.raises(EffectEndedTransaction):
        await bench.guard.once(message(1), effect)
    assert await bench.apply(message(1))


@pytest.mark.parametrize("ending", ["ROLLBACK", "ROLLBACK AND CHAIN", "COMMIT", "COMMIT AND CHAIN"])
async def test_an_effect_that_goes_on_in_another_transaction_is_found_out(bench: PostgresBench, ending: str) -> None:
    """The driver begins one by itself; after a rollback, all of it was written without the mark, each time."""

    async def effect(connection: psycopg.AsyncConnection) -> None:
        await connection.execute(ending)
        await connection.execute("INSERT INTO effects (key, text) VALUES ('k', 'unmarked')")

    with pytest.raises(EffectEndedTransaction):
        await bench.guard.once(message(1), effect)
    assert await bench.written() == []
    assert await bench.apply(message(2)), "and the connection is as before"


@pytest.mark.parametrize(("found", "kept"), [("off", "on"), ("local", "local"), ("remote_apply", "remote_apply")])
@pytest.mark.parametrize("is_of_the_effect", [False, True])
async def test_what_was_answered_outlives_a_crash_of_the_server(
    bench: PostgresBench, database: str, found: str, kept: str, is_of_the_effect: bool
) -> None:
    """Where commits are not waited for, `once` said True, the message was settled, and the effect was gone."""
    async with bench.pool.connection() as connection:
        await connection.execute("CREATE TABLE noted (setting text)")
        await connection.execute(
            "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS"
            " $$BEGIN INSERT INTO noted VALUES (current_setting('synchronous_commit')); RETURN NULL; END$$"
        )
        await connection.execute(
            "CREATE CONSTRAINT TRIGGER at_the_commit AFTER INSERT ON effects DEFERRABLE INITIALLY DEFERRED"
            " FOR EACH ROW EXECUTE FUNCTION note()"
        )

    async def effect(connection: psycopg.AsyncConnection) -> None:
        await connection.execute("INSERT INTO effects (key, text) VALUES ('k', 'booked')")
        if is_of_the_effect:
            await connection.execute(f"SET LOCAL synchronous_commit = {found}")

    async with open_pool(database, options="" if is_of_the_effect else f"-c synchronous_commit={found}") as pool:
        assert await PostgresGuard(pool.connection, "orders").once(message(1), effect)
        async with pool.connection() as connection:
            noted = await (await connection.execute("SELECT setting FROM noted")).fetchall()
            after = await (await connection.execute("SHOW synchronous_commit")).fetchone()
    assert (noted, after) == ([(kept,)], ("on" if is_of_the_effect else found,))


async def test_an_effect_may_set_a_role_and_a_path_to_which_the_guards_table_is_closed(bench: PostgresBench) -> None:
    role = f"tenant_{uuid.uuid4().hex}"

    async def effect(connection: psycopg.AsyncConnection) -> None:
        await connection.execute(f"CREATE ROLE {role}")
        await connection.execute(f"SET LOCAL ROLE {role}")
        await connection.execute("SET LOCAL search_path = nowhere")

    assert [await bench.guard.once(message(1), effect) for _ in range(2)] == [True, False]


async def test_a_path_that_an_effect_leaves_on_a_connection_leads_to_no_other_table(
    bench: PostgresBench, database: str
) -> None:
    """A copy had its effect again if another table was found there, and every message failed if there was none."""

    async def stray(connection: psycopg.AsyncConnection) -> None:
        await connection.execute("SET search_path = others")

    async with await psycopg.AsyncConnection.connect(database) as connection:
        await connection.execute("CREATE SCHEMA others")
        await connection.execute("CREATE TABLE others.lbg_guard (LIKE lbg_guard INCLUDING ALL)")
        await connection.commit()

        @asynccontextmanager
        async def lend() -> AsyncIterator[psycopg.AsyncConnection]:
            yield connection

        guard = PostgresGuard(lend, "orders")
        await guard.create_table()
        assert await guard.once(message(1), stray)
        assert not await guard.once(message(1), stray)
        await guard.create_table()
        assert not await guard.once(message(1), stray)
        assert await guard.forget(older_than_s=0) == 1


async def test_a_text_lies_in_the_table_as_it_is_or_as_a_digest_that_no_other_text_has(bench: PostgresBench) -> None:
    """Members of several versions share the table, so this stays as it is."""

    def digest(text: str) -> str:
        return f"lbg-sha256:{sha256(text.encode()).hexdigest()}"

    as_they_are = ["", "k", "x" * 800, "ä" * 400]
    as_digests = ["x" * 801, "ä" * 401, "a\0b", digest("a\0b"), "lbg-sha256:"]
    for key in (*as_they_are, *as_digests):
        assert await bench.apply(message(1, key))
        assert not await bench.apply(message(1, key))
    async with bench.pool.connection() as connection:
        rows = await (await connection.execute("SELECT key FROM lbg_guard")).fetchall()
    assert sorted(key for (key,) in rows) == sorted((*as_they_are, *map(digest, as_digests)))


async def test_the_name_of_a_schema_may_be_any(bench: PostgresBench, database: str) -> None:
    async with bench.pool.connection() as connection:
        await connection.execute('CREATE SCHEMA "Odd ""one"')
    async with open_pool(database, options='-c search_path="Odd\\ ""one",public') as pool:
        for expected in (True, False):
            member = PostgresBench(pool)
            await member.guard.create_table()
            assert await member.apply(message(1)) is expected
    assert await bench.apply(message(1)), "it lies elsewhere"


async def test_a_path_on_which_there_is_no_schema_is_what_postgresql_calls_it(database: str) -> None:
    async with open_pool(database, options="-c search_path=nowhere") as pool:
        with pytest.raises(psycopg.errors.InvalidSchemaName):
            await PostgresGuard(pool.connection, "orders").create_table()


async def test_a_text_that_the_encoding_of_the_database_does_not_have_is_said_in_one_line(
    postgres_server: str,
) -> None:
    async def nothing(_: object) -> None: ...

    name = f"test_{uuid.uuid4().hex}"
    async with await psycopg.AsyncConnection.connect(postgres_server, autocommit=True) as admin:
        await admin.execute(f"CREATE DATABASE {name} ENCODING 'LATIN1' TEMPLATE template0")
    conninfo = postgres_server.replace("dbname=postgres", f"dbname={name}")
    for encoding in ("LATIN1", "UTF8"):
        async with open_pool(conninfo, client_encoding=encoding) as pool:
            guard = PostgresGuard(pool.connection, "orders")
            await guard.create_table()
            for odd in ("€", "€" * 1_000):
                with pytest.raises(TextNotHeld, match="guard orders: the database is in LATIN1, which cannot hold"):
                    await guard.once(message(1, odd), nothing)
            assert [await guard.once(message(1, "é", encoding), nothing) for _ in range(2)] == [True, False]


async def test_in_a_database_without_an_encoding_the_guard_works(postgres_server: str) -> None:
    """The driver gives its text as bytes there, and every effect was taken for one that had ended the transaction."""
    name = f"test_{uuid.uuid4().hex}"
    async with await psycopg.AsyncConnection.connect(postgres_server, autocommit=True) as admin:
        await admin.execute(f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' TEMPLATE template0")
    conninfo = postgres_server.replace("dbname=postgres", f"dbname={name}")

    async def nothing(_: object) -> None: ...

    async with open_pool(conninfo) as pool:
        guard = PostgresGuard(pool.connection, "orders")
        await guard.create_table()
        assert [await guard.once(message(1, "€"), nothing) for _ in range(2)] == [True, False]


async def test_the_guard_has_its_own_shape_of_rows(bench: PostgresBench, database: str) -> None:
    """It read its own questions in the shape that the connection's owner had chosen for what the effects read."""

    class Order:
        def __init__(self, number: int) -> None:
            self.number = number

    said: list[Order | None] = []

    async def effect(connection: psycopg.AsyncConnection[Order]) -> None:
        said.append(await (await connection.execute("SELECT 7 AS number")).fetchone())

    async with open_pool(database, row_factory=class_row(Order)) as pool:
        guard = PostgresGuard(pool.connection, "orders")
        await guard.create_table()
        assert [await guard.once(message(1), effect) for _ in range(2)] == [True, False]
    assert [order.number for order in said if order is not None] == [7]


async def test_a_constraint_that_is_checked_at_the_commit_leaves_neither_effect_nor_mark(
    bench: PostgresBench, pool: AsyncConnectionPool
) -> None:
    async with pool.connection() as connection:
        await connection.execute("CREATE TABLE parents (number int PRIMARY KEY)")
        await connection.execute("CREATE TABLE children (parent int REFERENCES parents DEFERRABLE INITIALLY DEFERRED)")

    async def effect(connection: psycopg.AsyncConnection) -> None:
        await connection.execute("INSERT INTO effects (key, text) VALUES ('k', 'never')")
        await connection.execute("INSERT INTO children VALUES (7)")

    for _ in range(2):
        with pytest.raises(psycopg.errors.ForeignKeyViolation):
            await bench.guard.once(message(1), effect)
    assert await bench.apply(message(1))
    assert await bench.written() == ["p1"]


async def test_a_connection_with_an_open_transaction_is_refused_and_left_as_it_is(
    bench: PostgresBench, pool: AsyncConnectionPool
) -> None:
    @asynccontextmanager
    async def lend() -> AsyncIterator[psycopg.AsyncConnection]:
        async with pool.connection() as connection:
            await connection.execute("INSERT INTO effects (key, text) VALUES ('k', 'its own')")
            try:
                yield connection
            finally:
                await connection.commit()

    async def never(_: object) -> None:
        raise AssertionError("it runs")

    guard = PostgresGuard(lend, "orders")
    with pytest.raises(ConnectionInTransaction, match="guard orders: a transaction is open"):
        await guard.once(message(1), never)
    with pytest.raises(ConnectionInTransaction):
        await guard.forget(older_than_s=0)
    assert await bench.written() == ["its own", "its own"]
    assert await bench.apply(message(1))


async def test_a_connection_in_pipeline_mode_is_refused(bench: PostgresBench, pool: AsyncConnectionPool) -> None:
    """Every copy of a message had its effect: the mark had no answer yet when it was looked at."""

    @asynccontextmanager
    async def lend() -> AsyncIterator[psycopg.AsyncConnection]:
        async with pool.connection() as connection, connection.pipeline():
            yield connection

    async def book(connection: psycopg.AsyncConnection) -> None:
        await connection.execute("INSERT INTO effects (key, text) VALUES ('k', 'booked')")

    async def book_in_a_pipeline(connection: psycopg.AsyncConnection) -> None:
        async with connection.pipeline():
            await book(connection)

    guard = PostgresGuard(lend, "orders")
    for _ in range(2):
        with pytest.raises(ConnectionUnfit, match="guard orders: the connection that was lent is in pipeline mode"):
            await guard.once(message(1), book)
    with pytest.raises(ConnectionUnfit):
        await guard.create_table()
    assert await bench.written() == []
    assert [await bench.guard.once(message(1), book_in_a_pipeline) for _ in range(2)] == [True, False]
    assert await bench.written() == ["booked"]


async def test_a_mark_without_a_count_is_neither_new_nor_a_copy(
    bench: PostgresBench, pool: AsyncConnectionPool
) -> None:
    class Silent(psycopg.AsyncCursor):
        rowcount = -1  # as PEP 249 allows

    @asynccontextmanager
    async def lend() -> AsyncIterator[psycopg.AsyncConnection]:
        async with pool.connection() as connection:
            connection.cursor_factory = Silent
            try:
                yield connection
            finally:
                connection.cursor_factory = psycopg.AsyncCursor

    async def never(_: object) -> None:
        raise AssertionError("it runs")

    with pytest.raises(ConnectionUnfit, match="says that -1 rows were marked"):
        await PostgresGuard(lend, "orders").once(message(1), never)
    assert await bench.apply(message(1)), "it is not marked"


async def test_a_role_that_may_not_create_tables_finds_the_one_that_is_there(database: str) -> None:
    """PostgreSQL 15 lets nobody create in `public`, and refused what had nothing left to do."""
    role = f"member_{uuid.uuid4().hex}"
    shown = re.search(r"```sql\n(CREATE TABLE lbg_guard .*?)```", HANDLERS_PAGE.read_text(), re.DOTALL)
    assert shown is not None
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as admin:
        await admin.execute(f"CREATE ROLE {role} LOGIN")
        await admin.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
        await admin.execute(shown[1].replace("orders_member", role))
        await admin.execute(f"GRANT ALL ON effects, effects_position_seq TO {role}")
    async with open_pool(f"{database} user={role}", row_factory=dict_row) as pool:
        member = PostgresBench(pool)
        await member.guard.create_table()
        assert [await member.apply(message(1)) for _ in range(2)] == [True, False]
        assert await member.guard.forget(older_than_s=3_600) == 0
        # A table that only lies further down the search path may be somebody else's.
        async with await psycopg.AsyncConnection.connect(database, autocommit=True) as admin:
            await admin.execute(f"CREATE SCHEMA {role} AUTHORIZATION {role}")
        await member.guard.create_table()
        assert not await member.apply(message(1)), "a guard keeps to the table that it found"
        member = PostgresBench(pool)
        await member.guard.create_table()
        assert await member.apply(message(1)), "it has a table of its own now"


async def test_a_mark_from_before_there_were_digests_holds(bench: PostgresBench, pool: AsyncConnectionPool) -> None:
    key = "k" * 5_000
    async with pool.connection() as connection:
        row = ("orders", key, "p", 3)
        await connection.execute("INSERT INTO lbg_guard (scope, key, publisher, number) VALUES (%s, %s, %s, %s)", row)
    assert await bench.apply(message(2, key, "q")), "the mark is another publisher's"
    assert await PostgresBench(pool, "mails").apply(message(2, key)), "and another scope's"
    assert not await bench.apply(message(2, key))
    assert not await bench.apply(message(3, key))
    assert await bench.apply(message(4, key))
    assert not await bench.apply(message(4, key))


async def test_scopes_in_one_database_have_marks_of_their_own(bench: PostgresBench) -> None:
    other = PostgresBench(bench.pool, "mails")
    assert await bench.apply(message(1))
    assert await other.apply(message(1))


async def test_an_effect_that_returns_what_it_should_have_awaited_is_refused_and_not_marked(
    bench: PostgresBench,
) -> None:
    async def write(connection: psycopg.AsyncConnection) -> None:
        raise AssertionError("it runs")

    async def forgetful(connection: psycopg.AsyncConnection) -> object:
        return write(connection)

    async def lazy(connection: psycopg.AsyncConnection) -> object:
        return (each async for each in connection.cursor().stream("SELECT 1 / 0"))

    for effect in (forgetful, lazy):
        with pytest.raises(EffectNotRun):
            await bench.guard.once(message(1), effect)

    async def answering(connection: psycopg.AsyncConnection) -> object:
        return await connection.execute("INSERT INTO effects (key, text) VALUES ('k', 'booked')")

    assert await bench.guard.once(message(1), answering), "nothing was marked, and a cursor is no such thing"
    assert await bench.written() == ["booked"]


async def test_marks_that_were_not_raised_for_long_can_be_forgotten(bench: PostgresBench) -> None:
    other = PostgresBench(bench.pool, "mails")
    for key in ("k", "raised"):
        assert await bench.apply(message(1, key))
    assert await other.apply(message(1))
    assert await bench.guard.forget(older_than_s=3_600) == 0
    async with bench.pool.connection() as connection:
        await connection.execute("UPDATE lbg_guard SET marked_at = now() - interval '2 hours'")
    assert await bench.apply(message(2, "raised"))
    assert await bench.guard.forget(older_than_s=3_600) == 1
    assert await bench.apply(message(1))
    assert not await bench.apply(message(2, "raised")), "its mark is young"
    assert not await other.apply(message(1)), "its mark is not of this scope"


async def test_forget_waits_for_no_effect_and_keeps_the_mark_that_it_raises(bench: PostgresBench) -> None:
    """It waited for one that hung, and every key whose mark it had deleted by then waited with it."""
    for key in ("before", "k", "behind"):
        assert await bench.apply(message(1, key))
    async with asyncio.timeout(PATIENCE_S):
        hanging, may_end = await begun(bench, 2)
        assert await bench.guard.forget(older_than_s=0) == 2
        assert await bench.apply(message(1, "before")), "it is forgotten"
        may_end.set()
        assert await hanging
    assert not await bench.apply(message(2))


async def until_somebody_waits_for_a_lock(pool: AsyncConnectionPool) -> None:
    """The server has no event for it, so it is asked again and again."""
    async with asyncio.timeout(PATIENCE_S), pool.connection() as connection:
        while True:
            found = await connection.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
            if await found.fetchone() != (0,):
                return
            await asyncio.sleep(0.01)


async def test_an_effect_that_goes_on_after_a_failed_statement_is_found_out(bench: PostgresBench) -> None:
    async def effect(connection: psycopg.AsyncConnection) -> None:
        await connection.execute("INSERT INTO effects (key, text) VALUES ('k', 'booked')")
        with suppress(psycopg.errors.DivisionByZero):
            await connection.execute("SELECT 1 / 0")

    with pytest.raises(EffectSpoiledTransaction):
        await bench.guard.once(message(1), effect)
    assert await bench.written() == []

    async def with_savepoint(connection: psycopg.AsyncConnection) -> None:
        await connection.execute("INSERT INTO effects (key, text) VALUES ('k', 'booked')")
        with suppress(psycopg.errors.DivisionByZero):
            async with connection.transaction():
                await connection.execute("SELECT 1 / 0")

    assert await bench.guard.once(message(1), with_savepoint)
    assert await bench.written() == ["booked"]
