"""Handlers that are no coroutines: on threads, with the loop free, and their keys kept in order all the same."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.model.message import Message
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.runtime.handlers.resources import MemberResources, call_in_thread
from lbg_runtime.runtime.runners.handling import CURRENT_HANDLING
from lbg_runtime.runtime.runners.pool import RunnerPool
from tests.patience import PATIENCE_S

QUEUE = QueueName("orders/0")


async def test_a_plain_function_runs_on_a_thread_of_its_own_and_knows_its_message(rig, delivery):
    seen = []

    def handle(message: Message, body: int) -> None:
        seen.append((body, threading.current_thread().name, CURRENT_HANDLING.get().key))

    made = rig(handle)
    async with MemberResources(thread_count=4).entered(()), made.running():
        for number in range(20):
            made.dispatcher.dispatch(delivery(number, f"k{number % 3}"))
        await made.until_ended(20)
    assert set(made.outcomes().values()) == {Outcome.ACCEPTED}
    for key in range(3):
        assert [body for body, _, of_key in seen if of_key == f"k{key}"] == list(range(key, 20, 3))
    assert all(name.startswith("lbg-handler") for _, name, _ in seen)
    assert not any(thread.name.startswith("lbg-handler") and thread.is_alive() for thread in threading.enumerate()) or (
        await asyncio.to_thread(_until_gone)
    )


def _until_gone():
    deadline = time.monotonic() + PATIENCE_S
    while any(thread.name.startswith("lbg-handler") for thread in threading.enumerate()):
        assert time.monotonic() < deadline, "the threads outlive their member"
        time.sleep(0.01)
    return True


async def test_what_it_raises_fails_the_attempt(rig, delivery):
    calls = []

    def handle(message):
        calls.append(message.payload)
        if len(calls) == 1:
            raise ValueError("not yet")

    made = rig(handle)
    async with made.running():
        await made.handle(delivery(1))
    assert calls == [b"1", b"1"]


@pytest.mark.real_time
async def test_a_thread_is_waited_for_although_its_time_is_over_and_the_key_with_it(rig, delivery, monkeypatch):
    release, running, log = threading.Event(), [], []

    def handle(message):
        running.append(message.payload)
        assert len(running) == 1, "two handlings of a key overlap"
        log.append(message.payload)
        if len(log) == 1:
            assert release.wait(PATIENCE_S)
        running.pop()

    made = rig(handle, dispatch={"runners": 2}, failure={"timeout": "50ms", "backoff": {"initial": "1ms"}})
    is_replaced = asyncio.Event()
    monkeypatch.setattr(RunnerPool, "stand_in", lambda _: is_replaced.set())
    async with made.running():
        made.dispatcher.dispatch(delivery(1))
        made.dispatcher.dispatch(delivery(2))
        await is_replaced.wait()
        assert made.ends == []
        release.set()
        await made.until_ended(2, within_s=PATIENCE_S)
    # On a busy machine, what is quick takes too long as well, and is tried again.
    assert log == sorted(log)
    assert log.count(b"1") >= 2, "not believed the first time"


@pytest.mark.real_time
async def test_a_recalled_thread_settles_nothing_and_its_key_waits_for_it(rig, delivery):
    release, began, order = threading.Event(), asyncio.Event(), []
    loop = asyncio.get_running_loop()

    def handle(message):
        loop.call_soon_threadsafe(began.set)
        if message.payload == b"1":
            assert release.wait(PATIENCE_S)
        order.append(message.payload)

    made = rig(handle)
    async with made.running():
        made.dispatcher.dispatch(delivery(1, epoch=1))
        await began.wait()
        made.dispatcher.cancel_handling(QUEUE, Epoch(1))
        made.dispatcher.dispatch(delivery(2, epoch=2))
        await asyncio.sleep(0.05)
        assert made.ends == []
        release.set()
        await made.until_ended(2, within_s=PATIENCE_S)
    assert order == [b"1", b"2"]
    assert made.outcomes() == {1: None, 2: Outcome.ACCEPTED}


@pytest.mark.real_time
async def test_a_call_that_waits_for_a_thread_is_given_up_at_once():
    release, made = threading.Event(), []
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    async with MemberResources().entered(()):
        first = asyncio.ensure_future(call_in_thread(lambda: release.wait(PATIENCE_S)))
        await asyncio.sleep(0)
        second = asyncio.ensure_future(call_in_thread(lambda: made.append("second")))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait([second], timeout=PATIENCE_S)
        assert second.cancelled()
        release.set()
        assert await first
        assert await call_in_thread(lambda: "third") == "third"
    assert made == []


@pytest.mark.real_time
async def test_a_call_that_raises_stop_iteration_ends_all_the_same():
    async with MemberResources(thread_count=1).entered(()), asyncio.timeout(PATIENCE_S):
        with pytest.raises(RuntimeError, match="the call raised StopIteration"):
            await call_in_thread(lambda: next(iter([])))


@pytest.mark.real_time
async def test_threads_that_hang_keep_no_other_key_from_its_handler(rig, delivery):
    release, handled = threading.Event(), []

    def handle(message):
        if message.key.startswith("hang"):
            assert release.wait(PATIENCE_S)
        else:
            handled.append(message.key)

    # Long enough for what is quick on a busy machine.
    failure = {"timeout": "2s", "attempts": 2, "then": "error_queue", "backoff": {"initial": "1ms"}}
    made = rig(handle, dispatch={"runners": 2}, failure=failure, error_queue=object())
    async with MemberResources(thread_count=2).entered(()), made.running():
        for number, key in enumerate(("hang1", "hang2", "a", "b", "c", "d")):
            made.dispatcher.dispatch(delivery(number, key))
        await made.until_ended(4, within_s=PATIENCE_S)
        assert sorted(handled) == ["a", "b", "c", "d"]
        assert [(end.outcome, end.attempts) for end in made.ends] == [(Outcome.ACCEPTED, 1)] * 4
        release.set()
        # Not believed the first time, and quick the second.
        await made.until_ended(6, within_s=PATIENCE_S)


@pytest.mark.real_time
async def test_of_the_threads_that_a_burst_needs_only_so_many_are_kept():
    resources, release = MemberResources(thread_count=2), threading.Event()
    async with resources.entered(()), asyncio.timeout(PATIENCE_S):
        calls = [asyncio.ensure_future(call_in_thread(lambda: release.wait(PATIENCE_S))) for _ in range(5)]
        names = [f"lbg-handler-{number}_0" for number in range(5)]
        while not {*names} <= {thread.name for thread in threading.enumerate()}:  # noqa: ASYNC110 - of other threads
            await asyncio.sleep(0.001)
        release.set()
        assert all(await asyncio.gather(*calls))
        while len(left := {*names} & {thread.name for thread in threading.enumerate()}) > 2:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.001)
        assert await call_in_thread(lambda: threading.current_thread().name) in left
    assert await asyncio.to_thread(_until_gone)


@pytest.mark.real_time
async def test_an_answer_without_an_end_is_read_no_further_when_its_time_is_over(rig, delivery):
    """Else it would keep its thread and its key for ever, and fill the memory. Of it, nothing is published."""
    over, begun, closed = threading.Event(), [], []

    def handle(message):
        begun.append(message.payload)
        try:
            # The test itself must end.
            while len(begun) == 1 and not over.wait(0.001):
                yield Message("priced/new", b"")
        finally:
            closed.append(len(begun))

    made = rig(handle, failure={"timeout": "50ms", "backoff": {"initial": "1ms"}})
    # Nobody is there to publish anything: the second attempt has nothing to publish.
    async with MemberResources(_NoMessenger(), thread_count=1).entered(()), made.running():
        made.dispatcher.dispatch(delivery(1))
        try:
            await made.until_ended(1, within_s=PATIENCE_S)
        finally:
            over.set()
    # On a busy machine, what is quick takes too long as well, and is tried again.
    assert begun == [b"1"] * made.ends[0].attempts
    assert closed == list(range(1, len(begun) + 1)), "each is over before the next of its key begins"
    assert len(begun) >= 2


class _NoMessenger:
    def send(self, message):
        raise AssertionError(f"published: {message}")
