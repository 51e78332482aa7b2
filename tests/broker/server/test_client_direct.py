"""The official client against the server: direct messages, subscriptions, request and reply, contents of messages."""

import time

import pytest
from solace.messaging.receiver.request_reply_message_receiver import RequestMessageHandler
from solace.messaging.resources.share_name import ShareName
from solace.messaging.resources.topic import Topic
from solace.messaging.resources.topic_subscription import TopicSubscription

from lbg_runtime.model.message import Message
from lbg_runtime.smf.contents import message_of, relay_of
from tests.broker.server.clients import payloads
from tests.patience import PATIENCE_MS, PATIENCE_S

pytestmark = pytest.mark.real_time


def subscriber(client, *subscriptions):
    builder = client.service.create_direct_message_receiver_builder()
    receiver = builder.with_subscriptions([TopicSubscription.of(text) for text in subscriptions]).build().start()
    return client.received(receiver)


def test_direct_messages_reach_whoever_subscribes(broker, client, make_client):
    other = subscriber(make_client("listener"), "direct/*/c", "direct/deep/>")
    own = subscriber(client, "direct/a*/c")
    publisher = client.direct_publisher()
    for topic in ("direct/ab/c", "direct/b/c", "direct/deep/1/2", "direct/deep", "elsewhere"):
        publisher.publish(client.message(topic), Topic.of(topic))
    assert payloads(other.take(3)) == ["direct/ab/c", "direct/b/c", "direct/deep/1/2"]
    assert payloads(own.take(1)) == ["direct/ab/c"]
    assert other.is_silent()
    other.close()
    own.close()


def test_a_removed_subscription_attracts_nothing_more(broker, client):
    received = subscriber(client, "removed/a", "removed/b")
    received.receiver.remove_subscription(TopicSubscription.of("removed/a"))
    publisher = client.direct_publisher()
    publisher.publish(client.message("a"), Topic.of("removed/a"))
    publisher.publish(client.message("b"), Topic.of("removed/b"))
    assert received.next().get_payload_as_string() == "b"
    received.close()


def test_overlapping_subscriptions_bring_a_message_once(broker, make_client, client):
    received = subscriber(make_client("overlap"), "overlap/>", "overlap/*", "overlap/a")
    publisher = client.direct_publisher()
    publisher.publish(client.message("1"), Topic.of("overlap/a"))
    publisher.publish(client.message("2"), Topic.of("overlap/a"))
    assert payloads(received.take(2)) == ["1", "2"]
    received.close()


def test_a_shared_subscription_brings_a_message_to_one_of_its_members(broker, make_client, client):
    members = []
    for name in ("member-1", "member-2"):
        builder = make_client(name).service.create_direct_message_receiver_builder()
        receiver = builder.with_subscriptions([TopicSubscription.of("group/>")]).build(ShareName.of("members"))
        members.append(client.received(receiver.start()))
    publisher = client.direct_publisher()
    for number in range(10):
        publisher.publish(client.message(str(number)), Topic.of("group/a"))
    assert sorted(payloads([*members[0].take(5), *members[1].take(5)])) == sorted(map(str, range(10)))
    for member in members:
        assert member.is_silent(0.1)
        member.close()


def test_a_sticky_share_keeps_each_topic_with_one_of_its_members(broker, make_client, client):
    members = []
    for name in ("sticky-1", "sticky-2", "sticky-3"):
        builder = make_client(name).service.create_direct_message_receiver_builder()
        receiver = builder.with_subscriptions([TopicSubscription.of("sticky/*/>")]).build(ShareName.of("devices:1:1"))
        members.append(client.received(receiver.start()))
    publisher = client.direct_publisher()
    for number in range(60):
        device = number % 20
        publisher.publish(client.message(f"{device}"), Topic.of(f"sticky/{device}/{number}"))
    seen = [[] for _ in members]
    ends_s = time.monotonic() + PATIENCE_S
    while sum(map(len, seen)) < 60:
        assert time.monotonic() < ends_s, f"{[*map(payloads, seen)]} and no more"
        for member, its in zip(members, seen, strict=True):
            member.is_silent_or(its.append, 0.02)
    for member in members:
        assert member.is_silent(0.1)
        member.close()
    owners = [set(payloads(messages)) for messages in seen]
    everything = [payload for messages in seen for payload in payloads(messages)]
    assert sorted(everything) == sorted(str(number % 20) for number in range(60))
    assert sum(map(len, owners)) == 20, "no device is with two"
    assert all(owners)


def test_a_queue_keeps_direct_messages_and_a_subscriber_gets_persistent_ones(broker, client):
    broker.create_queue("promoted", "mixed/>")
    subscribed = subscriber(client, "mixed/>")
    client.direct_publisher().publish(client.message("direct"), Topic.of("mixed/a"))
    assert subscribed.next().get_payload_as_string() == "direct"
    client.publish(client.publisher(), "mixed/a", "persistent")
    assert subscribed.next().get_payload_as_string() == "persistent"
    received = client.receiver("promoted")
    messages = received.take(2)
    assert payloads(messages) == ["direct", "persistent"]
    for message in messages:
        received.receiver.ack(message)
    received.close()
    broker.wait_for_status("promoted", lambda status: status.depth == 0)
    subscribed.close()


def test_a_request_gets_its_reply(broker, client, make_client):
    replying = make_client("replier").service.request_reply()
    receiver = replying.create_request_reply_message_receiver_builder().build(TopicSubscription.of("ask/>")).start()
    replies = make_client("replier-messages")

    class Handler(RequestMessageHandler):
        def on_message(self, message, replier):
            replier.reply(replies.message(message.get_payload_as_string().upper()))

    receiver.receive_async(Handler())
    requester = client.service.request_reply().create_request_reply_message_publisher_builder().build().start()
    for text in ("one", "two"):
        reply = requester.publish_await_response(client.message(text), Topic.of("ask/a"), PATIENCE_MS)
        assert reply.get_payload_as_string() == text.upper()
    requester.terminate(500)
    receiver.terminate(500)


@pytest.mark.parametrize("topic", ["contents/direct", "contents/queue"])
def test_every_type_of_payload_and_property_arrives_as_it_was_sent(broker, client, topic):
    name = topic.replace("/", "-")
    broker.create_queue(name, "contents/queue")
    values = {
        "text": "täxt",
        "number": -5,
        "big": 2**62,
        "real": 0.5,
        "yes": True,
        "raw": bytearray(b"\1\xff"),
        "no": None,
    }
    published = [
        ("täxt", "get_payload_as_string", "täxt"),
        (bytearray(b"\x00\xff" * 700), "get_payload_as_bytes", bytearray(b"\x00\xff" * 700)),
        (values | {"map": {"inner": [1, "2"]}}, "get_payload_as_dictionary", values | {"map": {"inner": [1, "2"]}}),
        ([1, "two", 3.0, None, {"four": 4}], "get_payload_as_list", [1, "two", 3.0, None, {"four": 4}]),
    ]
    if topic == "contents/queue":
        received, publisher = client.receiver(name), client.publisher()
    else:
        received, publisher = subscriber(client, topic), client.direct_publisher()
    for payload, _, _ in published:
        message = (
            client.service.message_builder()
            .from_properties(values)
            .with_application_message_id("id-1")
            .with_application_message_type("type")
            .with_correlation_id("correlation")
            .with_sequence_number(77)
            .with_sender_id("sender")
            .with_http_content_header("text/plain", "utf-8")
            .with_priority(200)
            .build(payload)
        )
        publisher.publish(message, Topic.of(topic))
    for _, getter, expected in published:
        message = received.next()
        assert getattr(message, getter)() == expected
        assert message.get_properties() == values
        assert message.get_application_message_id() == "id-1"
        assert message.get_application_message_type() == "type"
        assert message.get_correlation_id() == "correlation"
        assert message.get_sequence_number() == 77
        assert message.get_sender_id() == "sender"
        assert message.get_priority() == 200
        assert message.get_rest_interoperability_support().get_http_content_type() == "text/plain"
        assert message.get_destination_name() == topic
    received.close()


def test_the_broker_reads_what_a_client_wrote_inside_a_message(broker, client, monkeypatch):
    kept = []
    publish = broker.server.engine.publish
    monkeypatch.setattr(broker.server.engine, "publish", lambda *call: kept.append(call[2]) or publish(*call))
    publisher = client.publisher()
    client.publish(publisher, "inside/a", "täxt", bytearray(b"bytes"))
    message = (
        client.service.message_builder()
        .with_application_message_id("id")
        .with_property("JMSXGroupID", "key")
        .with_property("lbg_key_sequence", 7)
        .build(bytearray(b"body"))
    )
    publisher.publish_await_acknowledgement(message, Topic.of("inside/a"), PATIENCE_MS)
    text, raw, keyed = [message_of(published.topic, published.content) for published in kept]
    assert text.payload == "täxt".encode()
    assert raw.payload == b"bytes"
    assert (keyed.payload, keyed.key, keyed.key_sequence, keyed.message_id) == (b"body", "key", 7, "id")


def test_a_client_reads_what_was_made_in_this_process(broker, client):
    from lbg_runtime.broker.engine.effects import Published

    broker.create_queue("made", "made/>")
    received = client.receiver("made")
    message = Message("made/a", b"body", {"JMSXGroupID": "key", "count": 3, "raw": b"\0"}, message_id="id")

    def publish():
        relay = relay_of(message)
        engine = broker.server.engine
        publisher, effects = engine.connect("default", "user", "password", "inside")
        flow = engine.open_publisher(publisher, "").flow
        broker.server.carry_out([*effects, *engine.publish(flow, 1, Published(message.topic, relay, relay.size_bytes))])

    broker.call(publish)
    got = received.next()
    assert got.get_payload_as_bytes() == b"body"
    assert got.get_properties() == {"JMSXGroupID": "key", "count": 3, "raw": b"\0"}
    assert got.get_application_message_id() == "id"
    received.close()


def test_direct_messages_of_a_higher_class_reach_a_slow_reader_first(broker, client, make_client):
    received = subscriber(make_client("slow"), "classes/>")
    publisher = client.direct_publisher()
    broker.call(broker.server.faults.stall, "slow")
    for class_of_service in (0, 1, 2, 0, 1, 2):
        options = {"solace.messaging.message.class-of-service": class_of_service}
        message = client.service.message_builder().build(str(class_of_service), additional_message_properties=options)
        publisher.publish(message, Topic.of("classes/a"))
    # Behind them on the same connection: once it is confirmed, they wait for their reader.
    client.publish(client.publisher(), "classes/behind", "persistent")
    broker.call(broker.server.faults.stall, "slow", on=False)
    messages = received.take(7)
    assert payloads(messages) == ["2", "2", "1", "1", "0", "0", "persistent"]
    assert [message.get_class_of_service() for message in messages[:6]] == [2, 2, 1, 1, 0, 0]
    received.close()
