"""What functions return that stands for work which has not been done: a forgotten `await`, a generator nobody reads."""

import asyncio
import inspect
from concurrent.futures import Future


def is_unrun(answer: object) -> bool:
    """Whether there is something in it that somebody has to await or to read, or that still runs elsewhere.

    Work that is done is none; what it failed with is raised.
    A coroutine that has not begun never will from then on: it is closed, so that Python does not warn of it.
    """
    if isinstance(answer, asyncio.Future | Future) and answer.done():
        answer.result()
        return False
    if inspect.iscoroutine(answer) and inspect.getcoroutinestate(answer) == inspect.CORO_CREATED:
        answer.close()
    # Not every iterator: a database's cursor is one, and its statement has been made.
    is_lazy = inspect.isgenerator(answer) or inspect.isasyncgen(answer) or isinstance(answer, map | filter)
    return is_lazy or inspect.isawaitable(answer) or isinstance(answer, Future)
