"""Who gives a queue up waits for no further messages: what waits for its batch is handled, and the queue goes."""

import asyncio

from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.runtime.handlers.batches import Batch
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.runtime.handlers.resources import MemberResources
from lbg_runtime.testing import running
from tests.runtime.handlers.batch_desk import Desk, batch_handlers

KEYS = [f"k{number}" for number in range(8)]


def batching(called):
    """Handlers that would wait for their batch for longer than a queue may take to drain."""
    handlers = Handlers()

    @handlers.batch_handler("orders/>", max_count=100, max_wait="5m")
    async def on_orders(orders: Batch) -> None:
        called.append(len(orders))

    return handlers


async def test_a_member_that_leaves_handles_what_waits_for_its_batch() -> None:
    called = []
    async with running(batching(called), members=1) as group:
        for key in KEYS:
            await group.publish("orders/new", "1", key=key)
        await group.advance(1)
        report = await group.stop("member-0")
        assert report.is_clean
        assert sum(called) == len(KEYS)


async def test_a_member_that_joins_gets_its_queues_though_their_messages_wait_for_a_batch() -> None:
    called = []
    async with running(batching(called), members=1) as group:
        for key in KEYS:
            await group.publish("orders/new", "1", key=key)
        await group.advance(1)
        group.start("late")
        await group.balanced()
        assert 0 < sum(called) <= len(KEYS)
        await group.settled(600)
        assert not any(each.redelivered for each in group.handled())


async def test_what_waits_for_a_turn_when_its_queue_is_kept_after_all_is_handled_in_its_time(rig, delivery):
    desk, queue = Desk(), QueueName("orders/0")

    async def act(batch):
        await asyncio.sleep(5)

    desk.act = act
    made = rig(handlers=batch_handlers(desk.handle, max_count=2, max_wait="10s"), dispatch={"runners": 1})
    async with MemberResources().entered(()), made.running():
        for number in range(3):
            made.dispatcher.dispatch(delivery(number, f"k{number}"))
        await asyncio.sleep(1)
        made.dispatcher.hurry(queue, Epoch(1))
        await asyncio.sleep(1)
        made.dispatcher.hurry_no_more(queue)
        await made.until_ended(3, within_s=60)
    assert [at_s for at_s, _ in desk.batches] == [0, 10]
