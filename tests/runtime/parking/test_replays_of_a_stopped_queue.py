"""A stopped queue starts nothing more, replays included; what is asked for meanwhile is done by who begins afresh."""

from lbg_runtime.runtime.handlers.batches import Batch
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.testing.group_context import running
from tests.runtime.parking.poisoned import parked

SETTINGS = {"group": {"queue_count": 1, "hash_count": 4}, "rebind": {"drain_timeout": "5s"}}


async def test_what_is_unparked_while_its_queue_is_stopped_is_replayed_when_the_queue_begins_afresh() -> None:
    handlers, state = Handlers(), {"is_mended": False}

    @handlers.handler("orders/>", attempts=1, then="park")
    async def on_order(message):
        if not state["is_mended"]:
            raise ValueError("poison")

    @handlers.handler("bills/>", attempts=1, then="stop")
    async def on_bill(message):
        if not state["is_mended"]:
            raise ValueError("poison")

    async with running(handlers, members=1, settings=SETTINGS) as group:
        await group.publish("orders/new", "1", "2", key="a")
        await group.until(lambda: len(parked(group)) == 2)
        await group.publish("bills/new", "1", key="b")
        await group.until(lambda: bool(group.attempts("b")))
        state["is_mended"] = True
        await group.unpark("a")
        await group.advance(60)
        assert (group.handled(), len(parked(group))) == ([], 2), "nothing more of the queue is started"
        report = await group.stop("member-0")
        group.start("member-0")
        await group.until(lambda: not group.parked())
        await group.settled()
        group.assert_handled({"a": ["1", "2"], "b": ["1"]})
    assert report.left_behind == 1, "the one that it had stopped at"


async def test_a_replay_that_waits_for_its_batch_when_the_queue_stops_is_not_started() -> None:
    handlers, called, state = Handlers(), [], {"is_mended": False}

    @handlers.batch_handler("orders/>", max_count=2, max_wait="5s", attempts=1, then="park")
    async def on_orders(orders: Batch) -> None:
        called.append(len(orders))
        if not state["is_mended"]:
            raise ValueError("poison")

    @handlers.handler("bills/>", attempts=1, then="stop")
    async def on_bill(message):
        raise ValueError("poison")

    async with running(handlers, members=1, settings=SETTINGS) as group:
        await group.publish("orders/new", "1", key="a")
        await group.until(lambda: bool(parked(group)))
        state["is_mended"] = True
        await group.unpark("a")
        await group.advance(1)
        await group.publish("bills/new", "1", key="b")
        await group.advance(60)
        assert (called, len(parked(group))) == ([1], 1)
