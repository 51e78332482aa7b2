"""A small broker to talk to: one publisher, any number of named consumers."""

from collections.abc import Iterable

import pytest

from lbg_runtime.broker.engine.answers import BoundQueue, QueueStatus, SettledRange
from lbg_runtime.broker.engine.effects import ClientId, Deliver, Effect, FlowId, Published, one_by_one
from lbg_runtime.broker.engine.engine import Engine
from lbg_runtime.broker.engine.settings import AccessType, QueueSettings
from lbg_runtime.model.ids import DeliveryId, QueueName
from lbg_runtime.model.outcome import Outcome

QUEUE = QueueName("orders")


class Stage:
    """An engine with a queue `orders` subscribed to `orders/>`; the calls of a test in few words."""

    def __init__(self, access_type: AccessType = AccessType.EXCLUSIVE, **settings: int) -> None:
        self.engine = Engine()
        self.engine.create_queue("default", QUEUE, QueueSettings(access_type, **settings))
        self.engine.add_queue_subscription("default", QUEUE, "orders/>")
        self.publisher_client, _ = self.engine.connect("default", "user", "", "publisher")
        self.publisher = self.engine.open_publisher(self.publisher_client, "").flow
        self.published = 0

    def publish(self, count: int = 1, topic: str = "orders/new", size_bytes: int = 1) -> list[Effect]:
        """Publish messages whose content is their number, from 1."""
        effects: list[Effect] = []
        for _ in range(count):
            self.published += 1
            message = Published(topic, self.published, size_bytes)
            effects += self.engine.publish(self.publisher, self.published, message)
        return effects

    def client(self, name: str) -> ClientId:
        return self.engine.connect("default", "user", "", name)[0]

    def bind(self, client: ClientId, last_received_id: int | None = None, browser: bool = False) -> BoundQueue:
        last = None if last_received_id is None else DeliveryId(last_received_id)
        return self.engine.bind(client, QUEUE, last_received_id=last, browser=browser)[0]

    def consumer(self, name: str) -> tuple[ClientId, FlowId]:
        """A new client with a bound flow, its window closed."""
        client = self.client(name)
        return client, self.bind(client).flow

    def open_consumer(self, name: str) -> tuple[ClientId, FlowId]:
        """The same, its window open and what it is sent then unseen."""
        client, flow = self.consumer(name)
        self.open(flow)
        return client, flow

    def open(self, flow: FlowId, received_up_to: int = 0, window: int = 255) -> list[Effect]:
        return self.engine.open_window(flow, DeliveryId(received_up_to), window)

    def settle(self, flow: FlowId, first: int, last: int, outcome: Outcome = Outcome.ACCEPTED) -> list[Effect]:
        return self.engine.settle(flow, [SettledRange(DeliveryId(first), DeliveryId(last), outcome)])

    @property
    def queue(self) -> QueueStatus:
        return self.engine.queue_status("default", QUEUE)

    @staticmethod
    def deliveries(effects: Iterable[Effect]) -> list[Deliver]:
        return [effect for effect in one_by_one(effects) if isinstance(effect, Deliver)]

    @classmethod
    def numbers(cls, effects: Iterable[Effect]) -> list[object]:
        """Which messages were delivered, in order."""
        return [effect.message.content for effect in cls.deliveries(effects)]

    @classmethod
    def ids(cls, effects: Iterable[Effect]) -> list[int]:
        return [effect.delivery_id for effect in cls.deliveries(effects)]

    @classmethod
    def flags(cls, effects: Iterable[Effect]) -> list[bool]:
        return [effect.redelivered for effect in cls.deliveries(effects)]


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.fixture
def ring() -> Stage:
    """The same with a non-exclusive queue."""
    return Stage(AccessType.NON_EXCLUSIVE)


@pytest.fixture
def make_stage() -> type[Stage]:
    return Stage
