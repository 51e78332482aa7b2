"""Whether the application is there, as probes and deliveries find it; no clock, no I/O."""

from enum import Enum

FAILURES_ALLOWED = 2
"""Probes in a row that an application that is there may fail: a busy one may answer late."""

AWAY_INTERVAL_MS = 500
"""Between two probes of an application that is away, unless the settings ask more often."""


class ApplicationState(Enum):
    """Events are sent only in READY."""

    AWAY = "away"
    """Also at first: whichever starts first waits for the other."""
    READY = "ready"


class ApplicationHealth:
    """Fed by the one task that probes, and by deliveries."""

    def __init__(self, interval_ms: int, now_ms: int) -> None:
        self.state = ApplicationState.AWAY
        self.deadline_ms = now_ms
        """When to probe next."""
        self._interval_ms = interval_ms
        self._failures = 0

    @property
    def is_in_doubt(self) -> bool:
        """Whether it may have been restarted since it was last seen to be there."""
        return self.state is ApplicationState.AWAY or self._failures > 0

    def probe_passed(self, now_ms: int) -> None:
        """It answered well."""
        self._failures = 0
        self._become(ApplicationState.READY, now_ms)

    def probe_failed(self, now_ms: int) -> None:
        """It did not."""
        self._failures += 1
        is_excused = self.state is ApplicationState.READY and self._failures <= FAILURES_ALLOWED
        self._become(ApplicationState.READY if is_excused else ApplicationState.AWAY, now_ms)

    def not_reached(self, now_ms: int) -> bool:
        """A delivery found nobody listening, which says more than a probe that was late. Returns whether it is news."""
        is_news = self.state is ApplicationState.READY
        if is_news:
            self._become(ApplicationState.AWAY, now_ms)
        return is_news

    def _become(self, state: ApplicationState, now_ms: int) -> None:
        is_away = state is ApplicationState.AWAY
        self.deadline_ms = now_ms + (min(AWAY_INTERVAL_MS, self._interval_ms) if is_away else self._interval_ms)
        self.state = state
