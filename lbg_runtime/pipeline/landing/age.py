"""Which rows are certainly old, for a member that prunes: a wall clock that steps ahead is not believed."""

import structlog

_log = structlog.get_logger(__name__)

STEP_US = 5 * 60 * 1_000_000
"""Clocks that are corrected without a step differ by less between two looks; so does what matters to a retention, of
which this must be a small part: a tenth, or a second."""


class Ages:
    """Owned by one lander. `look` and `is_aged` are never called at the same time.

    The wall clock dates rows. The steady clock only measures how long this process has known something.
    """

    def __init__(self, retention_us: int) -> None:
        """`retention_us`: rows that landed longer ago are old."""
        self._retention_us = retention_us
        self._step_us = min(STEP_US, max(1_000_000, retention_us // 10))
        self._steady_us = 0
        """At the last look."""
        self._ahead_us: int | None = None
        """How far the wall clock was ahead of the steady one when it was last believed; None before the first look."""
        self._stepped: tuple[int, int] | None = None
        """How far it was ahead after a step forward, and when that was seen, on the steady clock."""
        self._known: dict[str, tuple[int, int]] = {}
        """For each lane with rows that are dated after now: how many rows it had, and when, on the steady clock."""

    def look(self, wall_us: int, steady_us: int) -> int | None:
        """Rows that landed before this time are old; None while that is not certain. To be called at the start.

        After a step forward it is not certain until the retention has passed: what landed before the step is then old
        by any clock, and what landed since has the new dates. Or until the clock is back.
        """
        ahead_us = wall_us - steady_us
        believed_us = ahead_us if self._ahead_us is None else self._ahead_us
        self._steady_us = steady_us
        if ahead_us <= believed_us + self._step_us:
            # A step back only keeps rows for longer.
            self._stepped = None
        elif self._stepped is None or abs(ahead_us - self._stepped[0]) > self._step_us:
            self._stepped = ahead_us, steady_us
            _log.warning("landing_clock_stepped", stepped_ms=(ahead_us - believed_us) // 1_000)
        if self._stepped is not None and steady_us - self._stepped[1] < self._retention_us:
            return None
        self._ahead_us, self._stepped = ahead_us, None
        return wall_us - self._retention_us

    def is_aged(self, lane: str, rows: int, lane_rows: int) -> bool:
        """Whether this process has known these rows of a lane, which are dated after now, for as long as rows are kept.

        To be asked at each look, as long as the lane has such rows; they go after twice the retention at most.
        """
        known = self._known.get(lane)
        if known is None or (self._steady_us - known[1] >= self._retention_us and rows > known[0]):
            known = self._known[lane] = lane_rows, self._steady_us
        return rows <= known[0] and self._steady_us - known[1] >= self._retention_us
