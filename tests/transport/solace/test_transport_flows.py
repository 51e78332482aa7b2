"""What is particular to flows on the official client: windows, settlements and their order, messages it cannot read."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lbg_runtime.broker.server.server import BrokerServer
from lbg_runtime.config.settings import ClientPathChoice
from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.testing.conformance_steps import SECOND, bind
from lbg_runtime.testing.flow_recorder import PATIENCE_S, FlowRecorder
from lbg_runtime.transport.solace.flow import SolaceFlow
from lbg_runtime.transport.solace.transport import SolaceTransport
from tests.transport.solace.steps import eventually, opened, publish

pytestmark = pytest.mark.real_time

MakeTransport = Callable[..., SolaceTransport]
PUBLIC_ONLY = pytest.mark.parametrize("client_path", [ClientPathChoice.PUBLIC], indirect=True)
QUEUE = QueueName("orders/0")


@PUBLIC_ONLY
@pytest.mark.parametrize("goes_on", [True, False])
async def test_an_unbind_waits_until_the_broker_has_read_it(
    broker: BrokerServer, transport: SolaceTransport, *, goes_on: bool
) -> None:
    flow, recorder = await bind(transport)
    await publish(transport, 1)
    [delivery] = await recorder.until_received(1)
    broker.faults.stall("first")
    flow.settle(delivery.delivery_id, Outcome.ACCEPTED)
    unbinding = asyncio.ensure_future(flow.unbind())
    # The client is done with it as soon as it is sent; on a busy machine a thread may come to that late.
    await eventually(lambda: isinstance(flow, SolaceFlow) and flow._ending is not None and flow._ending.done())
    await asyncio.wait([unbinding], timeout=0.2)
    assert not unbinding.done()
    if not goes_on:
        broker.faults.drop("first")
    broker.faults.stall("first", on=False)
    async with asyncio.timeout(PATIENCE_S):
        assert await unbinding is goes_on


@PUBLIC_ONLY
async def test_the_client_cannot_open_a_window_that_was_closed(
    broker: BrokerServer, make_transport: MakeTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lbg_runtime.transport.solace import public_path

    gate = threading.Event()
    read_delivery = public_path.read_delivery

    def read_when_open(*message: Any) -> Any:
        gate.wait(PATIENCE_S)
        return read_delivery(*message)

    monkeypatch.setattr(public_path, "read_delivery", read_when_open)
    broker.create_queue("other", ["other"])
    transport = await opened(make_transport("first"))
    recorder, other = FlowRecorder(), FlowRecorder()
    flow = await transport.bind(QUEUE, Epoch(1), recorder)
    flow.start_intake()
    (await transport.bind(QueueName("other"), Epoch(1), other)).start_intake()
    # The client's own queue fills beyond the length at which it would close the window, and open it when it is emptied.
    await publish(transport, 100)
    await eventually(lambda: broker.engine.queue_status("default", QUEUE).unacked_count == 100)
    flow.stop_intake()
    gate.set()
    await recorder.until_received(100)
    await publish(transport, 600)
    await publish(transport, 1, topic="other")
    await other.until_received(1)
    assert len(recorder.deliveries) == 100
    flow.start_intake()
    await recorder.until_received(700)


@pytest.mark.parametrize("is_foreseen", [True, False], ids=["foreseen", "bug"])
async def test_an_unreadable_message_stops_its_flow_and_stays(
    make_transport: MakeTransport, monkeypatch: pytest.MonkeyPatch, is_foreseen: bool
) -> None:
    from lbg_runtime.transport.solace import inbound
    from lbg_runtime.transport.solace.fast import reader

    def refuse(payload: bytes) -> bytes:
        raise inbound.UnreadableMessage("for a test") if is_foreseen else ZeroDivisionError

    transport = await opened(make_transport("first"))
    recorder = FlowRecorder()
    # Whose exception it is in the end: an unforeseen one is reported by whoever called.
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    with monkeypatch.context() as patched:
        for module in (inbound, reader):
            patched.setattr(module, "unwrap_text", refuse)
        flow = await transport.bind(QUEUE, Epoch(1), recorder)
        flow.start_intake()
        await publish(transport, 2)
        reason = "a message cannot be read: for a test" if is_foreseen else "a message could not be read"
        assert await recorder.until_down() == reason
        await flow.unbind()
    assert recorder.deliveries == []
    _, again = await bind(transport, SECOND)
    assert (await again.until_received(2))[0].redelivered
    assert again.payloads == [b"0", b"1"]


async def test_a_settlement_that_the_client_does_not_take_ends_the_flow(
    make_transport: MakeTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lbg_runtime.transport.solace.fast.path import FastPath
    from lbg_runtime.transport.solace.public_path import PublicPath

    transport = await opened(make_transport("first"))
    flow, recorder = await bind(transport)
    await publish(transport, 1)
    [delivery] = await recorder.until_received(1)
    for path in (FastPath, PublicPath):
        monkeypatch.setattr(path, "accept", lambda *_: False)
    flow.settle(delivery.delivery_id, Outcome.ACCEPTED)
    assert "did not take the settlement" in await recorder.until_down()
    await flow.unbind()
    _, again = await bind(transport, SECOND)
    assert (await again.until_received(1))[0].redelivered


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.REJECTED])
async def test_an_outcome_that_cannot_be_settled_in_order_ends_the_flow(
    transport: SolaceTransport, outcome: Outcome
) -> None:
    flow, recorder = await bind(transport)
    await publish(transport, 2)
    first, second = await recorder.until_received(2)
    flow.settle(first.delivery_id, Outcome.ACCEPTED)
    flow.settle(second.delivery_id, outcome)
    assert "in order" in await recorder.until_down()
    await flow.unbind()
    _, again = await bind(transport, SECOND)
    [delivery] = await again.until_received(1)
    assert (delivery.message, delivery.redelivered) == (second.message, True)


async def test_settlements_that_a_broken_connection_lost_go_again_before_later_ones(
    broker: BrokerServer, transport: SolaceTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow, recorder = await bind(transport)
    await publish(transport, 4)
    deliveries = await recorder.until_received(4)
    lost = asyncio.Event()

    def lose(*_: object) -> tuple[()]:
        lost.set()
        return ()

    with monkeypatch.context() as patched:
        # As if the frame had been on its way when the connection broke.
        patched.setattr(broker.engine, "settle", lose)
        for delivery in deliveries[:2]:
            flow.settle(delivery.delivery_id, Outcome.ACCEPTED)
        flow.stop_intake()  # The client sends what it has batched.
        await asyncio.wait_for(lost.wait(), PATIENCE_S)
    assert broker.faults.drop("first") == 1
    await recorder.until_inactive()
    flow.settle(deliveries[2].delivery_id, Outcome.ACCEPTED)
    await eventually(lambda: broker.engine.queue_depth("default", QUEUE) == 1)
    await flow.unbind()


async def test_no_more_are_under_way_than_half_of_what_closes_the_intake(
    broker: BrokerServer, make_transport: MakeTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows = set()
    open_window = broker.engine.open_window

    def note(*call: Any) -> Any:
        windows.add(call[-1])
        return open_window(*call)

    monkeypatch.setattr(broker.engine, "open_window", note)
    transport = await opened(make_transport("first", max_in_flight=80))
    flow, recorder = await bind(transport)
    await publish(transport, 300)
    for delivery in await recorder.until_received(300):
        flow.settle(delivery.delivery_id, Outcome.ACCEPTED)
    await flow.unbind()
    assert windows - {0} == {40}
    assert broker.engine.queue_depth("default", QUEUE) == 0


async def test_a_flow_of_a_queue_that_is_shut_is_inactive_and_has_everything_again_when_it_is_open(
    broker: BrokerServer, transport: SolaceTransport
) -> None:
    def switch(*, egress: bool) -> None:
        changed = replace(broker.engine.queue_status("default", QUEUE).settings, egress_enabled=egress)
        broker.carry_out(broker.engine.administration.change_queue("default", QUEUE, changed))

    _, recorder = await bind(transport)
    await publish(transport, 2)
    await recorder.until_received(2)
    switch(egress=False)
    await recorder.until_inactive()
    switch(egress=True)
    await recorder.until_received(4)
    assert recorder.payloads == [b"0", b"1"] * 2
    assert [delivery.redelivered for delivery in recorder.deliveries] == [False, False, True, True]
