"""Lines between processes: read from a file descriptor, without a thread and without blocking the loop, and written to
standard output."""

import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

import orjson

from lbg_runtime.model.errors import UserError

_CHUNK_BYTES = 64 * 1024
MAX_LINE_BYTES = 10_000_000
"""The broker's default for the largest message."""


async def read_lines(descriptor: int) -> AsyncGenerator[bytes, None]:
    """Yield the lines without their line feed, including a last line that has none.

    Reads only as much as is asked for, so that back-pressure reaches the writer of a pipe. Raises `UserError` for a
    line longer than `MAX_LINE_BYTES`, and for a descriptor that cannot be read.
    """
    rest = b""
    async with aclosing(_chunks(descriptor)) as chunks:
        async for chunk in chunks:
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield _of_fair_length(line)
            _of_fair_length(rest)
    if rest:
        yield rest


def _of_fair_length(line: bytes) -> bytes:
    """The line, or what has come of it so far."""
    if len(line) > MAX_LINE_BYTES:
        raise UserError("standard input", "a line of more than 10 MB", "a message in each line")
    return line


def say(facts: Mapping[str, object]) -> None:
    """Print one object as a line of standard output, and flush it."""
    print(orjson.dumps(facts).decode(), flush=True)


async def _chunks(descriptor: int) -> AsyncGenerator[bytes, None]:
    # Imported here, as a process that only writes lines needs no event loop.
    import asyncio

    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    try:
        loop.add_reader(descriptor, readable.set)
    except PermissionError:
        # A regular file: there is nothing to wait for, and reading does not block for long.
        while chunk := _read(descriptor):
            yield chunk
            await asyncio.sleep(0)
        return
    try:
        while True:
            await readable.wait()
            readable.clear()
            # The descriptor stays in blocking mode, as it may be shared with other processes; once the loop has found
            # it readable, one read does not block.
            chunk = _read(descriptor)
            if not chunk:
                return
            yield chunk
    finally:
        loop.remove_reader(descriptor)


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, _CHUNK_BYTES)
    except OSError as error:
        expected = "a file, a pipe or a terminal that can be read"
        raise UserError("standard input", str(error.strerror), expected) from None
