"""A broker on a thread of its own, and real clients that talk to it. The clients are threaded: the tests are sync."""

import asyncio
import queue
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import pytest
import uvloop
from solace.messaging.config.message_acknowledgement_configuration import Outcome
from solace.messaging.config.receiver_activation_passivation_configuration import ReceiverStateChangeListener
from solace.messaging.messaging_service import MessagingService, ReconnectionListener
from solace.messaging.publisher.persistent_message_publisher import MessagePublishReceiptListener
from solace.messaging.receiver.message_receiver import MessageHandler
from solace.messaging.resources.queue import Queue
from solace.messaging.resources.topic import Topic

from lbg_runtime.broker.engine.answers import QueueStatus
from lbg_runtime.broker.engine.settings import QueueSettings
from lbg_runtime.broker.server.server import BrokerServer
from lbg_runtime.model.ids import QueueName
from tests.addresses import OWN_HOST
from tests.patience import PATIENCE_MS, PATIENCE_S

T = TypeVar("T")


class BrokerThread:
    """The server on its own loop; `call` runs something on it."""

    def __init__(self, port: int = 0) -> None:
        # The loop of `lbg broker`; test_server.py is about the ordinary one.
        self.loop = uvloop.new_event_loop()
        self.server = BrokerServer(OWN_HOST, port)
        self._thread = threading.Thread(target=self.loop.run_forever)

    def start(self) -> None:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self.server.start(), self.loop).result(PATIENCE_S)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self.server.stop(), self.loop).result(PATIENCE_S)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE_S)
        self.loop.close()

    @property
    def port(self) -> int:
        return self.server.port

    def call(self, act: Callable[..., T], *args: Any, **options: Any) -> T:
        async def run() -> T:
            return act(*args, **options)

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(PATIENCE_S)

    def await_on_loop(self, doing: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(doing, self.loop).result(PATIENCE_S)

    def create_queue(self, name: str, *subscriptions: str, vpn: str = "default", **settings: Any) -> None:
        self.call(self.server.create_queue, name, subscriptions, settings=QueueSettings(**settings), vpn=vpn)

    def status(self, name: str) -> QueueStatus:
        return self.call(self.server.engine.queue_status, "default", QueueName(name))

    def wait_for_status(self, name: str, wanted: Callable[[QueueStatus], bool]) -> QueueStatus:
        """The queue's status once it is as wanted; the engine has no event for it, so this asks, with a bound."""
        for _ in range(PATIENCE_S * 100):
            status = self.status(name)
            if wanted(status):
                return status
            threading.Event().wait(0.01)
        raise AssertionError(f"never came true; last seen {status}")


def properties(port: int) -> dict[str, Any]:
    return {
        "solace.messaging.transport.host": f"tcp://{OWN_HOST}:{port}",
        "solace.messaging.service.vpn-name": "default",
        "solace.messaging.authentication.scheme.basic.username": "user",
        "solace.messaging.authentication.scheme.basic.password": "password",
        "solace.messaging.transport.connection-attempts-timeout": PATIENCE_MS,
        "solace.messaging.transport.reconnection-attempts": 100,
        "solace.messaging.transport.reconnection-attempts-wait-interval": 100,
    }


class Client:
    """A messaging service and short ways to what tests need of it."""

    def __init__(self, port: int, name: str, **options: Any) -> None:
        self.service = MessagingService.builder().from_properties(properties(port) | options).build(name)
        self.reconnected: queue.Queue[Any] = queue.Queue()
        self._closers: list[Callable[[], Any]] = []

    def connect(self) -> "Client":
        self.service.connect()
        outer = self

        class Listener(ReconnectionListener):
            def on_reconnected(self, service_event: Any) -> None:
                outer.reconnected.put(service_event)

        self.service.add_reconnection_listener(Listener())
        return self

    def close(self) -> None:
        for close in reversed(self._closers):
            close()
        self.service.disconnect()

    def publisher(self) -> Any:
        publisher = self.service.create_persistent_message_publisher_builder().build().start()
        self._closers.append(lambda: publisher.terminate(500))
        return publisher

    def direct_publisher(self) -> Any:
        publisher = self.service.create_direct_message_publisher_builder().build().start()
        self._closers.append(lambda: publisher.terminate(500))
        return publisher

    def message(self, payload: Any = "payload", **user_properties: Any) -> Any:
        return self.service.message_builder().build(payload, additional_message_properties=user_properties)

    def publish(self, publisher: Any, topic: str, *payloads: Any) -> None:
        """Persistently, each confirmed."""
        for payload in payloads:
            publisher.publish_await_acknowledgement(self.message(payload), Topic.of(topic), PATIENCE_MS)

    def receiver(
        self, queue_name: str, *, outcomes: bool = False, exclusive: bool = True, events: Any = None
    ) -> "Received":
        builder = self.service.create_persistent_message_receiver_builder().with_message_client_acknowledgement()
        if outcomes:
            builder = builder.with_required_message_outcome_support(Outcome.FAILED, Outcome.REJECTED)
        if events is not None:
            builder = builder.with_activation_passivation_support(_StateListener(events))
        make = Queue.durable_exclusive_queue if exclusive else Queue.durable_non_exclusive_queue
        receiver = builder.build(make(queue_name))
        return self.received(receiver.start())

    def received(self, receiver: Any) -> "Received":
        received = Received(receiver)
        self._closers.append(received.close)
        return received


class Received:
    """What a receiver gets, by callback, without holding the client's own queue."""

    def __init__(self, receiver: Any) -> None:
        self.receiver = receiver
        self.inbox: queue.Queue[Any] = queue.Queue()
        self._open = True
        outer = self

        class Handler(MessageHandler):
            def on_message(self, message: Any) -> None:
                outer.inbox.put(message)

        receiver.receive_async(Handler())

    def next(self, timeout_s: float = PATIENCE_S) -> Any:
        return self.inbox.get(timeout=timeout_s)

    def take(self, count: int, timeout_s: float = PATIENCE_S) -> list[Any]:
        taken: list[Any] = []
        while len(taken) < count:
            try:
                taken.append(self.next(timeout_s))
            except queue.Empty:
                raise AssertionError(f"{len(taken)} of {count} messages came, and no more in {timeout_s} s") from None
        return taken

    def is_silent(self, for_s: float = 0.3) -> bool:
        """Nothing arrives for so long; the only way to see that nothing happens."""
        try:
            self.inbox.get(timeout=for_s)
        except queue.Empty:
            return True
        return False

    def is_silent_or(self, take: Callable[[Any], None], for_s: float) -> bool:
        """As `is_silent`; what arrives is taken."""
        try:
            take(self.inbox.get(timeout=for_s))
        except queue.Empty:
            return True
        return False

    def close(self) -> None:
        """Returns before the broker has read the last acknowledgements (docs/protocol.md): wait for its status."""
        if self._open:
            self._open = False
            self.receiver.terminate(0)


class _StateListener(ReceiverStateChangeListener):
    def __init__(self, events: "queue.Queue[str]") -> None:
        self._events = events

    def on_change(self, old_state: Any, new_state: Any, change_time_stamp: float) -> None:
        self._events.put(new_state.name)


class Receipts(MessagePublishReceiptListener):
    """Collects publish receipts."""

    def __init__(self) -> None:
        self.inbox: queue.Queue[Any] = queue.Queue()

    def on_publish_receipt(self, publish_receipt: Any) -> None:
        self.inbox.put(publish_receipt)


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    thread = BrokerThread()
    thread.start()
    yield thread
    thread.stop()


@pytest.fixture(scope="module")
def make_client(broker: BrokerThread) -> Iterator[Callable[..., Client]]:
    """Connected clients, closed at the end of the module."""
    clients: list[Client] = []

    def make(name: str, **options: Any) -> Client:
        client = Client(broker.port, name, **options).connect()
        clients.append(client)
        return client

    yield make
    for client in reversed(clients):
        client.close()


@pytest.fixture(scope="module")
def client(make_client: Callable[..., Client]) -> Client:
    """One client that a module's tests share: connecting costs more than most of them."""
    return make_client("shared")


@pytest.fixture
def queue_name(broker: BrokerThread, request: pytest.FixtureRequest) -> str:
    """An exclusive queue of the test's own."""
    name: str = request.node.name.replace("[", "-").replace("]", "")
    broker.create_queue(name, f"{name}/>")
    return name


@pytest.fixture
def receipts() -> Receipts:
    return Receipts()


@pytest.fixture(scope="session")
def broker_thread_class() -> type[BrokerThread]:
    return BrokerThread


@pytest.fixture(scope="session")
def client_class() -> type[Client]:
    return Client
