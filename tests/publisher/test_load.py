"""The load is what was planned, and an outage delays it without ending it."""

import asyncio
import random
from collections import Counter

import orjson
import pytest
from structlog.testing import capture_logs

from lbg_runtime.model.hashing import HashFunction
from lbg_runtime.publisher.load import LoadPlan, numbered_keys, run_load
from tests.publisher.conftest import MakePublisher, ScriptedMessenger


async def test_as_many_messages_as_counted_are_sent(
    make_publisher: MakePublisher, messenger: ScriptedMessenger
) -> None:
    messenger.confirm_after_s = 0.01
    publisher = make_publisher()
    await run_load(publisher, LoadPlan("t", ("k",), count=123), random.Random(1))
    assert [orjson.loads(payload)["number"] for payload in messenger.payloads()] == list(range(1, 124))
    assert (await publisher.close()).confirmed == 123


async def test_a_rate_takes_its_time(make_publisher: MakePublisher, messenger: ScriptedMessenger) -> None:
    messenger.confirm_after_s = 0.001
    publisher = make_publisher()
    began = asyncio.get_running_loop().time()
    await run_load(publisher, LoadPlan("t", ("k",), count=1000, rate_per_s=400), random.Random(1))
    assert asyncio.get_running_loop().time() - began == pytest.approx(2.5, abs=0.02)


async def test_a_duration_ends_the_load(make_publisher: MakePublisher, messenger: ScriptedMessenger) -> None:
    messenger.confirm_after_s = 0.001
    publisher = make_publisher()
    await run_load(publisher, LoadPlan("t", ("k",), rate_per_s=100, duration_s=3), random.Random(1))
    assert len(messenger.sent) == pytest.approx(300, abs=2)


async def test_a_duration_ends_the_load_also_while_it_waits_for_confirms(
    make_publisher: MakePublisher, messenger: ScriptedMessenger
) -> None:
    publisher = make_publisher(max_unconfirmed=2)
    await run_load(publisher, LoadPlan("t", ("k",), duration_s=3), random.Random(1))
    assert asyncio.get_running_loop().time() == pytest.approx(3, abs=0.01)
    assert len(messenger.sent) == 2


async def test_an_outage_delays_the_load_and_no_flood_follows_it(
    make_publisher: MakePublisher, messenger: ScriptedMessenger
) -> None:
    publisher = make_publisher(max_unconfirmed=50, max_unconfirmed_bytes=10_000)
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as group:
        load = group.create_task(
            run_load(publisher, LoadPlan("t", ("k",), count=1000, rate_per_s=100), random.Random(1))
        )
        await asyncio.sleep(20)  # no answers: the window is full after half a second
        assert len(messenger.sent) == 50
        messenger.confirm(50)
        messenger.confirm_after_s = 0.001
        await asyncio.sleep(1)
        assert len(messenger.sent) == pytest.approx(150, abs=15)
        await load
    assert loop.time() == pytest.approx(20 + 9.5, abs=0.2)
    assert [message.key_sequence for message in messenger.sent] == list(range(1, 1001))


async def test_refused_messages_do_not_end_the_load(
    make_publisher: MakePublisher, messenger: ScriptedMessenger
) -> None:
    publisher = make_publisher(max_unconfirmed=1)
    with capture_logs() as logs:
        async with asyncio.TaskGroup() as group:
            load = group.create_task(run_load(publisher, LoadPlan("t", ("k",), count=4), random.Random(1)))
            for number in range(4):
                await messenger.has_sent(number + 1)
                (messenger.confirm, messenger.refuse)[number % 2]()
            await load
        await publisher.close()
    assert (publisher.counts.confirmed, publisher.counts.refused) == (2, 2)
    assert len(logs) == 2


@pytest.mark.parametrize("function", list(HashFunction))
async def test_every_key_gets_its_share_under_every_hash_function(
    make_publisher: MakePublisher, messenger: ScriptedMessenger, function: HashFunction
) -> None:
    messenger.confirm_after_s = 0.001
    publisher = make_publisher(function)
    await run_load(publisher, LoadPlan("t", numbered_keys(20), count=4000), random.Random(7))
    shares = Counter(message.key for message in messenger.sent)
    assert set(shares) == {str(number) for number in range(1, 21)}
    assert min(shares.values()) > 120


async def test_the_upper_end_of_chance_is_the_last_key(
    make_publisher: MakePublisher, messenger: ScriptedMessenger
) -> None:
    """`uniform` may return its upper end."""

    class Highest:
        def uniform(self, _: float, highest: float, /) -> float:
            return highest

    await run_load(make_publisher(), LoadPlan("t", ("a", "b"), count=1), Highest())
    assert [message.key for message in messenger.sent] == ["b"]
