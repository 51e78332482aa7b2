"""The counts of what goes wrong in a dispatcher, or is unusual."""

from dataclasses import dataclass


@dataclass(slots=True)
class DispatchCounts:
    """Counts since the start of one life of a member; read them on the member's loop."""

    failed_attempts: int = 0
    """Failed attempts, including the last of a message and those for which there is no handler."""
    moved: int = 0
    """Messages moved to the error queue or the dead message queue, as confirmed by the broker."""
    parked: int = 0
    """Messages that this member has parked, including those that follow another of their key."""
    moves_failed: int = 0
    """How often the broker did not confirm that a message is moved or parked; the move is tried again."""
    stops: int = 0
    """Queues that were stopped, once for each flow handle."""
    without_key: int = 0
    """Messages that arrived without a key."""
    bodies_refused: int = 0
    """Attempts that failed because the payload does not fit the handler's annotation."""
    late_settlements: int = 0
    """Receipts settled after their attempt was over, or for a second time: without effect."""
