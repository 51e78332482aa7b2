import pytest

from lbg_runtime.broker.engine.answers import SettledRange
from lbg_runtime.broker.engine.effects import (
    ClientEnded,
    ClientId,
    DeliverDirect,
    DeliverRun,
    FlowEnded,
    FlowId,
    Published,
)
from lbg_runtime.broker.engine.engine import LARGEST_RECEIVED_ID, Engine
from lbg_runtime.broker.engine.intake import Obstacle
from lbg_runtime.broker.engine.settings import AccessType, QueueSettings, RejectOnDiscard
from lbg_runtime.model.errors import BrokerRefusal
from lbg_runtime.model.ids import DeliveryId, QueueName
from lbg_runtime.model.outcome import Outcome

QUEUE = QueueName("orders")


# -- logging in


def test_anybody_may_come_in_until_a_user_is_configured():
    engine = Engine()
    engine.connect("default", "anybody", "", "ann")
    engine.add_user("default", "user", "secret")

    engine.connect("default", "user", "secret", "bob")
    for username, password in (("user", "wrong"), ("anybody", "")):
        with pytest.raises(BrokerRefusal, match="401 Unauthorized"):
            engine.connect("default", username, password, "cat")


def test_an_unknown_vpn_is_refused():
    with pytest.raises(BrokerRefusal, match="403 Message VPN Not Allowed"):
        Engine().connect("other", "user", "", "ann")


@pytest.mark.parametrize("name", ["", "x" * 161, "ä" * 81, "a/*", "a>", "a\nb", "\ud800"])
def test_an_impossible_client_name_is_refused(name):
    with pytest.raises(BrokerRefusal, match="400 Client Name Parse Error"):
        Engine().connect("default", "user", "", name)


def test_a_client_has_another_name_and_keeps_what_it_has():
    engine = Engine()
    ann, _ = engine.connect("default", "user", "", "ann")
    bob, _ = engine.connect("default", "user", "", "bob")
    for client in (ann, bob):
        engine.subscribe(client, "#share/both/a/>")
    engine.rename(ann, "anna")
    assert engine.administration.client_names("default") == ("bob", "anna")
    publisher = engine.open_publisher(bob, "").flow
    taken = [effect.client for n in (1, 2) for effect in engine.publish(publisher, n, Published("a/1", n, 1))]
    assert sorted(taken) == sorted((ann, bob))
    # The old name is free, the new one is not.
    engine.connect("default", "user", "", "ann")
    for name, why in (("bob", "400 Client Name Already In Use"), ("an>", "400 Client Name Parse Error")):
        with pytest.raises(BrokerRefusal, match=why):
            engine.rename(ann, name)
    engine.rename(ann, "anna")
    assert len(engine.administration.client_names("default")) == 3


def test_vpns_share_nothing():
    engine = Engine()
    engine.add_vpn("other")
    engine.add_vpn("other")
    engine.create_queue("other", QUEUE, QueueSettings())
    engine.add_queue_subscription("other", QUEUE, ">")
    here, _ = engine.connect("default", "user", "", "ann")
    there, effects = engine.connect("other", "user", "", "ann")
    engine.subscribe(there, ">")

    assert effects == []
    assert engine.publish_direct(here, Published("a", 1, 1)) == []
    with pytest.raises(BrokerRefusal, match="503 Unknown Queue"):
        engine.bind(here, QUEUE)
    assert engine.queue_names("default") == ()
    assert engine.queue_names("other") == (QUEUE,)


def test_the_same_client_name_ends_the_older_connection_and_what_it_had(stage):
    old, flow = stage.consumer("ann")
    bob, standby = stage.consumer("bob")
    stage.open(flow)
    stage.open(standby)
    stage.publish()

    client, effects = stage.engine.connect("default", "user", "", "ann")

    assert client != old
    assert effects[0] == ClientEnded(old, "Client Name Taken Over")
    assert [type(effect).__name__ for effect in effects[1:]] == ["ActivityChanged", "DeliverRun"]
    assert {effect.client for effect in effects[1:]} == {bob}
    assert stage.engine.disconnect(old) == []


def test_late_calls_of_an_ended_client_do_nothing_or_are_refused(stage):
    client, flow = stage.consumer("ann")
    publisher = stage.engine.open_publisher(client, "").flow
    stage.engine.disconnect(client)

    assert stage.open(flow) == stage.settle(flow, 0, 9) == stage.engine.unbind(flow) == []
    assert stage.engine.disconnect(client) == []
    for call in (
        lambda: stage.engine.publish(publisher, 1, Published("a", 1, 1)),
        lambda: stage.engine.publish_direct(client, Published("a", 1, 1)),
        lambda: stage.engine.open_publisher(client, ""),
        lambda: stage.engine.bind(client, QUEUE),
        lambda: stage.engine.subscribe(client, "a"),
        lambda: stage.engine.subscribe(ClientId(99), "a"),
    ):
        with pytest.raises(BrokerRefusal, match="503 Service Unavailable"):
            call()


# -- publishing


def test_a_resent_message_is_spooled_once(stage):
    stage.publish(3)

    assert stage.engine.publish(stage.publisher, 2, Published("orders/new", "resent", 1)) == []
    assert stage.queue.depth == 3


def test_a_publisher_flow_is_resumed_by_name(stage):
    client = stage.client("ann")
    opened = stage.engine.open_publisher(client, "")
    stage.engine.publish(opened.flow, 1, Published("orders/new", 1, 1))
    stage.engine.disconnect(client)

    resumed = stage.engine.open_publisher(stage.client("ann"), opened.name)

    assert (resumed.name, resumed.last_answered_id) == (opened.name, 1)
    assert resumed.flow != opened.flow
    stage.engine.publish(resumed.flow, 1, Published("orders/new", "resent", 1))
    assert stage.queue.depth == 1


def test_a_name_of_another_life_of_the_broker_starts_anew():
    lives = [Engine("first"), Engine("second")]
    names = []
    for engine in lives:
        client, _ = engine.connect("default", "user", "", "ann")
        names.append(engine.open_publisher(client, "").name)

    client, _ = lives[1].connect("default", "user", "", "bob")
    assert lives[1].open_publisher(client, names[0]).name not in names


@pytest.mark.parametrize(
    ("settings", "refusal"),
    [({"quota_bytes": 9}, "503 Spool Over Quota"), ({"max_message_bytes": 9}, "400 Document Is Too Large")],
)
def test_a_refusal_of_one_queue_keeps_the_message_out_of_all_and_stands(make_stage, settings, refusal):
    stage = make_stage(**settings)
    wide = QueueName("everything")
    stage.engine.create_queue("default", wide, QueueSettings())
    stage.engine.add_queue_subscription("default", wide, ">")
    listener = stage.client("ann")
    stage.engine.subscribe(listener, ">")

    with pytest.raises(BrokerRefusal, match=refusal):
        stage.publish(size_bytes=10)

    assert stage.engine.queue_depth("default", wide) == stage.queue.depth == 0
    # It would pass now, but after its successors.
    assert stage.publish() == [DeliverDirect(listener, Published("orders/new", 2, 1))]
    with pytest.raises(BrokerRefusal, match=refusal):
        stage.engine.publish(stage.publisher, 1, Published("orders/new", "resent", 1))
    assert stage.queue.depth == 1


def test_a_message_that_one_queue_keeps_out_of_all_is_counted_by_that_queue_alone(make_stage):
    stage = make_stage(quota_bytes=9, reject_on_discard=RejectOnDiscard.NEVER)
    strict = QueueName("strict")
    stage.engine.create_queue("default", strict, QueueSettings(quota_bytes=19))
    stage.engine.add_queue_subscription("default", strict, "orders/>")

    def discards():
        statuses = (stage.queue, stage.engine.queue_status("default", strict))
        return [status.discards[Obstacle.OVER_QUOTA] for status in statuses]

    with pytest.raises(BrokerRefusal, match="503 Spool Over Quota"):
        stage.publish(size_bytes=20)
    assert discards() == [0, 1]
    stage.publish(size_bytes=10)
    assert discards() == [1, 1]
    assert (stage.queue.depth, stage.engine.queue_depth("default", strict)) == (0, 1)


def test_a_refusal_that_was_lost_with_the_connection_is_no_confirm_after_it(make_stage):
    stage = make_stage(max_message_bytes=9)
    client = stage.client("ann")
    opened = stage.engine.open_publisher(client, "")
    for number in (1, 2, 4):
        stage.engine.publish(opened.flow, number, Published("orders/new", number, 1))
        if number == 2:
            with pytest.raises(BrokerRefusal):
                stage.engine.publish(opened.flow, 3, Published("orders/new", 3, 10))
    stage.engine.disconnect(client)

    resumed = stage.engine.open_publisher(stage.client("ann"), opened.name, last_heard_id=1)
    assert resumed.last_answered_id == 2
    with pytest.raises(BrokerRefusal, match="400 Document Is Too Large"):
        stage.engine.publish(resumed.flow, 3, Published("orders/new", "resent", 10))
    assert stage.engine.publish(resumed.flow, 4, Published("orders/new", "resent", 1)) == []
    assert stage.queue.depth == 3


def test_a_refusal_that_the_publisher_has_heard_of_is_forgotten(make_stage):
    stage = make_stage(max_message_bytes=9)
    client = stage.client("ann")
    opened = stage.engine.open_publisher(client, "")
    with pytest.raises(BrokerRefusal):
        stage.engine.publish(opened.flow, 1, Published("orders/new", 1, 10))
    stage.engine.publish(opened.flow, 2, Published("orders/new", 2, 1))
    stage.engine.disconnect(client)

    assert stage.engine.open_publisher(stage.client("ann"), opened.name, last_heard_id=1).last_answered_id == 2


def test_quota_has_room_again_after_a_settlement(make_stage):
    stage = make_stage(quota_bytes=10)
    _, flow = stage.open_consumer("ann")
    (sent,) = stage.ids(stage.publish(size_bytes=10))
    with pytest.raises(BrokerRefusal):
        stage.publish()
    stage.settle(flow, sent, sent)

    assert stage.numbers(stage.publish(size_bytes=10)) == [3]


def test_a_message_that_nobody_wants_is_accepted(stage):
    assert stage.publish(topic="elsewhere") == []


def test_a_direct_message_reaches_each_subscribed_client_once_and_subscribed_queues(stage):
    ann, _ = stage.open_consumer("ann")
    for subscription in ("orders/*", "orders/>"):
        stage.engine.subscribe(ann, subscription)
    message = Published("orders/new", "direct", 1)

    direct, spooled = stage.engine.publish_direct(stage.publisher_client, message)

    assert direct == DeliverDirect(ann, message)
    assert isinstance(spooled, DeliverRun)
    assert list(spooled.messages) == [message]


def test_a_direct_message_passes_by_a_queue_that_is_full(make_stage):
    stage = make_stage(quota_bytes=5)

    assert stage.engine.publish_direct(stage.publisher_client, Published("orders/new", 1, 6)) == []
    assert stage.queue.depth == 0


def test_a_persistent_message_reaches_direct_subscribers_until_they_unsubscribe_or_go(stage):
    clients = [stage.client(name) for name in ("ann", "bob", "cat")]
    for client in clients:
        stage.engine.subscribe(client, "orders/new")
    stage.engine.unsubscribe(clients[0], "orders/new")
    stage.engine.disconnect(clients[1])

    assert stage.publish() == [DeliverDirect(clients[2], Published("orders/new", 1, 1))]


# -- queues


def test_creating_a_queue_twice_is_refused_also_on_behalf_of_a_client(stage):
    with pytest.raises(BrokerRefusal, match="400 Endpoint Already Exists"):
        stage.engine.create_queue("default", QUEUE, QueueSettings())
    with pytest.raises(BrokerRefusal, match="400 Endpoint Already Exists"):
        stage.engine.provision(stage.publisher_client, QUEUE, QueueSettings())


def test_a_client_provisions_a_queue_and_its_subscriptions(stage):
    name = QueueName("mine")
    stage.engine.provision(stage.publisher_client, name, QueueSettings(AccessType.NON_EXCLUSIVE))
    stage.engine.subscribe_queue(stage.publisher_client, name, "a/>")
    stage.publish(topic="a/b")
    stage.engine.subscribe_queue(stage.publisher_client, name, "b")
    stage.engine.unsubscribe_queue(stage.publisher_client, name, "a/>")
    stage.publish(topic="a/b")

    status = stage.engine.queue_status("default", name)
    assert (status.depth, status.subscriptions, status.settings.owner) == (1, ("b",), "user")


def test_an_administrator_removes_a_subscription_of_a_queue(stage):
    stage.engine.remove_queue_subscription("default", QUEUE, "orders/>")
    stage.publish()

    assert stage.queue.depth == 0


def test_flows_of_a_deleted_queue_end(stage):
    ann, flow = stage.consumer("ann")
    bob = stage.client("bob")
    browser = stage.bind(bob, browser=True).flow
    stage.publish()

    effects = stage.engine.delete_queue("default", QUEUE)

    assert effects == [FlowEnded(ann, flow, "Queue Deleted"), FlowEnded(bob, browser, "Queue Deleted")]
    assert stage.publish() == []
    assert stage.settle(flow, 0, 9) == stage.engine.disconnect(ann) == []
    with pytest.raises(BrokerRefusal, match="503 Unknown Queue"):
        stage.engine.delete_queue("default", QUEUE)


def test_more_flows_than_allowed_are_refused(make_stage):
    stage = make_stage(max_bind_count=1)
    ann, flow = stage.consumer("ann")
    with pytest.raises(BrokerRefusal, match="503 Max clients exceeded for queue"):
        stage.bind(stage.client("bob"))

    stage.engine.unbind(flow)
    assert stage.bind(ann).active


def test_a_last_received_id_that_would_use_up_all_ids_is_refused(stage):
    with pytest.raises(BrokerRefusal, match="400"):
        stage.bind(stage.client("ann"), last_received_id=1 << 63)


def test_ids_that_were_given_are_taken_back_however_great_another_client_has_made_them(stage):
    stage.engine.unbind(stage.bind(stage.client("bob"), last_received_id=LARGEST_RECEIVED_ID).flow)
    ann, flow = stage.open_consumer("ann")
    (received,) = stage.ids(stage.publish())
    stage.engine.disconnect(ann)
    flow = stage.bind(stage.client("ann"), last_received_id=received).flow
    assert stage.open(flow, received) == []
    stage.settle(flow, received, received)
    assert stage.queue.depth == 0


# -- what is shared by all


def test_flow_and_delivery_ids_are_unique_in_the_whole_broker(stage):
    other = QueueName("other")
    stage.engine.create_queue("default", other, QueueSettings())
    stage.engine.add_queue_subscription("default", other, "orders/>")
    ann = stage.client("ann")
    flows = [stage.bind(ann).flow, stage.engine.bind(ann, other)[0].flow, stage.engine.open_publisher(ann, "").flow]
    for flow in flows[:2]:
        stage.open(flow)

    ids = stage.ids(stage.publish(3))

    assert len({*flows, stage.publisher}) == 4
    assert ids == sorted(set(ids))
    assert stage.engine.settle(FlowId(99), [SettledRange(DeliveryId(0), DeliveryId(99), Outcome.ACCEPTED)]) == []
