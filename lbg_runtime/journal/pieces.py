"""Cuts a growing record file into pieces that are read separately, each as a reader of the whole file would read it.

The planner decides where a piece ends, and keeps what the reader of the next one must know of the lines before
(`Place`). What the pieces of a file say besides their records is merged, in order, into the facts of the first
(`facts.py`).
"""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from lbg_runtime.journal.reader import (
    RecordFile,
    is_close,
    is_record,
    kind_of,
    open_from,
    open_records,
    parse_line,
)

_PIECE_BYTES = 32 << 20


class Place(NamedTuple):
    """How far a file was cut into pieces. Kept as JSON."""

    end_bytes: int = 0
    line_count: int = 0
    header_at: int | None = None
    """Where the first line that is a record begins."""
    is_closed: bool = False
    ends_unreadable: bool = False
    """Whether the last line so far is not a record; if nothing follows, it was cut off."""
    has_more: bool = False
    """Whether there was more than a piece takes."""
    is_endless: bool = False
    """Whether a line follows that is longer than any that our writers write; it is not read."""


def cut_piece(path: Path, begin: Place) -> Place:
    """Cut as far as the file has whole lines; return the same place again if nothing has changed.

    Raises `OSError`, also if the file does not reach as far as the place any more.
    """
    if begin.is_endless:
        return begin
    with open_from(path, begin.end_bytes) as stream:
        block = stream.read(_PIECE_BYTES)
    has_more = len(block) == _PIECE_BYTES
    lines = block[: block.rfind(b"\n") + 1]
    if not lines:
        return begin._replace(has_more=False, is_endless=has_more)
    header_at = begin.header_at
    if header_at is None and (found := _find(lines, b"{", is_record)) is not None:
        header_at = begin.end_bytes + found
    return Place(
        end_bytes=begin.end_bytes + len(lines),
        line_count=begin.line_count + lines.count(b"\n"),
        header_at=header_at,
        is_closed=begin.is_closed or _find(lines, b'"close"', lambda row: is_record(row) and is_close(row)) is not None,
        ends_unreadable=not is_record(parse_line(lines[lines.rfind(b"\n", 0, -1) + 1 :])),
        has_more=has_more,
    )


def read_piece(path: Path, number: int, begin: Place, end: Place) -> RecordFile:
    """The records from one place to the other, and what these lines tell about the file.

    Raises `OSError`, also if the file does not reach that far any more.
    """
    file = RecordFile(path.name, kind_of(path.name), number)
    with open_records(path) as stream:
        header = None
        if begin.header_at is not None:
            stream.seek(begin.header_at)
            header = stream.readline().removesuffix(b"\n")
        file.go_on(begin.line_count, header, is_closed=begin.is_closed, ends_unreadable=begin.ends_unreadable)
        stream.seek(begin.end_bytes)
        if end.end_bytes > begin.end_bytes and not file.hopeless:
            lines = stream.read(end.end_bytes - begin.end_bytes)
            if len(lines) < end.end_bytes - begin.end_bytes:
                raise OSError(errno.EIO, "it has become shorter", str(path))
            file.take(lines.removesuffix(b"\n").split(b"\n"))
    if end.is_endless and not file.hopeless:
        file.give_up()
    return file


def _find(lines: bytes, sought: bytes, is_it: Callable[[object], bool]) -> int | None:
    """Where the first line begins that contains the `sought` bytes and satisfies `is_it`; None if there is none."""
    at = lines.find(sought)
    while at >= 0:
        begin, end = lines.rfind(b"\n", 0, at) + 1, lines.find(b"\n", at)
        if is_it(parse_line(lines[begin:end])):
            return begin
        at = lines.find(sought, end)
    return None
