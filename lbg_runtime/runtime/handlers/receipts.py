"""Messages that their handlers settle themselves, at a time of their choice."""

import asyncio
from contextvars import ContextVar

import structlog

from lbg_runtime.model.message import Message
from lbg_runtime.runtime.handlers.resources import RESOURCES
from lbg_runtime.runtime.runners.failure_report import error_text, plain
from lbg_runtime.runtime.runners.handling import CURRENT_HANDLING, HandlerFunction, Handling, facts_of
from lbg_runtime.runtime.runners.pool import aside

_log = structlog.get_logger(__name__)


class ReceiptFailed(Exception):
    """The failure of a message whose receipt was failed without an exception."""


class Receipt:
    """Lets its holder settle a message: once, within the timeout of its attempt.

    Until then its key waits, whether or not the handler has returned. May be called from any thread. A call that comes
    too late (the timeout has passed and another attempt may run, or the queue has gone to another member) or a second
    time has no effect, and is logged and counted.
    """

    def __init__(self, message: Message) -> None:
        """Made by the runtime, in the turn of the message."""
        self.message = message
        self._loop = asyncio.get_running_loop()
        self._answer: asyncio.Future[None] = self._loop.create_future()
        self.handling: Handling = CURRENT_HANDLING.get()
        """For the runtime: the handling that it settles."""
        self._counts = RESOURCES.get().counts
        self._attempt = self.handling.attempts
        self._is_over = False

    def accept(self) -> None:
        """Settle the message as handled."""
        self._on_loop(None)

    def fail(self, error: BaseException | type[BaseException] | str = "") -> None:
        """Fail the attempt, as if the handler had raised this."""
        if not isinstance(error, BaseException):
            # A class is taken as `raise` takes it.
            error = error() if isinstance(error, type) else ReceiptFailed(error)
        self._on_loop(error)

    def settle(self, failure: BaseException | type[BaseException] | str | None = None) -> None:
        """`fail` if there is a failure, else `accept`: for callbacks that get a failure or None."""
        if failure is None:
            self._on_loop(None)
        else:
            self.fail(failure)

    @property
    def is_open(self) -> bool:
        """Whether it can still be settled; on the loop's thread."""
        return not self._is_over and not self._answer.done()

    async def until_settled(self) -> None:
        """For the runtime: return when it is accepted, raise what it failed with."""
        # No bound here: the timeout of the attempt cancels this.
        await self._answer

    def close(self) -> None:
        """For the runtime: the attempt is over, and later calls have no effect."""
        self._is_over = True
        if self._answer.done() and not self._answer.cancelled():
            self._answer.exception()  # looked at, so that nobody reports it

    def _on_loop(self, error: BaseException | None) -> None:
        error = None if error is None else plain(error)
        if isinstance(error, StopIteration) or not isinstance(error, Exception | None):
            # A future does not take the first of these; the others would end the waiting task, though only an attempt
            # has failed.
            error = ReceiptFailed(error_text(error))
        try:
            is_here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            is_here = False
        if is_here:
            self._settle(error)
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._settle, error)

    def _settle(self, error: BaseException | None) -> None:
        if not self.is_open:
            self._counts.late_settlements += 1
            _log.warning(
                "settled_late",
                **facts_of(self.handling),
                attempt=self._attempt,
                reason="its attempt is over" if self._is_over else "it is settled",
            )
        elif error is None:
            self._answer.set_result(None)
        else:
            self._answer.set_exception(error)


CURRENT_RECEIPT: ContextVar[Receipt] = ContextVar("CURRENT_RECEIPT")
"""In a handler that settles its message itself: its receipt."""


def settled_by_receipt(call: HandlerFunction) -> HandlerFunction:
    """A handler that returns when its message is settled; if `call` raises, the attempt ends with that."""

    async def call_and_wait(message: Message) -> None:
        receipt = Receipt(message)
        token = CURRENT_RECEIPT.set(receipt)
        try:
            await call(message)
            if receipt.is_open:
                with aside():
                    await receipt.until_settled()
            else:
                await receipt.until_settled()
        finally:
            CURRENT_RECEIPT.reset(token)
            receipt.close()

    return call_and_wait
