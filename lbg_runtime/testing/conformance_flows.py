"""What every transport guarantees about its flows. Part of `conformance`."""
# ruff: noqa: S101 - see `conformance`

import asyncio

import pytest

from lbg_runtime.core.flow.events import FlowActive
from lbg_runtime.model.errors import BindFailed
from lbg_runtime.model.ids import DeliveryId, QueueName
from lbg_runtime.model.message import FencingToken, Message
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.testing.conformance_steps import (
    FIRST,
    QUEUE,
    SECOND,
    WINDOW,
    bind,
    bind_closed,
    left_on_queue,
    numbers,
    open_transport,
    publish,
    settle,
    stamped,
    until_connected,
)
from lbg_runtime.testing.flow_recorder import FlowRecorder
from lbg_runtime.testing.transport_harness import TransportHarness


class FlowConformance:
    """Receiving, giving up, exclusivity."""

    # -- receiving

    async def test_an_unknown_queue_is_refused_for_good(self, harness: TransportHarness) -> None:
        transport = await open_transport(harness)
        with pytest.raises(BindFailed) as failure:
            await transport.bind(QueueName("nowhere"), FIRST, FlowRecorder())
        assert failure.value.permanent
        assert failure.value.queue == "nowhere"

    async def test_messages_arrive_whole(self, harness: TransportHarness) -> None:
        transport = await open_transport(harness)
        _, recorder = await bind(transport)
        sent = [
            Message(
                "orders/ä/1",
                bytes(range(256)),
                {"JMSXGroupID": "k", "number": -7, "ratio": 0.5, "yes": True, "raw": b"\0\1", "nothing": None},
                "id-1",
                1_700_000_000_123,
            ),
            Message("orders/empty", b""),
            Message("orders/text", "täxt".encode(), {"name": "ü"}),
        ]
        for message in sent:
            await transport.send(message)
        deliveries = await recorder.until_received(len(sent))
        assert [delivery.message for delivery in deliveries] == sent
        assert {(delivery.queue, delivery.epoch, delivery.redelivered) for delivery in deliveries} == {
            (QUEUE, FIRST, False)
        }
        assert all(delivery.received_at_ns >= 0 for delivery in deliveries)

    async def test_messages_arrive_in_order_without_loss(self, harness: TransportHarness) -> None:
        transport = await open_transport(harness)
        flow, recorder = await bind(transport)
        await publish(transport, *numbers(1_500))
        await recorder.until_received(1_500)
        assert recorder.payloads == [payload.encode() for payload in numbers(1_500)]
        ids = [delivery.delivery_id for delivery in recorder.deliveries]
        assert ids == sorted(set(ids))
        settle(flow, recorder.deliveries)
        await flow.unbind()
        assert await left_on_queue(harness) == []

    async def test_unsettled_messages_come_again_flagged_and_in_order(self, harness: TransportHarness) -> None:
        transport = await open_transport(harness)
        flow, recorder = await bind(transport)
        await publish(transport, "a", "b", "c", "d")
        deliveries = await recorder.until_received(4)
        settle(flow, deliveries[1:3])
        await flow.unbind()
        assert await left_on_queue(harness) == [(b"a", True), (b"d", True)]

    async def test_what_was_flushed_is_settled_before_what_is_sent_next(self, harness: TransportHarness) -> None:
        harness.broker.create_queue("other", ["other"])
        transport = await open_transport(harness)
        flow, recorder = await bind(transport)
        await publish(transport, "a", "b", "c")
        settle(flow, await recorder.until_received(3))
        flow.flush()
        await publish(transport, "behind", topic="other")
        # Neither the ack timer nor a goodbye can have sent them now.
        await harness.begin_outage()
        await transport.close()
        await harness.end_outage()
        assert await left_on_queue(harness) == []

    async def test_stopped_intake_lets_at_most_a_window_through(self, harness: TransportHarness) -> None:
        harness.broker.create_queue("other", ["other"])
        transport = await open_transport(harness)
        flow, recorder = await bind(transport)
        await recorder.until_active()
        _, other = await bind(transport, queue=QueueName("other"))
        flow.stop_intake()
        await publish(transport, *numbers(600))
        # The marker comes over the same connection, after everything that the broker still sent.
        await publish(transport, "marker", topic="other")
        await other.until_received(1)
        assert len(recorder.deliveries) <= WINDOW
        flow.start_intake()
        await recorder.until_received(600)
        assert recorder.payloads == [payload.encode() for payload in numbers(600)]

    async def test_nothing_arrives_before_intake_is_started(self, harness: TransportHarness) -> None:
        harness.broker.create_queue("other", ["other"])
        transport = await open_transport(harness)
        _, other = await bind(transport, queue=QueueName("other"))
        await publish(transport, "a")
        flow, recorder = await bind_closed(transport)
        await recorder.until_active()
        await publish(transport, "b")
        # The marker comes over the same connection, after everything that the broker sent before.
        await publish(transport, "marker", topic="other")
        await other.until_received(1)
        assert recorder.events == [FlowActive(FIRST)]
        flow.start_intake()
        await recorder.until_received(2)
        assert [(d.message.payload, d.redelivered) for d in recorder.deliveries] == [(b"a", False), (b"b", False)]

    # -- giving up

    async def test_a_flow_whose_intake_was_never_started_leaves_no_trace(self, harness: TransportHarness) -> None:
        transport = await open_transport(harness)
        await publish(transport, "a")
        for epoch in (FIRST, SECOND):
            flow, recorder = await bind_closed(transport, epoch)
            await recorder.until_active()
            await flow.unbind()
            assert recorder.events == [FlowActive(epoch)]
        assert await left_on_queue(harness) == [(b"a", False)]

    async def test_unbind_takes_the_settlements_along(self, harness: TransportHarness) -> None:
        transport = await open_transport(harness)
        flow, recorder = await bind(transport)
        await publish(transport, *numbers(300))
        settle(flow, await recorder.until_received(300))
        assert await flow.unbind()
        assert await left_on_queue(harness) == []

    async def test_an_unbind_in_an_outage_is_not_known_to_have_arrived(self, harness: TransportHarness) -> None:
        transport = await open_transport(harness)
        flow, recorder = await bind(transport)
        await publish(transport, "a")
        settle(flow, await recorder.until_received(1))
        await harness.begin_outage()
        assert not await flow.unbind()
        await harness.end_outage()

    async def test_nothing_is_reported_after_unbind(self, harness: TransportHarness) -> None:
        transport = await open_transport(harness)
        flow, recorder = await bind(transport)
        sending = [transport.send(Message("orders/new", b"flood")) for _ in range(400)]
        await recorder.until_received(1)
        await flow.unbind()
        told = len(recorder.events)
        await asyncio.gather(*sending)
        again, successor = await bind(transport, SECOND)
        await successor.until_received(400)
        assert len(recorder.events) == told
        assert {delivery.epoch for delivery in successor.deliveries} == {SECOND}
        await again.unbind()

    async def test_a_handle_that_was_given_up_does_nothing(self, harness: TransportHarness) -> None:
        transport = await open_transport(harness)
        flow, recorder = await bind(transport)
        await publish(transport, "a")
        [delivery] = await recorder.until_received(1)
        await flow.unbind()
        flow.settle(delivery.delivery_id, Outcome.ACCEPTED)
        flow.stop_intake()
        flow.start_intake()
        await flow.unbind()
        assert await left_on_queue(harness) == [(b"a", True)]

    async def test_unbind_runs_to_its_end_when_cancelled(self, harness: TransportHarness) -> None:
        transport = await open_transport(harness)
        flow, recorder = await bind(transport)
        await publish(transport, "a")
        settle(flow, await recorder.until_received(1))
        unbinding = asyncio.ensure_future(flow.unbind())
        await asyncio.sleep(0)
        unbinding.cancel()
        await asyncio.wait([unbinding])
        assert await left_on_queue(harness) == []

    async def test_a_cancelled_bind_leaves_no_flow(self, harness: TransportHarness) -> None:
        transport = await open_transport(harness)
        binding = asyncio.ensure_future(transport.bind(QUEUE, FIRST, FlowRecorder()))
        await asyncio.sleep(0)
        binding.cancel()
        await asyncio.wait([binding])
        assert binding.cancelled()
        _, recorder = await bind(transport, SECOND)
        await recorder.until_active()

    async def test_a_deleted_queue_ends_its_flow_only(self, harness: TransportHarness) -> None:
        harness.broker.create_queue("doomed")
        transport = await open_transport(harness)
        doomed, told = await bind(transport, queue=QueueName("doomed"))
        _, recorder = await bind(transport)
        await told.until_active()
        harness.broker.delete_queue("doomed")
        assert await told.until_down() == "Queue Deleted"
        doomed.settle(DeliveryId(1), Outcome.ACCEPTED)
        await doomed.unbind()
        with pytest.raises(BindFailed):
            await transport.bind(QueueName("doomed"), SECOND, FlowRecorder())
        await publish(transport, "a")
        await recorder.until_received(1)

    # -- exclusivity

    async def test_a_second_flow_stands_by_until_the_first_leaves(self, harness: TransportHarness) -> None:
        one, two = await open_transport(harness, "one"), await open_transport(harness, "two")
        first, first_told = await bind(one)
        await first_told.until_active()
        second, second_told = await bind(two)
        await publish(one, "a", "b")
        settle(first, (await first_told.until_received(2))[:1])
        assert second_told.events == []
        await first.unbind()
        await second_told.until_active()
        [b] = await second_told.until_received(1)
        assert (b.message.payload, b.redelivered) == (b"b", True)
        settle(second, [b])
        await second.unbind()
        assert await left_on_queue(harness) == []

    async def test_a_fencing_token_is_the_same_for_every_member_and_larger_for_what_comes_later(
        self, harness: TransportHarness
    ) -> None:
        one, two = await open_transport(harness, "one"), await open_transport(harness, "two")
        first, first_told = await bind(one)
        await first_told.until_active()
        _, second_told = await bind(two)
        for number in (1, 2, 3):
            await one.send(stamped(number))
        await first_told.until_received(3)
        settle(first, first_told.deliveries[:1])
        await first.unbind()
        await one.send(stamped(4))
        await second_told.until_received(3)
        assert [delivery.redelivered for delivery in second_told.deliveries] == [True, True, False]
        before = [delivery.message.fencing_token for delivery in first_told.deliveries]
        after = [delivery.message.fencing_token for delivery in second_told.deliveries]
        assert before == [FencingToken("p", 1), FencingToken("p", 2), FencingToken("p", 3)]
        assert after == [FencingToken("p", 2), FencingToken("p", 3), FencingToken("p", 4)]

    async def test_a_lost_connection_hands_over_to_the_standby(self, harness: TransportHarness) -> None:
        one, two = await open_transport(harness, "one"), await open_transport(harness, "two")
        first, first_told = await bind(one)
        await first_told.until_active()
        second, second_told = await bind(two)
        await publish(two, "a", "b", "c")
        await first_told.until_received(3)
        harness.cut("one")
        await first_told.until_inactive()
        await second_told.until_active()
        await second_told.until_received(3)
        assert second_told.payloads == [b"a", b"b", b"c"]
        settle(second, second_told.deliveries[:1])
        # As in the runtime: the handle has lost its queue and is replaced.
        await first.unbind()
        await until_connected(one)
        _, again_told = await bind(one, SECOND)
        await second.unbind()
        await again_told.until_active()
        await again_told.until_received(2)
        assert [(d.message.payload, d.redelivered) for d in again_told.deliveries] == [(b"b", True), (b"c", True)]
