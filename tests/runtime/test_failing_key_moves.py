"""Queues move while a key of theirs fails, on virtual time; at its end each run is judged by the validator's laws."""

import asyncio

import pytest

from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.testing import running

BAD = [f"bad{number}" for number in range(8)]
GOOD = [f"k{number}" for number in range(20)]


def moved(group, owners):
    """The keys that have had another owner than these."""
    return [key for key, owner in owners.items() if group.owner(key) not in (None, owner)]


class Trouble:
    """Handlers of which some keys fail until told otherwise, and what became of the others."""

    def __init__(self, **policy):
        self.is_over = False
        self.sent_s = {}
        self.waits_s = []
        self.handlers = Handlers()

        @self.handlers.handler("orders/>", **policy)
        async def on_order(message):
            if message.key in BAD and not self.is_over:
                raise ValueError(message.key)
            if message.key in GOOD:
                self.waits_s.append(asyncio.get_running_loop().time() - self.sent_s[message.key, message.payload])

    async def publish_for(self, group, seconds):
        for number in range(seconds):
            for key in GOOD:
                payload = str(number).encode()
                self.sent_s[key, payload] = asyncio.get_running_loop().time()
                await group.publish("orders/new", payload, key=key)
            await group.advance(1)


async def alone(group):
    """Have one member own every queue; return it, and the other."""
    first, second = sorted(group.members)
    await group.stop(second)
    await group.until(lambda: {group.owner(key) for key in BAD} == {first})
    return first, second


async def test_a_key_that_always_fails_holds_no_queue_back_and_no_other_key_up() -> None:
    trouble = Trouble()
    async with running(trouble.handlers, members=2) as group:
        first, second = await alone(group)
        for key in BAD:
            await group.publish("orders/new", "1", "2", key=key)
        await group.advance(15)
        owners = {key: group.owner(key) for key in BAD}
        group.start(second)
        await trouble.publish_for(group, 60)
        await group.balanced()
        gone = moved(group, owners)
        assert gone, "no queue of a failing key was to move, so nothing was tried"
        assert len(trouble.waits_s) == len(trouble.sent_s)
        assert max(trouble.waits_s) < 1
        trouble.is_over = True
        await group.settled()
        for key in gone:
            assert [(each.number, each.member) for each in group.handled(key)] == [(1, second), (2, second)]
            assert group.handled(key)[0].redelivered
        assert {each.member for each in group.attempts(gone[0], 1)} == {first, second}


@pytest.mark.parametrize("then", ["error_queue", "dmq", "park", "stop"])
async def test_attempts_that_end_come_to_their_end_with_the_next_owner(then) -> None:
    """It counts its own attempts. What was stopped stops there, too, until what is broken has been mended."""
    trouble = Trouble(attempts=4, then=then)
    async with running(trouble.handlers, members=2) as group:
        first, second = await alone(group)
        for key in BAD:
            await group.publish("orders/new", "1", "2", key=key)
        await group.advance(0 if then != "stop" else 60)
        owners = {key: group.owner(key) for key in BAD}
        group.start(second)
        await group.balanced()
        gone = moved(group, owners)
        assert gone
        await group.advance(60)
        if then == "stop":
            tried = [[each.member for each in group.attempts(key)].count(second) for key in gone]
            assert max(tried) == 4, "the first to come to its end stopped the queue"
            trouble.is_over = True
            for member in (first, second):
                assert (await group.stop(member)).is_clean is (member == first), "the last has nobody to give it to"
            group.start(first)
        await group.settled()


async def test_an_owner_that_gives_way_by_the_cycle_does_not_wait_for_what_its_stopped_queue_holds() -> None:
    """It never starts that, so it would wait for its whole drain timeout."""
    trouble = Trouble(attempts=1, then="stop")
    cycle = {"mode": "cycle", "interval": "10s", "jitter": 0.1, "drain_timeout": "60s"}
    settings = {"rebind": cycle, "membership": {"mode": "static", "count": 2}}
    async with running(trouble.handlers, members=2, settings=settings) as group:
        home = group.owner("bad0")
        await group.stop(home)
        await group.until(lambda: group.owner("bad0") not in (None, home))
        await group.publish("orders/new", "1", "2", key="bad0")
        await group.advance(1)
        group.start(home)
        began_s = asyncio.get_running_loop().time()
        await group.until(lambda: group.owner("bad0") == home)
        assert asyncio.get_running_loop().time() - began_s < 15
        trouble.is_over = True
        # What its next owner holds is its to keep, until its member is started anew.
        await group.stop(home)
        group.start(home)
        await group.settled()
        assert [each.number for each in group.handled("bad0")] == [1, 2]
