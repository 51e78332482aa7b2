"""Middleware around handlers: it sees every attempt and how it ends, and can make it fail, but never succeed."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Concatenate

from lbg_runtime.model.errors import HandlerError, TerminalFailure
from lbg_runtime.model.message import Message
from lbg_runtime.runtime.handlers.parameters import Fill, read_fills
from lbg_runtime.runtime.handlers.signatures import signature_of
from lbg_runtime.runtime.runners.attempts import end_unbegun, may_begin
from lbg_runtime.runtime.runners.handling import CURRENT_HANDLING, HandlerFunction, refuse_unrun

# A coroutine, as type checkers report one that is not awaited, and `create_task` takes no other awaitable.
Proceed = Callable[[Message], Coroutine[object, None, object]]
"""What a middleware calls: returns when the handler has returned, raises what the attempt failed with."""

MiddlewareFunction = Callable[Concatenate[Message, Proceed, ...], Awaitable[object]]
"""An async function; takes the message, a `Proceed`, and what else its annotations ask for, like a handler."""

_EXPECTED = "the message, what to call with it, and an annotation for each of the others"


class MiddlewareMisused(TerminalFailure):
    """A middleware did not call the handler exactly once, with a message; the attempt has failed, whatever the
    middleware says."""


@dataclass(frozen=True, slots=True)
class Middleware:
    function: MiddlewareFunction
    where: str
    """`module:function (file:line)`, for messages to the user."""
    extra: tuple[tuple[str, Fill], ...]
    states: tuple[type, ...]
    """The types that lifespans must yield for it."""


def make_middleware(function: Callable[..., object], where: str) -> Middleware:
    """The middleware of a function. Raises `HandlerError` if it cannot be one."""
    if not inspect.iscoroutinefunction(function):
        raise HandlerError(where, "not async", "`async def`, as middleware runs on the event loop")
    signature = signature_of(function)
    parameters = list(signature.parameters.values())
    first = parameters[:2]
    if len(first) < 2 or any(each.kind not in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) for each in first):
        raise HandlerError(where, f"parameters {signature}", _EXPECTED)
    # The first two parameters go by their place. Their annotations may be texts that only type checkers can resolve.
    if first[0].annotation in (Proceed, "Proceed") or first[1].annotation in (Message, "Message"):
        raise HandlerError(where, f"parameters {signature}", f"{_EXPECTED}, in this order")
    fills, states = read_fills(function, parameters[2:], where)
    return Middleware(function, where, fills, states)


def surrounded(call: HandlerFunction, middleware: tuple[Middleware, ...]) -> HandlerFunction:
    """The handler inside its middleware, the first of which is the outermost; the handler itself if there is none."""
    for each in reversed(middleware):
        call = _inside(call, each)
    return call


def _inside(call: HandlerFunction, middleware: Middleware) -> HandlerFunction:
    function, extra, where = middleware.function, middleware.extra, middleware.where

    async def around(message: Message) -> object:
        turn = _Turn(call, where, message)
        try:
            if extra:
                answer = await function(message, turn.proceed, **{name: fill(message) for name, fill in extra})
            else:
                answer = await function(message, turn.proceed)
        finally:
            turn.is_over = True
            if turn.is_running:
                await turn.until_ended()
        return turn.result(answer)

    return around


class _Turn:
    """One attempt, as seen by one middleware."""

    __slots__ = ("_answer", "_call", "_ended", "_failure", "_given", "_is_called", "_where", "is_over", "is_running")

    def __init__(self, call: HandlerFunction, where: str, given: Message) -> None:
        """`given`: what the middleware was called with."""
        self._call = call
        self._where = where
        self._given = given
        self._is_called = False
        self._answer: object = None
        self._failure: BaseException | None = None
        self._ended: asyncio.Event | None = None
        self.is_running = False
        self.is_over = False
        """Whether the middleware has ended."""

    async def proceed(self, message: Message) -> object:
        if self._is_called:
            # Otherwise the handler would run twice in one attempt, or in two attempts at once.
            raise MiddlewareMisused(f"{self._where} calls its handler a second time")
        if self.is_over:
            raise MiddlewareMisused(f"{self._where} calls its handler when its attempt is over")
        if not isinstance(message, Message):
            raise MiddlewareMisused(f"{self._where} calls its handler with a {type(message).__name__}, and no Message")
        self._is_called = self.is_running = True
        try:
            if not may_begin(CURRENT_HANDLING.get(None)):
                # The middleware has waited, and another member may have the message by now.
                await end_unbegun()
            if message is not self._given:
                message = _in_place_of(self._given, message)
            self._answer = await self._call(message)
            if self._answer is not None:
                # Refused here already, so that the middleware sees the failure.
                refuse_unrun(self._answer)
        except BaseException as failure:
            self._failure = failure
            raise
        finally:
            self.is_running = False
            if self._ended is not None:
                self._ended.set()
        return self._answer

    async def until_ended(self) -> None:
        """Wait for the handler if it still runs, in a task of the middleware, although the middleware has ended.

        Nothing may happen to a key while one of its messages is being handled (L2).
        """
        self._ended = asyncio.Event()
        is_cancelled = False
        while self.is_running:
            try:
                # No bound: the dispatcher reports it if it takes longer than the timeout.
                await self._ended.wait()
            except asyncio.CancelledError:
                is_cancelled = True
        if is_cancelled:
            raise asyncio.CancelledError

    def result(self, answer: object) -> object:
        """What the handler returned; raises if it failed or was not called, as a middleware cannot settle.

        `answer` is what the middleware returned.
        """
        if self._failure is not None:
            raise self._failure
        if answer is not None:
            refuse_unrun(answer, self._where)
        if not self._is_called:
            raise MiddlewareMisused(f"{self._where} returned without calling its handler")
        return self._answer


def _in_place_of(given: Message, message: Message) -> Message:
    """The message that a middleware passes on, with what only the member knows of the one that it was given: a
    `Message` that is made anew has no `is_first_of_key`, nor the key of its lane."""
    if given.key is not None and message.key != given.key:
        message = message.in_lane_of(given.key)
    if message.is_first_of_key != given.is_first_of_key:
        message = replace(message, is_first_of_key=given.is_first_of_key)
    return message
