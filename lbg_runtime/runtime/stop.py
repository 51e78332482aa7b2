"""How a process is asked to leave: a signal, or the end of the process that started it."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from types import FrameType
from typing import Any

from lbg_runtime.model.errors import UserError

_PARENT_CHECK_S = 0.2
_PARENT_VARIABLE = "LBG_PARENT_PID"
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

_before: dict[signal.Signals, Callable[[int, FrameType | None], Any] | int] = {}
"""What was done about each signal by which requests are heard at present."""


def _hear_nothing() -> None:
    """In a process that is forked from this one, as a pool of processes does: give each signal back what was done.

    The two share the descriptor by which a loop learns of signals. So what the other one is sent, as the pool ends it
    or a supervisor the whole group, would ask this one to leave.
    """
    if _before:
        signal.set_wakeup_fd(-1)
        for number, before in _before.items():
            signal.signal(number, before)


os.register_at_fork(after_in_child=_hear_nothing)


class StopCause(Enum):
    """What asked the process to leave."""

    SIGTERM = "SIGTERM"
    SIGINT = "SIGINT"
    SIGHUP = "SIGHUP"
    """The terminal has closed."""
    PARENT_GONE = "parent gone"

    @property
    def hurries(self) -> bool:
        """Whether it tells a process that is leaving already to hurry: whoever asks twice does.

        A parent that ends after its signal does not; nor does a terminal, which may send SIGHUP twice as it closes.
        """
        return self in (StopCause.SIGTERM, StopCause.SIGINT)


def child_environment() -> dict[str, str]:
    """The environment for a process that is to leave with this one: it names us, for the child's `starting_parent`."""
    return {**os.environ, _PARENT_VARIABLE: str(os.getpid())}


def starting_parent() -> int:
    """The process that started this one, to be watched by `stop_requests`: even one that has already gone, if it said.

    Without `child_environment`, one that goes before this call cannot be told from whoever adopts us, so call it as
    early as possible. What it said is taken out of the environment: it is nothing to the processes that we start.
    """
    named = os.environ.pop(_PARENT_VARIABLE, "")
    return int(named) if named.isdecimal() else os.getppid()


def send_signal(pid: int, number: signal.Signals) -> None:
    """Signal a process that this one has started and waits for on a loop; nothing if it has ended.

    The process's own method looks whether it has ended, and thereby takes the exit code from the loop, which then tells
    of an unknown process, and of 255 (CPython issue 87744).
    """
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def ignore_requests() -> None:
    """Ignore SIGTERM, SIGINT and SIGHUP from now on: this process is already on its way out. Main thread only.

    For the end of a process, whose exit code no signal must replace. Make sure that it has a bound.
    """
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def insist_on_own_loop() -> None:
    """Raise `UserError` where no loop can be run that hears what asks this process to leave."""
    if threading.current_thread() is not threading.main_thread():
        raise UserError("App.run_sync", "a call from another thread", "the main one, as no other hears signals")
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        raise UserError("App.run_sync", "a call on a running event loop", "`await app.run()` there")


@contextmanager
def stop_requests(
    on_request: Callable[[StopCause], None], *, parent_pid: int | None = None, ends_process: bool = False
) -> Iterator[None]:
    """Call back on the loop each time this process is asked to leave, while the context lasts. Main thread only.

    `parent_pid`: the process that started this one (`starting_parent`); its end is reported once, at once if it has
    gone already. `ends_process`: nothing follows the context but the end of the process, so later requests are ignored
    (`ignore_requests`). What is sent to a process that is forked meanwhile is not heard here. SIGHUP is heard only
    where it has its default: not under `nohup`, nor if a handler's module uses it.
    """
    loop = asyncio.get_running_loop()
    is_free = signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    heard = [number for number in _SIGNALS if number is not signal.SIGHUP or is_free]
    for number in heard:
        _before[number] = signal.getsignal(number) or signal.SIG_DFL
        loop.add_signal_handler(number, on_request, StopCause(number.name))
    timer: asyncio.TimerHandle | None = None

    def look() -> None:
        nonlocal timer
        # Polled, not left to the kernel: its death signal comes when the thread that started us ends, which may be long
        # before its process ends.
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
        for number in heard:
            loop.remove_signal_handler(number)
        _before.clear()
        if ends_process:
            # Not earlier: the loop restores a signal's default when its handler is removed, which happened just now.
            ignore_requests()
