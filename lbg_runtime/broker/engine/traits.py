"""What a message says of itself to the queues that listen to it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

DEFAULT_PRIORITY = 4
HIGHEST_PRIORITY = 9

FieldValue = None | bool | int | float | str


@dataclass(frozen=True, slots=True)
class Traits:
    """Read by the front end, and only where a queue asks."""

    priority: int = DEFAULT_PRIORITY
    time_to_live_ms: int = 0
    """From its coming on; 0 for ever."""
    may_go_to_dead_messages: bool = True
    """Whether it is eligible for a dead message queue, where that is asked."""


@dataclass(frozen=True, slots=True)
class Fields:
    """What selectors look at."""

    values: Mapping[str, FieldValue] = field(default_factory=dict)
    """Headers by their JMS names, and user properties; what is not there counts as unknown."""
