"""The guarantee that a process leaves when asked to, and the code that it leaves with."""

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, TracebackType
from typing import NoReturn

import structlog

_log = structlog.get_logger(__name__)

USER_MISTAKE = 2
"""Exit code of a member that was given something wrong, or could not reach the broker at its start.

If the member had not worked before, to start it again would change nothing. Handlers cannot cause this code.
"""

TAIL_MS = 10_000
"""How long flows may take to unbind once nothing is handled any more: an unbind waits for the broker's answer."""

EXIT_GRACE_S = 5.0
"""How long may be taken by what ends last and has no bound of its own: the user's threads and atexit functions."""

_LOG_TIMEOUT_S = 2.0

_CLIENT_THREADS = "solace-control"
"""The names of the threads in which transport/solace/threads.py calls the client of the broker begin with this."""


def exit_code_of(given: object) -> int:
    """The exit code of a process that a handler's `SystemExit` ends, given the code of that: never 0, which says that
    all is well, nor `USER_MISTAKE`."""
    # The system keeps the lowest byte. Python prints anything but a number, and ends with 1.
    code = given & 0xFF if isinstance(given, int) else 1
    return 1 if code in (0, USER_MISTAKE) else code


def end_all_tasks(runner: asyncio.Runner) -> None:
    """Let the member leave, and its lifespans end, after a `SystemExit` or `KeyboardInterrupt` has left the loop.

    On its way up, such an exit goes through several tasks, and each throws it out of the loop once more. When
    `asyncio.Runner` closes, the first of these would end its wait for the others.
    """
    cancelled = set[asyncio.Task[object]]()

    async def end() -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others - cancelled:
            task.cancel()
        cancelled.update(others)
        if others:
            # Bounded by the exit guard.
            await asyncio.wait(others)

    is_over = False
    while not is_over:
        # Nor does a SIGINT hurry what the exit guard bounds.
        with suppress(SystemExit, KeyboardInterrupt):
            runner.run(end())
            is_over = True
    for task in cancelled:
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            # As `asyncio.Runner` does when it closes.
            runner.get_loop().call_exception_handler({"message": "an error at the end", "exception": error})


def end_process(exit_code: int, tell: Callable[[], object]) -> NoReturn:
    """End this process when nothing on its loop can; first call `tell`, which logs why, within a bound.

    While the interpreter exits, Python 3.12 starts no thread, so nothing would be logged: use `ExitGuard` for that.
    """
    told = threading.Thread(target=tell, daemon=True)
    with suppress(RuntimeError):  # there are too many threads
        told.start()
        # If nobody reads the log, the loop's thread may be blocked in it, and so may this one: wait only for so long.
        told.join(_LOG_TIMEOUT_S)
    # Not sys.exit, which would wait for the loop's thread. What is unsettled goes back to its queue.
    os._exit(exit_code)


class ExitGuard:
    """Ends the process if it is still there after a given time.

    A handler may ignore its cancellation, or block the event loop itself, and a lifespan may take any time to end: then
    nothing on the loop can end the process. And a thread of the user's keeps the interpreter from exiting.
    """

    def __init__(self, exit_code: int = 1) -> None:
        self._exit_code = exit_code
        self._timers: list[threading.Timer] = []

    def arm(self, after_s: float) -> None:
        """Start or restart the countdown. If no thread can be started, that is logged, and there is no countdown.

        The process ends `after_s` from now, plus at most 2 s for its last log line.
        """
        self.disarm()
        # Both threads are started now, as Python 3.12 starts none while it exits. The second one is for a log in which
        # the first is blocked, as nobody reads it.
        tells = threading.Timer(after_s, self._tell_and_exit)
        exits = threading.Timer(after_s + _LOG_TIMEOUT_S, os._exit, (self._exit_code,))
        try:
            for timer in (exits, tells):
                timer.daemon = True
                timer.start()
                self._timers.append(timer)
        except RuntimeError as error:
            self.disarm()
            _log.warning("exit_unguarded", reason=str(error))

    def disarm(self) -> None:
        while self._timers:
            self._timers.pop().cancel()

    def _tell_and_exit(self) -> None:
        try:
            _tell(self._exit_code, _threads_that_stay())
        finally:
            # As in `end_process`.
            os._exit(self._exit_code)


def _tell(exit_code: int, staying: list[str]) -> None:
    threads = [name for name in staying if not name.startswith(_CLIENT_THREADS)]
    if staying and not threads:
        # A handler on the loop itself may be to blame as well, but that cannot be seen from here.
        reason = "a call to the client of the broker had not ended in time; no thread of a handler or lifespan was left"
    else:
        reason = "a handler, a lifespan, a thread of theirs or an atexit function had not ended in time"
    _log.error("exit_forced", reason=reason, threads=threads, exit_code=exit_code)


def _threads_that_stay() -> list[str]:
    """The names of the threads that the interpreter waits for as it exits, to show whose they are."""
    main, frames = threading.main_thread(), sys._current_frames()
    return [
        each.name
        for each in threading.enumerate()
        if not each.daemon and each is not main and not _waits_for_work(frames.get(each.ident or 0))
    ]


def _waits_for_work(frame: FrameType | None) -> bool:
    """Whether a thread in this frame belongs to a pool and waits for its next call: it ends with the interpreter."""
    return (
        frame is not None
        and frame.f_code.co_name == "_worker"
        and frame.f_globals.get("__name__") == "concurrent.futures.thread"
    )


class Interruption:
    """A context that ends early when `cut` is called, by a cancellation of its task that does not leave the context.

    Unlike a cancel scope, it cancels once for each `cut`, so that what is cancelled may wait while it cleans up.
    Entered once; `cut` is called on the task's loop. Any other exception leaves the context, and so does a cancellation
    from elsewhere, unless there was a `cut`. So where others may cancel, run the context in a task of its own
    (`until_ended`).
    """

    def __init__(self) -> None:
        self._task: asyncio.Task[object] | None = None
        self._cuts = 0

    def __enter__(self) -> None:
        self._task = asyncio.current_task()

    def cut(self) -> None:
        """Cancel what the task waits for; does nothing before the context is entered and after it has ended."""
        if self._task is not None:
            # By the loop, as the task itself may be calling: it could leave the context before its cancellation comes.
            self._task.get_loop().call_soon(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._cuts += 1
            self._task.cancel()

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> bool:
        task, self._task = self._task, None
        if task is None or not self._cuts:
            return False
        for _cut in range(self._cuts):
            task.uncancel()
        return kind is asyncio.CancelledError
