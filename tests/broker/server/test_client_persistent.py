"""The official client against the server: persistent messages, acknowledgements and flows."""

import queue

import pytest
from solace.messaging.config.message_acknowledgement_configuration import Outcome
from solace.messaging.config.missing_resources_creation_configuration import MissingResourcesCreationStrategy
from solace.messaging.errors.pubsubplus_client_error import PubSubPlusClientError
from solace.messaging.resources.queue import Queue
from solace.messaging.resources.topic import Topic
from solace.messaging.resources.topic_subscription import TopicSubscription
from solace.messaging.utils.converter import BytesToObject, ObjectToBytes

from lbg_runtime.broker.engine.answers import Death
from tests.broker.server.clients import payloads
from tests.patience import PATIENCE_MS, PATIENCE_S

pytestmark = pytest.mark.real_time


def test_every_published_message_gets_its_receipt_and_arrives_in_order(broker, client, receipts):
    broker.create_queue("receipts", "receipts/>")
    publisher = client.publisher()
    publisher.set_message_publish_receipt_listener(receipts)
    for number in range(600):
        publisher.publish(client.message(str(number)), Topic.of("receipts/a"), user_context=number)
    confirmed = [receipts.inbox.get(timeout=PATIENCE_S) for _ in range(600)]
    assert all(receipt.is_persisted and receipt.exception is None for receipt in confirmed)
    assert [receipt.user_context for receipt in confirmed] == list(range(600))
    received = client.receiver("receipts")
    messages = received.take(600)
    assert payloads(messages) == [str(number) for number in range(600)]
    for message in messages:
        received.receiver.ack(message)
    received.close()
    broker.wait_for_status("receipts", lambda status: status.depth == 0)


def test_unacknowledged_messages_come_again_flagged_and_in_order(broker, client):
    broker.create_queue("again", "again/>")
    client.publish(client.publisher(), "again/a", "1", "2", "3", "4")
    first = client.receiver("again")
    messages = first.take(4)
    assert not any(message.is_redelivered() for message in messages)
    first.receiver.ack(messages[1])
    first.close()
    second = client.receiver("again")
    messages = second.take(3)
    assert payloads(messages) == ["1", "3", "4"]
    assert all(message.is_redelivered() for message in messages)
    second.close()


def test_a_failed_message_comes_again_on_the_live_flow(broker, client):
    # A client drops any id it has seen on the flow, so a redelivery needs a new one.
    broker.create_queue("failed", "failed/>")
    client.publish(client.publisher(), "failed/a", "1", "2")
    received = client.receiver("failed", outcomes=True)
    one, two = received.take(2)
    received.receiver.settle(one, Outcome.FAILED)
    again = received.next()
    assert again.get_payload_as_string() == "1"
    assert again.is_redelivered()
    received.receiver.settle(again, Outcome.ACCEPTED)
    received.receiver.settle(two, Outcome.ACCEPTED)
    received.close()
    broker.wait_for_status("failed", lambda status: status.depth == 0)


def test_a_rejected_message_is_gone(broker, client):
    broker.create_queue("rejected", "rejected/>")
    client.publish(client.publisher(), "rejected/a", "1", "2")
    received = client.receiver("rejected", outcomes=True)
    one, _ = received.take(2)
    received.receiver.settle(one, Outcome.REJECTED)
    status = broker.wait_for_status("rejected", lambda status: status.depth == 1)
    assert status.deaths.discarded[Death.REJECTED] == 1
    received.close()


def test_the_standby_of_an_exclusive_queue_takes_over_when_the_active_flow_leaves(broker, client, make_client):
    broker.create_queue("taken", "taken/>")
    client.publish(client.publisher(), "taken/a", "1", "2")
    first_events, second_events = queue.Queue(), queue.Queue()
    first = client.receiver("taken", events=first_events)
    assert first_events.get(timeout=PATIENCE_S) == "ACTIVE"
    second = make_client("standby").receiver("taken", events=second_events)
    assert payloads(first.take(2)) == ["1", "2"]
    assert second.is_silent()
    assert second_events.empty()
    first.close()
    assert second_events.get(timeout=PATIENCE_S) == "ACTIVE"
    messages = second.take(2)
    assert payloads(messages) == ["1", "2"]
    assert all(message.is_redelivered() for message in messages)
    for message in messages:
        second.receiver.ack(message)
    # What was published after the hand-over arrives as well: the answer to the change was not answered in turn.
    client.publish(client.publisher(), "taken/a", "3")
    assert second.next().get_payload_as_string() == "3"
    second.close()


def test_receivers_share_a_non_exclusive_queue(broker, client, make_client):
    from lbg_runtime.broker.engine.settings import AccessType

    broker.create_queue("shared", "shared/>", access_type=AccessType.NON_EXCLUSIVE)
    first = client.receiver("shared", exclusive=False)
    second = make_client("sharer").receiver("shared", exclusive=False)
    broker.wait_for_status("shared", lambda s: sum(flow.window_size for flow in s.flows) > 255)
    client.publish(client.publisher(), "shared/a", *map(str, range(20)))
    ours, theirs = [], []
    while len(ours) + len(theirs) < 20:
        for inbox, mine in ((first.inbox, ours), (second.inbox, theirs)):
            try:
                mine.append(inbox.get(timeout=0.05))
            except queue.Empty:
                continue
    assert ours
    assert theirs
    second.close()
    again = first.take(len(theirs))
    assert sorted(payloads(again)) == sorted(payloads(theirs))
    assert all(message.is_redelivered() for message in again)
    first.close()


def test_a_queue_is_created_on_start_with_its_subscription(broker, client):
    builder = client.service.create_persistent_message_receiver_builder()
    receiver = (
        builder.with_missing_resources_creation_strategy(MissingResourcesCreationStrategy.CREATE_ON_START)
        .with_subscriptions([TopicSubscription.of("created/*/x")])
        .build(Queue.durable_exclusive_queue("created"))
        .start()
    )
    received = client.received(receiver)
    client.publish(client.publisher(), "created/1/x", "here")
    client.publish(client.publisher(), "created/1/y", "elsewhere")
    assert received.next().get_payload_as_string() == "here"
    assert received.is_silent()
    status = broker.status("created")
    assert status.subscriptions == ("created/*/x",)
    assert status.settings.owner == "user"
    received.close()


def test_creating_a_queue_that_exists_is_no_error(broker, client):
    broker.create_queue("exists")
    builder = client.service.create_persistent_message_receiver_builder()
    receiver = builder.with_missing_resources_creation_strategy(MissingResourcesCreationStrategy.CREATE_ON_START).build(
        Queue.durable_exclusive_queue("exists")
    )
    client.received(receiver.start()).close()


def test_a_receiver_adds_and_removes_subscriptions_of_its_queue(broker, client):
    broker.create_queue("removed", "removed/a")
    received = client.receiver("removed")
    received.receiver.add_subscription(TopicSubscription.of("removed/b"))
    assert broker.status("removed").subscriptions == ("removed/a", "removed/b")
    received.receiver.remove_subscription(TopicSubscription.of("removed/b"))
    assert broker.status("removed").subscriptions == ("removed/a",)
    received.close()


def test_a_temporary_queue_goes_with_its_owner(broker, client_class):
    owner = client_class(broker.port, "owner").connect()
    receiver = (
        owner.service.create_persistent_message_receiver_builder()
        .with_subscriptions([TopicSubscription.of("temporary/>")])
        .build(Queue.non_durable_exclusive_queue())
        .start()
    )
    received = owner.received(receiver)
    owner.publish(owner.publisher(), "temporary/a", "1")
    assert received.next().get_payload_as_string() == "1"
    assert any(name.startswith("#P2P/QTMP/") for name in broker.call(broker.server.engine.queue_names, "default"))
    owner.close()
    names = broker.call(broker.server.engine.queue_names, "default")
    assert not any(name.startswith("#P2P/QTMP/") for name in names)


def test_a_browser_sees_messages_without_taking_them(broker, client):
    broker.create_queue("browsed", "browsed/>")
    client.publish(client.publisher(), "browsed/a", "1", "2", "3")
    browser = client.service.create_message_queue_browser_builder().build(Queue.durable_exclusive_queue("browsed"))
    browser.start()
    messages = [browser.receive_message(PATIENCE_MS) for _ in range(3)]
    assert payloads(messages) == ["1", "2", "3"]
    browser.remove(messages[1])
    broker.wait_for_status("browsed", lambda status: status.depth == 2)
    browser.terminate(0)
    received = client.receiver("browsed")
    assert payloads(received.take(2)) == ["1", "3"]
    received.close()


def test_a_paused_receiver_gets_nothing_beyond_its_window(broker, client):
    broker.create_queue("paused", "paused/>")
    publisher = client.publisher()
    receiver = (
        client.service.create_persistent_message_receiver_builder()
        .build(Queue.durable_exclusive_queue("paused"))
        .start()
    )
    # Nobody takes messages from it, so that the client closes the window once it holds enough of them.
    client.publish(publisher, "paused/a", *map(str, range(400)))
    status = broker.status("paused")
    assert 0 < status.unacked_count < 400
    messages = [receiver.receive_message(PATIENCE_MS) for _ in range(400)]
    assert payloads(messages) == list(map(str, range(400)))
    receiver.terminate(0)


def test_a_deleted_queue_ends_its_flows_and_leaves_the_others(broker, client):
    broker.create_queue("deleted", "deleted/>")
    broker.create_queue("kept", "kept/>")
    kept = client.receiver("kept")
    doomed = client.receiver("deleted")
    ended = queue.Queue()

    from solace.messaging.utils.life_cycle_control import TerminationNotificationListener

    class Listener(TerminationNotificationListener):
        def on_termination(self, event):
            ended.put(event.cause)

    doomed.receiver.set_termination_notification_listener(Listener())
    broker.call(broker.server.delete_queue, "deleted")
    assert "Queue Deleted" in str(ended.get(timeout=PATIENCE_S))
    client.publish(client.publisher(), "kept/a", "1")
    assert kept.next().get_payload_as_string() == "1"
    kept.close()


def test_a_refused_bind_does_not_spoil_later_publishing(broker, client):
    # A client takes an acknowledgement without a response for a repetition of the connection's last error.
    broker.create_queue("after-refusal", "after-refusal/>")
    with pytest.raises(PubSubPlusClientError) as refused:
        client.receiver("nowhere")
    assert "Unknown Queue" in str(refused.value)
    client.publish(client.publisher(), "after-refusal/a", "1", "2")
    assert broker.status("after-refusal").depth == 2


def test_a_refused_message_is_refused_alone(broker, client, receipts):
    broker.create_queue("full", "full/>", quota_bytes=1000, max_message_bytes=500)
    broker.create_queue("not-full", "other/>")
    publisher = client.publisher()
    publisher.set_message_publish_receipt_listener(receipts)
    sizes = [100, 600, 100, 100, 100]
    for number, size in enumerate(sizes):
        publisher.publish(client.message(bytearray(size)), Topic.of("full/a"), user_context=number)
    got = {r.user_context: r for r in (receipts.inbox.get(timeout=PATIENCE_S) for _ in sizes)}
    assert [got[number].is_persisted for number in range(5)] == [True, False, True, True, True]
    assert "Document Is Too Large" in str(got[1].exception)
    for number in range(10):
        publisher.publish(client.message(bytearray(300)), Topic.of("full/a"), user_context=number)
    late = [receipts.inbox.get(timeout=PATIENCE_S) for _ in range(10)]
    assert "Spool Over Quota" in str(late[-1].exception)
    client.publish(publisher, "other/a", "fine")
    assert broker.status("not-full").depth == 1


def test_a_large_message_goes_both_ways(broker, client):
    broker.create_queue("large", "large/>")
    body = bytearray(range(256)) * 12_000
    publisher = client.publisher()
    publisher.publish_await_acknowledgement(client.message(body), Topic.of("large/a"), PATIENCE_MS)
    received = client.receiver("large")
    assert received.next().get_payload_as_bytes() == body
    received.close()


def test_a_compressed_connection_does_the_same(broker, make_client):
    broker.create_queue("compressed", "compressed/>")
    client = make_client("compressed", **{"solace.messaging.transport.compression-level": 5})
    body = bytearray(range(256)) * 3_000
    publisher = client.publisher()
    for _ in range(5):
        publisher.publish_await_acknowledgement(client.message(body), Topic.of("compressed/a"), PATIENCE_MS)
    received = client.receiver("compressed")
    assert all(message.get_payload_as_bytes() == body for message in received.take(5))
    received.close()


def test_a_publisher_with_a_small_buffer_waits_for_the_broker(broker, client, receipts):
    broker.create_queue("waiting", "waiting/>")
    builder = client.service.create_persistent_message_publisher_builder().on_back_pressure_wait(buffer_capacity=5)
    publisher = builder.build().start()
    publisher.set_message_publish_receipt_listener(receipts)
    for number in range(300):
        publisher.publish(client.message(str(number)), Topic.of("waiting/a"), user_context=number)
    assert [receipts.inbox.get(timeout=PATIENCE_S).user_context for _ in range(300)] == list(range(300))
    publisher.terminate(500)
    assert broker.status("waiting").depth == 300


def test_a_receiver_that_acknowledges_by_itself_and_objects_of_the_applications_own(broker, client):
    class Order:
        def __init__(self, number: int) -> None:
            self.number = number

    class ToBytes(ObjectToBytes):
        def to_bytes(self, src):
            return str(src.number).encode()

    class FromBytes(BytesToObject):
        def convert(self, src):
            return Order(int(src))

    broker.create_queue("automatic", "automatic/>")
    publisher = client.publisher()
    for number in range(10):
        message = client.service.message_builder().build(Order(number), converter=ToBytes())
        publisher.publish_await_acknowledgement(message, Topic.of("automatic/a"), PATIENCE_MS)
    builder = client.service.create_persistent_message_receiver_builder().with_message_auto_acknowledgement()
    received = client.received(builder.build(Queue.durable_exclusive_queue("automatic")).start())
    orders = [message.get_and_convert_payload(FromBytes(), Order) for message in received.take(10)]
    assert [order.number for order in orders] == list(range(10))
    received.close()
    broker.wait_for_status("automatic", lambda status: status.depth == 0)
