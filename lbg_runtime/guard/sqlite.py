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
"""Writes the effect, on the guard's thread. Must not commit, roll back (except to savepoints of its own) or close the
connection; `executescript` and `with connection:` commit. Must not touch anything of the event loop's. Its return value
is ignored, unless that is something still to be awaited or read."""

Answer = TypeVar("Answer")

LOCK_PATIENCE_S = 20.0
"""How long an effect waits while other processes keep the lock; then it raises `sqlite3.OperationalError`.

Shorter than the usual timeout of an attempt, so that the failure says what it waited for."""

_POLL_S = 0.001
"""The time between two tries to get the lock. SQLite itself waits up to 0.1 s in between, and so would hardly ever meet
the moment at which a process that writes all the time does not hold it."""

_LONGEST_TURN_S = 0.05
"""For how long a transaction takes on effects, while other processes wait for the lock. It always takes one."""

_BREATH_S = 3 * _POLL_S
"""How long the lock is left alone after such a turn, so that processes that poll for it get a chance."""

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
# A name that no savepoint of an effect can have: otherwise that one would be rolled back in its place, and the mark
# would stay.
_PLACE = f"lbg_guard_{uuid4().hex}"
_SAVEPOINT, _ROLL_BACK, _RELEASE = (f"{verb} {_PLACE}" for verb in ("SAVEPOINT", "ROLLBACK TO", "RELEASE"))
_FORGET = "DELETE FROM lbg_guard WHERE scope = ? AND marked_at < datetime('now', ?)"


class _Lent(sqlite3.Connection):
    """The connection as effects get it: a statement that would end the guard's transaction is refused, and noted."""

    is_lent = False
    is_misused = False
    is_unfit = False
    """Whether it could not write a mark. SQLite opens for reading what the disk does not let it open for writing, and
    stays with that when the disk is well again."""

    def authorize(self, action: int, *_: object) -> int:
        """SQLite's question, as it compiles a statement, whether that may run."""
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
    """An effect, from the call of `once` to the end of the transaction that it was part of."""

    key: str
    token: FencingToken
    effect: SqliteEffect
    until_s: float
    """Until when it waits for a lock that other processes keep, by `time.monotonic`."""
    answer: bool | BaseException | None = None
    is_given_up: bool = False
    """Whether nobody waits for the answer any more: then, if it has not begun, it never does."""


class SqliteGuard:
    """A `Guard[SqliteEffect]`. Opens the database on first use, on a thread of its own, and creates its table there.

    It puts the database permanently into WAL mode, so the file must be on a disk of this host, in a folder in which
    everyone who uses the database may write. When `once` answers, the effect is synced to that disk.

    There is one transaction at a time, which SQLite requires anyway. A transaction takes the effects that wait, for as
    long as its turn lasts, each in a savepoint: one that raises leaves the others as they are. Only if the whole
    transaction is lost, all of them fail, with `EffectUndone` if there were several; from then on each effect has a
    transaction of its own. An effect is called at most once for each call of `once`. If its handler is cancelled, an
    effect that has begun goes on, and may be written; then the next attempt returns False.
    """

    def __init__(self, path: Path | str, scope: str) -> None:
        self._path = path
        self._scope = scope
        self._connection: _Lent | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lbg-guard")
        self._waiting: deque[_Waiting] = deque()
        self._together = True
        self._locked_since_s: float | None = None
        """Since when other processes have had the lock whenever it was tried, by `time.monotonic`; None if we had it at
        the last try."""

    async def once(self, message: Message, effect: SqliteEffect) -> bool:
        """Write the effect and the mark of the message together; False, and no effect, if they are there already.

        See `Guard.once`. The effect is called on the guard's thread, with the connection.
        """
        key, token = place_of(message)
        mine = _Waiting(key, token, effect, time.monotonic() + LOCK_PATIENCE_S)
        self._waiting.append(mine)
        try:
            return await self._on_thread(lambda: self._answer(mine))
        finally:
            mine.is_given_up = True

    async def forget(self, older_than_s: int) -> int:
        """Delete the marks that were last raised more than `older_than_s` seconds ago; return how many.

        Marks pile up: there is one for each key and life of a publisher. Keep those that are younger than the longest
        time for which the broker or a handler may hold a message.
        """
        return await self._on_thread(lambda: self._forget(older_than_s))

    async def close(self) -> None:
        """Close the database when effects that have begun have ended; the guard opens it again if it is used again."""
        await self._on_thread(self._close)

    async def _on_thread(self, work: Callable[[], Answer]) -> Answer:
        # No bound here: the handler's timeout cancels this; the thread itself cannot be stopped.
        return await asyncio.get_running_loop().run_in_executor(self._thread, _done, work)

    # -- on the thread

    def _answer(self, mine: _Waiting) -> bool:
        """The answer of an effect; mostly it is there already, from a transaction that another effect began."""
        try:
            while mine.answer is None and not mine.is_given_up:
                self._write_waiting(mine.until_s)
        finally:
            # Also if the lock could not be had: the caller is told that nothing is written, so it must not be later.
            mine.is_given_up = True
        answer, mine.answer = mine.answer, None
        try:
            if isinstance(answer, BaseException):
                raise answer
            return answer is True
        finally:
            # The traceback of an error refers to this frame and the effect's. A half read cursor there would keep the
            # database busy until the garbage collector finds the cycle.
            del answer

    def _write_waiting(self, until_s: float) -> None:
        """Run one transaction: it answers the effect that has waited longest, and others as long as its turn lasts."""
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
            # By this method: `execute` would keep a compiled COMMIT, and if an effect then executes that, SQLite does
            # not ask whether it may.
            connection.commit()
        except BaseException as error:  # noqa: BLE001 - all callers get it, as none may be told True
            # The other effects cannot be called again: what one reads from, such as a generator, may be used up.
            for waiting in begun:
                if not isinstance(waiting.answer, BaseException):
                    # If there were several, one cannot see whose fault it was.
                    waiting.answer = error if len(begun) == 1 else self._undone(error)
            # The effect that caused this is tried again, and must not cost the others an attempt each time.
            self._together = False
            is_lost = True
        finally:
            # Rolled back before it is closed: a cursor that an effect left half read would keep the lock.
            connection.rollback()
            if is_lost or connection.is_misused or connection.is_unfit or connection.in_transaction:
                # The connection may not be as it was. Such a cursor keeps savepoints from being released. If an effect
                # has set the isolation level to None, that is set, although the commit that it implies was refused. And
                # if it has set `autocommit` to False (Python 3.12), the connection begins a transaction whenever one
                # ends.
                self._close()
        if time.monotonic() >= end_s:
            time.sleep(_BREATH_S)

    def _undone(self, error: BaseException) -> EffectUndone:
        undone = EffectUndone(self._scope)
        undone.__cause__ = error
        return undone

    def _write(self, waiting: _Waiting, connection: _Lent) -> None:
        """Write mark and effect, or neither, and set the answer; raises if the whole transaction is lost."""
        connection.execute(_SAVEPOINT)
        try:
            row = (self._scope, waiting.key, waiting.token.publisher, waiting.token.number)
            try:
                is_new = connection.execute(_MARK, row).rowcount > 0
            except UnicodeEncodeError as error:
                raise TextNotHeld(self._scope, "UTF-8") from error
            except sqlite3.OperationalError:
                connection.is_unfit = True
                raise
            if is_new:
                self._run(waiting.effect, connection)
            connection.execute(_RELEASE)
            waiting.answer = is_new
        except BaseException as error:  # noqa: BLE001 - the caller gets it, and this thread goes on
            waiting.answer = error
            try:
                connection.execute(_ROLL_BACK)
                connection.execute(_RELEASE)
            except sqlite3.Error:
                # SQLite has rolled everything back, as it does for `INSERT OR ROLLBACK` or a full disk.
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
                # Takes the write lock at once: a transaction that begins by reading may be refused the lock later.
                connection.execute("BEGIN IMMEDIATE")
                self._locked_since_s = None
                return connection
            except sqlite3.OperationalError as error:
                is_locked = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
                now_s = time.monotonic()
                if is_locked and self._locked_since_s is None:
                    self._locked_since_s = now_s
                # Not only by the time since this effect waits: it may have waited behind slow effects of our own.
                if not is_locked or now_s >= max(until_s, (self._locked_since_s or now_s) + LOCK_PATIENCE_S):
                    raise
                if error.sqlite_errorcode == sqlite3.SQLITE_BUSY_SNAPSHOT:
                    # An effect, or the traceback of its failure, left a cursor half read. So the connection still sees
                    # the database as it was then, and may not write over what others have written since.
                    self._close()
            time.sleep(_POLL_S)

    def _open(self) -> _Lent:
        if self._connection is None:
            # With Python's implicit transactions: if SQLite rolls back within an effect, the effect's next change would
            # otherwise be committed by itself; so it begins a transaction, which is refused.
            # Without SQLite's own wait for the lock: see `_POLL_S`.
            connection = sqlite3.connect(self._path, timeout=0, factory=_Lent)
            try:
                # One sync for each transaction instead of several, and readers keep nobody from writing. FULL, as a
                # build of SQLite may have another default, with which a power cut would undo what was answered.
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
        # A future cannot carry `StopIteration`: the caller would wait for ever.
        raise RuntimeError("the effect raised StopIteration") from error
