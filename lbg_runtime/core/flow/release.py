"""How a flow handle is given up: why, how far the drain has got, and what moves it on."""

from dataclasses import dataclass
from enum import Enum

from lbg_runtime.core.flow.events import ReleaseCause
from lbg_runtime.core.flow.rebind import RebindSettings

LOOK_EVERY_MS = 100
"""How often a hand-back checks whether anything still moves. Not more often, as a look is linear in what the member
holds."""


class DrainPhase(Enum):
    """How far a drain has got; it never goes back."""

    FINISH = "finish"
    """Everything that has arrived or is under way is handled."""
    WAIT = "wait"
    """What had not started has been returned; what is running is waited for, until a stop's bound cancels it."""


@dataclass(slots=True)
class Release:
    """The giving up of one handle. A flow machine has one in DRAINING and UNBINDING, and in no other state."""

    cause: ReleaseCause
    phase: DrainPhase
    drain_until_ms: int | None
    """When the drain enters its next phase; None if it ends only when what is running has ended."""
    quiet_at_ms: int
    """In phase FINISH, do not unbind before this, because messages may be under way."""
    move_id: str = ""
    """The request that caused a hand-back; empty for any other cause."""
    look_at_ms: int | None = None
    """In phase FINISH of a hand-back, when to look next whether anything in flight still moves; None: never."""

    @classmethod
    def draining(cls, cause: ReleaseCause, settings: RebindSettings, now_ms: int, move_id: str = "") -> "Release":
        """A release that first handles everything that has arrived, within the drain timeout."""
        patience_ms = settings.drain_timeout_ms
        if cause is ReleaseCause.HANDBACK:
            # A hand-back that times out keeps the queue, so with a timeout below the quiet gap no queue would ever go.
            patience_ms = max(patience_ms, settings.quiet_gap_ms)
        quiet_at_ms = now_ms + settings.quiet_gap_ms
        # Only a hand-back looks. Rebinds recur, so to end them early would restart a message's attempts for ever; and a
        # stop goes on trying as long as it may, because there need be no other member to go on.
        look_at_ms = quiet_at_ms if cause is ReleaseCause.HANDBACK else None
        return cls(cause, DrainPhase.FINISH, now_ms + patience_ms, quiet_at_ms, move_id, look_at_ms)

    @classmethod
    def waiting(cls, cause: ReleaseCause, now_ms: int, move_id: str = "") -> "Release":
        """A release that starts nothing more, and lets what is running take as long as it needs."""
        return cls(cause, DrainPhase.WAIT, drain_until_ms=None, quiet_at_ms=now_ms, move_id=move_id)

    def deadline_ms(self, in_flight: int) -> int | None:
        """When there is next something to decide; None to wait for an event."""
        if self.phase is DrainPhase.FINISH and not in_flight:
            next_ms: int | None = self.quiet_at_ms
        else:
            next_ms = self._next_look_ms()
        moments = [moment for moment in (next_ms, self.drain_until_ms) if moment is not None]
        return min(moments, default=None)

    def is_drained(self, in_flight: int, now_ms: int) -> bool:
        """Whether the handle can be unbound (law L5)."""
        return not in_flight and (self.phase is not DrainPhase.FINISH or now_ms >= self.quiet_at_ms)

    def begin_look(self, now_ms: int) -> bool:
        """If a look at whether anything in flight still moves is due, begin it: set when the next is due, and return
        True."""
        next_ms = self._next_look_ms()
        if next_ms is None or now_ms < next_ms:
            return False
        self.look_at_ms = now_ms + LOOK_EVERY_MS
        return True

    def end_stalled(self, now_ms: int, *, has_stopped: bool) -> bool:
        """Start nothing more, because nothing in flight moves; return whether that is a change.

        It is none while messages may be under way, nor for any cause but a hand-back, unless the queue `has_stopped`
        and nothing will be tried again. Afterwards a hand-back cannot be given up any more: what was returned is shown
        again only on a new handle.
        """
        is_ended_by_stall = self.look_at_ms is not None or (has_stopped and self.phase is DrainPhase.FINISH)
        if not is_ended_by_stall or now_ms < self.quiet_at_ms:
            return False
        self.start_nothing_more()
        return True

    def start_nothing_more(self) -> None:
        """Wait only for what is running, for as long as that takes."""
        self.phase = DrainPhase.WAIT
        self.drain_until_ms = self.look_at_ms = None

    def stop_at(self, drain_until_ms: int) -> None:
        """Turn this into the release of a member that is leaving, with a bound on what is running."""
        self.cause, self.move_id, self.look_at_ms = ReleaseCause.STOP, "", None
        self.drain_until_ms = drain_until_ms

    def lose_activity(self) -> bool:
        """Start nothing more; return whether that is a change. A stop keeps its cause and its bound."""
        if self.phase is not DrainPhase.FINISH:
            return False
        self.phase = DrainPhase.WAIT
        if self.cause is not ReleaseCause.STOP:
            self.cause, self.move_id = ReleaseCause.INACTIVE, ""
            self.drain_until_ms = self.look_at_ms = None
        return True

    def _next_look_ms(self) -> int | None:
        return None if self.look_at_ms is None else max(self.look_at_ms, self.quiet_at_ms)
