"""The numbers of a rebalance machine: how many members stand by, and how eagerly queues move."""

from dataclasses import dataclass

from lbg_runtime.model.errors import InvariantViolated


@dataclass(frozen=True, slots=True)
class RebalanceSettings:
    """The numbers of one group. Raises `InvariantViolated` if they make no sense."""

    standbys: int | None = 2
    """Members bound to a queue besides its home; None: all."""
    min_tenure_ms: int = 10_000
    """An owner keeps a queue at least this long, unless it leaves."""
    max_moves: int = 4
    """Queues that one member hands over at the same time."""
    answer_timeout_ms: int = 1_000
    """How long an offer waits for its answer."""
    step_aside_ms: int = 35_000
    """How long an accepted offer may take, and how long others step aside for it: longer than the longest drain."""
    backoff_min_ms: int = 1_000
    """Wait after a failed move; doubles up to `backoff_max_ms`."""
    backoff_max_ms: int = 30_000

    def __post_init__(self) -> None:
        if (self.standbys is not None and self.standbys < 0) or self.max_moves < 1:
            raise InvariantViolated(f"no queue can be handed over by {self}")
