"""The stream of a log: whole lines, whoever reads them, and whatever becomes of its file."""

import os
import select
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

import structlog

READER_WAIT_MS = 1_000
"""How long a line waits for its reader in all. If it finds no room until then, it and those after it are counted as not
written."""

_BREATH_S = 0.001

_ROW_ERASED = "\r\x1b[2K"
"""Takes away what is in the terminal's row, and begins at its left."""

_log = structlog.get_logger(__name__)


class LogOutput:
    """A stream for a log: a failed write raises nothing, and is reported in the log once writing works again.

    Lines are written while messages are handled: a reader that went away or a full disk must not end the handling, and
    a reader that stopped reading must not hold it up for longer than `READER_WAIT_MS`. They bypass the stream and go to
    its file, if it has one: a stream silently drops or keeps what its file did not take as a whole. This is structlog's
    logger as well, as structlog's own loggers wait forever if a line is written while another one is being written:
    here that happens after a failed write, and when a finalizer fails meanwhile. Used from any thread.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.RLock()
        self._is_torn = False
        """Whether the last write ended in the middle of a line."""
        self._is_stuck = False
        """Whether the last write found no room."""
        self._failed_count = 0
        self._told_count = 0
        """How many of the failed writes have been reported."""
        self._has_row = False
        # If a thread holds the lock during a fork, that thread does not exist in the child, and never releases it.
        os.register_at_fork(after_in_child=self._renew_lock)

    def write(self, text: str) -> None:
        """Write a whole line, at once."""
        with self._lock:
            if not self._put(_ROW_ERASED * self._has_row + text):
                self._failed_count += 1
                return
            told_before, self._told_count = self._told_count, self._failed_count
            failed_count = self._failed_count
        if failed_count > told_before:
            _log.error("log_writes_failed", count=failed_count - told_before)
            with self._lock:
                if self._failed_count > failed_count:
                    # The line that reports the failures could not be written either.
                    self._told_count = told_before

    def _put(self, text: str) -> bool:
        try:
            file = self._stream.fileno()
        except (OSError, ValueError):  # the second if the stream is closed
            file = None
        try:
            if file is None:
                self._stream.write(text)
                self._stream.flush()
                return True
            rest = memoryview(("\n" * self._is_torn + text).encode("utf-8", "backslashreplace"))
            with _not_waiting(file) as (target, largest):
                # The time for the whole line, into however many pieces a slow reader divides it.
                until_s = time.monotonic() + (0 if self._is_stuck else READER_WAIT_MS / 1_000)
                while rest:
                    if not self._has_room(target, until_s):
                        return False
                    try:
                        written = os.write(target, rest[:largest])
                    except BlockingIOError:
                        # Another process took the room, or it is too little, of which `poll` tells nothing.
                        self._is_stuck = time.monotonic() >= until_s
                        if self._is_stuck:
                            return False
                        time.sleep(_BREATH_S)
                        continue
                    self._is_torn, rest = True, rest[written:]
        except (OSError, ValueError):
            return False
        self._is_torn = False
        return True

    def _has_room(self, file: int, until_s: float) -> bool:
        """Wait for room, but only once for a reader that does not read. True if a write would fail at once."""
        looking = select.poll()
        looking.register(file, select.POLLOUT)
        self._is_stuck = not looking.poll(max(0, until_s - time.monotonic()) * 1_000)
        return not self._is_stuck

    def _renew_lock(self) -> None:
        self._lock = threading.RLock()

    @contextmanager
    def above_row(self) -> Iterator[None]:
        """While the context lasts, lines take the place of what is in the terminal's last row, and whoever shows that
        shows it again below them."""
        self._has_row = True
        try:
            yield
        finally:
            self._has_row = False

    def flush(self) -> None:
        """Do nothing, as nothing is buffered."""

    def msg(self, line: str) -> None:
        """Write a line from structlog."""
        self.write(f"{line}\n")

    debug = info = warning = error = critical = msg


@contextmanager
def _not_waiting(file: int) -> Iterator[tuple[int, int]]:
    """A descriptor of the same file, and how much a write to it takes without waiting once there is room.

    Opened anew, as the file itself would make others not wait either: it then takes a whole line in one piece, if there
    is room for it, and the lines of several processes do not break into each other.
    """
    if stat.S_ISREG(os.fstat(file).st_mode):
        yield file, sys.maxsize
        return
    try:
        target = os.open(f"/proc/self/fd/{file}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        # A socket, somebody else's terminal, or not Linux. A pipe and a socket with room take at least this.
        yield file, select.PIPE_BUF
        return
    try:
        yield target, sys.maxsize
    finally:
        os.close(target)
