"""What comes of a request when the connection is cut: the client reconnects, and says that it was done."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from lbg_runtime.broker.engine.engine import DEFAULT_VPN
from lbg_runtime.broker.server.server import BrokerServer
from lbg_runtime.config.settings import ClientPathChoice
from lbg_runtime.model.errors import RequestRefused, TransportError
from lbg_runtime.model.ids import QueueName
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.testing.conformance_steps import bind
from lbg_runtime.testing.flow_recorder import PATIENCE_S
from lbg_runtime.transport.solace import native
from lbg_runtime.transport.solace.transport import SolaceTransport
from tests.transport.solace.steps import opened, publish

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.parametrize("client_path", [ClientPathChoice.PUBLIC], indirect=True),
]

MakeTransport = Callable[..., SolaceTransport]
NEW = QueueName("new/0")


@pytest.fixture
async def transport(make_transport: MakeTransport) -> SolaceTransport:
    return await opened(make_transport("first"))


async def cut_unread(broker: BrokerServer, asking: "asyncio.Future[Any]") -> None:
    """Cut the connection of a broker that is stalled, when it has been asked."""
    await asyncio.wait([asking], timeout=0.1)
    assert not asking.done()
    assert broker.faults.drop("first")
    broker.faults.clear()


@pytest.mark.parametrize("request_cut", ["end_point_provision", "topic_endpoint_subscribe"])
async def test_a_queue_is_not_told_as_made_when_a_request_for_it_was_cut_off(
    broker: BrokerServer, transport: SolaceTransport, monkeypatch: pytest.MonkeyPatch, request_cut: str
) -> None:
    """A queue without one of its subscriptions: what was published to that was lost."""
    loop, is_stalled, ask = asyncio.get_running_loop(), asyncio.Event(), getattr(native.native, request_cut)
    told: asyncio.Queue[bool] = asyncio.Queue()
    transport.watch_connection(told.put_nowait)

    async def stall() -> None:
        broker.faults.stall("first")
        is_stalled.set()

    def ask_stalled(*args: Any, **options: Any) -> Any:
        asyncio.run_coroutine_threadsafe(stall(), loop).result(PATIENCE_S)
        return ask(*args, **options)

    async with asyncio.timeout(PATIENCE_S):
        with monkeypatch.context() as patched:
            patched.setattr(native.native, request_cut, ask_stalled)
            provisioning = asyncio.ensure_future(transport.provision(NEW, ["new/>"]))
            await is_stalled.wait()
        await cut_unread(broker, provisioning)
        with pytest.raises(TransportError, match="cannot provision new/0: the connection was lost") as failure:
            await provisioning
        assert not isinstance(failure.value, RequestRefused)
        assert [await told.get() for _ in range(3)] == [True, False, True]
        await transport.provision(NEW, ["new/>"])
        await publish(transport, 1, "new/a")
    assert broker.engine.queue_depth(DEFAULT_VPN, NEW) == 1


async def test_what_is_refused_since_a_request_was_cut_off_is_no_refusal(
    broker: BrokerServer, transport: SolaceTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue passes for made, so its subscriptions are refused, as it is unknown."""
    loop, told = asyncio.get_running_loop(), asyncio.Queue[bool]()
    transport.watch_connection(told.put_nowait)

    async def cut() -> None:
        assert broker.faults.drop("first")
        assert [await told.get() for _ in range(3)] == [True, False, True]

    def cut_off(*_: Any, **__: Any) -> int:
        asyncio.run_coroutine_threadsafe(cut(), loop).result(PATIENCE_S)
        return native.SOLCLIENT_OK

    with monkeypatch.context() as patched:
        patched.setattr(native, "_ask_ahead", lambda *_: None)
        patched.setattr(native.native, "end_point_provision", cut_off)
        with pytest.raises(TransportError, match="cannot provision new/0: the connection was lost") as failure:
            await transport.provision(NEW, ["new/>"])
    assert not isinstance(failure.value, RequestRefused)


async def test_a_connection_that_was_cut_is_not_heard(broker: BrokerServer, transport: SolaceTransport) -> None:
    """What was sent on it may not have been read, whatever the next one says."""
    session = transport._session
    assert session is not None
    assert await asyncio.to_thread(session.heard_in) is not None
    broker.faults.stall("first")
    asking = asyncio.ensure_future(asyncio.to_thread(session.heard_in))
    await cut_unread(broker, asking)
    async with asyncio.timeout(PATIENCE_S):
        assert await asking is None


@pytest.mark.parametrize("is_ending", [True, False], ids=["while it ends", "when it has ended"])
async def test_an_unbind_that_was_cut_off_is_not_confirmed_by_the_next_connection(
    broker: BrokerServer, transport: SolaceTransport, monkeypatch: pytest.MonkeyPatch, is_ending: bool
) -> None:
    """Its settlement was lost, and came again with no fault on record. The client's listeners tell late of the cut."""
    loop, session, barrier = asyncio.get_running_loop(), transport._session, transport._barrier
    assert session is not None
    assert barrier is not None

    async def cut() -> None:
        assert broker.faults.drop("first")
        broker.faults.clear()

    def heard_when_it_is_back() -> int:
        before = session.connection()
        asyncio.run_coroutine_threadsafe(cut(), loop).result(PATIENCE_S)
        while (found := session.heard_in()) in (None, before):
            time.sleep(0.005)  # in time, the client tells nobody
        return found

    flow, recorder = await bind(transport)
    await publish(transport, 1)
    [delivery] = await recorder.until_received(1)
    receiver = flow._receiver  # type: ignore[attr-defined]  # that of the client
    terminate = receiver.terminate

    def terminate_and_be_cut_off(grace_period: int) -> None:
        terminate(grace_period)
        heard_when_it_is_back()

    if is_ending:
        monkeypatch.setattr(receiver, "terminate", terminate_and_be_cut_off)
    else:
        monkeypatch.setattr(barrier, "_question", heard_when_it_is_back)
    # What they tell is that of an older session, then.
    monkeypatch.setattr(transport, "_making", None)
    broker.faults.stall("first")
    flow.settle(delivery.delivery_id, Outcome.ACCEPTED)
    async with asyncio.timeout(PATIENCE_S):
        assert not await flow.unbind()
    assert broker.engine.queue_depth(DEFAULT_VPN, QueueName("orders/0")) == 1
