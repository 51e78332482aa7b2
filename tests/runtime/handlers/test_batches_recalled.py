"""Batches whose queue goes away: in the line, before the handler is called, and while it runs."""

import asyncio
import contextlib
import gc

import pytest

from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.model.message import Message
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.runtime.dispatch.dispatcher import Dispatcher
from lbg_runtime.runtime.handlers.middleware import Proceed
from lbg_runtime.runtime.handlers.resources import MemberResources
from tests.runtime.handlers.batch_desk import Desk, batch_handlers

QUEUE = QueueName("orders/0")


async def test_a_recall_cuts_the_batch_short_settles_nothing_of_it_and_the_others_go_on(rig, delivery):
    desk = Desk()

    async def act(batch):
        if len(desk.batches) == 1:
            await asyncio.sleep(1_000_000)

    desk.act = act
    made = rig(handlers=batch_handlers(desk.handle, timeout="1h"))
    async with MemberResources().entered(()), made.running():
        for number in range(3):
            made.dispatcher.dispatch(delivery(number, f"k{number}", epoch=1 + number // 2))
        await asyncio.sleep(1)
        made.dispatcher.cancel_handling(QUEUE, Epoch(1))
        await made.until_ended(3, within_s=10)
    assert made.outcomes() == {0: None, 1: None, 2: Outcome.ACCEPTED}


async def test_a_batch_that_is_cut_short_and_returns_as_if_it_were_not_is_not_believed(rig, delivery):
    """Those that were not recalled are handled once more: better twice than lost."""
    desk = Desk()

    async def act(batch):
        if len(desk.batches) == 1:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1_000_000)

    desk.act = act
    made = rig(handlers=batch_handlers(desk.handle, max_count=2, timeout="1h"))
    async with MemberResources().entered(()), made.running():
        made.dispatcher.dispatch(delivery(1, "a", epoch=1))
        made.dispatcher.dispatch(delivery(2, "b", epoch=2))
        await asyncio.sleep(1)
        made.dispatcher.cancel_handling(QUEUE, Epoch(1))
        await made.until_ended(2)
    assert made.outcomes() == {1: None, 2: Outcome.ACCEPTED}
    assert [bodies for _, bodies in desk.batches] == [[1, 2], [2]]


async def test_a_batch_may_be_cut_short_before_it_has_begun(rig, delivery):
    desk = Desk()
    made = rig(handlers=batch_handlers(desk.handle, max_count=2))
    async with MemberResources().entered(()), made.running():
        made.dispatcher.dispatch(delivery(1, "a", epoch=1))
        await asyncio.sleep(0.1)
        # In one turn of the loop the second one fills the batch, and the first one is recalled.
        made.dispatcher.dispatch(delivery(2, "b", epoch=2))
        made.dispatcher.cancel_handling(QUEUE, Epoch(1))
        await made.until_ended(2)
    assert made.outcomes() == {1: None, 2: Outcome.ACCEPTED}
    assert [bodies for _, bodies in desk.batches] == [[2]]
    assert made.dispatcher.counts.failed_attempts == 0, "its handler was not called"
    # Or it would be told of as a coroutine that nobody awaited.
    gc.collect()


async def test_who_is_recalled_as_the_batch_falls_due_takes_nobody_along(rig, delivery):
    desk = Desk()
    made = rig(handlers=batch_handlers(desk.handle))
    async with MemberResources().entered(()), made.running():
        # Before the timer of the line, in the same turn of the loop.
        desk.loop.call_at(desk.loop.time() + 1, made.dispatcher.cancel_handling, QUEUE, Epoch(1))
        made.dispatcher.dispatch(delivery(1, "a", epoch=1))
        made.dispatcher.dispatch(delivery(2, "b", epoch=2))
        await made.until_ended(2)
    assert made.outcomes() == {1: None, 2: Outcome.ACCEPTED}
    assert desk.batches == [(1.0, [2])]
    assert made.dispatcher.counts.failed_attempts == 0


async def test_a_line_of_which_all_are_recalled_has_no_batch(rig, delivery):
    desk = Desk()
    made = rig(handlers=batch_handlers(desk.handle, max_count=2))
    async with MemberResources().entered(()), made.running():
        desk.loop.call_at(desk.loop.time() + 1, made.dispatcher.cancel_handling, QUEUE, Epoch(1))
        made.dispatcher.dispatch(delivery(1, "a", epoch=1))
        await made.until_ended(1)
        made.dispatcher.dispatch(delivery(2, "b", epoch=2))
        made.dispatcher.dispatch(delivery(3, "c", epoch=2))
        await made.until_ended(3)
    assert made.outcomes() == {1: None, 2: Outcome.ACCEPTED, 3: Outcome.ACCEPTED}
    assert desk.batches == [(1.0, [2, 3])]


@pytest.mark.parametrize("take_back", [Dispatcher.cancel_handling, Dispatcher.return_unstarted])
async def test_a_message_that_is_recalled_in_line_leaves_it(rig, delivery, take_back):
    """Also if its flow is lost, as others may be further on with its key by then."""
    desk = Desk()
    made = rig(handlers=batch_handlers(desk.handle))
    async with MemberResources().entered(()), made.running():
        made.dispatcher.dispatch(delivery(1, "a", epoch=1))
        made.dispatcher.dispatch(delivery(2, "b", epoch=2))
        await asyncio.sleep(0.5)
        take_back(made.dispatcher, QUEUE, Epoch(1))
        await made.until_ended(2)
    assert made.outcomes() == {1: None, 2: Outcome.ACCEPTED}
    assert desk.batches == [(1.0, [2])]
    assert [handling.attempts for handling in made.ends] == [0, 1], "what was not called has not been tried"


async def test_a_message_that_middleware_shields_leaves_its_line_when_the_batch_falls_due(rig, delivery):
    """Its cancellation does not get there, so nothing else would end it."""
    desk = Desk()
    handlers = batch_handlers(desk.handle)

    @handlers.middleware
    async def shield(message: Message, proceed: Proceed) -> None:
        await asyncio.shield(proceed(message))

    made = rig(handlers=handlers.assembled())
    async with MemberResources().entered(()), made.running():
        made.dispatcher.dispatch(delivery(1, "a", epoch=1))
        made.dispatcher.dispatch(delivery(2, "b", epoch=2))
        await asyncio.sleep(0.5)
        made.dispatcher.return_unstarted(QUEUE, Epoch(1))
        await made.until_ended(2, within_s=10)
    assert made.outcomes() == {1: None, 2: Outcome.ACCEPTED}
    assert desk.batches == [(1.0, [2])]
    assert made.dispatcher.counts.failed_attempts == 0


async def test_a_batch_that_is_being_handled_when_its_flow_is_lost_goes_on(rig, delivery):
    desk = Desk(10)
    made = rig(handlers=batch_handlers(desk.handle))
    async with MemberResources().entered(()), made.running():
        made.dispatcher.dispatch(delivery(1, "a"))
        await asyncio.sleep(5)
        made.dispatcher.return_unstarted(QUEUE, Epoch(1))
        await made.until_ended(1)
    assert made.outcomes() == {1: Outcome.ACCEPTED}
