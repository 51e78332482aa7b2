"""Changes as what is to be executed: rows of the same kind together, in an order that comes to the same."""

from collections.abc import Iterable, Iterator, Sequence
from typing import cast
from zlib import crc32

import orjson

from lbg_runtime.broker.engine.changes import (
    Change,
    DeliveryIdsSkipped,
    FlowGone,
    FlowKept,
    MessageDelivered,
    MessageGone,
    MessageKept,
    PublisherGone,
    PublisherKept,
    QueueGone,
    QueueKept,
    QueueNumber,
    SubscriptionGone,
    SubscriptionKept,
)
from lbg_runtime.broker.store.encoding import encode_ids, encode_message, encode_settings

APPLICATION_ID = 0x6C626773
FORMAT = 1
IDS_OF_ONE_LIFE = 1 << 40
"""Delivery ids that a life may give; the next one begins above them, whatever of them was written down."""

SEQUENCE_BITS = 40
"""Of the number of a message, below the number of its queue: so it is one whole number, and a table's key."""

SCHEMA = (
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {FORMAT}",
    "CREATE TABLE store (name TEXT, life INTEGER, used_ids INTEGER)",
    "INSERT INTO store VALUES ('', 1, 0)",
    "CREATE TABLE queue (number INTEGER PRIMARY KEY, vpn TEXT, name TEXT, settings BLOB)",
    "CREATE TABLE subscription (queue INTEGER, topic TEXT)",
    "CREATE INDEX subscription_by_queue ON subscription (queue)",
    "CREATE TABLE message (id INTEGER PRIMARY KEY, spooled_at_s INTEGER, checksum INTEGER, frame BLOB)",
    # Apart from the messages, which would be written again whole with every delivery.
    "CREATE TABLE delivery (message INTEGER PRIMARY KEY, id INTEGER, flow INTEGER, count INTEGER)",
    "CREATE TABLE flow (id INTEGER PRIMARY KEY, queue INTEGER, client_name TEXT, received_up_to INTEGER,"
    " under_way BLOB)",
    "CREATE TABLE publisher (vpn TEXT, name TEXT, last_judged_id INTEGER, refused BLOB, UNIQUE (vpn, name))",
    "CREATE TABLE row (kind TEXT, keys BLOB, body BLOB, UNIQUE (kind, keys))",
)

Value = None | int | str | bytes
Values = tuple[Value, ...]
Row = tuple[str, bytes, bytes]
"""Kind, keys and body of what an administrator said of an object."""


def statements_of(changes: Sequence[Change]) -> Iterator[tuple[str, Iterable[Values]]]:
    """What to execute, each with its rows, in order."""
    kept: list[Values] = []
    delivered: list[Values] = []
    gone: list[Values] = []
    others: list[Change] = []
    for change in changes:
        # By type rather than by `match`: there are several of these for every message.
        kind = type(change)
        if kind is MessageKept:
            kept.append(_message(cast(MessageKept, change)))
        elif kind is MessageDelivered:
            delivered.append(_delivery(cast(MessageDelivered, change)))
        elif kind is MessageGone:
            one = cast(MessageGone, change)
            gone.append((message_id(one.queue, one.sequence),))
        else:
            others.append(change)
    if kept:
        yield "INSERT INTO message VALUES (?, ?, ?, ?)", kept
    if delivered:
        yield "INSERT OR REPLACE INTO delivery VALUES (?, ?, ?, ?)", delivered
    if gone:
        yield "DELETE FROM message WHERE id = ?", gone
        yield "DELETE FROM delivery WHERE message = ?", gone
    # Last, so that a queue that is gone takes with it what came before.
    for change in others:
        yield from _of_one(change)


def row_statement(kind: str, keys: bytes, body: bytes | None) -> tuple[str, Iterable[Values]]:
    """Keep what an administrator said of an object; forget it where there is no body."""
    if body is None:
        return "DELETE FROM row WHERE kind = ? AND keys = ?", [(kind, keys)]
    return (
        "INSERT INTO row VALUES (?, ?, ?) ON CONFLICT (kind, keys) DO UPDATE SET body = excluded.body",
        [(kind, keys, body)],
    )


def message_id(queue: QueueNumber, sequence: int) -> int:
    """The number of a message among those of all queues; messages of one queue follow one another."""
    return queue << SEQUENCE_BITS | sequence


def _message(change: MessageKept) -> Values:
    frame = encode_message(change.message)
    return message_id(change.queue, change.sequence), change.message.spooled_at_s, crc32(frame), frame


def _delivery(change: MessageDelivered) -> Values:
    return message_id(change.queue, change.sequence), change.delivery_id, change.flow, change.delivery_count


def _of_one(change: Change) -> Iterator[tuple[str, Iterable[Values]]]:
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
                "INSERT OR REPLACE INTO queue VALUES (?, ?, ?, ?)",
                [(queue, vpn, name, encode_settings(settings))],
            )
        case QueueGone(queue):
            first, last = message_id(queue, 0), message_id(QueueNumber(queue + 1), 0) - 1
            yield "DELETE FROM message WHERE id BETWEEN ? AND ?", [(first, last)]
            yield "DELETE FROM delivery WHERE message BETWEEN ? AND ?", [(first, last)]
            yield "DELETE FROM subscription WHERE queue = ?", [(queue,)]
            yield "DELETE FROM flow WHERE queue = ?", [(queue,)]
            yield "DELETE FROM queue WHERE number = ?", [(queue,)]
        case SubscriptionKept(queue, topic):
            yield "INSERT INTO subscription VALUES (?, ?)", [(queue, topic)]
        case SubscriptionGone(queue, topic):
            yield "DELETE FROM subscription WHERE queue = ? AND topic = ?", [(queue, topic)]
        case DeliveryIdsSkipped(up_to):
            yield "UPDATE store SET used_ids = max(used_ids, ?)", [(up_to + IDS_OF_ONE_LIFE,)]
        case _:
            raise TypeError(f"{type(change).__name__} is told of messages alone")
