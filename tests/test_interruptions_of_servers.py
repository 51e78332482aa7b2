"""Whoever serves, and whoever is served, may be interrupted at any moment: neither leaves anything behind.

As in `test_interruptions.py`, a few steps of each story are tried here, others for each way.
"""

import asyncio
import json
import socket
import struct
from contextlib import AsyncExitStack, ExitStack
from typing import ClassVar

import aiohttp
import pytest
from structlog.testing import capture_logs

from lbg_runtime.broker.http_server import HttpServer
from lbg_runtime.broker.semp.server import SempServer
from lbg_runtime.broker.server.server import BrokerServer
from lbg_runtime.broker.web_listener import WebListener
from lbg_runtime.config.listen_address import ListenAddress
from lbg_runtime.dashboard.server import DashboardServer
from lbg_runtime.dashboard.watch import GroupWatch
from lbg_runtime.runtime.observer import Observer
from lbg_runtime.status.connections import BoundedConnection
from lbg_runtime.status.serving import LoopServer, QuietServer
from lbg_runtime.testing.group_broker import GroupBroker
from lbg_runtime.testing.moments import Moments
from tests.broker.server.desk import login
from tests.interruptions import WAYS, Story, disturbed, faults, try_all
from tests.runtime.conftest import make_settings
from tests.sidecar.conftest import SidecarTrial

pytestmark = pytest.mark.real_time


class Real(Story):
    IS_VIRTUAL = False
    LEFT_OUT: ClassVar[frozenset[str]] = frozenset()
    """Ways in which it is not interrupted."""


class ServingBrowsers(Real):
    """A broker, with a client over WebSocket."""

    async def act(self):
        async with (
            BrokerServer("127.0.0.1", 0) as broker,
            WebListener(broker, "127.0.0.1", 0) as web,
            aiohttp.ClientSession() as session,
            session.ws_connect(web.url) as client,
        ):
            await client.send_bytes(login("cl-1"))
            await client.receive_bytes()


class ServingABrowserThatStays(Real):
    """Whose client outlives the server."""

    async def begin(self):
        self.stack = AsyncExitStack()

    async def act(self):
        async with BrokerServer("127.0.0.1", 0) as broker, WebListener(broker, "127.0.0.1", 0) as web:
            session = await self.stack.enter_async_context(aiohttp.ClientSession())
            client = await self.stack.enter_async_context(session.ws_connect(web.url))
            await client.send_bytes(login("cl-1"))
            await client.receive_bytes()

    async def look(self):
        await self.stack.aclose()
        await asyncio.sleep(0)
        await asyncio.sleep(0)


class ServingOneWhoIsCut(Real):
    """With an answer on its way to be read, so that the connection is lost by an error."""

    async def act(self):
        address = ListenAddress("127.0.0.1", 0)
        quiet = QuietServer(answer, BoundedConnection, last_answers_s=1)
        async with HttpServer("test", answer, "127.0.0.1", 0) as http, LoopServer(quiet, address, "test") as loop:
            for port in (http.port, loop.address.port):
                await self.be_cut(port)

    async def be_cut(self, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            await reader.readuntil(b"x")
        finally:
            # Its end is a reset.
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
            await asyncio.sleep(0)

    async def look(self):
        await asyncio.sleep(0)


async def answer(scope, receive, send):
    """An application."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"1")]})
    await send({"type": "http.response.body", "body": b"x"})


class Showing(Real):
    """A group's live page, with a viewer and two autoscalers."""

    # The server outlasts whoever cannot wait for its end, and what it shows.
    LEFT_OUT = frozenset({"in a cancelled scope"})
    MAY_RAISE = (aiohttp.ClientError, ConnectionError)

    async def begin(self):
        self.broker = GroupBroker(Moments(), lambda: None)
        self.semp = SempServer(self.broker.engine, self.broker.post)
        await self.semp.start()
        self.settings = make_settings(
            membership={"mode": "discovered", "index": None, "count": None},
            rebind={"mode": "cooperative"},
            semp={"url": self.semp.url, "password": "admin"},
        )
        self.broker.create_queue("orders/0")
        self.session = self.broker.make_transport("dashboard")
        await self.session.open()

    async def act(self):
        group = self.settings.group
        observer = Observer(self.session, self.settings, "dashboard")
        watch = GroupWatch(self.settings, observer, lambda _: (group.shape().queue_names(), None), ())
        server = DashboardServer(watch, group.shape(), group.hash_function, ListenAddress("127.0.0.1", 0), None)
        async with watch, server, asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(watch.run())
            async with aiohttp.ClientSession(server.url) as self.client, asyncio.TaskGroup() as viewers:
                viewers.create_task(self.view())
                viewers.create_task(self.ask("/v1/autoscale"))
                viewers.create_task(self.ask("/v1/autoscale"))
            watching.cancel()

    async def view(self):
        async with self.client.get("/v1/feed") as feed:
            await feed.content.readline()

    async def ask(self, path):
        async with self.client.get(path) as answer:
            await answer.read()

    def disturb(self):
        self.leaving = asyncio.ensure_future(self.client.close())

    async def look(self):
        await self.session.close()
        await self.semp.stop()
        await asyncio.sleep(0)


class Pulling(Real):
    """A sidecar, and its application without a port: it publishes, pulls and settles over HTTP, and may be cut."""

    async def begin(self):
        self.trial = SidecarTrial()
        journal = {"journal": {"path": str(self.folder)}}
        self.app = self.trial.app(sidecar={"listen": "127.0.0.1:0"}, ops=journal, failure={"timeout": "10m"})
        self.confirmed = self.asked = 0
        self.ending = ExitStack()
        self.log = self.ending.enter_context(capture_logs())

    async def act(self):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.app.run())
            self.working = tasks.create_task(self.work())
            await asyncio.wait([self.working])
            self.app.stop()

    async def work(self):
        while not (served := [each for each in self.log if each["event"] == "sidecar_served"]):  # noqa: ASYNC110
            await asyncio.sleep(0)
        async with aiohttp.ClientSession(f"http://{served[0]['address']}") as client, asyncio.TaskGroup() as tasks:
            tasks.create_task(self.pull(client))
            tasks.create_task(self.publish(client))

    async def publish(self, client):
        for number in range(4):
            async with client.post(f"/v1/publish/orders/new?key=k{number % 2}", data=b"x") as answered:
                self.confirmed += answered.status == 200

    async def pull(self, client):
        async with client.post("/v1/pull?max=2") as stream:
            while self.asked < 4:
                if (line := await stream.content.readline()).strip():
                    self.asked += 1
                    told = {"id": json.loads(line)["id"], "status": "SUCCESS"}
                    async with client.post("/v1/settle", json=told) as answered:
                        await answered.read()

    def disturb(self):
        self.working.cancel()

    async def look(self):
        self.ending.close()
        await asyncio.sleep(0)
        left = sum(self.trial.depths()) if self.trial.broker.engine.queue_names("default") else 0
        if left + self.asked < self.confirmed:
            self.found.append(f"lost: {self.confirmed} confirmed, {self.asked} settled, {left} left")
        if any('"kind":"close"' not in each.read_text().splitlines()[-1] for each in self.folder.iterdir()):
            self.found.append("a journal or the ledger has no end")
        self.found += [f"told: {each}" for each in self.log if each["log_level"] == "error"]


STORIES: dict[type[Real], int] = {
    ServingBrowsers: 5,
    ServingABrowserThatStays: 5,
    ServingOneWhoIsCut: 31,
    Showing: 59,
    Pulling: 149,
}
"""Each with the distance between the steps that are tried here."""


@pytest.mark.parametrize("story", STORIES)
def test_nothing_is_wrong_with_what_is_not_interrupted(story, tmp_path):
    assert faults(story, tmp_path)[0] == []


@pytest.mark.parametrize(
    ("story", "way"), [(each, way) for each in STORIES for way in WAYS if way not in each.LEFT_OUT]
)
def test_what_is_interrupted_at_whatever_step_leaves_nothing_behind(story, way, tmp_path):
    first = 1 + list(WAYS).index(way) % STORIES[story]
    assert try_all(story, WAYS[way], tmp_path, first, STORIES[story]) == {}


@pytest.mark.parametrize("story", [each for each in STORIES if each.disturb is not Story.disturb])
def test_what_is_disturbed_at_whatever_step_ends_as_it_should_and_leaves_nothing_behind(story, tmp_path):
    assert try_all(story, disturbed, tmp_path, stride=(STORIES[story] + 2) // 3) == {}
