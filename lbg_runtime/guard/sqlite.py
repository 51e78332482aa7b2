"""A guard over an SQLite database, for members on one host that share its file."""

import asyncio
import sqlite3
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from lbg_runtime.guard.protocol import EffectEndedTransaction, EffectUndone, TextNotHeld, place_of, refuse_awaitable
from lbg_runtime.model.message import FencingToken, Message

SqliteEffect = Callable[[sqlite3.Connection], object]
"""Writes the effect, on the guard's thread. Must not commit, roll back (savepoints are its own affair) or close the
connection (`executescript` and `with connection:` commit), nor touch anything of the event loop's; its return value is
ignored, unless that is something that has not run."""

Answer = TypeVar("Answer")

LOCK_PATIENCE_S = 20.0
"""How long an effect waits while other processes keep the lock; then it raises `sqlite3.OperationalError`.

Shorter than the usual time-out of an attempt, so that the failure says what it waited for."""

_POLL_S = 0.001
"""How often the lock is tried. SQLite itself waits up to 0.1 s in between, and so hardly ever meets the moment at which
a process that writes all the time does not hold it."""

_LONGEST_TURN_S = 0.05
"""For how long a transaction takes on effects, while other processes wait for the lock. One is always taken."""

_BREATH_S = 3 * _POLL_S
"""For how long the lock is left alone after such a turn: taken again at once, those who poll hardly ever meet it."""

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
# A name that no savepoint of an effect can have: the mark would be kept with that one rolled back instead.
_PLACE = f"lbg_guard_{uuid4().hex}"
_SAVEPOINT, _ROLL_BACK, _RELEASE = (f"{verb} {_PLACE}" for verb in ("SAVEPOINT", "ROLLBACK TO", "RELEASE"))
_FORGET = "DELETE FROM lbg_guard WHERE scope = ? AND marked_at < datetime('now', ?)"


class _Lent(sqlite3.Connection):
    """The connection as effects get it: what would end the guard's transaction is refused at its line, and noted."""

    is_lent = False
    is_misused = False

    def authorize(self, action: int, *_: object) -> int:
        """SQLite's question about a statement that it compiles."""
        return self._refuse() if action == sqlite3.SQLITE_TRANSACTION and self.is_lent else sqlite3.SQLITE_OK

    def close(self) -> None:
        if self.is_lent:
            self._refuse()
            raise sqlite3.ProgrammingError("the guard closes the connection")
        super().close()

    def _refuse(self) -> int:
        self.is_misused = True
        return sqlite3.SQLITE_DENY


@dataclass(slots=True, eq=False)
class _Waiting:
    """An effect, from the call of `once` until the transaction that had it has ended."""

    key: str
    token: FencingToken
    effect: SqliteEffect
    until_s: float
    """Until when it waits for a lock that others keep, by `time.monotonic`."""
    answer: bool | BaseException | None = None
    is_given_up: bool = False
    """Nobody waits for the answer: an effect that has not begun never does."""


class SqliteGuard:
    """A `Guard[SqliteEffect]`. Opens the database on first use, on a thread of its own, and creates its table there.

    It puts the database into WAL mode, for good: the file must lie on a disk of this host, in a folder where all who
    use the database may write. What `once` has answered is synced to that disk.

    One transaction at a time, which SQLite requires anyway. It takes all effects that wait, for as long as its turn
    lasts, each in a savepoint: one that raises leaves the others as they are. Only if the whole transaction is lost all
    of them fail, with `EffectUndone` unless it was that of one alone; from then on each has a transaction of its own.
    An effect is called at most once for each call of `once`. One that has begun goes on if its handler is cancelled,
    and may be written; the next attempt is then told so.
    """

    def __init__(self, path: Path | str, scope: str) -> None:
        self._path = path
        self._scope = scope
        self._connection: _Lent | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lbg-guard")
        self._waiting: deque[_Waiting] = deque()
        self._together = True
        self._locked_since_s: float | None = None
        """Since when others have had the lock whenever it was tried, by `time.monotonic`."""

    async def once(self, message: Message, effect: SqliteEffect) -> bool:
        key, token = place_of(message)
        mine = _Waiting(key, token, effect, time.monotonic() + LOCK_PATIENCE_S)
        self._waiting.append(mine)
        try:
            return await self._on_thread(lambda: self._answer(mine))
        finally:
            mine.is_given_up = True

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

    def _answer(self, mine: _Waiting) -> bool:
        """Its answer: most often there already, from the transaction of an effect that waited at the same time."""
        try:
            while mine.answer is None and not mine.is_given_up:
                self._write_waiting(mine.until_s)
        finally:
            # Also if the lock was not to be had: the caller is told that nothing is written.
            mine.is_given_up = True
        answer, mine.answer = mine.answer, None
        try:
            if isinstance(answer, BaseException):
                raise answer
            return answer is True
        finally:
            # Its traceback holds this frame and the effect's, perhaps with a half read cursor, which would keep the
            # database busy until the collector finds the cycle.
            del answer

    def _write_waiting(self, until_s: float) -> None:
        """One transaction: answers the effect that has waited longest, and others as long as its turn lasts."""
        connection = self._begin(until_s)
        end_s = time.monotonic() + _LONGEST_TURN_S
        begun: list[_Waiting] = []
        is_lost = False
        try:
            while self._waiting and (not begun or (self._together and time.monotonic() < end_s)):
                waiting = self._waiting.popleft()
                if waiting.is_given_up:
                    continue
                begun.append(waiting)
                self._write(waiting, connection)
                if connection.is_misused:
                    break
            # By method: `execute` would keep a compiled COMMIT, about which an effect that executes it is not asked.
            connection.commit()
        except BaseException as error:  # noqa: BLE001 - for the callers, none of which may be told True
            # To call the others again would be no help: what an effect reads from, such as a generator, may be used up.
            for waiting in begun:
                if not isinstance(waiting.answer, BaseException):
                    # Whose fault it was is not to be seen if several may have it.
                    waiting.answer = error if len(begun) == 1 else self._undone(error)
            # Whoever caused this is tried again, and shall not cost others an attempt each time.
            self._together = False
            is_lost = True
        finally:
            # Before it is closed: a cursor that an effect left half read would keep the lock.
            connection.rollback()
            if is_lost or connection.is_misused or connection.in_transaction:
                # It may not be as it was: such a cursor keeps savepoints from being released, Python sets an isolation
                # level before the commit that this means, and one whose `autocommit` was set to False (Python 3.12)
                # begins a transaction whenever one ends.
                self._close()
        if time.monotonic() >= end_s:
            time.sleep(_BREATH_S)

    def _undone(self, error: BaseException) -> EffectUndone:
        undone = EffectUndone(self._scope)
        undone.__cause__ = error
        return undone

    def _write(self, waiting: _Waiting, connection: _Lent) -> None:
        """Mark and effect, or neither, and the answer; raises if the whole transaction is lost."""
        connection.execute(_SAVEPOINT)
        try:
            row = (self._scope, waiting.key, waiting.token.publisher, waiting.token.number)
            try:
                is_new = connection.execute(_MARK, row).rowcount > 0
            except UnicodeEncodeError as error:
                raise TextNotHeld(self._scope, "UTF-8") from error
            if is_new:
                self._run(waiting.effect, connection)
            connection.execute(_RELEASE)
            waiting.answer = is_new
        except BaseException as error:  # noqa: BLE001 - the caller's, and this thread goes on
            waiting.answer = error
            try:
                connection.execute(_ROLL_BACK)
                connection.execute(_RELEASE)
            except sqlite3.Error:
                # SQLite has rolled back everything, as for `INSERT OR ROLLBACK` or a full disk.
                raise EffectUndone(self._scope) from error

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
        # SQLite itself may have rolled back.
        if connection.is_misused or not connection.in_transaction:
            raise EffectEndedTransaction(self._scope)

    def _forget(self, older_than_s: int) -> int:
        connection = self._begin(time.monotonic() + LOCK_PATIENCE_S)
        try:
            count = connection.execute(_FORGET, (self._scope, f"-{older_than_s} seconds")).rowcount
            connection.commit()
            return count
        finally:
            connection.rollback()

    def _begin(self, until_s: float) -> _Lent:
        while True:
            try:
                connection = self._open()
                # Take the write lock at once: a transaction that begins by reading may be refused it later.
                connection.execute("BEGIN IMMEDIATE")
                self._locked_since_s = None
                return connection
            except sqlite3.OperationalError as error:
                is_locked = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
                now_s = time.monotonic()
                if is_locked and self._locked_since_s is None:
                    self._locked_since_s = now_s
                # Not only by when this began to wait: that may have been behind slow effects of our own.
                if not is_locked or now_s >= max(until_s, (self._locked_since_s or now_s) + LOCK_PATIENCE_S):
                    raise
                if error.sqlite_errorcode == sqlite3.SQLITE_BUSY_SNAPSHOT:
                    # A cursor that an effect, or the traceback of its failure, left half read: the connection still
                    # sees what was there then, and may not write over what others have written since.
                    self._close()
            time.sleep(_POLL_S)

    def _open(self) -> _Lent:
        if self._connection is None:
            # With Python's implicit transactions: if SQLite rolls back within an effect, the effect's next change
            # begins one, which is refused, and is not committed by itself.
            # Without SQLite's own wait for the lock: see `_POLL_S`.
            connection = sqlite3.connect(self._path, timeout=0, factory=_Lent)
            try:
                # One sync for a transaction instead of several, and whoever reads keeps nobody from writing. A build of
                # SQLite may have another default than FULL, with which a power cut would take what was answered.
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = FULL")
                connection.execute(_CREATE)
            except sqlite3.Error:
                connection.close()
                raise
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
