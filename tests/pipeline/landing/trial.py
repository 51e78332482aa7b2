"""Landers and a publisher on a memory broker."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from lbg_runtime.config.load import parse_settings
from lbg_runtime.config.settings import Settings
from lbg_runtime.model.ids import QueueName
from lbg_runtime.model.message import (
    KEY_SEQUENCE_PROPERTY,
    PARTITION_KEY_PROPERTY,
    PUBLISHER_PROPERTY,
    Message,
)
from lbg_runtime.pipeline.landing.lander import LandingOptions, lander_app
from lbg_runtime.pipeline.landing.log import LandingLog
from lbg_runtime.runtime.app import App
from lbg_runtime.transport.memory.broker import MemoryBroker
from lbg_runtime.transport.memory.transport import MemoryTransport
from tests import members

QUEUES = 2
PATIENCE_S = 300


def settings_of(**sections: object) -> Settings:
    group = {
        "name": "orders",
        "hash_prefix": "h",
        "hash_count": 4,
        "queue_count": QUEUES,
        "provision": "create_missing",
    }
    return parse_settings({"group": group, **sections}, "test", {})


class Trial:
    """Landers and a publisher on one broker."""

    def __init__(self, root: Path) -> None:
        self.broker = MemoryBroker()
        self.options = LandingOptions(root, is_synced=False)
        self.numbers: Counter[str] = Counter()
        self.sessions: dict[str, MemoryTransport] = {}
        self._publisher: MemoryTransport | None = None

    def lander(self, name: str, **sections: object) -> App:
        session = self.sessions[name] = MemoryTransport(self.broker, name)
        app, _ = lander_app(settings_of(**sections), self.options, member_id=name, session=session)
        return app

    @asynccontextmanager
    async def running(self, *apps: App) -> AsyncIterator[None]:
        async with members.running(*apps):
            await self.until(lambda: len(self.fed()) == QUEUES)
            yield

    async def publish(self, count: int, keys: int = 5) -> None:
        if self._publisher is None:
            self._publisher = MemoryTransport(self.broker, "publisher")
            await self._publisher.open()
        for number in range(count):
            key = f"k{number % keys}"
            self.numbers[key] += 1
            stamps = {PARTITION_KEY_PROPERTY: key, PUBLISHER_PROPERTY: "p", KEY_SEQUENCE_PROPERTY: self.numbers[key]}
            topic = f"h/{number % keys % 4}/orders/new"
            await self._publisher.send(Message(topic, f"{key} {self.numbers[key]}".encode(), stamps, sent_at_ms=number))

    async def until(self, reached: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not reached():  # noqa: ASYNC110 - the disk tells nobody
                await asyncio.sleep(0.05)

    def fed(self) -> list[str]:
        engine = self.broker.engine
        return [
            queue
            for queue in engine.queue_names("default")
            if any(flow.active for flow in engine.queue_flows("default", queue))
        ]

    def depth(self) -> int:
        """Messages that are not settled."""
        names = [QueueName(f"orders/{index}") for index in range(QUEUES)]
        return sum(self.broker.engine.queue_depth("default", name) for name in names)

    async def all_landed(self) -> None:
        await self.until(lambda: self.depth() == 0)

    async def land(self, count: int) -> None:
        """Publish so many messages, and wait until all are landed."""
        await self.publish(count)
        await self.all_landed()

    def landed(self) -> dict[str, list[int]]:
        """Numbers by key, as a reader gets them."""
        log = LandingLog(self.options.root)
        found: dict[str, list[int]] = defaultdict(list)
        for queue in log.queues():
            end = {name: extent.rows for name, extent in log.lanes(queue).items()}
            for batch in log.read_queue(queue, {}, end):
                for row in batch.to_pylist():
                    assert row["payload"].decode() == f"{row['key']} {row['seq']}"
                    assert (row["queue"], row["topic"]) == (queue, f"h/{row['shard']}/orders/new")
                    found[row["key"]].append(row["seq"])
        return dict(found)

    def rows(self) -> int:
        """All that landed, copies counted."""
        return sum(extent.rows for extent in LandingLog(self.options.root).lanes().values())

    def assert_all_once_in_order(self) -> None:
        assert self.landed() == {key: list(range(1, count + 1)) for key, count in self.numbers.items()}
