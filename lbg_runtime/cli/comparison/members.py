"""The members of the patterns: with a flow on one queue, with a direct subscription, or of our runtime."""

import asyncio
import random
from abc import ABC, abstractmethod

from lbg_runtime.cli.comparison.figures import Handled
from lbg_runtime.config.load import parse_settings
from lbg_runtime.core.flow.events import FlowEvent, MessageReceived
from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.model.message import Delivery, Message
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.runtime.app import App
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.runtime.session import Session
from lbg_runtime.transport.base import BoundFlow

CLOSE_TIMEOUT_S = 10.0


class Watch:
    """What all members of a run do, and how long each handling takes: random, but the same in every run."""

    def __init__(self, work_ms: float) -> None:
        self.handled: list[Handled] = []
        self.longest_work_s = 0.0
        """Longest for a single message; nothing takes time until `begin`."""
        self._work_ms = work_ms
        self._chance = random.Random(1)
        self._dead: set[str] = set()

    def begin(self) -> None:
        """Forget what was handled so far; from now on handling takes time."""
        self.handled.clear()
        self.longest_work_s = 2 * self._work_ms / 1_000

    def bury(self, member: str) -> None:
        """Ignore what this member does from now on: its process would be gone."""
        self._dead.add(member)

    async def handle(self, member: str, message: Message) -> None:
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        await asyncio.sleep(self._chance.uniform(0, self.longest_work_s))
        if member not in self._dead:
            self.handled.append(
                Handled(member, message.key or "", message.key_sequence or 0, start_s, loop.time()),
            )


class Member(ABC):
    """One member, from `start` to `stop`."""

    def __init__(self, name: str, session: Session, watch: Watch) -> None:
        self.name = name
        self._session = session
        self._watch = watch

    @abstractmethod
    async def start(self) -> None:
        """Join: bind or subscribe, or begin to."""

    @abstractmethod
    async def stop(self) -> None:
        """Leave; after its connection was cut as well."""


class _SerialMember(Member):
    """Handles what it is sent, one message after another."""

    def __init__(self, name: str, session: Session, watch: Watch) -> None:
        super().__init__(name, session, watch)
        self._inbox: asyncio.Queue[Delivery | Message] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._session.open()
        self._task = asyncio.create_task(self._work())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._session.close()

    async def _work(self) -> None:
        while True:
            arrived = await self._inbox.get()
            if isinstance(arrived, Delivery):
                await self._watch.handle(self.name, arrived.message)
                self._settle(arrived)
            else:
                await self._watch.handle(self.name, arrived)

    def _settle(self, delivery: Delivery) -> None:
        """Tell the broker that the message is handled; nothing unless a subclass does it."""


class QueueMember(_SerialMember):
    """Has one flow on one queue that it shares with the others."""

    def __init__(self, name: str, session: Session, watch: Watch, queue: str) -> None:
        super().__init__(name, session, watch)
        self._queue = QueueName(queue)
        self._flow: BoundFlow | None = None

    async def start(self) -> None:
        await super().start()
        self._flow = await self._session.bind(self._queue, Epoch(1), self._take)
        self._flow.start_intake()

    def _take(self, event: FlowEvent) -> None:
        if isinstance(event, MessageReceived):
            self._inbox.put_nowait(event.delivery)

    def _settle(self, delivery: Delivery) -> None:
        if self._flow is not None:
            self._flow.settle(delivery.delivery_id, Outcome.ACCEPTED)


class DirectMember(_SerialMember):
    """Takes direct messages of one subscription; what it does not take is lost."""

    def __init__(self, name: str, session: Session, watch: Watch, subscription: str) -> None:
        super().__init__(name, session, watch)
        self._subscription = subscription

    async def start(self) -> None:
        await super().start()
        await self._session.subscribe(self._subscription, self._inbox.put_nowait)


class RuntimeMember(Member):
    """A member of a load-balanced group, as `lbg run` is one."""

    def __init__(self, name: str, session: Session, watch: Watch, sections: dict[str, dict[str, object]]) -> None:
        super().__init__(name, session, watch)
        handlers = Handlers()

        @handlers.handler(">")
        async def handle(message: Message) -> None:
            await watch.handle(name, message)

        self._app = App(handlers, parse_settings(sections, "compare", {}), session=session, member_id=name)
        self._task: asyncio.Task[object] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._app.run())

    async def stop(self) -> None:
        if self._task is None:
            return
        self._app.stop()
        _, left = await asyncio.wait([self._task], timeout=CLOSE_TIMEOUT_S)
        for task in left:
            task.cancel()
            await asyncio.wait([task], timeout=CLOSE_TIMEOUT_S)
