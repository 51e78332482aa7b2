"""The steps of the conformance tests of all transports."""
# ruff: noqa: S101 - see `conformance`

import asyncio
import itertools
from collections.abc import Sequence
from typing import TypeVar

from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.model.message import (
    KEY_SEQUENCE_PROPERTY,
    PARTITION_KEY_PROPERTY,
    PUBLISHER_PROPERTY,
    Delivery,
    Message,
    PropertyValue,
)
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.testing.flow_recorder import PATIENCE_S, FlowRecorder
from lbg_runtime.testing.transport_harness import FullTransport, TransportHarness
from lbg_runtime.transport.base import BoundFlow, Browser

QUEUE = QueueName("orders/0")
FIRST, SECOND = Epoch(1), Epoch(2)
WINDOW = 255

_Item = TypeVar("_Item")


async def open_transport(harness: TransportHarness, client_name: str = "first") -> FullTransport:
    transport = harness.make_transport(client_name)
    await transport.open()
    return transport


async def publish(messenger: FullTransport, *payloads: str, topic: str = "orders/new") -> None:
    """Publish and wait for every confirmation."""
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*(messenger.send(Message(topic, payload.encode())) for payload in payloads))


def stamped(number: int) -> Message:
    """A message as a hashed publisher stamps it, the one with this number within its key."""
    stamps: dict[str, PropertyValue] = {
        PARTITION_KEY_PROPERTY: "k",
        PUBLISHER_PROPERTY: "p",
        KEY_SEQUENCE_PROPERTY: number,
    }
    return Message("orders/new", b"", stamps)


async def until_connected(messenger: FullTransport) -> None:
    """Wait until the session is back: a confirmation shows it."""
    await publish(messenger, "", topic="nobody/listens")


async def next_of(queue: asyncio.Queue[_Item]) -> _Item:
    """The next item, for which it waits for no longer than `PATIENCE_S`."""
    return await asyncio.wait_for(queue.get(), PATIENCE_S)


async def bind_closed(
    transport: FullTransport, epoch: Epoch = FIRST, queue: QueueName = QUEUE
) -> tuple[BoundFlow, FlowRecorder]:
    """A bound flow whose intake was never opened, and what it reports."""
    recorder = FlowRecorder()
    return await transport.bind(queue, epoch, recorder), recorder


async def bind(
    transport: FullTransport, epoch: Epoch = FIRST, queue: QueueName = QUEUE
) -> tuple[BoundFlow, FlowRecorder]:
    """A bound flow whose intake is open, and what it reports."""
    flow, recorder = await bind_closed(transport, epoch, queue)
    flow.start_intake()
    return flow, recorder


def settle(flow: BoundFlow, deliveries: Sequence[Delivery]) -> None:
    """Accept them all."""
    for delivery in deliveries:
        flow.settle(delivery.delivery_id, Outcome.ACCEPTED)


async def browse(browser: Browser, count: int, queue: QueueName = QUEUE) -> list[Message]:
    """The first messages on a queue, so many of them: it ends with the last, and not where a busy machine pauses."""
    numbers = itertools.count(1)
    return await browser.browse(queue, PATIENCE_S, lambda _: next(numbers) == count)


async def left_on_queue(harness: TransportHarness) -> list[tuple[bytes, bool]]:
    """Payload and redelivered flag of what a new flow is shown; use it when nobody else is bound."""
    transport = await open_transport(harness, "witness")
    await publish(transport, "marker")
    _, recorder = await bind(transport)
    await recorder.until(lambda: b"marker" in recorder.payloads)
    await transport.close()
    shown = [(delivery.message.payload, delivery.redelivered) for delivery in recorder.deliveries]
    assert shown.pop() == (b"marker", False)
    return shown


def numbers(count: int) -> list[str]:
    """Payloads whose order can be checked."""
    return [str(number) for number in range(count)]
