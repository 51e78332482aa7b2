"""`lbg` in processes that need not import it first, for tests of what a command says and with which code it ends.

One process has imported the command line, and what `check` and `run` import. For each call it makes a copy of itself,
which has its own arguments, folder, variables, streams and exit code, as every process has. Where the beginning of a
process matters, or a library with threads of its own, a test starts `python -m lbg_runtime.cli` itself.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SOURCE = """
import gc, json, os, signal, sys
import lbg_runtime.cli.main, lbg_runtime.cli.member, lbg_runtime.cli.log, lbg_runtime.runtime.app
import lbg_runtime.admin.stored, lbg_runtime.config.load, lbg_runtime.metrics.tracing, lbg_runtime.runtime.session

lbg_runtime.cli.main.command_line()

# What is looked through for garbage is copied, page by page.
gc.collect()
gc.freeze()

def begin(call):
    # Whatever hangs ends, and its code says why.
    signal.alarm(100)
    streams = ((0, os.devnull, os.O_RDONLY), (1, call["out"], os.O_WRONLY), (2, call["err"], os.O_WRONLY))
    for number, path, mode in streams:
        os.dup2(os.open(path, mode), number)
    os.environ.clear()
    os.environ.update(call["environment"])
    os.chdir(call["folder"])
    # As with `python -m`.
    sys.path[0] = os.getcwd()
    sys.argv[:] = ["lbg", *call["arguments"]]
    for name in call["without"]:
        assert name not in sys.modules, name
        sys.modules[name] = None

while line := sys.stdin.readline():
    # A copy has none of the threads.
    assert len(os.listdir("/proc/self/task")) == 1
    process = os.fork()
    if not process:
        begin(json.loads(line))
        from lbg_runtime.cli.__main__ import main
        main()
        break
    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
"""


class WarmLbg:
    """Call it with a folder and arguments; one call at a time."""

    def __init__(self, process: "subprocess.Popen[str]", scratch: Path) -> None:
        self._process = process
        self._out, self._err = scratch / "out", scratch / "err"

    def __call__(
        self, folder: Path, *arguments: str, without: Sequence[str] = ()
    ) -> "subprocess.CompletedProcess[str]":
        """Run `lbg` with these arguments to its end, where these modules are not installed."""
        for path in (self._out, self._err):
            path.write_bytes(b"")
        call: dict[str, Any] = {
            "arguments": arguments, "folder": str(folder), "without": without, "environment": dict(os.environ),
            "out": str(self._out), "err": str(self._err),
        }  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(call) + "\n")
        self._process.stdin.flush()
        code = int(self._process.stdout.readline())
        return subprocess.CompletedProcess(arguments, code, self._out.read_text(), self._err.read_text())


@contextmanager
def warm_lbg() -> Iterator[WarmLbg]:
    """The process that is copied ends with the context, or with us."""
    with (
        tempfile.TemporaryDirectory() as scratch,
        subprocess.Popen(
            [sys.executable, "-c", SOURCE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process,
    ):
        try:
            yield WarmLbg(process, Path(scratch))
        finally:
            process.kill()
