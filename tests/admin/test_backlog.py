"""What a group has not handled yet, from a development broker's administration."""

import itertools

import httpx
import pytest

from lbg_runtime.admin.backlog import Backlog, BacklogUnknown, read_backlog
from lbg_runtime.broker.engine.effects import Published
from lbg_runtime.model.errors import SempRefused
from lbg_runtime.model.ids import QueueName
from lbg_runtime.model.semp_code import SempCode
from tests.admin.conftest import Broker

_senders = itertools.count()
QUEUES = (
    "orders/0",
    "orders/1",
    "orders/11",
    "orders/failed",
    "orders",
    "ordersX/1",
    "bills/0",
    "orders/007",
    "orders/\u0663",
)


@pytest.fixture
async def client(broker: Broker):
    """One queue for each topic of its name."""
    async with broker.client() as client:
        for name in QUEUES:
            queue = {"queueName": name, "permission": "consume", "ingressEnabled": True, "egressEnabled": True}
            await client.create(("msgVpns", "default", "queues"), queue)
            await client.create(
                ("msgVpns", "default", "queues", name, "subscriptions"),
                {"subscriptionTopic": f"t/{name}"},
            )
        yield client


def spool(broker: Broker, *messages: tuple[str, int | None]) -> None:
    sender, _ = broker.engine.connect("default", "user", "", f"sender-{next(_senders)}", "127.0.0.1")
    flow = broker.engine.open_publisher(sender, "").flow
    for number, (queue, at_s) in enumerate(messages, start=1):
        broker.engine.publish(flow, number, Published(f"t/{queue}", number, 1, at_s))


async def test_messages_of_the_groups_queues_are_counted_and_the_oldest_is_found(broker: Broker, client) -> None:
    assert await read_backlog(client, "default", "orders") == Backlog(0, None)
    spool(broker, ("orders/failed", 1), ("bills/0", 2), ("ordersX/1", 3), ("orders/0", 50), ("orders/11", 40))
    spool(broker, ("orders/0", 60), ("orders/11", 70), ("orders/007", 4), ("orders/\u0663", 5))
    assert await read_backlog(client, "default", "orders") == Backlog(4, 40)


async def test_queues_beyond_those_of_the_layout_do_not_count(broker: Broker, client) -> None:
    spool(broker, ("orders/11", 40), ("orders/1", 50))
    assert await read_backlog(client, "default", "orders", 12) == Backlog(2, 40)
    assert await read_backlog(client, "default", "orders", 11) == Backlog(1, 50)


async def test_a_group_without_queues_has_no_backlog_that_is_known(client) -> None:
    """Nothing to do would send its members away."""
    with pytest.raises(BacklogUnknown, match=r"^there is no queue cakes/0 on the broker, nor any other of the group$"):
        await read_backlog(client, "default", "cakes")


async def test_the_oldest_is_the_first_that_is_left(broker: Broker, client) -> None:
    spool(broker, ("orders/0", 10), ("orders/0", 20), ("orders/0", 30))
    await client.act(("msgVpns", "default", "queues", "orders/0", "msgs", "1", "delete"))
    assert await read_backlog(client, "default", "orders") == Backlog(2, 20)


def change_before(broker: Broker, *numbers: int, each: int = 1) -> list[str]:
    """Settle so many of these of `orders/0` before each request for that queue; the list takes what is asked for."""
    handle, left, asked = broker.transport.handle_async_request, list(numbers), []

    async def settling(request):
        if request.url.path.startswith("/SEMP/v2/monitor/") and b"orders%2F0" in request.url.raw_path:
            asked.append(request.url.path)
            gone, left[:each] = set(left[:each]), []
            broker.engine.administration.delete_messages("default", QueueName("orders/0"), gone)
        return await handle(request)

    broker.transport.handle_async_request = settling
    return asked


async def test_where_the_oldest_is_settled_between_two_looks_the_next_has_its_age(broker: Broker, client) -> None:
    # More than one page, in which names are not in the order of numbers.
    spool(broker, *(("orders/0", 10 * number) for number in range(1, 301)), ("orders/1", 4_000))
    change_before(broker, *range(1, 300))
    assert await read_backlog(client, "default", "orders") == Backlog(298, 40)


async def test_where_many_are_settled_between_two_looks_it_looks_further(broker: Broker, client) -> None:
    spool(broker, *(("orders/0", number) for number in range(1, 2_001)), ("orders/1", 4_000))
    asked = change_before(broker, *range(1, 2_000), each=60)
    told = await read_backlog(client, "default", "orders")
    settled = 60 * len(asked)
    assert told == Backlog(2_000 - settled + 1, settled + 1)


async def test_a_queue_that_empties_between_two_looks_has_no_age(broker: Broker, client) -> None:
    spool(broker, ("orders/0", 10), ("orders/1", 20))
    change_before(broker, 1)
    assert await read_backlog(client, "default", "orders") == Backlog(1, 20)


async def test_a_queue_that_is_removed_between_two_looks_has_no_messages(broker: Broker, client) -> None:
    spool(broker, ("orders/0", 10), ("orders/1", 20))
    handle = broker.transport.handle_async_request

    async def removing(request):
        if request.url.path.endswith("orders/0/msgs/1"):
            broker.transport.handle_async_request = handle
            await client.delete(("msgVpns", "default", "queues", "orders/0"))
        return await handle(request)

    broker.transport.handle_async_request = removing
    assert await read_backlog(client, "default", "orders") == Backlog(1, 20)


async def test_a_refusal_between_two_looks_is_no_zero(broker: Broker, client) -> None:
    spool(broker, ("orders/0", 10), ("orders/0", 20))
    change_before(broker, 1)
    handle = broker.transport.handle_async_request

    async def refusing(request):
        if not request.url.path.endswith("orders/0/msgs"):
            return await handle(request)
        error = {"code": SempCode.UNAUTHORIZED, "status": "UNAUTHORIZED", "description": "no"}
        return httpx.Response(400, json={"meta": {"error": error, "responseCode": 400}})

    broker.transport.handle_async_request = refusing
    with pytest.raises(SempRefused, match="UNAUTHORIZED"):
        await read_backlog(client, "default", "orders")


async def test_an_age_that_cannot_be_found_is_not_told_as_another(broker: Broker, client, monkeypatch) -> None:
    monkeypatch.setattr("lbg_runtime.admin.backlog.NEXT_IDS", (1, 2))
    spool(broker, *(("orders/0", number) for number in range(1, 101)), ("orders/1", 20))
    change_before(broker, *range(1, 100), each=10)
    with pytest.raises(BacklogUnknown, match=r"^the oldest message of orders/0 was settled before it was seen$"):
        await read_backlog(client, "default", "orders")


async def test_every_queue_with_messages_is_asked_once(broker: Broker, client) -> None:
    names = [f"bulk/{index}" for index in range(130)]
    for name in names:
        queue = {"queueName": name, "permission": "consume", "ingressEnabled": True, "egressEnabled": True}
        await client.create(("msgVpns", "default", "queues"), queue)
        await client.create(("msgVpns", "default", "queues", name, "subscriptions"), {"subscriptionTopic": f"t/{name}"})
    spool(broker, *((name, 100 + index) for index, name in enumerate(names[10:])))
    asked = []
    handle = broker.transport.handle_async_request

    async def counted(request):
        asked.append(request.url.path)
        return await handle(request)

    broker.transport.handle_async_request = counted
    assert await read_backlog(client, "default", "bulk") == Backlog(120, 100)
    assert (len(asked), len(set(asked))) == (2 + 120, 1 + 120), "both pages have one path"


async def test_who_may_not_look_is_told_so(client) -> None:
    with pytest.raises(SempRefused):
        await read_backlog(client, "no-such-vpn", "orders")


async def test_a_broker_that_says_no_for_one_queue_is_no_zero(broker: Broker, client) -> None:
    spool(broker, ("orders/0", None), ("orders/1", 20))
    # Whoever runs the broker has it not tell when a message came.
    with pytest.raises(SempRefused, match="spooledTime"):
        await read_backlog(client, "default", "orders")
