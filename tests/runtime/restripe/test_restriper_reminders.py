"""Members that go by another number of queues than the group has, and a run of the command that leads to that one."""

import asyncio
import itertools

import pytest

from lbg_runtime.core.group.control_codec import encode
from lbg_runtime.core.group.control_messages import Header, Heartbeat, Life, MemberState
from lbg_runtime.core.restripe.striping import Striping, StripingReport
from lbg_runtime.model.errors import ConnectFailed, UserError
from lbg_runtime.model.ids import GroupName, MemberId
from lbg_runtime.model.message import Message
from lbg_runtime.transport.memory.transport import MemoryTransport
from tests.runtime.restripe.restripe_world import (
    GROUP,
    handled,
    in_order_and_once,
    publish_for,
    published_in,
    restripe,
    topics_of,
)


@pytest.mark.parametrize("count", [3, 5])
async def test_members_that_go_by_another_number_of_queues_are_told_of_the_groups(
    trial, settings, queues, count: int
) -> None:
    outdated, topics = {**GROUP, "queue_count": count}, await topics_of(queues)
    async with trial.running(trial.discovered("a", group=outdated), trial.discovered("b", group=outdated)):
        await trial.until(lambda: len(trial.active()) == min(count, 4))
        publishing = asyncio.ensure_future(publish_for(trial, 5))
        done = await restripe(trial, settings, queues, 4)
        assert (done.plan.from_count, done.plan.to_count, done.moving) == (4, 4, 0)
        assert await topics_of(queues) == topics
        await publishing
        await trial.until(lambda: handled(trial) == published_in(5))
        assert sorted(trial.active()) == [0, 1, 2, 3]
        assert await restripe(trial, settings, queues, 4) is None
    assert in_order_and_once(trial)


async def test_in_a_group_that_parks_nobody_is_reminded_and_what_to_do_instead_is_told(trial, settings, queues) -> None:
    """What a member could not park meanwhile would keep the reminder from its end, and that the member from parking."""
    queues.adopt("lbg-parked/orders/1", ["lbg-parked/orders/1"])
    topics = await topics_of(queues)
    async with trial.running(trial.discovered("a", group={**GROUP, "queue_count": 3})):
        await trial.until(lambda: len(trial.active()) == 3)
        with pytest.raises(
            UserError, match=r"expected all members stopped and then started with group\.queue_count: 4"
        ):
            await restripe(trial, settings, queues, 4)
    assert await topics_of(queues) == topics


async def test_who_reminds_members_may_fail_after_any_step_and_the_next_one_goes_on(trial, settings, queues) -> None:
    outdated, topics = {**GROUP, "queue_count": 3}, await topics_of(queues)
    async with trial.running(trial.discovered("a", group=outdated)):
        await trial.until(lambda: len(trial.active()) == 3)
        for attempt in itertools.count():
            queues.calls_left = 1
            try:
                await restripe(trial, settings, queues, 4)
            except ConnectFailed:
                assert attempt < 20
            else:
                break
        assert await topics_of(queues) == topics
        assert sorted(trial.active()) == [0, 1, 2, 3]


async def tell_of_a_re_striping(trial, settings, before: int, after: int) -> None:
    """As a member does that was cut off when it ended, and has come back when all others had been restarted."""
    header = Header(GroupName("orders"), MemberId("late"), Life(1, 1), 1)
    report = StripingReport(Striping(7, before, after), "")
    shared = {**settings(group=GROUP).group.shared(), "membership.count": ""}
    beat = Heartbeat(header, MemberState.ACTIVE, 1, shared, {}, "0", report)
    late = MemoryTransport(trial.broker, "late")
    await late.open()
    late.send_direct(Message("lbg-control/orders", encode(beat)))
    await late.close()
    await asyncio.sleep(10)


@pytest.mark.parametrize(("before", "after"), [(6, 4), (3, 4), (4, 4), (3, 6)])
async def test_members_that_go_by_a_re_striping_that_is_over_are_told_of_its_end(
    trial, settings, queues, before: int, after: int
) -> None:
    topics = await topics_of(queues)
    async with trial.at_work(trial.discovered("a", group=GROUP)):
        await tell_of_a_re_striping(trial, settings, before, after)
        done = await restripe(trial, settings, queues, 4)
        assert done is not None
        assert (done.plan.from_count, done.plan.to_count, done.moving) == (4, 4, 0)
        assert await restripe(trial, settings, queues, 4) is None
    assert await topics_of(queues) == topics


async def test_members_that_go_by_a_re_striping_to_another_number_are_to_be_brought_there_first(
    trial, settings, queues
) -> None:
    """Somebody may have taken its topic from the queues while its plan lay there: a second one would stop them."""
    async with trial.at_work(trial.discovered("a", group=GROUP)):
        await tell_of_a_re_striping(trial, settings, 4, 6)
        with pytest.raises(UserError, match="brought from 4 to 6 queues; expected 6, to end that first"):
            await restripe(trial, settings, queues, 4)
        assert (await restripe(trial, settings, queues, 6)).moving > 0
        assert (await restripe(trial, settings, queues, 4)).moving > 0
