"""What the broker sees of a group's queues, and what its side of members is asked to do."""

import pytest

from lbg_runtime.admin.backlog import find_shard_queues
from lbg_runtime.admin.sight import QueueSight, disconnect, read_sights, with_rates
from lbg_runtime.broker.engine.effects import ClientEnded, Published
from lbg_runtime.config.broker_names import client_name
from lbg_runtime.model.ids import QueueName

NAMES = (
    "shop/eu/host/17",
    "shop/eu/other/3",
    "shop/eu/x/host/17",
    "shop/eu/host",
    "shop/eu/host/17/more",
    "shop/eu/host/here",
    "shop/eu2/host/17",
)


@pytest.mark.parametrize(
    ("group", "member", "ended"),
    [
        ("shop", "eu", ["shop/eu/host/17", "shop/eu/other/3"]),
        ("shop/eu", "x", ["shop/eu/x/host/17"]),
        ("shop", "eu/x", []),  # the command takes no such name of a member
        ("shop", "us", []),
    ],
)
async def test_a_member_is_disconnected_and_none_of_a_group_whose_name_begins_so(broker, client, group, member, ended):
    for name in NAMES:
        broker.engine.connect("default", "default", "", name)
    assert await disconnect(client, "default", group, member) == ended
    assert sum(isinstance(effect, ClientEnded) for effect in broker.effects) == len(ended)


async def test_who_has_the_name_of_the_settings_is_found(broker, client):
    name = client_name("shop", "eu")
    broker.engine.connect("default", "default", "", name)
    assert await disconnect(client, "default", "shop", "eu") == [name]


async def make_queues(client, *names):
    for name in names:
        queue = {"queueName": name, "permission": "consume", "ingressEnabled": True, "egressEnabled": True}
        await client.create(("msgVpns", "default", "queues"), queue)


async def test_queues_are_seen_with_whom_they_feed_and_those_without_flows_are_not_asked_for(broker, client):
    await make_queues(client, *(f"orders/{index}" for index in range(120)))
    for name in ("first", "second"):
        member, _ = broker.engine.connect("default", "default", "", name)
        broker.engine.bind(member, QueueName("orders/7"))
    asked = []
    handle = broker.transport.handle_async_request

    async def counted(request):
        asked.append(request.url.path)
        return await handle(request)

    broker.transport.handle_async_request = counted
    found = await find_shard_queues(client, "default", "orders")
    sights = await read_sights(client, "default", found)
    assert list(sights) == list(found)
    assert sights.pop(QueueName("orders/7")) == QueueSight(0, 2, "first")
    assert set(sights.values()) == {QueueSight(0, 0, None)}
    # Two pages of queues, and the flows of one of them.
    assert len(asked) == 3


async def test_the_oldest_message_of_a_queue_and_what_left_it_are_seen(broker, client):
    await make_queues(client, "orders/0", "orders/1", "orders/2")
    for name in ("orders/0", "orders/1"):
        await client.create(("msgVpns", "default", "queues", name, "subscriptions"), {"subscriptionTopic": f"t/{name}"})
    sender, _ = broker.engine.connect("default", "default", "", "sender")
    publisher = broker.engine.open_publisher(sender, "").flow

    def publish(number, queue, at_s):
        broker.engine.publish(publisher, number, Published(f"t/{queue}", number, 1, at_s))

    publish(1, "orders/0", 40)
    publish(2, "orders/0", 50)
    publish(3, "orders/1", 60)
    before = await find_shard_queues(client, "default", "orders")
    publish(4, "orders/0", 70)
    lowest = str(before[QueueName("orders/0")].number("lowestMsgId"))
    await client.act(("msgVpns", "default", "queues", "orders/0", "msgs", lowest, "delete"))
    after = await find_shard_queues(client, "default", "orders")
    sights = with_rates(await read_sights(client, "default", after), before, after, 2.0)
    assert sights[QueueName("orders/0")] == QueueSight(2, 0, None, 0, 0, 50, 0.5)
    assert sights[QueueName("orders/1")] == QueueSight(1, 0, None, 0, 0, 60, 0.0)
    # Counts that were reset in between say nothing, nor does a queue that was not there.
    sights = await read_sights(client, "default", after)
    reset = with_rates(sights, {QueueName("orders/0"): after[QueueName("orders/0")]}, before, 2.0)
    assert (reset[QueueName("orders/0")].rate, reset[QueueName("orders/2")].rate) == (None, None)


async def test_a_queue_that_is_gone_meanwhile_is_left_out(broker, client):
    await make_queues(client, "orders/0", "orders/1", "orders/2")
    member, _ = broker.engine.connect("default", "default", "", "member")
    broker.engine.bind(member, QueueName("orders/1"))
    found = await find_shard_queues(client, "default", "orders")
    broker.engine.disconnect(member)
    await client.delete(("msgVpns", "default", "queues", "orders/1"))
    assert list(await read_sights(client, "default", found)) == ["orders/0", "orders/2"]
