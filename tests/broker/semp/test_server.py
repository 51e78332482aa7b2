import asyncio
import logging
import signal
import socket

import httpx
import pytest

from lbg_runtime.broker.engine.effects import Effect
from lbg_runtime.broker.engine.engine import Engine
from lbg_runtime.broker.semp.server import SempServer
from lbg_runtime.model.errors import UserError
from lbg_runtime.semp.address import SempApi
from lbg_runtime.semp.client import SempAccount, SempClient
from tests.addresses import OWN_HOST
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.real_time


def make_server(port=0, host="127.0.0.1"):
    effects = list[Effect]()
    return SempServer(Engine(), effects.extend, host, port)


async def test_it_serves_from_start_to_stop_and_stops_while_a_client_stays_connected():
    server = make_server(host=OWN_HOST)
    async with asyncio.timeout(PATIENCE_S):
        async with server, SempClient(SempAccount(server.url, "admin", "admin")) as client:
            await client.create(("msgVpns", "default", "queues"), {"queueName": "a/b %2F"})
            found = await client.get(SempApi.MONITOR, ("msgVpns", "default", "queues", "a/b %2F"))
            assert found.text("queueName") == "a/b %2F"
            await server.stop()
            await server.stop()
    with pytest.raises(ConnectionRefusedError), socket.socket() as peer:
        peer.connect((server.host, server.port))


async def test_it_leaves_the_access_log_to_the_process():
    access, heard = logging.getLogger("uvicorn.access"), []
    handler = logging.Handler(logging.INFO)
    handler.emit = heard.append
    level = access.level
    access.addHandler(handler)
    access.setLevel(logging.INFO)
    try:
        async with make_server() as server, SempClient(SempAccount(server.url, "admin", "admin")) as client:
            await client.get(SempApi.MONITOR, ("msgVpns", "default"))
        assert (access.handlers, access.propagate, heard) == ([handler], True, [])
    finally:
        access.removeHandler(handler)
        access.setLevel(level)


async def test_it_leaves_signals_to_the_process():
    before = signal.getsignal(signal.SIGTERM)
    async with make_server():
        assert signal.getsignal(signal.SIGTERM) == before


async def test_no_page_in_a_browser_administers():
    async with make_server() as server, httpx.AsyncClient(trust_env=False, auth=("admin", "admin")) as client:
        url = f"{server.url}/SEMP/v2/config/msgVpns/default/queues"
        headers = {"origin": "http://page.example", "content-type": "text/plain"}
        assert (await client.post(url, content='{"queueName": "q"}', headers=headers)).status_code == 403
        assert (await client.get(url)).json()["data"] == []


async def test_links_have_the_address_that_was_asked():
    async with make_server() as server, httpx.AsyncClient(auth=("admin", "admin"), trust_env=False) as http:
        answer = await http.get(f"{server.url}/SEMP/v2/config/about")
        assert answer.json()["links"]["uri"] == f"{server.url}/SEMP/v2/config/about"
        assert "server" not in answer.headers


async def test_a_port_in_use_is_the_users_mistake():
    async with make_server() as server:
        with pytest.raises(UserError, match="Address already in use"):
            await make_server(server.port).start()
    with pytest.raises(UserError, match=r"semp 192\.0\.2\.1:0"):
        await make_server(host="192.0.2.1").start()


def test_an_address_of_six_is_written_in_brackets():
    assert make_server(port=80, host="::1").url == "http://[::1]:80"
