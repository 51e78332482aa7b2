"""One stream from a landing log to a lake, as the command line requests it; does not import pyspark."""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from lbg_runtime.model.errors import UserError


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


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """Where a stream stands after a batch."""

    batch: int
    rows: int
    """Rows read so far by this process."""
    behind: int
    """Rows that have landed but are not read."""


def parse_target(text: str) -> tuple[Lake, Path]:
    """Kind and folder of `parquet:DIR` or `delta:DIR`; raises `UserError`."""
    kind, _, folder = text.partition(":")
    if not folder or kind not in {lake.value for lake in Lake}:
        raise UserError("--to", repr(text), "parquet:DIR or delta:DIR")
    return Lake(kind), Path(folder)


def check_folder(option: str, folder: Path) -> None:
    """Raise `UserError` if no folder can be there because a file is there or on the way."""
    for path in (folder, *folder.parents):
        if path.is_dir():
            return
        if path.exists():
            raise UserError(option, f"{path} is no folder", "a folder, or what can become one")
