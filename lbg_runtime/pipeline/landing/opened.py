"""Files of a landing log, read without Python's buffers: a planner or a task does it for each of thousands of lanes."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def opened(path: Path | str) -> Iterator[int]:
    """Open a file for reading while the context lasts. Every `OSError` names the file, also if a read of it fails."""
    file = os.open(path, os.O_RDONLY)
    try:
        yield file
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        os.close(file)


def read_whole(path: Path | str) -> bytes:
    """The whole content of a file. Raises `OSError`."""
    with opened(path) as file:
        return os.read(file, os.fstat(file).st_size)
