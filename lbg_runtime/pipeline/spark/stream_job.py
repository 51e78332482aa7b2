"""One stream from a landing log to a lake, as the command line requests it; does not import pyspark."""

import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from stat import S_ISDIR

from lbg_runtime.model.errors import UserError

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_FOLDER = "a folder, or what can become one"


class Lake(Enum):
    """Kinds of output; the values are what `--to` begins with."""

    PARQUET = "parquet"
    DELTA = "delta"


@dataclass(frozen=True, slots=True)
class StreamJob:
    """One stream, from a landing log to a lake."""

    landing: Path
    group: str
    lake: Lake
    target: Path
    checkpoint: Path
    available_now: bool
    trigger_ms: int
    max_rows: int
    skips_pruned: bool = False
    """Whether it goes on with the rows that are left if some were pruned before they were read."""


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """Where a stream stands after a batch."""

    batch: int
    rows: int
    """Rows read so far by this process."""
    behind: int | None
    """Rows that had landed by then but were not read. None, if the stream was stopped before a batch had ended."""


def parse_target(text: str) -> tuple[Lake, Path]:
    """Kind and folder of `parquet:DIR` or `delta:DIR`; raises `UserError`."""
    kind, _, folder = text.partition(":")
    if not folder or kind not in {lake.value for lake in Lake}:
        raise UserError("--to", repr(text), "parquet:DIR or delta:DIR")
    return Lake(kind), Path(folder)


def check_folder(option: str, folder: Path) -> None:
    """Raise `UserError` if no folder can be there because a file is there or on the way, or it cannot be looked at.

    Also for a URI, which Spark would read as one, and we as the name of a folder.
    """
    if _SCHEME.match(str(folder)):
        raise UserError(option, str(folder), "a folder of this machine, without a scheme")
    for path in (folder, *folder.parents):
        try:
            mode = path.stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise UserError(option, f"{path}: {error.strerror}", _FOLDER) from None
        if not S_ISDIR(mode):
            raise UserError(option, f"{path} is no folder", _FOLDER)
        return


def check_apart(job: StreamJob) -> None:
    """Raise `UserError` if the lake has the folder of the log or of the checkpoint, or Delta's `vacuum` would find it.

    What stands in a table's folder and in none of its commits is removed by that, except below names that begin with
    an underscore or a dot: a log would be gone, and a checkpoint would not have its oldest files any more.
    """
    target = job.target.resolve()
    for option, folder in (("--dir", job.landing), ("--checkpoint", job.checkpoint)):
        try:
            below = folder.resolve().relative_to(target).parts
        except ValueError:
            continue
        if not below:
            raise UserError("--to", f"{job.target}, which is the folder of {option} too", "a folder of its own")
        if job.lake is Lake.DELTA and not below[0].startswith(("_", ".")):
            found = f"{folder}, which lies in that of the Delta table, whose vacuum would remove it"
            raise UserError(option, found, "a folder outside of it")
