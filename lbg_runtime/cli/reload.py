"""`lbg run --reload`: a member that is restarted whenever one of its user's files changes. For development."""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import structlog
from watchfiles import Change, DefaultFilter, awatch

from lbg_runtime.runtime.siblings import HURRY_S
from lbg_runtime.runtime.stop import StopCause, child_environment, send_signal, stop_requests

_log = structlog.get_logger(__name__)

PATIENCE_S = 5.0
"""Time for a member to drain before it is cut short for a change; what it was handling comes again."""
LEAVE_S = 60.0
"""The same when we are asked to leave."""


def member_command(arguments: Sequence[str]) -> list[str]:
    """The same command without `--reload`, for a process that leaves with this one."""
    kept = [each for each in arguments if each != "--reload"]
    return [sys.executable, "-m", "lbg_runtime.cli", *kept, "--exit-with-parent"]


class UserFiles(DefaultFilter):
    """Python files below a folder, and the settings file; no environments, caches or hidden folders."""

    def __init__(self, folder: Path, config: Path) -> None:
        super().__init__()
        self._config = config.resolve()
        self._folder = folder.resolve()
        # Files are watched by their folder, without what is below it: editors replace a file, and its watch is gone.
        self.folders = sorted({self._folder, self._config.parent})
        self.trees = sorted(each for each in self._folder.iterdir() if self.is_tree(each))

    def __call__(self, change: Change, path: str) -> bool:
        """Whether this change matters."""
        place = Path(path)
        if place == self._config or (change is Change.added and self.is_tree(place)):
            return True
        return path.endswith(".py") and super().__call__(change, path) and not self._is_in_ignored(place)

    def is_tree(self, place: Path) -> bool:
        """Whether this is a folder to be watched with all that is below it."""
        return place.parent == self._folder and place.is_dir() and not self._is_ignored(place)

    def _is_in_ignored(self, place: Path) -> bool:
        # A new folder becomes an environment only some time after it was made.
        below = place.parts[len(self._folder.parts) :] if place.is_relative_to(self._folder) else ()
        return len(below) > 1 and self._is_ignored(self._folder / below[0])

    def _is_ignored(self, place: Path) -> bool:
        return place.name.startswith(".") or place.name in self.ignore_dirs or (place / "pyvenv.cfg").exists()


class Reloader:
    """Runs one member after another until it is asked to leave. Call `run` once, on an event loop."""

    def __init__(self, command: Sequence[str], files: UserFiles) -> None:
        """`command` must leave in order on SIGTERM, at once on a second one, and with its parent.

        If it has not left `HURRY_S` after the second one, it is killed: it may be suspended.
        """
        self._command = command
        self._files = files
        self._changed = asyncio.Event()
        self._is_leaving = asyncio.Event()
        self._is_hurried = asyncio.Event()
        self._watching: list[asyncio.Future[None]] = []

    async def run(self, *, parent_pid: int | None = None, ends_process: bool = False) -> int:
        """Run until SIGTERM or SIGINT, or until this parent is gone; return the exit code of the last member.

        `ends_process` is as for `stop_requests`.
        """
        exit_code = 0
        with stop_requests(self._leave, parent_pid=parent_pid, ends_process=ends_process):
            self._begin_watch(self._files.folders, below=False)
            if self._files.trees:
                self._begin_watch(self._files.trees, below=True)
            try:
                # After one turn of the loop the watches are set, before the first member reads a file.
                await asyncio.sleep(0)
                while not self._is_leaving.is_set():
                    self._changed.clear()
                    exit_code = await self._one_member()
            finally:
                for task in self._watching:
                    task.cancel()
                await asyncio.wait(self._watching)
        return 128 - exit_code if exit_code < 0 else exit_code

    async def _one_member(self) -> int:
        wanted = [asyncio.ensure_future(each.wait()) for each in (self._changed, self._is_leaving)]
        try:
            try:
                # A session of its own: a signal that a terminal sends to its foreground group is passed on by us, once.
                process = await asyncio.create_subprocess_exec(
                    *self._command, env=child_environment(), start_new_session=True
                )
            except OSError as error:
                _log.error("member_not_started", reason=error.strerror or str(error), until="a file changes")
                await asyncio.wait(wanted, return_when=asyncio.FIRST_COMPLETED)
                return 1
            ended = asyncio.ensure_future(process.wait())
            await asyncio.wait((ended, *wanted), return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                await self._end(process.pid, ended)
                # As in `Siblings`: our signal kills it only before it has a handler for it.
                return 0 if await ended == -signal.SIGTERM else await ended
            if not self._is_leaving.is_set():
                # Most likely a mistake, which its own lines report: the next change may correct it.
                _log.warning("member_ended", exit_code=ended.result(), until="a file changes")
                await asyncio.wait(wanted, return_when=asyncio.FIRST_COMPLETED)
            return await ended
        finally:
            for task in wanted:
                task.cancel()

    async def _end(self, pid: int, ended: "asyncio.Future[int]") -> None:
        hurried = asyncio.ensure_future(self._is_hurried.wait())
        patience_s = LEAVE_S if self._is_leaving.is_set() else PATIENCE_S
        try:
            send_signal(pid, signal.SIGTERM)
            await asyncio.wait((ended, hurried), timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                send_signal(pid, signal.SIGTERM)
                await asyncio.wait((ended,), timeout=HURRY_S)
            if not ended.done():
                _log.error("member_killed", pid=pid, reason="it did not leave when it was asked to")
                send_signal(pid, signal.SIGKILL)
        finally:
            hurried.cancel()

    def _begin_watch(self, places: Sequence[Path], *, below: bool) -> None:
        task = asyncio.ensure_future(self._watch(places, below=below))
        task.add_done_callback(_tell_failure)
        self._watching.append(task)

    async def _watch(self, places: Sequence[Path], *, below: bool) -> None:
        # A folder may be gone again before it is watched.
        with suppress(FileNotFoundError):
            # A folder below that we may not read, such as a database's data, is no reason not to see the others.
            watch = awatch(*places, watch_filter=self._files, recursive=below, ignore_permission_denied=True)
            async for changes in watch:
                paths = {Path(path) for _, path in changes}
                made = {path for path in paths if self._files.is_tree(path)}
                for folder in sorted(made):
                    self._begin_watch([folder], below=True)
                # Here too the watches are set after one turn: what they come too late for is found by looking.
                await asyncio.sleep(0)
                found = (paths - made).union(*(self._found_in(folder) for folder in made))
                if found:
                    _log.info("files_changed", files=sorted({path.name for path in found}))
                    self._changed.set()

    def _found_in(self, folder: Path) -> set[Path]:
        found = {Path(place, name) for place, _, names in os.walk(folder) for name in names}
        return {path for path in found if self._files(Change.added, str(path))}

    def _leave(self, cause: StopCause) -> None:
        _log.info("stop_requested", cause=cause.value)
        if not self._is_leaving.is_set():
            self._is_leaving.set()
        elif cause.hurries:
            self._is_hurried.set()


def _tell_failure(watch: "asyncio.Future[None]") -> None:
    # For example too many watches for the system: changes there are no longer seen.
    if not watch.cancelled() and (error := watch.exception()) is not None:
        _log.error("watch_failed", reason=str(error))
