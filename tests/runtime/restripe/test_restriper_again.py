"""Work that is taken up again: by a run that follows one which was killed, or a record that nobody has read."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from lbg_runtime.core.group.control_codec import encode
from lbg_runtime.core.group.control_messages import Header, Heartbeat, Life, MemberState
from lbg_runtime.core.restripe.records import StripePlan, plan_of_topic, record_topic
from lbg_runtime.core.restripe.striping import Striping, StripingReport
from lbg_runtime.model.errors import ConnectFailed, UserError
from lbg_runtime.model.ids import GroupName, MemberId
from lbg_runtime.model.message import Message
from lbg_runtime.runtime.restripe.restriper import HELD_S
from lbg_runtime.transport.memory.transport import MemoryTransport
from tests.runtime.restripe.restripe_world import GROUP, restripe, topics_of

CONTROL_TOPIC = "lbg-control/orders"
PARKING_QUEUE = "lbg-parked/orders/1"


async def test_parking_that_is_turned_on_when_a_shard_has_moved_keeps_nobody_from_the_end(
    trial, settings, queues
) -> None:
    """Otherwise the shard that was just moving would wait for ever."""
    async with trial.at_work(trial.discovered("a", group=GROUP)):
        # Two queues are made, six get the topic, and one its first shard, which another one loses.
        queues.calls_left = 10
        with pytest.raises(ConnectFailed):
            await restripe(trial, settings, queues, 6)
        assert "h/4/>" not in await queues.subscriptions("orders/0")
        queues.adopt(PARKING_QUEUE, [PARKING_QUEUE])
        done = await restripe(trial, settings, queues, 6)
        assert done.moved == done.moving


async def test_the_count_is_stored_by_the_next_run_if_the_one_before_was_killed_before_it_was(
    trial, settings, queues
) -> None:
    """Members that start from what is stored would leave the new queues alone."""
    store_count = queues.store_count

    async def be_killed(_):
        raise ConnectFailed("semp", "killed")

    async with trial.at_work(trial.discovered("a", group=GROUP)):
        queues.store_count = be_killed
        with pytest.raises(ConnectFailed):
            await restripe(trial, settings, queues, 6)
        queues.store_count = store_count
        assert await restripe(trial, settings, queues, 6) is None
    assert queues.stored_count == 6
    topics = {topic for of_queue in (await topics_of(queues)).values() for topic in of_queue}
    assert not any(plan_of_topic(CONTROL_TOPIC, topic) for topic in topics)


@asynccontextmanager
async def conducting_unread(trial, settings, queues):
    """A re-striping to 6 whose plan is published; the member that was heard reads nothing."""
    told = []
    conducting = asyncio.ensure_future(restripe(trial, settings, queues, 6, told.append))
    member = MemoryTransport(trial.broker, "member")
    await member.open()
    header = Header(GroupName("orders"), MemberId("a"), Life(1, 1), 1)
    beat = Heartbeat(header, MemberState.ACTIVE, 1, {}, {}, "0", StripingReport(Striping(0, 4), ""))
    await trial.until(lambda: bool(told))
    member.send_direct(Message(CONTROL_TOPIC, encode(beat)))
    await trial.until(lambda: conducting.done() or told[-1].waiting_for == "the members to read the plan")
    yield conducting
    assert not conducting.done()
    conducting.cancel()
    await asyncio.wait([conducting])
    await member.close()


async def test_a_plan_that_was_published_and_that_nobody_has_read_stays_whatever_comes_meanwhile(
    trial, settings, queues
) -> None:
    async with conducting_unread(trial, settings, queues):
        before = await topics_of(queues)
        queues.adopt(PARKING_QUEUE, [PARKING_QUEUE])
        await asyncio.sleep(10)
        assert await queues.depth("orders/5") > 1, "it was published again"
        assert await topics_of(queues) == {**before, PARKING_QUEUE: {PARKING_QUEUE}}


async def test_who_follows_publishes_a_plan_again_that_lies_unread_in_the_new_queues(trial, settings, queues) -> None:
    for _ in range(2):
        async with conducting_unread(trial, settings, queues):
            pass
    assert await queues.depth("orders/5") == 2


async def test_a_leftover_stays_until_no_late_request_can_come_as_nobody_else_begins_beside_it(
    trial, settings, queues
) -> None:
    """Who finds none of it begins at once, and would be in the middle of its moves when the request comes."""
    topic = record_topic(CONTROL_TOPIC, StripePlan(7, 2, 6, "s3cr3t"))
    await queues.subscribe("orders/0", topic)
    clearing = asyncio.ensure_future(restripe(trial, settings, queues, 4))
    await asyncio.sleep(HELD_S - 1)
    assert topic in await queues.subscriptions("orders/0")
    assert await clearing is None
    assert topic not in await queues.subscriptions("orders/0")


async def test_a_leftover_is_looked_at_again_when_the_last_late_request_has_come(trial, settings, queues) -> None:
    """With the topic on all queues of its plan, that may have been published."""
    topic = record_topic(CONTROL_TOPIC, StripePlan(7, 4, 5, "s3cr3t"))
    await queues.create_queue("orders/4")
    for index in range(4):
        await queues.subscribe(f"orders/{index}", topic)
    clearing = asyncio.ensure_future(restripe(trial, settings, queues, 4))
    await asyncio.sleep(HELD_S - 1)
    await queues.subscribe("orders/4", topic)
    with pytest.raises(UserError, match="from 4 to 5 queues; expected 5, to end that first"):
        await clearing
    assert all(topic in topics for topics in (await topics_of(queues)).values())
