"""Publishes the rows of one Spark task, in order, over the task's own connection, and waits for every confirm."""

import asyncio
import hashlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from lbg_runtime.config.load import load_settings
from lbg_runtime.model.errors import PublishFailed, SinkRowRefused
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.hashing import HashFunction
from lbg_runtime.pipeline.spark.sink_options import SinkOptions
from lbg_runtime.pipeline.spark.task_ledger import TaskLedger, task_ledger
from lbg_runtime.publisher.confirmation import Confirmation
from lbg_runtime.publisher.hashed import HashedPublisher
from lbg_runtime.publisher.ledger import wall_clock_us
from lbg_runtime.publishing import open_publishing_session
from lbg_runtime.transport.base import Messenger


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a sink publishes to; the driver reads this for all tasks of a batch."""

    shape: GroupShape
    hash_function: HashFunction


def publish_rows(rows: pa.Table, options: SinkOptions, destination: Destination, publisher_id: str) -> frozenset[int]:
    """Publish the rows; return the fingerprints of their keys. Blocks; called once per task, in its process.

    The same rows under the same `publisher_id` become the same messages, including message id and key sequence. Raises
    `SinkRowRefused`, before anything is sent, if a row has no key, topic or payload, and `PublishFailed` or what
    connecting raises if not everything is confirmed; some of the rows may then be on the broker.
    """
    check_rows(rows, options)
    if rows.num_rows:
        asyncio.run(_publish(rows, options, destination, publisher_id))
    keys = rows.column(options.key_column).unique().to_pylist()
    return frozenset(fingerprint(key) for key in keys)


def fingerprint(key: str) -> int:
    """A number for a key; no other key of a batch is likely to have the same."""
    return int.from_bytes(hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest())


def sorted_rows(rows: pa.Table, options: SinkOptions) -> pa.Table:
    """The rows in the order in which they are published. Equal ones stay in the order in which they came."""
    if options.order_column is None:
        return rows
    return rows.sort_by(options.order_column)


def check_rows(rows: pa.Table, options: SinkOptions) -> None:
    """Raise `SinkRowRefused` if a row lacks what it needs."""
    columns = [options.key_column, options.payload_column, options.topic_column, options.order_column]
    for column in filter(None, columns):
        if rows.column(column).null_count:
            row = rows.column(column).is_null().to_pylist().index(True)
            raise SinkRowRefused(column, row)


async def _publish(rows: pa.Table, options: SinkOptions, destination: Destination, publisher_id: str) -> None:
    settings = load_settings(options.config, ask=lambda _: _stored(destination))
    shape, hash_function = destination.shape, destination.hash_function
    with task_ledger(options.ledger, shape, hash_function, publisher_id) as ledger:
        async with open_publishing_session(settings, publisher_id) as session:
            await send_rows(session, rows, options, destination, publisher_id, ledger)


async def send_rows(
    messenger: Messenger,
    rows: pa.Table,
    options: SinkOptions,
    destination: Destination,
    publisher_id: str,
    ledger: TaskLedger | None = None,
) -> None:
    """Send the rows and wait for all confirms, at most `maxInFlight` under way."""
    publisher = HashedPublisher(
        messenger,
        destination.shape,
        destination.hash_function,
        publisher_id=publisher_id,
        ledger=None if ledger is None else ledger.ledger,
        max_unconfirmed=options.max_in_flight,
    )
    timeout_s = options.ack_timeout_ms / 1000
    under_way: deque[tuple[str, asyncio.Future[Confirmation]]] = deque()
    """With their topics, in the order in which they were sent."""
    topic = ""

    def note(confirmation: Confirmation) -> None:
        if ledger is not None:
            ledger.note(confirmation, wall_clock_us())

    try:
        for key, topic, payload in _messages(rows, options):
            async with asyncio.timeout(timeout_s):
                under_way.append((topic, await publisher.submit(topic, payload, key=key)))
            # Answers are looked at as they come: a refusal ends the task at once.
            while under_way and under_way[0][1].done():
                note(under_way.popleft()[1].result())
        while under_way:
            async with asyncio.timeout(timeout_s):
                note(await under_way[0][1])
            under_way.popleft()
    except TimeoutError:
        # Also if there was no room to send another: the first without an answer is what holds it up.
        silent = (sent for sent, confirm in under_way if confirm.cancelled() or not confirm.done())
        raise PublishFailed(next(silent, topic), f"no confirm within {options.ack_timeout_ms} ms") from None
    finally:
        # Everything sent has its answer, or the task has failed and does not wait.
        await publisher.close(timeout_ms=0)


def _messages(rows: pa.Table, options: SinkOptions) -> Iterator[tuple[str, str, bytes]]:
    for batch in rows.to_batches():
        keys = batch.column(options.key_column).to_pylist()
        payloads = batch.column(options.payload_column).to_pylist()
        if options.topic_column is None:
            topics = [options.topic or ""] * len(keys)
        else:
            topics = batch.column(options.topic_column).to_pylist()
        for key, topic, payload in zip(keys, topics, payloads, strict=True):
            yield key, topic, payload.encode() if isinstance(payload, str) else payload


def _stored(destination: Destination) -> dict[str, object]:
    shape = destination.shape
    return {
        "hash_prefix": shape.hash_prefix,
        "hash_count": shape.hash_count,
        "queue_count": shape.queue_count,
        "hash_function": destination.hash_function.value,
    }
