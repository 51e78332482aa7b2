"""A partitioned queue in the engine: what is sent to whom, over joins, losses and hand-offs; over 400 lines, as all of
it is played with the same few steps."""

from dataclasses import replace

import pytest

from lbg_runtime.broker.engine.answers import SettledRange
from lbg_runtime.broker.engine.changes import Change, Changes
from lbg_runtime.broker.engine.effects import ClientId, Deliver, Effect, FlowId, Published, one_by_one
from lbg_runtime.broker.engine.engine import Engine
from lbg_runtime.broker.engine.lines.partition_line import partition_of
from lbg_runtime.broker.engine.settings import AccessType, QueueSettings
from lbg_runtime.model.ids import DeliveryId, QueueName
from lbg_runtime.model.outcome import Outcome
from tests.broker.deadlines import call_due

QUEUE = QueueName("orders")
DELAY_MS, HANDOFF_MS = 5_000, 3_000
KEYS = tuple(f"key-{number}" for number in range(8))


class Consumer:
    """A client with one flow, and what it holds, in order."""

    def __init__(self, stage: "PartitionStage", name: str) -> None:
        self.stage = stage
        self.name = name
        self.client = stage.engine.connect("default", "user", "", name)[0]
        self.flow = FlowId(0)
        self.held: dict[int, tuple[str, int]] = {}
        self.flags: list[bool] = []
        self.seen: list[tuple[str, int]] = []
        self.last_id = 0

    def bind(self, last_received_id: int | None = None, partition_group: int | None = None) -> None:
        last = None if last_received_id is None else DeliveryId(last_received_id)
        bound = self.stage.engine.bind(self.client, QUEUE, last_received_id=last, partition_group=partition_group)[0]
        self.flow, self.partition_group = bound.flow, bound.partition_group
        self.stage.consumers[self.flow] = self
        self.open()

    def open(self, window: int = 255) -> None:
        self.stage.carry_out(self.stage.engine.open_window(self.flow, DeliveryId(self.last_id), window))

    def accept(self, count: int | None = None) -> None:
        for delivery_id in list(self.held)[:count]:
            self.settle(delivery_id)

    def settle(self, delivery_id: int, outcome: Outcome = Outcome.ACCEPTED) -> None:
        self.held.pop(delivery_id, None)
        each = SettledRange(DeliveryId(delivery_id), DeliveryId(delivery_id), outcome)
        self.stage.carry_out(self.stage.engine.settle(self.flow, [each]))

    def lose_connection(self) -> None:
        self.stage.carry_out(self.stage.engine.disconnect(self.client))

    def come_back(self, last_received_id: int | None) -> None:
        self.client = self.stage.engine.connect("default", "user", "", self.name)[0]
        self.bind(last_received_id)

    def unbind(self) -> None:
        self.held.clear()
        self.stage.carry_out(self.stage.engine.unbind(self.flow))

    def held_keys(self) -> set[str]:
        return {key for key, _ in self.held.values()}


class PartitionStage:
    """An engine with a partitioned queue; messages are pairs of key and number within the key."""

    def __init__(self, partition_count: int = 4, **settings: int) -> None:
        self.now_ms = 0
        self.chance = 0
        self.log: list[Change] = []
        self.begin_life("1")
        self.engine.create_queue(
            "default", QUEUE, QueueSettings(AccessType.NON_EXCLUSIVE, partition_count=partition_count, **settings)
        )
        self.engine.add_queue_subscription("default", QUEUE, ">")
        client: ClientId = self.engine.connect("default", "user", "", "publisher")[0]
        self.publisher = self.engine.open_publisher(client, "").flow
        self.published = 0
        self.numbers: dict[str | None, int] = {}
        self.consumers: dict[FlowId, Consumer] = {}

    def begin_life(self, instance: str) -> None:
        self.changes = Changes()
        self.engine = Engine(instance, self.changes)
        self.engine.surroundings.timetable.now = lambda: self.now_ms
        self.engine.surroundings.key_of = lambda message: message.content[0]  # type: ignore[index]  # pairs, see above
        self.engine.surroundings.choose = lambda count: self.chance % count

    def restart(self) -> None:
        """The broker dies and is started again from what it kept."""
        self.log += self.changes.take()
        self.begin_life("2")
        self.engine.restore(self.log)
        client = self.engine.connect("default", "user", "", "publisher")[0]
        self.publisher = self.engine.open_publisher(client, "").flow
        self.published = 0

    def publish(self, *keys: str | None) -> None:
        for key in keys:
            self.published += 1
            self.numbers[key] = self.numbers.get(key, 0) + 1
            message = Published("orders", (key, self.numbers[key]), 1)
            self.carry_out(self.engine.publish(self.publisher, self.published, message))

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in one_by_one(effects):
            assert isinstance(effect, Deliver)
            consumer = self.consumers[effect.flow]
            assert effect.delivery_id > consumer.last_id
            consumer.last_id = effect.delivery_id
            pair = effect.message.content
            consumer.held[effect.delivery_id] = pair  # type: ignore[assignment]  # pairs, see above
            consumer.seen.append(pair)  # type: ignore[arg-type]  # pairs, see above
            consumer.flags.append(effect.redelivered)

    def consumer(self, name: str) -> Consumer:
        consumer = Consumer(self, name)
        consumer.bind()
        return consumer

    def pass_time(self, duration_ms: int) -> None:
        """As a front end does: the engine is called at its deadlines."""
        until_ms = self.now_ms + duration_ms
        timetable = self.engine.surroundings.timetable
        while (at_ms := timetable.next_ms) is not None and at_ms <= until_ms:
            self.now_ms = at_ms
            self.carry_out(call_due(timetable))
        self.now_ms = until_ms


@pytest.fixture
def stage() -> PartitionStage:
    return PartitionStage()


@pytest.fixture
def pair(stage: PartitionStage) -> tuple[Consumer, Consumer]:
    """Two consumers with two partitions each."""
    consumers = stage.consumer("ann"), stage.consumer("bob")
    stage.pass_time(DELAY_MS)
    return consumers


def test_nothing_is_sent_before_the_rebalance_delay_is_over(stage):
    stage.publish(*KEYS)
    ann = stage.consumer("ann")
    stage.pass_time(DELAY_MS - 1)
    assert ann.seen == []
    stage.pass_time(1)
    assert ann.seen == [(key, 1) for key in KEYS], "one flow has all partitions, in the order of the queue"


def test_the_rebalance_delay_begins_with_the_bind(stage):
    ann = Consumer(stage, "ann")
    stage.engine.bind(ann.client, QUEUE)
    assert stage.engine.surroundings.timetable.next_ms == DELAY_MS


def test_all_messages_of_a_key_go_to_one_flow(stage, pair):
    ann, bob = pair
    stage.publish(*KEYS * 5)
    assert ann.held_keys() | bob.held_keys() == set(KEYS)
    assert not ann.held_keys() & bob.held_keys()
    assert all(len({partition_of(key, 4) % 4 for key in one.held_keys()}) <= 2 for one in pair)


def test_a_key_has_the_same_partition_in_every_life_of_a_broker():
    assert [partition_of(key, 4) for key in ("a", "b", "order-17")] == [3, 1, 0]


def test_a_message_without_a_key_goes_to_a_partition_by_chance(stage, pair):
    ann, bob = pair
    for stage.chance in range(8):
        stage.publish(None)
    assert (len(ann.seen), len(bob.seen)) == (4, 4)


def test_a_joining_flow_gets_a_partition_when_its_messages_are_settled(stage, pair):
    ann, bob = pair
    stage.publish(*KEYS * 2)
    cid = stage.consumer("cid")
    stage.pass_time(DELAY_MS)
    assert cid.seen == []
    stage.publish(*KEYS)
    assert len(ann.seen) + len(bob.seen) < 24, "a paused partition sends nothing new"
    ann.accept()
    bob.accept()
    assert cid.seen
    assert {number for _, number in cid.seen} == {3}, "what was settled is not sent again"
    assert not any(cid.flags)


def test_a_hand_off_that_takes_too_long_sends_what_is_not_settled_to_the_new_flow(stage, pair):
    stage.publish(*KEYS * 2)
    ann, bob = pair
    cid = stage.consumer("cid")
    stage.pass_time(DELAY_MS + HANDOFF_MS)
    moved = cid.held_keys()
    assert moved
    assert cid.flags == [True] * len(cid.seen)
    loser = ann if ann.held_keys() >= moved else bob
    old_ids = [id_ for id_, (key, _) in loser.held.items() if key in moved]
    depth = stage.engine.queue_depth("default", QUEUE)
    for id_ in old_ids:
        loser.settle(id_)
    assert stage.engine.queue_depth("default", QUEUE) == depth, "a late settlement counts for nothing"
    for key in moved:
        assert [number for k, number in cid.seen if k == key] == [1, 2]


def test_a_client_that_is_back_in_time_goes_on_as_if_nothing_had_been(stage, pair):
    ann, bob = pair
    stage.publish(*KEYS)
    keys = ann.held_keys()
    before = list(ann.seen)
    ann.lose_connection()
    stage.publish(*KEYS)
    assert bob.held_keys() == set(KEYS) - keys
    stage.pass_time(DELAY_MS - 1)
    ann.come_back(ann.last_id)
    assert ann.seen == before + [(key, 2) for key in KEYS if key in keys]
    assert not any(ann.flags)
    ann.accept()
    bob.accept()
    assert stage.engine.queue_depth("default", QUEUE) == 0


def test_a_client_that_never_received_anything_names_its_partitions(stage, pair):
    ann, _ = pair
    before = [p.client_name for p in stage.engine.queue_status("default", QUEUE).partitions]
    group = ann.partition_group
    ann.lose_connection()
    ann.client = stage.engine.connect("default", "user", "", "ann")[0]
    ann.bind(partition_group=group)
    assert ann.partition_group == group
    assert [p.client_name for p in stage.engine.queue_status("default", QUEUE).partitions] == before


def test_a_name_of_partitions_is_worth_nothing_from_another_client(stage, pair):
    ann, _ = pair
    group = ann.partition_group
    ann.lose_connection()
    eve = Consumer(stage, "eve")
    eve.bind(partition_group=group)
    assert eve.partition_group != group
    assert "eve" not in [p.client_name for p in stage.engine.queue_status("default", QUEUE).partitions]


def test_a_client_that_is_back_too_late_is_a_new_one(stage, pair):
    ann, bob = pair
    stage.publish(*KEYS)
    keys, last_id = ann.held_keys(), ann.last_id
    ann.lose_connection()
    stage.pass_time(DELAY_MS)
    assert bob.held_keys() == set(KEYS)
    ann.held.clear()
    ann.come_back(last_id)
    stage.pass_time(DELAY_MS - 1)
    assert ann.held == {}
    bob.accept()
    stage.pass_time(1)
    stage.publish(*KEYS)
    assert ann.held
    assert not ann.held_keys() & {key for key, number in bob.held.values() if number == 2}
    assert keys


def test_a_client_that_is_back_when_its_partitions_were_taken_away_has_no_claim_though_nobody_has_them(stage):
    ann = stage.consumer("ann")
    stage.pass_time(DELAY_MS)
    stage.publish(*KEYS)
    held, group = ann.held, ann.partition_group
    ann.lose_connection()
    stage.pass_time(DELAY_MS)
    ann.held = {}
    ann.come_back(ann.last_id)
    assert ann.partition_group != group
    ann.held = held
    ann.accept()
    assert stage.engine.queue_depth("default", QUEUE) == len(KEYS), "its old ids count for nothing"
    stage.pass_time(DELAY_MS)
    assert ann.seen == [(key, 1) for key in KEYS] * 2


def test_a_window_for_one_message_lets_one_through(stage):
    ann = stage.consumer("ann")
    stage.pass_time(DELAY_MS)
    ann.open(window=1)
    stage.publish(*KEYS)
    assert ann.seen == [(KEYS[0], 1)]


def test_a_client_that_was_restarted_has_no_claim_on_what_it_had(stage, pair):
    ann, bob = pair
    stage.publish(*KEYS)
    seen = ann.seen
    ann.lose_connection()
    ann.held.clear()
    ann.seen = []
    ann.come_back(None)
    assert ann.seen == []
    stage.pass_time(DELAY_MS)
    assert ann.seen == seen, "nobody else has room for less than it: it gets the same number of partitions"
    assert all(ann.flags[-len(seen) :])
    assert bob.held_keys() | ann.held_keys() == set(KEYS)


def test_a_flow_beyond_the_partitions_stands_by_and_takes_over_at_once(stage):
    consumers = [stage.consumer(name) for name in ("ann", "bob", "cid", "dan", "eve")]
    stage.pass_time(DELAY_MS)
    *fed, spare = consumers
    stage.publish(*KEYS)
    assert spare.seen == []
    assert {key for one in fed for key in one.held_keys()} == set(KEYS)
    leaver = next(one for one in fed if one.held)
    keys = leaver.held_keys()
    leaver.unbind()
    assert spare.held_keys() == keys
    assert all(spare.flags)


def test_one_flow_that_takes_nothing_does_not_hold_the_others_up(stage, pair):
    ann, bob = pair
    ann.open(window=0)
    stage.publish(*KEYS * 3)
    assert ann.seen == []
    bob_keys = bob.held_keys()
    assert len(bob.seen) == 3 * len(bob_keys)
    ann.open()
    assert len(ann.seen) == 24 - len(bob.seen)


def test_what_comes_back_is_sent_again_in_its_order(stage, pair):
    ann, _ = pair
    stage.publish(*KEYS * 3)
    key = sorted(ann.held_keys())[0]
    own = [id_ for id_, (k, _) in ann.held.items() if k == key]
    for id_ in own[:2]:
        ann.settle(id_, Outcome.FAILED)
    assert [number for k, number in ann.seen if k == key] == [1, 2, 3, 1, 2]
    assert ann.flags[-2:] == [True, True]


@pytest.mark.parametrize("way", ["connection", "broker"])
def test_what_a_client_came_back_to_and_then_gives_back_comes_again(stage, way):
    ann = stage.consumer("ann")
    stage.pass_time(DELAY_MS)
    stage.publish("a", "a")
    first = min(ann.held)
    if way == "connection":
        ann.lose_connection()
    else:
        stage.restart()
    ann.come_back(ann.last_id)
    stage.publish("a")
    assert [number for _, number in ann.seen] == [1, 2, stage.numbers["a"]], "nothing is sent again"
    ann.settle(first, Outcome.FAILED)
    assert ann.seen[-1] == ("a", 1)


def test_what_failed_and_was_settled_then_keeps_no_partition_from_moving_at_once(stage):
    ann = stage.consumer("ann")
    stage.pass_time(DELAY_MS)
    stage.publish(*KEYS)
    for delivery_id in list(ann.held):
        ann.settle(delivery_id, Outcome.FAILED)
    ann.accept()
    bob = stage.consumer("bob")
    stage.pass_time(DELAY_MS)
    stage.publish(*KEYS)
    assert bob.held_keys() | ann.held_keys() == set(KEYS)
    assert bob.seen


def test_what_is_behind_a_deleted_message_that_waited_is_sent(stage):
    stage.publish("a", "a")
    stage.engine.administration.delete_messages("default", QUEUE, {1})
    ann = stage.consumer("ann")
    stage.pass_time(DELAY_MS)
    assert ann.seen == [("a", 2)]


def test_status_tells_the_partitions(stage, pair):
    ann, bob = pair
    stage.publish(*KEYS)
    cid = stage.consumer("cid")
    stage.pass_time(DELAY_MS)
    status = stage.engine.queue_status("default", QUEUE)
    assert sum(p.depth for p in status.partitions) == status.depth == 8
    assert {p.state.value for p in status.partitions} >= {"ready"}
    assert {p.flow for p in status.partitions} <= {ann.flow, bob.flow, cid.flow}
    bob.unbind()
    states = {p.state.value for p in stage.engine.queue_status("default", QUEUE).partitions}
    assert "unbound" in states


def test_another_number_of_partitions_ends_the_flows_and_keeps_the_messages(stage, pair):
    stage.publish(*KEYS)
    settings = stage.engine.queue_status("default", QUEUE).settings
    changed = QueueSettings(AccessType.NON_EXCLUSIVE, partition_count=7)
    assert settings.partition_count == 4
    effects = stage.engine.administration.change_queue("default", QUEUE, changed)
    assert len(effects) == 2
    cid = stage.consumer("cid")
    stage.pass_time(DELAY_MS)
    assert cid.seen == [(key, 1) for key in KEYS]
    assert all(cid.flags)


def test_an_exclusive_queue_has_no_partitions():
    stage = PartitionStage()
    changed = QueueSettings(AccessType.EXCLUSIVE, partition_count=4)
    stage.engine.administration.change_queue("default", QUEUE, changed)
    ann = stage.consumer("ann")
    stage.publish(*KEYS)
    assert len(ann.seen) == 8


def test_times_that_change_hold_for_the_next_rebalance(stage, pair):
    changed = QueueSettings(
        AccessType.NON_EXCLUSIVE, partition_count=4, partition_rebalance_delay_ms=10, partition_max_handoff_ms=0
    )
    assert stage.engine.administration.change_queue("default", QUEUE, changed) == []
    stage.publish(*KEYS)
    cid = stage.consumer("cid")
    stage.pass_time(10)
    assert cid.held_keys()


def test_a_queue_that_is_deleted_is_not_called_any_more(stage, pair):
    pair[0].unbind()
    stage.engine.delete_queue("default", QUEUE)
    assert stage.engine.surroundings.timetable.next_ms is None


def test_after_a_restart_of_the_broker_a_client_has_the_partitions_of_what_it_holds(stage):
    ann = stage.consumer("ann")
    stage.pass_time(DELAY_MS)
    stage.publish(*KEYS)
    stage.restart()
    ann.come_back(ann.last_id)
    bob = stage.consumer("bob")
    stage.publish(*KEYS)
    assert {number for _, number in ann.seen} == {1, 2}
    stage.pass_time(DELAY_MS)
    assert bob.seen == [], "half of it moves when it is settled, and not before"
    ann.accept()
    assert not any(ann.flags)
    assert stage.engine.queue_depth("default", QUEUE) == 0
    stage.publish(*KEYS)
    assert bob.seen


def test_what_was_settled_in_vain_after_a_hand_off_comes_again_in_the_next_life_too(stage):
    ann = stage.consumer("ann")
    stage.pass_time(DELAY_MS)
    stage.publish(*KEYS)
    bob = stage.consumer("bob")
    bob.open(window=0)
    stage.pass_time(DELAY_MS + HANDOFF_MS)
    ann.accept()
    left = stage.engine.queue_depth("default", QUEUE)
    assert 0 < left < len(KEYS), "what was taken away is bob's to settle"
    stage.restart()
    ann.come_back(ann.last_id)
    stage.pass_time(DELAY_MS)
    assert len(ann.held) == left
    ann.accept()
    assert stage.engine.queue_depth("default", QUEUE) == 0


def test_after_a_restart_a_client_that_comes_too_late_has_no_claim(stage):
    ann = stage.consumer("ann")
    stage.pass_time(DELAY_MS)
    stage.publish(*KEYS)
    held = dict(ann.held)
    stage.restart()
    bob = stage.consumer("bob")
    bob.open(window=0)
    stage.pass_time(DELAY_MS)
    ann.held = {}
    ann.come_back(ann.last_id)
    ann.held = held
    ann.accept()
    assert stage.engine.queue_depth("default", QUEUE) == len(KEYS), "what it held is bob's to settle"
    bob.open()
    assert [number for _, number in bob.seen] == [1] * len(KEYS)


def test_what_waits_out_its_delay_when_its_flow_leaves_does_not_keep_its_partition_from_the_next():
    stage = PartitionStage(redelivery_delay_enabled=True, redelivery_delay_initial_ms=2 * DELAY_MS)
    ann, bob = stage.consumer("ann"), stage.consumer("bob")
    stage.pass_time(DELAY_MS)
    stage.publish(*KEYS)
    failed = next(iter(ann.held.items()))
    ann.settle(failed[0], Outcome.FAILED)
    ann.unbind()
    stage.pass_time(DELAY_MS)
    assert bob.held_keys() == set(KEYS) - {failed[1][0]}
    stage.pass_time(DELAY_MS)
    assert bob.held_keys() == set(KEYS)


def test_what_waits_out_its_delay_when_its_queue_is_shut_is_counted_and_comes_again():
    stage = PartitionStage(redelivery_delay_enabled=True, redelivery_delay_initial_ms=2 * DELAY_MS)
    ann = stage.consumer("ann")
    stage.pass_time(DELAY_MS)
    stage.publish("a")
    ann.settle(ann.last_id, Outcome.FAILED)
    opened = stage.engine.queue_status("default", QUEUE).settings
    stage.engine.administration.change_queue("default", QUEUE, replace(opened, egress_enabled=False))
    stage.engine.administration.change_queue("default", QUEUE, opened)
    assert sum(p.depth for p in stage.engine.queue_status("default", QUEUE).partitions) == 1
    ann.bind()
    stage.pass_time(2 * DELAY_MS)
    assert ann.seen == [("a", 1)] * 2
    ann.accept()
    assert sum(p.depth for p in stage.engine.queue_status("default", QUEUE).partitions) == 0
