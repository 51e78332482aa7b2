"""Clients of the broker's HTTP ports that begin something and do not end it."""

import asyncio

import pytest

from lbg_runtime.broker import http_server
from lbg_runtime.broker.engine.engine import Engine
from lbg_runtime.broker.listening import listen
from lbg_runtime.broker.semp.server import SempServer
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.real_time

ACCOUNT = b"Host: broker\r\nAuthorization: Basic YWRtaW46YWRtaW4=\r\n"
WHOLE = b"GET /SEMP/v2/config/about/api HTTP/1.1\r\n" + ACCOUNT + b"\r\n"
HALF_A_BODY = b"POST /SEMP/v2/config/msgVpns/default/queues HTTP/1.1\r\n" + ACCOUNT + b"Content-Length: 100\r\n\r\n{"


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET / HT", HALF_A_BODY, WHOLE + b"GET"],
    ids=["nothing", "half a head", "half a body", "one, and half a head"],
)
async def test_a_connection_on_which_no_request_comes_to_its_end_is_closed(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was kept for as long as the client liked; so many of them leave a broker without descriptors."""
    monkeypatch.setattr(http_server, "KEEP_ALIVE_S", 0.3)
    async with SempServer(Engine(), lambda _: None, port=0) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(sent)
        async with asyncio.timeout(PATIENCE_S):
            answered = await reader.read()
        writer.close()
    assert answered.startswith(b"HTTP/1.1 200") == sent.startswith(WHOLE)


async def test_a_start_that_is_cancelled_leaves_no_port_taken() -> None:
    server = SempServer(Engine(), lambda _: None, port=0)
    starting = asyncio.create_task(server.start())
    # It has its address, and waits for the server to begin.
    await asyncio.sleep(0)
    starting.cancel()
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(asyncio.CancelledError):
            await starting
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)
    listen("semp", server.host, server.port).close()


async def test_a_stop_that_is_cancelled_is_carried_out_and_may_be_repeated() -> None:
    """The cancellation went on into the server, which served for ever; and every further stop ended with it."""
    server = SempServer(Engine(), lambda _: None, port=0)
    await server.start()
    stopping = asyncio.create_task(server.stop())
    await asyncio.sleep(0)
    stopping.cancel()
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(asyncio.CancelledError):
            await stopping
        await server.stop()
    listen("semp", server.host, server.port).close()
