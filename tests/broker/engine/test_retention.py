"""Lives that end, redeliveries that are counted or come later, and where dead messages go.

Over 400 lines, as all of it is played on one stage.
"""

import gc
import weakref
from collections import Counter
from dataclasses import replace

import pytest

from lbg_runtime.broker.engine.answers import Death, DeathCounts
from lbg_runtime.broker.engine.changes import Changes
from lbg_runtime.broker.engine.effects import Deliver, Published, one_by_one
from lbg_runtime.broker.engine.engine import Engine
from lbg_runtime.broker.engine.intake import Obstacle
from lbg_runtime.broker.engine.settings import AccessType, QueueSettings
from lbg_runtime.broker.engine.traits import Traits
from lbg_runtime.model.ids import QueueName
from lbg_runtime.model.outcome import Outcome
from tests.broker.deadlines import call_due
from tests.broker.engine.conftest import QUEUE, Stage

DEAD = QueueName("#DEAD_MSG_QUEUE")


class AgingStage(Stage):
    """A stage with a dead message queue and a clock; content of messages can be `Traits`."""

    def __init__(self, **settings: object) -> None:
        super().__init__()
        self.now_ms = 1_000
        self.wall_s = 5_000.0
        self.changes = Changes()
        self.engine = Engine("aging", self.changes)
        self.engine.surroundings.timetable.now = lambda: self.now_ms
        self.engine.surroundings.wall_s = lambda: self.wall_s
        self.engine.surroundings.traits_of = lambda m: m.content if isinstance(m.content, Traits) else Traits()
        self.engine.create_queue("default", QUEUE, QueueSettings(**settings))
        self.engine.add_queue_subscription("default", QUEUE, "orders/>")
        self.engine.create_queue("default", DEAD, QueueSettings())
        self.publisher_client, _ = self.engine.connect("default", "user", "", "publisher")
        self.publisher = self.engine.open_publisher(self.publisher_client, "").flow

    def send(self, content: object, spooled_at_s: int | None = None) -> list:
        self.published += 1
        message = Published("orders/new", content, 1, spooled_at_s)
        return self.engine.publish(self.publisher, self.published, message)

    def pass_time(self, ms: int) -> list:
        self.now_ms += ms
        return call_due(self.engine.surroundings.timetable)

    def dead(self) -> int:
        return self.engine.queue_depth("default", DEAD)


def delivered(effects: list) -> list[int]:
    return [effect.delivery_id for effect in one_by_one(effects) if isinstance(effect, Deliver)]


def test_a_rejected_message_moves_to_the_dead_message_queue_and_its_consumer_gets_it_there():
    stage = AgingStage()
    ann, flow = stage.open_consumer("ann")
    grave = stage.engine.bind(ann, DEAD)[0].flow
    stage.open(grave)
    stage.publish(1)
    effects = stage.settle(flow, 1, 1, Outcome.REJECTED)
    assert [(effect.flow, effect.redelivered) for effect in effects] == [(grave, False)]
    assert (stage.queue.depth, stage.dead()) == (0, 1)
    assert stage.queue.deaths == DeathCounts(buried=Counter([Death.REJECTED]))


@pytest.mark.parametrize(
    ("settings", "eligible", "dead"),
    [
        ({}, False, 1),
        ({"respect_dead_message_eligible": True}, True, 1),
        ({"respect_dead_message_eligible": True}, False, 0),
        ({"dead_message_queue": "missing"}, True, 0),
        ({"dead_message_queue": str(QUEUE)}, True, 0),
    ],
)
def test_which_dead_messages_are_discarded(settings, eligible, dead):
    stage = AgingStage(**settings)
    _, flow = stage.open_consumer("ann")
    stage.send(Traits(may_go_to_dead_messages=eligible))
    stage.settle(flow, 1, 1, Outcome.REJECTED)
    assert (stage.queue.depth, stage.dead()) == (0, dead)
    assert stage.queue.deaths.discarded[Death.REJECTED] == 1 - dead


def test_a_full_dead_message_queue_takes_nothing():
    stage = AgingStage()
    stage.engine.administration.change_queue("default", DEAD, QueueSettings(quota_bytes=0))
    _, flow = stage.open_consumer("ann")
    stage.publish(1)
    stage.settle(flow, 1, 1, Outcome.REJECTED)
    assert (stage.queue.depth, stage.dead(), stage.queue.deaths.discarded[Death.REJECTED]) == (0, 0, 1)


def test_a_message_that_may_not_go_to_the_dead_message_queue_is_no_discard_of_that_queue():
    stage = AgingStage(respect_dead_message_eligible=True)
    stage.engine.administration.change_queue("default", DEAD, QueueSettings(quota_bytes=0))
    _, flow = stage.open_consumer("ann")
    for id_, eligible in ((1, False), (2, True)):
        stage.send(Traits(may_go_to_dead_messages=eligible))
        stage.settle(flow, id_, id_, Outcome.REJECTED)
    assert stage.queue.deaths.discarded[Death.REJECTED] == 2
    assert stage.engine.queue_status("default", DEAD).discards[Obstacle.OVER_QUOTA] == 1


def test_a_message_is_redelivered_as_often_as_may_be_and_then_dies():
    stage = AgingStage(max_redelivery_count=2)
    _, flow = stage.open_consumer("ann")
    ids = delivered(stage.publish(1))
    for _ in range(2):
        ids = delivered(stage.settle(flow, ids[0], ids[0], Outcome.FAILED))
        assert len(ids) == 1
    assert stage.settle(flow, ids[0], ids[0], Outcome.FAILED) == []
    assert (stage.queue.depth, stage.dead()) == (0, 1)
    assert (stage.queue.deaths.buried[Death.WORN_OUT], stage.queue.redelivered_count) == (1, 2)


def test_deliveries_to_clients_that_go_away_count_too():
    stage = AgingStage(max_redelivery_count=1)
    stage.publish(2)
    for name in ("ann", "bob"):
        client, flow = stage.consumer(name)
        assert len(stage.deliveries(stage.open(flow))) == 2
        stage.engine.disconnect(client)
    _, flow = stage.consumer("cay")
    assert stage.open(flow) == []
    assert (stage.queue.depth, stage.dead()) == (0, 2)


def test_what_dies_as_a_client_goes_is_not_sent_to_it_once_more_on_its_other_queue():
    """It counted as delivered there, to a connection that was gone: nobody had seen it, and it had worn out."""
    stage = AgingStage(redelivery_enabled=False)
    stage.engine.administration.change_queue("default", DEAD, QueueSettings(redelivery_enabled=False))
    ann, _ = stage.open_consumer("ann")
    stage.open(stage.engine.bind(ann, DEAD)[0].flow)
    bob, _ = stage.open_consumer("bob")
    stage.publish(1)
    assert delivered(stage.engine.disconnect(ann)) == []
    assert (stage.queue.depth, stage.dead()) == (0, 1)
    grave = stage.engine.bind(bob, DEAD)[0].flow
    (sent,) = stage.deliveries(stage.open(grave))
    assert (sent.message.content, sent.redelivered) == (1, False)


def test_without_redelivery_the_first_failure_is_the_last():
    stage = AgingStage(redelivery_enabled=False)
    _, flow = stage.open_consumer("ann")
    stage.publish(2)
    stage.settle(flow, 1, 1, Outcome.FAILED)
    assert (stage.queue.depth, stage.dead()) == (1, 1)


def test_a_failed_message_waits_out_its_delay_which_grows_to_a_most_and_others_go_ahead():
    stage = AgingStage(
        redelivery_delay_enabled=True,
        redelivery_delay_initial_ms=100,
        redelivery_delay_multiplier_percent=300,
        redelivery_delay_max_ms=500,
    )
    _, flow = stage.open_consumer("ann")
    last = delivered(stage.publish(1))[0]
    for delay_ms in (100, 300, 500, 500):
        assert stage.settle(flow, last, last, Outcome.FAILED) == []
        assert stage.pass_time(delay_ms - 1) == []
        (last,) = delivered(stage.pass_time(1))
    stage.settle(flow, last, last, Outcome.FAILED)
    assert stage.numbers(stage.publish(1)) == [2]
    assert stage.queue.depth == 2


def test_each_of_several_failed_messages_waits_out_its_own_delay():
    stage = AgingStage(redelivery_delay_enabled=True, redelivery_delay_initial_ms=100)
    _, flow = stage.open_consumer("ann")
    stage.publish(2)
    stage.settle(flow, 1, 1, Outcome.FAILED)
    stage.pass_time(60)
    stage.settle(flow, 2, 2, Outcome.FAILED)
    assert stage.numbers(stage.pass_time(40)) == [1]
    assert stage.numbers(stage.pass_time(60)) == [2]


@pytest.mark.parametrize("settings", [{"redelivery_enabled": False}, {"respect_time_to_live": True}])
def test_a_message_that_dies_where_there_is_no_queue_for_the_dead_is_counted_as_discarded(settings):
    stage = AgingStage(dead_message_queue="missing", **settings)
    _, flow = stage.consumer("ann")
    stage.send(Traits(time_to_live_ms=10))
    if settings.get("respect_time_to_live"):
        stage.pass_time(10)
    else:
        stage.open(flow)
        stage.settle(flow, 1, 1, Outcome.FAILED)
    assert (stage.queue.depth, stage.queue.deaths.discarded.total()) == (0, 1)


def test_a_message_dies_of_its_own_time_to_live_where_that_is_respected():
    stage = AgingStage(respect_time_to_live=True)
    stage.send(Traits(time_to_live_ms=300))
    stage.send(Traits())
    stage.pass_time(299)
    assert (stage.queue.depth, stage.dead()) == (2, 0)
    stage.pass_time(1)
    assert (stage.queue.depth, stage.dead()) == (1, 1)
    assert stage.queue.deaths == DeathCounts(buried=Counter([Death.EXPIRED]))


@pytest.mark.parametrize("max_redelivery_count", [0, 3])
def test_a_message_lives_for_ever_where_that_is_not_respected(max_redelivery_count):
    stage = AgingStage(max_ttl_s=1, max_redelivery_count=max_redelivery_count)
    stage.send(Traits(time_to_live_ms=1))
    stage.pass_time(1_000_000)
    assert stage.queue.depth == 1


def test_what_is_left_of_very_many_messages_dies_when_its_life_ends():
    stage = AgingStage(respect_time_to_live=True)
    for _ in range(80):
        stage.send(Traits(time_to_live_ms=100))
    stage.engine.administration.delete_messages("default", QUEUE, range(2, 81))
    stage.send(Traits(time_to_live_ms=200))
    stage.pass_time(100)
    assert (stage.queue.depth, stage.queue.deaths.buried[Death.EXPIRED]) == (1, 1)
    stage.pass_time(100)
    assert (stage.queue.depth, stage.queue.deaths.buried[Death.EXPIRED]) == (0, 2)


def test_the_lesser_of_what_the_message_and_the_queue_say_counts():
    stage = AgingStage(respect_time_to_live=True, max_ttl_s=2)
    for life_ms in (1_000, 3_000, 0):
        stage.send(Traits(time_to_live_ms=life_ms))
    stage.pass_time(1_000)
    assert stage.queue.depth == 2
    stage.pass_time(1_000)
    assert stage.queue.depth == 0


def test_a_life_that_ends_while_a_consumer_holds_the_message_ends_when_it_comes_back():
    stage = AgingStage(respect_time_to_live=True)
    ann, flow = stage.open_consumer("ann")
    stage.send(Traits(time_to_live_ms=10))
    stage.send(Traits(time_to_live_ms=10))
    stage.pass_time(10)
    assert stage.queue.depth == 2
    stage.settle(flow, 1, 1)
    stage.engine.disconnect(ann)
    _, flow = stage.consumer("bob")
    assert stage.open(flow) == []
    assert (stage.queue.depth, stage.dead()) == (0, 1)


@pytest.mark.parametrize("how", ["unbind", "disconnect", "fail", "fail_with_delay"])
def test_a_life_that_ends_while_a_consumer_holds_the_message_needs_no_other_consumer_to_end(how):
    stage = AgingStage(respect_time_to_live=True, redelivery_delay_enabled=how == "fail_with_delay")
    ann, flow = stage.consumer("ann")
    stage.open(flow, window=1)
    stage.send(Traits(time_to_live_ms=10))
    stage.pass_time(10)
    if how == "unbind":
        stage.engine.unbind(flow)
    elif how == "disconnect":
        stage.engine.disconnect(ann)
    else:
        # It has no room for another message, so nobody asks for this one.
        stage.settle(flow, 1, 1, Outcome.FAILED)
    assert stage.queue.depth == 1
    stage.pass_time(1_000 if how == "fail_with_delay" else 0)
    assert (stage.queue.depth, stage.dead()) == (0, 1)


def test_what_expired_in_a_consumers_hands_and_was_in_a_deleted_queue_dies_nowhere():
    stage = AgingStage(respect_time_to_live=True)
    stage.open_consumer("ann")
    stage.send(Traits(time_to_live_ms=10))
    stage.pass_time(10)
    stage.engine.delete_queue("default", QUEUE)
    stage.changes.take()
    stage.pass_time(10)
    assert (stage.dead(), stage.changes.take()) == (0, [])


def test_a_life_that_is_longer_by_new_settings_has_not_ended():
    stage = AgingStage(respect_time_to_live=True, max_ttl_s=1)
    ann, flow = stage.open_consumer("ann")
    stage.send(Traits(), spooled_at_s=5_000)
    stage.now_ms, stage.wall_s = 3_000, 5_002.0
    stage.pass_time(0)
    longer = QueueSettings(respect_time_to_live=True, max_ttl_s=60)
    stage.engine.administration.change_queue("default", QUEUE, longer)
    stage.engine.disconnect(ann)
    stage.pass_time(0)
    _, flow = stage.consumer("bob")
    assert len(stage.open(flow)) == 1
    stage.pass_time(58_000)
    stage.engine.unbind(flow)
    stage.pass_time(0)
    assert (stage.queue.depth, stage.dead()) == (0, 1)


def test_settings_that_come_later_count_for_what_is_there():
    stage = AgingStage()
    stage.send(Traits(time_to_live_ms=10_000), spooled_at_s=4_995)
    stage.engine.administration.change_queue("default", QUEUE, QueueSettings(respect_time_to_live=True))
    stage.pass_time(4_999)
    assert stage.queue.depth == 1
    stage.pass_time(1)
    assert stage.queue.depth == 0


@pytest.mark.parametrize("access_type", AccessType)
def test_higher_priorities_go_first_and_equal_ones_in_order_where_that_is_switched_on(access_type):
    stage = AgingStage(access_type=access_type, respect_priority=True)
    for priority in (4, 9, 0, 4, 9):
        stage.send(Traits(priority=priority))
    ann, flow = stage.consumer("ann")
    sent = stage.deliveries(stage.open(flow))
    assert [each.message.content.priority for each in sent] == [9, 9, 4, 4, 0]
    stage.settle(flow, sent[0].delivery_id, sent[0].delivery_id)
    stage.send(Traits(priority=5))
    stage.engine.disconnect(ann)
    _, flow = stage.consumer("bob")
    assert [content.priority for content in stage.numbers(stage.open(flow))] == [9, 5, 4, 4, 0]


def test_priority_can_be_switched_on_and_off_with_messages_there():
    stage = AgingStage()
    for priority in (1, 2, 3):
        stage.send(Traits(priority=priority))
    for respects, expected in ((True, [3, 2, 1]), (False, [1, 2, 3])):
        changed = QueueSettings(respect_priority=respects)
        stage.engine.administration.change_queue("default", QUEUE, changed)
        client, flow = stage.consumer(f"{respects}")
        assert [content.priority for content in stage.numbers(stage.open(flow))] == expected
        stage.engine.disconnect(client)


@pytest.mark.parametrize("respects", [True, False])
def test_what_a_consumer_has_as_priority_is_switched_on_or_off_comes_back_to_its_new_place(*, respects):
    """It went ahead of all that had not been sent yet."""
    stage = AgingStage(respect_priority=not respects)
    client, flow = stage.consumer("ann")
    for priority in (1, 3, 2):
        stage.send(Traits(priority=priority))
    had = stage.numbers(stage.open(flow, window=1))
    stage.engine.administration.change_queue("default", QUEUE, QueueSettings(respect_priority=respects))
    stage.engine.disconnect(client)
    assert [content.priority for content in had] == ([1] if respects else [3])
    _, flow = stage.consumer("bob")
    assert [content.priority for content in stage.numbers(stage.open(flow))] == ([3, 2, 1] if respects else [1, 3, 2])


@pytest.mark.parametrize("partitions", [1, 0])
def test_what_waits_out_its_delay_as_a_queue_is_divided_comes_back_to_its_place(partitions):
    """Or as it is divided no more: it went ahead of what had been given back before it."""
    undivided, divided = (QueueSettings(AccessType.NON_EXCLUSIVE, partition_count=count) for count in (0, 1))
    before, after = (undivided, divided) if partitions else (divided, undivided)
    stage = AgingStage()
    stage.engine.administration.change_queue("default", QUEUE, replace(before, redelivery_delay_enabled=True))
    _, flow = stage.open_consumer("ann")
    stage.pass_time(10_000)
    stage.publish(2)
    stage.settle(flow, 2, 2, Outcome.FAILED)
    stage.engine.administration.change_queue("default", QUEUE, after)
    stage.pass_time(10_000)
    _, flow = stage.consumer("bob")
    assert stage.numbers(stage.open(flow) + stage.pass_time(10_000)) == [1, 2]


class Held(Traits):
    """Traits of which can be seen whether anybody still has them."""


def test_what_was_in_a_deleted_queue_dies_nowhere():
    stage = AgingStage(respect_time_to_live=True, redelivery_delay_enabled=True)
    _, flow = stage.consumer("ann")
    stage.open(flow, window=1)
    stage.send(Traits(time_to_live_ms=5_000))
    stage.send(Traits(time_to_live_ms=1_000))
    stage.settle(flow, 1, 1, Outcome.FAILED)
    stage.engine.delete_queue("default", QUEUE)
    stage.changes.take()
    assert stage.pass_time(10_000) == []
    # What is told now is of a queue that nobody knows any more.
    assert (stage.dead(), stage.changes.take()) == (0, [])


def test_a_deleted_queue_is_not_in_memory_until_its_messages_would_have_died():
    stage = AgingStage(respect_time_to_live=True)
    held = Held(time_to_live_ms=86_400_000)
    seen = weakref.ref(held)
    stage.send(held)
    del held
    stage.engine.delete_queue("default", QUEUE)
    stage.changes.take()
    gc.collect()
    assert seen() is None


def test_the_time_to_live_of_a_dead_message_begins_anew_however_it_is_counted():
    stage = AgingStage()
    change = stage.engine.administration.change_queue
    change("default", DEAD, QueueSettings(respect_time_to_live=True))
    _, flow = stage.open_consumer("ann")
    stage.send(Traits(time_to_live_ms=10_000), spooled_at_s=5_000)
    stage.now_ms, stage.wall_s = 9_000, 5_008.0
    stage.settle(flow, 1, 1, Outcome.REJECTED)
    stage.now_ms, stage.wall_s = 13_000, 5_012.0
    # Counted by the wall now, as by a broker that is started again.
    change("default", DEAD, QueueSettings(respect_time_to_live=True, max_bind_count=5))
    stage.pass_time(0)
    assert stage.dead() == 1
    stage.pass_time(6_000)
    assert stage.dead() == 0
