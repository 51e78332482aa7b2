"""Reads a part of a run that is laid out in slices, in order of time, so that only one slice is in memory.

The footers of the Parquet files say when the earliest handling of each row group started. So for each slice it is known
until when nothing is missing from it, in whatever order the members wrote.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lbg_runtime.journal.layout import NO_RECORDS, open_table, paths_of, read_group, read_records
from lbg_runtime.validator.columns import read_lives
from lbg_runtime.validator.recall import handlings_of
from lbg_runtime.validator.schema import DISPATCHES, FLOWS, RunTables
from lbg_runtime.validator.segments import FAR_FUTURE, FAR_PAST


def read_slices(run: Path, whole: RunTables, queues: Sequence[int], rows: int) -> Iterator[tuple[RunTables, int]]:
    """The records of some queues in slices of about `rows` rows, each with the moment until which nothing is missing.

    A slice has at least one row group. `whole` is `layout.read_whole` of the run. Raises `UserError`.
    """
    offset_ns = read_lives(whole.journals).offset_ns
    files = [_Handlings(path, int(offset_ns[number])) for path, number in paths_of(run, queues, "dispatches")]
    ledgers = {name: _groups(run, queues, name) for name in ("confirmed", "unconfirmed")}
    flows = read_records(run, queues, "flows")
    nothing = replace(whole, **NO_RECORDS)
    while True:
        tables = [DISPATCHES.empty_table()]
        while sum(table.num_rows for table in tables) < rows and (left := [file for file in files if file.left]):
            tables.append(min(left, key=lambda file: file.next_ns).take())
        listed = {name: _up_to(rows, groups) for name, groups in ledgers.items()}
        dispatches = pa.concat_tables(tables)
        if not dispatches.num_rows and not flows.num_rows and not any(listed.values()):
            return
        records = {name: pa.concat_tables([NO_RECORDS[name], *groups]) for name, groups in listed.items()}
        until_ns = min((file.next_ns for file in files if file.left), default=FAR_FUTURE - 1)
        yield replace(nothing, dispatches=dispatches, flows=flows, **records), until_ns
        flows = FLOWS.empty_table()


def read_handlings(run: Path, queues: Sequence[int], messages: pa.Table) -> pa.Table:
    """Every dispatch of these messages (publisher, key, seq) in some queues. Raises `UserError`."""
    found = (handlings_of(group, messages) for group in _groups(run, queues, "dispatches"))
    return pa.concat_tables([DISPATCHES.empty_table(), *found])


class _Handlings:
    """One file of handlings, taken row group by row group."""

    def __init__(self, path: Path, offset_ns: int) -> None:
        self._path = path
        file = open_table(path, DISPATCHES)
        place = DISPATCHES.get_field_index("start_mono_ns")
        starts = [_lowest(file.metadata.row_group(group), place) for group in range(file.num_row_groups)]
        # For each group, the earliest start in it and in all that follow.
        self._earliest_ns = np.minimum.accumulate(np.array(starts, dtype=np.int64)[::-1])[::-1]
        self._offset_ns = offset_ns
        self._next = 0

    @property
    def left(self) -> bool:
        return self._next < len(self._earliest_ns)

    @property
    def next_ns(self) -> int:
        """The earliest start of what is left."""
        earliest = int(self._earliest_ns[self._next])
        return earliest if earliest == FAR_PAST else earliest + self._offset_ns

    def take(self) -> pa.Table:
        self._next += 1
        # Opened anew each time, as there may be more files than a process may have open.
        return read_group(self._path, open_table(self._path, DISPATCHES), self._next - 1, DISPATCHES)


def _lowest(group: pq.RowGroupMetaData, place: int) -> int:
    statistics = group.column(place).statistics
    return int(statistics.min) if statistics is not None and statistics.has_min_max else FAR_PAST


def _groups(run: Path, queues: Sequence[int], name: str) -> Iterator[pa.Table]:
    schema = NO_RECORDS[name].schema
    for path, _ in paths_of(run, queues, name):
        file = open_table(path, schema)
        for group in range(file.num_row_groups):
            yield read_group(path, file, group, schema)


def _up_to(rows: int, groups: Iterator[pa.Table]) -> list[pa.Table]:
    taken: list[pa.Table] = []
    while sum(table.num_rows for table in taken) < rows and (group := next(groups, None)) is not None:
        taken.append(group)
    return taken
