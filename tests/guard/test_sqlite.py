"""The SQLite guard between processes, and where its effects go wrong.

More than 400 lines, as each of them needs the same bench.
"""

import asyncio
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, closing, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from lbg_runtime.guard.protocol import EffectEndedTransaction, EffectNotRun
from lbg_runtime.guard.sqlite import LOCK_PATIENCE_S, SqliteEffect, SqliteGuard
from tests.guard.bench import SqliteBench, lets_sqlite_roll_back, message
from tests.patience import PATIENCE_S
from tests.processes import running

pytestmark = pytest.mark.real_time


DYING_MEMBER = """
import asyncio, os, sys
from lbg_runtime.guard.sqlite import SqliteGuard
from lbg_runtime.model.message import Message

def effect(database):
    database.execute("INSERT INTO effects (key, text) VALUES ('k', 'never')")
    os.kill(os.getpid(), 9)

stamps = {"JMSXGroupID": "k", "lbg_publisher": "p", "lbg_key_sequence": 1}
asyncio.run(SqliteGuard(sys.argv[1], "orders").once(Message("t", b"", stamps), effect))
"""

COUNTING_MEMBER = """
import asyncio, sys
from lbg_runtime.guard.sqlite import SqliteGuard
from lbg_runtime.model.message import Message

async def main():
    guard = SqliteGuard(sys.argv[1], "orders")
    applied = 0
    for number in range(1, 31):
        stamps = {"JMSXGroupID": "k", "lbg_publisher": "p", "lbg_key_sequence": number}
        write = lambda database: database.execute("INSERT INTO effects (key, text) VALUES ('k', ?)", (str(number),))
        applied += await guard.once(Message("t", b"", stamps), write)
    await guard.close()
    print(applied)

asyncio.run(main())
"""


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[SqliteBench]:
    made = SqliteBench(tmp_path / "effects.db")
    yield made
    await made.guard.close()


def member_of(program: str, path: Path) -> "AbstractContextManager[subprocess.Popen[str]]":
    return running([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True)


async def test_a_process_killed_between_effect_and_commit_leaves_nothing(bench: SqliteBench) -> None:
    with member_of(DYING_MEMBER, bench.path) as member:
        assert member.wait(PATIENCE_S) == -9
    assert await bench.written() == []
    assert await bench.apply(message(1)), "whoever gets the message next"
    assert await bench.written() == ["p1"]


async def test_two_processes_on_one_key_leave_every_effect_once(bench: SqliteBench) -> None:
    with member_of(COUNTING_MEMBER, bench.path) as one, member_of(COUNTING_MEMBER, bench.path) as other:
        applied = [int(member.communicate(timeout=PATIENCE_S)[0]) for member in (one, other)]
    written = [int(text) for text in await bench.written()]
    # What one of them skipped, the other was ahead with: no number twice, and none below one that is there.
    assert written == list(range(1, 31))
    assert sum(applied) == 30


async def test_the_loop_goes_on_while_an_effect_runs(bench: SqliteBench) -> None:
    may_end = threading.Event()
    loop_thread = threading.get_ident()
    ran_on: list[int] = []

    def meanwhile() -> None:
        ran_on.append(threading.get_ident())
        assert may_end.wait(PATIENCE_S)

    applying = asyncio.ensure_future(bench.apply(message(1), meanwhile=meanwhile))
    await asyncio.sleep(0)
    may_end.set()
    assert await applying
    assert ran_on != [loop_thread]


async def test_an_effect_whose_handler_was_cancelled_is_written_and_known(bench: SqliteBench) -> None:
    loop, begun, may_end = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def meanwhile() -> None:
        loop.call_soon_threadsafe(begun.set)
        assert may_end.wait(PATIENCE_S)

    applying = asyncio.ensure_future(bench.apply(message(1), meanwhile=meanwhile))
    await asyncio.wait_for(begun.wait(), PATIENCE_S)
    applying.cancel()
    await asyncio.wait([applying])
    assert applying.cancelled()
    may_end.set()
    assert not await bench.apply(message(1)), "the next attempt waits for it, and is told"
    assert await bench.written() == ["p1"]


WRITE = "INSERT INTO effects (key, text) VALUES ('k', 'without its mark')"


def commits(database: sqlite3.Connection) -> None:
    database.execute(WRITE)
    database.commit()


def commits_by_statement(database: sqlite3.Connection) -> None:
    database.execute(WRITE)
    database.execute("COMMIT")


def commits_by_with(database: sqlite3.Connection) -> None:
    with database:
        database.execute(WRITE)


def commits_by_script(database: sqlite3.Connection) -> None:
    database.executescript(WRITE)


def commits_by_isolation_level(database: sqlite3.Connection) -> None:
    database.execute(WRITE)
    database.isolation_level = None


def closes(database: sqlite3.Connection) -> None:
    with closing(database):
        database.execute(WRITE)


def begins_anew(database: sqlite3.Connection) -> None:
    try:
        database.execute("INSERT INTO missing VALUES (1)")
    except sqlite3.Error:
        database.rollback()
        database.execute("BEGIN")
        database.execute(WRITE)


def begins_anew_whatever_it_is_told(database: sqlite3.Connection) -> None:
    for statement in ("ROLLBACK", "BEGIN", WRITE):
        with suppress(sqlite3.Error):
            database.execute(statement)


def goes_on_after_sqlite_rolled_back(database: sqlite3.Connection) -> None:
    lets_sqlite_roll_back(database)
    database.execute(WRITE)


def begins_anew_with_a_savepoint(database: sqlite3.Connection) -> None:
    lets_sqlite_roll_back(database)
    database.execute("SAVEPOINT anew")
    database.execute(WRITE)


@pytest.mark.parametrize(
    "effect",
    [
        commits,
        commits_by_statement,
        commits_by_with,
        commits_by_script,
        commits_by_isolation_level,
        closes,
        begins_anew,
        begins_anew_whatever_it_is_told,
        lets_sqlite_roll_back,
        goes_on_after_sqlite_rolled_back,
    ],
)
async def test_an_effect_that_ends_the_transaction_is_told_and_leaves_neither_itself_nor_a_broken_guard(
    bench: SqliteBench, effect: SqliteEffect
) -> None:
    assert await bench.apply(message(1))
    for _ in range(2):
        with pytest.raises(EffectEndedTransaction):
            await bench.guard.once(message(2), effect)
        assert await bench.written() == ["p1"]
    assert await bench.apply(message(2))
    assert await bench.guard.forget(older_than_s=3_600) == 0
    assert await bench.written() == ["p1", "p2"]


async def test_an_effect_that_begins_a_transaction_after_sqlite_rolled_back_is_not_written_without_its_mark(
    bench: SqliteBench,
) -> None:
    with pytest.raises(sqlite3.OperationalError, match="no such savepoint"):
        await bench.guard.once(message(1), begins_anew_with_a_savepoint)
    assert await bench.written() == []
    assert await bench.apply(message(1))


async def test_a_connection_that_an_effect_has_begin_transactions_by_itself_is_replaced(bench: SqliteBench) -> None:
    # Before Python 3.12 an attribute like any other.
    assert await bench.guard.once(message(1), lambda database: setattr(database, "autocommit", False))
    assert await bench.apply(message(2))


async def test_an_effect_may_have_savepoints(bench: SqliteBench) -> None:
    def effect(database: sqlite3.Connection) -> None:
        database.execute("SAVEPOINT attempt")
        database.execute(WRITE)
        database.execute("ROLLBACK TO attempt")
        database.execute("RELEASE attempt")
        database.execute("INSERT INTO effects (key, text) VALUES ('k', 'kept')")

    assert await bench.guard.once(message(1), effect)
    assert await bench.written() == ["kept"]


async def test_what_was_answered_outlives_a_power_cut_and_readers_keep_nobody_waiting(bench: SqliteBench) -> None:
    found: list[object] = []

    def look(database: sqlite3.Connection) -> None:
        for what in ("journal_mode", "synchronous"):
            found.extend(database.execute(f"PRAGMA {what}").fetchone())

    assert await bench.guard.once(message(1), look)
    full = 2
    assert found == ["wal", full]


async def test_a_lock_is_tried_often_enough_to_meet_a_short_gap(
    bench: SqliteBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await bench.apply(message(1))
    somebody = sqlite3.connect(bench.path, isolation_level=None, check_same_thread=False)
    somebody.execute("BEGIN IMMEDIATE")
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 100:
            somebody.execute("ROLLBACK")

    monkeypatch.setattr("lbg_runtime.guard.sqlite.time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    assert await bench.apply(message(2))
    somebody.close()
    assert sum(waits) <= 0.2


async def test_a_cursor_that_an_effect_left_half_read_does_not_keep_the_guard_from_writing(
    bench: SqliteBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[object] = []
    monkeypatch.setattr("lbg_runtime.guard.sqlite.LOCK_PATIENCE_S", 1.0)
    assert await bench.apply(message(1))
    assert await bench.apply(message(2))
    assert await bench.guard.once(message(3), lambda database: left.append(database.execute("SELECT * FROM effects")))
    with closing(sqlite3.connect(bench.path, isolation_level=None)) as somebody:
        somebody.execute("INSERT INTO effects (key, text) VALUES ('other', 'of another process')")
    assert await bench.apply(message(4))


async def test_a_database_of_an_earlier_version_is_taken_over_once_its_readers_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lbg_runtime.guard.sqlite.LOCK_PATIENCE_S", 0.01)
    path = tmp_path / "marks.db"
    guard = SqliteGuard(path, "orders")
    with closing(sqlite3.connect(path)) as reader:
        reader.execute("CREATE TABLE mine (number)")
        reader.execute("INSERT INTO mine VALUES (1), (2)")
        reader.commit()
        half_read = reader.execute("SELECT * FROM mine")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            await guard.once(message(1), lambda _: None)
        half_read.close()
        assert await guard.once(message(1), lambda _: None)
    await guard.close()
    assert not path.with_name("marks.db-wal").exists(), "SQLite removes it with the last connection"


async def test_a_lock_that_somebody_keeps_fails_the_attempt_and_not_the_guard(
    bench: SqliteBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lbg_runtime.guard.sqlite.LOCK_PATIENCE_S", 0.01)
    assert await bench.apply(message(1))
    somebody = sqlite3.connect(bench.path, isolation_level=None)
    somebody.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        await bench.apply(message(2))
    somebody.execute("ROLLBACK")
    somebody.close()
    assert await bench.apply(message(2))


async def test_what_comes_while_somebody_keeps_the_lock_is_waited_for_as_long_as_what_came_first(
    bench: SqliteBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await bench.apply(message(1))
    somebody = sqlite3.connect(bench.path, isolation_level=None, check_same_thread=False)
    somebody.execute("BEGIN IMMEDIATE")
    seconds: list[float] = []

    def sleep(_: float) -> None:
        seconds.append(1)
        if len(seconds) == 25:
            somebody.execute("ROLLBACK")

    clock = SimpleNamespace(monotonic=lambda: 1_000.0 + len(seconds), sleep=sleep)
    monkeypatch.setattr("lbg_runtime.guard.sqlite.time", clock)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        await bench.apply(message(2))
    assert len(seconds) == LOCK_PATIENCE_S
    assert await bench.apply(message(2))
    somebody.close()


async def test_a_database_that_the_disk_let_nobody_open_for_writing_is_opened_anew_for_the_next_attempt(
    bench: SqliteBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite opens it for reading then, as on a disk that was read-only for a while, and such a connection stays so."""
    assert await bench.apply(message(1))
    await bench.guard.close()
    for_reading = partial(sqlite3.connect, f"file:{bench.path}?mode=ro", uri=True)
    with monkeypatch.context() as ill:
        ill.setattr(sqlite3, "connect", lambda _, **given: for_reading(**given))
        for _ in range(2):
            with pytest.raises(sqlite3.OperationalError, match="readonly database"):
                await bench.apply(message(2))
    assert await bench.apply(message(2))
    assert await bench.written() == ["p1", "p2"]


async def test_scopes_in_one_database_have_marks_of_their_own(bench: SqliteBench) -> None:
    other = SqliteBench(bench.path, "mails")
    assert await bench.apply(message(1))
    assert await other.apply(message(1))
    await other.guard.close()


async def test_marks_that_were_not_raised_for_long_can_be_forgotten(bench: SqliteBench) -> None:
    other = SqliteBench(bench.path, "mails")
    for key in ("k", "raised"):
        assert await bench.apply(message(1, key))
    assert await other.apply(message(1))
    assert await bench.guard.forget(older_than_s=3_600) == 0
    with sqlite3.connect(bench.path) as database:
        database.execute("UPDATE lbg_guard SET marked_at = datetime('now', '-2 hours')")
    database.close()
    assert await bench.apply(message(2, "raised"))
    assert await bench.guard.forget(older_than_s=3_600) == 1
    assert await bench.apply(message(1))
    assert not await bench.apply(message(2, "raised")), "its mark is young"
    assert not await other.apply(message(1)), "its mark is not of this scope"
    await other.guard.close()


async def test_marks_that_could_not_be_forgotten_do_not_keep_the_guard_from_writing(bench: SqliteBench) -> None:
    assert await bench.apply(message(1))
    with sqlite3.connect(bench.path) as database:
        database.execute("UPDATE lbg_guard SET marked_at = datetime('now', '-2 hours')")
        database.execute(
            "CREATE TRIGGER keep BEFORE DELETE ON lbg_guard BEGIN SELECT RAISE(ABORT, 'kept by a trigger'); END"
        )
    database.close()
    with pytest.raises(sqlite3.IntegrityError, match="kept by a trigger"):
        await bench.guard.forget(older_than_s=3_600)
    assert await bench.apply(message(2))


async def test_a_guard_that_was_closed_can_be_used_again(tmp_path: Path) -> None:
    guard = SqliteGuard(tmp_path / "marks.db", "orders")
    assert await guard.once(message(1), lambda _: None)
    await guard.close()
    assert not await guard.once(message(1), lambda _: None)
    await guard.close()


@pytest.mark.parametrize("kind", ["async def", "async generator", "map"])
async def test_an_effect_that_has_not_run_is_refused_and_not_marked(bench: SqliteBench, kind: str) -> None:
    async def effect(database: sqlite3.Connection) -> None:
        raise AssertionError("it runs")

    async def generator(database: sqlite3.Connection) -> AsyncIterator[None]:
        yield

    def lazy(database: sqlite3.Connection) -> Iterator[object]:
        return map(database.execute, ["SELECT no_such_column"])

    effects = {"async def": effect, "async generator": generator, "map": lazy}
    with pytest.raises(EffectNotRun):
        await bench.guard.once(message(1), effects[kind])
    assert await bench.apply(message(1))


async def test_an_effect_that_finds_no_row_fails_at_once(bench: SqliteBench) -> None:
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(RuntimeError, match="StopIteration"):
            await bench.guard.once(message(1), lambda database: next(database.execute("SELECT 1 WHERE 0")))
    assert await bench.apply(message(1))
