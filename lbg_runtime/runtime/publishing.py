"""Handlers whose answer is messages: the input is settled when the broker has confirmed all of them."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable

from lbg_runtime.model.errors import InvariantViolated, TerminalFailure
from lbg_runtime.model.message import Message
from lbg_runtime.runtime.handling import HandlerFunction
from lbg_runtime.runtime.resources import RESOURCES

MAX_UNCONFIRMED = 256
"""Of one handler's messages; it is not asked for more meanwhile."""


class Confirms:
    """The messages of one attempt, sent in the order of the calls."""

    def __init__(self, where: str) -> None:
        messenger = RESOURCES.get().messenger
        if messenger is None:
            raise InvariantViolated("a handler publishes outside of a member")
        self._messenger = messenger
        self._where = where
        self._unconfirmed: deque[asyncio.Future[None]] = deque()

    async def send(self, message: object) -> None:
        """Send one, and wait while there are many unconfirmed; raises `PublishFailed` of any of them."""
        if not isinstance(message, Message):
            raise TerminalFailure(f"{self._where} publishes a {type(message).__name__}, and no Message")
        self._unconfirmed.append(self._messenger.send(message))
        while len(self._unconfirmed) >= MAX_UNCONFIRMED:
            await self._unconfirmed.popleft()

    async def all(self) -> None:
        """Return when the broker has confirmed all of them; raises `PublishFailed`."""
        # No bound here: the time-out of the attempt cancels it.
        while self._unconfirmed:
            await self._unconfirmed.popleft()

    def forget(self) -> None:
        """The attempt has failed; nobody asks any more what became of the others."""
        for future in self._unconfirmed:
            future.cancel()


def published_results(call: HandlerFunction, where: str) -> HandlerFunction:
    """A handler whose `Message`, or several of them in an iterable, or none, are published."""

    async def call_and_publish(message: Message) -> None:
        result = await call(message)
        confirms = Confirms(where)
        try:
            for each in _several(result, where):
                await confirms.send(each)
            await confirms.all()
        finally:
            confirms.forget()

    return call_and_publish


def published_yields(make: Callable[[Message], AsyncIterator[object]], where: str) -> HandlerFunction:
    """A handler that yields the messages to publish, one after another."""

    async def iterate_and_publish(message: Message) -> None:
        confirms = Confirms(where)
        try:
            async for each in make(message):
                await confirms.send(each)
            await confirms.all()
        finally:
            confirms.forget()

    return iterate_and_publish


def _several(result: object, where: str) -> Iterable[object]:
    if result is None:
        return ()
    if isinstance(result, Message):
        return (result,)
    if isinstance(result, Iterable) and not isinstance(result, str | bytes):
        return result
    raise TerminalFailure(f"{where} publishes a {type(result).__name__}, and no Message")
