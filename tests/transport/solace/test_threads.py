"""Blocking calls run to their end whatever happens to who waits for them."""

import asyncio
import threading

import anyio
import pytest

from lbg_runtime.transport.solace.threads import ControlThreads
from tests.patience import PATIENCE_S
from tests.transport.solace.steps import eventually, refuse_threads_after

pytestmark = pytest.mark.real_time


async def test_run_returns_what_the_call_returns_and_raises_what_it_raises() -> None:
    threads = ControlThreads()
    assert await threads.run(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await threads.run(divmod, 7, 0)
    await threads.close()


async def test_a_cancelled_run_ends_with_the_call_and_not_before() -> None:
    threads = ControlThreads()
    proceed, ended = threading.Event(), threading.Event()

    def call() -> None:
        proceed.wait(PATIENCE_S)
        ended.set()

    running = asyncio.ensure_future(threads.run(call))
    for _ in range(3):
        await asyncio.sleep(0)
        running.cancel()
    await asyncio.sleep(0)
    assert not running.done()
    proceed.set()
    await asyncio.wait([running])
    assert running.cancelled()
    assert ended.is_set()
    await threads.close()


async def test_a_cancelled_scope_of_anyio_does_not_cut_a_run_short() -> None:
    threads = ControlThreads()
    proceed, ended = threading.Event(), threading.Event()

    def call() -> None:
        proceed.wait(PATIENCE_S)
        ended.set()

    loop = asyncio.get_running_loop()
    with anyio.CancelScope() as scope:
        scope.cancel()
        loop.call_soon(proceed.set)
        await threads.run(call)
        await anyio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert ended.is_set()
    await threads.close()


async def test_closing_waits_for_what_was_begun() -> None:
    threads = ControlThreads()
    proceed = threading.Event()
    begun = threads.begin(proceed.wait, 10)
    closing = asyncio.ensure_future(threads.close())
    await asyncio.sleep(0)
    assert not closing.done()
    proceed.set()
    await closing
    assert begun.done()


async def test_what_is_begun_after_the_start_needs_no_thread_that_the_system_might_refuse(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A call that was refused was made nevertheless, later, when nobody expected it any more."""
    threads = ControlThreads(3)
    threads.start()
    refuse_threads_after(0, monkeypatch)
    together = threading.Barrier(3)
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*(threads.begin(together.wait, 10) for _ in range(3)))
    await threads.close()


async def test_a_start_that_is_refused_can_be_made_again_and_is_whole_then(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, others = ControlThreads(3), set(threading.enumerate())
    with monkeypatch.context() as refusing:
        refuse_threads_after(2, refusing)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            threads.start()
    started = set(threading.enumerate()) - others
    # With those that it did start, the pool would count more as idle than there are (Python 3.11).
    await eventually(lambda: not any(thread.is_alive() for thread in started))
    threads.start()
    refuse_threads_after(0, monkeypatch)
    together = threading.Barrier(3)
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*(threads.begin(together.wait, 10) for _ in range(3)))
    await threads.close()
