"""How a member leaves while something keeps it, and what its flows are told meanwhile; on a memory broker."""

import asyncio

import pytest
from structlog.testing import capture_logs

from lbg_runtime.model.errors import BindFailed, ConfigError
from lbg_runtime.runtime.dispatch import dispatcher
from lbg_runtime.runtime.suspension import Suspension
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
    async with trial.at_work(app) as (task,), trial.running(other):
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
    async with trial.at_work(app) as (task,):
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


async def test_a_member_that_can_bind_nothing_leaves_with_the_last_answer_to_its_first_binds(trial):
    """Not earlier: an answer that is under way may show that the settings are right."""
    app, session = trial.member(), trial.sessions["member-0"]
    loop = asyncio.get_running_loop()
    began_at_s = loop.time()

    async def refuse(queue, epoch, sink):
        await asyncio.sleep(2 if queue == "orders/1" else 1)
        raise BindFailed(queue, "Permission Not Allowed", permanent=True)

    session.bind = refuse
    with pytest.raises(ConfigError, match=r"queue orders/1: Permission Not Allowed"):
        await app.run()
    assert loop.time() - began_at_s < 3


async def test_a_member_with_a_queue_does_not_leave_over_another_one_that_is_missing(trial):
    app, session = trial.member(), trial.sessions["member-0"]
    bind, missing = session.bind, {"orders/0"}

    async def bind_what_is_there(queue, epoch, sink):
        if queue in missing:
            raise BindFailed(queue, "Unknown Queue", permanent=True)
        return await bind(queue, epoch, sink)

    session.bind = bind_what_is_there
    async with trial.running(app):
        await trial.until(lambda: len(trial.active()) == 3)
        await asyncio.sleep(60)
        missing.clear()
        await trial.until(lambda: len(trial.active()) == 4, within_s=15)


async def test_a_member_that_has_got_a_queue_meanwhile_does_not_leave_with_the_last_of_its_first_answers(trial):
    app, session = trial.member(), trial.sessions["member-0"]
    bind, missing = session.bind, {"orders/0", "orders/1", "orders/2", "orders/3"}

    async def bind_what_is_there(queue, epoch, sink):
        if queue not in missing:
            return await bind(queue, epoch, sink)
        if queue == "orders/0":
            missing.remove(queue)
        else:
            await asyncio.sleep(30)
        raise BindFailed(queue, "Unknown Queue", permanent=True)

    session.bind = bind_what_is_there
    async with trial.running(app) as (task,):
        await asyncio.sleep(60)
        assert not task.done()
        assert list(trial.active()) == [0]


async def test_a_member_whose_own_queue_is_missing_still_stands_by_for_the_others(trial):
    """The refusal comes at once, and a standby's bind waits for its turn."""
    other, app = trial.discovered("a"), trial.discovered("b")
    async with trial.at_work(other):
        session = trial.sessions["b"]
        bind, standing_by = session.bind, set()

        async def bind_what_is_not_its_own(queue, epoch, sink):
            index = int(queue.removeprefix("orders/"))
            if app._supervisor.runners[index].machine.place.rank == 0:
                raise BindFailed(queue, "Unknown Queue", permanent=True)
            standing_by.add(queue)
            return await bind(queue, epoch, sink)

        session.bind = bind_what_is_not_its_own
        async with trial.running(app) as (task,):
            await trial.until(lambda: len(standing_by) == 2)
            assert not task.done()


async def test_a_queue_that_was_deleted_does_not_end_the_members_that_it_belongs_to_next(trial):
    """Each owner that leaves would take the next one with it, one after the other."""
    sections = {"rebind": {"standbys": 0}}
    app, other = trial.discovered("a", **sections), trial.discovered("b", **sections)
    async with trial.running(other) as (left,):
        async with trial.running(app):
            await trial.until(lambda: sorted(trial.active().values()) == ["a", "a", "b", "b"])
            index = next(index for index, owner in trial.active().items() if owner == "a")
            trial.broker.delete_queue(f"orders/{index}")
        with capture_logs() as lines:
            await asyncio.sleep(60)
        assert not left.done()
        told = [line for line in lines if line["event"] == "bind_refused"]
        assert {line["queue"] for line in told} == {f"orders/{index}"}
        assert 6 <= len(told) <= 12, "rarely"
        trial.broker.create_queue(f"orders/{index}", app.settings.group.shape().subscriptions(index))
        await trial.until(lambda: len(trial.active()) == 4, within_s=15)


async def test_a_member_with_nothing_to_do_gives_its_queues_up_too_when_its_process_was_stopped(trial, monkeypatch):
    now_ns = 10**12
    monkeypatch.setattr(dispatcher, "since_boot_ns", lambda: now_ns)
    app = trial.member()
    app._begin_watch = lambda: Suspension(10**12)
    with capture_logs() as log:
        async with trial.at_work(app):
            now_ns += 10 * 10**9
            await asyncio.sleep(2)
            await trial.until(lambda: len(trial.active()) == 4)
    assert [line["stopped_for_ms"] for line in log if line["event"] == "process_was_stopped"] == [10_000]
