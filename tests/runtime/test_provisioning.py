"""Queues of a new group: nobody publishes before they are whole, and no other layout is touched."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_runtime.broker.engine.settings import Permission, QueueSettings
from lbg_runtime.config.load import parse_settings
from lbg_runtime.config.settings import GroupSettings
from lbg_runtime.model.errors import ConfigError
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.ids import QueueName
from lbg_runtime.runtime.provisioning import provision_new_group, provision_queues
from lbg_runtime.transport.memory.broker import MemoryBroker
from lbg_runtime.transport.memory.transport import MemoryTransport

HASH_COUNT = 7


def group_of(queue_count: int, provision: str = "create_missing") -> GroupSettings:
    group = {
        "name": "shop",
        "hash_prefix": "h",
        "hash_count": HASH_COUNT,
        "queue_count": queue_count,
        "provision": provision,
    }
    return parse_settings({"group": group}, "test", {}).group


def layout(broker: MemoryBroker) -> dict[str, tuple[str, ...]]:
    engine = broker.engine
    names = engine.queue_names("default")
    return {name: tuple(sorted(engine.queue_status("default", name).subscriptions)) for name in sorted(names)}


def layout_of(shape: GroupShape) -> dict[str, tuple[str, ...]]:
    return {shape.queue_name(index): tuple(sorted(shape.subscriptions(index))) for index in range(shape.queue_count)}


async def transport_to(broker: MemoryBroker, name: str, username: str = "default") -> MemoryTransport:
    transport = MemoryTransport(broker, name, username=username)
    await transport.open()
    return transport


class StepByStep(MemoryTransport):
    """Makes queues as a broker on the network does, one request after the other; `between` runs after one of them."""

    def __init__(self, broker: MemoryBroker, step: int, between: Callable[[], Awaitable[None]]) -> None:
        super().__init__(broker, "step by step")
        self._steps_left = step
        self._between = between

    async def provision(self, queue: QueueName, subscriptions: Sequence[str]) -> None:
        for request in ((), *((each,) for each in subscriptions)):
            await super().provision(queue, request)
            self._steps_left -= 1
            if self._steps_left == 0:
                await self._between()


@pytest.mark.parametrize("queue_count", [1, 2, 4, 7])
@pytest.mark.parametrize("is_member", [True, False])
async def test_a_publisher_that_starts_while_others_make_the_queues_sends_when_all_are_whole(
    queue_count: int, is_member: bool
) -> None:
    group = group_of(queue_count)
    found: list[dict[str, tuple[str, ...]]] = []

    async def publisher_starts(broker: MemoryBroker) -> None:
        await provision_new_group(await transport_to(broker, "publisher"), group)
        found.append(layout(broker))

    steps = queue_count + HASH_COUNT
    for step in range(1, steps + 1):
        broker = MemoryBroker()
        first = StepByStep(broker, step, partial(publisher_starts, broker))
        await first.open()
        await (provision_queues if is_member else provision_new_group)(first, group)
        assert layout(broker) == layout_of(group.shape())
    assert found == [layout_of(group.shape())] * steps


@given(present=st.integers(1, HASH_COUNT), told=st.integers(1, HASH_COUNT))
async def test_a_publisher_leaves_every_whole_layout_as_it_is(present: int, told: int) -> None:
    broker = MemoryBroker()
    await provision_queues(await transport_to(broker, "member"), group_of(present))
    before = layout(broker)
    await provision_new_group(await transport_to(broker, "publisher"), group_of(told))
    assert layout(broker) == before == layout_of(group_of(present).shape())


async def test_nobody_makes_queues_where_they_are_made_by_hand() -> None:
    broker = MemoryBroker()
    transport = await transport_to(broker, "publisher")
    for provision in (provision_queues, provision_new_group):
        await provision(transport, group_of(2, "none"))
    assert layout(broker) == {}


async def test_a_publisher_starts_where_others_own_the_queues() -> None:
    broker = MemoryBroker()
    engine = broker.engine
    settings = QueueSettings(owner="members", permission=Permission.NO_ACCESS)
    engine.create_queue("default", QueueName("shop/0"), settings)
    await provision_new_group(await transport_to(broker, "publisher"), group_of(1))
    assert layout(broker) == {"shop/0": ()}


class Interrupted(MemoryTransport):
    """Its connection is lost while it subscribes a queue."""

    async def provision(self, queue: QueueName, subscriptions: Sequence[str]) -> None:
        self.drop_connection(0.0)
        await super().provision(queue, subscriptions)


async def test_a_publisher_that_cannot_know_whether_the_first_queue_is_whole_does_not_start() -> None:
    """It may be there without its subscriptions: all would be confirmed, and nothing kept."""
    broker = MemoryBroker()
    broker.engine.create_queue("default", QueueName("shop/0"), QueueSettings())
    transport = Interrupted(broker, "publisher", username="default")
    await transport.open()
    with pytest.raises(ConfigError, match="not connected"):
        await provision_new_group(transport, group_of(1))


async def test_without_a_connection_the_setting_is_named() -> None:
    for provision in (provision_queues, provision_new_group):
        with pytest.raises(ConfigError, match=r"group\.provision: cannot .* shop/0: not connected"):
            await provision(MemoryTransport(MemoryBroker(), "publisher"), group_of(1))
