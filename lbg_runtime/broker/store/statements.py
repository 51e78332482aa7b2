"""Turns changes into SQL statements: rows of the same kind together, in an order with the same result."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import cast
from zlib import crc32

import orjson

from lbg_runtime.broker.engine.changes import (
    Change,
    DeliveryIdsSkipped,
    FlowGone,
    FlowKept,
    MessageKept,
    MessageLogged,
    MessagesDelivered,
    MessagesGone,
    MessageUnlogged,
    PublisherGone,
    PublisherKept,
    QueueGone,
    QueueKept,
    QueueNumber,
    ReplayLogGone,
    ReplayLogKept,
    SubscriptionGone,
    SubscriptionKept,
)
from lbg_runtime.broker.store.encoding import encode_ids, encode_log_settings, encode_message, encode_settings
from lbg_runtime.broker.store.frames import Frames

APPLICATION_ID = 0x6C626773
FORMAT = 4
IDS_OF_ONE_LIFE = 1 << 40
"""Delivery ids that one life may give; the next begins above them, no matter how many were written down."""

SEQUENCE_BITS = 40
"""Low bits of a message's id, below the number of its queue: the id is a single integer, and a table's key."""

_REPLAY_LOGS = (
    # A message with a lower number than `first` is no longer in the log, but in a queue.
    "CREATE TABLE replay_log (vpn TEXT PRIMARY KEY, settings BLOB, began_ns INTEGER, first INTEGER)",
    "CREATE TABLE logged (number INTEGER PRIMARY KEY, vpn TEXT, came_ns INTEGER, spooled_at_s INTEGER,"
    " checksum INTEGER, frame BLOB)",
)

_FROM_3 = (f"PRAGMA user_version = {FORMAT}", "ALTER TABLE queue ADD COLUMN last_gone INTEGER DEFAULT 0")
_FROM_2 = ("ALTER TABLE message ADD COLUMN publisher TEXT DEFAULT ''", *_FROM_3)

UPGRADES: Mapping[int, tuple[str, ...]] = {
    1: (
        "ALTER TABLE message ADD COLUMN number INTEGER",
        # Below all numbers given from the second life of a store on, as with delivery ids.
        "UPDATE message SET number = ranked.number FROM"
        " (SELECT id, row_number() OVER (ORDER BY id) AS number FROM message) AS ranked WHERE ranked.id = message.id",
        *_REPLAY_LOGS,
        *_FROM_2,
    ),
    2: _FROM_2,
    3: _FROM_3,
}
"""Statements that convert an older store to this format."""

SCHEMA = (
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {FORMAT}",
    "CREATE TABLE store (name TEXT, life INTEGER, used_ids INTEGER)",
    "INSERT INTO store VALUES ('', 1, 0)",
    # Administrators know messages by their places, so none is given again: also not the last, which may be gone.
    "CREATE TABLE queue (number INTEGER PRIMARY KEY, vpn TEXT, name TEXT, settings BLOB, last_gone INTEGER)",
    "CREATE TABLE subscription (queue INTEGER, topic TEXT)",
    "CREATE INDEX subscription_by_queue ON subscription (queue)",
    # Without a frame if the replay log has the same one under this number.
    "CREATE TABLE message (id INTEGER PRIMARY KEY, spooled_at_s INTEGER, checksum INTEGER, frame BLOB, number INTEGER,"
    " publisher TEXT)",
    # Separate from the messages, which would otherwise be rewritten as a whole with every delivery.
    "CREATE TABLE delivery (message INTEGER PRIMARY KEY, id INTEGER, flow INTEGER, count INTEGER)",
    "CREATE TABLE flow (id INTEGER PRIMARY KEY, queue INTEGER, client_name TEXT, received_up_to INTEGER,"
    " under_way BLOB)",
    "CREATE TABLE publisher (vpn TEXT, name TEXT, last_judged_id INTEGER, refused BLOB, UNIQUE (vpn, name))",
    "CREATE TABLE row (kind TEXT, keys BLOB, body BLOB, UNIQUE (kind, keys))",
    *_REPLAY_LOGS,
)

Value = None | int | str | bytes
Values = tuple[Value, ...]
Row = tuple[str, bytes, bytes]
"""Kind, keys and body of an administrator's settings for an object."""
RowPut = tuple[str, bytes, bytes | None]
"""The same as a change: settings to be kept from now on or, without a body, forgotten."""


def statements_of(changes: Sequence[Change], frames: Frames) -> Iterator[tuple[str, Iterable[Values]]]:
    """The statements to execute, each with its rows, in order; `frames` is brought up to date."""
    logged: list[Values] = []
    unlogged: list[Values] = []
    firsts: dict[str, int] = {}
    kept: list[Values] = []
    delivered: list[Values] = []
    gone: list[Values] = []
    last_gone: dict[QueueNumber, int] = {}
    logs: list[Change] = []
    others: list[Change] = []
    for change in changes:
        # By type rather than with `match`: there are several of these for every message.
        kind = type(change)
        if kind is MessageKept:
            kept.append(_message(cast(MessageKept, change), frames))
        elif kind is MessagesDelivered:
            delivered += _deliveries(cast(MessagesDelivered, change))
        elif kind is MessagesGone:
            some = cast(MessagesGone, change)
            last_gone[some.queue] = max(last_gone.get(some.queue, 0), *some.sequences)
            for first, last in _runs_of(some.sequences):
                places = message_id(some.queue, first), message_id(some.queue, last)
                gone.append(places)
                unlogged += [(number,) for number in frames.leave_all(*places)]
        elif kind is MessageLogged:
            logged.append(_logged(cast(MessageLogged, change)))
            frames.add(cast(MessageLogged, change).message.number)
        elif kind is MessageUnlogged:
            number = cast(MessageUnlogged, change).number
            firsts[cast(MessageUnlogged, change).vpn] = number + 1
            if frames.let_go(number):
                unlogged.append((number,))
        elif kind is ReplayLogKept or kind is ReplayLogGone:
            logs.append(change)
        else:
            others.append(change)
    for change in logs:
        yield from _of_one(change, frames)
    # Without rows, a statement does nothing.
    yield "INSERT INTO logged VALUES (?, ?, ?, ?, ?, ?)", logged
    yield "INSERT INTO message VALUES (?, ?, ?, ?, ?, ?)", kept
    yield "INSERT OR REPLACE INTO delivery VALUES (?, ?, ?, ?)", delivered
    yield "DELETE FROM message WHERE id BETWEEN ? AND ?", gone
    yield "DELETE FROM delivery WHERE message BETWEEN ? AND ?", gone
    yield "DELETE FROM logged WHERE number = ?", unlogged
    yield "UPDATE replay_log SET first = max(first, ?) WHERE vpn = ?", [(first, vpn) for vpn, first in firsts.items()]
    # Last, so that the deletion of a queue also removes what came before.
    for change in others:
        yield from _of_one(change, frames)
    yield (
        "UPDATE queue SET last_gone = max(last_gone, ?) WHERE number = ?",
        [(sequence, queue) for queue, sequence in last_gone.items()],
    )


def row_statement(put: RowPut) -> tuple[str, Iterable[Values]]:
    """The statement that carries out the change of a row, with its one set of values."""
    kind, keys, body = put
    if body is None:
        return "DELETE FROM row WHERE kind = ? AND keys = ?", [(kind, keys)]
    return (
        "INSERT INTO row VALUES (?, ?, ?) ON CONFLICT (kind, keys) DO UPDATE SET body = excluded.body",
        [(kind, keys, body)],
    )


def message_id(queue: QueueNumber, sequence: int) -> int:
    """The id of a message among those of all queues; the messages of one queue form one range."""
    return queue << SEQUENCE_BITS | sequence


def _message(change: MessageKept, frames: Frames) -> Values:
    message, id_ = change.message, message_id(change.queue, change.sequence)
    if frames.lean(id_, message.number):
        return id_, message.spooled_at_s, None, None, message.number, message.publisher
    frame = encode_message(message)
    return id_, message.spooled_at_s, crc32(frame), frame, message.number, message.publisher


def _logged(change: MessageLogged) -> Values:
    message = change.message
    frame = encode_message(message)
    return message.number, change.vpn, change.came_ns, message.spooled_at_s, crc32(frame), frame


def _deliveries(change: MessagesDelivered) -> list[Values]:
    queue, flow = change.queue, change.flow
    return [(message_id(queue, sequence), id_, flow, count) for sequence, id_, count in change.deliveries]


def _runs_of(sequences: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First and last of each run of consecutive numbers."""
    first = last = sequences[0]
    for sequence in sequences[1:]:
        if sequence != last + 1:
            yield first, last
            first = sequence
        last = sequence
    yield first, last


def _of_one(change: Change, frames: Frames) -> Iterator[tuple[str, Iterable[Values]]]:
    match change:
        case FlowKept(queue, flow, client_name, received_up_to, under_way):
            yield (
                "INSERT OR REPLACE INTO flow VALUES (?, ?, ?, ?, ?)",
                [(flow, queue, client_name, received_up_to, encode_ids(under_way))],
            )
        case FlowGone(flow):
            yield "DELETE FROM flow WHERE id = ?", [(flow,)]
        case PublisherKept(vpn, name, last_judged_id, refused):
            yield (
                "INSERT OR REPLACE INTO publisher VALUES (?, ?, ?, ?)",
                [(vpn, name, last_judged_id, orjson.dumps(refused))],
            )
        case PublisherGone(vpn, name):
            yield "DELETE FROM publisher WHERE vpn = ? AND name = ?", [(vpn, name)]
        case QueueKept(queue, vpn, name, settings):
            yield (
                "INSERT INTO queue VALUES (?, ?, ?, ?, 0)"
                " ON CONFLICT (number) DO UPDATE SET settings = excluded.settings",
                [(queue, vpn, name, encode_settings(settings))],
            )
        case QueueGone(queue):
            first, last = message_id(queue, 0), message_id(QueueNumber(queue + 1), 0) - 1
            yield "DELETE FROM message WHERE id BETWEEN ? AND ?", [(first, last)]
            yield "DELETE FROM delivery WHERE message BETWEEN ? AND ?", [(first, last)]
            yield "DELETE FROM subscription WHERE queue = ?", [(queue,)]
            yield "DELETE FROM flow WHERE queue = ?", [(queue,)]
            yield "DELETE FROM queue WHERE number = ?", [(queue,)]
            yield "DELETE FROM logged WHERE number = ?", [(number,) for number in frames.leave_all(first, last)]
        case SubscriptionKept(queue, topic):
            yield "INSERT INTO subscription VALUES (?, ?)", [(queue, topic)]
        case SubscriptionGone(queue, topic):
            yield "DELETE FROM subscription WHERE queue = ? AND topic = ?", [(queue, topic)]
        case ReplayLogKept(vpn, settings, began_ns, first):
            yield (
                "INSERT INTO replay_log VALUES (?, ?, ?, ?)"
                " ON CONFLICT (vpn) DO UPDATE SET settings = excluded.settings",
                [(vpn, encode_log_settings(settings), began_ns, first)],
            )
        case ReplayLogGone(vpn):
            yield "DELETE FROM replay_log WHERE vpn = ?", [(vpn,)]
        case DeliveryIdsSkipped(up_to):
            yield "UPDATE store SET used_ids = max(used_ids, ?)", [(up_to + IDS_OF_ONE_LIFE,)]
        case _:
            raise TypeError(f"{type(change).__name__} is told of messages alone")
