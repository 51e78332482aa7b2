"""What the broker sees of a group's queues, and what its side of members is asked to do."""

from contextlib import nullcontext

import pytest

from lbg_runtime.admin import sight
from lbg_runtime.admin.backlog import BacklogUnknown, find_shard_queues
from lbg_runtime.admin.sight import (
    LOOK_AGAIN_AFTER_S,
    QueueSight,
    disconnect,
    insist_on_broker_of,
    member_of,
    read_sights,
    with_rates,
)
from lbg_runtime.broker.engine.effects import ClientEnded, Published
from lbg_runtime.config.broker_names import client_name
from lbg_runtime.model.errors import SempElsewhere, SempMissing, SempRefused
from lbg_runtime.model.ids import QueueName
from lbg_runtime.semp.answer import SempObject
from lbg_runtime.semp.client import SempClient

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


async def test_a_connection_that_has_ended_by_itself_meanwhile_is_passed_over(broker, client, monkeypatch):
    gone, _ = broker.engine.connect("default", "default", "", "shop/eu/host/17")
    broker.engine.connect("default", "default", "", "shop/eu/other/3")
    act = client.act

    async def act_late(path):
        if "shop/eu/host/17" in path:
            broker.engine.disconnect(gone)
        await act(path)

    monkeypatch.setattr(SempClient, "act", lambda _, path: act_late(path))
    assert await disconnect(client, "default", "shop", "eu") == ["shop/eu/other/3"]


async def test_an_administrator_who_may_not_disconnect_learns_that(broker):
    broker.engine.connect("default", "default", "", "shop/eu/host/17")
    async with broker.watcher() as watcher:
        with pytest.raises(SempRefused):
            await disconnect(watcher, "default", "shop", "eu")


@pytest.mark.parametrize("name", ["eu/host/17", "shop//host/17", "shop/eu//17", "shop/eu/host/", "shop/eu/host/x"])
def test_a_client_that_is_not_named_as_members_of_the_group_are_is_none(name):
    assert member_of(name, "shop") is None
    assert member_of("shop/eu/host/17", "shop") == "eu"


async def test_who_has_the_name_of_the_settings_is_found(broker, client):
    name = client_name("shop", "eu")
    broker.engine.connect("default", "default", "", name)
    assert await disconnect(client, "default", "shop", "eu") == [name]


async def test_who_is_connected_to_another_broker_than_the_administered_one_is_told_so(broker, client):
    broker.engine.connect("default", "default", "", "lbg-restriper-shop/eu")
    await insist_on_broker_of(client, "default", "lbg-restriper-shop/eu")
    with pytest.raises(SempElsewhere) as told:
        await insist_on_broker_of(client, "default", "lbg-restriper-shop")
    assert (told.value.url, told.value.client) == ("http://broker", "lbg-restriper-shop")
    assert "or has no connection at the moment" in str(told.value)


@pytest.mark.parametrize("looks", [1, len(LOOK_AGAIN_AFTER_S)])
async def test_a_client_that_the_monitor_api_knows_only_after_a_moment_is_at_its_broker(broker, client, looks):
    handle, asked = broker.transport.handle_async_request, 0

    async def known_later(request):
        nonlocal asked
        if asked == looks:
            broker.engine.connect("default", "default", "", "ann")
        asked += 1
        return await handle(request)

    broker.transport.handle_async_request = known_later
    await insist_on_broker_of(client, "default", "ann")
    assert asked == looks + 1


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


class Seen:
    """A broker with one queue, which has two flows and one message."""

    queue = SempObject("", {"txUnackedMsgCount": 1, "redeliveredMsgCount": 2}, {"msgs": 1, "txFlows": 2})

    def __init__(self, active="active-consumer", refusal=None):
        self.active = active
        self.refusal = refusal

    async def find_all(self, api, path, **_):
        if self.refusal is not None:
            raise self.refusal
        flows = (("standby", "inactive"), ("owner", self.active))
        return [SempObject("", {"clientName": name, "activityState": state}) for name, state in flows]


@pytest.mark.parametrize(("active", "owner"), [("active-consumer", "owner"), ("inactive", None)])
async def test_a_queue_is_fed_to_the_flow_that_is_active_and_seen_also_if_its_oldest_message_is_not(
    monkeypatch, active, owner
):
    async def settled_meanwhile(*_):
        raise BacklogUnknown("settled")

    monkeypatch.setattr(sight, "look_at_oldest", settled_meanwhile)
    sights = await read_sights(Seen(active), "default", {QueueName("orders/0"): Seen.queue})
    assert sights == {QueueName("orders/0"): QueueSight(1, 2, owner, 1, 2, None)}


@pytest.mark.parametrize(("kind", "is_told"), [(SempMissing, False), (SempRefused, True)])
async def test_only_a_queue_that_is_gone_is_left_out(kind, is_told):
    refusal = kind("GET", 400, 6, "NOT_FOUND", "no")
    with pytest.raises(SempRefused) if is_told else nullcontext():
        assert await read_sights(Seen(refusal=refusal), "default", {QueueName("orders/0"): Seen.queue}) == {}


def test_what_came_and_was_not_settled_has_not_left():
    def seen(spooled, left):
        return {QueueName("orders/0"): SempObject("", {"spooledMsgCount": spooled}, {"msgs": left})}

    sights = {QueueName(name): QueueSight(0, 0, None) for name in ("orders/0", "orders/1")}
    rated = with_rates(sights, seen(10, 1) | {QueueName("orders/1"): Seen.queue}, seen(20, 5), 2.0)
    assert [each.rate for each in rated.values()] == [3.0, None]
