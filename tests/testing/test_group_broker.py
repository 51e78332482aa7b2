import pytest

from lbg_runtime.broker.engine.settings import QueueSettings
from lbg_runtime.model.errors import UserError
from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.model.message import Message
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.testing.flow_recorder import FlowRecorder
from lbg_runtime.testing.group_broker import GroupBroker
from lbg_runtime.testing.moments import Moments

QUEUE = QueueName("q")


@pytest.fixture
def broker() -> GroupBroker:
    broker = GroupBroker(Moments(), lambda: None)
    broker.create_queue(QUEUE, ["q/>"])
    return broker


async def test_looking_at_a_queue_takes_nothing_and_flags_nothing(broker: GroupBroker) -> None:
    transport = broker.make_transport("one")
    await transport.open()
    for number in range(600):
        await transport.send(Message("q/1", b"%d" % number))
    expected = [b"%d" % number for number in range(600)]
    for _ in range(2):
        assert [message.payload for message in broker.left_on(QUEUE)] == expected
    recorder = FlowRecorder()
    flow = await transport.bind(QUEUE, Epoch(1), recorder)
    flow.start_intake()
    await recorder.until_received(600)
    assert recorder.payloads == expected
    assert not any(delivery.redelivered for delivery in recorder.deliveries)
    assert [message.payload for message in broker.left_on(QUEUE)] == expected, "what is held is still there"
    for delivery in recorder.deliveries:
        flow.settle(delivery.delivery_id, Outcome.ACCEPTED)
    flow.flush()
    assert broker.left_on(QUEUE) == []
    assert broker.depth(QUEUE) == 0


async def test_a_failure_breaks_every_connection_and_keeps_what_is_spooled(broker: GroupBroker) -> None:
    one, two = broker.make_transport("one"), broker.make_transport("two")
    for transport in (one, two):
        await transport.open()
    await one.send(Message("q/1", b"kept"))
    told: list[bool] = []
    two.watch_connection(told.append)
    broker.fail()
    assert told == [True, False]
    later = one.send(Message("q/1", b"later"))
    broker.restore()
    await later
    assert told == [True, False, True]
    assert [message.payload for message in broker.left_on(QUEUE)] == [b"kept", b"later"]


async def test_who_is_fed_is_named(broker: GroupBroker) -> None:
    assert broker.fed(QUEUE) is None
    transport = broker.make_transport("one")
    await transport.open()
    await transport.bind(QUEUE, Epoch(1), FlowRecorder())
    broker.left_on(QUEUE)
    assert broker.fed(QUEUE) == "one"


def test_a_topic_in_place_of_a_list_of_topics_is_refused(broker: GroupBroker) -> None:
    """Its letters would be topics, and `>` is all of them."""
    with pytest.raises(UserError, match=r"subscriptions: 'quotes/>'; expected a list, \['quotes/>'\]"):
        broker.create_queue("given", "quotes/>")
    assert broker.left_on("given") == []


def test_a_queue_that_is_not_there_is_empty(broker: GroupBroker) -> None:
    missing = QueueName("missing")
    assert (broker.depth(missing), broker.left_on(missing), broker.fed(missing)) == (0, [], None)


async def test_settlements_leave_after_the_clients_second(broker: GroupBroker) -> None:
    broker.create_queue("other", ["o/>"], settings=QueueSettings())
    transport, recorder = broker.make_transport("one"), FlowRecorder()
    await transport.open()
    flow = await transport.bind(QueueName("other"), Epoch(1), recorder)
    flow.start_intake()
    await transport.send(Message("o/1", b""))
    (delivery,) = await recorder.until_received(1)
    flow.settle(delivery.delivery_id, Outcome.ACCEPTED)
    assert broker.depth(QueueName("other")) == 1
    await transport.send(Message("o/1", b""))
    transport.kill()
    assert broker.depth(QueueName("other")) == 2, "it was still to be sent"
