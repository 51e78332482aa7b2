"""Questions of which some are asked at the same time."""

import asyncio

import pytest

from lbg_runtime.admin.asking import REQUESTS_AT_ONCE, ask_each
from lbg_runtime.model.errors import SempError
from lbg_runtime.runtime.shutdown import Interruption


async def test_answers_are_in_the_order_of_the_items_however_late_each_comes() -> None:
    asked: list[int] = []
    may_answer = {number: asyncio.Event() for number in range(3 * REQUESTS_AT_ONCE)}

    async def ask(number: int) -> str:
        asked.append(number)
        await may_answer[number].wait()
        return str(number)

    asking = asyncio.ensure_future(ask_each(may_answer, ask))
    while len(asked) < REQUESTS_AT_ONCE:  # noqa: ASYNC110
        await asyncio.sleep(0)
    for number in reversed(may_answer):
        may_answer[number].set()
        await asyncio.sleep(0)
    assert await asking == [str(number) for number in may_answer]
    assert asked[:REQUESTS_AT_ONCE] == list(range(REQUESTS_AT_ONCE))
    assert sorted(asked) == list(may_answer)


async def test_no_more_than_so_many_are_asked_at_once() -> None:
    under_way, most = 0, 0

    async def ask(_: int) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1

    await ask_each(range(100), ask)
    assert most == REQUESTS_AT_ONCE


async def test_where_one_fails_its_error_is_raised_and_the_others_are_given_up() -> None:
    ended: list[int] = []

    async def ask(number: int) -> None:
        if number == 1:
            raise SempError("no")
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(number)

    with pytest.raises(SempError, match=r"^no$"):
        await ask_each(range(100), ask)
    assert len(ended) < REQUESTS_AT_ONCE


async def test_who_goes_on_after_a_failure_can_be_interrupted_as_before() -> None:
    async def ask(_: int) -> None:
        await asyncio.sleep(0)
        raise SempError("no")

    unwanted = Interruption()
    with unwanted:
        with pytest.raises(SempError):
            await ask_each(range(2), ask)
        unwanted.cut()
        # A task group of Python 3.11 leaves a cancellation counted, so that this one would count as another's.
        await asyncio.Event().wait()


async def test_a_cancellation_gives_up_all_of_them() -> None:
    ended: list[int] = []

    async def ask(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(number)

    asking = asyncio.ensure_future(ask_each(range(100), ask))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert sorted(ended) == list(range(REQUESTS_AT_ONCE))
