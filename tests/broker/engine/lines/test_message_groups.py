"""Message groups in the engine: who gets which group, and when another is chosen.

More than 400 lines, as all of it is played with the same few steps.
"""

import gc
from dataclasses import replace
from heapq import heapify
from weakref import WeakSet, ref

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lbg_runtime.broker.engine.answers import SettledRange
from lbg_runtime.broker.engine.effects import ClientId, Deliver, Effect, FlowId, Published, one_by_one
from lbg_runtime.broker.engine.engine import Engine
from lbg_runtime.broker.engine.lines import parts
from lbg_runtime.broker.engine.lines.group_line import GroupLine
from lbg_runtime.broker.engine.settings import AccessType, Grouping, QueueSettings
from lbg_runtime.model.ids import DeliveryId, QueueName
from lbg_runtime.model.outcome import Outcome
from tests.broker.deadlines import call_due

QUEUE = QueueName("orders")


class Key(str):
    """A key that can be watched."""


class Consumer:
    """A client with one flow, and what it holds."""

    def __init__(self, stage: "GroupStage", name: str) -> None:
        self.stage = stage
        self.name = name
        self.held: dict[int, tuple[str | None, int]] = {}
        self.seen: list[tuple[str | None, int]] = []
        self.firsts: list[tuple[str | None, int]] = []
        self.last_id = 0
        self.connect()

    def connect(self, last_received_id: int | None = None) -> None:
        self.client: ClientId = self.stage.engine.connect("default", "user", "", self.name)[0]
        last = None if last_received_id is None else DeliveryId(last_received_id)
        self.flow = self.stage.engine.bind(self.client, QUEUE, last_received_id=last)[0].flow
        self.stage.consumers[self.flow] = self
        self.open()

    def open(self, window: int = 255) -> None:
        self.stage.carry_out(self.stage.engine.open_window(self.flow, DeliveryId(self.last_id), window))

    def accept(self, *delivery_ids: int) -> None:
        for delivery_id in delivery_ids or list(self.held):
            del self.held[delivery_id]
            each = SettledRange(DeliveryId(delivery_id), DeliveryId(delivery_id), Outcome.ACCEPTED)
            self.stage.carry_out(self.stage.engine.settle(self.flow, [each]))

    def unbind(self) -> None:
        self.held.clear()
        self.stage.carry_out(self.stage.engine.unbind(self.flow))

    def lose_connection(self) -> None:
        self.stage.carry_out(self.stage.engine.disconnect(self.client))

    def groups(self) -> set[str | None]:
        return {group for group, _ in self.seen}


class GroupStage:
    """An engine with a grouping queue; messages are pairs of group and number in the queue."""

    def __init__(self, **grouping: object) -> None:
        self.engine = Engine()
        self.now_ms = 0
        surroundings = self.engine.surroundings
        surroundings.timetable.now = lambda: self.now_ms
        surroundings.key_of = lambda message: message.content[0]  # type: ignore[index]  # pairs
        surroundings.closes_group = lambda message: message.content[1] < 0  # type: ignore[index]  # pairs
        grouped = QueueSettings(AccessType.NON_EXCLUSIVE, grouping=Grouping(is_enabled=True, **grouping))  # type: ignore[arg-type]
        self.engine.create_queue("default", QUEUE, grouped)
        self.engine.add_queue_subscription("default", QUEUE, ">")
        self.publishers: dict[str, FlowId] = {}
        self.counts: dict[str, int] = {}
        self.published = 0
        self.consumers: dict[FlowId, Consumer] = {}

    def publish(self, *groups: str | None, producer: str = "producer", closing: bool = False) -> None:
        if producer not in self.publishers:
            client = self.engine.connect("default", "user", "", producer)[0]
            self.publishers[producer] = self.engine.open_publisher(client, "").flow
        for group in groups:
            self.published += 1
            self.counts[producer] = self.counts.get(producer, 0) + 1
            message = Published("orders", (group, -self.published if closing else self.published), 1)
            self.carry_out(self.engine.publish(self.publishers[producer], self.counts[producer], message))

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in one_by_one(effects):
            assert isinstance(effect, Deliver)
            consumer = self.consumers[effect.flow]
            consumer.last_id = effect.delivery_id
            pair: tuple[str | None, int] = effect.message.content  # type: ignore[assignment]  # pairs
            consumer.held[effect.delivery_id] = pair
            consumer.seen.append(pair)
            if effect.first_property is not None:
                consumer.firsts.append(pair)

    def pass_time(self, duration_ms: int) -> None:
        until_ms, timetable = self.now_ms + duration_ms, self.engine.surroundings.timetable
        while (at_ms := timetable.next_ms) is not None and at_ms <= until_ms:
            self.now_ms = at_ms
            self.carry_out(call_due(timetable))
        self.now_ms = until_ms

    def reset(self, group: str | None = None) -> None:
        self.carry_out(self.engine.administration.reset_groups("default", QUEUE, group))

    def owners(self) -> dict[str, str]:
        return {each.group: each.client_name for each in self.engine.administration.groups("default", QUEUE)}


@pytest.fixture
def stage() -> GroupStage:
    return GroupStage()


@pytest.fixture
def make_stage() -> type[GroupStage]:
    return GroupStage


def test_a_group_stays_with_the_consumer_that_got_its_first_message(stage):
    ann, bob = Consumer(stage, "ann"), Consumer(stage, "bob")
    stage.publish(*"abcd" * 5)
    assert ann.groups() | bob.groups() == set("abcd")
    assert not ann.groups() & bob.groups()
    assert len(ann.groups()) == 2, "new groups go round"
    assert stage.owners() == {group: one.name for one in (ann, bob) for group in one.groups()}


def test_messages_of_no_group_go_to_all_in_turn(stage):
    ann, bob = Consumer(stage, "ann"), Consumer(stage, "bob")
    stage.publish(*[None] * 6)
    assert (len(ann.seen), len(bob.seen)) == (3, 3)
    assert stage.owners() == {}


def test_messages_of_no_group_do_not_wait_behind_those_of_one(stage):
    ann = Consumer(stage, "ann")
    stage.publish("a")
    ann.open(window=0)
    stage.publish(*"aaa")
    bob = Consumer(stage, "bob")
    stage.publish(None, "b", None)
    assert bob.groups() == {None, "b"}
    assert len(bob.seen) == 3
    ann.open()
    assert [group for group, _ in ann.seen] == ["a"] * 4


def test_another_consumer_has_the_group_when_its_own_leaves_in_the_old_order(stage):
    ann = Consumer(stage, "ann")
    stage.publish(*"abab")
    bob = Consumer(stage, "bob")
    stage.publish("a")
    assert bob.seen == []
    ann.unbind()
    assert bob.seen == [("a", 1), ("b", 2), ("a", 3), ("b", 4), ("a", 5)]


def test_a_client_that_comes_back_has_what_it_held_where_nobody_has_its_group(stage):
    ann = Consumer(stage, "ann")
    stage.publish(*"ab")
    ann.lose_connection()
    ann.connect(ann.last_id)
    assert ann.seen == [("a", 1), ("b", 2)], "nothing is sent again"
    ann.accept()
    assert stage.engine.queue_depth("default", QUEUE) == 0
    assert stage.owners() == {"a": "ann", "b": "ann"}


def test_a_client_that_comes_back_does_not_have_what_went_to_another(stage):
    ann, bob = Consumer(stage, "ann"), Consumer(stage, "bob")
    stage.publish(*"ab")
    held = dict(ann.held)
    ann.lose_connection()
    assert bob.groups() == {"a", "b"}
    ann.connect(ann.last_id)
    ann.held = held
    ann.accept()
    assert stage.engine.queue_depth("default", QUEUE) == 2, "its settlement counts for nothing"
    bob.accept()
    assert stage.engine.queue_depth("default", QUEUE) == 0


def test_a_client_that_comes_back_does_not_have_what_it_held_of_a_group_that_another_has_now(stage):
    ann, bob = Consumer(stage, "ann"), Consumer(stage, "bob")
    stage.publish("a")
    ann.open(window=0)
    stage.reset("a")
    stage.publish("a")
    assert stage.owners() == {"a": "bob"}
    bob.open(window=0)
    ann.lose_connection()
    ann.connect(ann.last_id)
    ann.accept()
    assert stage.engine.queue_depth("default", QUEUE) == 2, "its settlement counts for nothing"
    bob.open()
    assert bob.seen == [("a", 2), ("a", 1)]


def test_buckets_bound_the_table(make_stage):
    stage = make_stage(buckets=3)
    ann, bob = Consumer(stage, "ann"), Consumer(stage, "bob")
    names = [f"group-{number}" for number in range(50)]
    stage.publish(*names, *names)
    assert len(stage.owners()) == 3
    assert not ann.groups() & bob.groups()


def test_what_was_there_before_the_groups_of_a_queue_changed_is_sent_in_the_new_ones(stage):
    stage.publish(*"abab")
    buckets = QueueSettings(AccessType.NON_EXCLUSIVE, grouping=Grouping(is_enabled=True, buckets=1))
    stage.engine.administration.change_queue("default", QUEUE, buckets)
    ann = Consumer(stage, "ann")
    assert ann.seen == [("a", 1), ("b", 2), ("a", 3), ("b", 4)]
    assert len(stage.owners()) == 1


def test_a_group_out_of_use_is_pinned_anew(make_stage):
    stage = make_stage(timeout_ms=1_000)
    ann = Consumer(stage, "ann")
    stage.publish("a")
    ann.accept()
    stage.pass_time(999)
    stage.publish("a")
    stage.pass_time(999)
    assert stage.owners() == {"a": "ann"}
    stage.pass_time(1)
    assert stage.owners() == {"a": "ann"}, "something of it is in flight"
    ann.accept()
    stage.pass_time(1_000)
    assert stage.owners() == {}
    assert stage.engine.surroundings.timetable.next_ms is None


def test_what_waits_for_a_consumer_without_room_goes_to_another_when_its_group_is_out_of_use(make_stage):
    stage = make_stage(timeout_ms=1_000)
    ann = Consumer(stage, "ann")
    stage.publish("a")
    ann.accept()
    ann.open(window=0)
    bob = Consumer(stage, "bob")
    stage.publish("a")
    assert bob.seen == []
    stage.pass_time(1_000)
    assert bob.seen == [("a", 2)]


def test_the_first_message_of_a_group_is_marked_for_each_consumer(make_stage):
    stage = make_stage(first_property="first")
    ann = Consumer(stage, "ann")
    stage.publish("a", "a", None)
    assert ann.firsts == [("a", 1)]
    bob = Consumer(stage, "bob")
    ann.unbind()
    assert bob.firsts == [("a", 1)]


def test_a_message_that_dies_on_its_way_is_not_the_first_of_its_group(make_stage):
    stage = make_stage(first_property="first")
    status = stage.engine.queue_status("default", QUEUE)
    stage.engine.administration.change_queue("default", QUEUE, replace(status.settings, redelivery_enabled=False))
    ann = Consumer(stage, "ann")
    stage.publish("a")
    ann.open(window=0)
    stage.publish("a")
    ann.unbind()
    bob = Consumer(stage, "bob")
    assert bob.seen == bob.firsts == [("a", 2)]


def test_while_all_consumers_are_full_a_settlement_looks_at_no_more_groups_than_it_makes_room_for(stage, monkeypatch):
    ann = Consumer(stage, "ann")
    ann.open(window=2)
    stage.publish(*map(str, range(50)))
    looks, taker_of = [], GroupLine._taker_of
    monkeypatch.setattr(GroupLine, "_taker_of", lambda line, part: looks.append(part) or taker_of(line, part))
    ann.open(window=2)
    assert [group for group, _ in ann.seen] == ["0", "1", "2", "3"]
    assert len(looks) == 2


def test_what_comes_back_while_all_consumers_are_full_goes_before_other_groups(stage):
    ann = Consumer(stage, "ann")
    ann.open(window=1)
    stage.publish("a", "b", "a")
    stage.carry_out(stage.engine.settle(ann.flow, [SettledRange(DeliveryId(1), DeliveryId(1), Outcome.FAILED)]))
    ann.open(window=3)
    assert ann.seen == [("a", 1), ("a", 1), ("b", 2), ("a", 3)]


def test_what_comes_back_again_and_again_has_all_groups_sorted_only_now_and_then(stage, monkeypatch):
    groups = [str(number) for number in range(50)]
    ann = Consumer(stage, "ann")
    stage.publish(*groups)
    ann.open(window=0)
    stage.publish(*groups)
    sorts = []
    monkeypatch.setattr(parts, "heapify", lambda entries: sorts.append(len(entries)) or heapify(entries))
    for _ in range(8 * len(groups)):
        delivery_id = DeliveryId(min(ann.held))
        del ann.held[delivery_id]
        stage.carry_out(stage.engine.settle(ann.flow, [SettledRange(delivery_id, delivery_id, Outcome.FAILED)]))
        ann.open(window=1)
    assert len(sorts) < 10
    ann.open()
    assert [ann.seen.count((group, number)) for number, group in enumerate(groups, 1)] == [9] * len(groups)
    assert ann.seen[-len(groups) :] == [(group, number) for number, group in enumerate(groups, len(groups) + 1)]


def test_groups_that_come_and_go_while_nobody_is_bound_leave_nothing(stage):
    ann = Consumer(stage, "ann")
    stage.publish("a")
    made = WeakSet()
    stage.engine.surroundings.key_of = lambda message: made.add(key := Key(message.content[0])) or key
    ann.open(window=0)
    for number in range(300):
        stage.publish(f"group {number}")
        stage.engine.administration.delete_messages("default", QUEUE)
    stage.publish("b")
    gc.collect()
    assert len(made) < 100
    ann.open()
    assert ann.seen == [("a", 1), ("b", 302)]


def test_a_group_that_comes_and_goes_while_its_consumer_is_full_leaves_nothing(stage):
    ann = Consumer(stage, "ann")
    stage.publish("a")
    ann.accept()
    Consumer(stage, "bob")
    made = []
    stage.engine.surroundings.key_of = lambda message: made.append(ref(key := Key(message.content[0]))) or key
    ann.open(window=0)
    for _ in range(20):
        stage.publish("a")
        stage.engine.administration.delete_messages("default", QUEUE)
    stage.publish("a")
    gc.collect()
    assert sum(each() is not None for each in made) < 5
    ann.open()
    assert ann.seen == [("a", 1), ("a", 22)]


def test_a_closing_message_is_the_last_for_its_consumer(stage):
    ann, bob = Consumer(stage, "ann"), Consumer(stage, "bob")
    stage.publish("a")
    stage.publish("a", closing=True)
    assert stage.owners() == {}
    stage.publish("a")
    assert [abs(number) for _, number in ann.seen] == [1, 2]
    assert bob.seen == [("a", 3)]


def test_one_group_or_all_are_reset(stage):
    ann = Consumer(stage, "ann")
    stage.publish(*"ab")
    bob = Consumer(stage, "bob")
    stage.reset("a")
    assert stage.owners() == {"b": "ann"}
    stage.publish("a", "b")
    assert {*stage.owners().values()} <= {"ann", "bob"}
    stage.reset()
    assert stage.owners() == {}
    assert ann.held
    assert bob is not None


def test_a_bucket_is_reset_by_the_name_that_it_is_listed_with(make_stage):
    stage = make_stage(buckets=4)
    ann = Consumer(stage, "ann")
    stage.publish(*"abcdefgh")
    for left in ("123", "23", "3", ""):
        stage.reset(min(stage.owners()))
        assert {*stage.owners()} == {*left}
    assert ann.held


def test_a_producer_that_asks_has_a_group_of_its_own(stage):
    ann, bob = Consumer(stage, "ann"), Consumer(stage, "bob")
    for _ in range(3):
        for producer in ("p1", "p2"):
            stage.publish("#auto", producer=producer)
    assert len(stage.owners()) == 2
    assert [number for _, number in ann.seen] == [1, 3, 5]
    assert [number for _, number in bob.seen] == [2, 4, 6]


@pytest.mark.parametrize("way", ["transaction", "direct"])
def test_a_producer_has_a_group_of_its_own_without_a_publisher_flow_too(stage, way):
    ann, bob = Consumer(stage, "ann"), Consumer(stage, "bob")
    producers = [stage.engine.connect("default", "user", "", name)[0] for name in ("p1", "p2")]
    for number in range(6):
        producer, message = producers[number % 2], Published("orders", ("#auto", number), 1)
        if way == "transaction":
            stage.carry_out(stage.engine.transactions.commit(producer, [message], ()))
        else:
            stage.carry_out(stage.engine.publish_direct(producer, message))
    assert [number for _, number in ann.seen] == [0, 2, 4]
    assert [number for _, number in bob.seen] == [1, 3, 5]


def test_groups_are_given_anew_to_all_when_a_consumer_joins_and_it_is_asked_for(make_stage):
    stage = make_stage(rebalances=True)
    ann = Consumer(stage, "ann")
    stage.publish(*"abcd")
    bob = Consumer(stage, "bob")
    stage.publish(*"abcd")
    assert len(bob.groups()) == 2
    assert len(ann.held) == 6


def test_what_waited_for_the_consumer_of_its_group_goes_to_another_as_a_third_one_joins(make_stage):
    """It waited until something else happened at the queue: the third one need not take anything."""
    stage = make_stage(rebalances=True)
    ann, bob = Consumer(stage, "ann"), Consumer(stage, "bob")
    ann.open(1)
    stage.publish("a", "a")
    assert bob.seen == []
    eve = stage.engine.connect("default", "user", "", "eve")[0]
    stage.carry_out(stage.engine.bind(eve, QUEUE)[1])
    assert bob.seen == [("a", 2)]


def test_nothing_is_sent_after_a_join_until_nothing_is_in_flight_where_that_is_asked_for(make_stage):
    stage = make_stage(rebalances=True, pauses=True)
    ann = Consumer(stage, "ann")
    stage.publish(*"abcd")
    bob = Consumer(stage, "bob")
    stage.publish(*"abcd", None)
    assert bob.seen == []
    assert len(ann.seen) == 4
    ann.accept()
    assert len(ann.seen) + len(bob.seen) == 9
    assert bob.groups() & set("abcd")


def test_an_exclusive_queue_has_no_groups():
    stage = GroupStage()
    changed = QueueSettings(AccessType.EXCLUSIVE, grouping=Grouping(is_enabled=True))
    stage.engine.administration.change_queue("default", QUEUE, changed)
    Consumer(stage, "ann")
    stage.publish("a")
    assert stage.owners() == {}


class GroupMachine(RuleBasedStateMachine):
    """Without resets and rebalances no two consumers ever have messages of one group, and each comes in order."""

    def __init__(self) -> None:
        super().__init__()
        self.stage = GroupStage(buckets=4, timeout_ms=50)
        self.consumers: list[Consumer] = []
        self.count = 0

    @rule(groups=st.lists(st.sampled_from((*"abcdef", None)), min_size=1, max_size=5))
    def publish(self, groups: list[str | None]) -> None:
        self.stage.publish(*groups)

    @rule()
    def join(self) -> None:
        if len(self.consumers) < 4:
            self.count += 1
            self.consumers.append(Consumer(self.stage, f"consumer-{self.count}"))

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), graceful=st.booleans())
    def leave(self, data: st.DataObject, graceful: bool) -> None:
        consumer = data.draw(st.sampled_from(self.consumers))
        self.consumers.remove(consumer)
        consumer.held.clear()
        if graceful:
            consumer.unbind()
        else:
            consumer.lose_connection()

    @precondition(lambda self: any(consumer.held for consumer in self.consumers))
    @rule(data=st.data())
    def accept(self, data: st.DataObject) -> None:
        consumer = data.draw(st.sampled_from([consumer for consumer in self.consumers if consumer.held]))
        consumer.accept(data.draw(st.sampled_from(sorted(consumer.held))))

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), window=st.sampled_from((0, 1, 255)))
    def open(self, data: st.DataObject, window: int) -> None:
        data.draw(st.sampled_from(self.consumers)).open(window)

    @rule(passed_ms=st.integers(1, 60))
    def pass_time(self, passed_ms: int) -> None:
        self.stage.pass_time(passed_ms)

    @invariant()
    def one_consumer_has_each_group(self) -> None:
        groups = [{group for group, _ in consumer.held.values()} - {None} for consumer in self.consumers]
        assert sum(map(len, groups)) == len(set().union(*groups))

    @invariant()
    def each_group_is_sent_in_order(self) -> None:
        for consumer in self.consumers:
            numbers: dict[str | None, int] = {}
            for delivery_id in sorted(consumer.held):
                group, number = consumer.held[delivery_id]
                if group is not None:
                    assert number > numbers.get(group, 0)
                    numbers[group] = number

    @invariant()
    def the_table_is_bounded(self) -> None:
        assert len(self.stage.owners()) <= 4

    def teardown(self) -> None:
        for consumer in self.consumers:
            consumer.held.clear()
            consumer.unbind()
        self.consumers.clear()
        last = Consumer(self.stage, "last")
        for _ in range(self.stage.published):
            if last.held:
                last.accept(min(last.held))
        assert self.stage.engine.queue_depth("default", QUEUE) == 0


TestGroupMachine = GroupMachine.TestCase
TestGroupMachine.settings = settings(max_examples=25, stateful_step_count=50, deadline=None)
