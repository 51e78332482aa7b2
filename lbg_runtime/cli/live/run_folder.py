"""A temporary folder for the journals and logs of a group that a command runs: kept only if something was wrong."""

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(slots=True)
class RunFolder:
    path: Path
    is_wanted: bool = True
    """Whether it is kept. Its user sets this to False when nothing was wrong."""


@contextmanager
def run_folder(prefix: str) -> Iterator[RunFolder]:
    """A new temporary folder. At the end it is removed or, if it is wanted, named on standard error."""
    folder = RunFolder(Path(tempfile.mkdtemp(prefix=prefix)))
    try:
        yield folder
    finally:
        if folder.is_wanted:
            print(f"journals and logs: {folder.path}", file=sys.stderr)
        else:
            shutil.rmtree(folder.path)
