"""Engines one after the other on the same store, each killed: what the next one takes for whose."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lbg_runtime.broker.engine.answers import SettledRange
from lbg_runtime.broker.engine.changes import Changes
from lbg_runtime.broker.engine.effects import ClientId, Deliver, Effect, FlowId, Published, one_by_one
from lbg_runtime.broker.engine.engine import Engine
from lbg_runtime.broker.engine.settings import AccessType, QueueSettings
from lbg_runtime.broker.store.store import Store
from lbg_runtime.model.ids import DeliveryId, QueueName
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.smf.message import make_relay
from tests.broker.deadlines import call_due


class Desk:
    """One life of a broker."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        engine.surroundings.key_of = lambda message: message.topic

    def client(self, name: str) -> ClientId:
        return self.engine.connect("default", "user", None, name)[0]

    def publish(self, topic: str, count: int = 1) -> list[Deliver]:
        """What is sent at once."""
        flow = self.engine.open_publisher(self.client(f"publisher of {topic}"), "").flow
        effects: list[Effect] = []
        for number in range(1, count + 1):
            relay = make_relay(topic, b"body")
            effects += self.engine.publish(flow, number, Published(topic, relay, relay.size_bytes, 1))
        return sent(effects)

    def pass_time(self) -> list[Deliver]:
        """What is sent when everything that is due has been done."""
        return sent(call_due(self.engine.surroundings.timetable))

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
    return [each for each in one_by_one(effects) if isinstance(each, Deliver)]


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


def test_what_a_flow_lost_with_its_partition_is_not_held_for_it_by_the_next_life(life):
    settings = QueueSettings(
        access_type=AccessType.NON_EXCLUSIVE,
        partition_count=2,
        partition_rebalance_delay_ms=0,
        partition_max_handoff_ms=0,
    )
    with life() as desk:
        desk.engine.create_queue("default", QueueName("a"), settings)
        desk.engine.add_queue_subscription("default", QueueName("a"), "*")
        ann, bob = desk.client("ann"), desk.client("bob")
        flow, _ = desk.bind(ann, "a", window=9)
        desk.pass_time()
        lost = [delivery for key in "wxyz" for delivery in desk.publish(key)]
        assert len(lost) == 4
        # One of the partitions goes to bob, who has no room; ann settles, which has no effect on what she lost.
        desk.bind(bob, "a", window=0)
        desk.pass_time()
        desk.engine.settle(flow, [SettledRange(DeliveryId(0), lost[-1].delivery_id, Outcome.ACCEPTED)])
        lost_count = desk.depths()["a"]
        assert 0 < lost_count < 4
        held = [delivery for key in "wxyz" for delivery in desk.publish(key)]
        assert {each.flow for each in held} == {flow}
    with life() as desk:
        # Bob does not come back, so all that ann does not hold is hers again, in order.
        _, again = desk.bind(desk.client("ann"), "a", window=9, last=held[-1].delivery_id)
        again += desk.pass_time()
        assert len(again) + len(held) == 4 + lost_count
        assert [each.redelivered for each in again] == [True] * lost_count + [False] * (4 - len(held))


def test_no_place_in_a_queue_is_given_again_however_many_lives_its_messages_are_gone(life):
    with life() as desk:
        for queue in ("a", "b"):
            desk.engine.create_queue("default", QueueName(queue), QueueSettings())
            desk.engine.add_queue_subscription("default", QueueName(queue), queue)
        desk.publish("a", count=3)
        desk.publish("b", count=3)
        flow, given = desk.bind(desk.client("ann"), "a", window=5)
        desk.engine.settle(flow, [SettledRange(DeliveryId(0), given[-1].delivery_id, Outcome.ACCEPTED)])
        desk.engine.administration.delete_messages("default", QueueName("b"), {3})
    with life() as desk:
        desk.engine.administration.change_queue("default", QueueName("a"), QueueSettings(max_bind_count=7))
    with life() as desk:
        desk.publish("a")
        desk.publish("b")
        places = {
            queue: [each.sequence for each in desk.engine.administration.queue_messages("default", QueueName(queue))]
            for queue in ("a", "b")
        }
        assert places == {"a": [4], "b": [1, 2, 4]}
