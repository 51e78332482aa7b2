"""The store with replay logs: what comes back, and that messages are written once."""

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from lbg_runtime.broker.engine.changes import (
    Change,
    MessageKept,
    MessageLogged,
    MessagesGone,
    MessageUnlogged,
    QueueGone,
    QueueKept,
    ReplayLogGone,
    ReplayLogKept,
)
from lbg_runtime.broker.engine.settings import QueueSettings, ReplayLogSettings
from lbg_runtime.broker.store.statements import FORMAT
from lbg_runtime.broker.store.store import Store
from tests.broker.store.test_store import SETTINGS, message, refusal, reopened

LOG = ReplayLogKept("default", ReplayLogSettings("log", 1_000, ingress_enabled=False), began_ns=5, first=1)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


def logged(number: int, size: int = 10) -> MessageLogged:
    return MessageLogged("default", number * 1_000, message(number, size))


def frames(path: Path) -> tuple[int, int]:
    """How many messages have their bytes in a queue's table, and how many in that of the logs."""
    found = sqlite3.connect(path)
    counts = found.execute("SELECT (SELECT count(frame) FROM message), (SELECT count(frame) FROM logged)").fetchone()
    found.close()
    return counts


def numbers(changes: list[Change]) -> list[int]:
    return [each.message.number for each in changes if isinstance(each, MessageKept | MessageLogged)]


def test_a_log_and_what_it_has_come_back_and_messages_are_written_once(path):
    kept = [
        QueueKept(1, "default", "orders", QueueSettings()),
        QueueKept(2, "default", "other", QueueSettings()),
        LOG,
        logged(1),
        logged(2, 200_000),
        MessageKept(1, 1, message(1)),
        MessageKept(1, 2, message(2, 200_000)),
        MessageKept(2, 1, message(2, 200_000)),
    ]
    store = Store.open(path)
    store.write(kept)
    store.close()
    assert frames(path) == (0, 2)
    assert path.stat().st_size < 2 * 200_000
    assert reopened(path) == kept
    # In memory it is one message, too.
    in_log, _, in_queue, in_other = (each.message for each in reopened(path)[4:])
    assert in_log is in_queue is in_other
    assert numbers(reopened(path)) == [1, 2, 1, 2, 2]


def test_what_the_log_gave_up_stays_as_long_as_a_queue_has_it(path):
    queues = [QueueKept(1, "default", "orders", QueueSettings()), QueueKept(2, "default", "other", QueueSettings())]
    store = Store.open(path)
    store.write([*queues, LOG, *(logged(n) for n in (1, 2, 3))])
    store.write([*(MessageKept(1, n, message(n)) for n in (1, 2)), MessageKept(2, 1, message(1))])
    store.write([MessageUnlogged("default", 1), MessageUnlogged("default", 2), MessagesGone(1, [1])])
    store.close()
    assert frames(path) == (0, 3)
    store = Store.open(path)
    _, *found = store.read()
    log = replace(LOG, first=3)
    assert found == [*queues, log, logged(3), MessageKept(1, 2, message(2)), MessageKept(2, 1, message(1))]
    # One goes by itself, the other one with its queue.
    store.write([MessagesGone(2, [1])])
    assert store._connection.execute("SELECT number FROM logged ORDER BY number").fetchall() == [(2,), (3,)]
    store.write([QueueGone(1)])
    assert store._connection.execute("SELECT number FROM logged").fetchall() == [(3,)]
    store.close()
    assert reopened(path) == [queues[1], log, logged(3), MessagesGone(2, (1,))]


def test_a_queue_that_is_deleted_takes_with_it_what_came_just_before_and_nothing_of_its_neighbours(path):
    queues = [QueueKept(number, "default", f"queue-{number}", QueueSettings()) for number in (1, 2, 3)]
    others = [MessageKept(queue, n, message(n)) for queue in (1, 3) for n in (1, 2, 3)]
    store = Store.open(path)
    # The third is in no log.
    store.write([*queues, LOG, logged(1), logged(2), *others, *(MessageUnlogged("default", n) for n in (1, 2))])
    store.write([*(MessageKept(2, n, message(n)) for n in (1, 2, 3)), QueueGone(2)])
    store.close()
    assert reopened(path) == [queues[0], queues[2], replace(LOG, first=3), *others]


def test_messages_that_leave_together_take_out_of_the_log_s_table_what_the_log_gave_up(path):
    queue = QueueKept(1, "default", "orders", QueueSettings())
    store = Store.open(path)
    store.write([queue, LOG, *(logged(n) for n in range(1, 7)), *(MessageKept(1, n, message(n)) for n in range(1, 7))])
    store.write([MessageUnlogged("default", n) for n in (1, 2, 3, 4)])
    assert store._connection.execute("SELECT count(*) FROM logged").fetchone() == (6,)
    store.write([MessagesGone(1, [1, 2, 4, 5])])
    assert store._connection.execute("SELECT number FROM logged ORDER BY number").fetchall() == [(3,), (5,), (6,)]
    store.close()


def test_what_is_replayed_is_not_written_again(path):
    queue = QueueKept(1, "default", "orders", QueueSettings())
    store = Store.open(path)
    store.write([queue, LOG, logged(1), MessageKept(1, 1, message(1)), MessagesGone(1, [1])])
    again = message(1)
    again.spooled_at_s = 99
    of_a_group = replace(message(1), publisher="flow")
    store.write([MessageKept(1, 2, again), MessageKept(1, 3, of_a_group)])
    store.close()
    assert frames(path) == (0, 1)
    assert reopened(path) == [queue, LOG, logged(1), MessageKept(1, 2, again), MessageKept(1, 3, of_a_group)]


def test_a_message_that_the_log_cannot_keep_is_where_it_is_needed(path):
    queue = QueueKept(1, "default", "orders", QueueSettings())
    store = Store.open(path)
    store.write([queue, LOG, logged(1), MessageUnlogged("default", 1), MessageKept(1, 1, message(1))])
    store.close()
    assert frames(path) == (1, 0)
    assert reopened(path) == [queue, replace(LOG, first=2), MessageKept(1, 1, message(1))]


def test_what_a_deleted_log_had_stays_as_long_as_a_queue_has_it(path):
    queue = QueueKept(1, "default", "orders", QueueSettings())
    store = Store.open(path)
    store.write([queue, LOG, logged(1), logged(2), MessageKept(1, 1, message(1))])
    store.write([MessageUnlogged("default", 1), MessageUnlogged("default", 2), ReplayLogGone("default")])
    store.close()
    assert frames(path) == (0, 1)
    assert reopened(path) == [queue, MessageKept(1, 1, message(1))]


def test_a_log_that_is_made_again_has_nothing_of_the_one_before(path):
    queue = QueueKept(1, "default", "orders", QueueSettings())
    store = Store.open(path)
    store.write([queue, LOG, logged(1), logged(2), MessageKept(1, 1, message(1))])
    later = ReplayLogKept("default", ReplayLogSettings("later", 7), began_ns=9, first=3)
    gone = [MessageUnlogged("default", 1), MessageUnlogged("default", 2), ReplayLogGone("default")]
    store.write([*gone, later, logged(3)])
    store.close()
    assert reopened(path) == [queue, later, logged(3), MessageKept(1, 1, message(1))]
    store = Store.open(path)
    list(store.read())
    changed = ReplayLogKept("default", ReplayLogSettings("later", 8), began_ns=9, first=3)
    store.write([changed])
    store.close()
    assert changed in reopened(path)


def test_a_logged_message_that_is_not_what_was_written_is_refused(path):
    store = Store.open(path)
    store.write([LOG, logged(7, 900)])
    store.close()
    data = path.read_bytes()
    place = data.index(bytes((7,)) * 500) + 100
    path.write_bytes(data[:place] + b"!" + data[place + 1 :])
    assert refusal(path) == "it is damaged: message 7 of the replay log is not what was written"


BEFORE_PLACES = "ALTER TABLE queue DROP COLUMN last_gone; PRAGMA user_version = 3;"
BEFORE_PUBLISHERS = BEFORE_PLACES + "ALTER TABLE message DROP COLUMN publisher; PRAGMA user_version = 2;"
BEFORE_REPLAY_LOGS = BEFORE_PUBLISHERS + (
    "DROP TABLE logged; DROP TABLE replay_log; ALTER TABLE message DROP COLUMN number; PRAGMA user_version = 1;"
)


@pytest.mark.parametrize(
    "downgrade", [BEFORE_REPLAY_LOGS, BEFORE_PUBLISHERS, BEFORE_PLACES], ids=["format 1", "format 2", "format 3"]
)
def test_a_store_of_an_older_format_is_brought_up_to_date(path, downgrade):
    kept = [QueueKept(1, "default", "orders", SETTINGS), *(MessageKept(1, n, message(n)) for n in (5, 6))]
    store = Store.open(path)
    store.write(kept)
    store.close()
    older = sqlite3.connect(path)
    older.executescript(downgrade)
    older.close()
    assert reopened(path) == kept
    given = [1, 2] if downgrade == BEFORE_REPLAY_LOGS else [5, 6]
    assert numbers(reopened(path)) == given
    store = Store.open(path)
    list(store.read())
    store.write([LOG, logged(9), MessageKept(1, 9, message(9))])
    assert store._connection.execute("PRAGMA user_version").fetchone() == (FORMAT,)
    store.close()
    assert reopened(path) == [kept[0], LOG, logged(9), *kept[1:], MessageKept(1, 9, message(9))]
    assert numbers(reopened(path)) == [9, *given, 9]
