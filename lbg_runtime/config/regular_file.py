"""Reads files that settings name, without waiting for a writer and without reading for ever."""

import errno
import os
import stat
from pathlib import Path


def read_regular_file(path: Path, largest_bytes: int | None = None) -> bytes:
    """The content of a regular file.

    Raises `OSError`, also if the file is larger than `largest_bytes`, or not a regular one: a FIFO or a device may
    never end.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        with os.fdopen(handle, "rb", closefd=False) as file:
            content = file.read(-1 if largest_bytes is None else largest_bytes + 1)
    finally:
        os.close(handle)
    if largest_bytes is not None and len(content) > largest_bytes:
        raise OSError(errno.EFBIG, f"more than {largest_bytes} bytes")
    return content
