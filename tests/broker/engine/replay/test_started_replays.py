"""Replays that an administrator starts and ends, and what is seen of any replay."""

import pytest

from lbg_runtime.broker.engine.effects import FlowEnded
from lbg_runtime.broker.engine.replay.log import AfterMessage, FromBeginning, FromTime
from lbg_runtime.broker.engine.replay.progress import ReplayState, ReplayStatus
from lbg_runtime.broker.engine.settings import AccessType, QueueSettings, ReplayLogSettings
from lbg_runtime.model.errors import BrokerRefusal
from lbg_runtime.model.ids import QueueName
from tests.broker.engine.conftest import QUEUE, Stage

PENDING, COMPLETE = ReplayState.PENDING_COMPLETE, ReplayState.COMPLETE


def staged(access_type=AccessType.EXCLUSIVE, **settings):
    stage = Stage(access_type, **settings)
    stage.engine.replays.keep_log_of_size("default", 1_000)
    return stage


def start(stage, begin=None, queue=QUEUE):
    return stage.engine.replays.start("default", queue, begin or FromBeginning())


def status(stage):
    return stage.engine.replays.status("default", QUEUE)


def test_every_flow_ends_and_the_first_that_binds_again_has_all_of_it_anew():
    stage = staged()
    stage.publish(3)
    first, flow = stage.open_consumer("first")
    stage.settle(flow, 1, 2)
    second, standby = stage.consumer("second")
    looking = stage.client("looking")
    browser = stage.bind(looking, browser=True).flow
    assert start(stage) == [
        FlowEnded(client, each, "Replay Started")
        for client, each in ((first, flow), (second, standby), (looking, browser))
    ]
    # Also where it says what it received last, which the official library does not: what it held counts no more.
    again = stage.bind(first, last_received_id=3)
    effects = stage.open(again.flow, 3)
    assert stage.numbers(effects) == [1, 2, 3]
    assert stage.flags(effects) == [False] * 3
    assert min(stage.ids(effects)) > 3
    stage.settle(again.flow, 0, 3)
    assert stage.queue.depth == 3
    assert stage.numbers(stage.publish()) == [4]


def test_flows_share_what_is_replayed_to_a_queue_that_is_not_exclusive():
    stage = staged(AccessType.NON_EXCLUSIVE)
    stage.publish(4)
    start(stage)
    flows = [stage.consumer(name)[1] for name in ("a", "b")]
    delivered = [stage.numbers(stage.open(flow, window=2)) for flow in flows]
    assert sorted(map(sorted, delivered)) == [[1, 2], [3, 4]]


def test_it_starts_behind_a_message():
    stage = staged()
    stage.publish(3)
    (_, second, _) = stage.engine.administration.queue_messages("default", QUEUE)
    start(stage, AfterMessage(stage.engine.spooler, second.message.number))
    assert stage.numbers(stage.open(stage.consumer("c")[1])) == [3]


@pytest.mark.parametrize(
    ("begin", "text"),
    [
        (FromTime(-1), "503 Replay Start Time Not Available"),
        (AfterMessage(1, 99), "403 Replay Start Message Unavailable"),
    ],
)
def test_what_cannot_start_is_refused_and_leaves_the_queue_as_it_is(begin, text):
    stage = staged()
    stage.publish(2)
    _, flow = stage.consumer("c")
    with pytest.raises(BrokerRefusal, match=text):
        start(stage, begin)
    assert stage.numbers(stage.open(flow)) == [1, 2]
    assert status(stage) == ReplayStatus(COMPLETE, started_count=1, failed_count=1)


def test_queues_to_which_nothing_is_replayed():
    stage = staged(AccessType.NON_EXCLUSIVE, partition_count=2)
    with pytest.raises(BrokerRefusal, match="403 Replay Not Supported on Partitioned Queue"):
        start(stage)
    temporary = QueueName("#P2P/QTMP/v:broker/1")
    stage.engine.bind(stage.client("c"), temporary, create_temporary=True)
    with pytest.raises(BrokerRefusal, match="403 Replay Not Supported on Temporary Queue"):
        start(stage, queue=temporary)
    with pytest.raises(BrokerRefusal, match="503 Unknown Queue"):
        start(stage, queue=QueueName("missing"))


def test_a_log_can_be_shut_both_ways():
    stage = staged()
    stage.publish(1)
    stage.engine.replays.keep_log("default", ReplayLogSettings("log", 1_000, ingress_enabled=False))
    stage.publish(1)
    stage.engine.replays.keep_log("default", ReplayLogSettings("log", 1_000, egress_enabled=False))
    stage.publish(1)
    with pytest.raises(BrokerRefusal, match="503 Replay Disabled"):
        start(stage)
    stage.engine.replays.keep_log("default", ReplayLogSettings("log", 1_000))
    start(stage)
    assert stage.numbers(stage.open(stage.consumer("c")[1])) == [1, 3]


def test_a_log_is_trimmed_by_time():
    stage = staged()
    now_s = 100.0
    stage.engine.surroundings.wall_s = lambda: now_s
    stage.engine.replays.keep_log("default", None)
    stage.engine.replays.keep_log_of_size("default", 1_000)
    stage.publish(2)
    now_s = 105.0
    stage.publish(2)
    stage.engine.replays.trim("default", 105_000_000_000)
    log = stage.engine.replays.log("default")
    assert [entry.message.content for entry in log.entries()] == [3, 4]
    assert [entry.message.content for entry in log.entries()] == [3, 4]
    stage.engine.replays.trim("default", 10**18)
    assert (log.message_count, log.oldest) == (0, None)


# -- what is seen


def test_a_replay_is_pending_until_all_of_it_has_left_the_queue():
    stage = staged()
    stage.publish(4)
    start(stage)
    assert status(stage) == ReplayStatus(PENDING, started_count=1)
    _, flow = stage.consumer("c")
    ids = stage.ids(stage.open(flow, window=3))
    stage.settle(flow, ids[1], ids[1])
    stage.publish()
    assert status(stage) == ReplayStatus(PENDING, started_count=1, sent_count=3, gone_count=1)
    ids += stage.ids(stage.open(flow, ids[-1]))
    # The last one came live.
    stage.settle(flow, ids[0], ids[3])
    assert status(stage) == ReplayStatus(COMPLETE, 1, succeeded_count=1, sent_count=4, gone_count=4)
    assert stage.queue.depth == 1


def test_replays_are_counted_together_and_one_that_another_replaces_has_failed():
    stage = staged()
    stage.publish(2)
    start(stage)
    stage.open(stage.consumer("c")[1], window=1)
    start(stage)
    _, flow = stage.consumer("d")
    ids = stage.ids(stage.open(flow))
    stage.settle(flow, 0, ids[-1])
    assert status(stage) == ReplayStatus(COMPLETE, 2, succeeded_count=1, failed_count=1, sent_count=3, gone_count=2)
    # A log that has nothing for the queue is replayed whole at once.
    stage.engine.replays.trim("default", 10**18)
    start(stage)
    assert status(stage).succeeded_count == 2


def test_a_replay_is_cancelled_and_what_came_live_stays():
    stage = staged()
    stage.publish(3)
    start(stage)
    _, flow = stage.consumer("c")
    held = stage.ids(stage.open(flow, window=2))
    stage.publish(2)
    effects = stage.engine.replays.cancel("default", QUEUE)
    # What was held counts no more, and makes room.
    assert effects == []
    assert stage.numbers(stage.open(flow, held[-1])) == [4, 5]
    stage.settle(flow, 0, held[-1])
    assert stage.queue.depth == 2
    assert status(stage) == ReplayStatus(COMPLETE, 1, failed_count=1, sent_count=2)
    assert stage.engine.replays.cancel("default", QUEUE) == []
    assert status(stage).failed_count == 1


def test_a_queue_of_the_same_name_is_another_one():
    stage = staged()
    stage.publish(1)
    start(stage)
    stage.engine.delete_queue("default", QUEUE)
    stage.engine.create_queue("default", QUEUE, QueueSettings())
    assert status(stage) == ReplayStatus()


# -- messages' numbers


def test_a_message_has_one_number_on_all_queues_and_in_all_lists():
    stage = staged()
    stage.engine.create_queue("default", QueueName("other"), QueueSettings())
    stage.engine.add_queue_subscription("default", QueueName("other"), "orders/>")
    stage.publish(3)
    numbers = [m.message.number for m in stage.engine.administration.queue_messages("default", QUEUE)]
    assert sorted(set(numbers)) == numbers
    assert numbers[0] > 0
    assert numbers == [
        m.message.number for m in stage.engine.administration.queue_messages("default", QueueName("other"))
    ]
    assert numbers == [entry.message.number for entry in stage.engine.replays.log("default").entries()]
    start(stage)
    assert numbers == [m.message.number for m in stage.engine.administration.queue_messages("default", QUEUE)]
