"""Members that are asked to leave while they begin, or while their lifespans end."""

import asyncio

import pytest

from lbg_runtime.model.errors import ConnectFailed, HandlerError
from lbg_runtime.runtime.registry import Handlers


@pytest.mark.parametrize("is_stopped", [True, False])
async def test_a_session_that_cannot_be_opened_matters_only_to_a_member_that_is_to_stay(trial, is_stopped):
    app, opening, given_up = trial.member(), asyncio.Event(), asyncio.Event()

    async def time_out():
        opening.set()
        await given_up.wait()
        raise ConnectFailed("tcp://silent:55555", "no answer")

    trial.sessions["member-0"].open = time_out
    task = asyncio.ensure_future(app.run())
    await opening.wait()
    if is_stopped:
        app.stop()
    given_up.set()
    if is_stopped:
        assert (await task).exit_code == 0
        assert trial.records()[-1]["clean"] is True
        return
    with pytest.raises(ConnectFailed):
        await task


def _leaving_slowly(log):
    """Handlers with a lifespan that takes its time to end."""
    hooks = Handlers()

    @hooks.lifespan
    async def slow():
        yield
        await asyncio.sleep(1)
        log.append("slow out")

    return hooks


async def test_a_stop_ends_a_lifespan_that_is_still_beginning_and_those_before_it_end_in_order(trial):
    log, begun = [], asyncio.Event()
    hooks = _leaving_slowly(log)

    @hooks.lifespan
    async def endless():
        begun.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.sleep(1)
            log.append("endless out")
        yield

    app = trial.member(hooks=hooks, rebind={"drain_timeout": "1h"})
    task = asyncio.ensure_future(app.run())
    await begun.wait()
    app.stop()
    report = await asyncio.wait_for(task, 10)
    assert report.exit_code == 0
    assert log == ["endless out", "slow out"]
    assert trial.active() == {}
    assert asyncio.current_task().cancelling() == 0


async def test_a_lifespan_that_reaches_its_yield_all_the_same_is_left_and_nothing_is_bound(trial):
    log, begun, hooks = [], asyncio.Event(), Handlers()

    @hooks.lifespan
    async def deaf():
        begun.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            log.append("in")
        yield
        log.append("out")

    app = trial.member(hooks=hooks)
    task = asyncio.ensure_future(app.run())
    await begun.wait()
    app.stop()
    assert (await asyncio.wait_for(task, 10)).is_clean
    assert log == ["in", "out"]
    assert not any(record["kind"] == "flow" for record in trial.records())


async def test_a_lifespan_that_fails_for_being_stopped_is_told(trial):
    begun, hooks = asyncio.Event(), Handlers()

    @hooks.lifespan
    async def broken():
        begun.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            raise OSError("half open") from None
        yield

    app = trial.member(hooks=hooks)
    task = asyncio.ensure_future(app.run())
    await begun.wait()
    app.stop()
    with pytest.raises(HandlerError, match="half open"):
        await task


async def test_stop_now_ends_a_lifespan_that_is_still_ending_and_those_before_it_end_in_order(trial):
    log, ending = [], asyncio.Event()
    hooks = _leaving_slowly(log)

    @hooks.lifespan
    async def endless():
        yield
        ending.set()
        await asyncio.get_running_loop().create_future()

    app = trial.member(hooks=hooks)
    async with trial.running(app) as (task,):
        await trial.until(lambda: len(trial.active()) == 4)
        app.stop()
        await ending.wait()
        app.stop_now()
        report = await asyncio.wait_for(task, 10)
    assert report.is_clean
    assert log == ["slow out"]


async def test_a_member_that_is_cancelled_while_a_lifespan_begins_passes_it_on(trial):
    begun, hooks = asyncio.Event(), Handlers()

    @hooks.lifespan
    async def endless():
        begun.set()
        await asyncio.get_running_loop().create_future()
        yield

    task = asyncio.ensure_future(trial.member(hooks=hooks).run())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
