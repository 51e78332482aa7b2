"""The processes of a benchmark: a broker that tells what it has done, and an arm that says what it took."""

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


class BenchFailed(LbgError):
    """An arm ended badly, or a message was lost, came twice or out of order; `said` is what it had to say."""

    def __init__(self, what: str, said: str) -> None:
        lines = said.strip().splitlines()
        super().__init__(f"{what}: {lines[-1] if lines else 'it said nothing'}")
        self.said = said


class Broker:
    """A broker in a process of its own."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process
        self.host: str = self._hear()["host"]

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def ask(self, question: str = "") -> dict[str, Any]:
        """What it has used and done so far: `cpu_s`, and what its module says besides, to this line."""
        if self._process.stdin is None:
            raise BenchFailed("the broker", "it has no input")
        self._process.stdin.write(f"{question}\n".encode())
        self._process.stdin.flush()
        return self._hear()

    def _hear(self) -> dict[str, Any]:
        line = self._process.stdout.readline() if self._process.stdout is not None else b""
        if not line:
            raise BenchFailed("the broker ended", "")
        heard: dict[str, Any] = orjson.loads(line)
        return heard


@contextmanager
def run_broker(module: str, *arguments: object) -> Iterator[Broker]:
    """The broker of one of our modules; what it had to say is shown where the benchmark fails."""
    with run_module(module, arguments, stdin=subprocess.PIPE) as (process, log):
        try:
            yield Broker(process)
        except BenchFailed:
            log.seek(0)
            sys.stderr.write(log.read().decode(errors="replace"))
            raise


def run_arm(arm: str, module: str, *arguments: object, profile: Path | None = None) -> dict[str, Any]:
    """What an arm, the first argument of one of our modules, says at its end; `BenchFailed` where it fails or hangs."""
    with (
        run_module(module, (arm, *arguments), stdin=subprocess.DEVNULL) as (process, log),
        profiled(profile, process.pid),
    ):
        return end_of(arm, process, log)


def end_of(arm: str, process: "subprocess.Popen[bytes]", log: IO[bytes]) -> dict[str, Any]:
    """What an arm that was run says at its end; raises `BenchFailed` where it fails or hangs."""
    try:
        output, _ = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        output = b""
    if process.returncode != 0:
        log.seek(0)
        raise BenchFailed(arm, log.read().decode(errors="replace"))
    said: dict[str, Any] = orjson.loads(output)
    return said


@contextmanager
def run_module(
    module: str, arguments: Sequence[object], stdin: int
) -> Iterator[tuple["subprocess.Popen[bytes]", IO[bytes]]]:
    """A module run by this interpreter, and its log; whatever happens, it is gone when the context ends."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(  # noqa: S603  # this interpreter and our own modules
            [sys.executable, "-m", module, *map(str, arguments)], stdin=stdin, stdout=subprocess.PIPE, stderr=log
        )
        try:
            yield process, log
        finally:
            process.kill()
            process.communicate()
