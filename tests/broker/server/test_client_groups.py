"""Message groups on a socket, with the official client."""

import pytest
from solace.messaging.resources.topic import Topic

from lbg_runtime.broker.engine.settings import AccessType, Grouping
from tests.patience import PATIENCE_MS

pytestmark = pytest.mark.real_time


@pytest.fixture
def group_queue(broker, request):
    name = request.node.name
    grouping = Grouping(is_enabled=True, first_property="first")
    broker.create_queue(name, f"{name}/>", access_type=AccessType.NON_EXCLUSIVE, grouping=grouping)
    return name


def publish(client, queue, *messages):
    publisher = client.publisher()
    for number, properties in enumerate(messages):
        message = client.message(str(number), **properties)
        publisher.publish_await_acknowledgement(message, Topic.of(f"{queue}/new"), PATIENCE_MS)


def taken(receiver, count):
    """What comes, settled, so that nobody gets it when the test is over."""
    messages = receiver.take(count)
    for message in messages:
        receiver.receiver.ack(message)
    return messages


def seen(message):
    return message.get_payload_as_string(), properties(message).get("JMSXGroupID")


def properties(message):
    return message.get_properties() or {}


def test_a_group_goes_to_one_client_and_its_first_message_says_so(broker, client, make_client, group_queue):
    receivers = [make_client(f"groups-{name}").receiver(group_queue, exclusive=False) for name in ("ann", "bob")]
    broker.wait_for_status(group_queue, lambda s: sum(flow.window_size for flow in s.flows) > 255)
    publish(client, group_queue, *[{"JMSXGroupID": group} for group in "abab"], {}, {})
    ann, bob = (taken(receiver, 3) for receiver in receivers)
    assert [seen(message) for message in ann] == [("0", "a"), ("2", "a"), ("4", None)]
    assert [seen(message) for message in bob] == [("1", "b"), ("3", "b"), ("5", None)]
    assert [properties(message).get("first") for message in ann] == [True, None, None]
    assert ann[0].get_payload_as_string() == "0", "the rest of it is as it was"


def test_a_group_is_closed_by_its_last_message(broker, client, make_client, group_queue):
    receivers = [make_client(f"closing-{name}").receiver(group_queue, exclusive=False) for name in ("ann", "bob")]
    broker.wait_for_status(group_queue, lambda s: sum(flow.window_size for flow in s.flows) > 255)
    ending = {"JMSXGroupID": "a", "JMSXGroupSeq": -1}
    publish(client, group_queue, {"JMSXGroupID": "a"}, ending, {"JMSXGroupID": "a"})
    assert [seen(message) for message in taken(receivers[0], 2)] == [("0", "a"), ("1", "a")]
    (message,) = taken(receivers[1], 1)
    assert seen(message) == ("2", "a")
    assert properties(message)["first"] is True


def test_a_producer_that_asks_has_a_group_of_its_own(broker, make_client, group_queue):
    receivers = [make_client(f"auto-{name}").receiver(group_queue, exclusive=False) for name in ("ann", "bob")]
    broker.wait_for_status(group_queue, lambda s: sum(flow.window_size for flow in s.flows) > 255)
    for name in ("first", "second"):
        publish(make_client(f"producer-{name}"), group_queue, *[{"JMSXGroupID": "#auto"}] * 3)
    for receiver in receivers:
        assert [message.get_payload_as_string() for message in taken(receiver, 3)] == ["0", "1", "2"]
