"""The publisher's account of what the broker has confirmed; the validator measures loss against it."""

from dataclasses import dataclass

from lbg_runtime.journal.writer import RecordWriter
from lbg_runtime.model.record import ConfirmedRecord, LedgerHeader, UnconfirmedRecord


@dataclass(slots=True)
class _Range:
    shard: int
    first_seq: int
    last_seq: int
    t_first: int
    t_last: int


class Ledger:
    """Writes confirmed messages as one range per key, and never a message before its confirm.

    Owned by one publisher, called from its event loop. Ranges are held until `flush`, or until so many messages are
    held that a key more would be a burden; a process killed before that leaves a torn file, not a wrong one.
    Times are wall clock in microseconds since the epoch.
    """

    def __init__(self, writer: RecordWriter, header: LedgerHeader, max_held: int = 10_000) -> None:
        self._writer = writer
        self._max_held = max_held
        self._ranges: dict[str, _Range] = {}
        self._held = 0
        writer.write(header)
        writer.flush()

    @property
    def held(self) -> int:
        """Confirmed messages that no line of the file tells yet."""
        return self._held

    def confirmed(self, key: str, shard: int, sequence: int, t_us: int) -> None:
        """The broker confirmed message `sequence` of `key`."""
        self._held += 1
        known = self._ranges.get(key)
        if known is not None and sequence == known.last_seq + 1:
            known.last_seq = sequence
            known.t_last = t_us
        else:
            if known is not None:
                self._write(key, known)
            self._ranges[key] = _Range(shard, sequence, sequence, t_us, t_us)
        if self._held >= self._max_held:
            self.flush()

    def unconfirmed(self, record: UnconfirmedRecord) -> None:
        """The broker refused a message, or its fate is not known; in the file when this returns."""
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
        """Write what is held and the closing line. `clean`: no message was left without an answer."""
        self.flush()
        self._writer.close(clean=clean)

    def _write(self, key: str, known: _Range) -> None:
        self._writer.write(
            ConfirmedRecord(key, known.shard, known.first_seq, known.last_seq, known.t_first, known.t_last)
        )
