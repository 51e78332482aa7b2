"""Decides from probes and deliveries whether the application is there; no clock, no I/O."""

from enum import Enum

FAILURES_ALLOWED = 2
"""How many probes in a row an application may fail that is there, as a busy one may answer late."""

AWAY_INTERVAL_MS = 500
"""The time between two probes of an application that is away, unless the settings probe more often."""


class ApplicationState(Enum):
    """Events are sent only in READY."""

    AWAY = "away"
    """Also at first, as application and sidecar may start in any order."""
    READY = "ready"


class ApplicationHealth:
    """Fed by the one task that probes, and by deliveries."""

    def __init__(self, interval_ms: int, now_ms: int) -> None:
        self.state = ApplicationState.AWAY
        self.deadline_ms = now_ms
        """When to probe next, on the clock of `now_ms`."""
        self._interval_ms = interval_ms
        self._failures = 0

    @property
    def is_in_doubt(self) -> bool:
        """Whether the application may have been restarted since it was last seen to be there."""
        return self.state is ApplicationState.AWAY or self._failures > 0

    def probe_passed(self, now_ms: int) -> None:
        """A probe was answered well."""
        self._failures = 0
        self._become(ApplicationState.READY, now_ms)

    def probe_failed(self, now_ms: int) -> None:
        """A probe was not answered, or not well."""
        self._failures += 1
        is_excused = self.state is ApplicationState.READY and self._failures <= FAILURES_ALLOWED
        self._become(ApplicationState.READY if is_excused else ApplicationState.AWAY, now_ms)

    def not_reached(self, now_ms: int) -> bool:
        """A delivery found nobody listening, which says more than a late answer to a probe. Returns whether this is
        news."""
        is_news = self.state is ApplicationState.READY
        if is_news:
            self._become(ApplicationState.AWAY, now_ms)
        return is_news

    def _become(self, state: ApplicationState, now_ms: int) -> None:
        is_away = state is ApplicationState.AWAY
        self.deadline_ms = now_ms + (min(AWAY_INTERVAL_MS, self._interval_ms) if is_away else self._interval_ms)
        self.state = state
