"""How whole members leave: what they finish, what they cancel at a deadline, and what they leave behind."""

import asyncio

import pytest

from lbg_runtime.runtime.handlers.registry import Handlers


async def _wait(_message):
    await asyncio.sleep(0.05)


async def test_a_stop_finishes_what_was_read_and_leaves_the_rest_unflagged(trial):
    async def work(_message):
        await asyncio.sleep(0.01)

    app = trial.member(work=work, dispatch={"max_in_flight": 4})
    async with trial.at_work(app) as (task,):
        # More than a transport has under way at once.
        await trial.publish(4000)
        await trial.until(lambda: len(trial.handled) >= 10)
        app.stop()
        report = await task
    assert report.is_clean
    assert trial.active() == {}
    handled_before = len(trial.handled)
    assert 0 < sum(trial.depths()) == 4000 - handled_before
    async with trial.running(trial.member(work=_wait)):
        await trial.until(lambda: len(trial.handled) == 4000)
    assert trial.sequences() == {f"k{number}": list(range(1, 1001)) for number in range(4)}
    assert not any(record.get("redelivered") for record in trial.records())


async def test_stop_now_cancels_what_runs_and_it_comes_again_flagged(trial):
    started = asyncio.Event()

    async def hang(_message):
        started.set()
        await asyncio.sleep(1_000_000)

    app = trial.member(work=hang)
    async with trial.at_work(app) as (task,):
        await trial.publish(8)
        await started.wait()
        app.stop()
        app.stop_now()
        report = await task
    assert report.left_behind == 8
    assert report.exit_code == 1
    assert trial.active() == {}
    assert sum(trial.depths()) == 8
    cancelled = [record for record in trial.records() if record["kind"] == "dispatch"]
    assert {(record["outcome"], record["t_settle"]) for record in cancelled} == {("cancelled", None)}
    async with trial.running(trial.member()):
        await trial.until(lambda: len(trial.handled) == 8)
    assert trial.sequences() == {f"k{number}": [1, 2] for number in range(4)}


@pytest.mark.parametrize("hurries_after_s", [[], [1], [1, 3]], ids=["deadline", "hurried", "hurried_again"])
async def test_a_handler_that_is_cancelled_as_its_member_leaves_may_clean_up(trial, hurries_after_s):
    """Flow and member cancelled it both at the deadline, and what had begun in its `finally` was cut short at once."""
    started, tidied = asyncio.Event(), []

    async def hang(_message):
        started.set()
        try:
            await asyncio.sleep(1_000_000)
        finally:
            await asyncio.sleep(8)
            tidied.append("well")

    app = trial.member(work=hang, rebind={"drain_timeout": "5s"}, failure={"timeout": "1h"})
    async with trial.at_work(app) as (task,):
        await trial.publish(1)
        await started.wait()
        app.stop()
        for after_s in hurries_after_s:
            asyncio.get_running_loop().call_later(after_s, app.stop_now)
        assert (await task).still_bound == 0
    assert tidied == ["well"]


@pytest.mark.parametrize("is_handle_dead", [False, True])
async def test_a_stop_cancels_handlers_at_its_deadline(trial, is_handle_dead):
    started = asyncio.Event()

    async def hang(_message):
        started.set()
        await asyncio.sleep(1_000_000)

    app = trial.member(work=hang, rebind={"drain_timeout": "20s"}, failure={"timeout": "1h"})
    loop = asyncio.get_running_loop()
    async with trial.at_work(app) as (task,):
        await trial.publish(4)
        await started.wait()
        if is_handle_dead:
            trial.broker.delete_queue("orders/0")
            await asyncio.sleep(1)
        asked_at_s = loop.time()
        app.stop()
        report = await task
    assert 20 <= loop.time() - asked_at_s < 21
    assert report.exit_code == 1
    assert report.still_bound == 0
    assert is_handle_dead or sum(trial.depths()) == 4


async def test_an_unbind_that_is_never_answered_does_not_keep_the_member(trial):
    app = trial.member()
    session = trial.sessions["member-0"]
    bind = session.bind

    async def never():
        await asyncio.get_running_loop().create_future()

    async def bind_one_badly(queue, epoch, sink):
        flow = await bind(queue, epoch, sink)
        if queue == "orders/2":
            flow.unbind = never
        return flow

    session.bind = bind_one_badly
    async with trial.at_work(app) as (task,):
        app.stop()
        app.stop_now()
        report = await asyncio.wait_for(task, 11)
    assert report.still_bound == 1
    assert report.exit_code == 1


async def test_a_cancelled_member_unbinds_before_it_passes_the_cancellation_on(trial):
    async def hang(_message):
        await asyncio.sleep(1_000_000)

    app = trial.member(work=hang)
    async with trial.at_work(app) as (task,):
        await trial.publish(4)
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert trial.active() == {}
    assert sum(trial.depths()) == 4
    released = [record for record in trial.records() if record.get("event") == "released"]
    assert len(released) == 4
    assert trial.records()[-1]["kind"] == "close"
    assert trial.records()[-1]["clean"] is False


async def test_a_member_that_is_cancelled_again_leaves_its_queues_to_the_end_of_its_session(trial):
    """It waits no longer for answers to its unbinds."""
    app = trial.member()
    session = trial.sessions["member-0"]
    bind, loop = session.bind, asyncio.get_running_loop()

    async def bind_badly(*args):
        flow = await bind(*args)
        flow.unbind = loop.create_future
        return flow

    session.bind = bind_badly
    async with trial.at_work(app) as (task,):
        task.cancel()
        await asyncio.sleep(1)
        assert len(trial.active()) == 4
        task.cancel()
        cancelled_at_s = loop.time()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert loop.time() - cancelled_at_s < 0.1
    assert trial.active() == {}
    assert trial.records()[-1]["clean"] is False


def handler_that_never_lets_go():
    """The handler, an event for its start, and one that ends it at last."""
    started, release = asyncio.Event(), asyncio.Event()

    async def stuck(_message):
        started.set()
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    return stuck, started, release


async def test_a_handler_that_never_lets_go_does_not_keep_the_flows_bound(trial):
    stuck, started, release = handler_that_never_lets_go()
    app = trial.member(work=stuck, rebind={"drain_timeout": "5s"})
    async with trial.at_work(app) as (task,):
        await trial.publish(1)
        await started.wait()
        app.stop()
        await asyncio.sleep(30)
        # The other flows are gone; the process would be ended by its exit guard here.
        assert set(trial.active()) == {0}
        release.set()
        report = await task
    assert report.exit_code == 1


@pytest.mark.parametrize(("outage_s", "still_bound"), [(0, 0), (60, 4)])
async def test_a_handler_of_a_dead_handle_that_never_lets_go_is_left_behind_and_no_flow_of_its_own(
    trial, outage_s, still_bound
):
    stuck, started, release = handler_that_never_lets_go()
    app = trial.member(work=stuck, rebind={"drain_timeout": "5s"})
    async with trial.at_work(app) as (task,):
        await trial.publish(1)
        await started.wait()
        shape = app.settings.group.shape()
        trial.broker.delete_queue("orders/0")
        trial.broker.create_queue("orders/0", shape.subscriptions(0))
        await trial.until(lambda: len(trial.active()) == 4)
        await asyncio.sleep(1)
        if outage_s:
            trial.sessions["member-0"].drop_connection(outage_s)
        app.stop()
        # Longer than the drain and the tail together.
        await asyncio.sleep(25)
        release.set()
        report = await task
    assert (report.left_behind, report.still_bound) == (1, still_bound)


async def test_a_request_that_comes_while_the_lifespans_end_leaves_no_timer_on_the_loop(trial):
    """A program that goes on after its member kept the member for as long as the drain may take."""
    hooks = Handlers()

    @hooks.lifespan
    async def life():
        yield
        app.stop_now()

    app = trial.member(hooks=hooks)
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(app.run())
    await trial.until(lambda: len(trial.active()) == 4)
    app.stop()
    assert (await task).is_clean
    assert [timer for timer in loop._scheduled if not timer.cancelled()] == []


async def test_a_stop_before_the_session_is_open_is_heard(trial):
    app = trial.member()
    app.stop()
    assert (await app.run()).is_clean
