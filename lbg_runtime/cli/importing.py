"""An interrupt while a command is still being imported ends the process, without a message."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing() -> Iterator[None]:
    """End at once by SIGINT, as a shell shows by 130, while the context lasts. Main thread only.

    `KeyboardInterrupt` would be a traceback of whatever is just being imported, and some of that makes another error
    of it.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:
        # Ignored, as for what a shell has started in the background, or somebody else's.
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
