"""From what a handler is given to rows of the landing log."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from lbg_runtime.model.ids import DeliveryId
from lbg_runtime.model.message import (
    KEY_SEQUENCE_PROPERTY,
    PARTITION_KEY_PROPERTY,
    PUBLISHER_PROPERTY,
    Message,
    PropertyValue,
)
from lbg_runtime.pipeline.landing.schema import FOREIGN_MARK, LANDING_SCHEMA, LARGEST_TIME, TIME_DIGITS

MESSAGE_ID_HEADER = "lbg_message_id"
"""Header with the application message id, of messages that our publisher did not stamp: of its own, the id of the row
says more."""

FLUSH_BYTES = 64 << 20
"""Of payload: an Arrow column of bytes has an end."""

LARGEST_NUMBER = (1 << 63) - 1
"""That its column takes."""

_STAMPED = frozenset((PARTITION_KEY_PROPERTY, PUBLISHER_PROPERTY, KEY_SEQUENCE_PROPERTY))
_STAMP_COUNT = len(_STAMPED)


class Gathered:
    """Messages on their way into one flush, column by column, in the order in which they came.

    Nothing is made for a row: what is, and waits for a disk, is looked through by Python's collector of garbage again
    and again, which took a third of the time of landing.
    """

    __slots__ = ("delivery_ids", "keys", "messages", "redelivered", "shards")

    def __init__(self) -> None:
        """Empty."""
        self.messages: list[Message] = []
        self.shards: list[int | None] = []
        self.keys: list[str | None] = []
        """By the rule of the group."""
        self.delivery_ids: list[DeliveryId] = []
        self.redelivered: list[bool] = []

    def __len__(self) -> int:
        return len(self.messages)

    def add(
        self, message: Message, shard: int | None, key: str | None, delivery_id: DeliveryId, *, redelivered: bool
    ) -> None:
        """One row more."""
        self.messages.append(message)
        self.shards.append(shard)
        self.keys.append(key)
        self.delivery_ids.append(delivery_id)
        self.redelivered.append(redelivered)

    def part(self, first: int, end: int) -> "Gathered":
        """The rows from one to before another."""
        part = Gathered()
        part.messages = self.messages[first:end]
        part.shards = self.shards[first:end]
        part.keys = self.keys[first:end]
        part.delivery_ids = self.delivery_ids[first:end]
        part.redelivered = self.redelivered[first:end]
        return part


def to_batches(queue: int, lane: str, rows: Gathered, t_land_us: int) -> Iterator[pa.RecordBatch]:
    """One flush for every `FLUSH_BYTES` of payload; most often one for all. Parameters as for `to_batch`."""
    sizes = [len(message.payload) for message in rows.messages]
    if sum(sizes) <= FLUSH_BYTES:
        yield to_batch(queue, lane, rows, t_land_us)
        return
    first, total = 0, 0
    for number, size in enumerate(sizes):
        total += size
        if total > FLUSH_BYTES and number > first:
            yield to_batch(queue, lane, rows.part(first, number), t_land_us)
            first, total = number, size
    yield to_batch(queue, lane, rows.part(first, len(rows)), t_land_us)


def to_batch(queue: int, lane: str, rows: Gathered, t_land_us: int) -> pa.RecordBatch:
    """One flush. `lane`, with the id of a delivery, names that one delivery among all that ever land.

    What no UTF-8 can carry, such as half of a surrogate pair in a key, is written as `\\ud800`.
    """
    messages, count = rows.messages, len(rows)
    told = _tell(lane, messages, rows.delivery_ids)
    moment = LANDING_SCHEMA.field("t_land").type
    columns = [
        pa.repeat(pa.scalar(queue, pa.int32()), count),
        pa.array(rows.shards, pa.int32()),
        _text_column(rows.keys),
        _text_column([message.topic for message in messages]),
        _number_column(told.numbers),
        _text_column(told.ids),
        pa.array(rows.redelivered, pa.bool_()),
        pa.array(told.sent_us, pa.int64()).view(moment),
        pa.repeat(pa.scalar(t_land_us, pa.int64()), count).view(moment),
        pa.array([message.payload for message in messages], pa.binary()),
        _header_column(told.headers),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=LANDING_SCHEMA)


class _Told(NamedTuple):
    """Columns of what messages say of themselves."""

    numbers: list[int | None]
    ids: list[str]
    sent_us: list[int | None]
    headers: list[list[tuple[str, str]] | None]


def _tell(lane: str, messages: Sequence[Message], delivery_ids: Sequence[DeliveryId]) -> _Told:
    """One loop that calls nothing for most messages of ours: a row's identity is most of what the row costs."""
    told = numbers, ids, sent_us, headers = _Told([], [], [], [])
    last_ms: int | None = None
    time, moment_us = _time(None)
    for message, delivery_id in zip(messages, delivery_ids, strict=True):
        if message.sent_at_ms != last_ms:
            # Neighbours often were sent at the same time.
            last_ms = message.sent_at_ms
            time, moment_us = _time(last_ms)
        properties = message.properties
        stamped = properties.get(KEY_SEQUENCE_PROPERTY)
        number = stamped if type(stamped) is int else None
        publisher = properties.get(PUBLISHER_PROPERTY)
        key = properties.get(PARTITION_KEY_PROPERTY)
        numbers.append(number)
        sent_us.append(moment_us)
        # A publisher of ours never has a slash, with which the parts could not be told from each other, and always a
        # time: who lacks one of these may send the same stamps with every message.
        if (
            number is not None
            and moment_us is not None
            and type(publisher) is str
            and type(key) is str
            and "/" not in publisher
        ):
            ids.append(f"{time}.{number}/{publisher}/{key}")
            # Most of ours have nothing but what is stamped, which has columns of its own.
            headers.append(None if len(properties) == _STAMP_COUNT else _own_headers(message))
        else:
            ids.append(f"{time}.{FOREIGN_MARK}{lane}/{delivery_id}")
            headers.append(_all_headers(message))
    return told


def _time(sent_at_ms: int | None) -> tuple[str, int | None]:
    """The time in front of an id, and the same in microseconds, where it is one that a row can have."""
    if sent_at_ms is None or not 0 <= sent_at_ms <= LARGEST_TIME:
        return "0" * TIME_DIGITS, None
    return f"{sent_at_ms:0{TIME_DIGITS}x}", sent_at_ms * 1_000


def text_of(value: PropertyValue) -> str:
    """A user property as a header: numbers as Python writes them, true and false, bytes in hexadecimal, none empty."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return value.hex()
    return "" if value is None else str(value)


def _own_headers(message: Message) -> list[tuple[str, str]] | None:
    """Of a message that our publisher stamped: what its user gave."""
    return _as_text({name: value for name, value in message.properties.items() if name not in _STAMPED}) or None


def _all_headers(message: Message) -> list[tuple[str, str]] | None:
    """Of any other message: nothing of it is ours to leave out."""
    headers = _as_text(message.properties)
    if message.message_id is not None:
        headers.append((MESSAGE_ID_HEADER, message.message_id))
    return headers or None


def _as_text(properties: Mapping[str, PropertyValue]) -> list[tuple[str, str]]:
    return [(name, text_of(value)) for name, value in properties.items()]


def _text_column(values: Sequence[str | None]) -> pa.Array:
    try:
        return pa.array(values, pa.string())
    except UnicodeEncodeError:
        return pa.array([None if value is None else _clean(value) for value in values], pa.string())


def _number_column(values: Sequence[int | None]) -> pa.Array:
    try:
        return pa.array(values, pa.int64())
    except OverflowError:
        # No number of ours; the id has it all the same.
        return pa.array(
            [value if value is not None and abs(value) <= LARGEST_NUMBER else None for value in values], pa.int64()
        )


def _header_column(headers: Sequence[list[tuple[str, str]] | None]) -> pa.Array:
    kind = LANDING_SCHEMA.field("headers").type
    if not any(headers):
        return pa.nulls(len(headers), kind)
    try:
        return pa.array(headers, kind)
    except UnicodeEncodeError:
        clean = [each and [(_clean(name), _clean(value)) for name, value in each] for each in headers]
        return pa.array(clean, kind)


def _clean(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
