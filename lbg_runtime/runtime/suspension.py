"""Tells whether the whole process was stopped for a while. If so, the broker may have given its queues away, and the
member cannot know that yet."""

STOPPED_FOR_NS = 5_000_000_000
"""The shortest standstill that counts as a stop. A broker gives the queues of a silent client away after 8 s or more,
an administrator perhaps sooner."""


class Suspension:
    """Notices SIGSTOP, a frozen container, a host that slept, a lack of processor time or of the interpreter's lock.

    Unlike when only the loop is blocked, the client's threads may have stood still as well. A thread of its own calls
    `look` about once a second; any thread may call `was_since`. Times are those of `since_boot_ns`.
    """

    def __init__(self, now_ns: int) -> None:
        self._looked_ns = self._late_ns = now_ns

    def look(self, now_ns: int) -> None:
        """Note that the process is running."""
        # In this order, so that a thread that asks in between sees the standstill by one of the two.
        if now_ns - self._looked_ns > STOPPED_FOR_NS:
            self._late_ns = now_ns
        self._looked_ns = now_ns

    def was_since(self, since_ns: int, now_ns: int) -> bool:
        """Whether the process went on after a stop between these two moments."""
        return now_ns - self._looked_ns > STOPPED_FOR_NS or self._late_ns > since_ns
