"""A broker's queues and the members on them, as a conductor sees them; every step that it takes is checked."""

from collections import Counter
from collections.abc import Iterator
from copy import copy
from dataclasses import replace

from lbg_runtime.core.restripe.conductor import (
    Conductor,
    CreateQueue,
    DeleteQueue,
    Done,
    Publish,
    Sight,
    Step,
    Subscribe,
    Unsubscribe,
    Wait,
)
from lbg_runtime.core.restripe.layout import SeenQueues
from lbg_runtime.core.restripe.records import (
    ShardMarker,
    StripeEnd,
    StripeFinish,
    StripePlan,
    StripeRecord,
    plan_of_topic,
    record_topic,
)
from lbg_runtime.core.restripe.striping import Striping
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.ids import GroupName

CONTROL_TOPIC = "lbg-control/orders"
HASH_COUNT = 14
MOST_STEPS = 1_000
GENERATION = 7
MESSAGES = 5
"""In each queue that stays, besides records."""


class Group:
    """A broker's queues and the members on them, of which the conductor sees what `sight` says."""

    def __init__(self, from_count: int, to_count: int, hash_count: int = HASH_COUNT) -> None:
        self.plan = StripePlan(GENERATION, from_count, to_count, "s3cr3t")
        self.plans = [self.plan]
        self.topic = record_topic(CONTROL_TOPIC, self.plan)
        self.old, self.new = (
            GroupShape(GroupName("orders"), "lbg", hash_count, count) for count in (from_count, to_count)
        )
        self.shards = range(hash_count)
        self.topics = [self.old.subscription(shard) for shard in self.shards]
        """Per shard, the topic that its queue subscribes to."""
        self.queues = {index: set(self.old.subscriptions(index)) for index in range(from_count)}
        self.foreign: dict[int, set[str]] = {}
        """Queues of somebody else that have names of the group: beyond both layouts, with their subscriptions. They are
        never empty."""
        self.journal: list[StripeRecord] = []
        """What lies in the queues."""
        self.said: Striping | None = None
        self.needless_depth = 2
        self.steps: list[Step] = []

    def copied(self) -> "Group":
        """The same group, to go on with in another way."""
        other = copy(self)
        other.plans, other.journal, other.steps = [*self.plans], [*self.journal], [*self.steps]
        other.queues = {index: set(topics) for index, topics in self.queues.items()}
        other.foreign = dict(self.foreign)
        return other

    def conductor(self) -> Conductor:
        """One who knows nothing but what the queues say, as far as that goes."""
        plan = self.seen().plan_under_way()
        assert plan is None or plan in self.plans
        return Conductor(self.old, plan or self.plan, CONTROL_TOPIC)

    def seen(self) -> SeenQueues:
        """Its queues as they are now."""
        return SeenQueues(self.old, CONTROL_TOPIC, dict(self.sight().subscriptions))

    def follow(self, conductor: Conductor) -> None:
        """It may have renewed its plan."""
        if conductor.plan != self.plan:
            self.plan, self.topic = conductor.plan, conductor.topic
            self.plans.append(self.plan)

    def sight(self) -> Sight:
        there = {**self.queues, **self.foreign}
        subscriptions = {index: frozenset(topics) for index, topics in sorted(there.items())}
        records = self.records()
        depths = {
            index: (self.needless_depth if index >= self.plan.to_count else MESSAGES) + records[index]
            for index in self.queues
        }
        depths |= dict.fromkeys(self.foreign, 1)
        return Sight(subscriptions, depths, set(self.queues), self.said)

    def records(self) -> Counter[int]:
        """How many lie in each queue, unsettled until the finish: the plan, and a marker of each of its shards."""
        plan = self.plan
        markers = {record.shard for record in self.journal if isinstance(record, ShardMarker)}
        found = Counter(index for shard in markers for index in {plan.old_index(shard), plan.new_index(shard)})
        found.update(list(self.queues) if plan in self.journal else [])
        return found

    # -- the members

    def look(self) -> None:
        """They read what lies in their queues, and tell."""
        plan, said = self.plan, self.said or Striping(0, self.plan.from_count)
        generation = plan.generation
        for record in self.journal:
            match record:
                case StripePlan():
                    is_news = record.generation > said.generation
                    said = Striping(record.generation, plan.from_count, plan.to_count) if is_news else said
                case ShardMarker(_, shard) if said.target is not None:
                    said = Striping(generation, plan.from_count, plan.to_count, said.left | {shard}, said.finished)
                case StripeFinish():
                    if not (said.generation and said.target is None):
                        finished = frozenset(range(plan.queue_total))
                        said = Striping(generation, plan.from_count, plan.to_count, said.left, finished)
                case StripeEnd():
                    said = Striping(generation, plan.to_count)
                case _:
                    pass
        if any(isinstance(record, StripeFinish | StripeEnd) for record in self.journal):
            self.journal.clear()
        elif self.published(StripeFinish):
            self.needless_depth = max(0, self.needless_depth - 1)
        self.said = said

    def forget(self) -> None:
        """All of them start anew, with the settings that they had; what is not settled lies in the queues."""
        self.said = Striping(0, self.plan.from_count)

    # -- the broker

    def do(self, step: Step) -> None:
        """Take a step, checked; one that was taken before changes nothing."""
        self.steps.append(step)
        match step:
            case CreateQueue(index):
                self.queues.setdefault(index, set())
            case Subscribe(index, topic):
                self.check_subscribe(index, topic)
                self.queues[index].add(topic)
            case Unsubscribe(index, topic):
                self.check_unsubscribe(index, topic)
                self.queues[index].discard(topic)
            case Publish(record):
                self.check_publish(record)
                self.journal.append(record)
            case DeleteQueue(index):
                assert self.plan.to_count <= index < self.plan.from_count
                assert self.topic not in self.queues.get(index, set())
                assert not self.needless_depth, "no queue goes that is not empty"
                self.queues.pop(index, None)
            case Wait() | Done():
                raise AssertionError(f"{step} is nothing to do")
        assert set().union(*self.queues.values()).issuperset(self.topics), "no message is published past all queues"

    def holders(self, shard: int) -> set[int]:
        topic = self.topics[shard]
        return {index for index, topics in self.queues.items() if topic in topics}

    def informed(self) -> set[int]:
        return {index for index, topics in self.queues.items() if self.topic in topics}

    def published(self, kind: type[StripeRecord]) -> bool:
        return any(isinstance(step, Publish) and isinstance(step.record, kind) for step in self.steps)

    def check_subscribe(self, index: int, topic: str) -> None:
        if topic == self.topic:
            assert index == 0 or 0 in self.informed(), "the first queue is told first"
        else:
            assert self.informed() == set(range(self.plan.queue_total))
            assert Publish(self.plan) in self.steps, "the plan lies before every copy"
            assert self.said is not None
            assert self.said.generation == self.plan.generation

    def check_unsubscribe(self, index: int, topic: str) -> None:
        if topic != self.topic and plan_of_topic(CONTROL_TOPIC, topic) in self.plans:
            assert self.informed() == set(range(self.plan.queue_total)), "the newest plan is in its place"
            return
        if topic == self.topic:
            assert index != 0 or self.informed() <= {0}, "the first queue is told last"
            assert self.published(StripeFinish)
            return
        shard = self.topics.index(topic)
        assert index == self.plan.old_index(shard) != self.plan.new_index(shard)
        assert self.plan.new_index(shard) in self.holders(shard)
        assert self.said is not None
        assert shard in self.said.left, "the old queue's owner is done with it"

    def check_publish(self, record: StripeRecord) -> None:
        plan, everybody = self.plan, set(range(self.plan.queue_total))
        match record:
            case StripePlan():
                assert record == plan
                assert self.informed() == everybody
                topics = [topic for topics in self.queues.values() for topic in topics]
                assert not [old for old in self.plans[:-1] if record_topic(CONTROL_TOPIC, old) in topics]
            case ShardMarker(generation, shard):
                assert generation == self.plan.generation
                assert self.holders(shard) == {plan.old_index(shard), plan.new_index(shard)}, "it cuts both streams"
                assert self.informed() == everybody
            case StripeFinish():
                assert record == StripeFinish(plan.generation, plan.from_count, plan.to_count)
                assert all(self.holders(shard) == {plan.new_index(shard)} for shard in self.shards)
                assert self.informed() == everybody
            case StripeEnd():
                assert record == StripeEnd(plan.generation, plan.to_count)
                assert self.informed() == set(range(plan.to_count))
                assert not (self.needless_depth and set(self.queues) - self.informed())

    def check_done(self) -> None:
        assert {index: set(topics) for index, topics in self.queues.items()} == {
            index: set(self.new.subscriptions(index)) for index in range(self.plan.to_count)
        }


def measured(sight: Sight, conductor: Conductor) -> Sight:
    """With the depths that the conductor asks for, and no others."""
    return replace(sight, depths={index: sight.depths[index] for index in conductor.queues_to_measure(sight)})


def conduct(group: Group, conductor: Conductor) -> Iterator[Step]:
    """One conductor's steps, each done when the next is asked for. The members look while it waits."""
    for _ in range(MOST_STEPS):
        step = conductor.next_step(measured(group.sight(), conductor))
        group.follow(conductor)
        if isinstance(step, Done):
            group.check_done()
            return
        if isinstance(step, Wait):
            group.look()
        else:
            yield step
            group.do(step)
            conductor.did(step)
    raise AssertionError(f"it does not end: {step}")


def at(group: Group, last: Step) -> Conductor:
    """Who has just taken this step."""
    conductor = group.conductor()
    for step in conduct(group, conductor):
        if step == last:
            group.do(step)
            conductor.did(step)
            return conductor
    raise AssertionError(f"no such step: {last}")
