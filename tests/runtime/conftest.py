"""What the runtime's tests build from: settings, a dispatcher with a list of ends, members on a memory broker."""

import asyncio
import contextlib
import itertools
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from lbg_runtime.config.load import parse_settings
from lbg_runtime.config.settings import Settings
from lbg_runtime.model.hashing import HashFunction, shard_of
from lbg_runtime.model.ids import DeliveryId, Epoch, QueueName
from lbg_runtime.model.message import (
    KEY_SEQUENCE_PROPERTY,
    PARTITION_KEY_PROPERTY,
    PUBLISHER_PROPERTY,
    Delivery,
    Message,
)
from lbg_runtime.runtime.app import App
from lbg_runtime.runtime.dispatch.dispatcher import Dispatcher
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.runtime.runners.handling import Handling
from lbg_runtime.runtime.supervisor import StopReport
from lbg_runtime.transport.memory.broker import MemoryBroker
from lbg_runtime.transport.memory.transport import MemoryTransport
from tests import members
from tests.chance import seed_members
from tests.runtime.scripted import Trial

QUEUE = QueueName("orders/0")


def make_settings(**sections: dict[str, object]) -> Settings:
    """Settings of a group of 4 queues and 8 shards, with the given sections laid over."""
    document: dict[str, dict[str, object]] = {
        "group": {"name": "orders", "hash_prefix": "h", "hash_count": 8, "queue_count": 4},
        "membership": {"mode": "static", "index": 0, "count": 1},
        "rebind": {"mode": "cycle"},
    }
    return parse_settings(_overlaid(document, sections), "test", {})


def _overlaid(document, sections):
    """The document with these sections laid over it, setting by setting."""
    return {name: {**document.get(name, {}), **sections.get(name, {})} for name in {**document, **sections}}


def make_delivery(delivery_id: int, key: str = "a", *, topic: str = "h/0/orders/new", epoch: int = 1) -> Delivery:
    """A delivery of queue 0 with a key, as our publisher stamps it."""
    message = Message(topic, str(delivery_id).encode(), {PARTITION_KEY_PROPERTY: key})
    return Delivery(QUEUE, Epoch(epoch), DeliveryId(delivery_id), message, redelivered=False, received_at_ns=0)


@dataclass
class DispatcherRig:
    """A dispatcher whose ends are collected in `ends`."""

    dispatcher: Dispatcher
    ends: list[Handling] = field(default_factory=list)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.dispatcher.attach(QUEUE, self._take)

    def _take(self, handling: Handling) -> None:
        self.ends.append(handling)
        self._changed.set()

    def outcomes(self) -> dict[int, object]:
        """Outcome by delivery id, of what has ended."""
        return {handling.delivery.delivery_id: handling.outcome for handling in self.ends}

    async def until_ended(self, count: int, within_s: float = 3_600) -> None:
        """Wait for this many ends."""
        async with asyncio.timeout(within_s):
            while len(self.ends) < count:
                self._changed.clear()
                await self._changed.wait()

    async def handle(self, *deliveries: Delivery) -> None:
        """Dispatch these, the first ones, and wait until they have ended."""
        for each in deliveries:
            self.dispatcher.dispatch(each)
        await self.until_ended(len(deliveries))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """With the runners at work; they are cancelled at the end, and what ended them before is raised."""
        task = asyncio.ensure_future(self.dispatcher.run())
        await asyncio.sleep(0)
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


@pytest.fixture(scope="session")
def rig() -> Callable[..., DispatcherRig]:
    """Makes a dispatcher for one handler function of `orders/>` with these options, or for given `Handlers`."""

    def make(
        function: object = None,
        *,
        handlers: Handlers | None = None,
        error_queue: object = None,
        options: dict[str, object] | None = None,
        seed: int = 1,
        **sections: dict[str, object],
    ) -> DispatcherRig:
        if handlers is None:
            handlers = Handlers()
            handlers.handler("orders/>", **(options or {}))(function)
        settings = make_settings(**sections)
        return DispatcherRig(
            Dispatcher(
                handlers,
                settings.group.shape(),
                settings.group.key,
                settings.dispatch,
                settings.failure,
                random.Random(seed),
                error_queue,
            )
        )

    return make


@pytest.fixture(scope="session")
def flow_trial(rig: Callable[..., DispatcherRig], settings: Callable[..., Settings]) -> Callable[..., Trial]:
    """Makes a flow runner for one handler function; places and sections as `Trial` has them."""

    def make(handle: object, **arguments: object) -> Trial:
        return Trial(rig, settings, handle, **arguments)

    return make


@pytest.fixture(scope="session")
def delivery() -> Callable[..., Delivery]:
    """Makes a delivery: number, key."""
    return make_delivery


@pytest.fixture(scope="session")
def settings() -> Callable[..., Settings]:
    """Makes settings: sections by name."""
    return make_settings


class MemberTrial:
    """Members and a publisher on one memory broker; every message says who handled it, and when."""

    def __init__(self, tmp_path: Path) -> None:
        self.broker = MemoryBroker()
        self.journals = tmp_path / "journals"
        self.handled: list[tuple[str, str, int]] = []
        """Member, key and sequence number of every handling that came to its end."""
        self.sessions: dict[str, MemoryTransport] = {}
        self._clients = itertools.count()
        self._publisher: MemoryTransport | None = None
        self._sequence: Counter[str] = Counter()
        self._changed = asyncio.Event()

    def member(
        self,
        index: int = 0,
        count: int = 1,
        *,
        work: Callable[[Message], Awaitable[None]] | None = None,
        hooks: Handlers | None = None,
        **sections,
    ) -> App:
        """A counted member whose handler does `work`, else returns at once; it has the `hooks` of these as well."""
        place = {"member_index": index, "member_count": count}
        return self._member(f"member-{index}", work, hooks, sections, place)

    def discovered(
        self,
        name: str,
        *,
        work: Callable[[Message], Awaitable[None]] | None = None,
        hooks: Handlers | None = None,
        **sections,
    ) -> App:
        """The same in a group whose members find each other; `name` is its id."""
        cooperative = {
            "membership": {"mode": "discovered", "id": name, "index": None, "count": None},
            "rebind": {"mode": "cooperative"},
        }
        return self._member(name, work, hooks, _overlaid(cooperative, sections), {})

    def _member(self, name, work, hooks, sections, place) -> App:
        handlers = Handlers()
        if hooks is not None:
            handlers.include(hooks)

        @handlers.handler("orders/>")
        async def handle(message: Message) -> None:
            if work is not None:
                await work(message)
            self.handled.append((name, message.key, message.key_sequence))
            self._changed.set()

        defaults = {"group": {"provision": "create_missing"}, "ops": {"journal": {"path": str(self.journals)}}}
        settings = make_settings(**_overlaid(defaults, sections))
        self.sessions[name] = MemoryTransport(self.broker, f"{name}-{next(self._clients)}")
        return App(handlers, settings, session=self.sessions[name], **place)

    running = staticmethod(members.running)

    @asynccontextmanager
    async def at_work(self, *apps: App) -> AsyncIterator[list[asyncio.Task[StopReport]]]:
        """As `running`, from when the group's four queues are all fed."""
        async with self.running(*apps) as tasks:
            await self.until(lambda: len(self.active()) == 4)
            yield tasks

    async def publish(self, count: int, keys: int = 4) -> None:
        """Publish so many messages over so many keys, as our publisher stamps them."""
        if self._publisher is None:
            self._publisher = MemoryTransport(self.broker, "publisher")
            await self._publisher.open()
        for number in range(count):
            key = f"k{number % keys}"
            self._sequence[key] += 1
            shard = number % keys % 8
            stamps = {PARTITION_KEY_PROPERTY: key, PUBLISHER_PROPERTY: "p", KEY_SEQUENCE_PROPERTY: self._sequence[key]}
            await self._publisher.send(Message(f"h/{shard}/orders/new", b"x", stamps))

    async def publish_key(self, key: str, count: int) -> int:
        """Publish so many messages of one key in the shard that it hashes to, numbered from 1; return the shard."""
        publisher, shard = MemoryTransport(self.broker, f"publisher-{key}"), shard_of(HashFunction.CRC32, key, 8)
        await publisher.open()
        for number in range(1, count + 1):
            stamps = {PARTITION_KEY_PROPERTY: key, PUBLISHER_PROPERTY: "p", KEY_SEQUENCE_PROPERTY: number}
            await publisher.send(Message(f"h/{shard}/orders/new", b"x", stamps))
        await publisher.close()
        return shard

    async def feed(self, count: int) -> None:
        """Publish when every queue is fed, and wait until nothing is left in any."""
        await self.until_fed()
        await self.publish(count)
        await self.until(lambda: self.group_depth() == 0)

    async def until(self, reached: Callable[[], bool], within_s: float = 600) -> None:
        """Wait until this is so; looked at whenever something was handled, and once a second."""
        async with asyncio.timeout(within_s):
            while not reached():
                self._changed.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), 1)

    def sequences(self) -> dict[str, list[int]]:
        """Sequence numbers in the order of handling, by key."""
        found: dict[str, list[int]] = {}
        for _, key, sequence in self.handled:
            found.setdefault(key, []).append(sequence)
        return found

    def depths(self) -> list[int]:
        """Messages left in each queue."""
        return [self.broker.engine.queue_depth("default", QueueName(f"orders/{index}")) for index in range(4)]

    def group_depth(self) -> int:
        """Messages left in all queues of the group."""
        return sum(self.depths())

    def fed(self) -> list[str]:
        """Names of the queues that the broker feeds to somebody."""
        engine = self.broker.engine
        queues = engine.queue_names("default")
        return [queue for queue in queues if any(flow.active for flow in engine.queue_flows("default", queue))]

    async def until_fed(self) -> None:
        """Wait until each of the group's four queues is fed; parking queues do not count."""
        await self.until(lambda: sum(queue.startswith("orders/") for queue in self.fed()) == 4)

    def active(self) -> dict[int, str]:
        """By queue, the member that the broker feeds."""
        found = {}
        for queue in self.broker.engine.queue_names("default"):
            for flow in self.broker.engine.queue_flows("default", queue):
                if flow.active:
                    found[int(queue.removeprefix("orders/"))] = flow.client_name.rpartition("-")[0]
        return found

    def active_clients(self) -> set[str]:
        """Names of the clients that the broker feeds."""
        engine = self.broker.engine
        flows = [flow for queue in engine.queue_names("default") for flow in engine.queue_flows("default", queue)]
        return {flow.client_name for flow in flows if flow.active}

    def records(self) -> list[dict[str, object]]:
        """All journal records, in the order of the files' names."""
        return [json.loads(line) for path in sorted(self.journals.iterdir()) for line in path.read_text().splitlines()]


@pytest.fixture
def make_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], MemberTrial]:
    """Makes a fresh broker with nobody on it, for a test that needs several."""
    seed_members(monkeypatch)
    return lambda: MemberTrial(tmp_path)


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MemberTrial:
    """A fresh broker and nobody on it."""
    seed_members(monkeypatch)
    return MemberTrial(tmp_path)


@pytest.fixture(autouse=True)
def _log_is_kept() -> Iterator[None]:
    """Rendering tracebacks of failing handlers for nobody takes longer than most tests."""
    with capture_logs():
        yield
