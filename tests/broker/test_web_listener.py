"""Clients over WebSocket."""

import asyncio
import contextlib
import errno
import ssl
from collections.abc import AsyncIterator

import aiohttp
import aiohttp.web
import pytest

from lbg_runtime.broker import web_listener
from lbg_runtime.broker.listening import listen
from lbg_runtime.broker.server.server import BrokerServer
from lbg_runtime.broker.web_listener import WebListener
from lbg_runtime.model.errors import UserError
from lbg_runtime.smf.client_ctrl import ClientItem, ClientKind, Scheme
from lbg_runtime.smf.frame import Frame, Protocol, encode_frame
from tests.broker.server.desk import login
from tests.certificates import Certificates
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.real_time

KEEP_ALIVE = encode_frame(Frame(Protocol.KEEP_ALIVE))


@contextlib.asynccontextmanager
async def served(certificates: Certificates | None = None) -> AsyncIterator[tuple[BrokerServer, WebListener]]:
    tls = None if certificates is None else certificates.broker(clients=True)
    context = None if tls is None else tls.context()
    async with BrokerServer(port=0, tls=tls) as server, WebListener(server, "127.0.0.1", 0, tls=context) as web:
        yield server, web


@contextlib.asynccontextmanager
async def client(web: WebListener, *protocols: str, **options) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(web.url, protocols=protocols, **options) as connected,
    ):
        yield connected


async def answered(connected: aiohttp.ClientWebSocketResponse) -> bytes:
    return await connected.receive_bytes(timeout=PATIENCE_S)


async def closed(connected: aiohttp.ClientWebSocketResponse) -> aiohttp.WSMsgType:
    return (await connected.receive(timeout=PATIENCE_S)).type


async def gone(server: BrokerServer) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while server.client_names():  # noqa: ASYNC110 - the next turn of the loop may tell
            await asyncio.sleep(0)


async def test_a_login_in_messages_of_any_size() -> None:
    async with served() as (server, web), client(web) as connected:
        sent = login("cl-1")
        for chunk in (sent[:1], sent[1:20], sent[20:] + KEEP_ALIVE):
            await connected.send_bytes(chunk)
        assert b"OK" in await answered(connected)
        assert server.client_names() == ["cl-1"]


async def test_the_address_is_the_client_s_own() -> None:
    async with served() as (server, web), client(web) as connected:
        await connected.send_bytes(login("cl-1"))
        await answered(connected)
        own = connected.get_extra_info("sockname")
        (name,) = server.client_names()
        assert server.engine.administration.client("default", name).address == own[0]


async def test_a_browser_gets_the_protocol_that_it_offered_first() -> None:
    async with served() as (_, web), client(web, "smf.one", "smf.two") as connected:
        assert connected.protocol == "smf.one"


async def test_a_client_that_closes_is_gone() -> None:
    async with served() as (server, web):
        async with client(web) as connected:
            await connected.send_bytes(login("cl-1"))
            await answered(connected)
        await gone(server)


async def test_a_client_that_the_broker_drops_is_told_by_a_close() -> None:
    async with served() as (server, web), client(web) as connected:
        await connected.send_bytes(login("cl-1"))
        await answered(connected)
        server.faults.drop("cl-1")
        assert await closed(connected) is aiohttp.WSMsgType.CLOSE


async def test_a_client_that_the_broker_drops_and_that_reads_nothing_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one that is silent for too long, as its computer sleeps."""

    waits = asyncio.Event()

    async def wait_for_room(*_: object) -> None:
        waits.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(web_listener, "CLOSE_TIMEOUT_S", 0.2)
    monkeypatch.setattr(aiohttp.web.WebSocketResponse, "send_bytes", wait_for_room)
    async with served() as (server, web), client(web) as connected:
        await connected.send_bytes(login("cl-1"))
        async with asyncio.timeout(PATIENCE_S):
            await waits.wait()
        server.faults.drop("cl-1")
        assert await closed(connected) in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR)


async def test_a_refusal_is_read_before_the_end() -> None:
    async with served() as (_, web), client(web) as connected:
        await connected.send_bytes(login("cl-1", vpn="none"))
        assert b"Message VPN" in await answered(connected)
        assert await closed(connected) is aiohttp.WSMsgType.CLOSE


async def test_a_text_ends_its_connection_and_no_other() -> None:
    async with served() as (server, web), client(web) as connected, client(web) as other:
        await connected.send_str("hello")
        assert await closed(connected) in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.CLOSE)
        await other.send_bytes(login("cl-1"))
        await answered(other)
        assert server.client_names() == ["cl-1"]


async def test_a_request_for_something_else_is_refused() -> None:
    async with (
        served() as (_, web),
        aiohttp.ClientSession() as session,
        session.get(web.url.replace("ws", "http", 1)) as answer,
    ):
        assert answer.status == 400


async def test_a_connection_that_asks_for_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_listener, "LOGIN_TIMEOUT_S", 0.2)
    async with served() as (_, web), client(web) as connected:
        reader, writer = await asyncio.open_connection(web.host, web.port)
        async with asyncio.timeout(PATIENCE_S):
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        writer.close()
        # One that has begun has its time for a login.
        await connected.send_bytes(login("cl-1"))
        assert b"OK" in await answered(connected)


async def test_a_client_for_which_there_is_no_room_is_cut_and_the_next_one_is_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def admit(*_: object) -> None:
        raise OSError(errno.EMFILE, "no room")

    async with served() as (server, web):
        with monkeypatch.context() as patch:
            patch.setattr(server, "admit", admit)
            async with client(web) as connected:
                assert await closed(connected) in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR)
        async with client(web) as connected:
            await connected.send_bytes(login("cl-1"))
            assert b"OK" in await answered(connected)


async def test_a_broker_that_stops_cuts_its_clients() -> None:
    async with served() as (server, web), client(web) as connected:
        await connected.send_bytes(login("cl-1"))
        await answered(connected)
        async with asyncio.timeout(PATIENCE_S):
            await web.stop()
            await web.stop()
        assert await closed(connected) is aiohttp.WSMsgType.CLOSED
        await gone(server)


@pytest.mark.parametrize(("presented", "answer"), [(True, b"OK"), (False, b"Unauthorized")])
async def test_who_presents_a_certificate_logs_in_by_it(
    certificates: Certificates, *, presented: bool, answer: bytes
) -> None:
    context = ssl.create_default_context(cafile=str(certificates.authority_file))
    if presented:
        context.load_cert_chain(certificates.client("ann"))
    by_certificate = ClientItem(ClientKind.SCHEME, bytes((Scheme.CLIENT_CERTIFICATE,)))
    async with served(certificates) as (_, web), client(web, ssl=context, server_hostname="localhost") as connected:
        assert web.url.startswith("wss://")
        await connected.send_bytes(login("cl-1", by_certificate))
        assert answer in await answered(connected)


async def test_an_address_that_is_taken_is_refused_in_one_line() -> None:
    with listen("other", "127.0.0.1", 0) as taken:
        async with BrokerServer(port=0) as server:
            with pytest.raises(UserError, match=r"^web 127\.0\.0\.1"):
                await WebListener(server, "127.0.0.1", taken.getsockname()[1]).start()


async def test_a_start_that_is_cancelled_leaves_no_port_taken() -> None:
    async with BrokerServer(port=0) as server:
        web = WebListener(server, "127.0.0.1", 0)
        starting = asyncio.create_task(web.start())
        # It listens, and waits for a turn of the loop.
        await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        listen("web", web.host, web.port).close()
