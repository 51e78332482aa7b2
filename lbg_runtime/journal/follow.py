"""Reads the record files of a run as they grow: what has come since the last look, and until when it is complete."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from lbg_runtime.journal.reader import (
    RecordFile,
    check_directory,
    files_of,
    open_from,
    open_records,
    tables_of,
)
from lbg_runtime.model.errors import UserError
from lbg_runtime.model.record import FILE_SUFFIXES, FileKind
from lbg_runtime.validator.arrow import flags
from lbg_runtime.validator.columns import read_lives
from lbg_runtime.validator.schema import STRIPES, RunTables
from lbg_runtime.validator.segments import FAR_PAST

ALLOWED_DELAY_MS = 5_000
"""How long before the newest record of all files a handling may have begun whose record is still missing: records are
written when a handling has ended. If a handling takes longer, its record is late, which does no harm unless something
of its key was handled meanwhile."""

_BLOCK_BYTES = 16 << 20
"""How much is read from a file at a time, so that one that is long already is not taken into memory whole."""


@dataclass(frozen=True, slots=True)
class News:
    """The records that have come, and the moment on the run's clock before which hardly any can be missing."""

    tables: RunTables
    until_ns: int
    has_more: bool
    """Whether a file has more than was read at a time."""


class RunFollower:
    """Looks at a directory repeatedly; called from one thread. Files may appear, and grow."""

    def __init__(self, directory: Path) -> None:
        """Raises `UserError` if there is no such directory."""
        check_directory(directory, "the directory that members write journals to")
        self._directory = directory
        self._tails: dict[FileKind, dict[str, _Tail]] = {kind: {} for kind in FILE_SUFFIXES}
        """The files of each kind, by name."""
        self._stripes = STRIPES.empty_table()

    def look(self) -> News:
        """Read on; raises `UserError` if a file cannot be read: what came in other files is then part of the next
        look."""
        for kind, tails in self._tails.items():
            for path in files_of(self._directory, kind):
                if path.name not in tails:
                    tails[path.name] = _Tail(path, RecordFile(path.name, kind, len(tails)))
        every = [tail for tails in self._tails.values() for tail in tails.values()]
        for tail in every:
            tail.read()
        # Nothing is forgotten before everything is read: after an error, the next look has it all.
        tables: dict[str, pa.Table] = {}
        for kind, tails in self._tails.items():
            tables |= tables_of(kind, [tail.file for tail in tails.values()])
        for tail in every:
            tail.forget_records()
        self._stripes = tables["stripes"] = pa.concat_tables([self._stripes, tables["stripes"]])
        until_ns = complete_until(tables["journals"], [tail.has_more for tail in self._tails["journal"].values()])
        return News(RunTables(**tables), until_ns, any(tail.has_more for tail in every))


def complete_until(journals: pa.Table, behind: Sequence[bool]) -> int:
    """Until when journals that are still being written are complete; `behind` says which of them have more that was not
    read yet."""
    if not journals.num_rows:
        return FAR_PAST
    reached = read_lives(journals).last_ns
    if not any(flags(journals, "torn")) and not any(behind):
        # Every member has left.
        return int(reached.max()) + 1
    limits = [int(reached.max()), *(int(moment) for moment, more in zip(reached, behind, strict=True) if more)]
    return min(limits) - ALLOWED_DELAY_MS * 1_000_000


class _Tail:
    """One file, and how far it was read."""

    def __init__(self, path: Path, file: RecordFile) -> None:
        self.file = file
        self.has_more = False
        self._path = path
        self._place = 0

    def read(self) -> None:
        """Read the lines that are complete by now; raises `UserError`."""
        if self.file.hopeless:
            return
        try:
            if self._place:
                with open_records(self._path) as stream:
                    self.file.take_first_line_again(stream.readline())
            with open_from(self._path, self._place) as stream:
                block = stream.read(_BLOCK_BYTES)
        except OSError as error:
            raise UserError(str(self._path), str(error.strerror), "a readable record file") from error
        whole = block[: block.rfind(b"\n") + 1]
        self._place += len(whole)
        if whole:
            self.file.take(whole[:-1].split(b"\n"))
        elif len(block) == _BLOCK_BYTES:
            self.file.give_up()
        # Not of a hopeless file, of which nothing more is read: to wait for that would never end.
        self.has_more = len(block) == _BLOCK_BYTES and not self.file.hopeless

    def forget_records(self) -> None:
        """Drop the records of the file, which have been told, and keep what else is known of it."""
        for batches in self.file.batches.values():
            batches.clear()
