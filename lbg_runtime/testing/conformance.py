"""What every transport guarantees, as one suite of tests.

A test module of a transport subclasses `TransportConformance` and provides a fixture `harness`. Nothing here sleeps to
let things happen. That something does not come is shown by what comes behind it: a marker on the same queue.
"""
# ruff: noqa: S101 - assertions are what this module is for; the test modules that use it have them rewritten by pytest

import asyncio
from collections.abc import Sequence

import pytest

from lbg_runtime.broker.engine.settings import QueueSettings
from lbg_runtime.core.events import FlowActive, MessageReceived
from lbg_runtime.model.errors import BindFailed, ConnectFailed, PublishFailed, PublishRefused
from lbg_runtime.model.ids import DeliveryId, Epoch, QueueName
from lbg_runtime.model.message import Delivery, Message
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.testing.flow_recorder import PATIENCE_S, FlowRecorder
from lbg_runtime.testing.transport_harness import FullTransport, TransportHarness
from lbg_runtime.transport.base import BoundFlow

QUEUE = QueueName("orders/0")
FIRST, SECOND = Epoch(1), Epoch(2)
WINDOW = 255


async def open_transport(harness: TransportHarness, client_name: str = "first") -> FullTransport:
    """A transport that is connected."""
    transport = harness.make_transport(client_name)
    await transport.open()
    return transport


async def publish(messenger: FullTransport, *payloads: str, topic: str = "orders/new") -> None:
    """Publish and wait for every confirmation."""
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*(messenger.send(Message(topic, payload.encode())) for payload in payloads))


async def until_connected(messenger: FullTransport) -> None:
    """Wait for the session to be there again: a confirmation shows it."""
    await publish(messenger, "", topic="nobody/listens")


async def bind(
    transport: FullTransport, epoch: Epoch = FIRST, queue: QueueName = QUEUE
) -> tuple[BoundFlow, FlowRecorder]:
    """A bound flow and what it reports."""
    recorder = FlowRecorder()
    return await transport.bind(queue, epoch, recorder), recorder


def settle(flow: BoundFlow, deliveries: Sequence[Delivery], outcome: Outcome = Outcome.ACCEPTED) -> None:
    """Settle them all."""
    for delivery in deliveries:
        flow.settle(delivery.delivery_id, outcome)


async def left_on_queue(harness: TransportHarness) -> list[tuple[bytes, bool]]:
    """Payload and redelivered flag of what a new flow is shown; for when nobody else is bound."""
    transport = await open_transport(harness, "witness")
    await publish(transport, "marker")
    _, recorder = await bind(transport)
    await recorder.until(lambda: b"marker" in recorder.payloads)
    await transport.close()
    shown = [(delivery.message.payload, delivery.redelivered) for delivery in recorder.deliveries]
    assert shown.pop() == (b"marker", False)
    return shown


def numbers(count: int) -> list[str]:
    """Payloads in an order that can be checked."""
    return [str(number) for number in range(count)]


class TransportConformance:
    """Run unchanged for each transport."""

    @pytest.fixture(autouse=True)
    def _queue(self, harness: TransportHarness) -> None:
        harness.broker.create_queue(QUEUE, ["orders/>"])

    # -- connecting

    async def test_a_wrong_password_is_refused_for_good(self, harness: TransportHarness) -> None:
        transport = harness.make_transport("first", password="wrong")  # noqa: S106  # that is the point
        with pytest.raises(ConnectFailed) as failure:
            await transport.open()
        assert failure.value.permanent

    async def test_nobody_listening_is_an_outage_and_no_refusal(self, harness: TransportHarness) -> None:
        await harness.begin_outage()
        with pytest.raises(ConnectFailed) as failure:
            await harness.make_transport("first").open()
        assert not failure.value.permanent

    async def test_closing_twice_or_unopened_is_no_error(self, harness: TransportHarness) -> None:
        transport = await open_transport(harness)
        await transport.close()
        await transport.close()
        await harness.make_transport("never opened").close()

    async def test_a_closed_transport_binds_and_sends_nothing(self, harness: TransportHarness) -> None:
        transport = await open_transport(harness)
        await transport.close()
        with pytest.raises(BindFailed):
            await transport.bind(QUEUE, FIRST, FlowRecorder())
        with pytest.raises(PublishFailed):
            await transport.send(Message("orders/new", b""))

    async def test_closing_leaves_unsettled_messages_to_others(self, harness: TransportHarness) -> None:
        transport = await open_transport(harness)
        flow, recorder = await bind(transport)
        await publish(transport, "a", "b")
        await recorder.until_received(2)
        await transport.close()
        told = len(recorder.events)
        assert await left_on_queue(harness) == [(b"a", True), (b"b", True)]
        assert len(recorder.events) == told
        flow.settle(DeliveryId(1), Outcome.ACCEPTED)
        await flow.unbind()

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

    async def test_a_rejected_message_is_gone_and_a_failed_one_comes_again(self, harness: TransportHarness) -> None:
        transport = await open_transport(harness)
        flow, recorder = await bind(transport)
        await publish(transport, "rejected", "failed")
        rejected, failed = await recorder.until_received(2)
        settle(flow, [rejected], Outcome.REJECTED)
        settle(flow, [failed], Outcome.FAILED)
        again = (await recorder.until_received(3))[2]
        assert (again.message.payload, again.redelivered) == (b"failed", True)
        settle(flow, [again])
        await flow.unbind()
        assert await left_on_queue(harness) == []

    async def test_stopped_intake_lets_at_most_a_window_through(self, harness: TransportHarness) -> None:
        harness.broker.create_queue("other", ["other"])
        transport = await open_transport(harness)
        flow, recorder = await bind(transport)
        await recorder.until_active()
        _, other = await bind(transport, queue=QueueName("other"))
        flow.stop_intake()
        await publish(transport, *numbers(600))
        # The marker comes over the same connection behind all that the broker still sent.
        await publish(transport, "marker", topic="other")
        await other.until_received(1)
        assert len(recorder.deliveries) <= WINDOW
        flow.start_intake()
        await recorder.until_received(600)
        assert recorder.payloads == [payload.encode() for payload in numbers(600)]

    # -- giving up

    async def test_unbind_takes_the_settlements_along(self, harness: TransportHarness) -> None:
        transport = await open_transport(harness)
        flow, recorder = await bind(transport)
        await publish(transport, *numbers(300))
        settle(flow, await recorder.until_received(300))
        await flow.unbind()
        assert await left_on_queue(harness) == []

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
        # As the runtime does: the handle has lost its queue and is replaced.
        await first.unbind()
        await until_connected(one)
        _, again_told = await bind(one, SECOND)
        await second.unbind()
        await again_told.until_active()
        await again_told.until_received(2)
        assert [(d.message.payload, d.redelivered) for d in again_told.deliveries] == [(b"b", True), (b"c", True)]

    # -- outages

    async def test_an_outage_keeps_the_handle_and_its_settlements(self, harness: TransportHarness) -> None:
        transport = await open_transport(harness)
        flow, recorder = await bind(transport)
        await publish(transport, "a", "b", "c")
        deliveries = await recorder.until_received(3)
        settle(flow, deliveries[:1])
        await harness.begin_outage()
        await recorder.until_inactive()
        settle(flow, deliveries[1:2])
        await harness.end_outage()
        await recorder.until_active(times=2)
        settle(flow, deliveries[2:])
        await publish(transport, "d")
        await recorder.until(lambda: b"d" in recorder.payloads)
        # What the handle has shown it does not show again.
        assert recorder.payloads == [b"a", b"b", b"c", b"d"]
        settle(flow, recorder.deliveries[3:])
        await flow.unbind()
        assert await left_on_queue(harness) == []

    async def test_a_handle_given_up_in_an_outage_does_not_come_back(self, harness: TransportHarness) -> None:
        transport = await open_transport(harness)
        flow, recorder = await bind(transport)
        await publish(transport, "a")
        await recorder.until_received(1)
        await harness.begin_outage()
        await recorder.until_inactive()
        async with asyncio.timeout(PATIENCE_S):
            await flow.unbind()
        await harness.end_outage()
        await publish(transport, "b")
        _, again_told = await bind(transport, SECOND)
        await again_told.until_active()
        await again_told.until_received(2)
        assert [(d.message.payload, d.redelivered) for d in again_told.deliveries] == [(b"a", True), (b"b", False)]

    async def test_a_queue_deleted_in_an_outage_ends_its_flow(self, harness: TransportHarness) -> None:
        transport = await open_transport(harness)
        _, recorder = await bind(transport)
        await recorder.until_active()
        await harness.begin_outage()
        await recorder.until_inactive()
        harness.broker.delete_queue(QUEUE)
        await harness.end_outage()
        assert await recorder.until_down() == "Unknown Queue"

    async def test_stopped_intake_outlasts_an_outage(self, harness: TransportHarness) -> None:
        harness.broker.create_queue("other", ["other"])
        transport = await open_transport(harness)
        flow, recorder = await bind(transport)
        _, other = await bind(transport, queue=QueueName("other"))
        await recorder.until_active()
        flow.stop_intake()
        await harness.begin_outage()
        await recorder.until_inactive()
        await harness.end_outage()
        await recorder.until_active(times=2)
        await publish(transport, *numbers(600))
        await publish(transport, "marker", topic="other")
        await other.until_received(1)
        assert len(recorder.deliveries) <= WINDOW
        flow.start_intake()
        await recorder.until_received(600)

    async def test_messages_sent_in_an_outage_are_confirmed_once_after_it(self, harness: TransportHarness) -> None:
        transport = await open_transport(harness)
        flow, recorder = await bind(transport)
        await recorder.until_active()
        sending = [transport.send(Message("orders/new", payload.encode())) for payload in numbers(100)]
        await harness.begin_outage()
        sending += [transport.send(Message("orders/new", payload.encode())) for payload in numbers(200)[100:]]
        await recorder.until_inactive()
        await harness.end_outage()
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*sending)
        await recorder.until_received(200)
        assert recorder.payloads == [payload.encode() for payload in numbers(200)]
        settle(flow, recorder.deliveries)
        await flow.unbind()
        assert await left_on_queue(harness) == []

    # -- sending

    async def test_confirmations_come_in_the_order_of_sending(self, harness: TransportHarness) -> None:
        transport = await open_transport(harness)
        confirmed: list[int] = []
        sending = []
        for number in range(500):
            future = transport.send(Message("orders/new", b""))
            future.add_done_callback(lambda _, number=number: confirmed.append(number))  # type: ignore[misc]
            sending.append(future)
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*sending)
        assert confirmed == list(range(500))

    async def test_a_message_that_nobody_wants_is_confirmed(self, harness: TransportHarness) -> None:
        transport = await open_transport(harness)
        await publish(transport, "a", topic="nobody/wants/this")

    async def test_a_refused_message_fails_alone(self, harness: TransportHarness) -> None:
        harness.broker.create_queue("small", ["small"], settings=QueueSettings(max_message_bytes=1_000))
        transport = await open_transport(harness)
        before = transport.send(Message("small", b"fits"))
        refused = transport.send(Message("small", bytes(5_000)))
        after = transport.send(Message("small", b"fits too"))
        async with asyncio.timeout(PATIENCE_S):
            await before
            with pytest.raises(PublishRefused) as refusal:
                await refused
            await after
        assert refusal.value.topic == "small"
        _, recorder = await bind(transport, queue=QueueName("small"))
        await recorder.until_received(2)
        assert recorder.payloads == [b"fits", b"fits too"]

    @pytest.mark.parametrize("topic", ["", "ü" * 126])
    async def test_an_impossible_topic_is_refused(self, harness: TransportHarness, topic: str) -> None:
        transport = await open_transport(harness)
        with pytest.raises(PublishRefused):
            await transport.send(Message(topic, b""))
        await publish(transport, "still works")

    async def test_closing_fails_what_is_not_confirmed(self, harness: TransportHarness) -> None:
        transport = await open_transport(harness)
        await harness.begin_outage()
        future = transport.send(Message("orders/new", b""))
        await transport.close()
        with pytest.raises(PublishFailed) as failure:
            await future
        assert failure.value.retriable

    async def test_direct_messages_reach_who_subscribes(self, harness: TransportHarness) -> None:
        one, two = await open_transport(harness, "one"), await open_transport(harness, "two")
        heard: asyncio.Queue[Message] = asyncio.Queue()
        await one.subscribe("events/*/moved", heard.put_nowait)
        two.send_direct(Message("events/7/stopped", b"not this"))
        two.send_direct(Message("events/7/moved", b"this", {"queue": 7}, "id-7"))
        async with asyncio.timeout(PATIENCE_S):
            assert await heard.get() == Message("events/7/moved", b"this", {"queue": 7}, "id-7")

    async def test_direct_subscriptions_are_restored_after_an_outage(self, harness: TransportHarness) -> None:
        one, two = await open_transport(harness, "one"), await open_transport(harness, "two")
        heard: asyncio.Queue[Message] = asyncio.Queue()
        await one.subscribe("events/>", heard.put_nowait)
        _, recorder = await bind(one)
        await recorder.until_active()
        await harness.begin_outage()
        await recorder.until_inactive()
        two.send_direct(Message("events/lost", b"nobody's error"))
        await harness.end_outage()
        # Bound again means subscribed again, in this order; confirmed means that the sender is back too.
        await recorder.until_active(times=2)
        await publish(two, "a")
        two.send_direct(Message("events/heard", b""))
        async with asyncio.timeout(PATIENCE_S):
            assert (await heard.get()).topic == "events/heard"

    async def test_provisioning_creates_what_is_missing_and_nothing_else(self, harness: TransportHarness) -> None:
        transport = await open_transport(harness)
        queue = QueueName("made")
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
        # Provisioning has not touched the flow: it is active once and for all, and nothing came twice.
        assert [event for event in recorder.events if not isinstance(event, MessageReceived)] == [FlowActive(FIRST)]
        await flow.unbind()
