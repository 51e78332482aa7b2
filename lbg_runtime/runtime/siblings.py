"""Runs several members on one host, each as a process of its own, because one process uses one core.

The parent handles no messages. It restarts a member that ends without being asked to, passes on requests to leave, and
leaves when all members have. A mistake of the user that shows when they start ends them all. Each is an ordinary member
of the group, and leaves by itself if its parent goes.
"""

import asyncio
import signal
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from lbg_runtime.model.errors import UserError
from lbg_runtime.runtime.shutdown import EXIT_GRACE_S, TAIL_MS, USER_MISTAKE
from lbg_runtime.runtime.stop import StopCause, child_environment, send_signal, stop_requests

_log = structlog.get_logger(__name__)

RESTART_MIN_S = 1.0
RESTART_MAX_S = 30.0
"""The longest wait before a member that ended is restarted. The wait doubles with each end; once the member has run for
`STEADY_S`, it is short again."""
STEADY_S = 60.0

HURRY_S = 2 * TAIL_MS / 1_000 + EXIT_GRACE_S + 5.0
"""How long a member may take that was asked twice to leave: its own bound and a margin. If asked once, it may drain
first."""


@dataclass(slots=True)
class _Sibling:
    command: Sequence[str]
    process: asyncio.subprocess.Process | None = None
    exit_code: int = 0


class Siblings:
    """Runs one process per command until it is asked to leave. On one event loop; `run` once."""

    def __init__(self, commands: Sequence[Sequence[str]], drain_timeout_ms: int) -> None:
        """Each command must leave in good order on SIGTERM or when its parent is gone, and at once on a second SIGTERM.

        A process that has not left `drain_timeout_ms` plus `HURRY_S` after the first is killed, as it may be suspended.
        """
        self._siblings = [_Sibling(command) for command in commands]
        self._drain_timeout_s = drain_timeout_ms / 1_000
        self._is_leaving = asyncio.Event()
        self._is_one_started_anew = False
        self._refusal: UserError | None = None
        """Why a member could not be started at all."""

    async def run(self, *, parent_pid: int | None = None, ends_process: bool = False) -> int:
        """Run until SIGTERM, SIGINT or SIGHUP, or until the process `parent_pid` has gone; return the worst of all exit
        codes.

        If a process ends with `USER_MISTAKE` within `STEADY_S`, and none was restarted before, all are ended, and this
        returns `USER_MISTAKE`. If the system does not start a process the first time, this raises `UserError` when all
        have left; later, that is logged and tried again. `ends_process`: see `stop_requests`.
        """
        with stop_requests(self._leave, parent_pid=parent_pid, ends_process=ends_process):
            async with asyncio.TaskGroup() as group:
                for sibling in self._siblings:
                    group.create_task(self._keep_running(sibling))
        if self._refusal is not None:
            raise self._refusal
        exit_codes = [_as_exit_code(sibling.exit_code) for sibling in self._siblings]
        return USER_MISTAKE if USER_MISTAKE in exit_codes else max(exit_codes)

    def _leave(self, cause: StopCause) -> None:
        _log.info("stop_requested", cause=cause.value)
        # What is no hurry is passed on once. Should this process go first, the members notice that and leave.
        if cause.hurries or not self._is_leaving.is_set():
            self._end_all()

    def _end_all(self) -> None:
        bound_s = HURRY_S if self._is_leaving.is_set() else self._drain_timeout_s + HURRY_S
        # The first request's timer counts: further requests do not give them more time.
        asyncio.get_running_loop().call_later(bound_s, self._kill_all)
        self._is_leaving.set()
        for process in self._running():
            send_signal(process.pid, signal.SIGTERM)

    def _kill_all(self) -> None:
        for process in self._running():
            _log.error("sibling_killed", pid=process.pid, reason="it did not leave when it was asked to")
            send_signal(process.pid, signal.SIGKILL)

    def _running(self) -> list[asyncio.subprocess.Process]:
        processes = (sibling.process for sibling in self._siblings)
        return [process for process in processes if process is not None and process.returncode is None]

    async def _keep_running(self, sibling: _Sibling) -> None:
        loop = asyncio.get_running_loop()
        delay_s = RESTART_MIN_S
        while not self._is_leaving.is_set():
            started_s = loop.time()
            try:
                process = await self._live(sibling)
            except OSError as error:
                # There are no files, processes or memory left; if others hold them, that passes.
                reason = error.strerror or type(error).__name__
                if sibling.process is None:
                    self._refuse(reason)
                    return
                _log.error("sibling_not_started", reason=reason, starts_again_in_s=delay_s)
            else:
                if self._is_leaving.is_set():
                    return
                was_steady = loop.time() - started_s >= STEADY_S
                if sibling.exit_code == USER_MISTAKE and not was_steady and not self._is_one_started_anew:
                    # Others may have the same problem, and be on their way out already.
                    self._end_all()
                    return
                # From now on, a failed start may mean that the broker is away. The other members wait for it, so a
                # failed start ends them no more.
                self._is_one_started_anew = True
                if was_steady:
                    delay_s = RESTART_MIN_S
                _log.error("sibling_ended", pid=process.pid, exit_code=sibling.exit_code, starts_again_in_s=delay_s)
            try:
                async with asyncio.timeout(delay_s):
                    await self._is_leaving.wait()
            except TimeoutError:
                delay_s = min(2 * delay_s, RESTART_MAX_S)

    async def _live(self, sibling: _Sibling) -> asyncio.subprocess.Process:
        """Run a member from start to end; raises `OSError` if it cannot be started."""
        # In a process session of its own, so that signals of the terminal reach it only through us, once.
        process = await asyncio.create_subprocess_exec(
            *sibling.command, env=child_environment(), start_new_session=True
        )
        sibling.process = process
        if self._is_leaving.is_set():
            send_signal(process.pid, signal.SIGTERM)
        exit_code = await process.wait()
        # A member handles our signal or ignores it, except in its first moments, when it has bound nothing yet.
        is_early = self._is_leaving.is_set() and exit_code == -signal.SIGTERM
        sibling.exit_code = 0 if is_early else exit_code
        return process

    def _refuse(self, reason: str) -> None:
        if not self._is_leaving.is_set():
            found = f"{len(self._siblings)}, of which one cannot be started: {reason}"
            self._refusal = UserError("--processes", found, "fewer, or more files, processes or memory for this user")
            self._end_all()


def _as_exit_code(returncode: int) -> int:
    """As in a shell: 128 plus the signal, for a process killed by one."""
    return 128 - returncode if returncode < 0 else returncode
