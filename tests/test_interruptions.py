"""What programs and commands await beside a member may be interrupted at any moment: it leaves nothing behind.

A few steps of each story are tried here, others for each way; `python -m tests.test_interruptions > /dev/null` tries
them all, which takes some minutes.

More than 400 lines, as each thing that is awaited has a story of its own.
"""

import asyncio
import itertools
import random
import socket
import sys
import tempfile
from collections import defaultdict
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path
from typing import ClassVar

import httpx
import pytest
import structlog
from structlog.testing import capture_logs

from lbg_runtime import App, Handlers, open_publisher
from lbg_runtime.admin.group import GroupAdmin
from lbg_runtime.broker.http_server import HttpServer
from lbg_runtime.broker.server.server import BrokerServer
from lbg_runtime.config.listen_address import ListenAddress
from lbg_runtime.config.load import parse_settings
from lbg_runtime.config.sidecar_settings import SidecarSettings
from lbg_runtime.core.parking.records import parking_queue
from lbg_runtime.model.errors import GroupInUse, PublisherClosed, PublishFailed, TransportError
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.hashing import HashFunction
from lbg_runtime.model.ids import GroupName
from lbg_runtime.publisher.hashed import HashedPublisher
from lbg_runtime.publisher.ledger import open_ledger
from lbg_runtime.publisher.load import LoadPlan, run_load
from lbg_runtime.runtime.observer import Observer, observing
from lbg_runtime.runtime.parking.view import ParkedLane, ParkedView, viewing_parked
from lbg_runtime.runtime.provisioning import provision_queues
from lbg_runtime.sidecar.application import HttpApplication
from lbg_runtime.status.connections import BoundedConnection
from lbg_runtime.status.server import StatusServer
from lbg_runtime.status.serving import LoopServer, QuietServer
from lbg_runtime.testing import BrokerOnPort, running
from lbg_runtime.testing.group_broker import GroupBroker
from lbg_runtime.testing.moments import Moments
from lbg_runtime.transport.memory.transport import MemoryTransport
from tests.addresses import OWN_HOST
from tests.admin.conftest import Broker
from tests.admin.group_steps import SPEC, Distant, create, events, everything, publish
from tests.guard.bench import SqliteBench, message
from tests.interruptions import WAYS, Story, disturbed, faults, try_all
from tests.listening import listening
from tests.patience import PATIENCE_S
from tests.runtime.conftest import make_settings

# Each makes its own loops.
pytestmark = pytest.mark.real_time

LATENCY_S = 0.003


class DistantTransport(MemoryTransport):
    """Some way from its broker, so that who waits for an answer can be interrupted."""

    async def has_queue(self, queue):
        await asyncio.sleep(LATENCY_S)
        return await super().has_queue(queue)

    async def provision(self, queue, subscriptions):
        await asyncio.sleep(LATENCY_S)
        await super().provision(queue, subscriptions)
        await asyncio.sleep(LATENCY_S)

    async def subscribe(self, subscription, sink):
        await asyncio.sleep(LATENCY_S)
        await super().subscribe(subscription, sink)

    def send(self, message):
        loop = asyncio.get_running_loop()
        answer, sent = loop.create_future(), super().send(message)

        def pass_on():
            if not answer.done():
                answer.set_exception(error) if (error := sent.exception()) else answer.set_result(None)

        sent.add_done_callback(lambda _: self.timers.append(loop.call_later(LATENCY_S, pass_on)))
        return answer

    async def open(self):
        self.timers = []
        await super().open()

    async def close(self):
        await super().close()
        # In which it is told what is not answered any more.
        await asyncio.sleep(0)
        for each in self.timers:
            each.cancel()


class OnMemory(Story):
    """With a session on a memory broker."""

    SECTIONS: ClassVar = {}
    MAY_RAISE = (TransportError,)

    async def begin(self):
        self.broker = GroupBroker(Moments(), lambda: None)
        self.session = DistantTransport(self.broker, "session")
        await self.session.open()
        self.settings = make_settings(
            group={"provision": "create_missing", "queue_count": 3, "hash_count": 6}, **self.SECTIONS
        )

    def disturb(self):
        self.session.drop_connection(0.02)

    async def look(self):
        await self.session.close()
        engine = self.broker.engine
        for queue in engine.queue_names("default"):
            self.found += [f"flow left: {each}" for each in engine.queue_flows("default", queue)]


class Publishing(OnMemory):
    """Several tasks that share little room, and a ledger."""

    async def begin(self):
        await super().begin()
        self.broker.create_queue("all", ["h/>"])
        shape, function = GroupShape(GroupName("orders"), "h", 6, 3), HashFunction.CRC32
        ledger = open_ledger(self.folder, shape, function, publisher_id="p")
        self.publisher = HashedPublisher(
            self.session, shape, function, publisher_id="p", ledger=ledger, max_unconfirmed=2
        )

    async def act(self):
        async with self.publisher, asyncio.TaskGroup() as tasks:
            for number in range(3):
                tasks.create_task(self.publish(str(number % 2)))

    async def publish(self, key):
        for _ in range(3):
            await self.publisher.publish("new", b"x", key=key)

    async def look(self):
        counts, numbers = self.publisher.counts, defaultdict(list)
        if counts.unconfirmed:
            self.found.append(f"under way: {counts}")
        for each in self.broker.left_on("all"):
            numbers[each.key].append(each.key_sequence)
        self.found += [f"{key}: {found}" for key, found in numbers.items() if found != [*range(1, len(found) + 1)]]
        if sum(map(len, numbers.values())) < counts.confirmed:
            self.found.append("confirmed and lost")
        with pytest.raises(PublisherClosed):
            await self.publisher.submit("new", b"x", key="late")
        if await self.publisher.close() != counts:
            self.found.append("a second close changes something")
        (ledger,) = self.folder.iterdir()
        if '"kind":"close"' not in ledger.read_text().splitlines()[-1]:
            self.found.append("the ledger has no end")
        await super().look()

    MAY_RAISE = (PublisherClosed, PublishFailed)

    def disturb(self):
        self.closing = asyncio.ensure_future(self.publisher.close(timeout_ms=1))


class PublishingThroughAnOutage(Publishing):
    MAY_RAISE = ()

    def disturb(self):
        self.session.drop_connection(0.02)


class Loading(Publishing):
    """Of a number of messages, or for a time."""

    PLANS = (LoadPlan("new", ("1", "2"), count=8), LoadPlan("new", ("1", "2"), duration_s=0.015))

    async def act(self):
        async with self.publisher:
            for plan in self.PLANS:
                await run_load(self.publisher, plan, random.Random(1))


class Observing(OnMemory):
    SECTIONS: ClassVar = {
        "membership": {"mode": "discovered", "index": None, "count": None},
        "rebind": {"mode": "cooperative"},
    }

    async def act(self):
        self.observer = Observer(self.session, self.settings, "session")
        await self.observer.look_at_group(0.05)
        await self.observer.look_for_key("key", 0.05)
        await self.observer.begin_to_follow(lambda _: None)
        try:
            async with asyncio.timeout(0.1):
                await self.observer.keep_following(lambda _: None)
        except TimeoutError:
            pass

    async def look(self):
        if self.observer._questions:
            self.found.append("a question is still open")
        await super().look()


class Parking(OnMemory):
    async def begin(self):
        await super().begin()
        for number in range(3):
            self.broker.create_queue(parking_queue(self.settings.group.name, number))

    async def act(self):
        view, queue = ParkedView(self.session, self.settings), parking_queue(self.settings.group.name, 0)
        await view.lanes()
        await view.unpark([ParkedLane("k:a", queue, (), is_replaying=False, unread=())])
        await view.drop([ParkedLane("k:a", queue, (), is_replaying=False, unread=())])


class Provisioning(OnMemory):
    MAY_RAISE = ()

    async def act(self):
        await provision_queues(self.session, self.settings.group)

    async def look(self):
        # Again, and to the end; meanwhile a connection that was lost comes back.
        await provision_queues(self.session, self.settings.group)
        made = set(self.broker.engine.queue_names("default"))
        if made != set(self.settings.group.shape().queue_names()):
            self.found.append(f"made: {made}")
        await super().look()


class Administration(Story):
    """Of the group's administrators, one is interrupted, and either leaves no trace or says what he leaves."""

    IS_TOLD_ANYWAY = ""
    """The event that is told whether something is left or not."""

    async def begin(self):
        self.broker = Broker()
        await self.prepare()
        self.before = await everything(self.broker.client())
        self.told = []
        self.client = self.broker.client()
        self.client._http._transport = Distant(self.broker.transport)

    async def prepare(self):
        pass

    async def act(self):
        with capture_logs() as self.told:
            async with self.client:
                await self.administer(GroupAdmin(self.client, "default"))

    async def administer(self, admin):
        raise NotImplementedError

    async def look(self):
        if not self.client._http.is_closed:
            self.found.append("the client is open")
        told = [each for each in events(self.told) if each != self.IS_TOLD_ANYWAY]
        is_left = await everything(self.broker.client()) != self.before
        if is_left and not told and not await self.is_done():
            self.found.append("something is left, and nothing is told")

    async def is_done(self):
        return False


class Creating(Administration):
    IS_TOLD_ANYWAY = "group_creation_failed"

    async def administer(self, admin):
        await admin.create(await admin.plan(SPEC, is_new=True))

    async def is_done(self):
        return (await GroupAdmin(self.broker.client(), "default").plan(SPEC)).is_clean


class Applying(Creating):
    IS_TOLD_ANYWAY = ""

    async def administer(self, admin):
        await admin.apply(await admin.plan(SPEC))


class Deleting(Administration):
    async def prepare(self):
        await create(self.broker.client())

    async def administer(self, admin):
        await admin.delete(SPEC)

    async def is_done(self):
        return not await GroupAdmin(self.broker.client(), "default").stored_groups()


class DeletingInVain(Deleting):
    """There is a message in it."""

    async def prepare(self):
        await super().prepare()
        publish(self.broker)

    async def administer(self, admin):
        with pytest.raises(GroupInUse):
            await admin.delete(SPEC)


class Kit(Story):
    """A test with a group."""

    async def begin(self):
        self.group, self.log = None, structlog.get_config()

    async def act(self):
        handlers = Handlers()
        handlers.handler(">")(self.handle)
        async with running(handlers, members=2) as self.group:
            await self.group.publish("orders/new", "1", "2", key="k")
            await self.group.settled()

    async def handle(self, _):
        try:
            await asyncio.sleep(0.01)
        finally:
            await asyncio.sleep(0.01)

    async def look(self):
        if structlog.get_config() != self.log:
            self.found.append("the log is kept quiet")
        if self.group is not None:
            self.found += [f"left: {each.member}" for each in self.group.lives if not each._task.done()]
            if self.group._publisher.counts.unconfirmed:
                self.found.append("messages are under way")


async def answer(scope, receive, send):
    """An application."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"x"})


class Real(Story):
    IS_VIRTUAL = False


class ServingHttp(Real):
    async def act(self):
        async with HttpServer("test", answer, "127.0.0.1", 0):
            await asyncio.sleep(0)


class ServingOnTheLoop(Real):
    async def act(self):
        server = QuietServer(answer, BoundedConnection, last_answers_s=1)
        async with LoopServer(server, ListenAddress("127.0.0.1", 0), "test"):
            await asyncio.sleep(0)


class ServingStatus(Real):
    async def act(self):
        async with StatusServer(ListenAddress("127.0.0.1", 0), None) as server, httpx.AsyncClient() as client:
            await client.get(f"http://{server.address}/live")


class Guarding(Real):
    """An effect that has begun may be written although nobody waits for it, but none is written twice."""

    EFFECTS = (("a", 1), ("b", 1), ("a", 2))

    async def begin(self):
        self.bench = SqliteBench(self.folder / "guarded.db")

    async def act(self):
        try:
            await asyncio.gather(*(self.bench.apply(message(number, key)) for key, number in self.EFFECTS[:2]))
            await self.bench.apply(message(2, "a"))
        finally:
            await self.bench.guard.close()

    async def look(self):
        for key, number in self.EFFECTS:
            await self.bench.apply(message(number, key))
        written = [await self.bench.written(key) for key in "ab"]
        if written != [["p1", "p2"], ["p1"]]:
            self.found.append(f"written: {written}")
        await self.bench.guard.close()
        await self.bench.guard.close()
        self.bench.guard._thread.shutdown()


class Serving(Real):
    """A broker, with a client that says nothing."""

    async def act(self):
        async with BrokerServer("127.0.0.1", 0) as broker:
            _, writer = await asyncio.open_connection("127.0.0.1", broker.port)
            try:
                await asyncio.sleep(0)
            finally:
                writer.close()

    async def look(self):
        # The turn in which the client's own end is gone.
        await asyncio.sleep(0)


class Posting(Real):
    """To an application."""

    async def begin(self):
        async def serve(reader, writer):
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                await reader.readuntil(b"\r\n\r\n")
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
                await reader.read()
            writer.close()

        self.server = AsyncExitStack()
        port = await self.server.enter_async_context(listening(serve))
        self.address = f"http://{OWN_HOST}:{port}"

    async def act(self):
        application = HttpApplication(self.address, SidecarSettings(application=self.address), PATIENCE_S * 1_000)
        try:
            await application.post("orders", {}, b"x")
            await application.probe()
        finally:
            await application.close()

    async def look(self):
        await self.server.aclose()


class OfBroker(Real):
    """On the official client. The broker is in another thread of this process, so its connections count as well."""

    BROKER: ClassVar[BrokerOnPort]
    GROUP: ClassVar = {
        "name": "orders",
        "hash_prefix": "h",
        "hash_count": 4,
        "queue_count": 1,
        "provision": "create_missing",
    }

    async def begin(self):
        document = {"connection": {"transport": "solace", "host": self.BROKER.url}, "group": self.GROUP}
        self.settings = parse_settings(document, "test", {})


class OpeningPublisher(OfBroker):
    publisher = None

    async def act(self):
        async with open_publisher(self.settings, ledger=self.folder) as self.publisher:
            await self.publisher.submit("new", b"x", key="a")
            await self.publisher.publish("new", b"x", key="a")

    async def look(self):
        await super().look()
        if self.publisher is not None and self.publisher.counts.unconfirmed:
            self.found.append("messages are under way")
        if any('"kind":"close"' not in each.read_text().splitlines()[-1] for each in self.folder.iterdir()):
            self.found.append("the ledger has no end")


class Asking(OfBroker):
    """A group, from outside."""

    async def act(self):
        async with observing(self.settings) as observer:
            await observer.look_at_group(0.01)
        async with viewing_parked(self.settings) as view:
            await view.lanes()


class BeingAMember(OfBroker):
    """In a program that has a loop of its own."""

    async def begin(self):
        await super().begin()
        sections = {
            "membership": {"mode": "static", "index": 0, "count": 1},
            "rebind": {"mode": "cycle"},
            "ops": {"status": "127.0.0.1:0", "journal": {"path": str(self.folder)}},
        }
        document = {"connection": {"transport": "solace", "host": self.BROKER.url}, "group": self.GROUP}
        self.settings = parse_settings(document | sections, "test", {})
        async with open_publisher(self.settings) as publisher:
            await publisher.publish("new", b"x", key="a")

    async def act(self):
        handlers = Handlers()

        @handlers.handler(">")
        async def stop(_):
            await asyncio.sleep(0)
            app.stop()

        @handlers.lifespan
        async def life():
            await asyncio.sleep(0)
            yield
            await asyncio.sleep(0)

        app = App(handlers, self.settings)
        await app.run()

    async def look(self):
        if any('"kind":"close"' not in each.read_text().splitlines()[-1] for each in self.folder.iterdir()):
            self.found.append("the journal has no end")


@contextmanager
def a_broker():
    with BrokerOnPort() as OfBroker.BROKER, tempfile.TemporaryDirectory() as folder:
        # The official client opens files when it is used for the first time, and keeps them.
        play = OpeningPublisher(Path(folder))
        with asyncio.Runner() as runner:
            runner.run(play.begin())
            runner.run(play.act())
        yield


@pytest.fixture(scope="module", autouse=True)
def _broker():
    with a_broker():
        yield


STORIES: dict[type[Story], int] = {
    Publishing: 7,
    PublishingThroughAnOutage: 7,
    Loading: 7,
    Observing: 2,
    Parking: 7,
    Provisioning: 1,
    Creating: 23,
    Applying: 23,
    Deleting: 23,
    DeletingInVain: 23,
    Kit: 67,
    ServingHttp: 5,
    ServingOnTheLoop: 5,
    ServingStatus: 7,
    Serving: 3,
    Guarding: 3,
    Posting: 9,
    OpeningPublisher: 13,
    Asking: 31,
    BeingAMember: 97,
}
"""Each with the distance between the steps that are tried here."""


@pytest.mark.parametrize("story", STORIES)
def test_nothing_is_wrong_with_what_is_not_interrupted(story, tmp_path):
    assert faults(story, tmp_path)[0] == []


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("story", STORIES)
def test_what_is_interrupted_at_whatever_step_leaves_nothing_behind(story, way, tmp_path):
    first = 1 + list(WAYS).index(way) % STORIES[story]
    assert try_all(story, WAYS[way], tmp_path, first, STORIES[story]) == {}


@pytest.mark.parametrize("story", [each for each in STORIES if each.disturb is not Story.disturb])
def test_what_is_disturbed_at_whatever_step_ends_as_it_should_and_leaves_nothing_behind(story, tmp_path):
    assert try_all(story, disturbed, tmp_path, stride=(STORIES[story] + 2) // 3) == {}


class Swallows(Story):
    async def act(self):
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(1)


class Renames(Story):
    async def act(self):
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            raise ValueError from None


class Hangs(Story):
    async def act(self):
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            await asyncio.sleep(1_000_000)


class LeavesATask(Story):
    async def act(self):
        task = asyncio.ensure_future(asyncio.sleep(1_000_000))
        await asyncio.sleep(1)
        task.cancel()


class LeavesATimer(Story):
    async def act(self):
        timer = asyncio.get_running_loop().call_later(10, print)
        await asyncio.sleep(1)
        timer.cancel()


class LeavesAConnection(Story):
    async def act(self):
        self.pair = socket.socketpair()
        asyncio.get_running_loop().add_reader(self.pair[0], print)
        await asyncio.sleep(1)
        asyncio.get_running_loop().remove_reader(self.pair[0])

    async def look(self):
        for each in self.pair:
            each.close()


class LeavesAnError(Story):
    async def act(self):
        failing = asyncio.get_running_loop().create_future()
        failing.set_exception(ValueError("nobody looks"))
        await asyncio.sleep(1)
        failing.exception()


PLANTED = {
    Swallows: "ended with None",
    Renames: "ended with ValueError",
    Hangs: "hangs: ",
    LeavesATask: "task left: ",
    LeavesATimer: "timer left: ",
    LeavesAConnection: "descriptors left: ",
    LeavesAnError: "told: Future exception was never retrieved",
}
"""Mistakes, and how they are told."""


@pytest.mark.parametrize("story", PLANTED)
def test_a_mistake_would_be_found(story, tmp_path):
    assert faults(story, tmp_path)[0] == []
    found = try_all(story, WAYS["cancelled"], tmp_path)
    assert any(line.startswith(PLANTED[story]) for lines in found.values() for line in lines), found


if __name__ == "__main__":
    with a_broker(), tempfile.TemporaryDirectory() as folder:
        ways = WAYS | {"disturbed": disturbed}
        for number, (story, way) in enumerate(itertools.product(STORIES, ways)):
            own = Path(folder, str(number))
            own.mkdir()
            for step, lines in try_all(story, ways[way], own).items():
                print(story.__name__, way, step, *lines, sep="\n  ", file=sys.stderr)  # noqa: T201 - what it is for
