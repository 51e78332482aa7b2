import asyncio
import time

import pytest

from lbg_runtime.testing.virtual_time import VirtualTimeLoop, VirtualTimeStall


async def test_an_hour_of_sleep_takes_no_time() -> None:
    started = time.monotonic()
    before = asyncio.get_running_loop().time()
    await asyncio.sleep(3600)
    assert asyncio.get_running_loop().time() - before == pytest.approx(3600)
    assert time.monotonic() - started < 10


async def test_timers_fire_in_order_of_their_deadlines() -> None:
    fired: list[int] = []
    loop = asyncio.get_running_loop()
    for delay in (3, 1, 2):
        loop.call_later(delay, fired.append, delay)
    await asyncio.sleep(4)
    assert fired == [1, 2, 3]


def test_waiting_for_nothing_is_reported() -> None:
    loop = VirtualTimeLoop()
    try:
        with pytest.raises(VirtualTimeStall):
            loop.run_until_complete(loop.create_future())
    finally:
        loop.close()


@pytest.mark.real_time
async def test_a_marked_test_runs_on_the_ordinary_loop() -> None:
    assert not isinstance(asyncio.get_running_loop(), VirtualTimeLoop)
