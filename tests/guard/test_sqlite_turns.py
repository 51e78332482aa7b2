"""Effects of the SQLite guard that share a transaction."""

import asyncio
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from lbg_runtime.guard.protocol import EffectEndedTransaction, EffectUndone
from lbg_runtime.guard.sqlite import SqliteGuard
from tests.guard.bench import Crash, SqliteBench, lets_sqlite_roll_back, message
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.real_time


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[SqliteBench]:
    made = SqliteBench(tmp_path / "effects.db")
    yield made
    await made.guard.close()


@pytest.fixture
def long_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lbg_runtime.guard.sqlite._LONGEST_TURN_S", 3_600.0)


class Turn:
    """A transaction whose first effect has begun and not ended, so that what is asked for now waits for a turn."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.may_go_on = threading.Event()
        self.commit_count = 0

    def trace(self, statement: str) -> None:
        self.commit_count += statement.startswith("COMMIT")


@asynccontextmanager
async def turn_of(bench: SqliteBench) -> AsyncIterator[Turn]:
    loop, turn = asyncio.get_running_loop(), Turn()

    def first(database: sqlite3.Connection) -> None:
        database.set_trace_callback(turn.trace)
        loop.call_soon_threadsafe(turn.begun.set)
        assert turn.may_go_on.wait(PATIENCE_S)

    first_one = asyncio.ensure_future(bench.guard.once(message(1, key="first"), first))
    await asyncio.wait_for(turn.begun.wait(), PATIENCE_S)
    try:
        yield turn
    finally:
        turn.may_go_on.set()
        await asyncio.wait([first_one])


async def asked(*awaitables: Awaitable[bool]) -> list[asyncio.Future[bool]]:
    """Tasks that have come as far as to wait for the guard."""
    futures = [asyncio.ensure_future(each) for each in awaitables]
    await asyncio.sleep(0)
    return futures


@pytest.mark.usefixtures("long_turns")
async def test_effects_that_wait_share_a_transaction_and_fail_alone(bench: SqliteBench) -> None:
    class Abort(BaseException):
        """Caught by nobody who catches only exceptions."""

    def aborts(_: object) -> None:
        raise Abort

    async with turn_of(bench) as turn:
        futures = await asked(
            bench.apply(message(1)),
            bench.apply(message(2), crash=True),
            bench.guard.once(message(1, key="third"), aborts),
            bench.apply(message(1)),
            bench.apply(message(3, key="other")),
        )
        turn.may_go_on.set()
        one, crashed, aborted, again, other = await asyncio.gather(*futures, return_exceptions=True)
    assert (one, again, other) == (True, False, True)
    assert isinstance(crashed, Crash)
    assert isinstance(aborted, Abort)
    assert turn.commit_count == 1
    assert await bench.written() == ["p1"]
    assert await bench.apply(message(2)), "it is not marked"


@pytest.mark.usefixtures("long_turns")
async def test_an_effect_whose_commit_is_refused_fails_alone_too(bench: SqliteBench) -> None:
    async with turn_of(bench) as turn:
        futures = await asked(
            bench.apply(message(1)), bench.guard.once(message(2), sqlite3.Connection.commit), bench.apply(message(3))
        )
        turn.may_go_on.set()
        one, refused, three = await asyncio.gather(*futures, return_exceptions=True)
    assert (one, three) == (True, True)
    assert isinstance(refused, EffectEndedTransaction)
    assert await bench.written() == ["p1", "p3"]


@pytest.mark.usefixtures("long_turns")
async def test_no_effect_is_answered_before_the_commit(bench: SqliteBench) -> None:
    loop, begun, may_end = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def meanwhile() -> None:
        loop.call_soon_threadsafe(begun.set)
        assert may_end.wait(PATIENCE_S)

    async with turn_of(bench) as turn:
        one, last = await asked(bench.apply(message(1)), bench.apply(message(2), meanwhile=meanwhile))
        turn.may_go_on.set()
        await asyncio.wait_for(begun.wait(), PATIENCE_S)
        assert await bench.written() == []
        assert not one.done()
        may_end.set()
        assert await one
        assert await bench.written() == ["p1", "p2"]
        assert await last


@pytest.mark.usefixtures("long_turns")
async def test_a_commit_that_fails_fails_all_that_it_was_for(
    bench: SqliteBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def commit(_: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as broken:
        broken.setattr("lbg_runtime.guard.sqlite._Lent.commit", commit)
        async with turn_of(bench) as turn:
            attempts = bench.apply(message(1)), bench.apply(message(1)), bench.apply(message(2), crash=True)
            futures = await asked(*attempts)
            turn.may_go_on.set()
            one, again, crashed = await asyncio.gather(*futures, return_exceptions=True)
        assert isinstance(one, EffectUndone)
        assert isinstance(again, EffectUndone)
        assert one is not again, "a traceback for each"
        assert isinstance(one.__cause__, sqlite3.OperationalError)
        assert isinstance(crashed, Crash)
        with pytest.raises(sqlite3.OperationalError, match="disk I/O error"):
            await bench.apply(message(1))
    assert await bench.written() == []
    assert await bench.apply(message(1))


@pytest.mark.usefixtures("long_turns")
async def test_a_constraint_that_is_checked_at_the_commit_is_the_failure_of_its_own_effect_alone(
    bench: SqliteBench,
) -> None:
    def leaves_it_broken(database: sqlite3.Connection) -> None:
        database.execute("CREATE TABLE parents (number INTEGER PRIMARY KEY)")
        database.execute("CREATE TABLE children (parent REFERENCES parents DEFERRABLE INITIALLY DEFERRED)")
        database.execute("INSERT INTO children VALUES (7)")

    def opened() -> None:
        bench.guard._open().execute("PRAGMA foreign_keys = ON")

    await bench.guard._on_thread(opened)
    for expected in ([EffectUndone, EffectUndone], [bool, sqlite3.IntegrityError]):
        async with turn_of(bench) as turn:
            futures = await asked(bench.apply(message(1)), bench.guard.once(message(2, key="other"), leaves_it_broken))
            turn.may_go_on.set()
            answers = await asyncio.gather(*futures, return_exceptions=True)
        assert [type(each) for each in answers] == expected
        # A lost transaction closes the connection, and with it the setting.
        await bench.guard._on_thread(opened)
    assert await bench.written() == ["p1"]


@pytest.mark.usefixtures("long_turns")
async def test_an_effect_with_which_sqlite_rolls_back_costs_others_one_attempt_at_most(bench: SqliteBench) -> None:
    for expected in ([EffectUndone, EffectEndedTransaction, bool], [bool, EffectEndedTransaction, bool]):
        async with turn_of(bench) as turn:
            futures = await asked(
                bench.apply(message(1)),
                bench.guard.once(message(2, key="other"), lets_sqlite_roll_back),
                bench.apply(message(3, key="third")),
            )
            turn.may_go_on.set()
            answers = await asyncio.gather(*futures, return_exceptions=True)
        assert [type(each) for each in answers] == expected
    assert await bench.written() == ["p1"]


async def test_after_a_long_turn_the_lock_is_left_to_those_who_poll_for_it(
    bench: SqliteBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_s: list[float] = []

    def others_poll(seconds: float) -> None:
        with sqlite3.connect(bench.path, timeout=0) as other:
            other.execute("BEGIN IMMEDIATE")
        other.close()
        left_s.append(seconds)

    now_s = 100.0
    clock = SimpleNamespace(monotonic=lambda: now_s, sleep=others_poll)
    monkeypatch.setattr("lbg_runtime.guard.sqlite.time", clock)

    def slow(_: object) -> None:
        nonlocal now_s
        now_s += 0.06

    assert await bench.guard.once(message(1), slow)
    assert await bench.apply(message(2))
    assert await bench.guard.once(message(3), slow)
    assert len(left_s) == 2
    assert min(left_s) > 2 * 0.001, "longer than the pause of those who poll"


async def test_a_turn_ends_so_that_others_get_the_lock(bench: SqliteBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lbg_runtime.guard.sqlite._LONGEST_TURN_S", 0.0)
    async with turn_of(bench) as turn:
        futures = await asked(*(bench.apply(message(number)) for number in (1, 2, 3)))
        turn.may_go_on.set()
        assert await asyncio.gather(*futures) == [True] * 3
    assert turn.commit_count == 4


@pytest.mark.usefixtures("long_turns")
async def test_an_effect_whose_handler_was_cancelled_before_its_turn_never_begins(bench: SqliteBench) -> None:
    async with turn_of(bench) as turn:
        (gone,) = await asked(bench.apply(message(1)))
        gone.cancel()
        await asyncio.wait([gone])
        turn.may_go_on.set()
        assert await bench.apply(message(2))
    assert await bench.written() == ["p2"]


async def test_an_effect_whose_handler_was_cancelled_while_it_waited_for_the_lock_never_begins(
    bench: SqliteBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer had been waited for without end, one empty transaction after the other."""
    waits, may_go_on = asyncio.Event(), threading.Event()
    tell = asyncio.get_running_loop().call_soon_threadsafe
    begin, begun = SqliteGuard._begin, []

    def wait_and_begin(guard: SqliteGuard, until_s: float) -> object:
        begun.append(until_s)
        if len(begun) == 1:
            tell(waits.set)
            assert may_go_on.wait(PATIENCE_S)
        assert len(begun) < 10, "it goes on without end"
        return begin(guard, until_s)

    monkeypatch.setattr(SqliteGuard, "_begin", wait_and_begin)
    (gone,) = await asked(bench.apply(message(1)))
    async with asyncio.timeout(PATIENCE_S):
        await waits.wait()
        gone.cancel()
        await asyncio.wait([gone])
        may_go_on.set()
        assert await bench.apply(message(2))
    assert await bench.written() == ["p2"]
    assert len(begun) <= 2


async def test_an_effect_that_failed_for_want_of_the_lock_does_not_begin_before_its_handler_knows(
    bench: SqliteBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, second_has_begun = SqliteGuard._begin, threading.Event()
    failures = [sqlite3.OperationalError("database is locked")]

    def fail_once(guard: SqliteGuard, until_s: float) -> object:
        if failures:
            raise failures.pop()
        return begin(guard, until_s)

    monkeypatch.setattr(SqliteGuard, "_begin", fail_once)
    first, second = await asked(
        bench.apply(message(1)), bench.apply(message(1, key="other"), meanwhile=second_has_begun.set)
    )
    # On the loop's thread, so that no handler can hear of anything meanwhile.
    assert second_has_begun.wait(PATIENCE_S)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        await first
    assert await second
    assert await bench.written() == []
    assert await bench.apply(message(1)), "it is not marked"


async def test_an_effect_that_raises_beside_a_half_read_cursor_holds_nobody_up(bench: SqliteBench) -> None:
    def half_read(database: sqlite3.Connection) -> None:
        rows = database.execute("INSERT INTO effects (key, text) VALUES ('k', 'a'), ('k', 'b') RETURNING position")
        assert rows.fetchone()
        raise Crash

    with pytest.raises(Crash) as kept:
        await bench.guard.once(message(1), half_read)
    assert await bench.apply(message(1, key="other"))
    assert await bench.apply(message(2))
    assert await bench.written() == ["p2"]
    assert kept.tb is not None, "with all that its frames hold"


async def test_a_savepoint_of_an_effect_is_not_that_of_the_guard(bench: SqliteBench) -> None:
    def with_savepoint(database: sqlite3.Connection) -> None:
        database.execute("SAVEPOINT lbg_guard")
        raise Crash

    with pytest.raises(Crash):
        await bench.guard.once(message(1), with_savepoint)
    assert await bench.apply(message(1)), "it is not marked"


def test_who_has_waited_behind_slow_effects_still_waits_for_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = SqliteGuard(tmp_path / "effects.db", "orders")
    guard._open()
    other = sqlite3.connect(tmp_path / "effects.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: other.execute("ROLLBACK"))
    monkeypatch.setattr("lbg_runtime.guard.sqlite.time", clock)
    # Its own patience was over before the lock was tried.
    assert guard._begin(0.0).in_transaction
    guard._close()
    other.close()


def test_a_lock_that_others_once_kept_is_forgotten_when_it_was_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = SqliteGuard(tmp_path / "effects.db", "orders")
    guard._open()
    other = sqlite3.connect(tmp_path / "effects.db", isolation_level=None)
    times = [0.0]
    clock = SimpleNamespace(monotonic=lambda: times[0], sleep=lambda _: other.execute("ROLLBACK"))
    monkeypatch.setattr("lbg_runtime.guard.sqlite.time", clock)
    for times[0] in (1_000.0, 2_000.0):
        other.execute("BEGIN IMMEDIATE")
        # As above: it has waited behind slow effects of our own.
        guard._begin(0.0).rollback()
    guard._close()
    other.close()
