"""Who gives a queue up waits for no further messages: what waits for its batch is handled, and the queue goes. So does
a shard that moves to another queue, and a re-striping comes to its end."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

from lbg_runtime.core.flow.events import HandBackRequested, MessageReceived
from lbg_runtime.core.restripe.gate import StripeGate
from lbg_runtime.core.restripe.records import (
    ShardMarker,
    StripeFinish,
    StripePlan,
    encode_record,
    record_prefix,
    record_topic,
)
from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.runtime.handlers.batches import Batch
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.runtime.handlers.resources import MemberResources
from lbg_runtime.testing import running
from tests.runtime.handlers.batch_desk import Desk, batch_handlers
from tests.runtime.scripted import STANDBY

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
    desk, queue = Desk(5), QueueName("orders/0")
    made = rig(handlers=batch_handlers(desk.handle, max_count=2, max_wait="10s"), dispatch={"runners": 1})
    async with MemberResources().entered(()), made.running():
        for number in range(3):
            made.dispatcher.dispatch(delivery(number, f"k{number}"))
        await asyncio.sleep(1)
        made.dispatcher.batch_turns.leave(queue, Epoch(1))
        await asyncio.sleep(1)
        made.dispatcher.batch_turns.stay(queue)
        await made.until_ended(3, within_s=60)
    assert [at_s for at_s, _ in desk.batches] == [0, 10]


async def test_a_queue_that_is_kept_after_all_gathers_its_batches_again(flow_trial, delivery):
    called, loop = [], asyncio.get_running_loop()

    async def handle(batch: Batch[int]) -> None:
        called.append((round(loop.time() - began_s), sorted(item.body for item in batch)))
        if len(called) == 1:
            # For longer than a queue may take to drain.
            await asyncio.sleep(100)

    handlers = batch_handlers(handle, max_count=100, max_wait="5m", timeout="1h")
    trial = flow_trial(None, handlers=handlers, place=STANDBY)
    async with MemberResources().entered(()), trial.running():
        await trial.activate()
        began_s = loop.time()
        trial.transport.sink(MessageReceived(delivery(1, "a")))
        await asyncio.sleep(10)
        trial.runner.post(HandBackRequested("m"))
        await asyncio.sleep(190)
        for number, key in enumerate("bc", 2):
            trial.transport.sink(MessageReceived(delivery(number, key)))
        await trial.transport.settled(2)
    assert called == [(10, [1]), (500, [2, 3])]


@asynccontextmanager
async def batching_flow(flow_trial, settings, delivery, called):
    """A flow whose batches are noted with their seconds; what its queue shows is up to the body."""
    plan, loop = StripePlan(1, 4, 8, "s3cr3t"), asyncio.get_running_loop()

    async def handle(batch: Batch[int]) -> None:
        called.append((round(loop.time() - began_s), sorted(item.body for item in batch)))

    gate = StripeGate(0, settings().group.shape(), record_prefix("control"))
    trial = flow_trial(None, handlers=batch_handlers(handle, max_count=100, max_wait="5m"), gate=gate)

    def show(number, key, *, shard=0, record=None):
        shown = delivery(number, key, topic=f"h/{shard}/orders/new")
        if record is not None:
            shown = replace(shown, message=encode_record(record, record_topic("control", plan)))
        trial.transport.sink(MessageReceived(shown))

    async with MemberResources().entered(()), trial.running():
        await trial.activate()
        began_s = loop.time()
        show(1, "", record=plan)
        yield trial, show


async def test_a_shard_that_moves_waits_for_no_batch_and_other_shards_do(flow_trial, settings, delivery):
    """Each of them waited for as long as a batch may, one after the other, and the new queue with all of its keys."""
    called = []
    async with batching_flow(flow_trial, settings, delivery, called) as (trial, show):
        show(2, "leaving", shard=4)
        show(3, "leaving", shard=4)
        await asyncio.sleep(10)
        show(4, "", record=ShardMarker(1, 4))
        await asyncio.sleep(10)
        show(5, "staying")
        show(6, "staying too")
        await trial.transport.settled(2)
    assert called == [(10, [2]), (10, [3]), (320, [5, 6])]


async def test_what_lies_before_the_finish_of_a_re_striping_waits_for_no_batch(flow_trial, settings, delivery):
    """The re-striping did not end before."""
    called = []
    async with batching_flow(flow_trial, settings, delivery, called) as (trial, show):
        show(2, "staying")
        show(3, "staying")
        await asyncio.sleep(10)
        show(4, "", record=StripeFinish(1, 4, 8))
        await asyncio.sleep(10)
        show(5, "staying")
        show(6, "staying too")
        await trial.transport.settled(2)
    assert called == [(10, [2]), (10, [3]), (320, [5, 6])]
