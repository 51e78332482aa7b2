"""A member's place on a queue: what the group wants of it there. What the broker does is activity; neither is derived
from the other."""

from dataclasses import dataclass
from enum import Enum

from lbg_runtime.model.errors import UserError


class Role(Enum):
    """A member's role on one queue. Values are those of the journal."""

    PRIMARY = "primary"
    """Binds and stays."""
    SECONDARY = "secondary"
    """Stands by, or holds the queue until the primary takes it."""


@dataclass(frozen=True, slots=True)
class Place:
    """A member's rank among those that may hold one queue. Only a wish: the broker decides which flow it feeds."""

    rank: int | None
    """0 at home, r >= 1 for the r-th standby after it, None if the member is not wanted on the queue."""
    gives_way: bool
    """Whether it gives way once per rebind cycle while it is active and not at home, so that others get a turn. For
    when members do not, or cannot, tell each other who is next."""

    @property
    def is_wanted(self) -> bool:
        """Whether the member should be bound to the queue."""
        return self.rank is not None

    @property
    def role(self) -> Role:
        """The place in the journal's terms."""
        return Role.PRIMARY if self.rank == 0 else Role.SECONDARY

    def __str__(self) -> str:
        """The place in words: `home`, `standby 1`, `none`."""
        if self.rank is None:
            return "none"
        return f"standby {self.rank}" if self.rank else "home"


@dataclass(frozen=True, slots=True)
class CountedPlace:
    """A member's place among counted ones, which need not all be running. Raises `UserError` for an index outside the
    count."""

    index: int
    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise UserError("membership.count", str(self.count), "at least 1 member")
        if not 0 <= self.index < self.count:
            expected = f"0 to {self.count - 1}, for {self.count} members"
            raise UserError("membership.index", str(self.index), expected)

    def on(self, queue_index: int) -> Place:
        """The place on a queue: at home if queue mod count = index, else a standby of rank 1 to count - 1.

        Source: "sticky load balancing" as Solace describes it. A queue whose home is away is held by a standby, which
        gives way from time to time.
        """
        return Place((queue_index - self.index) % self.count, gives_way=True)
