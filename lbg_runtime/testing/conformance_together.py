"""What every transport guarantees about messages that are published together. Part of `conformance`."""
# ruff: noqa: S101 - see `conformance`

import asyncio
from collections.abc import Sequence

import pytest

from lbg_runtime.broker.engine.settings import QueueSettings
from lbg_runtime.model.errors import PublishFailed, PublishRefused
from lbg_runtime.model.ids import QueueName
from lbg_runtime.model.message import Message
from lbg_runtime.testing.conformance_steps import bind, numbers, open_transport, publish, until_connected
from lbg_runtime.testing.flow_recorder import PATIENCE_S
from lbg_runtime.testing.transport_harness import FullTransport, TransportHarness
from lbg_runtime.transport.base import MAX_TOGETHER

_NARROW_BYTES = 1_000


class TogetherConformance:
    """Local transactions of published messages."""

    async def test_messages_published_together_come_in_their_order(self, harness: TransportHarness) -> None:
        transport = await open_transport(harness)
        _, recorder = await bind(transport)
        await _publish_together(transport, *numbers(MAX_TOGETHER))
        await _publish_together(transport, "last")
        await recorder.until_received(MAX_TOGETHER + 1)
        assert recorder.payloads == [each.encode() for each in (*numbers(MAX_TOGETHER), "last")]
        assert not any(delivery.redelivered for delivery in recorder.deliveries)

    async def test_where_one_is_refused_none_is_there(self, harness: TransportHarness) -> None:
        harness.broker.create_queue("small", ["small"], settings=QueueSettings(max_message_bytes=_NARROW_BYTES))
        transport = await open_transport(harness)
        _, recorder = await bind(transport)
        with pytest.raises(PublishRefused):
            await _together(transport, [Message("orders/new", b"a"), Message("small", bytes(5 * _NARROW_BYTES))])
        await _publish_together(transport, "b")
        await recorder.until_received(1)
        assert recorder.payloads == [b"b"]

    async def test_what_waits_for_one_that_is_refused_is_there(self, harness: TransportHarness) -> None:
        harness.broker.create_queue("small", ["small"], settings=QueueSettings(max_message_bytes=_NARROW_BYTES))
        transport = await open_transport(harness)
        too_large = Message("small", bytes(5 * _NARROW_BYTES))
        ends = [
            transport.send_together([Message("orders/new", b"a"), Message("small", b"a")]),
            transport.send_together([Message("orders/new", b"b")]),
            transport.send_together([Message("orders/new", b"c"), too_large]),
            transport.send_together([Message("orders/new", b"d")]),
        ]
        async with asyncio.timeout(PATIENCE_S):
            outcomes = await asyncio.gather(*ends, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [type(None), type(None), PublishRefused, type(None)]
        _, recorder = await bind(transport)
        await recorder.until_received(3)
        assert recorder.payloads == [b"a", b"b", b"d"]
        _, small = await bind(transport, queue=QueueName("small"))
        await small.until_received(1)

    async def test_more_than_a_transaction_takes_are_refused(self, harness: TransportHarness) -> None:
        transport = await open_transport(harness)
        with pytest.raises(PublishRefused):
            await _publish_together(transport, *numbers(MAX_TOGETHER + 1))
        _, recorder = await bind(transport)
        await publish(transport, "marker")
        await recorder.until_received(1)
        assert recorder.payloads == [b"marker"]

    async def test_a_broken_connection_leaves_all_or_nothing(self, harness: TransportHarness) -> None:
        transport = await open_transport(harness)
        _, recorder = await bind(transport)
        ends = []
        for number in range(40):
            ends.append(transport.send_together([Message("orders/new", f"{number}".encode())] * 3))
            if number == 20:
                await ends[0]
                harness.cut("first")
        async with asyncio.timeout(PATIENCE_S):
            outcomes = await asyncio.gather(*ends, return_exceptions=True)
        await until_connected(transport)
        await publish(transport, "marker")
        await recorder.until(lambda: b"marker" in recorder.payloads)
        seen = [recorder.payloads.count(f"{number}".encode()) for number in range(40)]
        assert set(seen) <= {0, 3}
        assert all(count == 3 for count, outcome in zip(seen, outcomes, strict=True) if outcome is None)
        assert not any(
            count for count, outcome in zip(seen, outcomes, strict=True) if isinstance(outcome, PublishRefused)
        )
        # And the transport works on.
        await _publish_together(transport, "x", "y")
        await recorder.until(lambda: b"y" in recorder.payloads)

    async def test_a_closed_transport_publishes_nothing_together(self, harness: TransportHarness) -> None:
        transport = await open_transport(harness)
        await _publish_together(transport, "a")
        await transport.close()
        with pytest.raises(PublishFailed):
            await transport.send_together([Message("orders/new", b"")])


async def _publish_together(transport: FullTransport, *payloads: str) -> None:
    await _together(transport, [Message("orders/new", payload.encode()) for payload in payloads])


async def _together(transport: FullTransport, messages: Sequence[Message]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await transport.send_together(messages)
