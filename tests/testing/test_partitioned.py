"""The test kit with `group.backend: partitioned`: the user's tests run unchanged."""

import asyncio
import re
from collections import Counter

import pytest

from lbg_runtime.testing import NotReached, running

PARTITIONED = {"group": {"backend": "partitioned", "queue_count": 8}, "dispatch": {"missing_key": "error"}}
KEYS = tuple(f"k{number}" for number in range(16))


async def publish(group, *payloads):
    for key in KEYS:
        await group.publish("orders/new", *payloads, key=key)


async def test_every_partition_has_its_member_on_entry(handlers) -> None:
    async with running(handlers(), members=2, settings=PARTITIONED) as group:
        owners = Counter(group.owner(key) for key in KEYS)
        assert set(owners) == {"member-0", "member-1"}
        await publish(group, "1", "2")
        await group.settled()
        assert {each.key: each.member for each in group.handled()} == {key: group.owner(key) for key in KEYS}


async def test_a_member_that_joins_gets_its_share_and_nothing_is_repeated(handlers) -> None:
    async def work(message):
        await asyncio.sleep(0.5)

    async with running(handlers(work), members=2, settings=PARTITIONED) as group:
        await publish(group, "1", "2", "3")
        group.start("late")
        await group.balanced()
        await publish(group, "4")
        await group.settled()
        group.assert_handled({key: ["1", "2", "3", "4"] for key in KEYS})
        assert "late" in {each.member for each in group.handled()}
        assert len(group.handled()) == 4 * len(KEYS)


async def test_what_a_killed_member_held_comes_again_to_another(handlers) -> None:
    async def work(message):
        await asyncio.sleep(5)

    async with running(handlers(work), members=2, settings=PARTITIONED) as group:
        await publish(group, "1", "2")
        attempt = await group.started()
        group.kill(attempt.member)
        await group.settled()
        group.assert_handled({key: ["1", "2"] for key in KEYS})


async def test_a_wait_that_fails_names_the_member_that_has_the_partition_of_the_key(handlers) -> None:
    async def fail(message):
        raise ValueError("no such order")

    async with running(handlers(fail), members=2, settings=PARTITIONED) as group:
        owners = {group.owner(key): key for key in KEYS}
        for key in owners.values():
            await group.publish("orders/new", "1", key=key)
        with pytest.raises(NotReached) as failure:
            await group.settled(30)
    failed = re.compile(r": (\w+) #1 failed \d+ times at ([\w-]+), at last with ValueError")
    told = [found.groups() for line in failure.value.why if (found := failed.search(line))]
    assert {member: key for key, member in told} == owners
    assert isinstance(failure.value.__cause__, ValueError)


async def test_a_key_that_was_with_another_member_is_never_taken_for_one_that_stayed(handlers) -> None:
    """The broker moves it away and back while the flow stays active, and tells nobody."""
    seen = []

    async def work(message):
        seen.append(message.is_first_of_key)

    async with running(handlers(work), members=2, settings=PARTITIONED) as group:
        before = {key: group.owner(key) for key in KEYS}
        await publish(group, "1")
        await group.settled()
        await group.stop("member-1")
        await group.balanced()
        await publish(group, "2")
        await group.settled()
        group.start("member-1")
        await group.balanced()
        await publish(group, "3")
        await group.settled()
        await group.stop("member-1")
        await group.balanced()
        await publish(group, "4")
        await group.settled()
    assert "member-1" in before.values()
    assert seen == [True] * (4 * len(KEYS))
