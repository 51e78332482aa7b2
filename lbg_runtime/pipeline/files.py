"""Files that are durable when they are there, and files read without Python's buffers: each task reads thousands."""

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that it is there as a whole or not at all, and durable on return. Any process may do this.

    Raises `OSError`; no partial file stays then, which would take the room that the next attempt needs.
    """
    draft = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}")
    try:
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        # A full disk gives no name.
        error.filename = error.filename or str(path)
        raise


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it that are missing; all their names are durable on return. Raises `OSError`."""
    new = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for each in new:
        sync_folder(each.parent)


def sync_data(file: int) -> None:
    """Make what is written in a file durable, with what is needed to find it, such as its size; raises `OSError`."""
    if sys.platform == "darwin":
        os.fsync(file)
    else:
        os.fdatasync(file)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable; raises `OSError`."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
