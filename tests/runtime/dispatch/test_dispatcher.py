"""A delivery from dispatch to its one end: order per key, failures, time, cancellation."""

import asyncio
import itertools

from structlog.testing import capture_logs

from lbg_runtime.model.outcome import Outcome
from lbg_runtime.runtime.handlers.registry import Handlers

BACKOFF = {"failure": {"timeout": "10s", "backoff": {"initial": "100ms", "maximum": "5s"}}}


async def test_a_delivery_is_accepted_when_its_handler_returns(rig, delivery):
    seen = []

    async def handle(message):
        seen.append(message.payload)

    made = rig(handle)
    async with made.running():
        await made.handle(delivery(1))
    assert made.outcomes() == {1: Outcome.ACCEPTED}
    assert seen == [b"1"]
    assert made.ends[0].attempts == 1
    assert made.ends[0].shard == 0
    assert made.ends[0].topic == "orders/new"


async def test_one_key_is_handled_in_order_and_other_keys_meanwhile(rig, delivery):
    running, most, order = set(), 0, {}

    async def handle(message):
        nonlocal most
        assert message.key not in running, "two handlings of a key overlap"
        running.add(message.key)
        most = max(most, len(running))
        await asyncio.sleep(0.01 * (1 + int(message.payload) % 3))
        running.discard(message.key)
        order.setdefault(message.key, []).append(int(message.payload))

    made = rig(handle, dispatch={"runners": 3})
    async with made.running():
        for number in range(60):
            made.dispatcher.dispatch(delivery(number, f"k{number % 5}"))
        await made.until_ended(60)
    assert all(numbers == sorted(numbers) for numbers in order.values())
    assert most == 3


async def test_a_failed_delivery_blocks_its_key_and_no_other_until_it_succeeds(rig, delivery):
    handled, failures = [], 0

    async def handle(message):
        nonlocal failures
        if message.payload == b"1" and failures < 5:
            failures += 1
            raise ValueError("not yet")
        handled.append(int(message.payload))

    made = rig(handle, **BACKOFF)
    async with made.running():
        for number, key in ((1, "a"), (2, "a"), (3, "b"), (4, "b")):
            made.dispatcher.dispatch(delivery(number, key))
        await made.until_ended(2)
        assert handled == [3, 4]
        await made.until_ended(4)
    assert handled == [3, 4, 1, 2]
    assert made.outcomes() == dict.fromkeys((1, 2, 3, 4), Outcome.ACCEPTED)
    assert {end.delivery.delivery_id: end.attempts for end in made.ends}[1] == 6


async def test_waits_between_attempts_grow_to_the_maximum(rig, delivery):
    loop, starts = asyncio.get_running_loop(), []

    async def handle(message):
        starts.append(loop.time())
        if len(starts) < 12:
            raise ValueError("again")

    made = rig(handle, **BACKOFF)
    async with made.running():
        await made.handle(delivery(1))
    waits = [later - earlier for earlier, later in itertools.pairwise(starts)]
    for count, wait in enumerate(waits):
        longest = min(0.1 * 2**count, 5)
        assert longest / 2 - 0.002 <= wait <= longest + 0.002


async def test_each_of_several_that_wait_for_their_next_try_gets_it_though_nothing_else_happens(rig, delivery):
    tried = set()

    async def handle(message):
        if message.key not in tried:
            tried.add(message.key)
            raise ValueError("not yet")

    made = rig(handle, **BACKOFF)
    async with made.running():
        for number in (1, 2, 3):
            made.dispatcher.dispatch(delivery(number, f"k{number}"))
            await asyncio.sleep(0.02)
        await made.until_ended(3, within_s=1)
    assert made.outcomes() == dict.fromkeys((1, 2, 3), Outcome.ACCEPTED)


async def test_a_handler_that_hangs_is_cut_off_and_tried_again(rig, delivery):
    attempts = []

    async def handle(message):
        attempts.append(message.payload)
        if len(attempts) == 1:
            await asyncio.sleep(1_000_000)

    made = rig(handle, **BACKOFF)
    async with made.running():
        made.dispatcher.dispatch(delivery(1))
        made.dispatcher.dispatch(delivery(2))
        await made.until_ended(2, within_s=11)
    assert attempts == [b"1", b"1", b"2"]
    assert made.outcomes() == {1: Outcome.ACCEPTED, 2: Outcome.ACCEPTED}


async def test_attempts_that_began_at_different_times_each_get_their_whole_time(rig, delivery):
    loop, cut = asyncio.get_running_loop(), {}

    async def handle(message):
        began = loop.time()
        try:
            await asyncio.sleep(1_000_000)
        finally:
            cut.setdefault(message.key, loop.time() - began)

    made = rig(handle, **BACKOFF)
    async with made.running():
        for number in range(5):
            made.dispatcher.dispatch(delivery(number, f"k{number}"))
            await asyncio.sleep(1)
        await asyncio.sleep(12)
    assert len(cut) == 5
    assert all(abs(after_s - 10) < 0.01 for after_s in cut.values())


async def test_a_handler_that_swallows_its_timeout_is_not_believed(rig, delivery):
    attempts = []

    async def handle(message):
        attempts.append(message.payload)
        try:
            await asyncio.sleep(20 if len(attempts) == 1 else 0)
        except asyncio.CancelledError:
            return

    made = rig(handle, **BACKOFF)
    async with made.running():
        await made.handle(delivery(1))
    assert len(attempts) == 2


async def test_a_handler_that_raises_cancelled_error_itself_has_failed(rig, delivery):
    attempts = []

    async def handle(message):
        attempts.append(message.payload)
        if len(attempts) == 1:
            raise asyncio.CancelledError

    made = rig(handle, **BACKOFF)
    async with made.running():
        for number in (1, 2, 3):
            made.dispatcher.dispatch(delivery(number))
        await made.until_ended(3)
    assert attempts == [b"1", b"1", b"2", b"3"]


async def test_handlers_that_never_wait_leave_other_tasks_their_turn(rig, delivery):
    turns = []

    async def handle(message):
        turns.append(ticks)

    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    made = rig(handle, dispatch={"runners": 1})
    async with made.running():
        ticker = asyncio.ensure_future(tick())
        for number in range(640):
            made.dispatcher.dispatch(delivery(number, f"k{number}"))
        await made.until_ended(640)
        ticker.cancel()
    assert max(turns.count(turn) for turn in turns) <= 32


async def test_a_topic_without_handler_blocks_its_key_and_is_said_once(rig, delivery):
    handlers = Handlers()

    @handlers.handler("orders/>")
    async def handle(message):
        pass

    made = rig(handlers=handlers, **BACKOFF)
    with capture_logs() as logs:
        async with made.running():
            made.dispatcher.dispatch(delivery(1, "a", topic="h/0/bills/new"))
            made.dispatcher.dispatch(delivery(2, "a"))
            made.dispatcher.dispatch(delivery(3, "b"))
            await asyncio.sleep(60)
            assert made.outcomes() == {3: Outcome.ACCEPTED}
    [said] = [log for log in logs if log["event"] == "handler_not_found"]
    assert (said["topic"], said["handlers_take"]) == ("bills/new", ["orders/>"])
    assert made.outcomes() == {1: None, 2: None, 3: Outcome.ACCEPTED}


async def test_messages_without_key_go_by_shard_and_those_of_no_group_by_queue(rig, delivery):
    lanes = []

    async def handle(message):
        pass

    handlers = Handlers()
    handlers.handler(">")(handle)
    made = rig(handlers=handlers, group={"key": "property:customer"})
    async with made.running():
        await made.handle(delivery(1, topic="h/4/orders/new"), delivery(2, topic="other/topic"))
    lanes = {end.delivery.delivery_id: (end.lane, end.shard, end.topic, end.key) for end in made.ends}
    assert lanes == {1: ("\0shard 4", 4, "orders/new", None), 2: ("\0queue orders/0", None, "other/topic", None)}
