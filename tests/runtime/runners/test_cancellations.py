"""What handlers do to the task they run in, and what is left of it for the messages after them."""

import asyncio
import contextlib
import contextvars
import gc
import weakref

import pytest
from structlog.testing import capture_logs

from lbg_runtime.model.errors import InvariantViolated
from lbg_runtime.model.ids import Epoch
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.testing.virtual_time import VirtualTimeLoop
from tests.runtime.conftest import QUEUE

BACKOFF = {"failure": {"backoff": {"initial": "10ms", "maximum": "10ms"}}}
TENANT = contextvars.ContextVar("TENANT", default="nobody")


async def fail_in_a_moment():
    await asyncio.sleep(0.01)
    raise ValueError("a child failed")


async def group_fails():
    async with asyncio.TaskGroup() as group:
        group.create_task(fail_in_a_moment())


async def group_fails_unseen():
    try:
        await group_fails()
    except* ValueError:
        pass


async def cancel_itself():
    asyncio.current_task().cancel()
    await asyncio.sleep(1)


async def cancel_itself_and_return():
    asyncio.current_task().cancel()


async def cancel_itself_too_late():
    asyncio.get_running_loop().call_later(0.01, asyncio.current_task().cancel)


def once(deed, handled):
    """A handler that does the deed with the first message that it gets, once."""

    async def handle(message):
        handled.append(message.payload)
        if len(handled) == 1:
            await deed()
        await asyncio.sleep(0)

    return handle


@pytest.mark.parametrize(
    ("deed", "has_failed"),
    [
        (group_fails, True),
        (group_fails_unseen, False),
        (cancel_itself, True),
        (cancel_itself_and_return, True),
        (cancel_itself_too_late, False),
    ],
)
async def test_whatever_a_handler_does_to_its_task_its_message_ends_and_the_runner_goes_on(
    rig, delivery, deed, has_failed
):
    handled = []
    made = rig(once(deed, handled), dispatch={"runners": 1}, **BACKOFF)
    async with made.running():
        for number in (1, 2):
            made.dispatcher.dispatch(delivery(number, "a"))
        made.dispatcher.dispatch(delivery(3, "b"))
        await made.until_ended(3, within_s=5)
        await asyncio.sleep(1)
        made.dispatcher.dispatch(delivery(4, "c"))
        await made.until_ended(4, within_s=5)
    assert made.outcomes() == dict.fromkeys((1, 2, 3, 4), Outcome.ACCEPTED)
    assert made.dispatcher.counts.failed_attempts == has_failed
    assert [payload for payload in handled if payload in (b"1", b"2")] == [b"1"] * (1 + has_failed) + [b"2"]


async def test_a_runner_that_is_cancelled_just_when_it_is_woken_is_woken_again_later(rig, delivery):
    """By a handler of its own, which has ended."""

    def wake_and_cancel(runner):
        made.dispatcher.dispatch(delivery(2, "k2"))
        runner.cancel()

    async def handle(message):
        if message.key == "k1":
            asyncio.get_running_loop().call_later(0.01, wake_and_cancel, asyncio.current_task())

    made = rig(handle, dispatch={"runners": 1})
    async with made.running():
        made.dispatcher.dispatch(delivery(1, "k1"))
        await made.until_ended(2)
        made.dispatcher.dispatch(delivery(3, "k3"))
        await made.until_ended(3)


async def test_a_recall_in_the_moment_in_which_a_cancellation_is_taken_back_still_counts(rig, delivery):
    async def handle(message):
        asyncio.current_task().cancel()
        # Comes when the handler is out and its runner has not gone on yet.
        asyncio.get_running_loop().call_soon(made.dispatcher.cancel_handling, QUEUE, Epoch(1))

    made = rig(handle)
    async with made.running():
        made.dispatcher.dispatch(delivery(1))
        await made.until_ended(1, within_s=5)
    assert made.outcomes() == {1: None}


async def test_a_pool_whose_runner_fails_ends_although_handlers_swallow_that(rig, delivery):
    def fail(handling):
        # Nothing else should: a defect in what takes the ends.
        if handling.key == "ends":
            made.dispatcher.attach(QUEUE, made.ends.append)
            raise InvariantViolated("a defect")
        made.ends.append(handling)

    async def handle(message):
        if message.key == "ends":
            await asyncio.sleep(0.1)
            return
        try:
            await asyncio.sleep(1_000)
        except asyncio.CancelledError:
            return

    made = rig(handle)
    made.dispatcher.attach(QUEUE, fail)
    running = asyncio.ensure_future(made.dispatcher.run())
    await asyncio.sleep(0)
    for number, key in ((1, "a"), (2, "b"), (3, "ends")):
        made.dispatcher.dispatch(delivery(number, key))
    await asyncio.wait([running], timeout=5)
    assert isinstance(running.exception(), BaseExceptionGroup)
    assert made.outcomes() == dict.fromkeys((1, 2))


class NativePanic(BaseException):
    """As errors of some native libraries are: no `Exception`."""


@pytest.mark.parametrize("error", [NativePanic, GeneratorExit])
async def test_an_error_that_is_no_exception_fails_the_attempt_and_nothing_else(rig, delivery, error):
    async def panic():
        raise error("odd data")

    handled = []
    made = rig(once(panic, handled), **BACKOFF)
    async with made.running():
        made.dispatcher.dispatch(delivery(1))
        await made.until_ended(1, within_s=5)
    assert handled == [b"1", b"1"]
    assert made.outcomes() == {1: Outcome.ACCEPTED}


def test_a_handler_whose_coroutine_is_closed_has_not_failed(rig, delivery):
    async def handle(message):
        await asyncio.get_running_loop().create_future()

    made = rig(handle, **BACKOFF)
    made.dispatcher.dispatch(delivery(1))
    loop = VirtualTimeLoop()
    running = loop.create_task(made.dispatcher.run())
    with capture_logs() as logs:
        loop.run_until_complete(asyncio.sleep(1))
        runners = [task for task in asyncio.all_tasks(loop) if task.get_name() == "lbg-runner"]
        for runner in runners:
            # As Python does with what is left when a loop has ended.
            runner.get_coro().close()
    assert len(runners) > 1
    assert [line["event"] for line in logs] == []
    assert made.dispatcher.counts.failed_attempts == 0
    assert made.outcomes() == {}
    running.cancel()
    loop.run_until_complete(asyncio.wait([running]))
    assert running.exception() is not None
    loop.close()


async def test_a_handler_that_was_cancelled_twice_leaves_its_runner_as_good_as_new(rig, delivery):
    seen = []

    async def handle(message):
        seen.append((message.payload, asyncio.current_task().cancelling()))
        if message.payload == b"1":
            for _ in range(2):
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(1_000)

    made = rig(handle, dispatch={"runners": 1}, failure={"timeout": "10s"})
    async with made.running():
        made.dispatcher.dispatch(delivery(1))
        await asyncio.sleep(15)
        made.dispatcher.return_unstarted(QUEUE, Epoch(1))
        made.dispatcher.cancel_handling(QUEUE, Epoch(1))
        made.dispatcher.dispatch(delivery(2, epoch=2))
        await made.until_ended(2, within_s=5)
    assert seen == [(b"1", 0), (b"2", 0)]


async def test_the_next_message_of_a_runner_sees_no_context_of_the_last(rig, delivery):
    seen = []

    async def handle(message):
        seen.append(TENANT.get())
        TENANT.set(message.key)
        await asyncio.sleep(0)
        assert TENANT.get() == message.key

    made = rig(handle, dispatch={"runners": 2})
    async with made.running():
        for number in range(20):
            made.dispatcher.dispatch(delivery(number, f"k{number % 5}"))
        await made.until_ended(20, within_s=5)
        assert sum(task.get_name() == "lbg-runner" for task in asyncio.all_tasks()) == 2
    assert seen == ["nobody"] * 20


async def test_nothing_is_kept_of_a_runner_whose_context_a_handler_has_changed(rig, delivery):
    """Where each handler sets something, each message has a runner of its own."""
    runners = weakref.WeakSet()

    async def handle(message):
        runners.add(asyncio.current_task())
        TENANT.set(message.key)

    made = rig(handle, dispatch={"runners": 1})
    async with made.running():
        for number in range(20):
            made.dispatcher.dispatch(delivery(number, "k"))
        await made.until_ended(20, within_s=5)
        await asyncio.sleep(1)
        gc.collect()
        assert not runners


async def test_values_that_refuse_to_be_compared_are_no_values_of_the_next(rig, delivery):
    class Incomparable:
        def __eq__(self, other):
            raise ValueError("which elements?")

        __hash__ = None

    value = contextvars.ContextVar("value")
    outer, seen = Incomparable(), []
    value.set(outer)

    async def handle(message):
        seen.append(value.get() is outer)
        value.set(Incomparable())

    made = rig(handle, dispatch={"runners": 1})
    async with made.running():
        for number in range(3):
            made.dispatcher.dispatch(delivery(number))
        await made.until_ended(3, within_s=5)
    assert seen == [True] * 3


async def test_a_failed_attempt_leaves_nothing_for_the_collector_of_garbage(rig, delivery):
    class Held:
        pass

    held = []

    async def handle(message):
        local = Held()
        held.append(weakref.ref(local))
        if len(held) == 1:
            raise ValueError("with a frame that holds a local variable")

    made = rig(handle, **BACKOFF)
    gc.collect()
    gc.disable()
    try:
        with capture_logs() as logs:
            async with made.running():
                made.dispatcher.dispatch(delivery(1))
                await made.until_ended(1, within_s=5)
        # The error itself is among them.
        logs.clear()
        assert [reference() for reference in held] == [None, None]
    finally:
        gc.enable()
