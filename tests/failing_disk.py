"""A disk that refuses the n-th operation on files below a folder, or every one from there on.

What it gets are calls of `os`, and of files that `Path.open` opened for writing; not what C code does by itself.
"""

import errno
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import IO, Any, NamedTuple

import pytest

_OPERATIONS = (
    "close",
    "fdatasync",
    "fsync",
    "ftruncate",
    "link",
    "listdir",
    "mkdir",
    "open",
    "pwrite",
    "rename",
    "replace",
    "rmdir",
    "scandir",
    "unlink",
    "write",
)


class Fault(NamedTuple):
    """How an operation goes wrong."""

    name: str
    number: int = 0
    """Of the error that is the answer."""
    is_done: bool = False
    """Whether the operation is done all the same."""
    is_short: bool = False
    """Whether it is a write that takes a part, without an error; other operations go well."""
    lasts: bool = False
    """Whether all operations behind it go wrong too."""


FAULTS = (
    Fault("no room", errno.ENOSPC),
    Fault("no room for long", errno.ENOSPC, lasts=True),
    Fault("no file number", errno.EMFILE),
    Fault("an error of the disk", errno.EIO),
    Fault("a dead disk", errno.EIO, lasts=True),
    Fault("an error for what was done", errno.EIO, is_done=True),
    Fault("a short write", is_short=True),
)


class FailingDisk:
    """Counts from 0; well again when the context of `ill` has ended."""

    def __init__(self, top: Path, fault: Fault, at: int) -> None:
        self.count = 0
        """Operations so far."""
        self._open_files: set[int] = set()
        self._top = f"{top}/"
        self._fault = fault
        self._at = at

    @contextmanager
    def ill(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patched:
            for name in _OPERATIONS:
                patched.setattr(os, name, partial(self._meet, name, getattr(os, name)))
            patched.setattr(io, "open", partial(self._open, io.open))
            yield

    def goes_wrong(self) -> bool:
        """Count an operation; whether it is one of those that go wrong."""
        number, self.count = self.count, self.count + 1
        return number == self._at or (self._fault.lasts and number > self._at)

    def answer(self, name: str, take: Callable[..., Any], *given: Any, **options: Any) -> Any:
        """Do an operation on a file below the folder as it goes."""
        if not self.goes_wrong():
            return take(*given, **options)
        if self._fault.is_short:
            if name in ("write", "pwrite"):
                place = 1 if isinstance(given[0], int) else 0
                half = bytes(given[place])[: max(1, len(given[place]) // 2)]
                given = (*given[:place], half, *given[place + 1 :])
            return take(*given, **options)
        if (self._fault.is_done and name not in ("listdir", "scandir")) or name == "close":
            done = take(*given, **options)
            if name == "open":
                _end(done)
        raise OSError(self._fault.number, os.strerror(self._fault.number))

    def _meet(self, name: str, take: Callable[..., Any], *given: Any, **options: Any) -> Any:
        if not any(map(self._is_ours, (*given[:2], options.get("dir_fd")))):
            return take(*given, **options)
        if name == "close":
            self._open_files.discard(given[0])
        done = self.answer(name, take, *given, **options)
        if name == "open":
            self._open_files.add(done)
        return done

    def _is_ours(self, given: object) -> bool:
        if isinstance(given, str | os.PathLike):
            return os.fspath(given).startswith(self._top)
        return isinstance(given, int) and given in self._open_files

    def _open(self, take: Callable[..., IO[Any]], path: Any, mode: str = "r", *given: Any, **options: Any) -> IO[Any]:
        if not self._is_ours(path):
            return take(path, mode, *given, **options)
        if mode != "wb":
            return self.answer("open", take, path, mode, *given, **options)
        return io.BufferedWriter(self.answer("open", partial(_File, self), path))


class _File(io.FileIO):
    """A file that was opened for writing."""

    def __init__(self, disk: FailingDisk, path: Path) -> None:
        super().__init__(path, "wb")
        self._disk = disk

    def write(self, content: Any, /) -> int:
        written: int = self._disk.answer("write", super().write, content)
        return written


def _end(opened: "int | IO[Any]") -> None:
    if isinstance(opened, int):
        os.close(opened)
    else:
        opened.close()


def each_operation(folder: Path, fault: Fault, every: int = 1) -> Iterator[tuple[Path, FailingDisk]]:
    """A new folder, and a disk that refuses one operation there, for each operation of what is done while it is ill.

    For one in `every` of them if that is more than 1: not the same ones with all faults, so that each is refused.
    """
    for number in count(FAULTS.index(fault) % every, every):
        top = folder / str(number)
        top.mkdir()
        disk = FailingDisk(top, fault, number)
        yield top, disk
        if disk.count <= number:
            return
