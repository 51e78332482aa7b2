"""Appends records to one file, a batch per system call; a full disk costs records, and never stops the data path."""

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

import orjson
import structlog

from lbg_runtime.model.record import LONGEST_LINE_BYTES, CloseRecord, Record, StatusRecord
from lbg_runtime.model.sendable import as_sendable

_log = structlog.get_logger(__name__)

RUN_VARIABLE = "LBG_RUN_ID"
"""The environment variable with the name of the run, which is in each header so that records of trials can be told
apart."""

_WHOLE_NAME = b',"is_whole":'
_WHOLE = _WHOLE_NAME + b"true }\n"
"""The end of the first line, with room for the other value."""

# O_APPEND lets a reader follow the file, and keeps a second writer, started by mistake, from overwriting.
_APPENDING = os.O_WRONLY | os.O_APPEND

LOOK_NS = 5_000_000_000
"""How long the file may be gone from its path before that is noticed."""


class RecordSink(Protocol):
    """Takes the records of one process, on one thread; a `RecordWriter`, or a test's list."""

    @property
    def dropped(self) -> int:
        """Records that it could not keep."""
        ...

    def write(self, record: Record) -> None:
        """Remember a record for the next `flush`."""
        ...

    def flush(self) -> None:
        """Make what was written since the last flush permanent; raises nothing."""
        ...

    def close(self, *, clean: bool) -> None:
        """Note that nothing more comes, and whether the process ended with nothing left in flight. Idempotent."""
        ...


class RecordWriter:
    """One new file of JSON lines, written by one process from one thread: the event loop's.

    `write` only remembers. `flush` hands what was written since the last flush to the operating system in one call, so
    that afterwards neither a SIGKILL nor a crash of this process loses it. If the disk refuses, the records of that
    batch are dropped and counted: the last line of the file has the count, and the first line says that some are
    missing. The same holds while the file is not at its path, as nobody would find what is written then. Only making
    this object raises.

    A status and the last line also get the time of writing on the monotonic clock (`mono_ns`), as the wall clock can be
    set meanwhile.
    """

    def __init__(
        self, path: Path, now_ns: Callable[[], int] = time.monotonic_ns, *, first: Record | None = None
    ) -> None:
        """Create the file; raises `OSError`, `FileExistsError` if the name is taken. `now_ns` is a monotonic clock.

        `first` is written at once. On Linux, the file has this line from the moment it appears. So a process that is
        killed meanwhile leaves no file; nobody could tell what is missing from one without a line.
        """
        self.path = path
        self.written = 0
        """How many records are in the file as whole lines."""
        self.dropped = 0
        """How many records are not in the file as whole lines."""
        self._batch: list[bytes] = []
        self._ends_in_line_part = False
        self._mark_at: int | None = None
        """The offset at which the first line says that nothing is missing; None if it does not say so, or there is no
        such line."""
        self._now_ns = now_ns
        if first is not None:
            self.write(first)
        self._file: int | None = _with_lines(path, self._batch) if self._batch else None
        if self._file is not None:
            self.written = len(self._batch)
            self._batch = []
        else:
            self._file = os.open(path, _APPENDING | os.O_CREAT | os.O_EXCL, 0o644)
        self._stat = os.fstat(self._file)
        # Absolute, as a handler may change the working directory of the process.
        self._place = path.absolute()
        self._is_away = False
        """Whether the file was not at its path at the last look."""
        self._looked_ns: int | None = now_ns()
        """When we last looked whether it is; None to look with the next batch."""
        self.flush()

    def write(self, record: Record) -> None:
        """Remember a record for the next `flush`."""
        line = _line_of(record)
        if isinstance(record, StatusRecord | CloseRecord):
            line = line[: -len(b"}\n")] + b',"mono_ns":%d}\n' % self._now_ns()
        if not self.written and not self.dropped and not self._batch:
            line = line[: -len(b"}\n")] + _WHOLE
            self._mark_at = len(line) - len(_WHOLE) + len(_WHOLE_NAME)
        if len(line) > LONGEST_LINE_BYTES:
            self._tell(f"a record of more than {LONGEST_LINE_BYTES} bytes, as of a very long key")
            # The next batch, or the close, says so in the file.
            self.dropped += 1
            return
        self._batch.append(line)

    def flush(self) -> None:
        """Hand over what was remembered. When this returns, the operating system has it, or it is counted as
        dropped."""
        if not self._batch:
            return
        lines, self._batch = self._batch, []
        if self._file is None:
            self.dropped += len(lines)
            return
        self._look(self._file)
        if self._is_away:
            self._tell("the file was removed or moved away")
            self.dropped += len(lines)
        else:
            self._append(self._file, lines)
        if self.dropped:
            self._say_what_is_missing()

    def close(self, *, clean: bool) -> None:
        """Write the last line, which says what is missing, and close the file. Idempotent."""
        if self._file is None:
            return
        self.flush()
        self._looked_ns = None
        self.write(
            CloseRecord(written=self.written, dropped=self.dropped, clean=clean, t=time.time_ns() // 1_000),
        )
        self.flush()
        file, self._file = self._file, None
        try:
            os.close(file)
        except OSError as error:
            # A network file system may report only now that it has no room for what it had accepted. The descriptor is
            # closed all the same, and its number may already belong to another file.
            self._say_what_is_missing()
            _log.error("journal_write_failed", path=str(self.path), reason=error.strerror)

    def _append(self, file: int, lines: list[bytes]) -> None:
        data = b"".join(lines)
        if self._ends_in_line_part:
            # This ends the partial line that an earlier failure left, so that only that line is unreadable.
            data = b"\n" + data
        done, error = _write_all(file, data)
        if error is None:
            self._ends_in_line_part = False
            self.written += len(lines)
        else:
            self._tell(error.strerror)
            self._count_part(lines, data[:done])

    def _tell(self, reason: str | None) -> None:
        # Logged once, or a full disk would fill the log as well; the last line has the count.
        if self.dropped == 0:
            _log.error("journal_write_failed", path=str(self.path), reason=reason)

    def _look(self, file: int) -> None:
        """Look now and then whether the file is still at its path: one that was deleted still takes every record."""
        now_ns = self._now_ns()
        if self._looked_ns is not None and now_ns - self._looked_ns < LOOK_NS:
            return
        self._looked_ns = now_ns
        try:
            self._is_away = not os.path.samestat(os.stat(self._place), os.fstat(file))
        except (FileNotFoundError, NotADirectoryError):
            self._is_away = True
        except OSError:
            # If it cannot be seen, it need not be gone; the next write will tell.
            self._is_away = False

    def _say_what_is_missing(self) -> None:
        """Change the first line, in place, to say that records are missing. That needs no room on the disk, while the
        last line may find none, or may never be written.

        Tried again with each later batch until it has succeeded.
        """
        if not self.written:
            # The first line is not in the file, and a line that comes in its place has no room for the note.
            self._mark_at = None
        if self._mark_at is None:
            return
        with suppress(OSError):
            file = os.open(self._place, os.O_WRONLY)
            try:
                if os.path.samestat(os.fstat(file), self._stat):
                    os.pwrite(file, b"false", self._mark_at)
                    self._mark_at = None
            finally:
                os.close(file)

    def _count_part(self, lines: list[bytes], done: bytes) -> None:
        if not done:
            whole = 0
        else:
            whole = done.count(b"\n") - self._ends_in_line_part
            self._ends_in_line_part = not done.endswith(b"\n")
        self.written += whole
        self.dropped += len(lines) - whole


def _with_lines(path: Path, lines: list[bytes]) -> int | None:
    """Open a new file that has these lines from the moment it appears at its path; None if that is not possible."""
    try:
        file = os.open(path.parent, _APPENDING | os.O_TMPFILE, 0o644)
    except (AttributeError, OSError):
        return None
    is_there = False
    try:
        if _write_all(file, b"".join(lines))[1] is None:
            # `src_dir_fd` is given only because without it, the call would make a link to the symbolic link.
            os.link(f"/proc/self/fd/{file}", path, src_dir_fd=file)
            is_there = True
    except OSError:
        # The name is taken, there is no /proc, or the disk is full: opening the file by its name will show which.
        pass
    finally:
        if not is_there:
            os.close(file)
    return file if is_there else None


def _line_of(record: Record) -> bytes:
    try:
        return orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)
    except orjson.JSONEncodeError:
        # There is a text that UTF-8 cannot hold: the content of a message must not end the member that records it.
        return as_sendable(json.dumps(asdict(record), ensure_ascii=False)).encode() + b"\n"


def _write_all(file: int, data: bytes) -> tuple[int, OSError | None]:
    """Write until everything is written or the system refuses; return how many bytes were written, and the refusal."""
    done = 0
    while done < len(data):
        try:
            done += os.write(file, data[done:] if done else data)
        except OSError as error:
            return done, error
    return done, None
