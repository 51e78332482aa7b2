"""A transport that is closed while it is opened, and one that is opened twice."""

import asyncio
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

from lbg_runtime.broker.engine.engine import DEFAULT_VPN
from lbg_runtime.broker.server.server import BrokerServer
from lbg_runtime.config.settings import ClientPathChoice
from lbg_runtime.model.errors import BindFailed, ConnectFailed
from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.model.message import Message
from lbg_runtime.testing.flow_recorder import PATIENCE_S, FlowRecorder
from lbg_runtime.transport.solace import transport as transport_module
from lbg_runtime.transport.solace.session import SolaceSession
from lbg_runtime.transport.solace.settings import SolaceSettings
from lbg_runtime.transport.solace.transport import SolaceTransport
from tests.transport.solace.steps import eventually, opened, refuse_threads_after

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.parametrize("client_path", [ClientPathChoice.PUBLIC], indirect=True),
]

MakeTransport = Callable[..., SolaceTransport]
QUEUE = QueueName("orders/0")


async def expect_closed(opening: "asyncio.Future[None]") -> None:
    with pytest.raises(ConnectFailed, match="the transport was closed") as failure:
        await opening
    assert failure.value.permanent


async def test_a_connect_that_nobody_answers_ends_when_the_transport_is_closed(client_path: ClientPathChoice) -> None:
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.setblocking(False)
        host = "tcp://{}:{}".format(*silent.getsockname())
        settings = SolaceSettings((host,), "first", connect_timeout_ms=600_000, client_path=client_path)
        transport = SolaceTransport(settings)
        opening = asyncio.ensure_future(transport.open())
        async with asyncio.timeout(PATIENCE_S):
            peer, _ = await loop.sock_accept(silent)
            with peer:
                await transport.close()
                await expect_closed(opening)


async def test_a_transport_that_is_closed_when_it_is_almost_open_leaves_no_connection(
    broker: BrokerServer, make_transport: MakeTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The threads were gone that could have ended it."""
    is_made, goes_on, connect = threading.Event(), threading.Event(), SolaceSession.connect

    def connect_and_wait(*args: Any) -> SolaceSession:
        session = connect(*args)
        is_made.set()
        assert goes_on.wait(PATIENCE_S)
        return session

    monkeypatch.setattr(SolaceSession, "connect", connect_and_wait)
    transport = make_transport("first")
    opening = asyncio.ensure_future(transport.open())
    async with asyncio.timeout(2 * PATIENCE_S):
        assert await asyncio.to_thread(is_made.wait, PATIENCE_S)
        closing = asyncio.ensure_future(transport.close())
        await asyncio.wait([closing], timeout=0.1)
        # Also if whoever closes has no more time.
        closing.cancel()
        goes_on.set()
        await expect_closed(opening)
        await asyncio.wait([closing])
        await eventually(lambda: not broker.client_names())


async def test_a_transport_that_is_closed_while_the_client_is_loaded_does_not_connect(
    broker: BrokerServer, make_transport: MakeTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, load = threading.Event(), transport_module.load_client

    def load_and_wait(choice: ClientPathChoice, *, carries_traces: bool) -> object:
        assert goes_on.wait(PATIENCE_S)
        return load(choice, carries_traces=carries_traces)

    monkeypatch.setattr(transport_module, "load_client", load_and_wait)
    transport = make_transport("first")
    opening = asyncio.ensure_future(transport.open())
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(transport.close())
    await asyncio.sleep(0)
    goes_on.set()
    async with asyncio.timeout(PATIENCE_S):
        await expect_closed(opening)
        await closing
    assert not broker.client_names()


async def test_who_opens_twice_at_once_gets_one_session(broker: BrokerServer, make_transport: MakeTransport) -> None:
    """The other one would have stayed connected, under the same name."""
    transport = make_transport("first")
    first, second = asyncio.ensure_future(transport.open()), asyncio.ensure_future(transport.open())
    await first
    with pytest.raises(ConnectFailed, match="opened once"):
        await second
    assert transport.is_connected
    # Nor while its next session is made.
    transport._log_in_again("for a test")
    with pytest.raises(ConnectFailed, match="opened once"):
        await transport.open()
    await eventually(lambda: transport.is_connected)
    await transport.close()
    await eventually(lambda: not broker.client_names())


async def test_threads_that_the_system_refuses_fail_the_opening_and_nothing_after_it(
    broker: BrokerServer, make_transport: MakeTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that was refused one was made later, its caller knew of none, and all later ones waited for ever."""
    transport = make_transport("first")
    with monkeypatch.context() as refusing:
        refuse_threads_after(10, refusing)
        with pytest.raises(ConnectFailed, match="no thread for the client: can't start new thread") as failure:
            await transport.open()
    assert not failure.value.permanent
    assert failure.value.expected == "a limit of threads with room for 22 more"
    async with asyncio.timeout(PATIENCE_S):
        await transport.open()
        refuse_threads_after(0, monkeypatch)
        await transport.send_together([Message("orders/new", b"")])
        flow = await transport.bind(QUEUE, Epoch(1), FlowRecorder())
        assert await flow.unbind()
        transport._log_in_again("for a test")
        await transport.send(Message("orders/new", b""))
    assert broker.engine.queue_depth(DEFAULT_VPN, QUEUE) == 2


async def test_an_opening_that_fails_or_is_cancelled_leaves_no_threads(client_path: ClientPathChoice) -> None:
    """A program that tries again until there is a broker had 22 more of them each time."""
    others = set(threading.enumerate())
    settings = SolaceSettings(("tcp://127.0.0.1:1",), "first", client_path=client_path)
    failed = SolaceTransport(settings)
    with pytest.raises(ConnectFailed):
        await failed.open()
    cancelled = SolaceTransport(settings)
    opening = asyncio.ensure_future(cancelled.open())
    await asyncio.sleep(0)
    opening.cancel()
    await asyncio.wait([opening])
    started = {each for each in set(threading.enumerate()) - others if each.name.startswith("solace-control")}
    await eventually(lambda: not any(thread.is_alive() for thread in started))
    # Whoever still has them may close them, or try again.
    await cancelled.close()
    with pytest.raises(ConnectFailed, match="TCP connection failure"):
        await failed.open()


async def test_a_bind_that_waits_for_a_connection_ends_when_the_transport_is_closed(
    broker: BrokerServer, make_transport: MakeTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It went on waiting, for up to 10 s after the transport was closed."""
    monkeypatch.setattr(transport_module, "OUTAGE_PATIENCE_S", 10 * PATIENCE_S)
    transport = await opened(make_transport("first"))
    await broker.stop()
    await eventually(lambda: not transport.is_connected)
    async with asyncio.timeout(PATIENCE_S):
        # Begun in this order: by the time of the second the first one waits.
        bound, _ = await asyncio.gather(
            transport.bind(QUEUE, Epoch(1), FlowRecorder()), transport.close(), return_exceptions=True
        )
    assert isinstance(bound, BindFailed)
