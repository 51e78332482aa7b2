"""When a flow gives way, and when it tries to bind again: every delay of a flow machine, with its jitter."""

from dataclasses import dataclass

from lbg_runtime.core.chance import RandomSource
from lbg_runtime.model.errors import InvariantViolated


@dataclass(frozen=True, slots=True)
class RebindSettings:
    """The delays of one group's flows. Raises `InvariantViolated` where no schedule can be made of them."""

    interval_ms: int
    """Longest time that a flow stays active before it gives way, where its place says that it does."""
    jitter: float
    """Share of the interval that is left to chance, 0 to 1."""
    drain_timeout_ms: int
    """How long a drain starts what has already arrived; after it, what has not started goes back unhandled."""
    bind_backoff_min_ms: int
    """Wait after a first failed bind; also the longest pause between giving way and binding again."""
    bind_backoff_max_ms: int
    """Wait after many failed binds, or one that was refused for good."""
    quiet_gap_ms: int
    """A drained flow is unbound when nothing has arrived for this long: one round trip to the broker, or more.

    What was under way when intake stopped is then handled here, and does not come to the next member flagged.
    """
    rank_delay_ms: int
    """How much later a standby binds than the one that stands before it, so that the broker's line is in order of rank;
    also the longest pause after a hop."""

    def __post_init__(self) -> None:
        if not (
            min(self.interval_ms, self.bind_backoff_min_ms, self.rank_delay_ms) >= 1
            and min(self.drain_timeout_ms, self.quiet_gap_ms) >= 0
            and 0 <= self.jitter <= 1
            and self.bind_backoff_min_ms <= self.bind_backoff_max_ms
        ):
            raise InvariantViolated(f"no schedule can be made of {self}")


def rebind_delay_ms(settings: RebindSettings, random: RandomSource) -> int:
    """How long a flow that gives way and just became active stays so; never above the interval, never below 1 ms.

    With jitter 1 it is uniform over the whole interval. Members started by one deployment would otherwise cycle
    together, and a queue would pass through several hands within milliseconds.
    """
    kept_share = 1 - random.uniform(0, settings.jitter)
    return max(1, round(settings.interval_ms * kept_share))


def rebind_pause_ms(settings: RebindSettings, random: RandomSource) -> int:
    """How long a flow that gave way stays unbound, so that it queues up behind everyone who waits now."""
    return max(1, round(random.uniform(0, settings.bind_backoff_min_ms)))


def hop_pause_ms(settings: RebindSettings, random: RandomSource) -> int:
    """How long a flow that stepped aside stays unbound; jittered, or two that step aside would meet again and again."""
    return max(1, round(random.uniform(0, settings.rank_delay_ms)))


def bind_backoff_ms(settings: RebindSettings, failed_binds: int, random: RandomSource, *, permanent: bool) -> int:
    """The wait after `failed_binds` failures in a row, from 1: doubling up to the longest, half of it jitter.

    The longest at once after a refusal that waiting will not change (`permanent`): the queue may be created some day.
    """
    ceiling_ms = settings.bind_backoff_max_ms
    if not permanent:
        # The exponent is bounded only to keep the power small; the longest wait is reached long before.
        ceiling_ms = min(ceiling_ms, settings.bind_backoff_min_ms << min(failed_binds - 1, 30))
    return max(1, round(random.uniform(ceiling_ms / 2, ceiling_ms)))
