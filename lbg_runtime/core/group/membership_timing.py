"""The times of a membership machine: how often members speak, and how long their silence is tolerated."""

from dataclasses import dataclass

from lbg_runtime.model.errors import InvariantViolated

SUSPECT_AFTER_MISSED = 3
DEAD_AFTER_MISSED = 5


@dataclass(frozen=True, slots=True)
class MembershipTiming:
    """The delays of a group's control traffic. Raises `InvariantViolated` if no schedule can be made from them."""

    heartbeat_ms: int = 1_000
    """Longest time between two heartbeats of a member."""
    jitter: float = 0.2
    """Share of the interval that is left to chance, so that members do not all speak at once."""
    settle_ms: int = 2_000
    """How long nobody may come or go before queues are placed again."""

    def __post_init__(self) -> None:
        if not (self.heartbeat_ms >= 10 and 0 <= self.jitter <= 0.5 and self.settle_ms >= 0):
            raise InvariantViolated(f"no schedule can be made of {self}")

    @property
    def suspect_ms(self) -> int:
        """Silence after which a member is suspect."""
        return self._silence_ms(SUSPECT_AFTER_MISSED)

    @property
    def dead_ms(self) -> int:
        """Silence after which a member is dead."""
        return self._silence_ms(DEAD_AFTER_MISSED)

    @property
    def forget_ms(self) -> int:
        """How long a life that has gone is remembered, so that its late messages are recognised.

        Not for ever: a member restarted on a host whose clock is behind has a lower life than its last one.
        """
        return 2 * self.dead_ms

    def _silence_ms(self, missed: int) -> int:
        return missed * self.heartbeat_ms + self.heartbeat_ms // 2
