"""How a member leaves while something keeps it, and what its flows are told meanwhile; on a memory broker."""

import asyncio

import pytest

from lbg_runtime.model.errors import BindFailed, ConfigError
from tests.runtime.restripe.restripe_world import GROUP, made_queues, restripe

DRAIN_S = 20


async def _refuse_to_bind(queue, epoch, sink):
    raise BindFailed(queue, "Max Clients Exceeded For Queue")


async def test_queues_that_nobody_takes_are_handled_for_half_of_the_time_and_drained_in_the_other_half(trial):
    """Without the first half they would stand still for nothing; without the second, the deadline would cut short what
    had just begun."""

    async def work(_message):
        await asyncio.sleep(1)

    async def publish_on():
        while True:
            await trial.publish(8, 8)
            await asyncio.sleep(1)

    sections = {"rebind": {"drain_timeout": f"{DRAIN_S}s"}}
    app, other = trial.discovered("a", work=work, **sections), trial.discovered("b", **sections)
    trial.sessions["b"].bind = _refuse_to_bind
    loop = asyncio.get_running_loop()
    async with trial.running(app) as (task,):
        await trial.until(lambda: len(trial.active()) == 4)
        async with trial.running(other):
            await asyncio.sleep(10)
            publishing = asyncio.ensure_future(publish_on())
            await trial.until(lambda: bool(trial.handled))
            asked_at_s, handled_before = loop.time(), len(trial.handled)
            app.stop()
            report = await task
            publishing.cancel()
    took_s, handled = loop.time() - asked_at_s, len(trial.handled) - handled_before
    assert report.is_clean
    assert DRAIN_S / 2 <= took_s < DRAIN_S * 0.75
    assert handled > 8 * (DRAIN_S / 2 - 2)


async def test_queues_that_come_while_a_member_leaves_do_not_keep_it(trial, settings):
    """Its new flows have nothing to drain, and nobody else would end them before the deadline."""
    queues = made_queues(trial, settings)
    began, release = asyncio.Event(), asyncio.Event()

    async def work(_message):
        began.set()
        await release.wait()

    sections = {"group": GROUP, "rebind": {"drain_timeout": "600s"}, "failure": {"timeout": "1h"}}
    app = trial.discovered("a", work=work, **sections)
    loop = asyncio.get_running_loop()
    async with trial.running(app) as (task,):
        await trial.until(lambda: len(trial.active()) == 4)
        await trial.publish(1)
        await began.wait()
        app.stop()
        async with trial.running(trial.discovered("b", **sections)):
            await trial.until(lambda: trial.active() == {0: "a"} | dict.fromkeys(range(1, 4), "b"))
            restriping = asyncio.ensure_future(restripe(trial, settings, queues, 6))
            await trial.until(lambda: trial.active() == {0: "a"} | dict.fromkeys(range(1, 6), "b"))
            release.set()
            released_at_s = loop.time()
            report = await task
            took_s = loop.time() - released_at_s
            await restriping
    assert report.is_clean
    assert took_s < 1


async def test_of_several_refusals_the_first_one_is_told(trial):
    """Later ones may be what the end of the member does to its other flows."""
    app, session = trial.member(), trial.sessions["member-0"]
    refused, bind = asyncio.Event(), session.bind

    async def bind_some(queue, epoch, sink):
        if queue == "orders/2":
            refused.set()
            raise BindFailed(queue, "Permission Not Allowed", permanent=True)
        if queue == "orders/0":
            await refused.wait()
            await asyncio.sleep(1)
            raise BindFailed(queue, "Unknown Queue", permanent=True)
        return await bind(queue, epoch, sink)

    session.bind = bind_some
    with pytest.raises(ConfigError, match=r"queue orders/2: Permission Not Allowed"):
        await app.run()
