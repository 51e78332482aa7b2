"""A temporary folder for the journals and logs of a group that a command runs: kept only if something was wrong."""

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lbg_runtime.model.errors import UserError


@dataclass(slots=True)
class RunFolder:
    path: Path
    is_wanted: bool = True
    """Whether it is kept. Its user sets this to False when nothing was wrong."""


@contextmanager
def run_folder(prefix: str) -> Iterator[RunFolder]:
    """A new temporary folder. At the end it is removed, as far as the disk lets it, or, if it is wanted, named on
    standard error. Raises `UserError` if none can be made."""
    try:
        folder = RunFolder(Path(tempfile.mkdtemp(prefix=prefix)))
    except OSError as error:
        raise UserError("temporary folder", str(error.strerror), "room for journals, such as in TMPDIR") from None
    try:
        yield folder
    finally:
        if folder.is_wanted:
            print(f"journals and logs: {folder.path}", file=sys.stderr)
        else:
            shutil.rmtree(folder.path, ignore_errors=True)
