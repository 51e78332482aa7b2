"""A member's monotonic clock: begins anywhere and runs at its own rate."""

from lbg_runtime.sim.schedule import Schedule


class DriftingClock:
    """One per life of a member; all its machines go by it, and never see the time of the world."""

    def __init__(self, schedule: Schedule, first_ms: int, drift_permille: int) -> None:
        """Show `first_ms` now, and be `drift_permille` ms ahead after a second; with a negative drift, behind."""
        self._schedule = schedule
        self._began_ms = schedule.now_ms
        self._first_ms = first_ms
        self._rate_permille = 1_000 + drift_permille

    @property
    def now_ms(self) -> int:
        return self._first_ms + (self._schedule.now_ms - self._began_ms) * self._rate_permille // 1_000

    def wait_ms(self, until_ms: int) -> int:
        """How long, in the time of the world, until it shows `until_ms`; 0 if it already does."""
        # Rounded up, so that it shows no less than that when the wait is over.
        passed_ms = -(-(until_ms - self._first_ms) * 1_000 // self._rate_permille)
        return max(0, self._began_ms + passed_ms - self._schedule.now_ms)
