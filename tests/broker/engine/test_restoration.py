"""A broker made again from its changes is what the first would be after all connections broke at once."""

import pytest
from hypothesis import settings
from hypothesis.stateful import initialize, rule

from lbg_runtime.broker.engine import publisher_flow
from lbg_runtime.broker.engine.changes import (
    Change,
    Changes,
    DeliveryIdsSkipped,
    FlowGone,
    FlowKept,
    MessageKept,
    MessagesDelivered,
    PublisherGone,
    PublisherKept,
)
from lbg_runtime.broker.engine.effects import Published
from lbg_runtime.broker.engine.engine import Engine
from lbg_runtime.broker.engine.settings import Permission, QueueSettings
from lbg_runtime.model.errors import BrokerRefusal
from lbg_runtime.model.ids import DeliveryId, QueueName
from lbg_runtime.model.outcome import Outcome
from tests.broker.engine.conftest import QUEUE, Stage
from tests.broker.engine.test_engine_machine import EngineMachine


class KeepingMachine(EngineMachine):
    """The machine of the engine, with deaths of the broker in between."""

    def __init__(self) -> None:
        super().__init__()
        self.changes = Changes()
        self.log: list[Change] = []
        self.lives = 1

    @initialize()
    def begin(self) -> None:
        self.engine = Engine("1", self.changes)
        self.set_up()
        self.publisher_name = "1-1"

    @rule()
    def die(self) -> None:
        self.log += self.changes.take()
        for handle in list(self.flows.values()):
            self.leave(handle)
        self.connections.clear()
        self.lives += 1
        self.changes = Changes()
        self.engine = Engine(str(self.lives), self.changes)
        self.engine.restore(self.log)
        assert not self.changes
        publisher, _ = self.engine.connect("default", "user", "", "publisher")
        opened = self.engine.open_publisher(publisher, self.publisher_name)
        assert opened.name == self.publisher_name
        assert opened.last_answered_id <= self.last_number
        self.publisher = opened.flow


TestKeepingMachine = KeepingMachine.TestCase
TestKeepingMachine.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


class KeptStage(Stage):
    """A stage whose broker can be made again."""

    def __init__(self) -> None:
        super().__init__()
        self.changes = Changes()
        self.engine = Engine("1", self.changes)
        self.engine.create_queue("default", QUEUE, QueueSettings())
        self.engine.add_queue_subscription("default", QUEUE, "orders/>")
        self.publisher_client, _ = self.engine.connect("default", "user", "", "publisher")
        self.opened = self.engine.open_publisher(self.publisher_client, "")
        self.publisher = self.opened.flow
        self.log: list[Change] = []

    def die(self) -> None:
        self.log += self.changes.take()
        self.changes = Changes()
        self.engine = Engine("2", self.changes)
        self.engine.restore(self.log)

    def resume(self) -> int:
        """The publisher comes back; what it is told to be answered."""
        client, _ = self.engine.connect("default", "user", "", "publisher")
        flow = self.engine.open_publisher(client, self.opened.name)
        self.publisher = flow.flow
        return flow.last_answered_id


@pytest.fixture
def kept() -> KeptStage:
    return KeptStage()


def test_messages_queues_and_subscriptions_are_there_again(kept):
    kept.publish(3)
    kept.engine.provision(kept.publisher_client, QueueName("owned"), QueueSettings(permission=Permission.CONSUME))
    kept.engine.add_queue_subscription("default", QueueName("owned"), "a/b")
    kept.engine.add_queue_subscription("default", QueueName("owned"), "a/c")
    kept.engine.remove_queue_subscription("default", QueueName("owned"), "a/b")
    kept.engine.create_queue("default", QueueName("gone"), QueueSettings())
    kept.engine.delete_queue("default", QueueName("gone"))

    kept.die()

    assert kept.engine.queue_names("default") == (QUEUE, "owned")
    owned = kept.engine.queue_status("default", QueueName("owned"))
    assert (owned.settings.owner, owned.settings.permission) == ("user", Permission.CONSUME)
    assert owned.subscriptions == ("a/c",)
    assert kept.numbers(kept.open(kept.consumer("ann")[1])) == [1, 2, 3]


def test_what_an_administrator_copied_is_there_again_on_both_queues(kept):
    kept.publish(2)
    other = QueueName("other")
    kept.engine.create_queue("default", other, QueueSettings())
    number = next(kept.engine.administration.queue_messages("default", QUEUE, 1)).message.number
    kept.engine.administration.copy_message("default", QUEUE, number, other)
    kept.engine.administration.delete_messages("default", QUEUE, {2})
    kept.die()
    held = [
        [each.message.number for each in kept.engine.administration.queue_messages("default", q)]
        for q in (QUEUE, other)
    ]
    assert held == [[number - 1], [number]]
    with pytest.raises(LookupError):
        kept.engine.administration.copy_message("default", QUEUE, number, other)


def test_what_a_publisher_sends_again_after_the_death_is_dropped(kept):
    kept.publish(2)
    kept.die()
    assert kept.resume() == 2
    assert kept.engine.publish(kept.publisher, 2, Published("orders/new", "again", 1)) == []
    assert kept.queue.depth == 2


def test_what_was_refused_and_not_heard_of_is_refused_again(kept):
    kept.engine.administration.change_queue("default", QUEUE, QueueSettings(max_message_bytes=1))
    kept.publish(1)
    with pytest.raises(BrokerRefusal):
        kept.publish(1, size_bytes=2)
    kept.publish(1)
    kept.die()
    assert kept.resume() == 1
    with pytest.raises(BrokerRefusal, match="400 Document Is Too Large"):
        kept.engine.publish(kept.publisher, 2, Published("orders/new", 2, 2))


@pytest.mark.parametrize("is_standby", [False, True])
def test_a_client_keeps_what_it_held_under_another_name(kept, is_standby):
    ann, flow = kept.consumer("ann")
    kept.publish(3)
    kept.open(flow)
    if is_standby:
        # Its handle was bound again, and has not been fed since.
        kept.consumer("bob")
        kept.engine.disconnect(ann)
        ann = kept.client("ann")
        kept.bind(ann, last_received_id=3)
    kept.log += kept.changes.take()
    kept.engine.rename(ann, "anna")
    kept.die()
    flow = kept.bind(kept.client("anna"), last_received_id=3).flow
    assert kept.open(flow, 3) == []
    kept.settle(flow, 0, 3)
    assert kept.queue.depth == 0


def test_a_client_keeps_what_it_held_and_is_not_sent_it_again(kept):
    _, flow = kept.consumer("ann")
    kept.open(flow)
    kept.publish(5)
    kept.settle(flow, 1, 2)
    kept.die()

    flow = kept.bind(kept.client("ann"), last_received_id=5).flow

    assert kept.open(flow, 5) == []
    kept.settle(flow, 0, 5)
    assert kept.queue.depth == 0


def test_what_a_client_came_back_to_before_the_death_it_has_after_it_too(kept):
    ann, flow = kept.consumer("ann")
    kept.open(flow)
    kept.publish(5)
    kept.engine.disconnect(ann)
    kept.bind(kept.client("ann"), last_received_id=5)
    kept.die()

    flow = kept.bind(kept.client("ann"), last_received_id=5).flow

    assert kept.open(flow, 5) == []
    kept.settle(flow, 0, 5)
    assert kept.queue.depth == 0


def test_what_a_client_gave_back_before_the_death_comes_to_it_again_in_its_place(kept):
    _, flow = kept.consumer("ann")
    kept.publish(3)
    kept.open(flow, window=2)
    assert kept.settle(flow, 1, 1, Outcome.FAILED) == []  # There is no room for it.
    kept.die()

    flow = kept.bind(kept.client("ann"), last_received_id=2).flow

    effects = kept.open(flow, 2)
    assert (kept.numbers(effects), kept.flags(effects)) == ([1, 3], [True, False])
    kept.settle(flow, 2, 2)
    assert kept.queue.depth == 2


def lost_with_all_settled(kept, ann, flow):
    kept.settle(flow, 1, 3)
    kept.engine.disconnect(ann)


def given_up(kept, ann, flow):
    kept.engine.unbind(flow)


def given_up_by_a_standby(kept, ann, flow):
    kept.consumer("bob")
    kept.engine.disconnect(ann)
    kept.engine.unbind(kept.bind(kept.client("ann"), last_received_id=3).flow)


def settled_by_a_standby(kept, ann, flow):
    kept.consumer("bob")
    kept.engine.disconnect(ann)
    kept.settle(kept.bind(kept.client("ann"), last_received_id=3).flow, 1, 3)


def given_back_by_a_standby(kept, ann, flow):
    kept.consumer("bob")
    kept.engine.disconnect(ann)
    kept.settle(kept.bind(kept.client("ann"), last_received_id=3).flow, 1, 3, Outcome.FAILED)


def lost_with_nothing_received(kept, ann, flow):
    kept.settle(flow, 1, 1)
    kept.engine.disconnect(ann)
    kept.bind(kept.client("ann"), last_received_id=1)


def taken_over_and_given_up(kept, ann, flow):
    kept.engine.disconnect(ann)
    kept.engine.unbind(kept.bind(kept.client("ann"), last_received_id=3).flow)


def lost_and_then_removed(kept, ann, flow):
    kept.engine.disconnect(ann)
    kept.engine.administration.delete_messages("default", QUEUE)


def ended_with_its_queue(kept, ann, flow):
    kept.engine.administration.change_queue("default", QUEUE, QueueSettings(egress_enabled=False))


@pytest.mark.parametrize(
    "way",
    [
        lost_with_all_settled,
        given_up,
        given_up_by_a_standby,
        settled_by_a_standby,
        given_back_by_a_standby,
        lost_with_nothing_received,
        taken_over_and_given_up,
        lost_and_then_removed,
        ended_with_its_queue,
    ],
)
def test_nothing_is_kept_of_a_flow_to_which_nobody_can_come_back(kept, way):
    ann, flow = kept.consumer("ann")
    kept.open(flow)
    kept.publish(3)

    way(kept, ann, flow)

    flows = set()
    for change in kept.changes.take():
        if isinstance(change, FlowKept):
            flows.add(change.flow)
        elif isinstance(change, FlowGone):
            flows.discard(change.flow)
    assert flows == set()


def test_who_comes_anew_gets_everything_flagged_under_ids_never_used_before(kept):
    _, flow = kept.consumer("ann")
    kept.open(flow)
    kept.publish(3)
    kept.die()
    effects = kept.open(kept.consumer("ann")[1])
    assert kept.numbers(effects) == [1, 2, 3]
    assert kept.flags(effects) == [True] * 3
    assert kept.ids(effects) == [4, 5, 6]


def test_ids_that_a_client_knew_from_elsewhere_are_not_used_again(kept):
    kept.bind(kept.client("ann"), last_received_id=1_000)
    assert DeliveryIdsSkipped(DeliveryId(1_000)) in kept.changes.take()


def test_temporary_queues_are_not_told_of(kept):
    kept.changes.take()
    ann = kept.client("ann")
    queue = QueueName("#P2P/QTMP/v:lbg/x")
    flow = kept.engine.bind(ann, queue, create_temporary=True)[0].flow
    kept.engine.subscribe_queue(ann, queue, "direct/>")
    kept.open(flow)
    kept.engine.publish_direct(ann, Published("direct/a", 1, 1))
    assert kept.changes.take() == []


def test_a_message_on_its_way_through_is_told_of_in_order(kept):
    _, flow = kept.consumer("ann")
    kept.open(flow)
    kept.changes.take()
    kept.publish(1)
    first, second, *_ = kept.changes.take()
    assert (first, second) == (
        MessageKept(1, 1, Published("orders/new", 1, 1)),
        MessagesDelivered(1, flow, [(1, DeliveryId(1), 1)]),
    )


def test_publisher_flows_for_which_there_is_no_room_any_more_are_gone_for_a_later_life_too(monkeypatch):
    """Those that were open when the broker ended are abandoned now, as others have been for long."""
    monkeypatch.setattr(publisher_flow, "ABANDONED_NAMES_KEPT", 2)
    changes = Changes()
    Engine("2", changes).restore([PublisherKept("default", name, 1, ()) for name in "abcda"])
    assert changes.take() == [PublisherGone("default", "b"), PublisherGone("default", "c")]
