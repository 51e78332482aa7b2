"""What is particular to the transport on the official client: sessions that end for good, binds in an outage.

More than 400 lines, as all of it is about sessions that end and come back.
"""

import asyncio
import socket
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from lbg_runtime.broker.engine.accounts import DEFAULT_NAME
from lbg_runtime.broker.engine.surroundings import Asked
from lbg_runtime.broker.server.server import BrokerServer
from lbg_runtime.config.settings import ClientPathChoice
from lbg_runtime.model.errors import BindFailed, ConnectFailed, PublishFailed, PublishRefused, SubscribeFailed
from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.model.message import Message
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.testing.conformance_steps import bind, next_of
from lbg_runtime.testing.flow_recorder import PATIENCE_S, FlowRecorder
from lbg_runtime.transport.solace import transport as transport_module
from lbg_runtime.transport.solace.fast import compiled
from lbg_runtime.transport.solace.settings import SolaceSettings
from lbg_runtime.transport.solace.transport import BINDS_AT_ONCE, SolaceTransport
from tests.transport.rights import let_subscribe
from tests.transport.solace.steps import eventually, opened, publish

pytestmark = pytest.mark.real_time

MakeTransport = Callable[..., SolaceTransport]
QUEUE = QueueName("orders/0")
ONE_PATH = pytest.mark.parametrize("client_path", [ClientPathChoice.PUBLIC], indirect=True)
"""For what is the session's alone, and the same whichever path messages take."""


@pytest.fixture
def no_reconnects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the client give up at the first lost connection, as it can after a refusal in an outage."""
    properties = SolaceSettings.properties

    def finite(settings: SolaceSettings, token: str = "") -> dict[str, Any]:
        return properties(settings, token) | {"solace.messaging.transport.reconnection-attempts": 0}

    monkeypatch.setattr(SolaceSettings, "properties", finite)


async def test_a_member_is_told_how_its_messages_come_and_others_are_not(
    broker: BrokerServer, make_transport: MakeTransport, client_path: ClientPathChoice
) -> None:
    with capture_logs() as logged:
        await make_transport("member", max_in_flight=10).open()
        await make_transport("command").open()
    (line,) = (each for each in logged if each["event"] == "session_opened")
    assert (line["host"], line["path"]) == (broker.url, client_path.value)
    assert line["compiled"] is (compiled.INTAKE is not None)


@ONE_PATH
async def test_a_login_that_is_refused_in_an_outage_is_told_with_its_reason(
    broker: BrokerServer, make_transport: MakeTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client tries again for ever, and says nothing of the answers."""
    monkeypatch.setattr(transport_module, "OUTAGE_LOOK_S", 0.05)
    transport = make_transport("first")
    told: asyncio.Queue[bool] = asyncio.Queue()
    await transport.open()
    transport.watch_connection(told.put_nowait)

    def reasons() -> list[str]:
        return [each["reason"] for each in logged if each["event"] == "connection_not_restored"]

    with capture_logs() as logged:
        broker.faults.refuse(Asked.LOGIN, 401, "Unauthorized")
        assert broker.faults.drop("first") == 1
        await eventually(lambda: "Unauthorized" in reasons())
        assert transport.why_away == "Unauthorized"
        broker.faults.clear()
        broker.faults.refuse(Asked.LOGIN, 403, "Client Username Is Shutdown")
        await eventually(lambda: "Client Username Is Shutdown" in reasons())
        broker.faults.clear()
        async with asyncio.timeout(PATIENCE_S):
            assert [await told.get() for _ in range(3)] == [True, False, True]
        assert transport.why_away is None
        outage = transport._outage
        assert outage is not None
        await asyncio.wait([outage])
    # Each once, however often it was refused; what broke the connection may come before them.
    assert reasons()[-2:] == ["Unauthorized", "Client Username Is Shutdown"]
    expected = [each.get("expected", "") for each in logged if each["event"] == "connection_not_restored"][-2:]
    assert "a password only when this process is started again" in expected[0]
    assert expected[1] == "a client username that is enabled on the broker"
    # The client's flows are as they were.
    assert "session_ended" not in [each["event"] for each in logged]


@ONE_PATH
@pytest.mark.parametrize("text", ["Message VPN Unavailable", "Replication Is Standby", "Service Unavailable"])
async def test_who_is_refused_by_a_broker_in_standby_is_told_of_the_active_one(
    broker: BrokerServer, make_transport: MakeTransport, text: str
) -> None:
    """Of a pair of which neither is active just then: no setting is wrong."""
    broker.faults.refuse(Asked.LOGIN, 503, text)
    with pytest.raises(ConnectFailed) as failure:
        await make_transport("member").open()
    assert failure.value.reason == text
    assert failure.value.expected is not None
    assert failure.value.expected.endswith("of a redundant pair, the one that is active, once one of them is")


@pytest.mark.usefixtures("no_reconnects")
async def test_a_session_that_ended_for_good_is_replaced(
    broker: BrokerServer, transport: SolaceTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: asyncio.Queue[Message] = asyncio.Queue()
    await transport.subscribe("events/>", heard.put_nowait)
    flow, recorder = await bind(transport)
    await publish(transport, 3)
    deliveries = await recorder.until_received(3)
    await broker.stop()
    await recorder.until_down()
    flow.settle(deliveries[0].delivery_id, Outcome.ACCEPTED)
    await flow.unbind()
    with monkeypatch.context() as patched:
        patched.setattr(transport_module, "OUTAGE_PATIENCE_S", 0.05)
        with pytest.raises(BindFailed) as failure:
            await transport.bind(QUEUE, Epoch(2), FlowRecorder())
        assert not failure.value.permanent
    waiting = [transport.send(Message("orders/new", text)) for text in (b"first", b"second")]
    transport.send_direct(Message("events/lost", b""))
    await broker.start()
    again = FlowRecorder()
    (await transport.bind(QUEUE, Epoch(3), again)).start_intake()
    await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE_S)
    await again.until_received(5)
    assert [delivery.redelivered for delivery in again.deliveries] == [True, True, True, False, False]
    assert again.payloads[3:] == [b"first", b"second"]
    transport.send_direct(Message("events/heard", b""))
    assert (await next_of(heard)).topic == "events/heard"


async def test_who_was_replaced_and_does_not_reconnect_leaves_the_other_alone(broker: BrokerServer) -> None:
    settings = SolaceSettings((broker.url,), "the only one", reconnects=False)
    first, second = SolaceTransport(settings), SolaceTransport(settings)
    told: dict[SolaceTransport, list[bool]] = {first: [], second: []}
    lost = asyncio.Event()

    def note(transport: SolaceTransport, is_up: bool) -> None:
        told[transport].append(is_up)
        if not is_up:
            lost.set()

    try:
        await first.open()
        first.watch_connection(partial(note, first))
        await second.open()
        second.watch_connection(partial(note, second))
        await asyncio.wait_for(lost.wait(), PATIENCE_S)
        with pytest.raises(BindFailed, match="not connected"):
            # In its first step: nothing is waited for.
            first.bind(QUEUE, Epoch(1), FlowRecorder()).send(None)
        with pytest.raises(PublishFailed, match="not connected"):
            await asyncio.wait_for(first.send(Message("orders/new", b"")), PATIENCE_S)
        await publish(second, 3)
        assert told == {first: [True, False], second: [True]}
    finally:
        await first.close()
        await second.close()


@pytest.mark.usefixtures("no_reconnects")
async def test_what_waits_for_a_session_fails_when_the_transport_is_closed(
    broker: BrokerServer, make_transport: MakeTransport
) -> None:
    transport = make_transport("first")
    with pytest.raises(PublishFailed, match="not connected"):
        await transport.send(Message("orders/new", b""))
    await transport.open()
    recorder = FlowRecorder()
    await transport.bind(QUEUE, Epoch(1), recorder)
    await broker.stop()
    await recorder.until_down()
    waiting = transport.send(Message("orders/new", b""))
    await transport.close()
    with pytest.raises(PublishFailed, match="closed"):
        await waiting


@ONE_PATH
async def test_a_refused_subscription_is_told_from_one_that_found_no_connection(
    broker: BrokerServer, transport: SolaceTransport
) -> None:
    heard: asyncio.Queue[Message] = asyncio.Queue()
    broker.faults.refuse(Asked.SUBSCRIBE, 403, "Subscription ACL Denied", "first")
    with pytest.raises(SubscribeFailed, match="cannot subscribe to events/>: Subscription ACL Denied") as refused:
        await transport.subscribe("events/>", heard.put_nowait)
    assert refused.value.permanent
    broker.faults.clear()
    await transport.subscribe("events/>", heard.put_nowait)
    transport.send_direct(Message("events/a", b"heard"))
    assert (await next_of(heard)).payload == b"heard"


@ONE_PATH
async def test_a_subscription_in_an_outage_fails_at_once(broker: BrokerServer, transport: SolaceTransport) -> None:
    """The client was seen to wait for the end of the outage: whoever asked waited, and a control thread with him."""
    told: asyncio.Queue[bool] = asyncio.Queue()
    transport.watch_connection(told.put_nowait)
    await broker.stop()
    async with asyncio.timeout(PATIENCE_S):
        assert [await told.get(), await told.get()] == [True, False]
    with pytest.raises(SubscribeFailed, match="cannot subscribe to events/>: not connected") as failure:
        await transport.subscribe("events/>", lambda _: None)
    assert not failure.value.permanent
    await broker.start()


@ONE_PATH
async def test_a_subscription_whose_session_ended_meanwhile_has_failed(
    make_transport: MakeTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next session would not have it, and nobody would know."""
    from lbg_runtime.transport.solace.session import SolaceSession

    is_made, goes_on, subscribe = threading.Event(), threading.Event(), SolaceSession.subscribe

    def subscribe_and_wait(*args: Any) -> None:
        subscribe(*args)
        is_made.set()
        goes_on.wait(PATIENCE_S)

    monkeypatch.setattr(SolaceSession, "subscribe", subscribe_and_wait)
    transport = await opened(make_transport("first"))
    told: asyncio.Queue[bool] = asyncio.Queue()
    transport.watch_connection(told.put_nowait)
    subscribing = asyncio.ensure_future(transport.subscribe("events/>", lambda _: None))
    await asyncio.to_thread(is_made.wait, PATIENCE_S)
    assert transport._session is not None
    transport._replace(transport._session, "for a test")
    goes_on.set()
    with pytest.raises(SubscribeFailed, match="the session ended"):
        await subscribing
    async with asyncio.timeout(PATIENCE_S):
        assert [await told.get() for _ in range(3)] == [True, False, True]
    heard: asyncio.Queue[Message] = asyncio.Queue()
    await transport.subscribe("events/>", heard.put_nowait)
    transport.send_direct(Message("events/a", b"heard"))
    assert (await next_of(heard)).payload == b"heard"


async def test_a_session_is_replaced_although_its_subscription_is_refused_now(
    broker: BrokerServer, transport: SolaceTransport
) -> None:
    """Who may not hear goes on with everything else, as after a reconnect."""
    told: asyncio.Queue[bool] = asyncio.Queue()
    heard: asyncio.Queue[Message] = asyncio.Queue()
    await transport.subscribe("events/>", heard.put_nowait)
    transport.watch_connection(told.put_nowait)
    let_subscribe(broker.engine, DEFAULT_NAME, is_allowed=False)
    assert transport._session is not None
    transport._replace(transport._session, "for a test")
    async with asyncio.timeout(PATIENCE_S):
        assert [await told.get() for _ in range(3)] == [True, False, True]
    await publish(transport, 1)
    with pytest.raises(SubscribeFailed, match="Subscription ACL Denied"):
        await transport.subscribe("events/>", heard.put_nowait)
    let_subscribe(broker.engine, DEFAULT_NAME, is_allowed=True)
    await transport.subscribe("events/>", heard.put_nowait)
    for number in range(2):
        transport.send_direct(Message("events/a", b"%d" % number))
        assert (await next_of(heard)).payload == b"%d" % number


@pytest.mark.usefixtures("no_reconnects")
async def test_what_was_not_confirmed_when_the_session_ended_fails(
    broker: BrokerServer, transport: SolaceTransport
) -> None:
    # Sent before the session can have ended: otherwise it waits for the next one, which nobody gets here.
    broker.faults.stall("first")
    future = transport.send(Message("orders/new", b""))
    await broker.stop()
    with pytest.raises(PublishFailed) as failure:
        await asyncio.wait_for(future, PATIENCE_S)
    assert not isinstance(failure.value, PublishRefused)


async def test_a_flow_that_the_client_lost_while_binding_costs_the_session_and_not_the_queue(
    broker: BrokerServer, make_transport: MakeTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lbg_runtime.transport.solace import flow as flow_module
    from lbg_runtime.transport.solace import native

    broker.create_queue("other")
    transport = await opened(make_transport("first"))
    told = FlowRecorder()
    await transport.bind(QueueName("other"), Epoch(1), told)
    with monkeypatch.context() as patched:
        # The client reports success, and the broker's answer never comes.
        patched.setattr(flow_module, "BIND_PATIENCE_S", 0.05)
        patched.setattr(native, "watch_events", lambda *_: native.BindAnswer())
        with pytest.raises(BindFailed) as failure:
            await transport.bind(QUEUE, Epoch(1), FlowRecorder())
    assert not failure.value.permanent
    assert await told.until_down() == failure.value.reason
    recorder = FlowRecorder()
    await transport.bind(QUEUE, Epoch(2), recorder)
    await recorder.until_active()


@ONE_PATH
async def test_opening_can_be_cancelled(broker: BrokerServer, make_transport: MakeTransport) -> None:
    transport = make_transport("first")
    opening = asyncio.ensure_future(transport.open())
    await asyncio.sleep(0)
    opening.cancel()
    await asyncio.wait([opening])
    assert opening.cancelled()
    await transport.close()
    await eventually(lambda: not broker.client_names())


@ONE_PATH
async def test_a_connect_that_nobody_answers_ends_at_once_when_it_is_cancelled(client_path: ClientPathChoice) -> None:
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.setblocking(False)
        host = "tcp://{}:{}".format(*silent.getsockname())
        transport = SolaceTransport(
            SolaceSettings((host,), "first", connect_timeout_ms=600_000, client_path=client_path)
        )
        opening = asyncio.ensure_future(transport.open())
        peer, _ = await asyncio.wait_for(loop.sock_accept(silent), PATIENCE_S)
        with peer:
            opening.cancel()
            await asyncio.wait([opening], timeout=PATIENCE_S)
            assert opening.cancelled()
            await transport.close()


async def test_a_bind_in_an_outage_waits_for_its_end(broker: BrokerServer, transport: SolaceTransport) -> None:
    told = FlowRecorder()
    await transport.bind(QUEUE, Epoch(1), told)
    await told.until_active()
    broker.create_queue("other")
    await broker.stop()
    await told.until_inactive()
    recorder = FlowRecorder()
    binding = asyncio.ensure_future(transport.bind(QueueName("other"), Epoch(1), recorder))
    await asyncio.wait([binding], timeout=0.1)
    assert not binding.done()
    await broker.start()
    await asyncio.wait_for(binding, PATIENCE_S)
    await recorder.until_active()


async def test_a_bind_in_an_outage_can_be_cancelled_at_once(
    broker: BrokerServer, make_transport: MakeTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport_module, "OUTAGE_PATIENCE_S", 10 * PATIENCE_S)
    transport = await opened(make_transport("first"))
    await broker.stop()
    await eventually(lambda: not transport.is_connected)
    binding = asyncio.ensure_future(transport.bind(QUEUE, Epoch(1), FlowRecorder()))
    await asyncio.sleep(0)
    binding.cancel()
    await asyncio.wait([binding], timeout=PATIENCE_S)
    assert binding.cancelled()
    await broker.start()
    recorder = FlowRecorder()
    await transport.bind(QUEUE, Epoch(2), recorder)
    await recorder.until_active()


async def test_a_bind_gives_an_outage_up_in_the_end(
    broker: BrokerServer, make_transport: MakeTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport_module, "OUTAGE_PATIENCE_S", 0.05)
    transport = await opened(make_transport("first"))
    await broker.stop()
    await eventually(lambda: not transport.is_connected)
    with pytest.raises(BindFailed) as failure:
        await transport.bind(QUEUE, Epoch(1), FlowRecorder())
    assert not failure.value.permanent


async def test_binds_beyond_a_few_end_when_the_connection_is_lost_and_keep_nothing_waiting(
    broker: BrokerServer, make_transport: MakeTransport
) -> None:
    """All of a member's were in the client by then, 10 s each and few at a time, and unbinds waited behind them."""
    from lbg_runtime.transport.solace.session import SessionEvent

    broker.create_queue("other")
    transport = await opened(make_transport("first"))
    flow = await transport.bind(QueueName("other"), Epoch(1), FlowRecorder())
    broker.faults.stall("first")
    binds = [asyncio.ensure_future(transport.bind(QUEUE, Epoch(1), FlowRecorder())) for _ in range(12)]
    await asyncio.wait(binds, timeout=0.1)
    unbinding = asyncio.ensure_future(flow.unbind())
    await asyncio.wait([unbinding], timeout=0.1)
    # The client tells of it when it has ended the binds, or a moment before.
    transport._session_event(cast(Any, transport._making), (SessionEvent.LOST, "for a test"))
    async with asyncio.timeout(PATIENCE_S):
        await broker.stop()
        await asyncio.gather(unbinding, *binds, return_exceptions=True)
    failures = [bind.exception() for bind in binds]
    assert all(isinstance(failure, BindFailed) and not failure.permanent for failure in failures)
    assert {str(failure) for failure in failures[BINDS_AT_ONCE:]} == {"cannot bind to orders/0: not connected"}
    broker.faults.clear()
    await broker.start()
    # Otherwise closing would wait for the answer to the question whether the unbind was read.
    await eventually(lambda: transport.is_connected)
