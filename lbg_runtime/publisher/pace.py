"""An even rate of messages, for a caller that looks only now and then."""

MAX_LAG_S = 0.1


class Pace:
    """Tells how many messages are due; of what a stall has delayed, it makes up for no more than `MAX_LAG_S`.

    So a publisher that waited through an outage goes on at its rate, instead of flooding the group with the backlog.
    Times are seconds of any one monotonic clock.
    """

    def __init__(self, rate_per_s: float, now_s: float) -> None:
        self._interval_s = 1 / rate_per_s
        self._max_lag_s = max(MAX_LAG_S, self._interval_s)
        self._next_s = now_s

    def due(self, now_s: float) -> int:
        """How many messages to send now; they count as sent."""
        self._next_s = max(self._next_s, now_s - self._max_lag_s)
        if now_s < self._next_s:
            return 0
        count = int((now_s - self._next_s) / self._interval_s) + 1
        self._next_s += count * self._interval_s
        return count
