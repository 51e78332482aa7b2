"""The official client against the server: connections that break, and what a client does when it comes back."""

import queue
import threading

import pytest
from solace.messaging.resources.topic import Topic

from lbg_runtime.model.errors import BrokerRefusal
from tests.broker.server.clients import payloads
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.real_time


def test_nothing_is_lost_or_doubled_when_a_publishing_client_is_cut_off(broker, make_client, receipts):
    broker.create_queue("cut", "cut/>")
    client = make_client("cut")
    publisher = client.publisher()
    publisher.set_message_publish_receipt_listener(receipts)
    cuts = iter(range(250, 1500, 250))
    cut_at = next(cuts)
    for number in range(1500):
        publisher.publish(client.message(str(number)), Topic.of("cut/a"), user_context=number)
        if number == cut_at:
            assert broker.call(broker.server.faults.drop, "cut") == 1
            client.reconnected.get(timeout=PATIENCE_S)
            cut_at = next(cuts, None)
    confirmed = [receipts.inbox.get(timeout=PATIENCE_S) for _ in range(1500)]
    assert all(receipt.is_persisted for receipt in confirmed)
    received = client.receiver("cut")
    messages = received.take(1500)
    assert payloads(messages) == list(map(str, range(1500)))
    assert not any(message.is_redelivered() for message in messages)
    received.close()


def test_what_was_accepted_and_not_yet_acknowledged_is_not_taken_again(broker, make_client, receipts, monkeypatch):
    broker.create_queue("unacknowledged", "unacknowledged/>")
    client = make_client("unacknowledged")
    publisher = client.publisher()
    publisher.set_message_publish_receipt_listener(receipts)
    publish = broker.server.engine.publish
    accepted = []

    def cut_off_after(flow, message_id, message):
        effects = publish(flow, message_id, message)
        accepted.append(message_id)
        if len(accepted) in (100, 101, 350, 600):
            # The acknowledgement of what this read brought is never written.
            broker.server.faults.drop("unacknowledged")
        return effects

    monkeypatch.setattr(broker.server.engine, "publish", cut_off_after)
    for number in range(1000):
        publisher.publish(client.message(str(number)), Topic.of("unacknowledged/a"), user_context=number)
    confirmed = [receipts.inbox.get(timeout=PATIENCE_S) for _ in range(1000)]
    assert [receipt.user_context for receipt in confirmed] == list(range(1000))
    assert accepted == list(range(1, 1001))
    assert broker.status("unacknowledged").depth == 1000


@pytest.mark.parametrize("lost_from", [1, 2, 3])
def test_a_refusal_that_was_lost_with_the_connection_comes_after_it(
    broker, make_client, receipts, monkeypatch, lost_from
):
    name = f"refusing-{lost_from}"
    broker.create_queue(name, f"{name}/>", max_message_bytes=500)
    client = make_client(name)
    publisher = client.publisher()
    # A client that is cut off within a millisecond of its login may open a new flow (docs/protocol.md).
    client.publish(publisher, f"{name}/a", "before")
    publisher.set_message_publish_receipt_listener(receipts)
    publish = broker.server.engine.publish
    seen = []
    cuts = [lost_from, lost_from + 10]

    def cut_off_after(flow, message_id, message):
        seen.append(message_id)
        is_refused = False
        try:
            return publish(flow, message_id, message)
        except BrokerRefusal:
            is_refused = True
            raise
        finally:
            # The second time with a refusal that is never heard of, so that something is refused twice.
            if cuts and len(seen) >= cuts[0] and (is_refused or len(cuts) == 2):
                del cuts[0]
                # No answer to what this read brought is ever written.
                broker.server.faults.drop(name)

    monkeypatch.setattr(broker.server.engine, "publish", cut_off_after)
    for number in range(300):
        size = 600 if number % 4 == 1 else 100
        publisher.publish(client.message(bytearray(size)), Topic.of(f"{name}/a"), user_context=number)
    got = {receipt.user_context: receipt for receipt in (receipts.inbox.get(timeout=PATIENCE_S) for _ in range(300))}
    assert [number for number in range(300) if not got[number].is_persisted] == list(range(1, 300, 4))
    assert all("Document Is Too Large" in str(got[number].exception) for number in range(1, 300, 4))
    assert broker.status(name).depth == 1 + 225
    assert len(seen) > 300
    # What has been heard is not refused again, and not told again.
    assert broker.call(broker.server.faults.drop, name) == 1
    client.reconnected.get(timeout=PATIENCE_S)
    seen[:] = [0] * 1000
    client.publish(publisher, f"{name}/a", "fine")
    assert seen[1000:] == [302]


def test_a_receiver_that_is_cut_off_settles_what_it_holds_and_sees_the_rest_once(broker, make_client):
    # After a re-bind a client drops every id it has seen, and acknowledges by the old ids what it still holds.
    broker.create_queue("held", "held/>")
    client = make_client("holder")
    other = make_client("feeder")
    publisher = other.publisher()
    other.publish(publisher, "held/a", *map(str, range(20)))
    received = client.receiver("held")
    messages = received.take(20)
    received.receiver.ack(messages[3])
    assert broker.call(broker.server.faults.drop, "holder") == 1
    client.reconnected.get(timeout=PATIENCE_S)
    other.publish(publisher, "held/a", *map(str, range(20, 30)))
    later = received.take(10)
    assert payloads(later) == list(map(str, range(20, 30)))
    for message in [*messages[:3], *messages[4:], *later[:-1]]:
        received.receiver.ack(message)
    received.close()
    assert broker.wait_for_status("held", lambda status: status.depth <= 1).depth == 1
    again = client.receiver("held")
    assert again.next().get_payload_as_string() == "29"
    assert again.is_silent()
    again.close()


def test_messages_that_got_lost_with_the_connection_come_under_ids_the_client_takes(broker, make_client):
    # Nothing may be sent again under an id at or below the last one that the client has received.
    broker.create_queue("under-way", "under-way/>")
    client = make_client("under-way")
    other = make_client("under-way-feeder")
    publisher = other.publisher()
    received = client.receiver("under-way")
    seen: list[str] = []
    for round_number in range(5):
        sender = threading.Thread(
            target=other.publish, args=(publisher, "under-way/a", *[f"{round_number}-{n}" for n in range(200)])
        )
        sender.start()
        first = received.next()
        assert broker.call(broker.server.faults.drop, "under-way") == 1
        client.reconnected.get(timeout=PATIENCE_S)
        sender.join(PATIENCE_S)
        messages = [first, *received.take(199)]
        seen += payloads(messages)
        for message in messages:
            received.receiver.ack(message)
    assert seen == [f"{round_number}-{n}" for round_number in range(5) for n in range(200)]
    received.close()
    broker.wait_for_status("under-way", lambda status: status.depth == 0)


def test_the_standby_takes_over_when_the_active_client_is_cut_off(broker, make_client):
    broker.create_queue("lost", "lost/>")
    active_events, standby_events = queue.Queue(), queue.Queue()
    first_client, second_client = make_client("active"), make_client("passive")
    first = first_client.receiver("lost", events=active_events)
    assert active_events.get(timeout=PATIENCE_S) == "ACTIVE"
    second = second_client.receiver("lost", events=standby_events)
    second_client.publish(second_client.publisher(), "lost/a", "1", "2")
    first.take(2)
    broker.call(broker.server.faults.drop, "active")
    assert standby_events.get(timeout=PATIENCE_S) == "ACTIVE"
    assert active_events.get(timeout=PATIENCE_S) == "PASSIVE"
    messages = second.take(2)
    assert payloads(messages) == ["1", "2"]
    assert all(message.is_redelivered() for message in messages)
    first_client.reconnected.get(timeout=PATIENCE_S)
    for message in messages:
        second.receiver.ack(message)
    second.close()
    # The first comes back as a standby and becomes active when the second leaves.
    assert active_events.get(timeout=PATIENCE_S) == "ACTIVE"
    second_client.publish(second_client.publisher(), "lost/a", "3")
    assert first.next().get_payload_as_string() == "3"
    first.close()


def test_direct_subscriptions_and_inboxes_are_restored_after_a_cut(broker, make_client):
    client = make_client("restored")
    other = make_client("restoring")
    from solace.messaging.resources.topic_subscription import TopicSubscription

    builder = client.service.create_direct_message_receiver_builder()
    received = client.received(builder.with_subscriptions([TopicSubscription.of("restored/>")]).build().start())
    broker.call(broker.server.faults.drop, "restored")
    client.reconnected.get(timeout=PATIENCE_S)
    other.direct_publisher().publish(other.message("1"), Topic.of("restored/a"))
    assert received.next().get_payload_as_string() == "1"
    received.close()


def test_a_second_client_of_the_same_name_takes_over(broker, client_class):
    quiet = {"solace.messaging.transport.reconnection-attempts": 0}
    first = client_class(broker.port, "twin", **quiet).connect()
    second = client_class(broker.port, "twin", **quiet).connect()
    assert broker.call(broker.server.client_names).count("twin") == 1
    second.publish(second.publisher(), "twin/a", "1")
    second.close()
    first.close()


def test_a_client_survives_a_new_life_of_the_broker(broker_thread_class, client_class, receipts):
    # A broker that keeps nothing does not know the publisher flow of its former life.
    first = broker_thread_class()
    first.start()
    first.create_queue("lives", "lives/>")
    client = client_class(first.port, "survivor").connect()
    publisher = client.publisher()
    publisher.set_message_publish_receipt_listener(receipts)
    for number in range(50):
        publisher.publish(client.message(str(number)), Topic.of("lives/a"), user_context=number)
    assert [receipts.inbox.get(timeout=PATIENCE_S).user_context for _ in range(50)] == list(range(50))
    received = client.receiver("lives")
    received.take(50)
    port = first.port
    first.stop()
    second = broker_thread_class(port)
    second.start()
    second.create_queue("lives", "lives/>")
    client.reconnected.get(timeout=PATIENCE_S)
    for number in range(50, 100):
        publisher.publish(client.message(str(number)), Topic.of("lives/a"), user_context=number)
    assert [receipts.inbox.get(timeout=PATIENCE_S).user_context for _ in range(50)] == list(range(50, 100))
    assert payloads(received.take(50)) == list(map(str, range(50, 100)))
    client.close()
    second.stop()
