"""The files of a run as values: changed by tests, given to the kernel as tables, written as the writers leave them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Self

import orjson
import pyarrow as pa

from lbg_runtime.model.record import (
    CloseRecord,
    ConfirmedRecord,
    DispatchRecord,
    FlowRecord,
    JournalHeader,
    LedgerHeader,
    OwnerRecord,
    PauseRecord,
    StatusRecord,
    StripesRecord,
    UnconfirmedRecord,
)
from lbg_runtime.validator.schema import (
    CONFIRMED,
    DISPATCHES,
    FLOWS,
    JOURNALS,
    LEDGERS,
    STRIPES,
    UNCONFIRMED,
    RunTables,
)

MS = 1_000_000
SECOND = 1000 * MS
WALL_OFFSET_NS = 1_700_000_000 * SECOND


def wall_us(mono_ns: int) -> int:
    return (mono_ns + WALL_OFFSET_NS) // 1000


@dataclass
class Journal:
    """One member life's file."""

    header: JournalHeader
    records: list[DispatchRecord | FlowRecord | OwnerRecord | StripesRecord | StatusRecord | PauseRecord] = field(
        default_factory=list
    )
    close: CloseRecord | None = None
    wall_offset_ns: int = WALL_OFFSET_NS

    @property
    def dispatches(self) -> list[DispatchRecord]:
        return [record for record in self.records if isinstance(record, DispatchRecord)]

    @property
    def flows(self) -> list[FlowRecord]:
        return [record for record in self.records if isinstance(record, FlowRecord)]

    @property
    def stripes(self) -> list[StripesRecord]:
        return [record for record in self.records if isinstance(record, StripesRecord)]

    @property
    def pauses(self) -> str | None:
        found = [record for record in self.records if isinstance(record, PauseRecord)]
        return " ".join(f"{record.from_mono_ns}:{record.to_mono_ns}" for record in found) or None

    @property
    def moves(self) -> dict[str, str | None]:
        owners = [record for record in self.records if isinstance(record, OwnerRecord)]
        given = {record.move_id: record.asked_mono_ns for record in owners if record.event == "given"}
        taken = {record.move_id: record.mono_ns for record in owners if record.event == "taken"}
        sides = {"given": given, "taken": taken}
        return {event: orjson.dumps(moves).decode() if moves else None for event, moves in sides.items()}

    @property
    def last_mono_ns(self) -> int | None:
        moments = [record.done_mono_ns for record in self.dispatches]
        moments += [record.mono_ns for record in [*self.flows, *self.stripes]]
        written = [record for record in (*self.records, self.close) if isinstance(record, StatusRecord | CloseRecord)]
        return max([*moments, *(_written_ns(record, self.wall_offset_ns) for record in written)], default=None)


@dataclass
class Ledger:
    """One publisher life's file."""

    header: LedgerHeader
    confirmed: list[ConfirmedRecord] = field(default_factory=list)
    unconfirmed: list[UnconfirmedRecord] = field(default_factory=list)
    close: CloseRecord | None = None


@dataclass
class Run:
    """All the files of a run."""

    journals: list[Journal] = field(default_factory=list)
    ledgers: list[Ledger] = field(default_factory=list)

    def copy(self) -> Self:
        """Another with the same records and headers, which nobody changes; it may be changed as a whole run may."""
        return replace(
            self,
            journals=[replace(journal, records=[*journal.records]) for journal in self.journals],
            ledgers=[
                replace(ledger, confirmed=[*ledger.confirmed], unconfirmed=[*ledger.unconfirmed])
                for ledger in self.ledgers
            ],
        )

    def tables(self) -> RunTables:
        """As the reader gives them."""

        def table(schema: pa.Schema, kind: str, records: Sequence[Sequence[object]]) -> pa.Table:
            """Of the records of each file of a kind."""
            numbered = [(number, record) for number, own in enumerate(records) for record in own]
            columns = {name: [getattr(record, name) for _, record in numbered] for name in schema.names if name != kind}
            return pa.Table.from_pydict({**columns, kind: [number for number, _ in numbered]}, schema)

        def end(close: CloseRecord | None) -> dict[str, object]:
            return {
                "torn": close is None,
                "clean": close.clean if close else False,
                "dropped": close.dropped if close else 0,
                "defect": None,
            }

        journals = [
            {
                **asdict(journal.header),
                **end(journal.close),
                "file": f"{number}.member.jsonl",
                "last_mono_ns": journal.last_mono_ns,
                "wall_offset_ns": journal.wall_offset_ns,
                "pauses": journal.pauses,
                **journal.moves,
            }
            for number, journal in enumerate(self.journals)
        ]
        ledgers = [
            {**asdict(ledger.header), **end(ledger.close), "file": f"{number}.ledger.jsonl"}
            for number, ledger in enumerate(self.ledgers)
        ]
        return RunTables(
            dispatches=table(DISPATCHES, "journal", [journal.dispatches for journal in self.journals]),
            flows=table(FLOWS, "journal", [journal.flows for journal in self.journals]),
            confirmed=table(CONFIRMED, "ledger", [ledger.confirmed for ledger in self.ledgers]),
            unconfirmed=table(UNCONFIRMED, "ledger", [ledger.unconfirmed for ledger in self.ledgers]),
            journals=pa.Table.from_pylist(journals, JOURNALS),
            ledgers=pa.Table.from_pylist(ledgers, LEDGERS),
            stripes=table(STRIPES, "journal", [journal.stripes for journal in self.journals]),
        )

    def write(self, folder: Path) -> None:
        """As the writers leave them."""
        for number, journal in enumerate(self.journals):
            _write(folder / f"{number:02}.member.jsonl", [journal.header, *journal.records], journal.close, journal)
        for number, ledger in enumerate(self.ledgers):
            _write(
                folder / f"{number:02}.ledger.jsonl",
                [ledger.header, *ledger.confirmed, *ledger.unconfirmed],
                ledger.close,
            )


def _written_ns(record: StatusRecord | CloseRecord, wall_offset_ns: int) -> int:
    return record.t * 1000 - wall_offset_ns


def _write(path: Path, records: Sequence[object], close: CloseRecord | None, journal: Journal | None = None) -> None:
    lines = [*records, *([CloseRecord(len(records), close.dropped, close.clean, close.t)] if close else [])]
    path.write_bytes(b"".join(orjson.dumps(_as_written(record, journal)) + b"\n" for record in lines))


def _as_written(record: object, journal: Journal | None) -> object:
    """The writer adds when it wrote these, on the monotonic clock."""
    if journal is not None and isinstance(record, StatusRecord | CloseRecord):
        return {**asdict(record), "mono_ns": _written_ns(record, journal.wall_offset_ns)}
    return record
