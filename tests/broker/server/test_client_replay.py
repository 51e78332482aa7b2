"""The official client against the server: replay from the replay log."""

import queue
import time
from datetime import UTC, datetime, timedelta

import pytest
from solace.messaging.config.replay_strategy import ReplayStrategy
from solace.messaging.config.sub_code import SolClientSubCode
from solace.messaging.errors.pubsubplus_client_error import MessageReplayError
from solace.messaging.receiver.inbound_message import ReplicationGroupMessageId
from solace.messaging.resources.queue import Queue
from solace.messaging.utils.life_cycle_control import TerminationNotificationListener

from lbg_runtime.broker.engine.replay.log import AfterMessage, FromBeginning
from lbg_runtime.broker.engine.replay.progress import ReplayState
from lbg_runtime.broker.engine.settings import AccessType
from lbg_runtime.model.errors import BrokerRefusal
from lbg_runtime.model.ids import QueueName
from tests.broker.server.clients import payloads
from tests.patience import PATIENCE_MS, PATIENCE_S

pytestmark = pytest.mark.real_time

ALL = ReplayStrategy.all_messages()
LOG_BYTES = 1_000_000


@pytest.fixture(autouse=True)
def log(broker):
    """A new log for each test."""
    keep_log(broker, None)
    keep_log(broker, LOG_BYTES)


def keep_log(broker, max_bytes):
    replays = broker.server.engine.replays
    if max_bytes is None:
        broker.call(replays.keep_log, "default", None)
    else:
        broker.call(replays.keep_log_of_size, "default", max_bytes)


def unstarted(client, name, strategy, make=Queue.durable_exclusive_queue):
    builder = client.service.create_persistent_message_receiver_builder().with_message_client_acknowledgement()
    return builder.with_message_replay(strategy).build(make(name))


def replayed(client, name, strategy=ALL):
    return client.received(unstarted(client, name, strategy).start())


def consume(broker, client, name, count):
    received = client.receiver(name)
    for message in received.take(count):
        received.receiver.ack(message)
    received.close()
    broker.wait_for_status(name, lambda status: status.depth == 0)


def test_settled_messages_are_replayed_in_order_and_live_ones_follow(broker, client, queue_name):
    publisher = client.publisher()
    client.publish(publisher, f"{queue_name}/a", "1", "2", "3")
    consume(broker, client, queue_name, 3)
    received = replayed(client, queue_name)
    client.publish(publisher, f"{queue_name}/a", "4")
    messages = received.take(4)
    assert payloads(messages) == ["1", "2", "3", "4"]
    assert not any(message.is_redelivered() for message in messages)
    for message in messages:
        received.receiver.ack(message)
    broker.wait_for_status(queue_name, lambda status: status.depth == 0)
    received.close()


def test_a_time_says_from_where_messages_are_replayed(broker, client, queue_name):
    # The broker's clock goes on by an hour, so nobody has to wait for the next second.
    surroundings, ahead_s = broker.server.engine.surroundings, 0
    real = surroundings.wall_s
    surroundings.wall_s = lambda: real() + ahead_s
    try:
        keep_log(broker, None)
        keep_log(broker, LOG_BYTES)
        begun = datetime.now(UTC)
        publisher = client.publisher()
        client.publish(publisher, f"{queue_name}/a", "old")
        ahead_s = 3_600
        client.publish(publisher, f"{queue_name}/a", "new")
        received = replayed(client, queue_name, ReplayStrategy.time_based(begun + timedelta(minutes=30)))
        assert payloads(received.take(1)) == ["new"]
        received.close()
        received = replayed(client, queue_name, ReplayStrategy.time_based(begun))
        assert payloads(received.take(2)) == ["old", "new"]
        received.close()
    finally:
        surroundings.wall_s = real


def test_a_time_before_there_was_a_log_ends_the_receiver(broker, client, queue_name):
    ended: queue.Queue[str] = queue.Queue()

    class Listener(TerminationNotificationListener):
        def on_termination(self, termination_event):
            ended.put(str(termination_event.cause))

    causes = []
    # Where the end comes before `start` has returned, the client may name the last error of another thread.
    while not any("SOLCLIENT_SUBCODE_REPLAY_START_TIME_NOT_AVAILABLE" in cause for cause in causes):
        assert len(causes) < 20, causes
        receiver = unstarted(client, queue_name, ReplayStrategy.time_based(datetime.now(UTC) - timedelta(days=1)))
        receiver.set_termination_notification_listener(Listener())
        receiver.start()
        causes.append(ended.get(timeout=PATIENCE_S))
    assert all("(503)" in cause for cause in causes)
    assert broker.status(queue_name).flows == ()


def test_a_receiver_that_is_cut_off_while_it_is_replayed_to_sees_the_rest_once(broker, make_client, queue_name):
    client = make_client("cut-in-replay")
    publisher = client.publisher()
    client.publish(publisher, f"{queue_name}/a", *map(str, range(20)))
    received = replayed(client, queue_name)
    messages = received.take(5)
    broker.call(broker.server.faults.drop, "cut-in-replay")
    client.reconnected.get(timeout=PATIENCE_S)
    client.publish(publisher, f"{queue_name}/a", "live")
    messages += received.take(16)
    assert payloads(messages) == [*map(str, range(20)), "live"]
    for message in messages:
        received.receiver.ack(message)
    broker.wait_for_status(queue_name, lambda status: status.depth == 0)
    received.close()


def refused(client, name, strategy=ALL, **options):
    with pytest.raises(MessageReplayError) as error:
        unstarted(client, name, strategy, **options).start()
    return SolClientSubCode(error.value.sub_code).name.removeprefix("SOLCLIENT_SUBCODE_")


def test_a_replay_that_cannot_be_is_refused_by_its_reason(broker, client, make_client, queue_name):
    client.publish(client.publisher(), f"{queue_name}/a", "1")
    unknown = ReplicationGroupMessageId.of("rmid1:3477f-a5ce52b0fe8-00000000-00000001")
    by_id = ReplayStrategy.replication_group_message_id_based(unknown)
    assert refused(client, queue_name, by_id) == "REPLAY_START_MESSAGE_UNAVAILABLE"
    first = make_client("first").receiver(queue_name)
    assert refused(client, queue_name) == "CLIENT_INITIATED_REPLAY_INACTIVE_FLOW_NOT_ALLOWED"
    first.close()
    broker.create_queue("shared-orders", access_type=AccessType.NON_EXCLUSIVE)
    reason = refused(client, "shared-orders", make=Queue.durable_non_exclusive_queue)
    assert reason == "CLIENT_INITIATED_REPLAY_NON_EXCLUSIVE_NOT_ALLOWED"
    assert refused(client, "", make=lambda _: Queue.non_durable_exclusive_queue()) == "REPLAY_TEMPORARY_NOT_SUPPORTED"
    broker.create_queue("small-orders", f"{queue_name}/>", quota_bytes=1)
    assert refused(client, "small-orders") == "REPLAY_MESSAGE_REJECTED"
    keep_log(broker, None)
    assert refused(client, queue_name) == "REPLAY_DISABLED"
    assert broker.status(queue_name).depth == 1


@pytest.mark.parametrize(
    ("code", "text", "subcode"),
    [
        (403, "Client Initiated Replay from Browser Flow Not Allowed", "BROWSER_FLOW_NOT_ALLOWED"),
        (403, "Unknown Start Location Type", "UNKNOWN_START_LOCATION_TYPE"),
    ],
)
def test_refusals_that_this_client_cannot_cause_are_known_to_it(
    broker, client, queue_name, monkeypatch, code, text, subcode
):
    def refuse(*_, **__):
        raise BrokerRefusal(code, text)

    monkeypatch.setattr(broker.server.engine.replays, "choose", refuse)
    assert refused(client, queue_name).endswith(subcode)


def test_a_browser_of_the_queue_comes_back_by_itself_and_sees_what_is_replayed(broker, client, make_client, queue_name):
    publisher = client.publisher()
    client.publish(publisher, f"{queue_name}/a", "1", "2")
    consume(broker, client, queue_name, 2)
    browser = make_client("browsing").service.create_message_queue_browser_builder()
    browsing = browser.build(Queue.durable_exclusive_queue(queue_name))
    browsing.start()
    received = replayed(client, queue_name)
    assert payloads(received.take(2)) == ["1", "2"]
    assert payloads(browsing.receive_message(PATIENCE_MS) for _ in range(2)) == ["1", "2"]
    browsing.terminate()
    received.close()


def test_a_message_has_an_id_by_which_what_came_after_it_is_replayed(broker, client, queue_name):
    publisher = client.publisher()
    client.publish(publisher, f"{queue_name}/a", "1", "2", "3")
    received = client.receiver(queue_name)
    first = [message.get_replication_group_message_id() for message in received.take(3)]
    received.close()
    assert (first[0].compare(first[1]), first[2].compare(first[1])) == (-1, 1)
    # In words, as applications keep it.
    start = ReplicationGroupMessageId.of(str(first[0]))
    received = replayed(client, queue_name, ReplayStrategy.replication_group_message_id_based(start))
    messages = received.take(2)
    assert payloads(messages) == ["2", "3"]
    # The same in each of its deliveries.
    assert [str(message.get_replication_group_message_id()) for message in messages] == list(map(str, first[1:]))
    received.close()


# -- replays that an administrator starts


def start_replay(broker, name, start=None):
    def act():
        server = broker.server
        server.carry_out(server.engine.replays.start("default", QueueName(name), start or FromBeginning()))

    broker.call(act)


def replay_state(broker, name):
    return broker.call(broker.server.engine.replays.status, "default", QueueName(name)).state


def shown_by(receivers, count):
    """What each is shown, once they have so many messages together."""
    shown = [[] for _ in receivers]
    ends_s = time.monotonic() + PATIENCE_S
    while sum(map(len, shown)) < count:
        assert time.monotonic() < ends_s, f"{shown} and no more"
        for received, its in zip(receivers, shown, strict=True):
            received.is_silent_or(its.append, for_s=0.02)
    return shown


def close_settled(broker, name, receivers, shown):
    """Have everything settled, and nothing more shown, before the receivers go."""
    for received, its in zip(receivers, shown, strict=True):
        for message in its:
            received.receiver.ack(message)
    broker.wait_for_status(name, lambda status: status.depth == 0)
    for received in receivers:
        assert received.inbox.empty()
        received.close()


def test_a_bound_receiver_comes_back_by_itself_and_has_everything_again(broker, client, queue_name):
    publisher = client.publisher()
    client.publish(publisher, f"{queue_name}/a", "1", "2", "3")
    received = client.receiver(queue_name)
    first = received.take(3)
    received.receiver.ack(first[0])
    broker.wait_for_status(queue_name, lambda status: status.depth == 2)
    start_replay(broker, queue_name)
    again = received.take(3)
    assert payloads(again) == ["1", "2", "3"]
    assert not any(message.is_redelivered() for message in again)
    assert replay_state(broker, queue_name) is ReplayState.PENDING_COMPLETE
    # What was shown before the replay is settled in vain.
    for message in first[1:]:
        received.receiver.ack(message)
    client.publish(publisher, f"{queue_name}/a", "4")
    again += received.take(1)
    assert broker.status(queue_name).depth == 4
    for message in again:
        received.receiver.ack(message)
    broker.wait_for_status(queue_name, lambda status: status.depth == 0)
    assert replay_state(broker, queue_name) is ReplayState.COMPLETE
    received.close()


def test_the_standby_of_a_queue_that_is_replayed_to_stays_one_or_takes_over(broker, client, make_client, queue_name):
    client.publish(client.publisher(), f"{queue_name}/a", "1", "2")
    receivers = [make_client(f"replayed-{name}").receiver(queue_name) for name in ("a", "b")]
    receivers[0].take(2)
    start_replay(broker, queue_name)
    broker.wait_for_status(queue_name, lambda status: len(status.flows) == 2 and status.unacked_count == 2)
    shown = shown_by(receivers, 2)
    assert sorted(map(payloads, shown)) == [[], ["1", "2"]]
    close_settled(broker, queue_name, receivers, shown)


def test_receivers_of_a_queue_that_is_not_exclusive_share_what_is_replayed_behind_a_message(
    broker, client, make_client, queue_name
):
    name = f"{queue_name}-shared"
    broker.create_queue(name, f"{queue_name}/>", access_type=AccessType.NON_EXCLUSIVE)
    client.publish(client.publisher(), f"{queue_name}/a", "1", "2", "3", "4", "5")
    receivers = [make_client(f"sharing-{each}").receiver(name, exclusive=False) for each in ("a", "b")]
    broker.wait_for_status(name, lambda status: status.unacked_count == 5)
    numbers = [each.message.number for each in broker.call(lambda: list(messages_of(broker, name)))]
    shown_by(receivers, 5)
    start_replay(broker, name, AfterMessage(broker.server.engine.spooler, numbers[1]))
    broker.wait_for_status(name, lambda status: len(status.flows) == 2 and status.unacked_count == 3)
    shown = shown_by(receivers, 3)
    assert sorted(payloads(shown[0] + shown[1])) == ["3", "4", "5"]
    close_settled(broker, name, receivers, shown)


def messages_of(broker, name):
    return broker.server.engine.administration.queue_messages("default", QueueName(name))


def test_a_replay_that_is_cancelled_leaves_what_came_live_to_the_same_receiver(broker, client, queue_name):
    publisher = client.publisher()
    client.publish(publisher, f"{queue_name}/a", "1", "2")
    received = client.receiver(queue_name)
    held = received.take(2)
    start_replay(broker, queue_name)
    held += received.take(2)
    client.publish(publisher, f"{queue_name}/a", "3")
    live = received.take(1)

    def cancel():
        broker.server.carry_out(broker.server.engine.replays.cancel("default", QueueName(queue_name)))

    broker.call(cancel)
    assert broker.status(queue_name).depth == 1
    for message in held:
        received.receiver.ack(message)
    client.publish(publisher, f"{queue_name}/a", "4")
    live += received.take(1)
    assert payloads(live) == ["3", "4"]
    assert broker.status(queue_name).depth == 2
    for message in live:
        received.receiver.ack(message)
    broker.wait_for_status(queue_name, lambda status: status.depth == 0)
    received.close()
