import gc
from weakref import finalize

import pytest

from lbg_runtime.broker.engine.changes import Changes
from lbg_runtime.broker.engine.effects import FlowEnded, Published
from lbg_runtime.broker.engine.engine import Engine
from lbg_runtime.broker.engine.replay.log import FromBeginning, FromTime
from lbg_runtime.broker.engine.settings import AccessType, QueueSettings
from lbg_runtime.model.errors import BrokerRefusal
from lbg_runtime.model.ids import DeliveryId, QueueName
from lbg_runtime.model.outcome import Outcome
from tests.broker.engine.conftest import QUEUE, Stage

LOG_BYTES = 1_000


def stage_with_log(access_type=AccessType.EXCLUSIVE, max_bytes=LOG_BYTES, **settings):
    stage = Stage(access_type, **settings)
    stage.engine.replays.keep_log_of_size("default", max_bytes)
    return stage


def usage(engine):
    """Messages and bytes in the log; None where there is none."""
    log = engine.replays.log("default")
    return None if log is None else (log.message_count, log.size_bytes)


def replay(stage, client, start=None, queue=QUEUE, **options):
    return stage.engine.bind(client, queue, replay=start or FromBeginning(), **options)


def consume(stage, name="consumer"):
    """Take and settle everything that is on the queue, by a consumer that leaves again."""
    client, flow = stage.consumer(name)
    stage.settle(flow, 0, stage.ids(stage.open(flow))[-1])
    stage.engine.unbind(flow)
    return client


def test_what_was_settled_comes_again_in_order_and_then_what_is_live():
    stage = stage_with_log()
    stage.publish(3)
    client = consume(stage)
    stage.publish(2)
    bound, effects = replay(stage, client)
    assert effects == []
    assert bound.active
    delivered = stage.open(bound.flow)
    delivered += stage.publish()
    assert stage.numbers(delivered) == [1, 2, 3, 4, 5, 6]
    assert not any(stage.flags(delivered))
    ids = stage.ids(delivered)
    assert ids == sorted(set(ids))


def test_what_the_log_never_had_or_gave_up_is_gone_from_the_queue():
    stage = Stage()
    stage.publish(1)  # Before there was a log.
    stage.engine.replays.keep_log_of_size("default", 3)
    stage.publish(5)
    assert usage(stage.engine) == (3, 3)
    bound, _ = replay(stage, stage.client("c"))
    assert stage.numbers(stage.open(bound.flow)) == [4, 5, 6]
    assert stage.queue.depth == 3


def test_only_what_the_queue_attracts_now_is_replayed_shared_or_addressed_too():
    stage = stage_with_log()
    stage.publish(1, "elsewhere/a")
    stage.publish(1, "orders/a")
    stage.publish(1, "#P2P/QUE/orders")
    stage.publish(1, "shared/x/y")
    stage.publish(1, "nowhere")
    stage.engine.remove_queue_subscription("default", QUEUE, "orders/>")
    stage.engine.add_queue_subscription("default", QUEUE, "elsewhere/*")
    stage.engine.add_queue_subscription("default", QUEUE, "#share/s/shared/>")
    bound, _ = replay(stage, stage.client("c"))
    assert stage.numbers(stage.open(bound.flow)) == [1, 3, 4]


def test_direct_messages_that_queues_took_are_in_the_log_and_refused_ones_are_not():
    stage = stage_with_log(max_message_bytes=10)
    stage.engine.publish_direct(stage.publisher_client, Published("orders/a", "direct", 1))
    stage.engine.publish_direct(stage.publisher_client, Published("nobody", "direct", 1))
    with pytest.raises(BrokerRefusal):
        stage.publish(1, size_bytes=11)
    assert usage(stage.engine) == (1, 1)


def test_what_a_transaction_publishes_is_in_the_log_with_its_commit():
    stage = stage_with_log()
    stage.engine.transactions.commit(stage.publisher_client, [Published("orders/a", "in one", 1)], [])
    bound, _ = replay(stage, stage.client("c"))
    assert stage.numbers(stage.open(bound.flow)) == ["in one"]


def test_a_time_says_from_where():
    stage = stage_with_log()
    now_s = 100.0
    stage.engine.surroundings.wall_s = lambda: now_s
    stage.engine.replays.keep_log("default", None)
    stage.engine.replays.keep_log_of_size("default", LOG_BYTES)
    stage.publish(2)
    now_s = 105.0
    stage.publish(2)
    bound, _ = replay(stage, stage.client("c"), FromTime(105_000_000_000))
    assert stage.numbers(stage.open(bound.flow)) == [3, 4]
    (spooled, _) = stage.engine.administration.queue_messages("default", QUEUE)
    assert spooled.message.spooled_at_s == 105


def test_a_time_before_there_was_a_log_ends_the_flow_and_the_queue_keeps_what_it_has():
    stage = Stage()
    stage.publish(1)
    stage.engine.surroundings.wall_s = lambda: 100.0
    stage.engine.replays.keep_log_of_size("default", LOG_BYTES)
    client = stage.client("c")
    bound, effects = replay(stage, client, FromTime(99_000_000_000))
    assert effects == [FlowEnded(client, bound.flow, "Replay Start Time Not Available")]
    assert stage.queue.flows == ()
    assert stage.queue.depth == 1
    (_, name) = stage.engine.administration.client_names("default")
    assert stage.engine.administration.client("default", name).flows == ()


def test_browsers_are_told_and_what_a_lost_connection_held_counts_no_more():
    stage = stage_with_log()
    stage.publish(2)
    lost, _ = stage.open_consumer("lost")
    stage.engine.disconnect(lost)
    looking = stage.client("looking")
    browser = stage.bind(looking, browser=True)
    bound, effects = replay(stage, stage.client("c"))
    assert effects == [FlowEnded(looking, browser.flow, "Replay Started")]
    stage.open(bound.flow)
    # The one that was lost comes back too late: it settles nothing of what is replayed.
    back = stage.bind(stage.client("lost"), last_received_id=2)
    stage.settle(back.flow, 0, 2)
    assert stage.queue.depth == 2


def test_a_handle_that_lives_on_is_not_replayed_to_again():
    stage = stage_with_log()
    stage.publish(2)
    client = stage.client("c")
    bound, _ = replay(stage, client)
    stage.open(bound.flow)
    stage.settle(bound.flow, 0, 1)
    stage.engine.disconnect(client)
    again, _ = replay(stage, stage.client("c"), last_received_id=DeliveryId(2))
    assert stage.open(again.flow, 2) == []
    stage.settle(again.flow, 0, 2)
    assert stage.queue.depth == 0


def test_a_replayed_message_that_fails_comes_again_flagged():
    stage = stage_with_log()
    stage.publish(1)
    bound, _ = replay(stage, stage.client("c"))
    (first,) = stage.ids(stage.open(bound.flow))
    (second,) = stage.deliveries(stage.settle(bound.flow, first, first, Outcome.FAILED))
    assert (second.redelivered, second.message.content) == (True, 1)


def refused(stage, text, *, queue=QUEUE, **options):
    client = stage.client("refused")
    with pytest.raises(BrokerRefusal, match=text):
        replay(stage, client, queue=queue, **options)


def test_replay_is_refused_where_it_cannot_be_and_the_queue_keeps_what_it_has():
    stage = Stage()
    stage.publish(2)
    refused(stage, "503 Replay Disabled")
    stage.engine.replays.keep_log_of_size("default", LOG_BYTES)
    refused(stage, "503 Unknown Queue", queue=QueueName("missing"))
    refused(stage, "403 Client Initiated Replay from Browser Flow Not Allowed", browser=True)
    temporary = QueueName("#P2P/QTMP/v:broker/1")
    refused(stage, "403 Replay Not Supported on Temporary Queue", queue=temporary, create_temporary=True)
    assert temporary not in stage.engine.queue_names("default")
    stage.publish(1, size_bytes=500)
    stage.engine.administration.change_queue("default", QUEUE, QueueSettings(max_message_bytes=499))
    refused(stage, "503 Replayed Message Rejected by Queue")
    stage.engine.administration.change_queue("default", QUEUE, QueueSettings(quota_bytes=499))
    refused(stage, "503 Replayed Message Rejected by Queue")
    stage.consumer("first")
    refused(stage, "403 Client Initiated Replay from Inactive Flow Not Allowed")
    assert stage.queue.depth == 3
    assert (stage.queue.binds.requested, stage.queue.binds.succeeded, stage.queue.binds.other) == (6, 1, 5)


def test_a_queue_that_is_not_exclusive_is_not_replayed_to():
    refused(stage_with_log(AccessType.NON_EXCLUSIVE), "403 Client Initiated Replay Not Allowed on Non-Exclusive Queue")


def test_a_log_that_is_taken_away_and_made_again_begins_anew():
    stage = stage_with_log()
    stage.publish(2)
    stage.engine.replays.keep_log("default", None)
    assert usage(stage.engine) is None
    stage.engine.replays.keep_log_of_size("default", LOG_BYTES)
    assert usage(stage.engine) == (0, 0)


def test_what_is_replayed_outlives_the_broker_and_so_does_the_log():
    changes = Changes()
    engine = Engine("one", changes)
    engine.replays.keep_log_of_size("default", LOG_BYTES)
    engine.create_queue("default", QUEUE, QueueSettings())
    engine.add_queue_subscription("default", QUEUE, "orders/>")
    publisher_client, _ = engine.connect("default", "user", "", "publisher")
    publisher = engine.open_publisher(publisher_client, "").flow
    engine.publish(publisher, 1, Published("orders/a", "first", 1))
    engine.administration.delete_messages("default", QUEUE)
    engine.publish(publisher, 2, Published("orders/a", "second", 1))
    client, _ = engine.connect("default", "user", "", "c")
    engine.bind(client, QUEUE, replay=FromBeginning())
    told = changes.take()

    later = Engine("two", Changes())
    later.restore(told)
    client, _ = later.connect("default", "user", "", "c")
    bound, _ = later.bind(client, QUEUE)
    delivered = later.open_window(bound.flow, DeliveryId(0), 10)
    assert Stage.numbers(delivered) == ["first", "second"]
    assert usage(later) == (2, 2)
    later.unbind(bound.flow)
    again, _ = later.bind(client, QUEUE, replay=FromBeginning())
    assert Stage.numbers(later.open_window(again.flow, DeliveryId(0), 10)) == ["first", "second"]


def test_nothing_is_left_of_a_deleted_queue_to_which_there_was_a_replay():
    stage = stage_with_log()
    stage.publish(3)
    stage.engine.replays.start("default", QUEUE, FromBeginning())
    (queue,) = stage.engine._registry.vpn("default").queues.values()
    gone = []
    finalize(queue, gone.append, QUEUE)
    del queue
    stage.engine.delete_queue("default", QUEUE)
    gc.collect()
    assert gone == [QUEUE]
