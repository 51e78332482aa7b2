"""Processes that need not import the runtime first, for tests that start one as a means, and not to see how it begins.

One process has imported the command line, and what members import. For each call it makes a copy of itself, which has
its own arguments, folder, variables, streams, signals and exit code, as every process has. What Python does before it
runs a program is over by then: where the beginning of a process matters, an option or variable of Python's, a child of
the test, or a library that has threads once it is imported, a test starts the process itself. The fork server of
`multiprocessing` has no streams of a copy's own, and ends it without the end of an interpreter, which tests look at.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from tests.patience import PATIENCE_S
from tests.processes import running

SOURCE = """
import gc, json, os, signal, socket, sys
import lbg_runtime.cli.main, lbg_runtime.cli.member, lbg_runtime.cli.log, lbg_runtime.runtime.app
import lbg_runtime.admin.stored, lbg_runtime.config.load, lbg_runtime.metrics.tracing, lbg_runtime.runtime.session
import lbg_runtime.broker.server.server, lbg_runtime.publisher.hashed, lbg_runtime.transport.memory.transport
import anyio._backends._asyncio, httpcore, lbg_runtime.admin.settings, lbg_runtime.cli.group.plan_text
# uvicorn imports it where it is installed; a copy may be one without it.
sys.modules["watchfiles"] = None
import lbg_runtime.broker.semp.server, lbg_runtime.dashboard.server, lbg_runtime.sidecar.sidecar
import lbg_runtime.status.server
del sys.modules["watchfiles"]

lbg_runtime.cli.main.command_line()

# What is looked through for garbage is copied, page by page.
gc.collect()
gc.freeze()

def begin(call, streams):
    # Also where the tests are killed: longer than any of them may take.
    signal.alarm(600)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    # Those of before remember whether they can seek.
    sys.stdin = sys.__stdin__ = open(0, closefd=False)
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)
    sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    os.environ.clear()
    os.environ.update(call["environment"])
    os.chdir(call["folder"])
    # As with `python -m`, and with `python -c`.
    sys.path[0] = os.getcwd()
    sys.argv[:] = ["lbg", *call["arguments"]]
    for name in call["without"]:
        assert name not in sys.modules, name
        sys.modules[name] = None

calls = socket.socket(fileno=int(sys.argv[1]))
while call := (received := socket.recv_fds(calls, 1_000_000, 3))[0]:
    call, streams = json.loads(call), received[1]
    if "ended" in call:
        calls.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(call["ended"], 0)[1]))
        continue
    # A copy has none of the threads.
    assert len(os.listdir("/proc/self/task")) == 1
    process = os.fork()
    if not process:
        calls.close()
        begin(call, streams)
        exec(compile(call["program"], "<string>", "exec"))
        break
    for stream in streams:
        os.close(stream)
    calls.send(b"%d" % process)
"""

LBG = "from lbg_runtime.cli.__main__ import main; main()"


class Copy:
    """What tests need of `subprocess.Popen`; its pipes have text."""

    def __init__(self, warm: "Warm", pid: int, pipes: Sequence[IO[str] | None]) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdin, self.stdout, self.stderr = pipes
        self._warm, self._handle = warm, os.pidfd_open(pid)

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._handle], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            self.returncode = self._warm.ask({"ended": self.pid})
            os.close(self._handle)
        return self.returncode

    def communicate(self, given: str = "", timeout: float | None = None) -> tuple[str, str]:
        """What it still says, for which its pipes must have room, as it is read when it has ended."""
        if self.stdin:
            self.stdin.write(given)
            self.stdin.close()
        self.wait(timeout)
        output, errors = (pipe.read() if pipe else "" for pipe in (self.stdout, self.stderr))
        return output, errors


class Warm:
    """The process that is copied."""

    def __init__(self, calls: socket.socket) -> None:
        self._calls = calls
        self._one_at_a_time = threading.Lock()

    def ask(self, call: Mapping[str, Any], streams: Sequence[int] = ()) -> int:
        with self._one_at_a_time:
            socket.send_fds(self._calls, [json.dumps(call).encode()], streams)
            return int(self._calls.recv(100))

    @contextmanager
    def running(
        self, program: str, *arguments: object, cwd: str | Path = ".", env: Mapping[str, str] | None = None,
        stdin: Any = subprocess.DEVNULL, stdout: Any = None, stderr: Any = None, without: Sequence[str] = (),
    ) -> Iterator[Copy]:  # fmt: skip
        """A copy that runs this program, as `tests.processes.running` does; these modules are not installed there."""
        call = {
            "program": program, "arguments": [*map(str, arguments)], "folder": str(cwd), "without": without,
            "environment": dict(os.environ if env is None else env),
        }  # fmt: skip
        with ExitStack() as ending:
            with ExitStack() as begun:
                theirs, ours = list[int](), list[IO[str] | None]()
                for number, stream in enumerate((stdin, stdout, stderr)):
                    pipe = None
                    if stream == subprocess.PIPE:
                        ends = os.pipe()
                        pipe = ending.enter_context(open(ends[number == 0], "r" if number else "w"))
                        stream = ends[number != 0]
                        begun.callback(os.close, stream)
                    elif stream == subprocess.DEVNULL:
                        stream = begun.enter_context(open(os.devnull, "r+"))
                    elif stream == subprocess.STDOUT:
                        stream = theirs[1]
                    theirs.append(number if stream is None else stream if isinstance(stream, int) else stream.fileno())
                    ours.append(pipe)
                copy = Copy(self, self.ask(call, theirs), ours)
            try:
                yield copy
            finally:
                copy.kill()
                copy.wait()

    def run(self, program: str, *arguments: object, **options: Any) -> "subprocess.CompletedProcess[str]":
        """Run a program in a copy, with options of `running`, to its end."""
        with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
            with self.running(program, *arguments, **{"stdout": output, "stderr": errors, **options}) as process:
                code = process.wait(PATIENCE_S)
            for stream in (output, errors):
                stream.seek(0)
            return subprocess.CompletedProcess([program, *map(str, arguments)], code, output.read(), errors.read())


class WarmLbg:
    """`lbg` in copies, with options of `Warm.running`."""

    def __init__(self, warm: Warm) -> None:
        self._warm = warm

    def __call__(self, folder: Path, *arguments: object, **options: Any) -> "subprocess.CompletedProcess[str]":
        """Run it in a folder to its end."""
        return self._warm.run(LBG, *arguments, cwd=folder, **options)

    def running(self, folder: Path, *arguments: object, **options: Any) -> AbstractContextManager[Copy]:
        """It runs in a folder, until the end of the context at the latest."""
        return self._warm.running(LBG, *arguments, cwd=folder, **options)


@contextmanager
def warm_process() -> Iterator[Warm]:
    """It ends with the context, or with us."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, its, running([sys.executable, "-c", SOURCE, str(its.fileno())], pass_fds=[its.fileno()]):
        its.close()
        yield Warm(ours)
