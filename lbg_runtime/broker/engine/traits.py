"""What a message declares about itself, for queues that respect it."""

from collections.abc import Mapping
from dataclasses import dataclass

from lbg_runtime.model.message import DEFAULT_PRIORITY

HIGHEST_PRIORITY = 9

FieldValue = None | bool | int | float | str

Fields = Mapping[str, FieldValue]
"""What selectors look at: headers by their JMS names, and user properties; a missing one counts as unknown."""


@dataclass(frozen=True, slots=True)
class Traits:
    """Read by the front end, and only if a queue asks."""

    priority: int = DEFAULT_PRIORITY
    time_to_live_ms: int = 0
    """Counted from its arrival; 0 for no limit."""
    may_go_to_dead_messages: bool = True
    """Whether it is eligible for a dead message queue, if the queue respects that."""
