"""What every transport guarantees about its session: connecting, outages, sending. Part of `conformance`."""
# ruff: noqa: S101 - see `conformance`

import asyncio
from functools import partial

import pytest

from lbg_runtime.broker.engine.settings import QueueSettings
from lbg_runtime.model.errors import BindFailed, ConnectFailed, PublishFailed, PublishRefused, SubscribeFailed
from lbg_runtime.model.ids import DeliveryId, QueueName
from lbg_runtime.model.message import Message
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.testing.conformance_steps import (
    FIRST,
    QUEUE,
    SECOND,
    WINDOW,
    bind,
    bind_closed,
    left_on_queue,
    next_of,
    numbers,
    open_transport,
    publish,
    settle,
)
from lbg_runtime.testing.flow_recorder import PATIENCE_S, FlowRecorder
from lbg_runtime.testing.transport_harness import TransportHarness


class SessionConformance:
    """Connecting, outages, sending, direct messages."""

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

    async def test_opening_can_be_tried_again_after_it_failed(self, harness: TransportHarness) -> None:
        transport = harness.make_transport("first")
        await harness.begin_outage()
        with pytest.raises(ConnectFailed):
            await transport.open()
        await harness.end_outage()
        await transport.open()
        await publish(transport, "a")

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
        # The handle does not show again what it has shown.
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

    @pytest.mark.parametrize("stop_first", [True, False], ids=["before", "during"])
    async def test_stopped_intake_outlasts_an_outage(self, harness: TransportHarness, stop_first: bool) -> None:
        harness.broker.create_queue("other", ["other"])
        transport = await open_transport(harness)
        flow, recorder = await bind(transport)
        _, other = await bind(transport, queue=QueueName("other"))
        await recorder.until_active()
        if stop_first:
            flow.stop_intake()
        await harness.begin_outage()
        await recorder.until_inactive()
        if not stop_first:
            flow.stop_intake()
        await harness.end_outage()
        await recorder.until_active(times=2)
        await publish(transport, *numbers(600))
        await publish(transport, "marker", topic="other")
        await other.until_received(1)
        assert len(recorder.deliveries) <= WINDOW
        flow.start_intake()
        await recorder.until_received(600)

    async def test_intake_that_was_never_started_stays_closed_over_an_outage(self, harness: TransportHarness) -> None:
        harness.broker.create_queue("other", ["other"])
        transport = await open_transport(harness)
        await publish(transport, "a")
        flow, recorder = await bind_closed(transport)
        _, other = await bind(transport, queue=QueueName("other"))
        await recorder.until_active()
        for times in (2, 3):
            await harness.begin_outage()
            await recorder.until_inactive(times=times - 1)
            await harness.end_outage()
            await recorder.until_active(times=times)
        await publish(transport, "b")
        await publish(transport, "marker", topic="other")
        await other.until_received(1)
        assert recorder.deliveries == []
        flow.start_intake()
        await recorder.until_received(2)
        assert [(d.message.payload, d.redelivered) for d in recorder.deliveries] == [(b"a", False), (b"b", False)]

    async def test_intake_started_in_an_outage_is_open_after_it(self, harness: TransportHarness) -> None:
        transport = await open_transport(harness)
        flow, recorder = await bind(transport)
        await recorder.until_active()
        flow.stop_intake()
        await harness.begin_outage()
        await recorder.until_inactive()
        flow.start_intake()
        await harness.end_outage()
        await publish(transport, "a")
        await recorder.until_received(1)

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
            future.add_done_callback(partial(_note, confirmed, number))
            sending.append(future)
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*sending)
        assert confirmed == list(range(500))

    async def test_a_message_that_nobody_wants_is_confirmed(self, harness: TransportHarness) -> None:
        transport = await open_transport(harness)
        await publish(transport, "a", topic="nobody/wants/this")

    async def test_a_message_to_a_queues_address_needs_no_subscription(self, harness: TransportHarness) -> None:
        harness.broker.create_queue("#DEAD_MSG_QUEUE")
        transport = await open_transport(harness)
        await publish(transport, "a", topic="#P2P/QUE/#DEAD_MSG_QUEUE")
        with pytest.raises(PublishRefused) as refusal:
            await publish(transport, "b", topic="#P2P/QUE/missing")
        assert "Unknown Queue" in refusal.value.reason
        await publish(transport, "c", topic="#P2P/QUE/#DEAD_MSG_QUEUE")
        _, recorder = await bind(transport, queue=QueueName("#DEAD_MSG_QUEUE"))
        await recorder.until_received(2)
        assert recorder.payloads == [b"a", b"c"]

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
        assert refusal.value.is_for_size
        _, recorder = await bind(transport, queue=QueueName("small"))
        await recorder.until_received(2)
        assert recorder.payloads == [b"fits", b"fits too"]

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

    async def test_a_subscriber_hears_its_own_direct_messages(self, harness: TransportHarness) -> None:
        transport = await open_transport(harness)
        heard: asyncio.Queue[Message] = asyncio.Queue()
        await transport.subscribe("control/>", heard.put_nowait)
        transport.send_direct(Message("control/a", b"me"))
        assert (await next_of(heard)).payload == b"me"

    async def test_the_watcher_of_the_connection_is_told_now_and_of_each_change(
        self, harness: TransportHarness
    ) -> None:
        transport = await open_transport(harness)
        told: asyncio.Queue[bool] = asyncio.Queue()
        heard: asyncio.Queue[Message] = asyncio.Queue()
        await transport.subscribe("control/>", heard.put_nowait)
        transport.watch_connection(told.put_nowait)
        assert await next_of(told) is True
        seen = [transport.is_connected]
        await harness.begin_outage()
        assert await next_of(told) is False
        seen.append(transport.is_connected)
        await harness.end_outage()
        assert await next_of(told) is True
        seen.append(transport.is_connected)
        assert seen == [True, False, True]
        assert transport.why_away is None
        transport.send_direct(Message("control/a", b"again"))
        assert (await next_of(heard)).payload == b"again"
        await transport.close()
        assert told.empty()

    async def test_a_subscription_that_failed_in_an_outage_is_made_by_the_next_attempt(
        self, harness: TransportHarness
    ) -> None:
        transport = await open_transport(harness)
        told: asyncio.Queue[bool] = asyncio.Queue()
        heard: asyncio.Queue[Message] = asyncio.Queue()
        transport.watch_connection(told.put_nowait)
        assert await next_of(told) is True
        await harness.begin_outage()
        assert await next_of(told) is False
        with pytest.raises(SubscribeFailed) as failure:
            await transport.subscribe("control/>", heard.put_nowait)
        assert not failure.value.permanent
        await harness.end_outage()
        assert await next_of(told) is True
        await transport.subscribe("control/>", heard.put_nowait)
        for number in range(2):
            transport.send_direct(Message("control/a", b"%d" % number))
            # Once: had the first attempt left something behind, it would come twice.
            assert (await next_of(heard)).payload == b"%d" % number

    async def test_a_subscription_that_is_refused_after_an_outage_is_told_to_who_asks_again(
        self, harness: TransportHarness
    ) -> None:
        transport = await open_transport(harness)
        told: asyncio.Queue[bool] = asyncio.Queue()
        heard: asyncio.Queue[Message] = asyncio.Queue()
        await transport.subscribe("control/>", heard.put_nowait)
        transport.watch_connection(told.put_nowait)
        assert await next_of(told) is True
        harness.let_subscribe(is_allowed=False)
        harness.cut("first")
        # A client that may not subscribe is connected all the same.
        assert [await next_of(told) for _ in range(2)] == [False, True]
        for _ in range(2):
            with pytest.raises(SubscribeFailed) as failure:
                await transport.subscribe("control/>", heard.put_nowait)
            assert failure.value.permanent
        transport.send_direct(Message("control/a", b"nobody hears this"))
        await publish(transport, "a")
        harness.let_subscribe(is_allowed=True)
        await transport.subscribe("control/>", heard.put_nowait)
        transport.send_direct(Message("control/a", b"again"))
        assert (await next_of(heard)).payload == b"again"
        harness.cut("first")
        assert [await next_of(told) for _ in range(2)] == [False, True]
        transport.send_direct(Message("control/a", b"restored by itself"))
        assert (await next_of(heard)).payload == b"restored by itself"

    async def test_a_subscription_made_again_takes_each_message_once(self, harness: TransportHarness) -> None:
        transport = await open_transport(harness)
        heard: asyncio.Queue[Message] = asyncio.Queue()
        for number in range(3):
            await transport.subscribe("control/>", heard.put_nowait)
            transport.send_direct(Message("control/a", b"%d" % number))
            assert (await next_of(heard)).payload == b"%d" % number
        transport.send_direct(Message("control/a", b"last"))
        assert (await next_of(heard)).payload == b"last"

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
        # Bound again means subscribed again, as that comes first; confirmed means that the sender is back too.
        await recorder.until_active(times=2)
        await publish(two, "a")
        two.send_direct(Message("events/heard", b""))
        async with asyncio.timeout(PATIENCE_S):
            assert (await heard.get()).topic == "events/heard"


def _note(confirmed: list[int], number: int, _: asyncio.Future[None]) -> None:
    confirmed.append(number)
