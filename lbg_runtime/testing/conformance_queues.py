"""What every transport guarantees about looking into queues, and making them. Part of `conformance`."""
# ruff: noqa: S101 - see `conformance`

import asyncio

import pytest

from lbg_runtime.core.flow.events import FlowActive, MessageReceived
from lbg_runtime.model.errors import TransportError
from lbg_runtime.model.ids import QueueName
from lbg_runtime.model.message import Message
from lbg_runtime.testing.conformance_steps import FIRST, QUEUE, bind, browse, left_on_queue, open_transport, publish
from lbg_runtime.testing.flow_recorder import PATIENCE_S
from lbg_runtime.testing.transport_harness import TransportHarness

MADE_BY_MEMBERS = QueueName("made")
"""The one queue of the suite that no administrator makes: a harness whose broker outlives a test deletes it."""


class QueueConformance:
    """Browsing queues at rest, queues that are fed, and queues that are missing; provisioning."""

    async def test_browsing_shows_what_is_there_and_takes_nothing(self, harness: TransportHarness) -> None:
        transport = await open_transport(harness)
        flow, recorder = await bind(transport)
        await publish(transport, "a", "b", "c")
        await recorder.until_received(3)
        assert [each.payload for each in await browse(transport, 3)] == [b"a", b"b", b"c"]
        # A pause ends it as well. On a busy machine there may be one before the last message: then it is asked again.
        async with asyncio.timeout(PATIENCE_S):
            while len(found := await transport.browse(QUEUE, 0.2)) < 3:
                assert [each.payload for each in found] == [b"a", b"b", b"c"][: len(found)]
        assert [each.payload for each in found] == [b"a", b"b", b"c"]
        await flow.unbind()
        assert await left_on_queue(harness) == [(b"a", True), (b"b", True), (b"c", True)]

    async def test_browsing_a_queue_that_is_fed_all_the_time_ends_where_it_is_told_to(
        self, harness: TransportHarness
    ) -> None:
        transport, asked = await open_transport(harness), list[bytes]()
        loop = asyncio.get_running_loop()

        def feed() -> None:
            transport.send(Message("orders/new", b"more")).add_done_callback(lambda sent: sent.exception())

        def is_last(message: Message) -> bool:
            asked.append(message.payload)
            # Another message for each one that is seen: no pause ends the browsing, however busy the machine is.
            loop.call_soon_threadsafe(feed)
            return len(asked) == 300

        await publish(transport, "a", "b")
        found = await transport.browse(QUEUE, PATIENCE_S, is_last)
        assert [each.payload for each in found] == asked == [b"a", b"b", *[b"more"] * 298]

    async def test_a_queue_that_is_missing_cannot_be_browsed(self, harness: TransportHarness) -> None:
        transport = await open_transport(harness)
        with pytest.raises(TransportError, match="cannot browse missing"):
            await transport.browse(QueueName("missing"), 0.2)

    async def test_provisioning_creates_what_is_missing_and_nothing_else(self, harness: TransportHarness) -> None:
        transport = await open_transport(harness)
        queue = MADE_BY_MEMBERS
        for _ in range(2):
            await transport.provision(queue, ["made/1/>", "made/2/>"])
        flow, recorder = await bind(transport, queue=queue)
        await publish(transport, "one", topic="made/1/x")
        await publish(transport, "two", topic="made/2/x")
        await publish(transport, "three", topic="made/3/x")
        await publish(transport, "four", topic="made/1/y")
        await recorder.until_received(3)
        assert recorder.payloads == [b"one", b"two", b"four"]
        await transport.provision(queue, ["made/3/>"])
        await publish(transport, "five", topic="made/3/x")
        await recorder.until_received(4)
        # Provisioning has not touched the flow: it became active just once, and nothing came twice.
        assert [event for event in recorder.events if not isinstance(event, MessageReceived)] == [FlowActive(FIRST)]
        await flow.unbind()

    async def test_a_queue_is_there_from_the_moment_it_was_made_also_while_another_flow_holds_it(
        self, harness: TransportHarness
    ) -> None:
        transport = await open_transport(harness)
        queue = MADE_BY_MEMBERS
        assert not await transport.has_queue(queue)
        await transport.provision(queue, ["made/1/>"])
        assert await transport.has_queue(queue)
        flow, recorder = await bind(transport, queue=queue)
        await publish(transport, "one", topic="made/1/x")
        await recorder.until_received(1)
        assert await transport.has_queue(queue)
        # The look has taken nothing, and the flow has noticed nothing.
        assert recorder.events[0] == FlowActive(FIRST)
        assert len(recorder.events) == 2
        await flow.unbind()
        assert [each.payload for each in await browse(transport, 1, queue)] == [b"one"]
