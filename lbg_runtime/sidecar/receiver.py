"""The protocol of what takes the member's events: an application that is called, or one that pulls."""

from collections.abc import Sequence
from typing import Protocol

from lbg_runtime.model.errors import LbgError
from lbg_runtime.sidecar.answer import Answer
from lbg_runtime.sidecar.event import Event

_NAMED = 10
"""How many subscriptions one line of the log names."""


class EventUnwanted(LbgError):
    """No subscription of the application attracts the topic; only the user can tell whether one is missing."""

    def __init__(self, topic: str, subscriptions: Sequence[str]) -> None:
        """`subscriptions`: the topics of the existing ones; the error names the first of them."""
        asked = ", ".join(map(repr, subscriptions[:_NAMED])) + (", ..." if len(subscriptions) > _NAMED else "")
        super().__init__(f"no subscription of the application attracts {topic!r}; it has {asked}")
        self.topic = topic


class Receiver(Protocol):
    """Called from the runners of the member, one event of a key at a time."""

    async def deliver(self, event: Event) -> Answer:
        """Wait until the application is there, give it the event, and return its answer.

        Only an event that was sent can fail: while the application is away, this waits. Raises `ApplicationFailed` if
        there is no answer to an event that was sent, and `EventUnwanted` if no subscription attracts it. If cancelled,
        takes the event back.
        """
        ...
