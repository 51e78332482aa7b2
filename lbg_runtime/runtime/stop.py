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
"""The earlier handler of each signal that is now heard as a request to leave."""


def _hear_nothing() -> None:
    """In a process that is forked from this one, as a pool of processes does: restore the earlier signal handlers.

    The two processes share the descriptor by which a loop learns of signals. Otherwise a signal to the forked process,
    sent when the pool ends it or somebody ends the whole process group, would ask this one to leave.
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
        """Whether this, as a second request, tells a process that is leaving already to hurry.

        A parent that ends after it has sent a signal does not; nor does a terminal, which may send SIGHUP twice as it
        closes.
        """
        return self in (StopCause.SIGTERM, StopCause.SIGINT)


def child_environment() -> dict[str, str]:
    """The environment for a process that is to leave with this one: it names us, for the child's `starting_parent`."""
    return {**os.environ, _PARENT_VARIABLE: str(os.getpid())}


def starting_parent() -> int:
    """The process that started this one, for `stop_requests` to watch; right even if that has gone already, provided
    that it started us with `child_environment`.

    Otherwise, a parent that goes before this call cannot be told from the process that adopts us, so call this as early
    as possible. The variable is removed from the environment, so that processes that we start do not inherit it.
    """
    named = os.environ.pop(_PARENT_VARIABLE, "")
    return int(named) if named.isdecimal() else os.getppid()


def send_signal(pid: int, number: signal.Signals) -> None:
    """Signal a process that this one has started and waits for on a loop; does nothing if it has ended.

    The process object's own method would look whether it has ended, and so take its exit code away from the loop, which
    would then warn of an unknown process and report 255 (CPython issue 87744).
    """
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def ignore_requests() -> None:
    """Ignore SIGTERM, SIGINT and SIGHUP from now on, so that none replaces the exit code. Main thread only.

    For the end of a process, when it is already on its way out within a bound.
    """
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def insist_on_own_loop() -> None:
    """Raise `UserError` unless a loop can be run here that hears what asks this process to leave: on the main thread,
    and not within another loop."""
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

    `parent_pid`: the process that started this one (`starting_parent`); its end is reported once, and immediately if it
    has gone already. `ends_process`: nothing follows the context but the end of the process, so later requests are
    ignored (`ignore_requests`). Signals to a process that is forked meanwhile are not heard here. SIGHUP is heard only
    if it has its default action: not under `nohup`, nor if a handler's module uses it. Afterwards each signal has the
    handler from before the context again, unless it is ignored.
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
        # Polled: the kernel's own signal for the death of a parent comes when the thread that started us ends, which
        # may be long before its process does.
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
            # Which leaves the signal with its default action, whatever the program had told it to do.
            loop.remove_signal_handler(number)
            signal.signal(number, _before[number])
        _before.clear()
        if ends_process:
            # Not before this: the earlier handlers have just come back.
            ignore_requests()
