import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from lbg_runtime.testing import virtual_time
from lbg_runtime.testing.virtual_time import VirtualTimeLoop, VirtualTimeStall
from tests.patience import PATIENCE_S


async def test_an_hour_of_sleep_takes_no_time() -> None:
    started = time.monotonic()
    before = asyncio.get_running_loop().time()
    await asyncio.sleep(3600)
    assert asyncio.get_running_loop().time() - before == pytest.approx(3600)
    assert time.monotonic() - started < PATIENCE_S


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


async def test_time_stands_still_while_a_thread_works() -> None:
    loop = asyncio.get_running_loop()
    before = loop.time()
    ticking = asyncio.ensure_future(asyncio.sleep(1))
    assert await asyncio.to_thread(lambda: time.sleep(0.05) or "done") == "done"
    assert loop.time() == before
    await ticking
    assert loop.time() == before + 1


async def test_a_thread_can_ask_the_loop_while_it_works() -> None:
    loop = asyncio.get_running_loop()

    async def answer():
        return "answer"

    def ask():
        return asyncio.run_coroutine_threadsafe(answer(), loop).result(5)

    assert await loop.run_in_executor(None, ask) == "answer"


def test_a_thread_that_never_ends_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual_time, "THREAD_PATIENCE_S", 0.05)
    release = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        loop = VirtualTimeLoop()
        try:
            with pytest.raises(VirtualTimeStall, match=r"a thread that is not done after 0\.05 s"):
                loop.run_until_complete(loop.run_in_executor(threads, release.wait))
        finally:
            release.set()
            loop.close()


@pytest.mark.parametrize("wait", [lambda: asyncio.sleep(0), lambda: asyncio.to_thread(int)], ids=["turn", "thread"])
def test_a_task_that_never_lets_time_pass_is_reported(
    monkeypatch: pytest.MonkeyPatch, wait: Callable[[], Coroutine[Any, Any, object]]
) -> None:
    monkeypatch.setattr(virtual_time, "MOMENT_PATIENCE_S", 0.05)

    async def spin() -> None:
        async with asyncio.timeout(1):
            for _ in itertools.count():
                await wait()

    told = r"time stands still: after 0\.05 s of work something is ready"
    with pytest.raises(VirtualTimeStall, match=told), asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(spin())


def test_much_work_is_no_stall_if_time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual_time, "MOMENT_PATIENCE_S", 0.2)

    async def work() -> None:
        began_s = time.thread_time()
        while time.thread_time() - began_s < 0.5:
            await asyncio.sleep(0)
            await asyncio.sleep(0.001)

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(work())


def test_a_runner_closes_where_threads_were_used() -> None:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        assert runner.run(asyncio.to_thread(threading.active_count)) >= 2
