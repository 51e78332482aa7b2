"""Processes of a test that do not outlive it, whatever becomes of it."""

import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path
from typing import Any


@contextmanager
def running(command: Sequence[str | PathLike[str]], **options: Any) -> Iterator["subprocess.Popen[Any]"]:
    """A process, with the options of `subprocess.Popen`; at the end it is killed, waited for, and its pipes closed.

    Also where the test fails in between: a pipe that is left open would fail a later test, which has nothing to do with
    it. One that was given to a child of the process as well ends with that child.
    """
    with subprocess.Popen(command, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def whole_lines(log: Path) -> list[str]:
    """The lines of a file that another process may be writing; none where it is not there yet.

    A write across the end of a page of memory can be read in part, even where the writer makes one write of each line.
    """
    return [line.decode() for line in log.read_bytes().split(b"\n")[:-1]] if log.exists() else []


def until_said(process: "subprocess.Popen[Any]", log: Path, text: str, times: int = 1) -> str:
    """The whole lines of a process's file, once the text is in them so often; bounded by the test's own time limit."""
    while (said := "\n".join([*whole_lines(log), ""])).count(text) < times:
        assert process.poll() is None, log.read_text()
        time.sleep(0.01)  # a file of another process has no event to wait for
    return said


def until_line(process: "subprocess.Popen[str]", sign: str, times: int = 1) -> str:
    """Read its standard error until so many lines have this, and return the last; bounded by the test's own limit."""
    for line in process.stderr or ():
        times -= sign in line
        if times == 0:
            return line
    raise AssertionError(f"it ended with {process.wait()} before {sign}")


def lines_of(pipe: Iterable[str] | None) -> Iterator[str]:
    """What a process says, line by line, until it ends; for a thread, under which `running` may close the pipe."""
    with suppress(ValueError):
        yield from pipe or ()
