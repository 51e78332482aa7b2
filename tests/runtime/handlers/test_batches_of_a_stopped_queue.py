"""What waits for its batch has not started, so a queue that stops does not start it."""

import asyncio

from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.model.message import Message
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.runtime.handlers.batches import Batch
from lbg_runtime.runtime.handlers.middleware import Proceed
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.runtime.handlers.resources import MemberResources

QUEUE = QueueName("orders/0")


def stopping(batches):
    """Handlers of batches, beside one of which any message stops its queue."""
    handlers = Handlers()

    @handlers.batch_handler("orders/>", max_count=3, max_wait="10s")
    async def on_orders(batch: Batch) -> None:
        batches.append([item.body for item in batch])
        await asyncio.sleep(2)

    @handlers.handler("bills/>", attempts=1, then="stop")
    async def on_bill(message):
        raise ValueError("never")

    return handlers


def bill(delivery, number):
    return delivery(number, "bad", topic="h/0/bills/new")


async def test_a_batch_is_not_called_with_what_waits_when_the_queue_stops(rig, delivery):
    batches = []
    made = rig(handlers=stopping(batches))
    async with MemberResources().entered(()), made.running():
        for number in range(3):
            made.dispatcher.dispatch(delivery(number + 1, f"k{number}"))
        await asyncio.sleep(1)
        made.dispatcher.dispatch(delivery(4, "k4"))
        made.dispatcher.dispatch(bill(delivery, 5))
        await asyncio.sleep(100)
        assert made.dispatcher.is_stopped(QUEUE, Epoch(1))
        assert made.outcomes() == dict.fromkeys((1, 2, 3), Outcome.ACCEPTED), "what runs ends, and what waits is held"
        made.dispatcher.return_unstarted(QUEUE, Epoch(1))
        await made.until_ended(5)
    assert batches == [[b"1", b"2", b"3"]]
    assert [end.attempts for end in made.ends if end.delivery.delivery_id == 4] == [0]
    assert made.dispatcher.counts.failed_attempts == 1, "which is that of the bill"


async def test_nor_with_what_middleware_lets_through_to_it_behind_the_stop(rig, delivery):
    batches = []
    handlers = stopping(batches)

    @handlers.middleware
    async def slowly(message: Message, proceed: Proceed) -> None:
        await asyncio.sleep(1 if message.key == "bad" else 3)
        await proceed(message)

    made = rig(handlers=handlers.assembled())
    async with MemberResources().entered(()), made.running():
        made.dispatcher.dispatch(delivery(1, "k1"))
        made.dispatcher.dispatch(bill(delivery, 2))
        await asyncio.sleep(100)
        assert made.dispatcher.is_stopped(QUEUE, Epoch(1))
        assert (batches, made.outcomes()) == ([], {})
        made.dispatcher.return_unstarted(QUEUE, Epoch(1))
        await made.until_ended(2)
