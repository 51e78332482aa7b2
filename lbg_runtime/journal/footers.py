"""A note of the files of a run that is laid out, by which one shows that is missing or has a damaged footer.

Pages of a Parquet file have checksums. The footer, which says where pages are and how many, has none; and no file says
which others there were.
"""

import os
import zlib
from pathlib import Path

import orjson

from lbg_runtime.model.errors import UserError

_NOTE = "_files.json"
"""The file of the note, in the folder of the run: for each file, by its path there, its length in bytes and the CRC-32
of its footer."""

_TAIL_BYTES = 8
"""The end of a Parquet file: the length of its footer, and a mark."""


def note_footers(run: Path) -> None:
    """Note the Parquet files of a run that is complete; raises `OSError`."""
    # `Path.rglob` says nothing of a folder that cannot be listed, whose files nobody would miss.
    folders = os.walk(run, onerror=_refuse)
    paths = sorted(Path(folder, name) for folder, _, names in folders for name in names if name.endswith(".parquet"))
    files = {str(path.relative_to(run)): _footer(path) for path in paths}
    (run / _NOTE).write_bytes(orjson.dumps(files))


def check_footers(run: Path) -> None:
    """Raise `UserError` for a file of a run that is missing, or has another footer or length than when it was noted.

    A run that an older version laid out has no note, and nothing of it is checked.
    """
    note = run / _NOTE
    try:
        files = orjson.loads(note.read_bytes())
        if not isinstance(files, dict):
            raise _damaged(note, "not as it was written")
        for name, noted in files.items():
            if _footer(run / name) != noted:
                raise _damaged(run / name, "not as it was written")
    except FileNotFoundError as error:
        if error.filename != str(note):
            raise _damaged(Path(error.filename), "it is missing") from None
    except (OSError, ValueError) as error:
        raise _damaged(note, f"cannot be read: {error}") from None


def _footer(path: Path) -> list[int]:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL_BYTES))
        length = int.from_bytes(file.read(4), "little")
        file.seek(max(0, size - _TAIL_BYTES - length))
        return [size, zlib.crc32(file.read())]


def _refuse(error: OSError) -> None:
    raise error


def _damaged(path: Path, what: str) -> UserError:
    return UserError(str(path), what, "a run as `lbg validate` laid it out")
