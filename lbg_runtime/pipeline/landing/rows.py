"""Turns what a handler is given into rows of the landing log."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from lbg_runtime.model.ids import DeliveryId
from lbg_runtime.model.message import (
    KEY_SEQUENCE_PROPERTY,
    NO_HEADERS,
    PARTITION_KEY_PROPERTY,
    PUBLISHER_PROPERTY,
    Message,
    PropertyValue,
)
from lbg_runtime.pipeline.landing import message_headers
from lbg_runtime.pipeline.landing.schema import FOREIGN_MARK, LANDING_SCHEMA, LARGEST_TIME, TIME_DIGITS

MESSAGE_ID_HEADER = "lbg_message_id"
"""Header with the application message id, for messages that our publisher did not stamp: for its own, the id of the row
says more."""

FLUSH_BYTES = 64 << 20
"""Of payload: the size of an Arrow column of bytes is limited."""

LARGEST_NUMBER = (1 << 63) - 1
"""Largest number that the column takes."""

_STAMPED = frozenset((PARTITION_KEY_PROPERTY, PUBLISHER_PROPERTY, KEY_SEQUENCE_PROPERTY))
_STAMP_COUNT = len(_STAMPED)


class Gathered:
    """Messages on their way into one flush, column by column, in order of arrival.

    No object is created per row: Python's garbage collector would traverse such objects again and again while they wait
    for a disk, which took a third of the time of landing.
    """

    __slots__ = ("delivery_ids", "keys", "messages", "redelivered", "shards")

    def __init__(self) -> None:
        """Empty."""
        self.messages: list[Message] = []
        self.shards: list[int | None] = []
        self.keys: list[str | None] = []
        """Found by the rule of the group."""
        self.delivery_ids: list[DeliveryId] = []
        self.redelivered: list[bool] = []

    def __len__(self) -> int:
        return len(self.messages)

    def add(
        self, message: Message, shard: int | None, key: str | None, delivery_id: DeliveryId, *, redelivered: bool
    ) -> None:
        self.messages.append(message)
        self.shards.append(shard)
        self.keys.append(key)
        self.delivery_ids.append(delivery_id)
        self.redelivered.append(redelivered)

    def part(self, first: int, end: int) -> "Gathered":
        """The rows from `first` up to, but not including, `end`."""
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
    """The rows of one flush. `lane` and the id of a delivery together identify that delivery among all that ever land.

    What UTF-8 cannot encode, such as half of a surrogate pair in a key, is written as `\\ud800`.
    """
    messages, count = rows.messages, len(rows)
    told = _tell(lane, rows)
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
    """Columns with what the messages themselves carry."""

    numbers: list[int | None]
    ids: list[str]
    sent_us: list[int | None]
    headers: list[list[tuple[str, str]] | None]


def _tell(lane: str, rows: Gathered) -> _Told:
    """One loop that calls nothing for most of our messages: a row's identity is most of its cost."""
    told = numbers, ids, sent_us, headers = _Told([], [], [], [])
    last_ms: int | None = None
    time, moment_us = _time(None)
    for message, delivery_id, lane_key in zip(rows.messages, rows.delivery_ids, rows.keys, strict=True):
        if message.sent_at_ms != last_ms:
            # Neighbours often were sent at the same time.
            last_ms = message.sent_at_ms
            time, moment_us = _time(last_ms)
        properties = message.properties
        stamped = properties.get(KEY_SEQUENCE_PROPERTY)
        number = stamped if type(stamped) is int else None
        publisher = properties.get(PUBLISHER_PROPERTY)
        key = properties.get(PARTITION_KEY_PROPERTY)
        # A number counts within the key that is stamped.
        is_of_lane = key == lane_key or lane_key is None
        numbers.append(number if is_of_lane else None)
        sent_us.append(moment_us)
        # Our publishers never have a slash in their name, with which the parts could not be told apart, and always
        # stamp a time: others that break either rule may send the same stamps with every message.
        if (
            number is not None
            and moment_us is not None
            and type(publisher) is str
            and type(key) is str
            and "/" not in publisher
        ):
            ids.append(f"{time}.{number}/{publisher}/{key}")
            if not is_of_lane:
                headers.append(_all_headers(message))
                continue
            # Most of ours have only the stamps, which have columns of their own.
            has_more = len(properties) != _STAMP_COUNT or message.headers is not NO_HEADERS
            headers.append(_own_headers(message) if has_more else None)
        else:
            ids.append(f"{time}.{FOREIGN_MARK}{lane}/{delivery_id}")
            headers.append(_all_headers(message))
    return told


def _time(sent_at_ms: int | None) -> tuple[str, int | None]:
    """The time that an id begins with, and the same in microseconds if it is a time that a row can have."""
    if sent_at_ms is None or not 0 <= sent_at_ms <= LARGEST_TIME:
        return "0" * TIME_DIGITS, None
    return f"{sent_at_ms:0{TIME_DIGITS}x}", sent_at_ms * 1_000


def text_of(value: PropertyValue) -> str:
    """A user property as a header: numbers as Python writes them, true and false, bytes in hexadecimal, None empty."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return value.hex()
    return "" if value is None else str(value)


def _own_headers(message: Message) -> list[tuple[str, str]] | None:
    """For a message that our publisher stamped: the headers that its user gave."""
    headers = _as_text({name: value for name, value in message.properties.items() if name not in _STAMPED})
    return headers + message_headers.written(message.headers, message.properties) or None


def _all_headers(message: Message) -> list[tuple[str, str]] | None:
    """For any other message: all headers, as none of them is ours to leave out."""
    headers = _as_text(message.properties) + message_headers.written(message.headers, message.properties)
    if message.message_id is not None and MESSAGE_ID_HEADER not in message.properties:
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
        # Not a number of our publishers; the id has it all the same.
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
