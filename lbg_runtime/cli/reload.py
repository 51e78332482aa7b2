"""`lbg run --reload`: a member that is started anew whenever a file of its user's changes. For development."""

import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import structlog
from watchfiles import Change, DefaultFilter, awatch

from lbg_runtime.runtime.stop import StopCause, stop_requests

_log = structlog.get_logger(__name__)

PATIENCE_S = 5.0
"""For a member to drain before it is cut short; what it was at comes again."""


def member_command(arguments: Sequence[str]) -> list[str]:
    """The same command without the option, in a process that leaves with this one."""
    kept = [each for each in arguments if each != "--reload"]
    return [sys.executable, "-m", "lbg_runtime.cli", *kept, "--exit-with-parent"]


class UserFiles(DefaultFilter):
    """Python files below a folder, and the file of the settings; no environments, caches or hidden folders."""

    def __init__(self, folder: Path, config: Path) -> None:
        super().__init__()
        self._config = config.resolve()
        # Of files their folder is watched, and nothing below it: editors replace a file, and the watch would be gone.
        self.folders = sorted({folder.resolve(), self._config.parent})
        self.trees = sorted(each for each in folder.resolve().iterdir() if each.is_dir() and not self._is_ignored(each))

    def __call__(self, change: Change, path: str) -> bool:
        """Whether this change matters."""
        return Path(path) == self._config or (path.endswith(".py") and super().__call__(change, path))

    def _is_ignored(self, place: Path) -> bool:
        return place.name.startswith(".") or place.name in self.ignore_dirs or (place / "pyvenv.cfg").exists()


class Reloader:
    """Runs one member after another until it is asked to leave. On one event loop; `run` once."""

    def __init__(self, command: Sequence[str], files: UserFiles) -> None:
        """`command` must leave in order on SIGTERM, at once on a second one, and with its parent."""
        self._command = command
        self._files = files
        self._changed = asyncio.Event()
        self._is_leaving = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None

    async def run(self, *, parent_pid: int | None = None) -> int:
        """Be there until SIGTERM or SIGINT, or until this parent is gone; the exit code of the last member."""
        exit_code = 0
        with stop_requests(self._leave, parent_pid=parent_pid):
            watching = [asyncio.ensure_future(self._watch(self._files.folders, below=False))]
            if self._files.trees:
                watching.append(asyncio.ensure_future(self._watch(self._files.trees, below=True)))
            try:
                while not self._is_leaving.is_set():
                    self._changed.clear()
                    exit_code = await self._one_member()
            finally:
                for task in watching:
                    task.cancel()
                await asyncio.wait(watching)
        return 128 - exit_code if exit_code < 0 else exit_code

    async def _one_member(self) -> int:
        # A session of its own: what a terminal tells its foreground group, we pass on, once.
        self._process = process = await asyncio.create_subprocess_exec(*self._command, start_new_session=True)
        ended = asyncio.ensure_future(process.wait())
        wanted = [asyncio.ensure_future(each.wait()) for each in (self._changed, self._is_leaving)]
        try:
            if self._is_leaving.is_set():
                process.send_signal(signal.SIGTERM)
            await asyncio.wait((ended, *wanted), return_when=asyncio.FIRST_COMPLETED)
            if ended.done() and not self._is_leaving.is_set():
                # A mistake, most likely, that its own lines tell of: the next change may mend it.
                _log.warning("member_ended", exit_code=ended.result(), until="a file changes")
                await asyncio.wait(wanted, return_when=asyncio.FIRST_COMPLETED)
            elif not self._is_leaving.is_set():
                await self._end(process, ended)
            # No bound: whoever is asked to leave has his own.
            return await ended
        finally:
            for task in wanted:
                task.cancel()

    async def _end(self, process: asyncio.subprocess.Process, ended: "asyncio.Future[int]") -> None:
        process.send_signal(signal.SIGTERM)
        await asyncio.wait((ended,), timeout=PATIENCE_S)
        if not ended.done():
            process.send_signal(signal.SIGTERM)

    async def _watch(self, places: Sequence[Path], *, below: bool) -> None:
        async for changes in awatch(*places, watch_filter=self._files, recursive=below):
            _log.info("files_changed", files=sorted({Path(path).name for _, path in changes}))
            self._changed.set()

    def _leave(self, cause: StopCause) -> None:
        _log.info("stop_requested", cause=cause.value)
        if cause is StopCause.PARENT_GONE and self._is_leaving.is_set():
            return
        self._is_leaving.set()
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
