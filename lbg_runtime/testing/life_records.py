"""The records of one life of a member, kept in memory, in virtual time."""

from dataclasses import dataclass, replace

from lbg_runtime.model.record import DispatchRecord, FlowRecord, Record, StripesRecord
from lbg_runtime.testing.moments import Moments


@dataclass(frozen=True, slots=True)
class Ending:
    """The record of one delivery, and when it was written."""

    record: DispatchRecord
    started_ns: int
    """When the runtime began with it: after the preceding one of its key had ended."""
    written_ns: int


class LifeRecords:
    """A `RecordSink`. Moments of records are converted to virtual time, except in dispatches: `laws` converts those."""

    dropped = 0
    """See `RecordSink.dropped`: it has no disk."""

    def __init__(self, moments: Moments) -> None:
        self.endings: list[Ending] = []
        self.flows: list[FlowRecord] = []
        self.stripes: list[StripesRecord] = []
        self.is_closed = False
        self.is_clean = False
        """Closed, with nothing left in flight."""
        self.last_ns = 0
        self._moments = moments
        self._batch: list[Ending | FlowRecord | StripesRecord] = []
        self._is_cut = False

    def cut(self) -> None:
        """The process is dead: what it had not flushed is lost, and nothing more is written."""
        self._is_cut = True
        self._batch.clear()

    def write(self, record: Record) -> None:
        """See `RecordSink.write`; records that no law reads are dropped."""
        now_ns = self._moments.next_ns()
        match record:
            case DispatchRecord():
                self._batch.append(Ending(record, self._moments.at(record.start_mono_ns), now_ns))
            case FlowRecord() | StripesRecord():
                self._batch.append(replace(record, t=now_ns // 1_000, mono_ns=now_ns))
            case _:
                pass

    def flush(self) -> None:
        batch, self._batch = self._batch, []
        if self._is_cut or not batch:
            return
        self.last_ns = self._moments.next_ns()
        for record in batch:
            match record:
                case Ending():
                    self.endings.append(record)
                case FlowRecord():
                    self.flows.append(record)
                case StripesRecord():
                    self.stripes.append(record)

    def close(self, *, clean: bool) -> None:
        self.flush()
        if not self._is_cut:
            self.is_closed, self.is_clean = True, clean
            self.last_ns = self._moments.next_ns()
