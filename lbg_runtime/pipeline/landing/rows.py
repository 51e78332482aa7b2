"""From what a handler is given to rows of the landing log."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa

from lbg_runtime.model.ids import DeliveryId
from lbg_runtime.model.message import (
    KEY_SEQUENCE_PROPERTY,
    PARTITION_KEY_PROPERTY,
    PUBLISHER_PROPERTY,
    Message,
    PropertyValue,
)
from lbg_runtime.pipeline.landing.schema import LANDING_SCHEMA, LARGEST_TIME, may_have_copies, row_id_of

MESSAGE_ID_HEADER = "lbg_message_id"
"""Header with the application message id, of messages that our publisher did not stamp: of its own, the id of the row
says more."""

FLUSH_BYTES = 64 << 20
"""Of payload: an Arrow column of bytes has an end."""

_PAYLOAD: Final = 7
"""Its place in a row."""

_STAMPED = frozenset((PARTITION_KEY_PROPERTY, PUBLISHER_PROPERTY, KEY_SEQUENCE_PROPERTY))
_STAMP_COUNT = len(_STAMPED)


LandingRow = tuple[
    int | None,  # shard
    str | None,  # key
    str,  # topic
    int | None,  # seq
    str,  # broker_id
    bool,  # redelivered
    int | None,  # t_enqueue, microseconds since the epoch
    bytes,  # payload
    list[tuple[str, str]] | None,  # headers
]
"""One message that lands; the columns of its flush are not in it. A plain tuple, as one is made for each message."""


def row_of(
    message: Message, shard: int | None, key: str | None, *, lane: str, delivery_id: DeliveryId, redelivered: bool
) -> LandingRow:
    """`key` by the rule of the group; `lane` and `delivery_id` name the one delivery."""
    properties, sent_at_ms = message.properties, message.sent_at_ms
    sequence = properties.get(KEY_SEQUENCE_PROPERTY)
    number = sequence if type(sequence) is int else None
    row_id = row_id_of(
        sent_at_ms,
        properties.get(PUBLISHER_PROPERTY),
        number,
        properties.get(PARTITION_KEY_PROPERTY),
        lane,
        delivery_id,
    )
    # Most of ours have nothing but what is stamped, which has columns of its own.
    is_plain = number is not None and len(properties) == _STAMP_COUNT and may_have_copies(row_id)
    return (
        shard,
        key,
        message.topic,
        number,
        row_id,
        redelivered,
        sent_at_ms * 1_000 if sent_at_ms is not None and 0 <= sent_at_ms <= LARGEST_TIME else None,
        message.payload,
        None if is_plain else _headers(message),
    )


def to_batches(queue: int, rows: Sequence[LandingRow], t_land_us: int) -> Iterator[pa.RecordBatch]:
    """One flush for every `FLUSH_BYTES` of payload; most often one for all."""
    if sum(len(row[_PAYLOAD]) for row in rows) <= FLUSH_BYTES:
        yield to_batch(queue, rows, t_land_us)
        return
    first, size = 0, 0
    for number, row in enumerate(rows):
        size += len(row[_PAYLOAD])
        if size > FLUSH_BYTES and number > first:
            yield to_batch(queue, rows[first:number], t_land_us)
            first, size = number, len(row[_PAYLOAD])
    yield to_batch(queue, rows[first:], t_land_us)


def to_batch(queue: int, rows: Sequence[LandingRow], t_land_us: int) -> pa.RecordBatch:
    """One flush. What no UTF-8 can carry, such as half of a surrogate pair in a key, is written as `\\ud800`."""
    try:
        return _to_batch(queue, rows, t_land_us)
    except UnicodeEncodeError:
        return _to_batch(queue, [_encodable(row) for row in rows], t_land_us)


def _to_batch(queue: int, rows: Sequence[LandingRow], t_land_us: int) -> pa.RecordBatch:
    shards, keys, topics, numbers, ids, redelivered, sent, payloads, headers = zip(*rows, strict=True)
    count = len(rows)
    moment = LANDING_SCHEMA.field("t_land").type
    columns = [
        pa.repeat(pa.scalar(queue, pa.int32()), count),
        pa.array(shards, pa.int32()),
        pa.array(keys, pa.string()),
        pa.array(topics, pa.string()),
        pa.array(numbers, pa.int64()),
        pa.array(ids, pa.string()),
        pa.array(redelivered, pa.bool_()),
        pa.array(sent, pa.int64()).view(moment),
        pa.repeat(pa.scalar(t_land_us, pa.int64()), count).view(moment),
        pa.array(payloads, pa.binary()),
        _header_column(headers, count),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=LANDING_SCHEMA)


def text_of(value: PropertyValue) -> str:
    """A user property as a header: numbers as Python writes them, true and false, bytes in hexadecimal, none empty."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return value.hex()
    return "" if value is None else str(value)


def _headers(message: Message) -> list[tuple[str, str]] | None:
    if message.publisher_id is not None:
        ours = {name: value for name, value in message.properties.items() if name not in _STAMPED}
        return _as_text(ours) or None
    headers = _as_text(message.properties)
    if message.message_id is not None:
        headers.append((MESSAGE_ID_HEADER, message.message_id))
    return headers or None


def _encodable(row: LandingRow) -> LandingRow:
    shard, key, topic, number, row_id, redelivered, sent, payload, headers = row
    if headers is not None:
        headers = [(_clean(name), _clean(value)) for name, value in headers]
    key = None if key is None else _clean(key)
    return shard, key, _clean(topic), number, _clean(row_id), redelivered, sent, payload, headers


def _clean(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _as_text(properties: Mapping[str, PropertyValue]) -> list[tuple[str, str]]:
    return [(name, text_of(value)) for name, value in properties.items()]


def _header_column(headers: Sequence[list[tuple[str, str]] | None], count: int) -> pa.Array:
    kind = LANDING_SCHEMA.field("headers").type
    return pa.nulls(count, kind) if not any(headers) else pa.array(headers, kind)
