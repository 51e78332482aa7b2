"""Whether the whole process was stopped: then the broker may have given its queues away, and it cannot know yet."""

STOPPED_FOR_NS = 5_000_000_000
"""What counts as a stop. A broker gives the queues of a silent client away after 8 s and more, an administrator perhaps
sooner."""


class Suspension:
    """Notices SIGSTOP, a frozen container, a host that slept, a want of processor time or of the interpreter's lock.

    Unlike for a loop that is blocked, the client's threads may have stood still as well. One thread that does nothing
    else calls `look`, about once a second; any thread may ask. Times are those of `since_boot_ns`.
    """

    def __init__(self, now_ns: int) -> None:
        self._looked_ns = self._late_ns = now_ns

    def look(self, now_ns: int) -> None:
        """Note that the process is running."""
        # In this order: who asks meanwhile sees one or the other.
        if now_ns - self._looked_ns > STOPPED_FOR_NS:
            self._late_ns = now_ns
        self._looked_ns = now_ns

    def was_since(self, since_ns: int, now_ns: int) -> bool:
        """Whether the process was stopped, and went on between these two moments."""
        return now_ns - self._looked_ns > STOPPED_FOR_NS or self._late_ns > since_ns
