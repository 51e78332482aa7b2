"""One answer for many who ask, in virtual time."""

import asyncio

import pytest

from lbg_runtime.status.shared import KEPT_S, Shared


class Work:
    """Takes ten seconds, and counts how often it was begun."""

    def __init__(self) -> None:
        self.begun = 0

    async def __call__(self) -> int:
        self.begun += 1
        found = self.begun
        await asyncio.sleep(10)
        return found


async def test_who_asks_while_it_is_worked_out_gets_the_same() -> None:
    work = Work()
    shared = Shared(work)
    early = [asyncio.ensure_future(shared.answer()) for _ in range(50)]
    await asyncio.sleep(5)
    late = [asyncio.ensure_future(shared.answer()) for _ in range(50)]
    assert await asyncio.gather(*early, *late) == [1] * 100


async def test_an_answer_is_given_again_for_a_moment_and_then_worked_out_anew() -> None:
    shared = Shared(Work())
    assert await shared.answer() == 1
    await asyncio.sleep(KEPT_S / 2)
    assert await shared.answer() == 1
    await asyncio.sleep(KEPT_S)
    assert await shared.answer() == 2


async def test_who_goes_away_takes_nothing_from_the_others() -> None:
    shared = Shared(Work())
    gone, stays = (asyncio.ensure_future(shared.answer()) for _ in range(2))
    await asyncio.sleep(5)
    gone.cancel()
    assert await stays == 1
    assert gone.cancelled()


async def test_a_failure_is_told_to_all_and_not_for_long() -> None:
    failing = True

    async def work() -> str:
        if failing:
            raise ZeroDivisionError
        return "well"

    shared = Shared(work)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            await shared.answer()
    failing = False
    await asyncio.sleep(2 * KEPT_S)
    assert await shared.answer() == "well"
