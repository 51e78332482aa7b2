"""What can be said of a queue."""

from dataclasses import dataclass
from enum import Enum


class AccessType(Enum):
    """Who is fed by a queue: the first bound flow, or all of them in turn."""

    EXCLUSIVE = "exclusive"
    NON_EXCLUSIVE = "non-exclusive"


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """What can be said of a queue; defaults are those of a queue that a client creates on PubSub+."""

    access_type: AccessType = AccessType.EXCLUSIVE
    durable: bool = True
    """A queue that is not durable belongs to one connection and goes with it."""
    owner: str | None = None
    """Client username, for show; it gives no rights."""
    max_unacked_per_flow: int = 10_000
    max_bind_count: int = 1_000
    """Consumer flows at the same time; browsers do not count."""
    quota_bytes: int = 5_000_000_000
    max_message_bytes: int = 10_000_000
