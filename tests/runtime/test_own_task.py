"""Who waits for a task of its own: cancelled from elsewhere, once, twice, or together with it."""

import asyncio

import anyio
import pytest

from lbg_runtime.runtime.own_task import until_ended


async def _begun(coroutine):
    task = asyncio.create_task(coroutine)
    await asyncio.sleep(0)
    return task


async def _count_cancellations(log, wanted):
    while len(log) < wanted:
        try:
            await asyncio.sleep(10)
            return
        except asyncio.CancelledError:
            log.append(asyncio.get_running_loop().time())


async def test_a_cancellation_that_the_task_ignores_is_raised_at_its_end():
    log, begun_s = [], asyncio.get_running_loop().time()
    waiting = await _begun(until_ended(await _begun(_count_cancellations(log, 2))))
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert len(log) == 1
    assert asyncio.get_running_loop().time() - begun_s == pytest.approx(10, abs=0.1)


async def test_each_cancellation_reaches_the_task_again():
    log = []
    waiting = await _begun(until_ended(await _begun(_count_cancellations(log, 2))))
    waiting.cancel()
    await asyncio.sleep(1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert len(log) == 2


@pytest.mark.parametrize("scope_is_first", [False, True])
async def test_a_cancel_scope_of_anyio_is_one_cancellation_beside_those_of_others(scope_is_first):
    """It cancels in each turn of the loop, for as long as its block is waited for."""
    log, scope = [], anyio.CancelScope()
    task = await _begun(_count_cancellations(log, 3))

    async def wait():
        with scope:
            await until_ended(task)

    waiting = await _begun(wait())
    for cancel in (scope.cancel, waiting.cancel) if scope_is_first else (waiting.cancel, scope.cancel):
        cancel()
        await asyncio.sleep(1)
    await asyncio.wait([waiting])
    assert len(log) == 2


@pytest.mark.parametrize("is_first", [False, True])
async def test_a_task_that_is_cancelled_together_with_who_waits_for_it_is_cancelled_once(is_first):
    log = []
    task = await _begun(_count_cancellations(log, 2))
    waiting = await _begun(until_ended(task))
    for each in (waiting, task) if is_first else (task, waiting):
        each.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert len(log) == 1


async def test_an_error_of_the_task_is_not_lost_behind_a_cancellation():
    async def fail():
        try:
            await asyncio.sleep(10)
        finally:
            raise OSError("away")

    task = await _begun(fail())
    waiting = await _begun(until_ended(task))
    waiting.cancel()
    await waiting
    with pytest.raises(OSError, match="away"):
        task.result()


async def test_a_cancellation_that_comes_when_the_task_has_just_ended_is_raised():
    task = await _begun(asyncio.sleep(10, "the end"))
    waiting = await _begun(until_ended(task))
    task.add_done_callback(lambda _: waiting.cancel())
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert task.result() == "the end"


async def test_what_cancels_only_the_task_is_not_raised():
    task = await _begun(asyncio.sleep(10))
    waiting = await _begun(until_ended(task))
    task.cancel()
    await waiting
    assert task.cancelled()
