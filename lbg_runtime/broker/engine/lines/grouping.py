"""What can be said of message groups."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Grouping:
    """How a queue groups."""

    is_enabled: bool = False
    """Whether it does; a queue that is exclusive or partitioned does not all the same."""
    buckets: int | None = None
    """Groups are hashed into so many, each pinned as one, which bounds the table; None: every group for itself."""
    timeout_ms: int | None = None
    """A group of which nothing was sent for so long, and nothing is in flight, is pinned anew; None for never."""
    rebalances: bool = False
    """Whether all groups are pinned anew when a flow joins. Else it gets new groups only."""
    pauses: bool = False
    """Whether nothing is sent after that until everything in flight is settled; else two flows can have messages of
    one group at the same time."""
    first_property: str | None = None
    """User property, set to true, on the first message of a group that a flow is sent; None for none."""
