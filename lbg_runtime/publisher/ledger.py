"""The publisher's record of what the broker has confirmed; the validator measures loss against it."""

import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from lbg_runtime.journal.writer import RUN_VARIABLE, RecordWriter
from lbg_runtime.model.errors import UserError
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.hashing import HashFunction
from lbg_runtime.model.record import FILE_SUFFIXES, ConfirmedRecord, LedgerHeader, UnconfirmedRecord

MAX_HELD = 10_000
"""How many confirmed messages there may be whose ranges are not written yet."""


def wall_clock_us() -> int:
    """Microseconds since the epoch."""
    return time.time_ns() // 1000


@dataclass(slots=True)
class _Range:
    shard: int
    first_seq: int
    last_seq: int
    t_first: int
    t_last: int


class Ledger:
    """Writes confirmed messages as one range per key, and never a message before its confirm.

    Owned by one publisher, called from its event loop. Ranges are held until `flush`, covering at most
    `MAX_HELD` messages. A process that is killed leaves a torn file, never a wrong one. Times are wall clock in
    microseconds since the epoch.
    """

    def __init__(self, writer: RecordWriter) -> None:
        """`writer` has written the header already."""
        self._writer = writer
        self._ranges: dict[str, _Range] = {}
        self._held = 0

    @property
    def path(self) -> Path:
        """The ledger's file."""
        return self._writer.path

    @property
    def dropped(self) -> int:
        """Number of records that could not be written; more than 0 makes the verdict unknown."""
        return self._writer.dropped

    def confirmed(self, key: str, shard: int, sequence: int, t_us: int) -> None:
        """Record that the broker confirmed message `sequence` of `key`."""
        self._held += 1
        known = self._ranges.get(key)
        if known is not None and sequence == known.last_seq + 1:
            known.last_seq = sequence
            known.t_last = t_us
        else:
            if known is not None:
                self._write(key, known)
            self._ranges[key] = _Range(shard, sequence, sequence, t_us, t_us)
        if self._held >= MAX_HELD:
            self.flush()

    def unconfirmed(self, record: UnconfirmedRecord) -> None:
        """Record that the broker refused a message, or that its fate is unknown; the record is in the file when this
        returns."""
        self._writer.write(record)
        self._writer.flush()

    def flush(self) -> None:
        """Hand everything held to the operating system."""
        for key, known in self._ranges.items():
            self._write(key, known)
        self._ranges.clear()
        self._held = 0
        self._writer.flush()

    def close(self, *, clean: bool) -> None:
        """Write what is held and the last line. `clean`: no message was left without an answer."""
        self.flush()
        self._writer.close(clean=clean)

    def _write(self, key: str, known: _Range) -> None:
        self._writer.write(
            ConfirmedRecord(key, known.shard, known.first_seq, known.last_seq, known.t_first, known.t_last)
        )


def open_ledger(folder: Path, group: GroupShape, hash_function: HashFunction, *, publisher_id: str) -> Ledger:
    """Begin the file `<publisher id>.ledger.jsonl` in the folder, which is created if it is missing. Its header names
    the run as in journals (`RUN_VARIABLE`).

    Raises `UserError` if that fails, or if the file exists: a publisher id is for one life only.
    """
    path = folder / f"{publisher_id}{FILE_SUFFIXES['ledger']}"
    header = LedgerHeader(
        run_id=os.environ.get(RUN_VARIABLE, ""),
        group=group.name,
        hash_prefix=group.hash_prefix,
        hash_count=group.hash_count,
        hash_function=hash_function.value,
        publisher=publisher_id,
        host=socket.gethostname(),
        pid=os.getpid(),
        t_start=wall_clock_us(),
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return Ledger(RecordWriter(path, first=header))
    except OSError as error:
        where = error.filename or path
        raise UserError("ledger", f"{where}: {error.strerror}", "a new file in a directory to write to") from None
