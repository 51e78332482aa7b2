"""Recognizes return values that stand for work that was not done: a forgotten `await`, a generator that nobody reads, a
message that nobody publishes."""

import inspect
from concurrent.futures import Future
from typing import Protocol, TypeGuard

from lbg_runtime.model.message import Message


def is_unrun(answer: object) -> bool:
    """Whether the answer still has to be awaited or read, or is still running elsewhere.

    False for work that is done; if that failed, its error is raised.
    A coroutine that has not begun is closed and will never run, so that Python does not warn about it.
    """
    if _is_future(answer) and answer.done():
        answer.result()
        return False
    if inspect.iscoroutine(answer) and inspect.getcoroutinestate(answer) == inspect.CORO_CREATED:
        answer.close()
    # Not every iterator: a database cursor is one, and its statement has already been executed.
    is_lazy = inspect.isgenerator(answer) or inspect.isasyncgen(answer) or isinstance(answer, map | filter)
    return is_lazy or inspect.isawaitable(answer) or _is_future(answer)


def is_unsent(answer: object) -> bool:
    """Whether the answer is a message, or a list or tuple with one: what is published for a handler that says so.

    Linear in the length of a list without one. Other iterables are not looked into, as that could use them up.
    """
    if isinstance(answer, list | tuple):
        return any(isinstance(each, Message) for each in answer)
    return isinstance(answer, Message)


class _AnyFuture(Protocol):
    """Matches any kind of future, an event loop's included, without importing one: this room has no event loop."""

    def done(self) -> bool: ...

    def result(self) -> object: ...


def _is_future(answer: object) -> TypeGuard[_AnyFuture]:
    if isinstance(answer, Future):
        return True
    has_both = callable(getattr(answer, "done", None)) and callable(getattr(answer, "result", None))
    return has_both and inspect.isawaitable(answer)
