"""What a commit publishes, also into queues that have no room for all of it; and what it may have consumed."""

import pytest

from lbg_runtime.broker.engine.answers import SettledRange
from lbg_runtime.broker.engine.effects import Published
from lbg_runtime.broker.engine.intake import Obstacle
from lbg_runtime.broker.engine.settings import QueueSettings, RejectOnDiscard
from lbg_runtime.broker.engine.transactions import Consumed
from lbg_runtime.model.errors import BrokerRefusal
from lbg_runtime.model.ids import DeliveryId, QueueName
from lbg_runtime.model.outcome import Outcome

OTHER = QueueName("other")


def commit(stage, *sizes, consumed=()):
    messages = [Published("orders/new", number, size) for number, size in enumerate(sizes, 1)]
    return stage.engine.transactions.commit(stage.publisher_client, messages, consumed)


def other_queue(stage, **settings):
    stage.engine.create_queue("default", OTHER, QueueSettings(**settings))
    stage.engine.add_queue_subscription("default", OTHER, "orders/>")
    return lambda: stage.engine.queue_status("default", OTHER)


def test_a_queue_that_never_tells_loses_what_it_has_no_room_for_and_the_commit_succeeds(make_stage):
    stage = make_stage()
    silent = other_queue(stage, quota_bytes=9, reject_on_discard=RejectOnDiscard.NEVER)

    commit(stage, 5, 5, 4)  # Each of them alone would have room.

    assert stage.queue.depth == 3
    assert (silent().spooled_bytes, silent().depth, silent().discards[Obstacle.OVER_QUOTA]) == (9, 2, 1)


def test_a_commit_that_is_refused_counts_as_one_discard_of_the_queue_that_refuses_it(make_stage):
    stage = make_stage(quota_bytes=9, reject_on_discard=RejectOnDiscard.NEVER)
    strict = other_queue(stage, quota_bytes=19)

    with pytest.raises(BrokerRefusal, match="503 Spool Over Quota"):
        commit(stage, 10, 10)

    assert (stage.queue.depth, stage.queue.discards[Obstacle.OVER_QUOTA]) == (0, 0)
    assert (strict().depth, strict().discards[Obstacle.OVER_QUOTA]) == (0, 1)


def removed_by_an_administrator(stage, flow):
    stage.engine.administration.delete_messages("default", stage.queue.name, {2})


def settled_before(stage, flow):
    stage.settle(flow, 2, 2)


def given_up_with_its_flow(stage, flow):
    stage.engine.unbind(flow)


@pytest.mark.parametrize("way", [removed_by_an_administrator, settled_before, given_up_with_its_flow])
def test_a_commit_of_what_its_client_no_longer_holds_all_of_is_refused_and_changes_nothing(stage, way):
    _, flow = stage.open_consumer("ann")
    stage.publish(3)
    way(stage, flow)
    depth = stage.queue.depth
    three = Consumed(flow, SettledRange(DeliveryId(1), DeliveryId(3), Outcome.ACCEPTED), 3)

    with pytest.raises(BrokerRefusal, match="503 Transaction Failure"):
        commit(stage, 1, consumed=[three])

    assert stage.queue.depth == depth


def test_what_a_commit_leads_to_goes_out_in_the_order_of_what_it_did(make_stage):
    stage = make_stage(max_unacked_per_flow=2)
    ann, flow = stage.open_consumer("ann")
    stage.publish(3)
    watcher = stage.client("watcher")
    stage.engine.subscribe(watcher, "orders/>")

    effects = commit(
        stage, 5, consumed=[Consumed(flow, SettledRange(DeliveryId(0), DeliveryId(2), Outcome.ACCEPTED), 2)]
    )

    fed, added, shown = effects
    assert (fed.client, stage.numbers([fed]), added.client, stage.numbers([added])) == (ann, [3], ann, [1])
    assert (shown.client, shown.message.content) == (watcher, 1)
    assert (stage.queue.depth, stage.queue.unacked_count) == (2, 2)


def test_a_browser_has_consumed_nothing_nor_has_a_flow_that_is_gone(stage):
    stage.publish(1)
    browser = stage.bind(stage.client("bob"), browser=True).flow
    stage.open(browser)
    one = Consumed(browser, SettledRange(DeliveryId(1), DeliveryId(1), Outcome.ACCEPTED), 1)

    with pytest.raises(BrokerRefusal, match="503 Transaction Failure"):
        commit(stage, consumed=[one])
    stage.engine.unbind(browser)
    with pytest.raises(BrokerRefusal, match="503 Transaction Failure"):
        commit(stage, consumed=[one])

    assert stage.queue.depth == 1


def test_what_is_rolled_back_comes_again_although_its_client_acknowledges_none_of_what_it_was_sent(stage):
    _, flow = stage.consumer("ann")
    stage.open(flow, window=2)
    stage.publish(2)

    again = stage.engine.transactions.roll_back([flow])

    assert stage.numbers(again) == [1, 2]
    assert stage.flags(again) == [True, True]
    assert [each.previous_id for each in stage.deliveries(again)] == [0, stage.ids(again)[0]]


def test_what_a_commit_publishes_is_numbered_and_in_the_replay_log_in_its_order(stage):
    stage.engine.replays.keep_log_of_size("default", 100)

    commit(stage, 1, 1, 1)

    logged = [entry.message for entry in stage.engine.replays.log("default").entries()]
    assert [message.content for message in logged] == [1, 2, 3]
    numbers = [message.number for message in logged]
    assert numbers == sorted({0, *numbers} - {0})
