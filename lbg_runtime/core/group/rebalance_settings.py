"""How many stand by, and how eagerly queues move."""

from dataclasses import dataclass

from lbg_runtime.model.errors import InvariantViolated


@dataclass(frozen=True, slots=True)
class RebalanceSettings:
    """The numbers of one group. Raises `InvariantViolated` where they make no sense."""

    standbys: int | None = 2
    """Members bound to a queue besides its home; None: all."""
    min_tenure_ms: int = 10_000
    """An owner keeps a queue at least this long, unless it leaves."""
    max_moves: int = 4
    """Queues that one member hands over at the same time."""
    answer_timeout_ms: int = 1_000
    """How long an offer waits for its answer."""
    step_aside_ms: int = 35_000
    """How long an accepted offer may take, and is remembered by those who step aside: the longest drain, and more."""
    backoff_min_ms: int = 1_000
    """Wait after a move that came to nothing; doubles up to the longest."""
    backoff_max_ms: int = 30_000
    longest_wait_ms: int = 600_000
    """Longest wait after drains that took too long; it begins at `step_aside_ms`."""

    def __post_init__(self) -> None:
        if (self.standbys is not None and self.standbys < 0) or self.max_moves < 1:
            raise InvariantViolated(f"no queue can be handed over by {self}")
