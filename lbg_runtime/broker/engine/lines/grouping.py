"""The settings of message groups."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Grouping:
    """How a queue groups messages."""

    is_enabled: bool = False
    """Whether it groups; an exclusive or partitioned queue does not in any case."""
    buckets: int | None = None
    """Groups are hashed into this many buckets, each pinned as one, which bounds the table; None: every group by
    itself."""
    timeout_ms: int | None = None
    """A group with nothing sent for this long and nothing in flight is pinned again; None for never."""
    rebalances: bool = False
    """Whether all groups are pinned again when a flow joins. Otherwise it gets only new groups."""
    pauses: bool = False
    """Whether nothing is sent after that until everything in flight is settled; otherwise two flows can have messages
    of one group at the same time."""
    first_property: str | None = None
    """User property set to true on the first message of a group that a flow is sent; None for none."""
