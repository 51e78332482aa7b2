"""The official client against the server: transacted sessions."""

import pytest
from solace.messaging.errors.pubsubplus_client_error import PubSubPlusClientError
from solace.messaging.resources.queue import Queue
from solace.messaging.resources.topic import Topic

from lbg_runtime.broker.engine.accounts import Account, ClientProfile
from lbg_runtime.broker.engine.engine import DEFAULT_VPN
from tests.patience import PATIENCE_MS, PATIENCE_S

pytestmark = pytest.mark.real_time


class Transacted:
    """A transacted session with a publisher, and receivers where asked."""

    def __init__(self, client):
        self.client = client
        self.service = client.service.create_transactional_service_builder().build().connect()
        self.publisher = self.service.create_transactional_message_publisher_builder().build().start()

    def publish(self, topic, *payloads):
        for payload in payloads:
            self.publisher.publish(self.client.message(payload), Topic.of(topic))

    def receiver(self, queue):
        builder = self.service.create_transactional_message_receiver_builder()
        return builder.build(Queue.durable_exclusive_queue(queue)).start()


@pytest.fixture
def transacted(client):
    session = Transacted(client)
    yield session
    session.service.disconnect()


def next_of(receiver):
    message = receiver.receive_message(PATIENCE_MS)
    assert message is not None, "nothing came"
    return message.get_payload_as_string(), message.is_redelivered()


def test_what_is_published_is_there_with_the_commit_and_not_before(broker, client, transacted):
    broker.create_queue("committed", "committed/>")
    transacted.publish("committed/a", "1", "2")
    marker = client.publisher()
    client.publish(marker, "committed/a", "outside")
    assert broker.status("committed").depth == 1
    transacted.service.commit()
    received = client.receiver("committed")
    assert [message.get_payload_as_string() for message in received.take(3)] == ["outside", "1", "2"]
    received.close()


def test_what_is_rolled_back_was_never_published(broker, transacted):
    broker.create_queue("undone", "undone/>")
    transacted.publish("undone/a", "1")
    transacted.service.rollback()
    transacted.publish("undone/a", "2")
    transacted.service.commit()
    assert broker.status("undone").last_sequence == 1


def test_what_is_consumed_is_gone_with_the_commit_and_comes_again_after_a_rollback(broker, client, transacted):
    broker.create_queue("moved", "moved/>")
    client.publish(client.publisher(), "moved/a", "1", "2", "3")
    receiver = transacted.receiver("moved")
    assert next_of(receiver) == ("1", False)
    transacted.service.commit()
    assert broker.status("moved").depth == 2
    assert next_of(receiver) == ("2", False)
    transacted.service.rollback()
    assert [next_of(receiver), next_of(receiver)] == [("2", True), ("3", True)]
    transacted.service.commit()
    assert broker.status("moved").depth == 0


def test_a_receiver_reads_more_than_a_window_as_its_commits_acknowledge_it(broker, client, transacted):
    broker.create_queue("wide", "wide/>")
    expected = [str(number) for number in range(300)]
    client.publish(client.publisher(), "wide/a", *expected)
    receiver = transacted.receiver("wide")
    received = []
    for _ in range(3):
        received += [next_of(receiver) for _ in range(100)]
        transacted.service.commit()
    assert received == [(each, False) for each in expected]
    assert broker.status("wide").depth == 0


def test_a_rollback_of_more_than_a_window_is_followed_by_all_of_it_again(broker, client, transacted):
    # The client takes 255 in advance and drops them with the rollback, without a word for them.
    broker.create_queue("long", "long/>")
    expected = [str(number) for number in range(300)]
    client.publish(client.publisher(), "long/a", *expected)
    receiver = transacted.receiver("long")
    for _ in range(3):
        assert next_of(receiver)[0] == "0"
        transacted.service.rollback()
    received = []
    for _ in range(3):
        received += [next_of(receiver)[0] for _ in range(100)]
        transacted.service.commit()
    assert received == expected
    assert broker.status("long").depth == 0


def test_a_commit_that_one_queue_refuses_undoes_everything(broker, client, transacted):
    broker.create_queue("source", "source/>")
    broker.create_queue("target", "target/>")
    broker.create_queue("narrow", "narrow/>", quota_bytes=300)
    client.publish(client.publisher(), "source/a", "1")
    receiver = transacted.receiver("source")
    assert next_of(receiver) == ("1", False)
    transacted.publish("target/a", "2")
    transacted.publish("narrow/a", "x" * 200, "y" * 200)  # Each of them alone would have room.
    with pytest.raises(PubSubPlusClientError, match="Spool Over Quota"):
        transacted.service.commit()
    assert (broker.status("target").depth, broker.status("narrow").depth) == (0, 0)
    assert next_of(receiver) == ("1", True)
    transacted.publish("target/a", "2")
    transacted.service.commit()
    assert (broker.status("source").depth, broker.status("target").depth) == (0, 1)


def test_a_connection_that_breaks_takes_its_transaction_with_it(broker, make_client):
    # The client opens its session anew and commits what it did not send again: that must not be taken for done.
    broker.create_queue("broken", "broken/>")
    client = make_client("breaking")
    session = Transacted(client)
    session.publish("broken/a", "1")
    broker.call(broker.server.faults.drop, "breaking")
    client.reconnected.get(timeout=PATIENCE_S)
    with pytest.raises(PubSubPlusClientError, match="Transaction Failure"):
        session.service.commit()
    assert broker.status("broken").last_sequence == 0
    session.publish("broken/a", "2")
    session.service.commit()
    assert broker.status("broken").depth == 1
    session.service.disconnect()


def consuming(broker, make_client, queue):
    """A transaction that has consumed 3 of 5 messages on a connection of its own, and its receiver."""
    broker.create_queue(queue, f"{queue}/>")
    client = make_client(queue)
    client.publish(client.publisher(), f"{queue}/a", "1", "2", "3", "4", "5")
    session = Transacted(client)
    receiver = session.receiver(queue)
    assert [next_of(receiver)[0] for _ in range(3)] == ["1", "2", "3"]
    return session, receiver


def test_a_transaction_that_only_consumed_outlasts_a_broken_connection(broker, make_client):
    session, receiver = consuming(broker, make_client, "outlasting")
    broker.call(broker.server.faults.drop, "outlasting")
    session.client.reconnected.get(timeout=PATIENCE_S)
    session.service.commit()
    assert broker.status("outlasting").depth == 2
    assert [next_of(receiver)[0] for _ in range(2)] == ["4", "5"]
    session.service.commit()
    assert broker.status("outlasting").depth == 0
    session.service.disconnect()


def test_what_a_broken_transaction_consumed_comes_again_where_it_published_too(broker, make_client):
    session, receiver = consuming(broker, make_client, "undoing")
    session.publish("elsewhere", "never sent again")
    broker.call(broker.server.faults.drop, "undoing")
    session.client.reconnected.get(timeout=PATIENCE_S)
    with pytest.raises(PubSubPlusClientError, match="Transaction Failure"):
        session.service.commit()
    assert [next_of(receiver) for _ in range(5)] == [(each, True) for each in "12345"]
    session.service.commit()
    assert broker.status("undoing").depth == 0
    session.service.disconnect()


def test_what_transactions_move_arrives_once_and_in_order_through_breaks_and_rollbacks(broker, make_client):
    broker.create_queue("from", "from/>")
    broker.create_queue("to", "to/>")
    client = make_client("moving")
    expected = [str(number) for number in range(300)]
    client.publish(client.publisher(), "from/a", *expected)
    session = Transacted(client)
    receiver = session.receiver("from")
    for turn in range(200):
        for _ in range(min(20, broker.status("from").depth)):
            session.publish("to/a", next_of(receiver)[0])
        if turn % 5 == 3:
            broker.call(broker.server.faults.drop, "moving")
            client.reconnected.get(timeout=PATIENCE_S)
            with pytest.raises(PubSubPlusClientError, match="Transaction Failure"):
                session.service.commit()
        elif turn % 3 == 1:
            session.service.rollback()
        else:
            session.service.commit()
            if broker.status("from").depth == 0:
                break
    received = client.receiver("to")
    assert [message.get_payload_as_string() for message in received.take(300)] == expected
    assert broker.status("to").last_sequence == 300
    received.close()
    session.service.disconnect()


def test_a_transacted_session_that_is_closed_leaves_the_connection_and_others_alone(broker, client, transacted):
    broker.create_queue("open", "open/>")
    closed = Transacted(client)
    closed.publish("open/a", "never committed")
    closed.service.disconnect()
    transacted.publish("open/a", "1")
    transacted.service.commit()
    client.publish(client.publisher(), "open/a", "2")
    assert broker.status("open").depth == 2
    assert client.reconnected.empty()


def test_a_profile_can_forbid_transactions(broker, make_client):
    def forbid() -> None:
        profile = ClientProfile(may_use_transactions=False)
        broker.server.engine.administration.accounts(DEFAULT_VPN).put(Account("plain", profile=profile))

    broker.call(forbid)
    client = make_client("plain-user", **{"solace.messaging.authentication.scheme.basic.username": "plain"})
    with pytest.raises(PubSubPlusClientError):
        client.service.create_transactional_service_builder().build().connect()


def test_transactions_that_a_profile_forbids_later_are_refused_and_the_connection_stays(broker, make_client):
    def allow(*, allowed: bool) -> None:
        profile = ClientProfile(may_use_transactions=allowed)
        broker.server.engine.administration.accounts(DEFAULT_VPN).put(Account("plain", profile=profile))

    broker.create_queue("forbidden", "forbidden/>")
    broker.call(lambda: allow(allowed=True))
    client = make_client("forbidden", **{"solace.messaging.authentication.scheme.basic.username": "plain"})
    session = Transacted(client)
    broker.call(lambda: allow(allowed=False))
    session.publish("forbidden/a", "1")
    with pytest.raises(PubSubPlusClientError, match="Permission Not Allowed"):
        session.service.commit()
    with pytest.raises(PubSubPlusClientError, match="Permission Not Allowed"):
        Transacted(client)
    broker.call(lambda: allow(allowed=True))
    session.publish("forbidden/a", "2")
    session.service.commit()
    client.publish(client.publisher(), "forbidden/a", "3")
    received = client.receiver("forbidden")
    assert [message.get_payload_as_string() for message in received.take(2)] == ["2", "3"]
    received.close()
    session.service.disconnect()
    assert client.reconnected.empty()
