"""How a flow handle is given up: why, how far the drain has gone, and what moves it on."""

from dataclasses import dataclass
from enum import Enum

from lbg_runtime.core.flow.events import ReleaseCause
from lbg_runtime.core.flow.rebind import RebindSettings


class DrainPhase(Enum):
    """How far a drain has gone; it never goes back."""

    FINISH = "finish"
    """All that has arrived is handled, and what is under way too."""
    WAIT = "wait"
    """What had not started went back; what runs is waited for, until a stop's bound cancels it."""


@dataclass(slots=True)
class Release:
    """One handle's way out. A flow machine has one in DRAINING and UNBINDING, and in no other state."""

    cause: ReleaseCause
    phase: DrainPhase
    drain_until_ms: int | None
    """When the drain goes on to its next phase; None where only the end of what runs ends it."""
    quiet_at_ms: int
    """In phase FINISH: not unbound before this, because messages may be under way."""
    move_id: str = ""
    """Which request a hand-back follows; empty for any other cause."""

    @classmethod
    def draining(cls, cause: ReleaseCause, settings: RebindSettings, now_ms: int, move_id: str = "") -> "Release":
        """All that has arrived is handled first, within the drain timeout."""
        patience_ms = settings.drain_timeout_ms
        if cause is ReleaseCause.HANDBACK:
            # It ends with the queue kept, so that a timeout below the quiet gap would let no queue ever go.
            patience_ms = max(patience_ms, settings.quiet_gap_ms)
        drain_until_ms = now_ms + patience_ms
        return cls(cause, DrainPhase.FINISH, drain_until_ms, now_ms + settings.quiet_gap_ms, move_id)

    @classmethod
    def waiting(cls, cause: ReleaseCause, now_ms: int, move_id: str = "") -> "Release":
        """Nothing more is started, and what runs takes the time it takes."""
        return cls(cause, DrainPhase.WAIT, drain_until_ms=None, quiet_at_ms=now_ms, move_id=move_id)

    def deadline_ms(self, in_flight: int) -> int | None:
        """When there is something to decide next."""
        if self.phase is DrainPhase.FINISH and not in_flight:
            return self.quiet_at_ms if self.drain_until_ms is None else min(self.quiet_at_ms, self.drain_until_ms)
        return self.drain_until_ms

    def is_drained(self, in_flight: int, now_ms: int) -> bool:
        """Whether the handle can be unbound (law L5)."""
        return not in_flight and (self.phase is not DrainPhase.FINISH or now_ms >= self.quiet_at_ms)

    def stop_at(self, drain_until_ms: int) -> None:
        """The member leaves: from now on this release is its own, with a bound on what runs."""
        self.cause, self.move_id = ReleaseCause.STOP, ""
        self.drain_until_ms = drain_until_ms

    def lose_activity(self) -> bool:
        """Start nothing more; returns whether that is news. A stop keeps its cause and its bound."""
        if self.phase is not DrainPhase.FINISH:
            return False
        self.phase = DrainPhase.WAIT
        if self.cause is not ReleaseCause.STOP:
            self.cause, self.move_id = ReleaseCause.INACTIVE, ""
            self.drain_until_ms = None
        return True
