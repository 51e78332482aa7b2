"""`--profile FILE`: a flame graph of the process that is measured, drawn by py-spy from outside it.

From outside, because a profiler within the process (a profile function called for every call) makes a hot path several
times slower and hides the client's threads. The picture shows whatever holds the interpreter's lock, on any thread: not
what waits, and not what the client's library does on its own.
"""

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from lbg_runtime.model.errors import UserError

RATE_HZ = 200
_PATIENCE_S = 60.0


def check(file: Path | None) -> Path | None:
    """The file; raises `UserError`, before anything is measured, if a flame graph is wanted and cannot be drawn."""
    if file is None:
        return None
    if _py_spy() is None:
        raise UserError("--profile", "py-spy is not installed", "the extra `profile` of lbg-runtime")
    if not file.parent.is_dir():
        raise UserError("--profile", f"{file.parent} is no directory", "a file in one that is there")
    return file


Profile = Annotated[
    Path | None,
    typer.Option(
        "--profile", metavar="FILE", callback=check, help="Also write a flame graph of our arm to this SVG file."
    ),
]


@contextmanager
def profiled(file: Path | None, pid: int) -> Iterator[None]:
    """Sample this process until the context or the process ends, and write the picture; nothing without a file.

    Raises `UserError` if the system does not let one process look into another.
    """
    if file is None:
        yield
        return
    command = [_py_spy() or "py-spy", "record", "--pid", str(pid), "--gil", "--rate", str(RATE_HZ)]
    command += ["--output", str(file)]
    recorder = subprocess.Popen(  # noqa: S603 - a program of this environment
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    said = b""
    try:
        # Its first line says that it samples, or why it does not.
        said = recorder.stdout.readline() if recorder.stdout is not None else b""
        if b"Sampling" not in said:
            said += recorder.communicate(timeout=_PATIENCE_S)[0]
            _refuse(said)
        yield
        if recorder.poll() is None:
            recorder.send_signal(signal.SIGINT)
        said += recorder.communicate(timeout=_PATIENCE_S)[0]
        if not file.exists():
            _refuse(said)
        print(f"flame graph: {file}", file=sys.stderr)
    finally:
        recorder.kill()
        recorder.communicate()


def _refuse(said: bytes) -> None:
    lines = said.decode(errors="replace").strip().splitlines()
    raise UserError("--profile", lines[-1] if lines else "py-spy said nothing", "a system that lets it trace a process")


def _py_spy() -> str | None:
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")
