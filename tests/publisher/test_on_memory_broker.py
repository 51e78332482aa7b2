"""The publisher on a real engine: what is confirmed lies in the right queue, in order, once, outages or not."""

import asyncio
from collections import defaultdict
from pathlib import Path

import pytest

from lbg_runtime.core.flow.events import FlowEvent, MessageReceived
from lbg_runtime.metrics.reading import PublisherCounts
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.hashing import HashFunction
from lbg_runtime.model.ids import Epoch
from lbg_runtime.model.message import Message
from lbg_runtime.publisher.hashed import HashedPublisher
from lbg_runtime.publisher.ledger import open_ledger
from lbg_runtime.transport.memory.broker import MemoryBroker
from lbg_runtime.transport.memory.transport import MemoryTransport


@pytest.fixture
def broker(shape: GroupShape) -> MemoryBroker:
    broker = MemoryBroker()
    for index in range(shape.queue_count):
        broker.create_queue(shape.queue_name(index), shape.subscriptions(index))
    return broker


async def _spooled(broker: MemoryBroker, shape: GroupShape) -> dict[int, list[Message]]:
    """What lies in each queue, in order, by index."""
    spooled: dict[int, list[Message]] = defaultdict(list)
    transport = MemoryTransport(broker, "reader")
    await transport.open()
    for index in range(shape.queue_count):

        def sink(event: FlowEvent, messages: list[Message] = spooled[index]) -> None:
            if isinstance(event, MessageReceived):
                messages.append(event.delivery.message)

        (await transport.bind(shape.queue_name(index), Epoch(1), sink)).start_intake()
    await asyncio.sleep(1)
    await transport.close()
    return spooled


async def test_each_message_lies_once_in_its_queue_in_the_order_of_its_key_although_the_connection_breaks(
    broker: MemoryBroker, shape: GroupShape, tmp_path: Path
) -> None:
    transport = MemoryTransport(broker, "publisher")
    await transport.open()
    ledger = open_ledger(tmp_path, shape, HashFunction.CRC32, publisher_id="p")
    loop = asyncio.get_running_loop()
    for at_s in (0.5, 1.0, 1.7):
        loop.call_later(at_s, transport.drop_connection, 0.2)
    async with HashedPublisher(
        transport, shape, HashFunction.CRC32, publisher_id="p", ledger=ledger, max_unconfirmed=20
    ) as publisher:
        for number in range(1000):
            await publisher.submit("orders/created", b"", key=f"key-{number % 37}")
            await asyncio.sleep(0.002)
    await transport.close()
    assert publisher.counts == PublisherCounts(sent=1000, confirmed=1000, refused=0, unknown=0)

    sequences: dict[str | None, list[int | None]] = defaultdict(list)
    for index, messages in (await _spooled(broker, shape)).items():
        for message in messages:
            place = shape.split_topic(message.topic)
            assert place is not None
            assert shape.queue_index_of_shard(place[0]) == index
            sequences[message.key].append(message.key_sequence)
    assert len(sequences) == 37
    for of_key in sequences.values():
        assert of_key == list(range(1, len(of_key) + 1))
    assert sum(map(len, sequences.values())) == 1000


async def test_when_the_session_ends_for_good_nothing_is_claimed_that_is_not_known(
    broker: MemoryBroker, shape: GroupShape, tmp_path: Path
) -> None:
    transport = MemoryTransport(broker, "publisher")
    await transport.open()
    ledger = open_ledger(tmp_path, shape, HashFunction.CRC32, publisher_id="p")
    publisher = HashedPublisher(transport, shape, HashFunction.CRC32, publisher_id="p", ledger=ledger)
    await publisher.publish("t", b"1", key="k")
    answer = await publisher.submit("t", b"2", key="k")
    transport.kill()
    await asyncio.wait([answer])
    assert await publisher.close() == PublisherCounts(sent=2, confirmed=1, refused=0, unknown=1)
