"""One delivery on its way through the dispatcher, and what is known of it when it has ended."""

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING

from lbg_runtime.core.lanes import LaneKey
from lbg_runtime.model.errors import TerminalFailure
from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.model.message import Delivery, Message
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.model.unrun import is_unrun, is_unsent

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from lbg_runtime.runtime.handlers.routes import Route
    from lbg_runtime.runtime.runners.failure_report import FailureReport

HandlerFunction = Callable[[Message], Awaitable[object]]
"""Handles one message. If it raises, it has failed, and the message is tried again. The caller passes every answer but
None to `refuse_unrun`; what that does not refuse is ignored."""


class GivenBack(Exception):
    """Raised by a handler that passes messages on, for a message that it has not passed on: the delivery ends without
    an outcome, and this was no attempt.

    Nothing more of the delivery's flow handle is started, and the handle is given up, so that the next owner gets what
    is unsettled, in order. Meant for a flow that is being given up anyway, and waits for this delivery.
    """


def refuse_unrun(answer: object, who: str = "the handler") -> None:
    """Raise `TerminalFailure` if the answer is something still to be awaited, read or published: then the message has
    not been handled.

    Call it for the answer of everything that is called for a message, before the message counts as handled.
    """
    if is_unsent(answer):
        what = "a Message" if isinstance(answer, Message) else f"a {type(answer).__name__} with a Message"
        raise TerminalFailure(
            f"{who} returned {what}, which is not published: that takes a handler registered with publishes=True"
        )
    if is_unrun(answer):
        raise unrun_failure(answer, who)


def unrun_failure(answer: object, who: str) -> TerminalFailure:
    what = f"{type(answer).__name__} {getattr(answer, '__qualname__', '')}".rstrip()
    return TerminalFailure(
        f"{who} returned something that nobody awaits or reads, so it may never have run: {what}"
        " (is an `await` missing?)"
    )


class Handling:
    """A delivery on its way through the dispatcher: made when it is dispatched, reported once when it has left the
    lanes. Only the dispatcher changes it.

    Has slots and no class defaults, as one is made per message: before Python 3.12, a slot is read in a fraction of the
    time.
    """

    __slots__ = (
        "attempts",
        "delivery",
        "done_mono_ns",
        "end_report",
        "key",
        "lane",
        "last_error",
        "local_seq",
        "may_be_elsewhere",
        "message",
        "outcome",
        "route",
        "span",
        "start_mono_ns",
    )

    last_error: str
    """Type and beginning of the last error. Not set before there is one, as most messages would pay for nothing."""
    may_be_elsewhere: bool
    """Whether a move may have put a copy into another queue. Not set before a move was tried, for the same reason."""
    span: "Span"
    """The span of its newest attempt. Not set where no spans are made."""

    def __init__(self, delivery: Delivery, lane: LaneKey, key: str | None, route: "Route") -> None:
        self.delivery = delivery
        self.message: Message = delivery.message
        """As the handler gets it: the delivery's message, with what only the member knows about it."""
        self.lane = lane
        self.key = key
        self.route = route
        self.attempts = 0
        """How often its handler was started; 0 if it was returned unhandled."""
        self.end_report: FailureReport | None = None
        """Set when its attempts have ended without success: its handler is not started again."""
        self.local_seq = 0
        """Its number, from 1, in the order in which deliveries were first started in this life of the member."""
        self.start_mono_ns = 0
        self.done_mono_ns = 0
        """0 until it has ended."""
        self.outcome: Outcome | None = None
        """None until it has ended, and if it ended without one (L7)."""

    @property
    def shown(self) -> Delivery:
        """The delivery as its handler gets it, which is with the message as its handler gets it."""
        if self.delivery.message is self.message:
            return self.delivery
        # The delivery's own message may have a token that counts within another key: a guard could take it for old.
        return replace(self.delivery, message=self.message)

    @property
    def queue(self) -> QueueName:
        """The queue it came from."""
        return self.delivery.queue

    @property
    def epoch(self) -> Epoch:
        """The flow handle it came from."""
        return self.delivery.epoch

    @property
    def shard(self) -> int | None:
        """The shard of a hashed topic."""
        return self.route.shard

    @property
    def topic(self) -> str:
        """The original topic; the full one if it is not one of the group's."""
        return self.route.topic


CURRENT_HANDLING: ContextVar[Handling] = ContextVar("CURRENT_HANDLING")
"""In a handler: the handling it was called for, for code that needs more than the message. Do not change it."""


def facts_of(handling: Handling) -> dict[str, str | int | None]:
    """What a log line says about a delivery."""
    delivery = handling.delivery
    return {
        "queue": delivery.queue,
        "epoch": delivery.epoch,
        "delivery_id": delivery.delivery_id,
        "topic": handling.topic,
        "key": handling.key,
        "attempts": handling.attempts,
    }
