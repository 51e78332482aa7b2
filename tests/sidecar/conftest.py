"""Members with a sidecar on a memory broker, and applications that do as a test says; all in virtual time."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from lbg_runtime.config.load import parse_settings
from lbg_runtime.model.ids import QueueName
from lbg_runtime.model.message import Message
from lbg_runtime.sidecar.application import ApplicationUnreachable, MaySend, Response, always
from lbg_runtime.sidecar.sidecar import sidecar_app
from lbg_runtime.transport.memory.broker import MemoryBroker
from lbg_runtime.transport.memory.transport import MemoryTransport
from tests import members
from tests.chance import seed_members
from tests.sidecar.events import stamps

SUCCESS = Response(200, "application/json", b'{"status": "SUCCESS"}')
RETRY = Response(200, "application/json", b'{"status": "RETRY"}')
DROP = Response(200, "application/json", b'{"status": "DROP"}')


@dataclass
class Posted:
    """One request that reached the application."""

    route: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def key(self) -> str:
        return self.headers["lbg-key"]

    @property
    def number(self) -> int:
        return int(self.headers["lbg-fencing-token"])

    @property
    def attempt(self) -> int:
        return int(self.headers["lbg-attempt"])


@dataclass
class ScriptedApplication:
    """Does with each request what `work` does with it; `is_up` says whether it listens."""

    work: Callable[[Posted], Awaitable[Response]]
    asked: object = field(default_factory=lambda: [{"pubsubname": "pubsub", "topic": "orders/>", "route": "/orders"}])
    """What it answers to `GET /dapr/subscribe`; None for 404."""
    is_up: bool = True
    posted: list[Posted] = field(default_factory=list)
    taken: list[Posted] = field(default_factory=list)
    """Those that were answered with success."""
    overlaps: int = 0
    probes: int = 0
    asks: int = 0
    _inside: set[str] = field(default_factory=set)

    async def post(self, route: str, headers: Mapping[str, str], body: bytes, may_send: MaySend = always) -> Response:
        if not self.is_up:
            raise ApplicationUnreachable("nobody listens")
        posted = Posted(route, dict(headers), body)
        self.posted.append(posted)
        key = headers.get("lbg-key", "")
        self.overlaps += bool(key) and key in self._inside
        self._inside.add(key)
        try:
            response = await self.work(posted)
        finally:
            self._inside.discard(key)
        if response == SUCCESS:
            self.taken.append(posted)
        return response

    async def probe(self) -> None:
        self.probes += 1
        if not self.is_up:
            raise ApplicationUnreachable("nobody listens")

    async def subscriptions(self) -> bytes | None:
        self.asks += 1
        return None if self.asked is None else json.dumps(self.asked).encode()

    async def close(self) -> None:
        raise AssertionError("it is not the sidecar's to close")

    def numbers(self) -> dict[str, list[int]]:
        """What was taken, by key, in order."""
        found: dict[str, list[int]] = {}
        for posted in self.taken:
            found.setdefault(posted.key, []).append(posted.number)
        return found


class SidecarTrial:
    """One member and a publisher on one memory broker."""

    def __init__(self) -> None:
        self.broker = MemoryBroker()
        self._publisher: MemoryTransport | None = None
        self._numbers: Counter[str] = Counter()
        self._clients = 0

    def app(self, application: ScriptedApplication | None = None, **sections):
        """The member; without an application it is one that pulls."""
        given = {"listen": "off", "application": "http://127.0.0.1:9"} if application else {}
        document = {
            "group": {
                "name": "orders",
                "hash_prefix": "h",
                "hash_count": 8,
                "queue_count": 2,
                "provision": "create_missing",
            },
            "membership": {"mode": "static", "index": 0, "count": 1},
            "rebind": {"mode": "cycle"},
            "failure": {"timeout": "10s"},
            **sections,
            "sidecar": {**given, **sections.get("sidecar", {})},
        }
        self._clients += 1
        session = MemoryTransport(self.broker, f"member-{self._clients}")
        return sidecar_app(parse_settings(document, "test", {}), session=session, application=application)

    @asynccontextmanager
    async def running(self, app) -> AsyncIterator[asyncio.Task]:
        """With the member at work; it is stopped at the end."""
        async with members.running(app) as (task,):
            yield task

    @asynccontextmanager
    async def at_work(self, app) -> AsyncIterator[asyncio.Task]:
        """As `running`, from when both queues are fed."""
        async with self.running(app) as task:
            await self.until(lambda: self.owners() == 2)
            yield task

    async def publish(self, count: int, keys: int = 4, payload: bytes = b"{}", topic: str = "orders/new") -> None:
        """Publish so many messages over so many keys, as the hashed publisher stamps them."""
        if self._publisher is None:
            self._publisher = MemoryTransport(self.broker, "publisher")
            await self._publisher.open()
        for number in range(count):
            key = f"k{number % keys}"
            self._numbers[key] += 1
            message = Message(f"h/{number % keys % 8}/{topic}", payload, stamps(key, self._numbers[key]), f"m{number}")
            await self._publisher.send(message)

    async def publish_settled(self, *given: int, **options: object) -> None:
        """As `publish`, until nothing is left on the queues."""
        await self.publish(*given, **options)
        await self.until(lambda: sum(self.depths()) == 0)

    async def until(self, reached: Callable[[], bool], within_s: float = 3_600) -> None:
        """Wait until this is so; virtual time passes in steps of 10 ms."""
        async with asyncio.timeout(within_s):
            while not reached():  # noqa: ASYNC110 - anything may be looked at
                await asyncio.sleep(0.01)

    def depths(self) -> list[int]:
        """Messages left in each queue."""
        return [self.broker.engine.queue_depth("default", QueueName(f"orders/{index}")) for index in range(2)]

    def owners(self) -> int:
        """Queues that are fed to somebody."""
        engine = self.broker.engine
        flows = [flow for queue in engine.queue_names("default") for flow in engine.queue_flows("default", queue)]
        return sum(flow.active for flow in flows)

    def owned(self) -> dict[str, int]:
        """By member, how many queues are fed to it."""
        engine = self.broker.engine
        flows = [flow for queue in engine.queue_names("default") for flow in engine.queue_flows("default", queue)]
        return dict(Counter(flow.client_name for flow in flows if flow.active))


@pytest.fixture
def trial(monkeypatch: pytest.MonkeyPatch) -> SidecarTrial:
    """A fresh broker and nobody on it."""
    seed_members(monkeypatch)
    return SidecarTrial()
