"""When a flow gives way, and when it tries to bind again: every delay of a flow machine, with its jitter."""

from dataclasses import dataclass

from lbg_runtime.core.chance import RandomSource, doubled_ms, shortened_ms
from lbg_runtime.model.errors import InvariantViolated


@dataclass(frozen=True, slots=True)
class RebindSettings:
    """The delays of one group's flows. Raises `InvariantViolated` if no schedule can be made from them."""

    interval_ms: int
    """Longest time that a flow stays active before it gives way, if its place has it give way."""
    jitter: float
    """Share of the interval that is left to chance, 0 to 1."""
    drain_timeout_ms: int
    """How long a drain starts what has already arrived; after it, what has not started goes back unhandled."""
    bind_backoff_min_ms: int
    """Wait after the first failed bind; also the longest pause between giving way and binding again."""
    bind_backoff_max_ms: int
    """Longest wait after failed binds; used at once after one that was refused permanently."""
    quiet_gap_ms: int
    """A drained flow is unbound when nothing has arrived for this long: one round trip to the broker, or more.

    So what was under way when intake stopped is handled here, and does not reach the next member flagged.
    """
    rank_delay_ms: int
    """How much later each standby binds than the one of the rank before, so that the broker's line is in rank order;
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
    """How long a newly active flow stays active before it gives way; at most the interval, at least 1 ms.

    With jitter 1 it is uniform over the whole interval. Without jitter, members started by one deployment would cycle
    together, and a queue would pass through several hands within milliseconds.
    """
    return shortened_ms(settings.interval_ms, settings.jitter, random)


def rebind_pause_ms(settings: RebindSettings, random: RandomSource) -> int:
    """How long a flow that gave way stays unbound, so that it queues up behind everyone who is waiting now."""
    return max(1, round(random.uniform(0, settings.bind_backoff_min_ms)))


def hop_pause_ms(settings: RebindSettings, random: RandomSource) -> int:
    """How long a flow that stepped aside stays unbound; jittered, as two such flows would otherwise keep colliding."""
    return max(1, round(random.uniform(0, settings.rank_delay_ms)))


def bind_backoff_ms(settings: RebindSettings, failed_binds: int, random: RandomSource, *, permanent: bool) -> int:
    """The wait after `failed_binds` failures in a row, from 1: doubling up to the longest wait, half of it jitter.

    A refusal that waiting will not change (`permanent`) gets the longest wait at once: the queue may yet be created.
    """
    longest_ms = settings.bind_backoff_max_ms
    return doubled_ms(longest_ms if permanent else settings.bind_backoff_min_ms, longest_ms, failed_binds, random)
