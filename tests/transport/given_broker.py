"""A broker that somebody names, as the conformance suite needs one: made ready over SEMP, its network a proxy here."""

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx

from lbg_runtime.broker.engine.settings import QueueSettings
from lbg_runtime.broker.semp.queues import row_of
from lbg_runtime.testing.conformance_queues import MADE_BY_MEMBERS
from lbg_runtime.testing.transport_harness import PASSWORD, USERNAME
from lbg_runtime.transport.solace.settings import SolaceSettings
from lbg_runtime.transport.solace.transport import SolaceTransport

ACL_PROFILE = "lbg-conformance"

ALREADY_GONE = 6
"""SEMP's code for what does not exist."""


@dataclass(frozen=True)
class Given:
    """Where it is: `LBG_TEST_HOST=host[:port]`, and what differs from the vendor's container."""

    host: str
    port: int
    semp: str
    vpn: str
    administrator: tuple[str, str]

    @classmethod
    def from_environment(cls) -> "Given":
        host, _, port = os.environ["LBG_TEST_HOST"].partition(":")
        username, _, password = os.environ.get("LBG_TEST_ADMIN", "admin:admin").partition(":")
        return cls(
            host,
            int(port or 55555),
            os.environ.get("LBG_TEST_SEMP", f"http://{host}:8080"),
            os.environ.get("LBG_TEST_VPN", "default"),
            (username, password),
        )


class Administration:
    """The administrator's side; forgets in the end what it made."""

    def __init__(self, given: Given) -> None:
        self._http = httpx.Client(
            base_url=f"{given.semp}/SEMP/v2/config/msgVpns/{quote(given.vpn, safe='')}", auth=given.administrator
        )
        self._made: list[str] = []
        self._before: dict[str, Any] = self._ask("GET", "")["data"]

    def begin(self) -> None:
        """Let the one user in, and nobody with another password."""
        self._ask("PATCH", "", authenticationBasicType="internal")
        allowing = {f"{what}DefaultAction": "allow" for what in ("clientConnect", "publishTopic", "subscribeTopic")}
        self._make("aclProfiles", "aclProfileName", ACL_PROFILE, **allowing)
        # Members make it themselves, so it would be there for the next test, and on the broker for good.
        self._forget_now_and_in_the_end(f"/queues/{MADE_BY_MEMBERS}")
        user = {"enabled": True, "password": PASSWORD, "aclProfileName": ACL_PROFILE}
        self._make("clientUsernames", "clientUsername", USERNAME, **user)

    def let_subscribe(self, *, is_allowed: bool) -> None:
        action = "allow" if is_allowed else "disallow"
        self._ask("PATCH", f"/aclProfiles/{ACL_PROFILE}", subscribeTopicDefaultAction=action)

    def create_queue(
        self, queue: str, subscriptions: Sequence[str] = (), *, settings: QueueSettings | None = None
    ) -> None:
        known = self._ask("GET", "/queues?count=1")["data"]
        row = row_of(settings or QueueSettings())
        # A broker of another version need not know all of it; what it does not show it does not take.
        offered = known[0] if known else row_of(QueueSettings())
        self._make("queues", "queueName", queue, **{name: row[name] for name in row if name in offered})
        for topic in subscriptions:
            self._ask("POST", f"/queues/{quote(queue, safe='')}/subscriptions", subscriptionTopic=topic)

    def delete_queue(self, queue: str) -> None:
        self._ask("DELETE", f"/queues/{quote(queue, safe='')}")

    def end(self) -> None:
        for path in reversed(self._made):
            self._forget(path)
        self._ask("PATCH", "", authenticationBasicType=self._before["authenticationBasicType"])
        self._http.close()

    def _make(self, collection: str, key: str, name: str, **attributes: Any) -> None:
        self._forget_now_and_in_the_end(f"/{collection}/{quote(name, safe='')}")
        self._ask("POST", f"/{collection}", **{key: name}, **attributes)

    def _forget_now_and_in_the_end(self, path: str) -> None:
        self._forget(path)  # A run before this one may not have come to its end.
        self._made.append(path)

    def _forget(self, path: str) -> None:
        answer = self._http.delete(path).json()
        if answer["meta"]["responseCode"] != 200 and answer["meta"]["error"]["code"] != ALREADY_GONE:
            raise AssertionError(f"DELETE {path}: {answer['meta']['error']['description']}")

    def _ask(self, method: str, path: str, **body: Any) -> Any:
        answer = self._http.request(method, path, json=body or None).json()
        if answer["meta"]["responseCode"] != 200:
            raise AssertionError(f"{method} {path}: {answer['meta']['error']['description']}")
        return answer


class Proxy:
    """One client's way to the broker, which can be cut and closed."""

    def __init__(self, given: Given) -> None:
        self._given = given
        self._server: asyncio.Server | None = None
        self._relays: dict[asyncio.StreamWriter, asyncio.Task[object]] = {}
        self.port = 0

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()
        # The server does not wait for them, and what they leave open would fail a later test.
        relays = list(self._relays.values())
        for relay in relays:
            relay.cancel()
        await asyncio.gather(*relays, return_exceptions=True)

    def cut(self) -> int:
        for writer in self._relays:
            writer.transport.abort()
        return len(self._relays)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._relays[writer] = task
        writers = [writer]
        try:
            there = await asyncio.open_connection(self._given.host, self._given.port)
            writers.append(there[1])
            async with asyncio.TaskGroup() as group:
                group.create_task(_copy(reader, there[1]))
                group.create_task(_copy(there[0], writer))
        finally:
            del self._relays[writer]
            for each in writers:
                each.transport.abort()
            for each in writers:
                with suppress(ConnectionError):
                    await each.wait_closed()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()


class GivenBrokerHarness:
    """See `TransportHarness`."""

    def __init__(self, given: Given) -> None:
        self.broker = Administration(given)
        self._given = given
        self._proxies: dict[str, Proxy] = {}
        self._transports: list[SolaceTransport] = []
        self._spare: list[Proxy] = []

    async def begin(self) -> None:
        self.broker.begin()
        # Opened beforehand: a transport is made without awaiting.
        self._spare = [Proxy(self._given) for _ in range(6)]
        for proxy in self._spare:
            await proxy.open()

    def make_transport(self, client_name: str, *, password: str = PASSWORD) -> SolaceTransport:
        proxy = self._proxies.setdefault(client_name, self._spare[0])
        if proxy in self._spare:
            self._spare.remove(proxy)
        settings = SolaceSettings(
            hosts=(f"tcp://127.0.0.1:{proxy.port}",),
            vpn=self._given.vpn,
            client_name=client_name,
            username=USERNAME,
            password=password,
            connect_timeout_ms=5_000,
            reconnect_wait_ms=50,
        )
        transport = SolaceTransport(settings)
        self._transports.append(transport)
        return transport

    def let_subscribe(self, *, is_allowed: bool) -> None:
        self.broker.let_subscribe(is_allowed=is_allowed)

    def cut(self, client_name: str) -> None:
        assert self._proxies[client_name].cut() == 1

    async def begin_outage(self) -> None:
        for proxy in (*self._proxies.values(), *self._spare):
            await proxy.close()

    async def end_outage(self) -> None:
        for proxy in (*self._proxies.values(), *self._spare):
            await proxy.open()

    async def end(self) -> None:
        for transport in self._transports:
            await transport.close()
        for proxy in (*self._proxies.values(), *self._spare):
            await proxy.close()
        self.broker.end()
