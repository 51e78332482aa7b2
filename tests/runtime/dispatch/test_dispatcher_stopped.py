"""A queue that is stopped as attempts have ended: its message stays, other queues and the next handle go on."""

import asyncio
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from lbg_runtime.model.errors import TerminalFailure
from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.testing.group_context import running

QUEUE = QueueName("orders/0")
BACKOFF = {"backoff": {"initial": "100ms", "maximum": "1s"}}
STOP = {"failure": {"attempts": 2, "then": "stop", **BACKOFF}}


async def _fail(message):
    if message.key == "bad":
        raise ValueError("never")


async def test_a_stopped_queue_starts_nothing_more_finishes_what_runs_and_keeps_the_message(rig, delivery):
    started, may_end = [], asyncio.Event()

    async def handle(message):
        started.append(message.payload)
        if message.key == "bad":
            raise ValueError("never")
        await may_end.wait()

    made = rig(handle, **STOP)
    with capture_logs() as logs:
        async with made.running():
            made.dispatcher.dispatch(delivery(1, "slow"))
            made.dispatcher.dispatch(delivery(2, "slow"))
            made.dispatcher.dispatch(delivery(3, "bad"))
            await asyncio.sleep(10)
            made.dispatcher.dispatch(delivery(4, "new"))
            may_end.set()
            await asyncio.sleep(1_000)
            assert made.outcomes() == {1: Outcome.ACCEPTED}
            assert started == [b"1", b"3", b"3"]
    assert [log["log_level"] for log in logs if log["event"] == "queue_stopped"] == ["error"]
    assert made.dispatcher.counts.stops == 1
    assert made.outcomes() == {1: Outcome.ACCEPTED, 2: None, 3: None, 4: None}


async def test_another_queue_goes_on(rig, delivery):
    made = rig(_fail, **STOP)
    other = QueueName("orders/1")
    made.dispatcher.attach(other, made._take)
    async with made.running():
        made.dispatcher.dispatch(delivery(1, "bad"))
        await asyncio.sleep(10)
        made.dispatcher.dispatch(replace(delivery(2, "b"), queue=other))
        await made.until_ended(1)
    assert made.outcomes() == {1: None, 2: Outcome.ACCEPTED}


async def test_a_new_handle_starts_afresh(rig, delivery):
    is_mended = False

    async def handle(message):
        if not is_mended:
            raise ValueError("not yet")

    made = rig(handle, **STOP)
    async with made.running():
        made.dispatcher.dispatch(delivery(1, "a", epoch=1))
        made.dispatcher.dispatch(delivery(2, "b", epoch=1))
        await asyncio.sleep(10)
        made.dispatcher.return_unstarted(QUEUE, Epoch(1))
        assert made.outcomes() == {1: None, 2: None}
        is_mended = True
        made.dispatcher.dispatch(delivery(3, "a", epoch=2))
        made.dispatcher.dispatch(delivery(4, "b", epoch=2))
        await made.until_ended(4, within_s=1)
    assert made.outcomes() == {1: None, 2: None, 3: Outcome.ACCEPTED, 4: Outcome.ACCEPTED}


async def test_a_failure_of_a_handle_that_is_gone_stops_nothing(rig, delivery):
    may_fail = asyncio.Event()

    async def handle(message):
        if message.payload == b"1":
            await may_fail.wait()
            raise TerminalFailure("never")

    made = rig(handle, **STOP)
    async with made.running():
        made.dispatcher.dispatch(delivery(1, epoch=1))
        await asyncio.sleep(1)
        made.dispatcher.return_unstarted(QUEUE, Epoch(1))
        made.dispatcher.dispatch(delivery(2, epoch=2))
        may_fail.set()
        await made.until_ended(2, within_s=1)
    assert made.outcomes() == {1: None, 2: Outcome.ACCEPTED}
    assert made.dispatcher.counts.stops == 0


async def test_what_is_held_is_told_to_those_who_ask(rig, delivery):
    made = rig(_fail, **STOP)
    async with made.running():
        made.dispatcher.dispatch(delivery(1, "bad"))
        made.dispatcher.dispatch(delivery(2, "bad"))
        await asyncio.sleep(10)
        sight = made.dispatcher.look("bad")
    assert (sight.stage.value, sight.retry_at_ms, sight.waiting, sight.head.attempts) == ("delayed", None, 1, 2)


async def test_a_handler_is_not_called_by_a_middleware_that_waits_when_the_queue_stops(rig, delivery):
    called, may_go_on, handlers = [], asyncio.Event(), Handlers()

    @handlers.middleware
    async def wait(message, proceed):
        if message.key != "bad":
            await may_go_on.wait()
        await proceed(message)

    @handlers.handler("orders/>")
    async def handle(message):
        called.append(message.key)
        await _fail(message)

    made = rig(handlers=handlers.assembled(), **STOP)
    async with made.running():
        made.dispatcher.dispatch(delivery(1, "slow"))
        made.dispatcher.dispatch(delivery(2, "bad"))
        await asyncio.sleep(10)
        may_go_on.set()
        await asyncio.sleep(10)
        assert made.outcomes() == {}
        assert made.dispatcher.look("slow").head.attempts == 0
    assert called == ["bad", "bad"]


@pytest.mark.parametrize("takes_s", [0, 12])
async def test_a_member_that_leaves_does_not_wait_for_what_its_stopped_queue_holds(takes_s):
    """To restart it is what ends the stop. What still runs, of whichever queue, is waited for as ever."""
    handlers = Handlers()

    @handlers.handler("orders/>")
    async def handle(message):
        if message.key == "bad":
            raise ValueError("never")
        await asyncio.sleep(takes_s)

    settings = {"failure": {"attempts": 1, "then": "stop"}, "rebind": {"drain_timeout": "30s"}}
    async with running(handlers, settings=settings) as group:
        await group.publish("orders/new", "1", "2", key="bad")
        await group.publish("orders/new", "1", key="good")
        await group.advance(5)
        began_s = asyncio.get_running_loop().time()
        report = await group.stop("member-0")
        took_s = asyncio.get_running_loop().time() - began_s
    assert max(0, takes_s - 5) <= took_s <= max(0, takes_s - 5) + 1.5
    assert (report.left_behind, report.still_bound) == (2, 0)
    assert len(group.handled("good")) == 1


async def test_hooks_of_all_its_queues_end_before_it_leaves_without_what_the_stopped_one_holds():
    handlers, revoked = Handlers(), []

    @handlers.handler("orders/>")
    async def handle(message):
        raise ValueError("never")

    @handlers.on_revoked
    async def save(queue: QueueName, epoch: Epoch) -> None:
        await asyncio.sleep(15)
        revoked.append(queue)

    settings = {"failure": {"attempts": 1, "then": "stop"}, "rebind": {"drain_timeout": "60s"}}
    async with running(handlers, settings=settings) as group:
        await group.publish("orders/new", "1", key="bad")
        await group.advance(5)
        began_s = asyncio.get_running_loop().time()
        await group.stop("member-0")
        took_s = asyncio.get_running_loop().time() - began_s
    assert len(revoked) == 4
    assert took_s < 30


async def test_a_handle_stays_stopped_when_what_an_older_one_held_is_taken_back(rig):
    made = rig(_fail)
    made.dispatcher.stop(QUEUE, Epoch(2))
    made.dispatcher.return_unstarted(QUEUE, Epoch(1))
    assert made.dispatcher.is_stopped(QUEUE, Epoch(2))
    made.dispatcher.return_unstarted(QUEUE, Epoch(2))
    assert not made.dispatcher.is_stopped(QUEUE, Epoch(2))
