"""What is particular to the memory transport: the ack timer, the window, and the faults that a test can order."""

import asyncio

import pytest

from lbg_runtime.broker.engine.engine import DEFAULT_VPN
from lbg_runtime.core.flow.events import FlowActive, FlowEvent, FlowInactive, MessageReceived
from lbg_runtime.model.errors import BindFailed, ConnectFailed, PublishFailed
from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.model.message import Message
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.testing.flow_recorder import FlowRecorder
from lbg_runtime.transport.memory.broker import MemoryBroker
from lbg_runtime.transport.memory.flow import MemoryFlow
from lbg_runtime.transport.memory.transport import RECONNECT_WAIT_S, MemoryTransport

QUEUE = QueueName("orders/0")


@pytest.fixture
def broker() -> MemoryBroker:
    broker = MemoryBroker()
    broker.create_queue(QUEUE, ["orders/>"])
    return broker


async def open_transport(broker: MemoryBroker, name: str = "first", *, ack_delay_s: float = 0.0) -> MemoryTransport:
    transport = MemoryTransport(broker, name, ack_delay_s=ack_delay_s)
    await transport.open()
    return transport


async def bind(transport: MemoryTransport, epoch: int = 1) -> tuple[MemoryFlow, FlowRecorder]:
    recorder = FlowRecorder()
    flow = await transport.bind(QUEUE, Epoch(epoch), recorder)
    flow.start_intake()
    return flow, recorder


async def publish(transport: MemoryTransport, count: int) -> None:
    await asyncio.gather(*(transport.send(Message("orders/new", str(number).encode())) for number in range(count)))


def depth(broker: MemoryBroker) -> int:
    return broker.engine.queue_depth(DEFAULT_VPN, QUEUE)


async def test_without_a_delay_a_settlement_counts_at_once(broker: MemoryBroker) -> None:
    transport = await open_transport(broker)
    flow, recorder = await bind(transport)
    await publish(transport, 1)
    flow.settle((await recorder.until_received(1))[0].delivery_id, Outcome.ACCEPTED)
    assert depth(broker) == 0


async def test_with_a_delay_acceptances_leave_together_after_it(broker: MemoryBroker) -> None:
    transport = await open_transport(broker, ack_delay_s=1.0)
    flow, recorder = await bind(transport)
    await publish(transport, 2)
    first, second = await recorder.until_received(2)
    flow.settle(first.delivery_id, Outcome.ACCEPTED)
    await asyncio.sleep(0.9)
    flow.settle(second.delivery_id, Outcome.ACCEPTED)
    assert depth(broker) == 2
    await asyncio.sleep(0.2)
    assert depth(broker) == 0


async def test_negative_outcomes_do_not_wait_and_take_held_acceptances_along(broker: MemoryBroker) -> None:
    transport = await open_transport(broker, ack_delay_s=1.0)
    flow, recorder = await bind(transport)
    await publish(transport, 2)
    first, second = await recorder.until_received(2)
    flow.settle(first.delivery_id, Outcome.ACCEPTED)
    flow.settle(second.delivery_id, Outcome.REJECTED)
    assert depth(broker) == 0


async def test_a_killed_transport_takes_its_held_settlements_to_the_grave(broker: MemoryBroker) -> None:
    transport = await open_transport(broker, ack_delay_s=1.0)
    flow, recorder = await bind(transport)
    await publish(transport, 1)
    flow.settle((await recorder.until_received(1))[0].delivery_id, Outcome.ACCEPTED)
    waiting = transport.send(Message("orders/new", b"unconfirmed"))
    transport.kill()
    told = len(recorder.events)
    with pytest.raises(PublishFailed):
        await waiting
    await asyncio.sleep(10)
    assert len(recorder.events) == told
    _, again = await bind(await open_transport(broker, "second"))
    deliveries = await again.until_received(2)
    assert [(d.message.payload, d.redelivered) for d in deliveries] == [(b"0", True), (b"unconfirmed", True)]


async def test_what_is_under_way_at_a_drop_comes_again_behind_what_was_shown(broker: MemoryBroker) -> None:
    transport = await open_transport(broker)
    flow, recorder = await bind(transport)
    await publish(transport, 2)
    await recorder.until_received(2)
    # Spooled and sent by the broker in this very turn, and lost with the connection.
    sending = [transport.send(Message("orders/new", payload)) for payload in (b"2", b"3")]
    transport.drop_connection(reconnect_after_s=5.0)
    assert recorder.events[-1] == FlowInactive(Epoch(1))
    await asyncio.gather(*sending)
    for delivery in recorder.deliveries:
        flow.settle(delivery.delivery_id, Outcome.ACCEPTED)
    await recorder.until_received(4)
    assert recorder.payloads == [b"0", b"1", b"2", b"3"]
    assert [delivery.redelivered for delivery in recorder.deliveries] == [False, False, True, True]
    assert depth(broker) == 2
    assert asyncio.get_running_loop().time() == pytest.approx(5.0)


async def test_a_drop_without_a_connection_changes_nothing(broker: MemoryBroker) -> None:
    transport = await open_transport(broker)
    _, recorder = await bind(transport)
    await recorder.until_active()
    transport.drop_connection(reconnect_after_s=1.0)
    transport.drop_connection(reconnect_after_s=100.0)
    await recorder.until_active(times=2)
    assert asyncio.get_running_loop().time() == pytest.approx(1.0)


async def test_an_unreachable_broker_is_tried_until_it_is_back(broker: MemoryBroker) -> None:
    transport = await open_transport(broker)
    _, recorder = await bind(transport)
    await recorder.until_active()
    broker.is_reachable = False
    transport.drop_connection(reconnect_after_s=1.0)
    with pytest.raises(ConnectFailed):
        await open_transport(broker, "second")
    with pytest.raises(BindFailed) as failure:
        await bind(transport, 2)
    assert not failure.value.permanent
    await asyncio.sleep(3_600.5)
    broker.is_reachable = True
    await recorder.until_active(times=2)


async def test_a_name_that_no_client_may_have_is_refused_for_good() -> None:
    with pytest.raises(ConnectFailed, match="Client Name Parse Error") as refusal:
        await MemoryTransport(MemoryBroker(), "a/*").open()
    assert refusal.value.permanent


async def test_a_connection_whose_name_is_taken_over_comes_back(broker: MemoryBroker) -> None:
    older = await open_transport(broker, "same name")
    _, recorder = await bind(older)
    await recorder.until_active()
    newer = await open_transport(broker, "same name")
    await recorder.until_inactive()
    await newer.close()
    await recorder.until_active(times=2)
    assert asyncio.get_running_loop().time() == pytest.approx(RECONNECT_WAIT_S)


async def test_messages_sent_while_the_name_is_taken_over_are_not_lost(broker: MemoryBroker) -> None:
    older = await open_transport(broker, "same name")
    _, recorder = await bind(older)
    newer = await open_transport(broker, "same name")
    # The broker has ended the connection; the news is still under way.
    sending = older.send(Message("orders/new", b"kept"))
    older.send_direct(Message("orders/new", b"lost"))
    await newer.close()
    await sending
    await recorder.until_received(1)
    assert recorder.payloads == [b"kept"]


async def test_a_sink_is_never_called_from_within_a_call_of_the_transport(broker: MemoryBroker) -> None:
    transport = await open_transport(broker)
    inside = False
    seen: list[FlowEvent] = []
    done = asyncio.Event()

    def sink(event: FlowEvent) -> None:
        nonlocal inside
        assert not inside
        seen.append(event)
        if isinstance(event, MessageReceived):
            inside = True
            # Each of these makes the broker send something.
            enough = len(seen) == 50
            flow.settle(event.delivery.delivery_id, Outcome.ACCEPTED if enough else Outcome.FAILED)
            if enough:
                done.set()
            flow.stop_intake()
            flow.start_intake()
            transport.send(Message("elsewhere", b""))
            inside = False

    flow = await transport.bind(QUEUE, Epoch(1), sink)
    flow.start_intake()
    inside = True
    await_confirmation = transport.send(Message("orders/new", b""))
    inside = False
    await await_confirmation
    await done.wait()
    assert depth(broker) == 0
    assert len(seen) == 50
    assert seen[0] == FlowActive(Epoch(1))


async def test_a_sink_that_raises_does_not_hold_up_the_others(broker: MemoryBroker) -> None:
    reported: list[BaseException | None] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context.get("exception")))
    broker.create_queue("other", ["orders/>"])
    transport = await open_transport(broker)

    def fail(event: FlowEvent) -> None:
        raise ValueError("a sink must not raise")

    await transport.bind(QueueName("other"), Epoch(1), fail)
    _, recorder = await bind(transport)
    await publish(transport, 3)
    await recorder.until_received(3)
    assert {type(error) for error in reported} == {ValueError}


async def test_a_transport_is_opened_once(broker: MemoryBroker) -> None:
    transport = await open_transport(broker)
    with pytest.raises(ConnectFailed):
        await transport.open()
    await transport.close()
    with pytest.raises(ConnectFailed):
        await transport.open()


async def test_the_unbind_of_a_flow_that_the_broker_has_ended_is_not_confirmed(broker: MemoryBroker) -> None:
    """Its settlements had not left, and the news of its end is still on its way."""
    transport = await open_transport(broker, ack_delay_s=1.0)
    flow, recorder = await bind(transport)
    await publish(transport, 1)
    flow.settle((await recorder.until_received(1))[0].delivery_id, Outcome.ACCEPTED)
    broker.post(broker.engine.delete_queue(DEFAULT_VPN, QUEUE))
    assert not await flow.unbind()
