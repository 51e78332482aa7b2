"""A gate with a flow around it that does nothing by itself, and what comes into its queue."""

from collections.abc import Collection
from typing import Self

from lbg_runtime.core.flow.commands import Note
from lbg_runtime.core.flow.in_flight import InFlight
from lbg_runtime.core.restripe.gate import Drop, GateOrder, Pass, Probe, StripeGate
from lbg_runtime.core.restripe.news import PlanReached, ShardLeft, StripesFinished, StripesNews
from lbg_runtime.core.restripe.records import (
    ShardMarker,
    StripeFinish,
    StripePlan,
    StripeRecord,
    encode_record,
    record_prefix,
    record_topic,
)
from lbg_runtime.core.restripe.striping import Striping
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.ids import DeliveryId, Epoch, GroupName, QueueName
from lbg_runtime.model.message import Delivery, Message

CONTROL_TOPIC = "lbg-control/orders"
PREFIX = record_prefix(CONTROL_TOPIC)
SHAPE = GroupShape(GroupName("orders"), "lbg", hash_count=6, queue_count=2)
GENERATION = 7
PLAN = StripePlan(GENERATION, from_count=2, to_count=3, secret="s3cr3t")
FINISH = StripeFinish(GENERATION, from_count=2, to_count=3)
TOPIC = record_topic(CONTROL_TOPIC, PLAN)

QUEUE_INDEX = 0
LEAVING, OTHER_LEAVING, COMING, STAYING = 2, 4, 3, 0
"""Of queue 0, which has shards 0, 2 and 4 before, and 0 and 3 after."""
LEFT = ShardLeft(PLAN, LEAVING)
FINISHED = StripesFinished(GENERATION, 2, 3)


def marker(shard: int, generation: int = GENERATION) -> ShardMarker:
    return ShardMarker(generation, shard)


def message_of(content: StripeRecord | int | str | bytes) -> Message:
    """A record, a message of a shard, one of another topic, or bytes on the topic of the records."""
    match content:
        case int(shard):
            return Message(SHAPE.hashed_topic(shard, "t"), b"")
        case str(topic):
            return Message(topic, b"")
        case bytes(payload):
            return Message(TOPIC, payload)
        case record:
            return encode_record(record, TOPIC)


def delivery(number: int, content: StripeRecord | int | str | bytes, epoch: int = 1) -> Delivery:
    return Delivery(
        QueueName("orders/0"),
        Epoch(epoch),
        DeliveryId(number),
        message_of(content),
        redelivered=False,
        received_at_ns=0,
    )


class Queue:
    """Queue 0 as its owner's gate sees it. Every call returns what the gate orders then, in short: "pass 3", "drop 3",
    "probe 1", the news themselves, and the names of notes."""

    def __init__(self, gate: StripeGate | None = None) -> None:
        self.gate = gate or StripeGate(QUEUE_INDEX, SHAPE, PREFIX)
        self.in_flight = InFlight(1_000)

    @classmethod
    def with_plan(cls) -> Self:
        """Its plan, delivery 1, has been read."""
        queue = cls()
        assert queue.get(1, PLAN) == [PlanReached(PLAN)]
        return queue

    def get(self, number: int, content: StripeRecord | int | str | bytes) -> list[str | StripesNews]:
        """A delivery of this number comes."""
        return self.obey(self.gate.take(delivery(number, content), self.in_flight))

    def done(self, number: int) -> list[str | StripesNews]:
        """A delivery has been handled and settled."""
        self.in_flight.answer(DeliveryId(number))
        return self.obey(self.gate.answer(DeliveryId(number)))

    def learn(
        self, *left: int, finished: Collection[int] = (), generation: int = GENERATION
    ) -> list[str | StripesNews]:
        """It is proven that these shards have left their old queues, and that these queues have finished."""
        return self.obey(self.gate.learn(Striping(generation, 2, 3, frozenset(left), frozenset(finished))))

    def reached(self, number: int) -> list[str | StripesNews]:
        """The broker has taken what was settled before the probe."""
        return self.obey(self.gate.reached(number))

    def next_handle(self) -> None:
        """The handle is lost, and another is bound."""
        self.in_flight = InFlight(1_000)
        self.gate.start_handle()

    def obey(self, orders: list[GateOrder]) -> list[str | StripesNews]:
        told: list[str | StripesNews] = []
        for order in orders:
            match order:
                case Pass(passed):
                    self.in_flight.add(passed.delivery_id, passed.message.topic)
                    told.append(f"pass {passed.delivery_id}")
                case Drop(delivery_id):
                    told.append(f"drop {delivery_id}")
                case Probe(number):
                    told.append(f"probe {number}")
                case Note(name):
                    told.append(name)
                case news:
                    told.append(news)
        return told
