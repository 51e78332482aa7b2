"""Depths of a group's queues, from a development broker's administration."""

import pytest

from lbg_runtime.dashboard.depths import read_depths
from lbg_runtime.model.errors import SempRefused
from tests.admin.conftest import Broker


@pytest.fixture
def broker():
    return Broker()


async def test_the_depths_of_a_groups_queues_are_read_with_a_request_for_a_page_of_them(broker):
    asked = []
    handle = broker.transport.handle_async_request

    async def counted(request):
        asked.append(request.url.path)
        return await handle(request)

    async with broker.client() as client:
        for name in (*(f"orders/{index}" for index in range(120)), "ordersX/1", "bills/0"):
            await client.create(("msgVpns", "default", "queues"), {"queueName": name})
        broker.transport.handle_async_request = counted
        depths = await read_depths(client, "default", "orders")
    assert depths == {f"orders/{index}": 0 for index in range(120)}
    assert len(asked) == 2


async def test_who_may_not_look_is_told_so(broker):
    async with broker.client() as client:
        with pytest.raises(SempRefused):
            await read_depths(client, "no-such-vpn", "orders")
