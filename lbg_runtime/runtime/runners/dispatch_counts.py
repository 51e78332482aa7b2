"""What a dispatcher counts of its troubles."""

from dataclasses import dataclass


@dataclass(slots=True)
class DispatchCounts:
    """Of one life of a member, since its beginning; whoever asks reads them on the member's loop."""

    failed_attempts: int = 0
    """Attempts of handlers that failed, the last of a message among them, and those for which there is no handler."""
    moved: int = 0
    """Messages that lie on the error queue, as far as the broker has confirmed it."""
    parked: int = 0
    """Messages that this member has parked, those among them that follow another of their key."""
    moves_failed: int = 0
    """Times that the broker has not confirmed that a message is moved or parked; they are tried again."""
    stops: int = 0
    """Queues that were stopped, once for each flow handle."""
    without_key: int = 0
    """Messages that arrived without a key."""
    bodies_refused: int = 0
    """Attempts that failed because the payload was not what the handler's annotation says."""
    late_settlements: int = 0
    """Receipts that were settled when their attempt was over, or for a second time: without effect."""
