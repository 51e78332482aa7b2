"""How a process is asked to leave: a signal, or the end of the process that started it."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum

_PARENT_CHECK_S = 0.2


class StopCause(Enum):
    """Who asked."""

    SIGTERM = "SIGTERM"
    SIGINT = "SIGINT"
    PARENT_GONE = "parent gone"


@contextmanager
def stop_requests(on_request: Callable[[StopCause], None], *, parent_pid: int | None = None) -> Iterator[None]:
    """Call back on the loop each time this process is asked to leave, while the context lasts. Main thread only.

    `parent_pid`: the process that started this one; its end is told once. The caller looks it up as early as it can: a
    parent that is gone before that cannot be told from the next one.
    """
    loop = asyncio.get_running_loop()
    for cause, number in ((StopCause.SIGTERM, signal.SIGTERM), (StopCause.SIGINT, signal.SIGINT)):
        loop.add_signal_handler(number, on_request, cause)
    timer: asyncio.TimerHandle | None = None

    def look() -> None:
        nonlocal timer
        # Looked at, not asked of the kernel: its death signal comes when the thread that started us ends, which may be
        # long before its process does.
        if os.getppid() != parent_pid:
            on_request(StopCause.PARENT_GONE)
        else:
            timer = loop.call_later(_PARENT_CHECK_S, look)

    if parent_pid is not None:
        look()
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
