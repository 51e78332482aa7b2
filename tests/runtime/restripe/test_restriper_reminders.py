"""Members that go by another number of queues than the group has, and a run of the command that leads to that one."""

import asyncio
import itertools

import pytest

from lbg_runtime.model.errors import ConnectFailed, UserError
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
