"""Many questions to a broker's administration, some of them at the same time."""

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import anyio

from lbg_runtime.model.sole_error import raise_alone

REQUESTS_AT_ONCE = 8
"""Enough to ask a thousand queues within a second or two, and little for a broker."""

_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")


async def ask_each(items: Iterable[_Item], ask: Callable[[_Item], Awaitable[_Answer]]) -> list[_Answer]:
    """The answers, in the order of the items. If one fails, the rest is given up and its error is raised."""
    numbered = enumerate(items)
    answers: dict[int, _Answer] = {}

    async def take_turns() -> None:
        # All share the iterator: each takes the next item that nobody has taken.
        for number, item in numbered:
            answers[number] = await ask(item)

    try:
        # Not asyncio's: in Python 3.11 and 3.12 one whose task fails leaves a cancellation of its caller counted, which
        # a caller that goes on could not tell from one of its own.
        async with anyio.create_task_group() as tasks:
            for _ in range(REQUESTS_AT_ONCE):
                tasks.start_soon(take_turns)
    except ExceptionGroup as failures:
        raise_alone(failures.exceptions[0])
    return [answers[number] for number in sorted(answers)]
