"""Two gates, their owners, and a stream that moves from queue to queue and back; the laws are checked outside.

Hypothesis decides what is published when, how far who conducts it is, what handlers and settlements do, and who dies.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lbg_runtime.core.flow.commands import Note
from lbg_runtime.core.flow.in_flight import InFlight
from lbg_runtime.core.restripe.gate import Drop, GateOrder, Pass, Probe, StripeGate
from lbg_runtime.core.restripe.news import StripesNews
from lbg_runtime.core.restripe.records import (
    ShardMarker,
    StripeEnd,
    StripeFinish,
    StripePlan,
    StripeRecord,
    encode_record,
    record_prefix,
    record_topic,
)
from lbg_runtime.core.restripe.striping import StripingBook
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.ids import DeliveryId, Epoch, GroupName
from lbg_runtime.model.message import Delivery, Message

CONTROL_TOPIC = "lbg-control/orders"
SHAPE = GroupShape(GroupName("orders"), "lbg", hash_count=4, queue_count=2)
KEYS = range(6)
MOVING = (1, 3)
"""The shards that move between one queue and two."""
QUEUES = (0, 1)
MOST_ROUNDS = 400
NONE: frozenset[int] = frozenset()
SOME_KEYS = st.frozensets(st.sampled_from(KEYS), max_size=2)
SOME_QUEUES = st.frozensets(st.sampled_from(QUEUES), max_size=1)


@dataclass(frozen=True)
class Entry:
    """What is spooled in a queue."""

    id: DeliveryId
    message: Message
    key: int | None = None
    number: int = 0
    """Within the key, from 1."""
    at: int = 0
    """Its place in all that was ever published."""


@dataclass(frozen=True)
class Item:
    """A delivery in a lane."""

    epoch: int
    entry: Entry


@dataclass
class Owner:
    """The process that a queue feeds."""

    queue: int
    gate: StripeGate
    book: StripingBook
    epoch: int = 1
    in_flight: InFlight = field(default_factory=lambda: InFlight(1_000))
    shown: set[DeliveryId] = field(default_factory=set)
    """On the handle of now."""
    lanes: dict[int, list[Item]] = field(default_factory=lambda: defaultdict(list))
    running: dict[int, Item] = field(default_factory=dict)
    under_way: list[DeliveryId | Probe] = field(default_factory=list)
    """What was settled on the handle and has not reached the broker, and probes behind it."""
    echoes: list[int] = field(default_factory=list)


class GateLaws(RuleBasedStateMachine):
    """See the module's text."""

    def __init__(self, make_gate: Callable[[int, GroupShape, str], StripeGate] = StripeGate) -> None:
        super().__init__()
        self.make_gate = make_gate
        self.queues: dict[int, list[Entry]] = {queue: [] for queue in QUEUES}
        self.owners = [Owner(queue, self.new_gate(queue), StripingBook(1, 64)) for queue in QUEUES]
        self.subscribed = {(0, shard) for shard in range(4)}
        self.published_count = 0
        self.numbers: Counter[int] = Counter()
        self.started: Counter[tuple[int, int]] = Counter()
        self.ended: set[tuple[int, int]] = set()
        self.cut_at: dict[int, int] = {}
        """By shard that moved: where its last marker lies in all that was published."""
        self.held_by = dict.fromkeys(range(4), 0)
        """The queue that is to handle what is published of a shard now."""
        self.held_before: dict[int, int] = {}
        self.plan: StripePlan | None = None
        self.is_finished = self.is_ended = False
        self.deaths = 0
        self.cap = self.most = 4

    @initialize(cap=st.integers(1, 4), kept=st.integers(0, 8))
    def choose_the_caps(self, cap: int, kept: int) -> None:
        self.cap, self.most = cap, cap + kept

    def new_gate(self, queue: int) -> StripeGate:
        return self.make_gate(queue, SHAPE, record_prefix(CONTROL_TOPIC))

    # -- the broker

    @rule(key=st.sampled_from(KEYS))
    def publish(self, key: int) -> None:
        self.numbers[key] += 1
        shard = key % 4
        queues = [queue for queue in QUEUES if (queue, shard) in self.subscribed]
        self.spool(queues, Message(SHAPE.hashed_topic(shard, "t"), b""), key, self.numbers[key])

    def publish_record(self, record: StripeRecord, queues: tuple[int, ...] = QUEUES) -> None:
        assert self.plan is not None
        self.spool(list(queues), encode_record(record, record_topic(CONTROL_TOPIC, self.plan)))

    def spool(self, queues: list[int], message: Message, key: int | None = None, number: int = 0) -> None:
        assert queues, "no message is published past all queues"
        self.published_count += 1
        for queue in queues:
            entry_id = DeliveryId(2 * self.published_count + queue)
            self.queues[queue].append(Entry(entry_id, message, key, number, self.published_count))

    def room(self, owner: Owner) -> bool:
        kept_count = owner.gate.kept_count
        return len(owner.in_flight) < self.cap and len(owner.in_flight) + kept_count < self.most

    @rule(queue=st.sampled_from(QUEUES), count=st.integers(1, 8))
    def deliver(self, queue: int, count: int) -> None:
        owner = self.owners[queue]
        for entry in [entry for entry in self.queues[queue] if entry.id not in owner.shown][:count]:
            if not self.room(owner):
                return
            owner.shown.add(entry.id)
            self.receive(owner, entry)

    @rule(queue=st.sampled_from(QUEUES), count=st.integers(1, 8))
    def take_settlements(self, queue: int, count: int) -> None:
        owner = self.owners[queue]
        taken, owner.under_way = owner.under_way[:count], owner.under_way[count:]
        for each in taken:
            if isinstance(each, Probe):
                owner.echoes.append(each.number)
            else:
                [settled] = [entry for entry in self.queues[queue] if entry.id == each]
                self.queues[queue].remove(settled)

    # -- the owners

    def receive(self, owner: Owner, entry: Entry) -> None:
        delivery = Delivery(SHAPE.queue_name(owner.queue), Epoch(owner.epoch), entry.id, entry.message, False, 0)
        # As a flow machine does it, which asks a gate that is idle for nothing.
        if owner.gate.is_idle and not owner.gate.is_record(entry.message.topic):
            self.obey(owner, [Pass(delivery)])
        else:
            self.obey(owner, owner.gate.take(delivery, owner.in_flight))

    def obey(self, owner: Owner, orders: list[GateOrder]) -> None:
        news: list[StripesNews] = []
        for order in orders:
            match order:
                case Pass(delivery):
                    owner.in_flight.add(delivery.delivery_id, delivery.message.topic)
                    [entry] = [entry for entry in self.queues[owner.queue] if entry.id == delivery.delivery_id]
                    assert entry.key is not None
                    owner.lanes[entry.key].append(Item(owner.epoch, entry))
                case Drop(delivery_id):
                    assert delivery_id not in owner.in_flight.topics()
                    owner.under_way.append(delivery_id)
                case Probe():
                    owner.under_way.append(order)
                case Note(name):
                    assert name != "restripe_record_kept", "no queue stops"
                case _:
                    news.append(order)
        for told in news:
            self.tell(owner, told)

    def tell(self, owner: Owner, news: StripesNews) -> None:
        owner.book.see(news, owner.queue)
        self.obey(owner, owner.gate.learn(owner.book.now))

    @rule(queue=st.sampled_from(QUEUES), key=st.sampled_from(KEYS))
    def start_handler(self, queue: int, key: int) -> None:
        owner = self.owners[queue]
        if key in owner.running or not owner.lanes[key]:
            return
        item = owner.running[key] = owner.lanes[key].pop(0)
        self.check_start(queue, item.entry)

    @rule(queue=st.sampled_from(QUEUES), key=st.sampled_from(KEYS))
    def end_handler(self, queue: int, key: int) -> None:
        owner = self.owners[queue]
        item = owner.running.pop(key, None)
        if item is None:
            return
        self.ended.add((key, item.entry.number))
        if item.epoch == owner.epoch:
            owner.in_flight.answer(item.entry.id)
            owner.under_way.append(item.entry.id)
            if not owner.gate.is_idle:
                self.obey(owner, owner.gate.answer(item.entry.id))

    @rule(queue=st.sampled_from(QUEUES))
    def hear_echoes(self, queue: int) -> None:
        owner = self.owners[queue]
        echoes, owner.echoes = owner.echoes, []
        for number in echoes[-1:]:
            self.obey(owner, owner.gate.reached(number))

    @rule(queue=st.sampled_from(QUEUES))
    def talk(self, queue: int) -> None:
        listener, teller = self.owners[queue], self.owners[1 - queue]
        if listener.book.hear(teller.book.report()):
            self.obey(listener, listener.gate.learn(listener.book.now))

    # -- who dies

    @rule(queue=st.sampled_from(QUEUES), arrived=st.integers(0, 3), process=st.booleans(), chance=st.integers(0, 2))
    def die(self, queue: int, arrived: int, process: bool, chance: int) -> None:
        if chance == 2:
            self.kill(queue, arrived) if process else self.lose_handle(queue, arrived)

    def lose_handle(self, queue: int, arrived: int) -> None:
        """Handlers go on, and settle nothing; what had not started goes back; so do settlements, but for the first."""
        owner = self.owners[queue]
        self.deaths += 1
        self.take_settlements(queue, arrived)
        owner.epoch += 1
        owner.in_flight, owner.under_way, owner.echoes = InFlight(1_000), [], []
        owner.shown.clear()
        owner.lanes.clear()
        owner.gate.start_handle()

    def kill(self, queue: int, arrived: int) -> None:
        """Another process has the queue next, which knows nothing."""
        self.deaths += 1
        self.take_settlements(queue, arrived)
        self.owners[queue] = Owner(queue, self.new_gate(queue), StripingBook(1, 64))

    # -- who conducts

    def knows(self, generation: int) -> list[StripingBook]:
        return [owner.book for owner in self.owners if owner.book.now.generation == generation]

    def new_queue(self, shard: int) -> int:
        assert self.plan is not None
        return self.plan.new_index(shard)

    def is_moved(self, shard: int) -> bool:
        return (1 - self.new_queue(shard), shard) not in self.subscribed

    @rule(count=st.integers(1, 12), busy=SOME_KEYS, lagging=SOME_QUEUES)
    def conduct_on(self, count: int, busy: frozenset[int], lagging: frozenset[int]) -> None:
        for _ in range(count):
            self.conduct()
            self.go_on(2, busy, lagging)

    @rule()
    def conduct(self) -> None:
        """The next step of a re-striping, or of the next one, where the members are so far."""
        plan = self.plan
        if plan is None or (self.is_ended and any(book.now.target is None for book in self.knows(plan.generation))):
            generation, before = (1, 1) if plan is None else (plan.generation + 1, plan.to_count)
            self.plan = StripePlan(generation, before, 3 - before, f"s{generation}")
            self.is_finished = self.is_ended = False
            self.publish_record(self.plan)
        elif books := self.knows(plan.generation):
            shards = [shard for shard in MOVING if not self.is_moved(shard)]
            if shards:
                self.move(plan, shards[0], books)
            elif not self.is_finished:
                self.is_finished = True
                self.publish_record(StripeFinish(plan.generation, plan.from_count, plan.to_count))
            elif not self.is_ended and any(book.now.finished >= {0, 1} for book in books):
                self.is_ended = True
                self.publish_record(StripeEnd(plan.generation, plan.to_count), QUEUES[: plan.to_count])

    def move(self, plan: StripePlan, shard: int, books: list[StripingBook]) -> None:
        new = self.new_queue(shard)
        if (new, shard) not in self.subscribed:
            self.subscribed.add((new, shard))
        elif self.held_by[shard] != new:
            self.publish_record(ShardMarker(plan.generation, shard))
            self.cut_at[shard] = self.published_count
            self.held_before[shard], self.held_by[shard] = self.held_by[shard], new
        elif any(shard in book.now.left for book in books):
            self.subscribed.remove((1 - new, shard))

    @precondition(lambda self: self.plan is not None)
    @rule()
    def conduct_again(self) -> None:
        """Another conductor does not know what the one before has published."""
        plan = self.plan
        assert plan is not None
        shards = [shard for shard in MOVING if not self.is_moved(shard)]
        if not self.knows(plan.generation) and shards:
            self.publish_record(plan)
        elif shards and self.held_by[shards[0]] == self.new_queue(shards[0]):
            self.publish_record(ShardMarker(plan.generation, shards[0]))
        elif self.is_ended:
            self.publish_record(StripeEnd(plan.generation, plan.to_count), QUEUES[: plan.to_count])
        elif self.is_finished:
            self.publish_record(StripeFinish(plan.generation, plan.from_count, plan.to_count))

    @rule(chance=st.integers(0, 3))
    def renew(self, chance: int) -> None:
        """Somebody conducts who hears of members that know of a newer plan."""
        plan = self.plan
        if chance or plan is None or any((plan.new_index(shard), shard) in self.subscribed for shard in MOVING):
            return
        self.plan = replace(plan, generation=plan.generation + 1)
        self.publish_record(self.plan)

    # -- so that much happens in few steps

    @rule(rounds=st.integers(1, 3), busy=SOME_KEYS, lagging=SOME_QUEUES)
    def go_on(self, rounds: int, busy: frozenset[int] = NONE, lagging: frozenset[int] = NONE) -> None:
        """`busy`: keys whose handlers take longer; `lagging`: queues whose settlements do."""
        for _ in range(rounds):
            for queue in QUEUES:
                self.deliver(queue, 100)
                for key in [key for key in KEYS if key not in busy]:
                    self.start_handler(queue, key)
                    self.end_handler(queue, key)
                if queue not in lagging:
                    self.take_settlements(queue, 100)
                self.hear_echoes(queue)
                self.talk(queue)

    # -- the laws

    def check_start(self, queue: int, entry: Entry) -> None:
        assert entry.key is not None
        shard, message = entry.key % 4, (entry.key, entry.number)
        is_before = entry.at < self.cut_at.get(shard, 0)
        assert queue == (self.held_before if is_before else self.held_by)[shard], "every message has one queue"
        if not is_before and shard in self.cut_at:
            left = [
                each
                for each in self.queues[1 - queue]
                if each.key is not None and each.key % 4 == shard and each.at < self.cut_at[shard]
            ]
            assert not left, "the broker has taken all settlements of the old queue's part"
        if not self.started[message]:
            assert entry.number == 1 or (entry.key, entry.number - 1) in self.ended, "first handlings are in order"
        self.started[message] += 1

    @invariant()
    def nothing_is_handled_twice_where_nothing_dies(self) -> None:
        if not self.deaths:
            assert max(self.started.values(), default=1) == 1, "each message is handled once"

    @invariant()
    def what_is_kept_is_counted(self) -> None:
        for owner in self.owners:
            assert len(owner.in_flight) + owner.gate.kept_count <= self.most, "the cap holds"

    def teardown(self) -> None:
        """Everything comes to its end: the re-striping, every message, both queues."""
        for attempt in range(MOST_ROUNDS):
            if not any(self.queues.values()) and (self.plan is None or self.is_ended):
                break
            self.go_on(1)
            if self.plan is not None and not self.is_ended:
                self.conduct()
            if self.plan is not None and attempt % 20 == 19:
                self.conduct_again()
        assert not any(self.queues.values()), "everything is settled in the end"
        assert self.plan is None or self.is_ended, "the re-striping comes to its end"
        assert {(key, number) for key in KEYS for number in range(1, self.numbers[key] + 1)} == self.ended, (
            "nothing is lost"
        )
        self.nothing_is_handled_twice_where_nothing_dies()
