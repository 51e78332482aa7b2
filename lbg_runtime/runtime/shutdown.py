"""Signals, and the guarantee that a process that was asked to leave does leave."""

import os
import signal
import threading
from collections.abc import Callable

import anyio
import structlog

_log = structlog.get_logger(__name__)

PARENT_CHECK_S = 0.2


async def follow_signals(stop: Callable[[], None], stop_now: Callable[[], None]) -> None:
    """Call `stop` on the first SIGTERM or SIGINT and `stop_now` on each after it, until cancelled. Main thread only."""
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        act = stop
        async for number in signals:
            _log.info("signal_received", signal=signal.Signals(number).name)
            act()
            act = stop_now


async def follow_parent(parent_pid: int, stop: Callable[[], None]) -> None:
    """Call `stop` when this process, which started ours, is gone.

    The caller looks up its id as early as it can: a parent that is gone before that cannot be told from the next one.
    """
    # Watched, because the kernel's own signal comes when the thread that forked us ends, not the process.
    while os.getppid() == parent_pid:  # noqa: ASYNC110 - nothing tells of it
        await anyio.sleep(PARENT_CHECK_S)
    _log.info("parent_ended")
    stop()


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
