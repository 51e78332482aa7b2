"""What functions return that stands for work which has not been done: a forgotten `await`, a generator nobody reads."""

import inspect
from concurrent.futures import Future
from typing import Protocol, TypeGuard


def is_unrun(answer: object) -> bool:
    """Whether there is something in it that somebody has to await or to read, or that still runs elsewhere.

    Work that is done is none; what it failed with is raised.
    A coroutine that has not begun never will from then on: it is closed, so that Python does not warn of it.
    """
    if _is_future(answer) and answer.done():
        answer.result()
        return False
    if inspect.iscoroutine(answer) and inspect.getcoroutinestate(answer) == inspect.CORO_CREATED:
        answer.close()
    # Not every iterator: a database's cursor is one, and its statement has been made.
    is_lazy = inspect.isgenerator(answer) or inspect.isasyncgen(answer) or isinstance(answer, map | filter)
    return is_lazy or inspect.isawaitable(answer) or _is_future(answer)


class _AnyFuture(Protocol):
    """As an event loop's future is, too; there is no event loop in this room."""

    def done(self) -> bool: ...

    def result(self) -> object: ...


def _is_future(answer: object) -> TypeGuard[_AnyFuture]:
    if isinstance(answer, Future):
        return True
    has_both = callable(getattr(answer, "done", None)) and callable(getattr(answer, "result", None))
    return has_both and inspect.isawaitable(answer)
