"""Replays that are moved to the error queue, where nobody says whether they have arrived."""

import asyncio

import pytest

from lbg_runtime.model.errors import PublishFailed
from lbg_runtime.runtime.dispatch.error_queue import ErrorQueue
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.testing.group_context import running
from tests.runtime.parking.poisoned import parked

SETTINGS = {
    "group": {"queue_count": 1, "hash_count": 4},
    "failure": {"backoff": {"initial": "50ms", "maximum": "2s"}},
    "rebind": {"drain_timeout": "20s"},
}


class Unheard:
    """Error queues that take what they are given and do not confirm it, until told otherwise."""

    def __init__(self, monkeypatch, silent_s=0):
        """`silent_s`: after this long, whoever waits for a confirm learns that there will be none."""
        self.is_heard = False
        take, given = ErrorQueue.take, set()

        async def take_unheard(errors, handling, report):
            if self.is_heard or handling not in given:
                given.add(handling)
                queue = await take(errors, handling, report)
            if not self.is_heard:
                await asyncio.sleep(silent_s)
                raise PublishFailed("errors", "unknown")
            return queue

        monkeypatch.setattr(ErrorQueue, "take", take_unheard)


async def replay_that_is_moved(group, mend):
    """Park two messages of a key, and have the first replayed until it is to be moved."""
    for count, topic in enumerate(("orders/new", "orders/old"), 1):
        await group.publish(topic, b"%d" % count, key="a")
        await group.until(lambda count=count: len(parked(group)) == count)
    mend()
    await group.unpark("a")
    await group.advance(5)


@pytest.fixture
def mendable():
    """Handlers that park a key until it is mended, and then move its second message to the error queue."""
    handlers, state = Handlers(), {"is_mended": False}

    @handlers.handler("orders/new", attempts=1, then="park")
    async def new(message):
        if not state["is_mended"]:
            raise ValueError("poison")

    @handlers.handler("orders/old", attempts=1, then="error_queue")
    async def old(message):
        raise ValueError("never")

    return handlers, lambda: state.update(is_mended=True)


@pytest.mark.parametrize("silent_s", [0, 8], ids=["nobody has confirmed it", "a confirm is still waited for"])
async def test_a_replay_whose_copy_may_be_elsewhere_is_not_left_to_the_next_owner(monkeypatch, mendable, silent_s):
    """It was handled by that one, and moved, once more."""
    errors = Unheard(monkeypatch, silent_s=silent_s)
    handlers, mend = mendable
    async with running(handlers, members=2, settings=SETTINGS) as group:
        await replay_that_is_moved(group, mend)
        assert len(group.error_queue()) == 1
        asyncio.get_running_loop().call_later(10, setattr, errors, "is_heard", True)
        assert (await group.stop(group.owner("a"))).is_clean
        await group.advance(60)
        assert parked(group) == []
        assert [each.number for each in group.attempts("a", 2)] == [2]


async def test_a_replay_whose_copy_may_be_elsewhere_holds_its_queue_no_longer_than_a_drain(monkeypatch, mendable):
    """From then on the next owner moves it. The first one, which was still trying, did so too."""
    errors = Unheard(monkeypatch)
    handlers, mend = mendable
    loop = asyncio.get_running_loop()
    cycle = {"mode": "cycle", "interval": "10s", "drain_timeout": "20s"}
    settings = {**SETTINGS, "rebind": cycle, "membership": {"mode": "static", "count": 2}}
    async with running(handlers, members=2, settings=settings) as group:
        home = group.owner("a")
        await group.stop(home)
        await group.until(lambda: group.owner("a") not in (None, home))
        await replay_that_is_moved(group, mend)
        group.start(home)
        started_at_s = loop.time()
        await group.until(lambda: group.owner("a") == home)
        assert 20 <= loop.time() - started_at_s < 45
        await group.until(lambda: len(group.attempts("a", 2)) == 2)
        assert [each.member == home for each in group.attempts("a", 2)] == [False, True]
        await group.advance(5)
        errors.is_heard = True
        await group.advance(60)
        assert parked(group) == []
        assert len(group.error_queue()) == 3, "an unheard one of each, and the last one of the next owner"


async def test_a_replay_whose_copy_may_be_elsewhere_is_given_up_with_a_lost_connection(monkeypatch, mendable):
    """Another owner may have it by then."""
    errors = Unheard(monkeypatch)
    handlers, mend = mendable
    loop = asyncio.get_running_loop()
    async with running(handlers, members=2, settings=SETTINGS) as group:
        await replay_that_is_moved(group, mend)
        first = group.owner("a")
        life = next(each for each in group.lives if each.member == first)
        stopping = asyncio.ensure_future(group.stop(first))
        await group.advance(5)
        assert not stopping.done()
        life.cut_off_ns.append(life._moments.next_ns())
        life._session.drop_connection(100)
        cut_at_s = loop.time()
        await stopping
        assert loop.time() - cut_at_s < 5
        errors.is_heard = True
        await group.advance(60)
        assert parked(group) == []


async def test_a_replay_that_is_to_be_moved_is_moved_though_its_queue_has_stopped_meanwhile(monkeypatch, mendable):
    """Nothing of it is started: it would stay where it is, and the next owner would handle it once more."""
    errors = Unheard(monkeypatch)
    handlers, mend = mendable

    @handlers.handler("bills/>", attempts=1, then="stop")
    async def on_bill(message):
        raise ValueError("never")

    async with running(handlers, members=1, settings=SETTINGS) as group:
        await replay_that_is_moved(group, mend)
        await group.publish("bills/new", b"1", key="b")
        await group.until(lambda: bool(group.attempts("b")))
        await group.advance(5)
        assert (len(group.error_queue()), len(parked(group))) == (1, 1)
        errors.is_heard = True
        await group.until(lambda: not parked(group), within_s=10)
        assert len(group.attempts("a", 2)) == 1
