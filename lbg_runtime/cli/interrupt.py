"""SIGTERM as an interrupt, for commands that have folders and processes to remove before they end."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupted_when_asked() -> Iterator[None]:
    """While the context lasts, SIGTERM does what SIGINT does where that is not ignored. Main thread only.

    By default it ends the process on the spot: temporary folders stay, and so does what it has started. An interrupt
    passes through the ends of all contexts, and the exit code is 130.
    """
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(_number: int, frame: FrameType | None) -> None:
    handler = signal.getsignal(signal.SIGINT)
    if callable(handler):
        # An event loop that runs has its own, which lets its tasks end.
        handler(signal.SIGINT, frame)
    else:
        # A shell that is no terminal's has what it starts in the background ignore SIGINT.
        raise KeyboardInterrupt
