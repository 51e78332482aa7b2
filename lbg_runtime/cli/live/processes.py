"""Processes of `lbg`: started with their own log file, watched, ended by pid."""

import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
from anyio.abc import Process

from lbg_runtime.model.errors import LbgError
from lbg_runtime.runtime.stop import child_environment, send_signal

_STOP_GRACE_S = 60
"""For a process of the slowest machine: its interpreter alone may take half of it to end."""


class ProcessEnded(LbgError):
    """A process of the group ended by itself, or did not end in order; `log` is its log file."""

    def __init__(self, name: str, what: str, log: Path) -> None:
        text = log.read_text(errors="replace").strip() if log.exists() else ""
        last = text.splitlines()[-1] if text else "it said nothing"
        super().__init__(f"{name} {what}: {last} (log: {log})")
        self.name = name
        self.log = log


@dataclass(slots=True)
class Child:
    """One running `lbg` command."""

    name: str
    process: Process
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def ensure_running(self) -> None:
        """Raise `ProcessEnded` if the process has ended."""
        if self.process.returncode is not None:
            raise ProcessEnded(self.name, f"ended with exit code {self.process.returncode}", self.log)

    async def stop(self) -> None:
        """Send SIGTERM; raise `ProcessEnded` unless it leaves in time with exit code 0. A late one is killed first."""
        if self.process.returncode is None:
            send_signal(self.pid, signal.SIGTERM)
        with anyio.move_on_after(_STOP_GRACE_S):
            await self.process.wait()
            if self.process.returncode != 0:
                raise ProcessEnded(self.name, f"left with exit code {self.process.returncode}", self.log)
            return
        send_signal(self.pid, signal.SIGKILL)
        await self.process.wait()
        raise ProcessEnded(self.name, f"did not leave within {_STOP_GRACE_S} s of SIGTERM", self.log)

    async def kill(self) -> None:
        """Send SIGKILL, and wait until it is gone."""
        if self.process.returncode is None:
            send_signal(self.pid, signal.SIGKILL)
        await self.process.wait()


@asynccontextmanager
async def lbg_process(name: str, arguments: Sequence[str], log: Path) -> AsyncIterator[Child]:
    """Run `lbg` with these arguments; whatever happens, it is gone when the context ends."""
    # Only those that take our name out of it again: what the others start must not take us for its parent.
    environment = child_environment() if "--exit-with-parent" in arguments else None
    with log.open("ab") as output:
        process = await anyio.open_process(
            [sys.executable, "-m", "lbg_runtime.cli", *arguments], stdout=output, stderr=output, env=environment
        )
    child = Child(name, process, log)
    try:
        yield child
    finally:
        with anyio.CancelScope(shield=True):
            if process.returncode is None:
                send_signal(process.pid, signal.SIGKILL)
            await process.wait()
            await process.aclose()
