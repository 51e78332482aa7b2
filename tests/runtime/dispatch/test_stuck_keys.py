"""Keys that are going nowhere hold one place each: others of their queue go past them."""

import asyncio

import pytest

from lbg_runtime.model.ids import Epoch

OTHERS = ("k12", "k16")
"""In the queue of k0, k4 and k8."""
EACH = 71
"""More than a key may keep waiting."""


async def _others_are_handled(trial, each):
    await trial.until(lambda: all(len(trial.sequences().get(key, ())) >= each for key in OTHERS), within_s=100)


async def _play(trial, work, is_mended, **sections):
    """Two bursts, of which all but the stuck keys are handled; and then those, when they are mended."""
    app = trial.member(work=work, **sections)
    async with trial.at_work(app):
        for burst in (1, 2):
            await trial.publish(20 * EACH, keys=20)
            await _others_are_handled(trial, burst * EACH)
        assert "k0" not in trial.sequences()
        is_mended.set()
        await trial.until(lambda: len(trial.handled) == 40 * EACH)
    assert all(numbers == sorted(numbers) for numbers in trial.sequences().values())
    assert sum(trial.depths()) == 0


@pytest.mark.parametrize(
    ("poisoned", "dispatch"),
    [
        (("k0", "k4", "k8"), {}),
        (("k0", "k4"), {"max_in_flight": 4, "max_held": 600}),
        (("k0",), {"max_in_flight": 2, "max_held": 600}),
    ],
)
async def test_keys_that_always_fail_do_not_keep_the_others_of_their_queue_out(trial, poisoned, dispatch):
    """Three held 65 places each: shut once, the intake waited for half of 256 to be free, for ever."""
    is_mended = asyncio.Event()

    async def work(message):
        await asyncio.sleep(0.1)
        if message.key in poisoned and not is_mended.is_set():
            raise ValueError("poison")

    await _play(trial, work, is_mended, dispatch=dispatch)


@pytest.mark.parametrize("timeout", ["5s", "1h"])
async def test_nor_do_keys_whose_handler_hangs_past_its_time_out_or_until_they_are_stuck(trial, timeout):
    is_mended = asyncio.Event()

    async def work(message):
        await asyncio.sleep(0.1)
        if message.key in ("k0", "k4", "k8"):
            await is_mended.wait()

    await _play(trial, work, is_mended, failure={"timeout": timeout})


async def test_a_key_that_was_stuck_for_want_of_a_runner_is_held_up_when_its_handler_then_hangs(trial):
    is_mended, are_free = asyncio.Event(), asyncio.Event()

    async def work(message):
        if message.key in ("k0", "k4", "k8") and message.key_sequence > 1:
            await is_mended.wait()
        elif message.key not in ("k0", "k4", "k8", *OTHERS) and message.key_sequence == 1:
            await are_free.wait()
        await asyncio.sleep(0.01)

    app = trial.member(work=work, dispatch={"runners": 15}, failure={"timeout": "1h"})
    async with trial.at_work(app):
        await trial.publish(20, keys=20)
        await asyncio.sleep(1)
        await trial.publish(20 * EACH, keys=20)
        # Longer than `dispatch.stuck_key`.
        await asyncio.sleep(70)
        are_free.set()
        await trial.until(lambda: all(len(trial.sequences()[key]) > EACH for key in OTHERS))
        await trial.publish(20 * EACH, keys=20)
        await trial.until(lambda: all(len(trial.sequences()[key]) > 2 * EACH for key in OTHERS))
        is_mended.set()
        await trial.until(lambda: sum(trial.depths()) == 0)


class _Told:
    """What is told to the flow runner of a dispatcher."""

    def __init__(self, made):
        self.held_up = []
        made.dispatcher.attach("orders/0", made.ends.append, lambda *told: self.held_up.append(told))


async def test_what_waits_behind_a_failed_message_is_told_of_once_by_handle_and_what_comes_then_at_once(rig, delivery):
    broken = [True]

    async def handle(message):
        if message.key == "bad" and broken:
            raise KeyError

    made = rig(handle)
    told = _Told(made)
    async with made.running():
        for number, epoch in ((1, 1), (2, 1), (3, 2), (4, 2)):
            assert not made.dispatcher.dispatch(delivery(number, "bad", epoch=epoch))
        assert not made.dispatcher.dispatch(delivery(5, "good"))
        await asyncio.sleep(600)
        assert told.held_up == [(Epoch(1), (2,)), (Epoch(2), (3, 4))]
        assert made.dispatcher.dispatch(delivery(6, "bad"))
        assert not made.dispatcher.dispatch(delivery(7, "good"))
        assert made.dispatcher.key_reports.hot_total == 0, "it is stuck and not hot"
        broken.clear()
        await asyncio.sleep(600)
        assert len(made.ends) == 7
        assert not made.dispatcher.dispatch(delivery(8, "bad"))
    assert len(told.held_up) == 2


async def test_nothing_is_told_of_a_key_that_waits_for_a_runner_or_behind_one_that_is_handled(rig, delivery):
    is_open = asyncio.Event()

    async def handle(message):
        await is_open.wait()

    made = rig(handle, dispatch={"runners": 1}, failure={"timeout": "1h"})
    told = _Told(made)
    async with made.running():
        reporting = asyncio.ensure_future(made.dispatcher.key_reports.run())
        for number, key in enumerate(("hangs", "hangs", "waits", "waits")):
            made.dispatcher.dispatch(delivery(number, key))
        await asyncio.sleep(50)
        assert told.held_up == []
        await asyncio.sleep(50)
        assert made.dispatcher.key_reports.stuck == 2
        assert told.held_up == [(Epoch(1), (1,))]
        reporting.cancel()
        is_open.set()
        await asyncio.sleep(1)
    assert len(made.ends) == 4
