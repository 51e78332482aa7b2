"""A broker's state on disk: one SQLite file that holds, after every `write`, all changes so far.

Not a log of our own: tables are always as small as what they hold, so there is nothing to compact, and SQLite handles
torn writes. It is called on the event loop and blocks it. On a separate thread, each statement would hand the
interpreter's lock back and forth, which takes longer than the statement; and while the disk works, input gathers in
sockets, so that the next write covers more of it.
"""

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from secrets import token_hex
from zlib import crc32

import orjson

from lbg_runtime.broker.engine.changes import (
    Change,
    DeliveryIdsSkipped,
    FlowKept,
    MessageKept,
    MessageLogged,
    MessagesDelivered,
    MessagesGone,
    PublisherKept,
    QueueKept,
    QueueNumber,
    ReplayLogKept,
    SubscriptionKept,
)
from lbg_runtime.broker.engine.effects import FlowId, Published
from lbg_runtime.broker.store.encoding import decode_ids, decode_log_settings, decode_message, decode_settings
from lbg_runtime.broker.store.frames import Frames
from lbg_runtime.broker.store.statements import (
    APPLICATION_ID,
    FORMAT,
    IDS_OF_ONE_LIFE,
    SCHEMA,
    SEQUENCE_BITS,
    UPGRADES,
    Row,
    RowPut,
    Values,
    row_statement,
    statements_of,
)
from lbg_runtime.broker.store.wal import commits_beyond
from lbg_runtime.model.errors import ProtocolError, StoreFailed, UserError
from lbg_runtime.model.ids import DeliveryId, QueueName

_UNDAMAGED = "an undamaged store"
_WRITABLE = "a file that can be written, on a disk with room"
_IN_USE = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_WAL_PAGES = 4_000
"""Pages of 4 KB that are written before they are copied into the file itself."""

_File = tuple[int, int] | None
"""Which file has a name; None if there is none."""


class Store:
    """Made by `open`, closed by `close`. Call `read` once, before the first `write`.

    No call returns before its changes are on disk, in the file that has the path. After `StoreFailed` nothing may be
    written any more: what clients were told is on disk, and nobody may be told what was not written.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        """See `open`."""
        self.path = path
        self._log = _log_of(path)
        self._connection = connection
        self._first_id = DeliveryId(0)
        self.instance = ""
        """Differs with every life of every store."""
        self.spooler = 0
        """Differs with every store."""
        self._frames = Frames()
        self._files: tuple[_File, ...] = ()
        """The file and its log, as they were opened."""

    @classmethod
    def open(cls, path: Path) -> "Store":
        """Take the store at this path, or begin one; raises `UserError` if it is in use, damaged or not writable."""
        where = f"store {path}"
        try:
            if path.is_dir():
                raise UserError(where, "it is a directory", "a file, or a name for one")
            log = _log_of(path)
            if log.exists() and log.stat().st_size and not (path.exists() and path.stat().st_size):
                # SQLite would begin anew, and delete the log of what was lost.
                raise UserError(where, "it is gone or empty, but its log is there", f"the file that {log} belongs to")
            # It contains passwords. An existing file is never opened here: closing it would release SQLite's lock.
            if not path.exists():
                os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise UserError(where, os.strerror(error.errno or 0), _WRITABLE) from error
        try:
            connection = sqlite3.connect(path, isolation_level=None, timeout=0)
        except sqlite3.Error as error:
            raise UserError(where, _reason_of(error), _expected_for(error)) from error
        store = cls(path, connection)
        try:
            store._begin()
        except sqlite3.Error as error:
            connection.close()
            raise UserError(where, _reason_of(error), _expected_for(error)) from error
        except OSError as error:
            # SQLite is not the only one to read the log.
            connection.close()
            raise UserError(where, f"its log: {os.strerror(error.errno or 0)}", _WRITABLE) from error
        except UserError:
            connection.close()
            raise
        return store

    def read(self) -> Iterator[Change]:
        """The changes that restore the state of the last broker; raises `UserError` if they cannot be read."""
        try:
            yield from self._read()
        except sqlite3.Error as error:
            raise UserError(f"store {self.path}", _reason_of(error), _expected_for(error)) from error
        except (ProtocolError, ValueError, TypeError, LookupError, OverflowError) as error:
            raise UserError(f"store {self.path}", f"it is damaged: {error}", _UNDAMAGED) from error

    def write(self, changes: Sequence[Change], rows: Iterable[RowPut] = ()) -> None:
        """Keep all of these changes and rows or, raising `StoreFailed`, none."""
        self._execute(chain(statements_of(changes, self._frames), map(row_statement, rows)))

    def rows(self) -> list[Row]:
        """Every row, in the order in which they were first put; raises `UserError` if they cannot be read."""
        try:
            return self._connection.execute("SELECT kind, keys, body FROM row ORDER BY rowid").fetchall()
        except sqlite3.Error as error:
            raise UserError(f"store {self.path}", _reason_of(error), _expected_for(error)) from error

    def close(self) -> None:
        """Release the store for others. Idempotent."""
        self._connection.close()

    # -- parts

    def _execute(self, statements: Iterable[tuple[str, Iterable[Values]]]) -> None:
        connection = self._connection
        try:
            connection.execute("BEGIN")
            for statement, rows in statements:
                connection.executemany(statement, rows)
            connection.execute("COMMIT")
            are_kept = self._look_at_files() == self._files
        except Exception as error:
            # For want of memory, and of values that SQLite cannot take, too: what is not on disk must not be confirmed,
            # whatever the reason.
            # Whatever SQLite has not rolled back by itself ends with the connection, or with the process.
            raise StoreFailed(str(self.path), _reason_of(error)) from error
        if not are_kept:
            # SQLite goes on with files that have another name or none, and the next broker would not find them.
            raise StoreFailed(str(self.path), "it or its log was removed, moved or replaced")

    def _begin(self) -> None:
        # The lock first: nothing is read from a store that another process writes.
        self._connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute(f"PRAGMA wal_autocheckpoint = {_WAL_PAGES}")
        self._check_log()
        self._connection.execute("BEGIN IMMEDIATE")
        is_new = not self._connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
        if is_new:
            for statement in SCHEMA:
                self._connection.execute(statement)
        self._check()
        ((instance, life, used_ids),) = self._connection.execute("SELECT name, life, used_ids FROM store")
        if is_new:
            # An older store has one half as long.
            instance = token_hex(8)
        self._first_id = DeliveryId(used_ids)
        self.spooler = int(instance, 16)
        self.instance = f"{instance}.{life}"
        # Nobody comes back to a flow that holds nothing.
        self._connection.execute("DELETE FROM flow WHERE id NOT IN (SELECT flow FROM delivery)")
        self._connection.execute(
            "UPDATE store SET name = ?, life = ?, used_ids = ?", (instance, life + 1, used_ids + IDS_OF_ONE_LIFE)
        )
        # This write also proves that the store is writable.
        self._connection.execute("COMMIT")
        self._files = self._look_at_files()

    def _look_at_files(self) -> "tuple[_File, ...]":
        return _file_at(self.path), _file_at(self._log)

    def _check_log(self) -> None:
        """Refuse a log that breaks off before data certain to be on disk: SQLite considers it torn there, and intact.

        A write waits for the previous one, so at most one can be torn, and more than one after a break is damage.
        """
        readable_frames = self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[1]
        page_bytes = self._connection.execute("PRAGMA page_size").fetchone()[0]
        beyond = commits_beyond(self._log, readable_frames, page_bytes)
        if beyond > 1:
            reason = f"its log is damaged: {beyond} writes after the damage cannot be read"
            raise UserError(f"store {self.path}", reason, _UNDAMAGED)

    def _check(self) -> None:
        kind = self._connection.execute("PRAGMA application_id").fetchone()[0]
        version = self._connection.execute("PRAGMA user_version").fetchone()[0]
        if kind != APPLICATION_ID or version not in (FORMAT, *UPGRADES):
            reason = f"it is no store of this version ({kind:#x} {version})"
            raise UserError(f"store {self.path}", reason, "a store of this version or an older one")
        ((found,),) = self._connection.execute("PRAGMA quick_check(1)").fetchall()
        if found != "ok":
            raise UserError(f"store {self.path}", f"it is damaged: {' '.join(found.split())}", _UNDAMAGED)
        for statement in UPGRADES.get(version, ()):
            self._connection.execute(statement)

    def _read(self) -> Iterator[Change]:
        execute = self._connection.execute
        last_gone: dict[QueueNumber, int] = {}
        yield DeliveryIdsSkipped(self._first_id)
        for number, vpn, name, settings, sequence in execute(
            "SELECT number, vpn, name, settings, last_gone FROM queue ORDER BY number"
        ):
            yield QueueKept(QueueNumber(number), vpn, QueueName(name), decode_settings(settings))
            last_gone[QueueNumber(number)] = sequence
        for number, topic in execute("SELECT queue, topic FROM subscription ORDER BY rowid"):
            yield SubscriptionKept(QueueNumber(number), topic)
        logged: dict[int, Published] = {}
        outlived: list[int] = []
        yield from self._read_logs(logged, outlived)
        for id_, frame, checksum, of_log, spooled_at_s, publisher, delivery_id, flow, count in execute(
            "SELECT message.id, frame, checksum, number, spooled_at_s, publisher, delivery.id, flow, count FROM message"
            " LEFT JOIN delivery ON delivery.message = message.id ORDER BY message.id"
        ):
            number, sequence = QueueNumber(id_ >> SEQUENCE_BITS), id_ & ((1 << SEQUENCE_BITS) - 1)
            is_there = of_log in logged if frame is None else crc32(frame) == checksum
            if not is_there or number not in last_gone:
                raise ValueError(f"message {sequence} of queue {number} is not what was written")
            if frame is not None:
                message = decode_message(frame, spooled_at_s, of_log)
            else:
                self._frames.lean(id_, of_log)
                message = logged[of_log]
            # A replayed message has another time in the log than in its queue, and the log does not keep the publisher.
            if (message.spooled_at_s, message.publisher) != (spooled_at_s, publisher):
                message = replace(message, spooled_at_s=spooled_at_s, publisher=publisher)
            yield MessageKept(number, sequence, message)
            if sequence > last_gone[number]:
                last_gone[number] = 0  # The message itself says that its place has been given.
            if delivery_id is not None:
                yield MessagesDelivered(number, FlowId(flow), ((sequence, DeliveryId(delivery_id), count),))
        for queue, sequence in last_gone.items():
            if sequence:
                yield MessagesGone(queue, (sequence,))
        for each in outlived:
            self._frames.let_go(each)
        for flow, number, client_name, received_up_to, under_way in execute(
            "SELECT id, queue, client_name, received_up_to, under_way FROM flow ORDER BY id"
        ):
            yield FlowKept(
                QueueNumber(number), FlowId(flow), client_name, DeliveryId(received_up_to), decode_ids(under_way)
            )
        for vpn, name, last_judged_id, refused in execute(
            "SELECT vpn, name, last_judged_id, refused FROM publisher ORDER BY rowid"
        ):
            yield PublisherKept(vpn, name, last_judged_id, _refusals(refused))

    def _read_logs(self, found: dict[int, Published], outlived: list[int]) -> Iterator[Change]:
        """The contents of replay logs. Afterwards `found` has their whole table, by number, and `outlived` what no log
        has."""
        firsts: dict[str, int] = {}
        for vpn, settings, began_ns, first in self._connection.execute(
            "SELECT vpn, settings, began_ns, first FROM replay_log ORDER BY rowid"
        ):
            yield ReplayLogKept(vpn, decode_log_settings(settings), began_ns, first)
            firsts[vpn] = first
        for number, vpn, came_ns, spooled_at_s, checksum, frame in self._connection.execute(
            "SELECT number, vpn, came_ns, spooled_at_s, checksum, frame FROM logged ORDER BY number"
        ):
            if crc32(frame) != checksum:
                raise ValueError(f"message {number} of the replay log is not what was written")
            message = found[number] = decode_message(frame, spooled_at_s, number)
            self._frames.add(number)
            if vpn in firsts and number >= firsts[vpn]:
                yield MessageLogged(vpn, came_ns, message)
            else:
                outlived.append(number)


def _file_at(path: Path) -> _File:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _log_of(path: Path) -> Path:
    """Where SQLite has the log of a file: beside the file itself, if the path is a link to it."""
    return Path(f"{os.path.realpath(path)}-wal")


def _refusals(encoded: bytes) -> tuple[tuple[int, int, str], ...]:
    return tuple((int(id_), int(code), str(text)) for id_, code, text in orjson.loads(encoded))


def _reason_of(error: Exception) -> str:
    return "another broker has it" if _code_of(error) in _IN_USE else str(error) or type(error).__name__


def _expected_for(error: sqlite3.Error) -> str:
    """What was expected, and was not the case."""
    code = _code_of(error)
    if code in _IN_USE:
        return "a store that no other broker uses"
    return _UNDAMAGED if code in _DAMAGED else _WRITABLE


def _code_of(error: Exception) -> int | None:
    """The kind of error, without its extended details; None if it is not SQLite's own."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF
