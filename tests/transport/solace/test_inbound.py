"""Messages of publishers that know nothing of this project arrive as well as they can."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from lbg_runtime.broker.server.server import BrokerServer
from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.model.message import NO_HEADERS, PUBLISHER_PROPERTY, Headers, Message
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.testing.flow_recorder import FlowRecorder
from lbg_runtime.transport.solace.settings import SolaceSettings
from lbg_runtime.transport.solace.transport import SolaceTransport
from tests.patience import PATIENCE_MS
from tests.transport.solace.steps import opened

pytestmark = pytest.mark.real_time

Receive = Callable[..., Any]


@pytest.fixture
async def exchange(broker: BrokerServer, make_transport: Callable[..., SolaceTransport]) -> AsyncIterator[Receive]:
    """Publish with the client itself what it takes, and receive it as a message of the model."""
    transport = await opened(make_transport("first"))
    recorder = FlowRecorder()
    (await transport.bind(QueueName("orders/0"), Epoch(1), recorder)).start_intake()

    from lbg_runtime.transport.solace.library import MessagingService, Topic

    settings = SolaceSettings(hosts=(broker.url,), client_name="foreign")
    service = MessagingService.builder().from_properties(settings.properties()).build()
    await asyncio.to_thread(service.connect)
    publisher = service.create_persistent_message_publisher_builder().build().start()

    async def publish_and_receive(payload: Any, properties: dict[str, Any] | None = None) -> Message:
        expected = len(recorder.deliveries) + 1
        publisher.publish(payload, Topic.of("orders/new"), additional_message_properties=properties or {})
        return (await recorder.until_received(expected))[-1].message

    yield publish_and_receive
    await asyncio.to_thread(service.disconnect)


async def test_a_text_arrives_as_its_utf8_bytes_with_our_stamp_as_well(exchange: Receive) -> None:
    for text in ("", "täxt", "x" * 300, "y" * 70_000):
        for properties in (None, {PUBLISHER_PROPERTY: "p"}):
            assert (await exchange(text, properties)).payload == text.encode()


async def test_bytes_of_our_publisher_are_left_alone_whatever_they_look_like(exchange: Receive) -> None:
    for raw in (b"\x1c\x04a\0", b"\x1c\x03\0", b"\x1f\x8b gzip", b"\x1c\x05a\0", b"\x1c"):
        assert (await exchange(bytearray(raw), {PUBLISHER_PROPERTY: "p"})).payload == raw


async def test_bytes_that_only_begin_like_a_text_are_left_alone(exchange: Receive) -> None:
    for raw in (b"\x1f\x8b gzip", b"\x1c\x05a\0", b"\x1c", b"\x1d\0", b"\x1c\x04ab"):
        assert (await exchange(bytearray(raw))).payload == raw


async def test_properties_of_every_kind_are_read(exchange: Receive) -> None:
    from lbg_runtime.transport.solace.library import Topic

    message = await exchange(
        bytearray(b"x"),
        {
            "text": "ü",
            "whole": 2**63 - 1,
            "large": 2**64 - 1,
            "negative": -(2**63),
            "ratio": 0.1,
            "yes": True,
            "nothing": None,
            "zeroes": bytearray(b"\0a\0b\0"),
            "long": bytearray(100_000),
            "none of it": bytearray(),
            "where": Topic.of("orders/there"),
            "map": {"left": "out"},
            "list": [1, 2],
        },
    )
    assert dict(message.properties) == {
        "text": "ü",
        "whole": 2**63 - 1,
        "large": 2**64 - 1,
        "negative": -(2**63),
        "ratio": 0.1,
        "yes": True,
        "nothing": None,
        "zeroes": b"\0a\0b\0",
        "long": bytes(100_000),
        "none of it": b"",
        "where": "orders/there",
    }


async def test_structured_payloads_arrive_in_their_encoding(exchange: Receive) -> None:
    assert (await exchange({"a": 1})).payload.startswith(b"\x2b")
    assert (await exchange(["a", 1])).payload.startswith(b"\x2f")


async def test_what_a_publisher_did_not_say_is_none(exchange: Receive) -> None:
    message = await exchange(bytearray(b"x"))
    assert (message.message_id, message.sent_at_ms, dict(message.properties)) == (None, None, {})


async def test_headers_that_the_client_sets_are_read(exchange: Receive) -> None:
    message = await exchange(
        bytearray(b"x"),
        {
            "solace.messaging.message.persistent.sequence-number": 7,
            "solace.messaging.message.correlation-id": "c",
            "solace.messaging.message.application-message-type": "type",
            "solace.messaging.message.priority": 9,
            "solace.messaging.message.application-message-id": "id-1",
        },
    )
    assert message == Message("orders/new", b"x", {}, "id-1", headers=Headers("c", "type", 7, 9))
    assert (await exchange(bytearray(b"x"))).headers is NO_HEADERS


async def test_headers_that_are_sent_are_read_by_the_client(
    broker: BrokerServer, make_transport: Callable[..., SolaceTransport]
) -> None:
    """As another application reads them, by its public interface alone, from a broker that only passes them on."""
    from lbg_runtime.transport.solace.library import MessagingService, Queue

    transport = await opened(make_transport("first"))
    await transport.send(Message("orders/new", b"x", headers=Headers("c", "type", 7, 9)))
    await transport.send_together([Message("orders/new", b"x", headers=Headers("c", "type", 7, 9))])
    await transport.send(Message("orders/new", b"x"))

    settings = SolaceSettings(hosts=(broker.url,), client_name="foreign")
    service = MessagingService.builder().from_properties(settings.properties()).build()

    def receive() -> list[tuple[Any, ...]]:
        service.connect()
        try:
            queue = Queue.durable_exclusive_queue("orders/0")
            receiver = service.create_persistent_message_receiver_builder().build(queue).start()
            found = [receiver.receive_message(PATIENCE_MS) for _ in range(3)]
            return [
                (
                    each.get_correlation_id(),
                    each.get_application_message_type(),
                    each.get_sequence_number(),
                    each.get_priority(),
                )
                for each in found
            ]
        finally:
            service.disconnect()

    all_four = ("c", "type", 7, 9)
    assert await asyncio.to_thread(receive) == [all_four, all_four, (None, None, None, 4)]


async def test_the_number_of_a_delivery_says_nothing_on_another_flow(
    broker: BrokerServer, make_transport: Callable[..., SolaceTransport]
) -> None:
    told = []
    for name in ("one", "two"):
        transport = make_transport(name)
        await transport.open()
        recorder = FlowRecorder()
        flow = await transport.bind(QueueName("orders/0"), Epoch(1), recorder)
        flow.start_intake()
        if not told:
            for payload in (b"a", b"b"):
                await transport.send(Message("orders/new", payload))
        await recorder.until_received(2 - len(told))
        told.append({delivery.message.payload: delivery.delivery_id for delivery in recorder.deliveries})
        flow.settle(told[0][b"a"], Outcome.ACCEPTED)
        await flow.unbind()
    assert told == [{b"a": 1, b"b": 2}, {b"b": 1}]
