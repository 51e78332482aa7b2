"""The official client against the server: replay from the replay log."""

import queue
from datetime import UTC, datetime, timedelta

import pytest
from solace.messaging.config.replay_strategy import ReplayStrategy
from solace.messaging.config.sub_code import SolClientSubCode
from solace.messaging.errors.pubsubplus_client_error import MessageReplayError
from solace.messaging.receiver.inbound_message import ReplicationGroupMessageId
from solace.messaging.resources.queue import Queue
from solace.messaging.utils.life_cycle_control import TerminationNotificationListener

from lbg_runtime.broker.engine.settings import AccessType
from lbg_runtime.model.errors import BrokerRefusal

pytestmark = pytest.mark.real_time

ALL = ReplayStrategy.all_messages()
LOG_BYTES = 1_000_000


@pytest.fixture(autouse=True)
def log(broker):
    """A new log for each test."""
    keep_log(broker, None)
    keep_log(broker, LOG_BYTES)


@pytest.fixture
def orders(broker, request):
    """An exclusive queue of the test's own."""
    name = request.node.name.replace("[", "-").replace("]", "")
    broker.create_queue(name, f"{name}/>")
    return name


def keep_log(broker, max_bytes):
    broker.call(broker.server.engine.replays.keep_log, "default", max_bytes)


def unstarted(client, name, strategy, make=Queue.durable_exclusive_queue):
    builder = client.service.create_persistent_message_receiver_builder().with_message_client_acknowledgement()
    return builder.with_message_replay(strategy).build(make(name))


def replayed(client, name, strategy=ALL):
    return client.received(unstarted(client, name, strategy).start())


def payloads(messages):
    return [message.get_payload_as_string() for message in messages]


def consume(broker, client, name, count):
    received = client.receiver(name)
    for message in received.take(count):
        received.receiver.ack(message)
    received.close()
    broker.wait_for_status(name, lambda status: status.depth == 0)


def test_settled_messages_are_replayed_in_order_and_live_ones_follow(broker, client, orders):
    publisher = client.publisher()
    client.publish(publisher, f"{orders}/a", "1", "2", "3")
    consume(broker, client, orders, 3)
    received = replayed(client, orders)
    client.publish(publisher, f"{orders}/a", "4")
    messages = received.take(4)
    assert payloads(messages) == ["1", "2", "3", "4"]
    assert not any(message.is_redelivered() for message in messages)
    for message in messages:
        received.receiver.ack(message)
    broker.wait_for_status(orders, lambda status: status.depth == 0)
    received.close()


def test_a_time_says_from_where_messages_are_replayed(broker, client, orders):
    # The broker's clock goes on by an hour, so nobody has to wait for the next second.
    surroundings, ahead_s = broker.server.engine.surroundings, 0
    real = surroundings.wall_s
    surroundings.wall_s = lambda: real() + ahead_s
    try:
        keep_log(broker, None)
        keep_log(broker, LOG_BYTES)
        begun = datetime.now(UTC)
        publisher = client.publisher()
        client.publish(publisher, f"{orders}/a", "old")
        ahead_s = 3_600
        client.publish(publisher, f"{orders}/a", "new")
        received = replayed(client, orders, ReplayStrategy.time_based(begun + timedelta(minutes=30)))
        assert payloads(received.take(1)) == ["new"]
        received.close()
        received = replayed(client, orders, ReplayStrategy.time_based(begun))
        assert payloads(received.take(2)) == ["old", "new"]
        received.close()
    finally:
        surroundings.wall_s = real


def test_a_time_before_there_was_a_log_ends_the_receiver(broker, client, orders):
    ended: queue.Queue[object] = queue.Queue()

    class Listener(TerminationNotificationListener):
        def on_termination(self, termination_event):
            ended.put(termination_event.cause)

    receiver = unstarted(client, orders, ReplayStrategy.time_based(datetime.now(UTC) - timedelta(days=1)))
    receiver.set_termination_notification_listener(Listener())
    receiver.start()
    cause = ended.get(timeout=20)
    assert "SOLCLIENT_SUBCODE_REPLAY_START_TIME_NOT_AVAILABLE" in str(cause)
    assert broker.status(orders).flows == ()


def test_a_receiver_that_is_cut_off_while_it_is_replayed_to_sees_the_rest_once(broker, make_client, orders):
    client = make_client("cut-in-replay")
    publisher = client.publisher()
    client.publish(publisher, f"{orders}/a", *map(str, range(20)))
    received = replayed(client, orders)
    messages = received.take(5)
    broker.call(broker.server.abort_connections, "cut-in-replay")
    client.reconnected.get(timeout=20)
    client.publish(publisher, f"{orders}/a", "live")
    messages += received.take(16)
    assert payloads(messages) == [*map(str, range(20)), "live"]
    for message in messages:
        received.receiver.ack(message)
    broker.wait_for_status(orders, lambda status: status.depth == 0)
    received.close()


def refused(client, name, strategy=ALL, **options):
    with pytest.raises(MessageReplayError) as error:
        unstarted(client, name, strategy, **options).start()
    return SolClientSubCode(error.value.sub_code).name.removeprefix("SOLCLIENT_SUBCODE_")


def test_a_replay_that_cannot_be_is_refused_by_its_reason(broker, client, make_client, orders):
    client.publish(client.publisher(), f"{orders}/a", "1")
    unknown = ReplicationGroupMessageId.of("rmid1:3477f-a5ce52b0fe8-00000000-00000001")
    by_id = ReplayStrategy.replication_group_message_id_based(unknown)
    assert refused(client, orders, by_id) == "REPLAY_START_MESSAGE_UNAVAILABLE"
    first = make_client("first").receiver(orders)
    assert refused(client, orders) == "CLIENT_INITIATED_REPLAY_INACTIVE_FLOW_NOT_ALLOWED"
    first.close()
    broker.create_queue("shared-orders", access_type=AccessType.NON_EXCLUSIVE)
    reason = refused(client, "shared-orders", make=Queue.durable_non_exclusive_queue)
    assert reason == "CLIENT_INITIATED_REPLAY_NON_EXCLUSIVE_NOT_ALLOWED"
    assert refused(client, "", make=lambda _: Queue.non_durable_exclusive_queue()) == "REPLAY_TEMPORARY_NOT_SUPPORTED"
    broker.create_queue("small-orders", f"{orders}/>", quota_bytes=1)
    assert refused(client, "small-orders") == "REPLAY_MESSAGE_REJECTED"
    keep_log(broker, None)
    assert refused(client, orders) == "REPLAY_DISABLED"
    assert broker.status(orders).depth == 1


@pytest.mark.parametrize(
    ("code", "text", "subcode"),
    [
        (403, "Client Initiated Replay from Browser Flow Not Allowed", "BROWSER_FLOW_NOT_ALLOWED"),
        (403, "Unknown Start Location Type", "UNKNOWN_START_LOCATION_TYPE"),
    ],
)
def test_refusals_that_this_client_cannot_cause_are_known_to_it(
    broker, client, orders, monkeypatch, code, text, subcode
):
    def refuse(*_, **__):
        raise BrokerRefusal(code, text)

    monkeypatch.setattr(broker.server.engine.replays, "choose", refuse)
    assert refused(client, orders).endswith(subcode)


def test_a_browser_of_the_queue_comes_back_by_itself_and_sees_what_is_replayed(broker, client, make_client, orders):
    publisher = client.publisher()
    client.publish(publisher, f"{orders}/a", "1", "2")
    consume(broker, client, orders, 2)
    browser = make_client("browsing").service.create_message_queue_browser_builder()
    browsing = browser.build(Queue.durable_exclusive_queue(orders))
    browsing.start()
    received = replayed(client, orders)
    assert payloads(received.take(2)) == ["1", "2"]
    assert payloads(browsing.receive_message(5000) for _ in range(2)) == ["1", "2"]
    browsing.terminate()
    received.close()
