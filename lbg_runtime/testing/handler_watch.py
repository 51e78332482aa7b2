"""Records what the handlers of one member's life do, call by call, from directly around the user's function."""

import asyncio
import functools
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, replace
from time import monotonic_ns

from lbg_runtime.core.parking.identity import MessageIdentity, identity_of
from lbg_runtime.core.parking.records import PARKING_PREFIX
from lbg_runtime.model.failure import ERROR_KEY_SEQUENCE_PROPERTY, ERROR_PUBLISHER_PROPERTY
from lbg_runtime.model.ids import DeliveryId, Epoch, QueueName
from lbg_runtime.model.message import KEY_SEQUENCE_PROPERTY, PUBLISHER_PROPERTY, Message
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.runtime.handlers.registry import Handler
from lbg_runtime.runtime.runners.handling import CURRENT_HANDLING, HandlerFunction, Handling, refuse_unrun
from lbg_runtime.testing.moments import Moments
from lbg_runtime.testing.virtual_time import AT_WORK

Wrapper = Callable[[HandlerFunction], HandlerFunction]
"""A wrapper of the user's that is put around a handler."""


DeliveryName = tuple[QueueName, Epoch, DeliveryId]
"""Unique in one life of a member."""


def identity_of_moved(copy: Message) -> MessageIdentity | None:
    """The identity of what was moved to the error queue: its copy there has the stamps under other names."""
    told = copy.properties
    stamps = {
        PUBLISHER_PROPERTY: told.get(ERROR_PUBLISHER_PROPERTY),
        KEY_SEQUENCE_PROPERTY: told.get(ERROR_KEY_SEQUENCE_PROPERTY),
    }
    return identity_of(replace(copy, properties={**told, **stamps}))


def _called_for(message: Message) -> tuple[DeliveryName | None, int, Handling | None]:
    """The delivery, which of its attempts in the runtime this is, and what the runtime makes of them."""
    handling = CURRENT_HANDLING.get(None)
    # Without an identity it is what middleware made of the delivered message; with another, a deferred one.
    if handling is None or identity_of(message) not in (None, identity_of(handling.delivery.message)):
        return None, 0, None
    # A replay of a parked message is recorded under the message's own queue.
    queue = QueueName(handling.queue.removeprefix(PARKING_PREFIX))
    return (queue, handling.epoch, handling.delivery.delivery_id), handling.attempts, handling


@dataclass(eq=False, slots=True)
class Attempt:
    """One call of a handler. Only the kit changes it."""

    member: str
    message: Message
    watch: "HandlerWatch"
    """The watch of the life that it belongs to."""
    started_s: float
    """Virtual time."""
    start_ns: int
    start_mono_ns: int
    """On the process's real clock, as in the runtime's own records."""
    delivery: DeliveryName | None
    """The delivery that it was called for; None if a wrapper called it for a message that it had deferred."""
    runtime_attempt: int = 0
    """Which of the delivery's attempts, from 1; each attempt calls a handler once."""
    handling: Handling | None = None
    """The delivery's, in the runtime; None where `delivery` is."""
    error: BaseException | None = None
    """What the handler raised; a time-out, a stop and a hand-back past its time are a `CancelledError`."""
    end_ns: int | None = None
    """None while it runs, and if its member was killed."""

    @property
    def key(self) -> str | None:
        """The key that the message was published with."""
        return self.message.key

    @property
    def number(self) -> int | None:
        """The number of the message within its key, from 1."""
        return self.message.key_sequence

    @property
    def is_running(self) -> bool:
        """Whether it has not ended in any way."""
        return self.end_ns is None and not self.watch.is_over

    @property
    def is_good(self) -> bool:
        """Whether the handler has returned."""
        return self.end_ns is not None and self.error is None

    @property
    def is_settled(self) -> bool:
        """Whether the runtime has ended the delivery and settled it."""
        return self.handling is not None and self.handling.outcome is Outcome.ACCEPTED

    @property
    def is_given_up(self) -> bool:
        """Whether the runtime has ended the delivery's attempts without success, and moves the message away. That may
        be so although the handler has returned: after its time-out, or if middleware failed behind it."""
        return self.handling is not None and self.handling.end_report is not None

    @property
    def identity(self) -> MessageIdentity | None:
        """See `identity_of`."""
        return identity_of(self.message)

    def __repr__(self) -> str:
        if self.end_ns is None:
            state = "running" if self.is_running else "killed"
        else:
            state = "done" if self.error is None else repr(self.error)
        return f"<{self.key} #{self.number} at {self.member}: {state}>"


class HandlerWatch:
    """Put around every handler of one life, inside what the user puts around them."""

    def __init__(self, member: str, moments: Moments, on_change: Callable[[], None], around: Wrapper | None) -> None:
        """`on_change` is called when a handler begins or ends."""
        self.attempts: list[Attempt] = []
        self.unwaited: list[str] = []
        """A line for each call that ended when its message had been settled: what is around it had not waited."""
        self.is_over = False
        """Set when the process is dead: what its handlers do from then on does not count."""
        self.member = member
        self._moments = moments
        self._on_change = on_change
        self._around = around

    def wrap(self, handler: Handler) -> HandlerFunction:
        """The function to call instead of the handler's own."""

        @functools.wraps(handler.function)
        async def watched(message: Message) -> object:
            if self.is_over:
                # Called in the same step in which the process was killed: no bound, as nothing of it goes on.
                await asyncio.get_running_loop().create_future()
            start_ns = self._moments.next_ns()
            called_for = _called_for(message)
            attempt = Attempt(self.member, message, self, start_ns / 1e9, start_ns, monotonic_ns(), *called_for)
            self.attempts.append(attempt)
            AT_WORK.set(f"{handler.where} at {self.member}, for {attempt.key} #{attempt.number}")
            self._on_change()
            try:
                answer = await handler.function(message)
                if answer is not None:
                    # Checked here too, as the call counts as failed.
                    refuse_unrun(answer, handler.where)
                return answer
            except BaseException as error:
                if not self.is_over:
                    attempt.error = error
                raise
            finally:
                if not self.is_over:
                    attempt.end_ns = self._moments.next_ns()
                    if attempt.is_settled and not attempt.is_given_up:
                        self.unwaited.append(
                            f"{self.member}: {attempt.key} #{attempt.number} was settled before {handler.where} had "
                            "handled it: what is around it did not wait for it"
                        )
                    self._on_change()

        return watched if self._around is None else self._around(watched)


CURRENT_WATCH: ContextVar[HandlerWatch] = ContextVar("lbg_current_watch")
"""In everything that a life of a member runs: its watch."""
