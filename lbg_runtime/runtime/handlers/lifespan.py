"""What a handler module sets up before the first message and tears down after the last."""

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from lbg_runtime.model.errors import HandlerError, LbgError
from lbg_runtime.runtime.handlers.signatures import signature_of

LifespanFunction = Callable[[], AsyncIterator[object]]
"""An async generator function that yields once: nothing, or the value that handlers get as `State[...]`."""


class LifespanFailed(LbgError):
    """A lifespan has cancelled its member: by a context around its `yield` (a task group, a timeout), or by a
    cancellation of its own that it did not catch."""

    def __init__(self) -> None:
        super().__init__(
            "the member was cancelled by a lifespan: by what it has around its `yield`, such as a task group of which a"
            " task has failed, or by a cancelled task that it awaited; what was being handled was cut short"
        )


@dataclass(frozen=True, slots=True)
class Lifespan:
    """One registered lifespan."""

    make: Callable[[], AbstractAsyncContextManager[object]]
    where: str
    """`module:function (file:line)`, for messages to the user."""


def make_lifespan(function: object, where: str) -> Lifespan:
    """The lifespan of a function. Raises `HandlerError` if it cannot be one."""
    if not inspect.isasyncgenfunction(function):
        raise HandlerError(where, "no async generator", "`async def` with one `yield`")
    try:
        signature_of(function).bind()
    except TypeError:
        raise HandlerError(where, f"parameters {signature_of(function)}", "none") from None
    return Lifespan(asynccontextmanager(function), where)
