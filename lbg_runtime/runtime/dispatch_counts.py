"""What a dispatcher counts of its troubles."""

from dataclasses import dataclass


@dataclass(slots=True)
class DispatchCounts:
    """Of one life of a member, since its beginning; whoever asks reads them on the member's loop."""

    moved: int = 0
    """Messages that lie on the error queue, as far as the broker has confirmed it."""
    moves_failed: int = 0
    """Times that it has not; they are tried again."""
    stops: int = 0
    """Queues that were stopped, once for each flow handle."""
    late_settlements: int = 0
    """Receipts that were settled when their attempt was over, or for a second time: without effect."""
