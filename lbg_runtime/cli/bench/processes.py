"""The processes of a benchmark: a broker that reports what it has done, and an arm that reports what it took."""

import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import orjson

from lbg_runtime.cli.bench.profile import profiled
from lbg_runtime.model.errors import LbgError

PATIENCE_S = 150.0
ANSWER_S = 600.0
"""Bound for an answer; the request may be to put a million messages on queues, on a machine that is busy otherwise."""
_LEAVING_S = 60.0


class BenchFailed(LbgError):
    """An arm ended badly, or a message was lost, came twice or out of order; `said` is the reason."""

    def __init__(self, what: str, said: str) -> None:
        lines = said.strip().splitlines()
        super().__init__(f"{what}: {lines[-1] if lines else 'it said nothing'}")
        self.said = said


class Broker:
    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process
        self.host: str = hear("the broker", process)["host"]

    @property
    def pid(self) -> int:
        """The broker's process id."""
        return self._process.pid

    def ask(self, question: str = "") -> dict[str, Any]:
        """What it has used and done so far, or whatever its module answers to this line; raises as `hear` does."""
        return ask("the broker", self._process, question)


def ask(what: str, process: "subprocess.Popen[bytes]", question: str = "") -> dict[str, Any]:
    """What a process answers to this line; raises `BenchFailed` as `hear` does."""
    if process.stdin is None:
        raise BenchFailed(what, "it has no input")
    try:
        process.stdin.write(f"{question}\n".encode())
        process.stdin.flush()
    except BrokenPipeError:
        raise BenchFailed(what, "it ended") from None
    return hear(what, process)


def hear(what: str, process: "subprocess.Popen[bytes]", within_s: float = ANSWER_S) -> dict[str, Any]:
    """The next line that a process says; raises `BenchFailed` if it has ended, or says nothing for this long."""
    output = process.stdout
    # A process says one line at a time, so no line is left in the buffer, where `select` would not see it.
    if output is None or not select.select([output], [], [], within_s)[0]:
        raise BenchFailed(what, f"it said nothing for {within_s:g} s")
    line = output.readline()
    if not line:
        raise BenchFailed(what, "it ended")
    heard: dict[str, Any] = orjson.loads(line)
    return heard


@contextmanager
def run_broker(module: str, *arguments: object) -> Iterator[Broker]:
    """Run a broker from one of our modules; its log is shown if the benchmark fails."""
    with run_module(module, arguments, stdin=subprocess.PIPE) as (process, log):
        try:
            yield Broker(process)
        except BenchFailed:
            show(log)
            raise


def run_arm(arm: str, module: str, *arguments: object, profile: Path | None = None) -> dict[str, Any]:
    """What an arm, the first argument of one of our modules, says at its end; `BenchFailed` if it fails or hangs."""
    with (
        run_module(module, (arm, *arguments), stdin=subprocess.DEVNULL) as (process, log),
        profiled(profile, process.pid),
    ):
        return end_of(arm, process, log)


def end_of(arm: str, process: "subprocess.Popen[bytes]", log: IO[bytes]) -> dict[str, Any]:
    """What a running arm says at its end; raises `BenchFailed` if it fails or hangs."""
    try:
        output, _ = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        show(log)
        raise BenchFailed(arm, f"it did not end within {PATIENCE_S:g} s") from None
    if process.returncode != 0:
        log.seek(0)
        raise BenchFailed(arm, log.read().decode(errors="replace"))
    said: dict[str, Any] = orjson.loads(output)
    return said


def end(process: "subprocess.Popen[bytes]") -> None:
    """End a command of ours, if it has not ended, by SIGTERM, so that it ends and removes what it has made; one that
    does not leave in time is killed."""
    process.terminate()
    try:
        process.wait(_LEAVING_S)
    except subprocess.TimeoutExpired:
        process.kill()


def show(log: IO[bytes]) -> None:
    """Print a process's log on standard error."""
    log.seek(0)
    sys.stderr.write(log.read().decode(errors="replace"))


@contextmanager
def run_module(
    module: str, arguments: Sequence[object], stdin: int
) -> Iterator[tuple["subprocess.Popen[bytes]", IO[bytes]]]:
    """A module run by this interpreter, and its log; whatever happens, the process is gone when the context ends, and
    its temporary files with it."""
    with tempfile.TemporaryFile() as log, tempfile.TemporaryDirectory(prefix="lbg-bench-") as folder:
        process = subprocess.Popen(  # noqa: S603  # this interpreter and our own modules
            [sys.executable, "-m", module, *map(str, arguments)],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=log,
            # It is killed, and then removes nothing itself.
            env={**os.environ, "TMPDIR": folder},
        )
        try:
            yield process, log
        finally:
            process.kill()
            process.communicate()
