"""The official client against the server: what queues do with messages that fail, grow old, differ or are chosen."""

import pytest
from solace.messaging.config.message_acknowledgement_configuration import Outcome
from solace.messaging.errors.pubsubplus_client_error import MessageRejectedByBrokerError, PubSubPlusClientError
from solace.messaging.resources.queue import Queue
from solace.messaging.resources.topic import Topic
from solace.messaging.resources.topic_subscription import TopicSubscription

from lbg_runtime.broker.engine.accounts import Account, AclProfile, TopicRule
from lbg_runtime.broker.engine.answers import Death
from lbg_runtime.broker.engine.engine import DEFAULT_VPN
from tests.broker.server.clients import payloads
from tests.patience import PATIENCE_MS

pytestmark = pytest.mark.real_time

PRIORITY = "solace.messaging.message.priority"
TIME_TO_LIVE = "solace.messaging.message.persistent.time-to-live"
DMQ_ELIGIBLE = "solace.messaging.message.persistent.dmq-eligible"


def send(client, publisher, topic, payload, **properties):
    builder = client.service.message_builder()
    message = builder.build(payload, additional_message_properties=properties)
    publisher.publish_await_acknowledgement(message, Topic.of(topic), PATIENCE_MS)


@pytest.fixture(scope="module")
def publisher(client):
    return client.publisher()


def test_a_rejected_message_is_on_the_dead_message_queue(broker, client, publisher):
    broker.create_queue("graves")
    broker.create_queue("rejecting", "rejecting/>", dead_message_queue="graves")
    received = client.receiver("rejecting", outcomes=True)
    send(client, publisher, "rejecting/a", "1")
    received.receiver.settle(received.next(), Outcome.REJECTED)
    graves = client.receiver("graves")
    buried = graves.next()
    assert (buried.get_payload_as_string(), buried.get_destination_name()) == ("1", "rejecting/a")
    assert not buried.is_redelivered()
    assert broker.status("rejecting").depth == 0
    received.close()
    graves.close()


def test_only_eligible_messages_are_buried_where_that_is_asked(broker, client, publisher):
    broker.create_queue("crypt")
    broker.create_queue("asking", "asking/>", dead_message_queue="crypt", respect_dead_message_eligible=True)
    received = client.receiver("asking", outcomes=True)
    send(client, publisher, "asking/a", "no", **{DMQ_ELIGIBLE: False})
    send(client, publisher, "asking/a", "yes", **{DMQ_ELIGIBLE: True})
    for message in received.take(2):
        received.receiver.settle(message, Outcome.REJECTED)
    crypt = client.receiver("crypt")
    assert crypt.next().get_payload_as_string() == "yes"
    assert broker.status("asking").deaths.discarded[Death.REJECTED] == 1
    received.close()
    crypt.close()


def test_a_message_that_fails_too_often_is_on_the_dead_message_queue(broker, client, publisher):
    broker.create_queue("worn")
    broker.create_queue("failing", "failing/>", dead_message_queue="worn", max_redelivery_count=2)
    received = client.receiver("failing", outcomes=True)
    send(client, publisher, "failing/a", "1")
    flags = []
    for _ in range(3):
        message = received.next()
        flags.append(message.is_redelivered())
        received.receiver.settle(message, Outcome.FAILED)
    worn = client.receiver("worn")
    assert worn.next().get_payload_as_string() == "1"
    assert flags == [False, True, True]
    received.close()
    worn.close()


def test_a_message_whose_time_is_over_is_on_the_dead_message_queue(broker, client, publisher):
    broker.create_queue("late")
    broker.create_queue("hasty", "hasty/>", dead_message_queue="late", respect_time_to_live=True)
    send(client, publisher, "hasty/a", "short", **{TIME_TO_LIVE: 50})
    send(client, publisher, "hasty/a", "long", **{TIME_TO_LIVE: 60_000})
    late = client.receiver("late")
    assert late.next().get_payload_as_string() == "short"
    assert broker.status("hasty").depth == 1
    late.close()


def test_a_failed_message_comes_again_after_its_delay_behind_others(broker, client, publisher):
    broker.create_queue("patient", "patient/>", redelivery_delay_enabled=True, redelivery_delay_initial_ms=300)
    received = client.receiver("patient", outcomes=True)
    send(client, publisher, "patient/a", "1")
    received.receiver.settle(received.next(), Outcome.FAILED)
    send(client, publisher, "patient/a", "2")
    assert payloads(received.take(2)) == ["2", "1"]
    received.close()


def test_a_higher_priority_goes_first_where_that_is_switched_on(broker, client, publisher):
    broker.create_queue("ranked", "ranked/>", respect_priority=True)
    broker.create_queue("plain", "ranked/>")
    for priority in (0, 9, 4, 9):
        send(client, publisher, "ranked/a", str(priority), **{PRIORITY: priority})
    ranked, plain = client.receiver("ranked"), client.receiver("plain")
    assert payloads(ranked.take(4)) == ["9", "9", "4", "0"]
    assert payloads(plain.take(4)) == ["0", "9", "4", "9"]
    ranked.close()
    plain.close()


def test_a_receiver_with_a_selector_gets_what_it_chose(broker, client, publisher):
    broker.create_queue("chosen", "chosen/>")
    builder = client.service.create_persistent_message_receiver_builder()
    builder = builder.with_message_selector("color = 'red' AND size > 1").with_message_client_acknowledgement()
    received = client.received(builder.build(Queue.durable_exclusive_queue("chosen")).start())
    for color, size in (("blue", 5), ("red", 1), ("red", 2), ("red", 3)):
        send(client, publisher, "chosen/a", f"{color} {size}", color=color, size=size)
    messages = received.take(2)
    assert payloads(messages) == ["red 2", "red 3"]
    for message in messages:
        received.receiver.ack(message)
    received.close()
    assert broker.wait_for_status("chosen", lambda status: status.unacked_count == 0).depth == 2


def test_a_browser_removes_what_it_chooses(broker, client, publisher):
    broker.create_queue("browsed", "browsed/>")
    for payload in ("1", "2", "3"):
        send(client, publisher, "browsed/a", payload)
    builder = client.service.create_message_queue_browser_builder()
    browser = builder.build(Queue.durable_exclusive_queue("browsed")).start()
    seen = [browser.receive_message(PATIENCE_MS) for _ in range(3)]
    assert payloads(seen) == ["1", "2", "3"]
    browser.remove(seen[1])
    broker.wait_for_status("browsed", lambda status: status.depth == 2)
    browser.terminate()
    received = client.receiver("browsed")
    assert payloads(received.take(2)) == ["1", "3"]
    received.close()


def test_one_queue_that_must_refuse_keeps_the_message_out_of_all(broker, client, publisher):
    broker.create_queue("roomy", "shared/>")
    broker.create_queue("tight", "shared/>", quota_bytes=100)
    with pytest.raises(PubSubPlusClientError, match="Spool Over Quota"):
        send(client, publisher, "shared/a", "x" * 200)
    assert broker.status("roomy").depth == 0


def test_a_message_for_the_address_of_a_queue_is_there(broker, client, publisher):
    broker.create_queue("addressed")
    send(client, publisher, "#P2P/QUE/addressed", "1")
    received = client.receiver("addressed")
    assert received.next().get_payload_as_string() == "1"
    received.close()
    with pytest.raises(PubSubPlusClientError, match="Unknown Queue"):
        send(client, publisher, "#P2P/QUE/nowhere", "1")


def test_direct_messages_are_promoted_into_queues_and_persistent_ones_reach_direct_receivers(broker, client, publisher):
    broker.create_queue("promoted", "both/ways")
    builder = client.service.create_direct_message_receiver_builder()
    heard = client.received(builder.with_subscriptions([TopicSubscription.of("both/ways")]).build().start())
    client.direct_publisher().publish(client.message("direct"), Topic.of("both/ways"))
    assert heard.next().get_payload_as_string() == "direct"
    send(client, publisher, "both/ways", "persistent")
    assert heard.next().get_payload_as_string() == "persistent"
    received = client.receiver("promoted")
    assert payloads(received.take(2)) == ["direct", "persistent"]
    received.close()
    heard.close()


def test_topic_rules_are_enforced_for_publishers_and_subscribers(broker, client, make_client):
    narrow = AclProfile(publish=TopicRule(False, ("may/>",)), subscribe=TopicRule(False, ("may/>",)))

    def restrict() -> None:
        broker.server.engine.administration.accounts(DEFAULT_VPN).put(Account("narrow", acl=narrow))

    broker.call(restrict)
    username = {"solace.messaging.authentication.scheme.basic.username": "narrow"}
    ann = make_client("narrow-user", **username)
    publisher = ann.publisher()
    send(ann, publisher, "may/a", "1")
    with pytest.raises(MessageRejectedByBrokerError, match="Publish ACL Denied"):
        send(ann, publisher, "not/a", "1")
    builder = ann.service.create_direct_message_receiver_builder()
    with pytest.raises(PubSubPlusClientError, match="Subscription ACL Denied"):
        builder.with_subscriptions([TopicSubscription.of("not/>")]).build().start()
    ann.received(builder.with_subscriptions([TopicSubscription.of("may/b")]).build().start()).close()
