"""The pool of runners: how long it keeps the loop, and its end."""

import asyncio
import contextlib

import pytest
from structlog.testing import capture_logs

from lbg_runtime.core.lanes import KeyLanes
from lbg_runtime.model.ids import Epoch
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.runtime.dispatch import dispatcher as dispatcher_module
from lbg_runtime.runtime.runners.handling import Handling
from lbg_runtime.runtime.runners.pool import LONGEST_WITHOUT_A_PAUSE_NS, TURNS_WITHOUT_A_PAUSE, RunnerPool, aside
from lbg_runtime.runtime.suspension import Suspension
from tests.runtime.conftest import QUEUE


@pytest.mark.parametrize(
    ("blocks_ns", "most"),
    [(600_000_000, 1), (LONGEST_WITHOUT_A_PAUSE_NS // 2 + 1, 2), (1, TURNS_WITHOUT_A_PAUSE * 4)],
)
async def test_between_two_handlers_that_block_the_loop_gets_to_everything_else(
    rig, delivery, monkeypatch, blocks_ns, most
):
    """However many keys and runners there are: nothing would be settled before the watchdog ends the member."""
    now_ns, handled, in_a_step = 0, 0, []

    async def handle(message):
        nonlocal now_ns, handled
        now_ns += blocks_ns
        handled += 1

    async def look():
        while True:
            before = handled
            await asyncio.sleep(0)
            in_a_step.append(handled - before)

    for clock in ("monotonic_ns", "since_boot_ns"):
        monkeypatch.setattr(dispatcher_module, clock, lambda: now_ns)
    made = rig(handle, dispatch={"runners": 4})
    made.dispatcher.heed(Suspension(now_ns), lambda _: None)
    async with made.running():
        looking = asyncio.ensure_future(look())
        for number in range(400):
            made.dispatcher.dispatch(delivery(number, f"k{number % 100}"))
        await made.until_ended(400)
        looking.cancel()
    assert max(in_a_step) == most
    assert set(made.outcomes().values()) == {Outcome.ACCEPTED}


async def test_a_handler_that_is_found_stuck_while_the_pool_ends_gets_no_stand_in_and_no_error(rig, delivery):
    release = asyncio.Event()

    async def handle(message):
        while not release.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await release.wait()

    made = rig(handle, failure={"timeout": "1s"})
    loop_errors = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: loop_errors.append(context))
    with capture_logs() as logs:
        task = asyncio.ensure_future(made.dispatcher.run())
        await asyncio.sleep(0)
        made.dispatcher.dispatch(delivery(1))
        # After the first time-out, before the second.
        await asyncio.sleep(1.5)
        task.cancel()
        await asyncio.sleep(3)
        assert [log["event"] for log in logs].count("handler_ignored_cancellation") == 1
        assert not task.done()
        release.set()
        await asyncio.wait([task], timeout=10)
    assert task.cancelled()
    assert loop_errors == []
    assert made.outcomes() == {1: None}


async def test_what_waited_behind_a_handler_that_hung_is_taken_by_its_stand_in(rig, delivery):
    release = asyncio.Event()

    async def handle(message):
        while message.payload == b"1" and not release.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await release.wait()

    made = rig(handle, dispatch={"runners": 1}, failure={"timeout": "1s"})
    async with made.running():
        made.dispatcher.dispatch(delivery(1))
        await asyncio.sleep(3)
        made.dispatcher.return_unstarted(QUEUE, Epoch(1))
        made.dispatcher.cancel_handling(QUEUE, Epoch(1))
        made.dispatcher.dispatch(delivery(2, epoch=2))
        release.set()
        await made.until_ended(2, within_s=5)
    assert made.outcomes() == {1: None, 2: Outcome.ACCEPTED}


async def test_a_pool_that_is_cancelled_leaves_no_runner_behind(rig, delivery):
    async def handle(message):
        await asyncio.sleep(3_600)

    made = rig(handle, dispatch={"runners": 4})
    async with made.running():
        for number in range(8):
            made.dispatcher.dispatch(delivery(number, f"k{number}"))
        await asyncio.sleep(1)
    assert not any(task.get_name() == "lbg-runner" for task in asyncio.all_tasks())
    assert set(made.outcomes().values()) == {None}


async def test_a_pool_ends_with_a_task_beside_its_runners_that_fails():
    """A runner takes a cancellation for one that was meant for its handler, unless it knows that the pool ends."""

    async def take_no_turn(_lane, _task):
        raise AssertionError("nothing is ready")

    async def fail():
        raise OSError("broken")

    pool = RunnerPool(KeyLanes(), 3, take_no_turn)
    running = asyncio.ensure_future(pool.run())
    # Until every runner waits for a turn.
    await asyncio.sleep(1)
    beside = pool.start(fail)
    await asyncio.wait([beside])
    assert not pool.is_open, "nothing more is started from now on"
    with pytest.raises(ExceptionGroup) as raised:
        await asyncio.wait_for(running, 10)
    assert raised.value.subgroup(OSError) is not None
    assert not any(task.get_name() == "lbg-runner" for task in asyncio.all_tasks())


async def test_a_handler_that_stands_aside_when_its_pool_has_failed_gets_no_stand_in_and_no_error(delivery):
    async def go_on(_lane, _task):
        try:
            await asyncio.sleep(3_600)
        finally:
            with aside():
                pass

    async def fail():
        raise OSError("broken")

    lanes = KeyLanes()
    pool = RunnerPool(lanes, 1, go_on)
    lanes.offer("k", Handling(delivery(1), "k", "k", None))
    running = asyncio.ensure_future(pool.run())
    await asyncio.sleep(1)
    pool.start(fail)
    with pytest.raises(ExceptionGroup) as raised:
        await asyncio.wait_for(running, 10)
    assert [str(each) for each in raised.value.exceptions] == ["broken"]


async def test_a_pool_goes_on_when_a_task_beside_its_runners_is_cancelled():
    async def take_no_turn(_lane, _task):
        raise AssertionError("nothing is ready")

    async def wait():
        await asyncio.sleep(3_600)

    pool = RunnerPool(KeyLanes(), 1, take_no_turn)
    running = asyncio.ensure_future(pool.run())
    await asyncio.sleep(1)
    beside = pool.start(wait)
    await asyncio.sleep(1)
    beside.cancel()
    await asyncio.wait([beside])
    assert pool.is_open
    running.cancel()
    await asyncio.wait([running])
