"""The development broker on a port of this machine, in its own thread: for programs that use a real client."""

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Self, TypeVar

import uvloop

from lbg_runtime.broker.engine.answers import QueueStatus
from lbg_runtime.broker.engine.settings import QueueSettings
from lbg_runtime.broker.server.server import DEFAULT_HOST, BrokerServer
from lbg_runtime.model.errors import BrokerRefusal, UserError
from lbg_runtime.model.ids import QueueName
from lbg_runtime.testing.failures import NotReached

PATIENCE_S = 20.0
"""Real time that a call may take."""

LOOK_S = 0.005
"""Real time between two looks at a queue."""

VPN = "default"

_Answer = TypeVar("_Answer")


class BrokerOnPort:
    """Listens on loopback from `start` to `stop`, or as a context manager. Any user name and password is accepted.

    May be called from any thread but its own, also from a running event loop: no call takes longer than a look into the
    broker. Queues and messages are in memory; they survive a failure, but not the broker.
    """

    def __init__(self) -> None:
        self.vpn = VPN
        self.host = DEFAULT_HOST
        self.port: int = 0
        """Chosen by the system; known from `start` on, and the same after a failure."""
        self._place = ExitStack()
        """Keeps the port in a failure."""
        self._loop = uvloop.new_event_loop()
        self._server = BrokerServer(self.host, 0)
        self._thread = threading.Thread(target=self._loop.run_forever, name="lbg-broker-on-port", daemon=True)

    @property
    def url(self) -> str:
        """The address that a client connects to."""
        return f"tcp://{self.host}:{self.port}"

    def client_properties(self) -> dict[str, object]:
        """Properties for the official client's `MessagingService`, to connect here and come back quickly."""
        return {
            "solace.messaging.transport.host": self.url,
            "solace.messaging.service.vpn-name": self.vpn,
            "solace.messaging.authentication.scheme.basic.username": "default",
            "solace.messaging.authentication.scheme.basic.password": "default",
            "solace.messaging.transport.reconnection-attempts": -1,
            "solace.messaging.transport.reconnection-attempts-wait-interval": 100,
        }

    def start(self) -> None:
        """Listen. Call it once."""
        self._thread.start()
        try:
            self._wait_for(self._server.start())
        except BaseException:
            # A context that is not entered is not left either.
            self.stop()
            raise
        self.port = self._server.port

    def stop(self) -> None:
        """Cut all connections, forget everything and end the thread. Idempotent; the last call."""
        self._place.close()
        if self._loop.is_closed():
            return
        if self._thread.is_alive():
            self._wait_for(self._server.stop())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(PATIENCE_S)
        self._loop.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # -- queues

    def create_queue(self, queue: str, *subscriptions: str, settings: QueueSettings | None = None) -> None:
        """Create a durable queue, exclusive unless the settings say otherwise; raises `BrokerRefusal` if it exists."""
        self._call(lambda: self._server.create_queue(queue, subscriptions, settings=settings))

    def queue_status(self, queue: str) -> QueueStatus:
        """The full status of a queue; raises `BrokerRefusal` if there is none."""
        return self._call(lambda: self._server.engine.queue_status(VPN, QueueName(queue)))

    def wait_until(
        self, queue: str, condition: Callable[[QueueStatus], bool], within_s: float = PATIENCE_S
    ) -> QueueStatus:
        """Poll a queue, which need not exist yet, until the condition holds; return its status then.

        Blocks the caller; raises `NotReached`.
        """
        pause, seen = threading.Event(), "not there"
        for _ in range(max(1, round(within_s / LOOK_S))):
            with suppress(BrokerRefusal):
                status = self.queue_status(queue)
                seen = str(status)
                if condition(status):
                    return status
            pause.wait(LOOK_S)
        raise NotReached(f"queue {queue} did not meet the condition", within_s, [f"it is {seen}"])

    # -- faults

    def client_names(self) -> Sequence[str]:
        """Names of the connected clients, sorted."""
        return self._call(self._server.client_names)

    def cut(self, client_name: str | None = None) -> int:
        """Break the connections of this client, or of all clients, which can come back; return how many there were."""
        return self._call(lambda: self._server.faults.drop(client_name))

    def fail(self) -> None:
        """Break all connections and let nobody connect until `restore`. What is spooled is kept, and so is the port."""
        self._wait_for(self._server.stop())
        # Bound and not listening: every connection is refused, and the system gives the port to nobody else.
        self._place.close()
        place = self._place.enter_context(socket.socket())
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):  # which `restore` will tell
            place.bind((self.host, self.port))

    def restore(self) -> None:
        """Listen again, on the same port; raises `UserError` if another process has taken it nevertheless."""
        self._place.close()
        self._wait_for(self._server.start())

    def _call(self, act: Callable[[], _Answer]) -> _Answer:
        async def on_loop() -> _Answer:
            return act()

        return self._wait_for(on_loop())

    def _wait_for(self, doing: Coroutine[object, None, _Answer]) -> _Answer:
        if not self._thread.is_alive():
            doing.close()
            raise UserError("BrokerOnPort", "a call while it does not run", "one between start and stop")
        return asyncio.run_coroutine_threadsafe(doing, self._loop).result(PATIENCE_S)
