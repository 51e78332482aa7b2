"""Where the patterns are played: on a real broker with the official client, or in memory."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from lbg_runtime.broker.engine.engine import DEFAULT_VPN, Engine
from lbg_runtime.broker.engine.settings import QueueSettings
from lbg_runtime.broker.engine.surroundings import Asked
from lbg_runtime.broker.server.server import BrokerServer
from lbg_runtime.model.ids import QueueName
from lbg_runtime.runtime.session import Session
from lbg_runtime.transport.memory.broker import MemoryBroker
from lbg_runtime.transport.memory.transport import MemoryTransport


class Stage(Protocol):
    """A broker for one pattern."""

    @property
    def engine(self) -> Engine:
        """The broker's engine, only for looking at it."""
        ...

    def create_queue(self, queue: str, subscriptions: Sequence[str], settings: QueueSettings) -> None: ...

    def make_session(self, name: str) -> Session:
        """A session that is not open yet."""
        ...

    def cut(self, name: str) -> None:
        """End a client's connection permanently, as the death of its process does."""
        ...


class MemoryStage:
    """Everything in this process; time may be virtual."""

    def __init__(self) -> None:
        self._broker = MemoryBroker()
        self._sessions: dict[str, MemoryTransport] = {}

    @property
    def engine(self) -> Engine:
        return self._broker.engine

    def create_queue(self, queue: str, subscriptions: Sequence[str], settings: QueueSettings) -> None:
        self._broker.create_queue(queue, subscriptions, settings=settings)

    def make_session(self, name: str) -> Session:
        session = self._sessions[name] = MemoryTransport(self._broker, name)
        return session

    def cut(self, name: str) -> None:
        self._sessions[name].kill()


class SocketStage:
    """A broker that listens on loopback, and the official client."""

    def __init__(self, server: BrokerServer) -> None:
        self._server = server

    @property
    def engine(self) -> Engine:
        return self._server.engine

    def create_queue(self, queue: str, subscriptions: Sequence[str], settings: QueueSettings) -> None:
        self._server.create_queue(queue, subscriptions, settings=settings)

    def make_session(self, name: str) -> Session:
        # Imported here, because the client starts a thread when it is imported.
        from lbg_runtime.transport.solace.settings import SolaceSettings
        from lbg_runtime.transport.solace.transport import SolaceTransport

        return SolaceTransport(SolaceSettings(hosts=(self._server.url,), client_name=name, username="member"))

    def cut(self, name: str) -> None:
        # Otherwise its client would come back, which a dead process does not.
        self._server.faults.refuse(Asked.LOGIN, 503, "Service Unavailable", name)
        self._server.faults.drop(name)


@asynccontextmanager
async def open_stage(*, in_memory: bool) -> AsyncIterator[Stage]:
    """A broker with nothing on it, for as long as it is needed."""
    if in_memory:
        yield MemoryStage()
        return
    async with BrokerServer() as server:
        yield SocketStage(server)


def depth_of(stage: Stage) -> int:
    """Messages on all queues together."""
    names = stage.engine.queue_names(DEFAULT_VPN)
    return sum(stage.engine.queue_depth(DEFAULT_VPN, QueueName(name)) for name in names)
