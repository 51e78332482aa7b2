"""A group on a memory broker, its live page, and a browser to look at it."""

import asyncio
import contextlib
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from lbg_runtime.cli.group.homes import derived_placement, group_queues
from lbg_runtime.config.listen_address import ListenAddress
from lbg_runtime.dashboard.server import DashboardServer
from lbg_runtime.dashboard.watch import GroupWatch
from lbg_runtime.runtime.observer import Observer
from lbg_runtime.transport.memory.transport import MemoryTransport
from tests.chance import seed_members
from tests.dashboard.browser import browsing, chromium_running, program
from tests.patience import PATIENCE_S
from tests.runtime.conftest import MemberTrial, make_settings

HEARTBEAT = "300ms"


class Stage:
    """A group and its page. Members are quick to find each other, and to hand queues over."""

    def __init__(self, trial: MemberTrial, ending: AsyncExitStack, queues: int, token: str | None) -> None:
        self.trial = trial
        self._ending = ending
        self._group = {"queue_count": queues, "hash_count": max(8, queues), "provision": "create_missing"}
        self._ports: dict[str, int] = {}
        ops = {} if token is None else {"status_token": token}
        self.settings = make_settings(
            group=self._group,
            membership={"mode": "discovered", "index": None, "count": None, "heartbeat": HEARTBEAT},
            rebind={"mode": "cooperative"},
            ops=ops,
        )
        self.queues = queues
        self.watch: GroupWatch | None = None
        self.session: MemoryTransport | None = None
        self.server: DashboardServer | None = None
        self.apps = {}

    def make_member(self, name, **sections):
        self.apps[name] = self.trial.discovered(
            name,
            group=self._group,
            membership={"heartbeat": HEARTBEAT, "settle": "100ms"},
            rebind={"min_tenure": "0s"},
            ops={"journal": {"path": None}},
            **sections,
        )
        return self.apps[name]

    async def start(self, *names, **sections):
        """Members that run until the end of the test."""
        apps = [self.make_member(name, **sections) for name in names]
        await self._ending.enter_async_context(self.trial.running(*apps))

    async def all_fed(self):
        await self.trial.until(lambda: len(self.trial.active()) == self.queues, within_s=PATIENCE_S)

    async def show(self, members=(), token=None, host="127.0.0.1"):
        """The page; returns its address."""
        session = self.session = MemoryTransport(self.trial.broker, "dashboard")
        await session.open()
        self._ending.push_async_callback(session.close)
        names = self.settings.group.shape().queue_names()

        def find_homes(picture):
            queues = group_queues(picture, names)
            return queues, derived_placement(picture, queues)

        self.watch = GroupWatch(self.settings, Observer(session, self.settings, "dashboard"), find_homes, members)
        await self._ending.enter_async_context(self.watch)
        watching = asyncio.create_task(self.watch.run())
        self._ending.push_async_callback(_cancel, watching)
        group = self.settings.group
        self.server = DashboardServer(self.watch, group.shape(), group.hash_function, ListenAddress(host, 0), token)
        await self._ending.enter_async_context(self.server)
        return self.server.url

    @property
    def port(self):
        return self.server.address.port


async def _cancel(task):
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@pytest.fixture
def stage(tmp_path, monkeypatch):
    """Makes a stage for so many queues, all fed if members are named; its context ends all that was started."""
    seed_members(monkeypatch)

    @asynccontextmanager
    async def make(*members, queues=4, token=None):
        async with AsyncExitStack() as ending:
            group = Stage(MemberTrial(tmp_path), ending, queues, token)
            if members:
                await group.start(*members)
                await group.all_fed()
            yield group

    return make


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    """The process of a headless browser."""
    if program() is None:
        pytest.skip("needs chromium")
    with chromium_running(tmp_path_factory.mktemp("chromium") / "browser") as started:
        yield started


@pytest.fixture
async def browser(chromium):
    """A page of its own in a headless browser; screenshots go to `tmp_path`."""
    async with browsing(chromium) as page:
        yield page
