"""Queues of a new group: the first one is made last, outages are waited for, and no other layout is touched."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from lbg_runtime.broker.engine.accounts import Account, ClientProfile
from lbg_runtime.broker.engine.settings import Permission, QueueSettings
from lbg_runtime.config.load import parse_settings
from lbg_runtime.config.settings import GroupSettings
from lbg_runtime.model.errors import ConfigError, RequestRefused
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.ids import QueueName
from lbg_runtime.runtime.provisioning import (
    AGAIN_S,
    ROUNDS,
    SUBSCRIPTIONS_AT_ONCE,
    provision_new_group,
    provision_queues,
)
from lbg_runtime.transport.memory.broker import MemoryBroker
from lbg_runtime.transport.memory.transport import MemoryTransport

HASH_COUNT = 7


Provision = Callable[[MemoryTransport, GroupSettings], Awaitable[None]]


def group_of(queue_count: int, provision: str = "create_missing", hash_count: int = HASH_COUNT) -> GroupSettings:
    group = {
        "name": "shop",
        "hash_prefix": "h",
        "hash_count": hash_count,
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
async def test_a_publisher_that_starts_while_others_make_the_queues_makes_them_until_the_first_one_is_there(
    queue_count: int, is_member: bool
) -> None:
    group = group_of(queue_count)
    whole, first_queue = layout_of(group.shape()), group.shape().queue_name(0)
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
        assert layout(broker) == whole
    others = {queue: subscriptions for queue, subscriptions in whole.items() if queue != first_queue}
    before_the_first = sum(1 + len(subscriptions) for subscriptions in others.values())
    assert found[:before_the_first] == [whole] * before_the_first
    assert [{**each, first_queue: ()} for each in found[before_the_first:]] == [{**others, first_queue: ()}] * (
        1 + len(whole[first_queue])
    )


@given(present=st.integers(1, HASH_COUNT), told=st.integers(1, HASH_COUNT))
async def test_a_publisher_leaves_every_whole_layout_as_it_is(present: int, told: int) -> None:
    broker = MemoryBroker()
    await provision_queues(await transport_to(broker, "member"), group_of(present))
    before = layout(broker)
    await provision_new_group(await transport_to(broker, "publisher"), group_of(told))
    assert layout(broker) == before == layout_of(group_of(present).shape())


@given(present=st.integers(1, HASH_COUNT), told=st.integers(1, HASH_COUNT))
async def test_a_member_that_was_told_another_number_of_queues_is_refused_and_changes_nothing(
    present: int, told: int
) -> None:
    """Else shards are in two queues, and each of their messages is handled twice."""
    broker = MemoryBroker()
    member = await transport_to(broker, "member")
    await provision_queues(member, group_of(present))
    if told == present:
        await provision_queues(member, group_of(told))
    else:
        with pytest.raises(ConfigError, match=rf"group\.queue_count: {told}, and there is a queue"):
            await provision_queues(member, group_of(told))
    assert layout(broker) == layout_of(group_of(present).shape())


class Beside(MemoryTransport):
    """After so many of its questions for a queue, somebody else makes all of them."""

    def __init__(self, broker: MemoryBroker, asked_before: int) -> None:
        super().__init__(broker, "beside")
        self._other = MemoryTransport(broker, "other")
        self._asked_before = asked_before

    async def has_queue(self, queue: QueueName) -> bool:
        found = await super().has_queue(queue)
        self._asked_before -= 1
        if self._asked_before == 0:
            await self._other.open()
            await provision_queues(self._other, group_of(3))
        return found


@pytest.mark.parametrize("asked_before", [1, 2])
async def test_members_that_make_a_new_group_at_the_same_time_are_of_one_mind(asked_before: int) -> None:
    broker = MemoryBroker()
    transport = Beside(broker, asked_before)
    await transport.open()
    await provision_queues(transport, group_of(3))
    assert layout(broker) == layout_of(group_of(3).shape())


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
    """Its connection is lost whenever something is asked for the first time."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker, "interrupted")
        self._asked: set[object] = set()

    def _ask(self, what: object) -> None:
        if what not in self._asked:
            self._asked.add(what)
            self.drop_connection(5)

    async def has_queue(self, queue: QueueName) -> bool:
        self._ask(queue)
        return await super().has_queue(queue)

    async def provision(self, queue: QueueName, subscriptions: Sequence[str]) -> None:
        self._ask((queue, subscriptions))
        await super().provision(queue, subscriptions)


@pytest.mark.parametrize("provision", [provision_queues, provision_new_group])
async def test_an_outage_is_waited_for_and_nothing_is_left_out(provision: Provision) -> None:
    broker = MemoryBroker()
    transport = Interrupted(broker)
    await transport.open()
    began_s = asyncio.get_running_loop().time()
    with capture_logs() as logs:
        await provision(transport, group_of(3))
    told = [log["reason"] for log in logs if log["event"] == "queues_not_made_yet"]
    assert told
    assert all(told)
    assert asyncio.get_running_loop().time() - began_s == pytest.approx(len(told) * AGAIN_S)
    assert layout(broker) == layout_of(group_of(3).shape())


@pytest.mark.parametrize("provision", [provision_queues, provision_new_group])
async def test_who_may_not_make_queues_is_told_so_by_the_name_of_the_setting(provision: Provision) -> None:
    broker = MemoryBroker()
    nobody = Account("default", profile=ClientProfile(may_create_queues=False))
    broker.engine.administration.accounts("default").put(nobody)
    with pytest.raises(ConfigError, match=r"group\.provision: cannot provision shop/1: .*; expected .*`none`"):
        await provision(await transport_to(broker, "nobody"), group_of(2))


class Deleting(MemoryTransport):
    """Somebody deletes all queues, `times` times, whenever a queue was made and has no subscriptions yet."""

    def __init__(self, broker: MemoryBroker, times: int) -> None:
        super().__init__(broker, "overtaken")
        self._engine = broker.engine
        self._left = times
        self.asked: list[QueueName] = []

    async def provision(self, queue: QueueName, subscriptions: Sequence[str]) -> None:
        self.asked.append(queue)
        await super().provision(queue, subscriptions)
        if queue == "shop/1" and self._left:
            self._left -= 1
            for name in self._engine.queue_names("default"):
                self._engine.delete_queue("default", name)
            raise RequestRefused(f"provision {queue}", "Unknown Queue")


@pytest.mark.parametrize("provision", [provision_queues, provision_new_group])
async def test_a_group_of_which_a_queue_is_deleted_meanwhile_is_made_anew(provision: Provision) -> None:
    """All of it: what was made before that queue may be gone, too."""
    broker, group = MemoryBroker(), group_of(3)
    transport = Deleting(broker, ROUNDS - 1)
    await transport.open()
    began_s = asyncio.get_running_loop().time()
    with capture_logs() as logs:
        await provision(transport, group)
    assert asyncio.get_running_loop().time() - began_s == pytest.approx((ROUNDS - 1) * AGAIN_S)
    assert [(log["event"], log["log_level"]) for log in logs] == [("queues_not_made_yet", "warning")] * (ROUNDS - 1)
    assert all("Unknown Queue" in log["reason"] for log in logs)
    assert layout(broker) == layout_of(group.shape())
    assert transport.asked == ["shop/2", "shop/1"] * (ROUNDS - 1) + ["shop/2", "shop/1", "shop/0"]


@pytest.mark.parametrize("provision", [provision_queues, provision_new_group])
async def test_who_is_overtaken_by_deletions_again_and_again_is_told_so(provision: Provision) -> None:
    transport = Deleting(MemoryBroker(), ROUNDS)
    await transport.open()
    with pytest.raises(ConfigError, match="Unknown Queue; expected nobody who deletes the group's queues"):
        await provision(transport, group_of(3))
    assert transport.asked == ["shop/2", "shop/1"] * ROUNDS


async def test_so_many_subscriptions_are_asked_for_at_once_that_a_stop_is_soon_heard() -> None:
    asked: list[int] = []

    class Counting(MemoryTransport):
        async def provision(self, queue: QueueName, subscriptions: Sequence[str]) -> None:
            asked.append(len(subscriptions))
            await super().provision(queue, subscriptions)

    broker = MemoryBroker()
    transport = Counting(broker, "counting")
    await transport.open()
    group = group_of(1, hash_count=2 * SUBSCRIPTIONS_AT_ONCE + 1)
    await provision_queues(transport, group)
    assert asked == [SUBSCRIPTIONS_AT_ONCE, SUBSCRIPTIONS_AT_ONCE, 1]
    assert layout(broker) == layout_of(group.shape())
