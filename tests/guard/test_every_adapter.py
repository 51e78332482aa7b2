"""What every guard promises, put to each adapter: one effect for a message, by whomever and however often."""

import asyncio
import random
from collections.abc import Iterator

import pytest

from lbg_runtime.guard.memory import MemoryGuard
from lbg_runtime.guard.protocol import EffectNotRun, TextNotHeld, TokenMissing
from lbg_runtime.model.message import Message
from tests.guard.bench import Bench, Crash, MemoryBench, message

pytestmark = pytest.mark.real_time


async def test_a_message_that_comes_again_has_its_effect_once(bench: Bench) -> None:
    assert await bench.apply(message(1))
    assert not await bench.apply(message(1))
    assert await bench.written() == ["p1"]


async def test_an_owner_of_the_past_that_finishes_late_writes_nothing(bench: Bench) -> None:
    # It got 3, lost the queue, and woke up when the next owner had handled 3 and gone on.
    late = message(3)
    for number in (1, 2, 3, 4, 5):
        assert await bench.apply(message(number))
    assert not await bench.apply(late)
    assert await bench.written() == ["p1", "p2", "p3", "p4", "p5"]


async def test_an_owner_of_the_past_that_is_first_leaves_nothing_to_the_next(bench: Bench) -> None:
    assert await bench.apply(message(1))
    assert await bench.apply(message(2))
    assert not await bench.apply(message(1))
    assert not await bench.apply(message(2))
    assert await bench.apply(message(3))
    assert await bench.written() == ["p1", "p2", "p3"]


async def test_a_publisher_that_counts_from_zero_has_its_first_effect(bench: Bench) -> None:
    """The guard in memory took the number 0 for one that it had met."""
    assert await bench.apply(message(0))
    assert not await bench.apply(message(0))
    assert await bench.apply(message(1))
    assert await bench.written() == ["p0", "p1"]


async def test_a_crash_before_the_commit_leaves_neither_effect_nor_mark(bench: Bench) -> None:
    assert await bench.apply(message(1))
    with pytest.raises(Crash):
        await bench.apply(message(2), crash=True)
    assert await bench.written() == ["p1"]
    assert await bench.apply(message(2)), "the attempt after it"
    assert await bench.written() == ["p1", "p2"]


async def test_keys_and_publishers_have_marks_of_their_own(bench: Bench) -> None:
    assert await bench.apply(message(7))
    assert await bench.apply(message(1, key="other"))
    assert await bench.apply(message(1, publisher="q"))
    assert not await bench.apply(message(7))
    assert await bench.written() == ["p7", "q1"]
    assert await bench.written("other") == ["p1"]


ODD_TEXTS = {
    "zero": "a\0b",
    # Which no index can make shorter.
    "long": random.Random(1).randbytes(20_000).hex(),
    "repeated": "ä" * 5_000,
    "digest": "lbg-sha256:",
    "lines": "x\ny\t",
    "empty": "",
}


@pytest.mark.parametrize("odd", ODD_TEXTS.values(), ids=ODD_TEXTS)
async def test_keys_and_publishers_may_be_any_text(bench: Bench, odd: str) -> None:
    for number in (1, 2):
        for each in (message(number, key=odd), message(number, key=odd + "'"), message(number, publisher=odd)):
            assert await bench.apply(each)
            assert not await bench.apply(each)
    assert not await bench.apply(message(1, key=odd))


async def test_half_of_a_surrogate_pair_is_text_that_no_database_holds(bench: Bench) -> None:
    if isinstance(bench, MemoryBench):
        assert await bench.apply(message(1, key="\udcff"))
        return
    with pytest.raises(TextNotHeld, match=r"guard orders: the database is in UTF-?8, which cannot hold the key or"):
        await bench.apply(message(1, key="\udcff"))
    assert await bench.apply(message(1))


async def test_many_at_once_on_one_message_leave_one_effect(bench: Bench) -> None:
    applied = await asyncio.gather(*(bench.apply(message(1)) for _ in range(20)))
    assert sorted(applied) == [False] * 19 + [True]
    assert await bench.written() == ["p1"]


async def test_many_keys_at_once_all_have_their_effects(bench: Bench) -> None:
    messages = [message(number, f"k{key}") for number in (1, 2, 2, 3) for key in range(10)]
    for batch in range(0, len(messages), 10):
        await asyncio.gather(*(bench.apply(each) for each in messages[batch : batch + 10]))
    assert [await bench.written(f"k{key}") for key in range(10)] == [["p1", "p2", "p3"]] * 10


async def test_a_message_without_a_token_is_refused(bench: Bench) -> None:
    with pytest.raises(TokenMissing, match="no fencing token on a message of h/0/x"):
        await bench.apply(Message("h/0/x", b"", {"JMSXGroupID": "k"}))
    assert await bench.written() == []


@pytest.mark.parametrize("number", [True, 1 << 63])
async def test_a_number_that_is_none_or_that_no_store_holds_is_no_token(bench: Bench, number: int) -> None:
    """A database failed, with an error that told nobody whose mistake it is."""
    with pytest.raises(TokenMissing):
        await bench.apply(message(number))
    assert await bench.written() == []


async def test_in_memory_too_an_asynchronous_effect_is_refused() -> None:
    async def effect(before: object) -> object:
        raise AssertionError("it runs")

    def generator(before: object) -> Iterator[object]:
        yield before

    guard: MemoryGuard[object] = MemoryGuard()
    for wrong in (effect, generator):
        with pytest.raises(EffectNotRun):
            await guard.once(message(1), wrong)
    assert guard.entries == {}
