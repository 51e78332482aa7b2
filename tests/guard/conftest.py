"""The adapters under test; PostgreSQL from a server that the run starts for itself."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool

from tests.guard.bench import CREATE_EFFECTS, Bench, MemoryBench, PostgresBench, SqliteBench
from tests.guard.postgres_server import program, running_server

END_OTHERS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
# A new database for each test takes a tenth of a second, and as long again to delete when the server has ended.
EMPTY = """
DO $$ DECLARE place regnamespace; BEGIN
    FOR place IN SELECT oid FROM pg_namespace WHERE nspname !~ '^pg_|^information_schema$' LOOP
        EXECUTE format('DROP SCHEMA %s CASCADE', place);
    END LOOP;
    CREATE SCHEMA public;
    GRANT USAGE ON SCHEMA public TO PUBLIC;
END $$
"""


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    if program("initdb") is None or program("pg_ctl") is None:
        pytest.skip("no PostgreSQL server on this machine (Debian's package `postgresql`)")
    with running_server() as server:
        yield server.conninfo


@pytest.fixture
def database(postgres_server: str) -> str:
    """An empty database with the table of the effects; what to connect with."""
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        # Whoever is left of a test that failed would hold the tables.
        connection.execute(END_OTHERS)
        connection.execute(EMPTY)
        connection.execute(CREATE_EFFECTS)
    return postgres_server


@asynccontextmanager
async def open_pool(conninfo: str, **options: object) -> AsyncIterator[AsyncConnectionPool]:
    pool = AsyncConnectionPool(conninfo, min_size=2, max_size=8, open=False, timeout=30, kwargs=options)
    await pool.open(wait=True)
    try:
        yield pool
    finally:
        await pool.close()


@pytest.fixture
async def pool(database: str) -> AsyncIterator[AsyncConnectionPool]:
    async with open_pool(database) as pool:
        yield pool


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    if request.param == "memory":
        yield MemoryBench()
    elif request.param == "sqlite":
        made = SqliteBench(tmp_path / "effects.db")
        yield made
        await made.guard.close()
    else:
        async with open_pool(request.getfixturevalue("database")) as pool:
            bench = PostgresBench(pool)
            await bench.guard.create_table()
            yield bench
