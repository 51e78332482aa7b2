"""Handlers that answer with messages to publish: the input is settled when the broker has confirmed all of these.

The messages are published one by one, or in a local transaction if the handler asks for it.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing
from typing import Protocol

from lbg_runtime.model.errors import InvariantViolated, TerminalFailure
from lbg_runtime.model.message import NO_PROPERTIES, Message, as_payload
from lbg_runtime.model.sendable import fault_of
from lbg_runtime.model.unrun import is_unrun
from lbg_runtime.runtime.handlers.resources import RESOURCES
from lbg_runtime.runtime.runners.handling import HandlerFunction, unrun_failure
from lbg_runtime.transport.base import MAX_TOGETHER, Messenger

MAX_UNCONFIRMED = 256
"""How many messages of one attempt may be unconfirmed; with that many, the handler is not asked for more."""


class Sending(Protocol):
    """The messages of one attempt, sent in the order of the calls."""

    async def send(self, message: object) -> None:
        """Take a message to send. Raises `TerminalFailure` if it is no message or one too many, `PublishFailed` if an
        earlier one has failed."""
        ...

    async def all(self) -> None:
        """Return when the broker has all messages; raises `PublishFailed`."""
        ...

    def forget(self) -> None:
        """End the attempt: nobody cares any more what becomes of messages that are not confirmed."""
        ...


class Confirms:
    """Sends each message at once; each is confirmed separately."""

    def __init__(self, where: str) -> None:
        self._messenger = _messenger()
        self._where = where
        self._unconfirmed: deque[asyncio.Future[None]] = deque()

    async def send(self, message: object) -> None:
        """See `Sending.send`; waits while there are many unconfirmed."""
        self._unconfirmed.append(self._messenger.send(_to_send(message, self._where)))
        while len(self._unconfirmed) >= MAX_UNCONFIRMED:
            await self._unconfirmed.popleft()

    async def all(self) -> None:
        """See `Sending.all`."""
        # No bound here: the timeout of the attempt cancels this.
        while self._unconfirmed:
            await self._unconfirmed.popleft()

    def forget(self) -> None:
        """See `Sending.forget`."""
        for future in self._unconfirmed:
            future.cancel()


class Transaction:
    """Sends all messages in one local transaction, at the end: they become visible together, or none does."""

    def __init__(self, where: str) -> None:
        self._messenger = _messenger()
        self._where = where
        self._messages: list[Message] = []
        self._committed: asyncio.Future[None] | None = None

    async def send(self, message: object) -> None:
        """See `Sending.send`; nothing leaves yet."""
        if len(self._messages) == MAX_TOGETHER:
            raise TerminalFailure(f"{self._where} publishes more than {MAX_TOGETHER} messages in a transaction")
        self._messages.append(_to_send(message, self._where))

    async def all(self) -> None:
        """See `Sending.all`."""
        if self._messages:
            self._committed = self._messenger.send_together(self._messages)
            await self._committed

    def forget(self) -> None:
        """See `Sending.forget`. What is not yet being committed never will be."""
        if self._committed is not None:
            self._committed.cancel()


MakeSending = Callable[[str], Sending]
"""Makes the `Sending` of an attempt; the argument says where its handler is."""


def published_results(call: HandlerFunction, where: str, make_sending: MakeSending) -> HandlerFunction:
    """A handler that returns what to publish: a `Message`, an iterable of them, or None."""

    async def call_and_publish(message: Message) -> None:
        result = await call(message)
        sending = make_sending(where)
        try:
            for each in _several(result, where):
                await sending.send(each)
            await sending.all()
        finally:
            sending.forget()

    return call_and_publish


def published_yields(
    make: Callable[[Message], AsyncIterator[object]], where: str, make_sending: MakeSending
) -> HandlerFunction:
    """A handler that yields the messages to publish, one after another."""

    async def iterate_and_publish(message: Message) -> None:
        sending = make_sending(where)
        try:
            # Closed within this turn: its clean-up belongs to the handling, and the key's next message waits for it
            # (L2).
            async with aclosing(make(message)) as results:  # type: ignore[type-var]  # what is called is a generator
                async for each in results:
                    await sending.send(each)
            await sending.all()
        finally:
            sending.forget()

    return iterate_and_publish


def _messenger() -> Messenger:
    messenger = RESOURCES.get().messenger
    if messenger is None:
        raise InvariantViolated("a handler publishes outside of a member")
    return messenger


def _to_send(message: object, where: str) -> Message:
    """Like `own_copy`; if spans are made, the copy has the trace context of the handler's span."""
    own, spans = own_copy(message, where), RESOURCES.get().spans
    return own if spans is None else spans.continued(own)


def own_copy(message: object, where: str) -> Message:
    """A copy to be sent, which shares nothing that the handler could still change.

    Raises `TerminalFailure` if it is not a message, or one that cannot be copied. Whether the copy can be sent is left
    to the transport (`MessageUnsendable`), which reads all of it anyway.
    """
    if not isinstance(message, Message):
        raise _no_message(message, where)
    try:
        payload = as_payload(message.payload)
        # Without the token: it may have the input's properties without being a copy of the input, and guards and
        # parking would take it for one.
        own = message.without_token()
    except (TypeError, AttributeError):
        raise TerminalFailure(f"{where}: {fault_of(message)}") from None
    if payload is message.payload and (own is not message or message.properties is NO_PROPERTIES):
        return own
    # Not `replace`, which takes three times as long for every message.
    return Message(own.topic, payload, dict(own.properties), own.message_id, own.sent_at_ms, own.headers)


def _several(result: object, where: str) -> Iterable[object]:
    if result is None:
        return ()
    if isinstance(result, Message):
        return (result,)
    # A future is iterable, but to iterate it gives nothing.
    if isinstance(result, Iterable) and not isinstance(result, str | bytes | Awaitable):
        return result
    raise _no_message(result, where)


def _no_message(answer: object, where: str) -> TerminalFailure:
    """The failure for something else in the place of a message; raises what a done future has failed with."""
    if is_unrun(answer):
        return unrun_failure(answer, where)
    return TerminalFailure(f"{where} publishes a {type(answer).__name__}, and no Message")
