"""A run's records as Parquet, laid out by queue, so that each part of the run can be judged by itself.

    run=<run id>/queue=<n>/<dispatches|flows|confirmed|unconfirmed>-<file number>.parquet
    run=<run id>/_<journals|ledgers|owners|stripes>.parquet      of the whole run, small

Columns are those of `validator/schema.py`. The ledger's rows lie in the folder of the part that their shard belongs to.
A file of records is laid out on its own, so that several can be at once, in other processes as well: first all
journals, then, with what these say of re-stripings, all ledgers, and last the tables of the whole. The folder gets its
name when it is whole.
"""

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lbg_runtime.journal.reader import JOURNAL_PATTERN, LEDGER_PATTERN, RecordFile, read_journal, read_ledger
from lbg_runtime.model.errors import UserError
from lbg_runtime.validator.layouts import part_count
from lbg_runtime.validator.schema import (
    CONFIRMED,
    DISPATCHES,
    FLOWS,
    JOURNALS,
    LEDGERS,
    OWNERS,
    STRIPES,
    UNCONFIRMED,
    RunTables,
)
from lbg_runtime.validator.segments import Ints

_RUN, _QUEUE = "run=", "queue="
_DRAFT_SUFFIX = ".part"
_WHOLE = {"journals": JOURNALS, "ledgers": LEDGERS, "owners": OWNERS, "stripes": STRIPES}
_BY_QUEUE = {"dispatches": DISPATCHES, "flows": FLOWS, "confirmed": CONFIRMED, "unconfirmed": UNCONFIRMED}


@dataclass(frozen=True, slots=True)
class LaidOut:
    """What laying out one file of records leaves for the tables of the whole run."""

    row: pa.Table
    """The file's row in the table of journals or of ledgers."""
    owners: pa.Table
    stripes: pa.Table


def find_run(directory: Path) -> Path | None:
    """The laid out run that a directory is or holds, None where it holds none; `UserError` where it holds several."""
    if (directory / "_journals.parquet").is_file():
        return directory
    found = [path for path in sorted(directory.glob(f"{_RUN}*")) if (path / "_journals.parquet").is_file()]
    if len(found) > 1:
        names = ", ".join(path.name for path in found[:5])
        raise UserError(str(directory), f"{len(found)} runs", f"one of them, such as {names}")
    return found[0] if found else None


def lay_out(directory: Path, target: Path) -> Path:
    """Lay out the records of a run; returns its new folder in `target`. Raises `UserError`.

    In this process, one file after the other; a file's records are in memory while it is read.
    """
    journals, ledgers = record_files(directory)
    draft = begin(target)
    laid_journals = [lay_out_journal(path, number, draft) for number, path in enumerate(journals)]
    count = parts_of(laid_journals)
    laid_ledgers = [lay_out_ledger(path, number, draft, count) for number, path in enumerate(ledgers)]
    return finish(draft, laid_journals, laid_ledgers)


def record_files(directory: Path) -> tuple[Sequence[Path], Sequence[Path]]:
    """The journals and the ledgers of a directory, in the order of their numbers; `UserError` where there is none."""
    if not directory.is_dir():
        raise UserError(str(directory), "no such directory", f"a directory with {JOURNAL_PATTERN} and {LEDGER_PATTERN}")
    return sorted(directory.glob(JOURNAL_PATTERN)), sorted(directory.glob(LEDGER_PATTERN))


def begin(target: Path) -> Path:
    """A new, empty folder in `target` for a run that is being laid out; raises `UserError`."""
    draft = target / f"{_RUN}{_DRAFT_SUFFIX}"
    try:
        target.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
    except OSError as error:
        raise UserError(str(target), f"cannot be written: {error.strerror}", "a folder for the run") from error
    return draft


def lay_out_journal(path: Path, number: int, draft: Path) -> LaidOut:
    """Lay out one member's journal."""
    file = _read(read_journal, path, number)
    for name, kind in (("dispatches", "dispatch"), ("flows", "flow")):
        table = pa.Table.from_batches(file.batches[kind], _BY_QUEUE[name])
        _write_by_queue(table, table.column("queue").to_numpy(), name, number, draft)
    return LaidOut(
        row=pa.Table.from_pylist([file.row(JOURNALS)], JOURNALS),
        owners=pa.Table.from_batches(file.batches["owner"], OWNERS),
        stripes=pa.Table.from_batches(file.batches["stripes"], STRIPES),
    )


def lay_out_ledger(path: Path, number: int, draft: Path, parts: int) -> LaidOut:
    """Lay out one publisher's ledger; `parts` is `parts_of` all journals."""
    file = _read(read_ledger, path, number)
    for name in ("confirmed", "unconfirmed"):
        table = pa.Table.from_batches(file.batches[name], _BY_QUEUE[name])
        _write_by_queue(table, table.column("shard").to_numpy() % parts, name, number, draft)
    row = pa.Table.from_pylist([file.row(LEDGERS)], LEDGERS)
    return LaidOut(row, OWNERS.empty_table(), STRIPES.empty_table())


def parts_of(journals: Sequence[LaidOut]) -> int:
    """Into how many parts the run may be cut."""
    rows = pa.concat_tables([JOURNALS.empty_table(), *(laid.row for laid in journals)])
    return part_count(rows, pa.concat_tables([STRIPES.empty_table(), *(laid.stripes for laid in journals)]))


def finish(draft: Path, journals: Sequence[LaidOut], ledgers: Sequence[LaidOut]) -> Path:
    """Write the tables of the whole run and give the folder its name; an older one of that name is replaced."""
    tables = {
        "journals": [laid.row for laid in journals],
        "ledgers": [laid.row for laid in ledgers],
        "owners": [laid.owners for laid in journals],
        "stripes": [laid.stripes for laid in journals],
    }
    for name, schema in _WHOLE.items():
        pq.write_table(pa.concat_tables([schema.empty_table(), *tables[name]]), draft / f"_{name}.parquet")
    names = {name for table in tables["journals"] for name in table.column("run_id").to_pylist() if name}
    folder = draft.with_name(_RUN + (_as_file_name(min(names)) if names else "unnamed"))
    shutil.rmtree(folder, ignore_errors=True)
    return draft.rename(folder)


def read_whole(run: Path) -> RunTables:
    """The tables of the whole run, without those of the queues, which are empty here; raises `UserError`."""
    tables = {name: _read_table(run / f"_{name}.parquet", schema) for name, schema in _WHOLE.items()}
    return RunTables(**{name: schema.empty_table() for name, schema in _BY_QUEUE.items()}, **tables)


def queues_of(run: Path) -> Sequence[int]:
    """The queues that have a folder, in order."""
    names = (path.name.removeprefix(_QUEUE) for path in run.glob(f"{_QUEUE}*"))
    return sorted(int(name) for name in names if name.isdecimal())


def read_part(run: Path, whole: RunTables, queues: Iterable[int]) -> RunTables:
    """The tables of a run with the records of these queues; `whole` is `read_whole` of it."""
    tables: Mapping[str, list[pa.Table]] = {name: [schema.empty_table()] for name, schema in _BY_QUEUE.items()}
    for queue in queues:
        for path in sorted((run / f"{_QUEUE}{queue}").glob("*.parquet")):
            name = path.name.partition("-")[0]
            if name in tables:
                tables[name].append(_read_table(path, _BY_QUEUE[name]))
    return RunTables(
        **{name: pa.concat_tables(parts) for name, parts in tables.items()},
        journals=whole.journals,
        ledgers=whole.ledgers,
        owners=whole.owners,
        stripes=whole.stripes,
    )


def count_records(run: Path) -> int:
    """Handlings in a laid out run."""
    return sum(pq.read_metadata(path).num_rows for path in run.glob(f"{_QUEUE}*/dispatches-*.parquet"))


def _read(reader: Callable[[Path, int], RecordFile], path: Path, number: int) -> RecordFile:
    try:
        return reader(path, number)
    except OSError as error:
        raise UserError(str(path), str(error.strerror), "a readable record file") from error


def _write_by_queue(table: pa.Table, queues: Ints, name: str, number: int, draft: Path) -> None:
    if not table.num_rows:
        return
    order = np.argsort(queues, kind="stable")
    found, starts = np.unique(queues[order], return_index=True)
    ends = [*starts[1:].tolist(), len(order)]
    for queue, start, end in zip(found.tolist(), starts.tolist(), ends, strict=True):
        folder = draft / f"{_QUEUE}{queue}"
        folder.mkdir(exist_ok=True)
        rows = table.take(pa.array(order[start:end]))
        pq.write_table(rows, folder / f"{name}-{number}.parquet", compression="zstd")


def _read_table(path: Path, schema: pa.Schema) -> pa.Table:
    try:
        table = pq.ParquetFile(path).read()
    except (OSError, pa.ArrowInvalid) as error:
        raise UserError(str(path), f"cannot be read: {error}", "a run as `lbg validate` laid it out") from None
    if table.schema.names != schema.names:
        raise UserError(str(path), "other columns", "a run that this version laid out; lay it out again")
    return table.cast(schema)


def _as_file_name(text: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in text)[:100]
