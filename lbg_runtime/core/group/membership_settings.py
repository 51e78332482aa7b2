"""How often members speak, and how long their silence is borne."""

from dataclasses import dataclass

from lbg_runtime.model.errors import UserError


@dataclass(frozen=True, slots=True)
class MembershipSettings:
    """The delays of a group's control traffic. Raises `UserError` for values that no schedule can be made of."""

    heartbeat_ms: int = 1_000
    """Longest time between two heartbeats of a member."""
    jitter: float = 0.2
    """Share of it that is left to chance, so that members do not speak at once."""
    suspect_after_missed: int = 3
    dead_after_missed: int = 5
    settle_ms: int = 2_000
    """How long nobody must come or go before queues are placed anew."""

    def __post_init__(self) -> None:
        if self.heartbeat_ms < 10:
            raise UserError("membership.heartbeat", f"{self.heartbeat_ms} ms", "at least 10 ms")
        if not 0 <= self.jitter <= 0.5:
            raise UserError("membership.jitter", str(self.jitter), "0 to 0.5")
        if not 1 <= self.suspect_after_missed < self.dead_after_missed:
            raise UserError(
                "membership.suspect_after_missed",
                f"{self.suspect_after_missed}, with dead_after_missed {self.dead_after_missed}",
                "at least 1, and dead after more",
            )
        if self.settle_ms < 0:
            raise UserError("membership.settle", f"{self.settle_ms} ms", "0 or more")

    @property
    def suspect_ms(self) -> int:
        """Silence after which a member is suspect."""
        return self._silence_ms(self.suspect_after_missed)

    @property
    def dead_ms(self) -> int:
        """Silence after which a member is dead."""
        return self._silence_ms(self.dead_after_missed)

    @property
    def forget_ms(self) -> int:
        """How long a life that has gone is remembered, so that stragglers of it are known as such.

        Not for ever: a member that starts anew on a host whose clock is behind has a lower life than its last one.
        """
        return 2 * self.dead_ms

    def _silence_ms(self, missed: int) -> int:
        return missed * self.heartbeat_ms + self.heartbeat_ms // 2
