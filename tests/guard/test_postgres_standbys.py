"""The PostgreSQL guard where a standby stands behind the server, and takes over: what docs/handlers.md says of it."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count

import psycopg
import pytest

from tests.guard.bench import CREATE_EFFECTS, PostgresBench, message
from tests.guard.conftest import open_pool
from tests.guard.postgres_server import Server, program, running_server, running_standby
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.real_time


@pytest.fixture
def primary() -> Iterator[Server]:
    if any(program(name) is None for name in ("initdb", "pg_ctl", "pg_basebackup")):
        pytest.skip("no PostgreSQL server on this machine (Debian's package `postgresql`)")
    with running_server() as server:
        with psycopg.connect(server.conninfo) as connection:
            connection.execute(CREATE_EFFECTS)
        yield server


@asynccontextmanager
async def opened(server: Server) -> AsyncIterator[PostgresBench]:
    async with open_pool(server.conninfo) as pool:
        bench = PostgresBench(pool)
        await bench.guard.create_table()
        yield bench


async def test_a_copy_is_told_so_only_when_the_standby_has_what_was_written_first(primary: Server) -> None:
    """If the first is cancelled while its commit waits for a standby, it has committed, and others see its mark."""
    async with (
        opened(primary) as bench,
        await psycopg.AsyncConnection.connect(primary.conninfo, autocommit=True) as admin,
        asyncio.timeout(PATIENCE_S),
    ):
        await wait_for_standby(admin, "away")
        try:
            # The server takes the setting when it gets to it.
            for number in count(1):
                last = asyncio.ensure_future(bench.apply(message(number)))
                if await waits_for_a_standby(admin, last):
                    break
            last.cancel()
            await asyncio.wait([last])
            assert last.cancelled()
            assert await bench.written() == [f"p{each}" for each in range(1, number + 1)]
            copy = asyncio.ensure_future(bench.apply(message(number)))
            assert await waits_for_a_standby(admin, copy), "it was answered"
        finally:
            await wait_for_standby(admin, "")
        assert not await copy


async def test_a_standby_that_takes_over_has_each_effect_with_its_mark_or_neither(primary: Server) -> None:
    async with opened(primary) as bench:
        assert await bench.apply(message(1))
        with running_standby(primary) as standby:
            assert await bench.apply(message(2)), "the standby is not sent this, and nobody waits for it"
            primary.stop()
            async with opened(standby) as other:
                with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
                    await other.apply(message(2))
                standby.promote()
                assert await other.written() == ["p1"]
                assert [await other.apply(message(number)) for number in (1, 2, 2)] == [False, True, False]
                assert await other.written() == ["p1", "p2"]


async def wait_for_standby(admin: psycopg.AsyncConnection, name: str) -> None:
    await admin.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
    await admin.execute("SELECT pg_reload_conf()")


async def waits_for_a_standby(admin: psycopg.AsyncConnection, applying: asyncio.Future[bool]) -> bool:
    """Whether it waits for one, and has not ended; the server has no event for it, so it is asked again and again."""
    while not applying.done():
        found = await admin.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
        if await found.fetchone() != (0,):
            return True
        await asyncio.sleep(0.01)
    return False
