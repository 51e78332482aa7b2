"""Engines one after the other on the same store, each killed: what the next one takes for whose."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lbg_runtime.broker.engine.answers import SettledRange
from lbg_runtime.broker.engine.changes import Changes
from lbg_runtime.broker.engine.effects import ClientId, Deliver, Effect, FlowId, Published
from lbg_runtime.broker.engine.engine import Engine
from lbg_runtime.broker.engine.settings import QueueSettings
from lbg_runtime.broker.store.store import Store
from lbg_runtime.model.ids import DeliveryId, QueueName
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.smf.message import make_relay


class Desk:
    """One life of a broker."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def client(self, name: str) -> ClientId:
        return self.engine.connect("default", "user", None, name)[0]

    def publish(self, topic: str, count: int = 1) -> None:
        flow = self.engine.open_publisher(self.client(f"publisher of {topic}"), "").flow
        for number in range(1, count + 1):
            relay = make_relay(topic, b"body")
            self.engine.publish(flow, number, Published(topic, relay, relay.size_bytes, 1))

    def bind(
        self, client: ClientId, queue: str, window: int, last: DeliveryId | None = None
    ) -> tuple[FlowId, list[Deliver]]:
        """Bind a flow, or bind it again; the flow, and what it is sent."""
        bound, effects = self.engine.bind(client, QueueName(queue), last_received_id=last)
        effects += self.engine.open_window(bound.flow, last or DeliveryId(0), window)
        return bound.flow, sent(effects)

    def depths(self) -> dict[str, int]:
        return {name: self.engine.queue_depth("default", name) for name in self.engine.queue_names("default")}


def sent(effects: list[Effect]) -> list[Deliver]:
    return [each for each in effects if isinstance(each, Deliver)]


@pytest.fixture
def life(tmp_path):
    @contextmanager
    def life() -> Iterator[Desk]:
        store = Store.open(tmp_path / "store")
        changes = Changes()
        engine = Engine(store.instance, changes, store.spooler)
        engine.restore(store.read())
        yield Desk(engine)
        store.write(changes.take())
        store.close()

    return life


def test_a_flow_is_not_taken_for_one_of_another_queue_that_had_its_number_two_lives_before(life):
    with life() as desk:
        for queue in ("a", "b"):
            desk.engine.create_queue("default", QueueName(queue), QueueSettings())
            desk.engine.add_queue_subscription("default", QueueName(queue), queue)
        desk.publish("a")
        before, (first,) = desk.bind(desk.client("ann"), "a", window=5)
        desk.engine.unbind(before)
    with life() as desk:
        desk.publish("b")
        _, (second,) = desk.bind(desk.client("bob"), "b", window=5)
    with life() as desk:
        flow, again = desk.bind(desk.client("bob"), "b", window=5, last=second.delivery_id)
        assert again == []
        desk.engine.settle(flow, [SettledRange(DeliveryId(0), second.delivery_id, Outcome.ACCEPTED)])
        assert desk.depths() == {"a": 1, "b": 0}
        _, (found,) = desk.bind(desk.client("ann"), "a", window=5)
        assert (found.message.topic, found.redelivered) == ("a", True)
        assert found.delivery_id > first.delivery_id


def test_a_client_is_sent_what_another_one_had_on_a_flow_of_the_same_number_two_lives_before(life):
    with life() as desk:
        desk.engine.create_queue("default", QueueName("a"), QueueSettings())
        desk.engine.add_queue_subscription("default", QueueName("a"), "a")
        desk.publish("a", count=4)
        before, given = desk.bind(desk.client("ann"), "a", window=4)
        assert len(given) == 4
        desk.engine.unbind(before)
    with life() as desk:
        # So that the next flow has the same number.
        desk.engine.open_publisher(desk.client("publisher of nothing"), "")
        _, held = desk.bind(desk.client("bob"), "a", window=2)
        assert len(held) == 2
    with life() as desk:
        bob = desk.client("bob")
        flow, rest = desk.bind(bob, "a", window=5, last=held[-1].delivery_id)
        numbers = [each.message.number for each in (*held, *rest)]
        assert numbers == [each.message.number for each in given]
        desk.engine.settle(flow, [SettledRange(DeliveryId(0), held[-1].delivery_id, Outcome.ACCEPTED)])
        assert desk.depths() == {"a": 2}
