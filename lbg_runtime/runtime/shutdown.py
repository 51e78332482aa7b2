"""The guarantee that a process that was asked to leave does leave."""

import os
import threading

import structlog

_log = structlog.get_logger(__name__)


class ExitGuard:
    """Ends the process with exit code 1 when it is still there after a time.

    A handler may ignore its cancellation, or hold the event loop itself; then nothing on the loop can bring the end.
    """

    def __init__(self) -> None:
        self._timer: threading.Timer | None = None

    def arm(self, after_s: float) -> None:
        """Begin to count, anew if it has begun."""
        self.disarm()
        self._timer = threading.Timer(after_s, self._exit)
        self._timer.daemon = True
        self._timer.start()

    def disarm(self) -> None:
        """Stop counting."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _exit(self) -> None:
        _log.error("exit_forced", reason="handlers went on after they were cancelled")
        # Not sys.exit: that would wait for the thread of the loop. What is unsettled goes back to its queue.
        os._exit(1)
