"""A run's records as Parquet, laid out by queue, so that each part of the run can be judged by itself.

    run=<run id>/queue=<n>/<dispatches|flows|confirmed|unconfirmed>-<file number>.parquet
    run=<run id>/_<journals|ledgers|owners|stripes>.parquet      of the whole run, small

Columns are those of `validator/schema.py`. The rows of a ledger are in the folder of the part to which their shard
belongs. Each file of records is laid out on its own, so this may be done for several at once, also in other processes:
first for all journals, then for all ledgers, with what the journals record of re-stripings, and last the tables of the
whole run are made. The folder gets its name when it is complete. Pages have checksums, because with a flipped bit in
one, the verdict would be about other records.

More than 400 lines, as what reads a run goes by what writes it.
"""

import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lbg_runtime.journal.footers import check_footers, note_footers
from lbg_runtime.journal.reader import (
    RECORD_KINDS,
    RecordFile,
    check_directory,
    files_of,
    names_in,
    read_blocks,
)
from lbg_runtime.model.errors import UserError
from lbg_runtime.model.record import FILE_SUFFIXES, FileKind
from lbg_runtime.model.sendable import is_sendable
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
_DRAFT, _REPLACED = f"{_RUN}.part", f"{_RUN}.old"
_WHOLE = {"journals": JOURNALS, "ledgers": LEDGERS, "owners": OWNERS, "stripes": STRIPES}
_BY_QUEUE = {"dispatches": DISPATCHES, "flows": FLOWS, "confirmed": CONFIRMED, "unconfirmed": UNCONFIRMED}
_DAMAGE = (OSError, pa.ArrowException, UnicodeDecodeError)
"""What Arrow raises for a damaged file; the last of them if names of columns are damaged."""

ROW_GROUP_RECORDS = 100_000
"""How many records a row group has. A reader in slices has at least one row group of each file in memory."""

_DIVIDED_RECORDS = 50_000
"""How many records are divided among the queues at a time. With fewer and thousands of queues, the tables would have
some five rows each, and take more time than their records.
"""

NO_RECORDS: Mapping[str, pa.Table] = {name: schema.empty_table() for name, schema in _BY_QUEUE.items()}
"""Empty tables of the queues' records."""


@dataclass(frozen=True, slots=True)
class LaidOut:
    """What laying out one file of records contributes to the tables of the whole run."""

    row: pa.Table
    """The file's row in the table of journals or of ledgers."""
    owners: pa.Table
    stripes: pa.Table


def find_run(directory: Path) -> Path | None:
    """The run that is laid out in a directory, or one level below it; None if there is none. Raises `UserError` if
    there are several, or journals as well, or the directory cannot be read; and what `check_footers` raises."""
    check_directory(directory)
    below = [directory / name for name in sorted(names_in(directory)) if name.startswith(_RUN)]
    found = [directory] if _is_run(directory) else [path for path in below if _is_run(path)]
    if len(found) > 1:
        names = ", ".join(path.name for path in found[:5])
        raise UserError(str(directory), f"{len(found)} runs", f"one of them, such as {names}")
    if not found:
        return None
    if any(files_of(directory, kind) for kind in FILE_SUFFIXES):
        # The journals may be of another run, or may have grown since.
        what = f"journals or ledgers, and {found[0].name} that was laid out before"
        raise UserError(str(directory), what, f"{found[0]}, or a folder with the former alone")
    _check_text(directory)
    check_footers(found[0])
    return found[0]


def _is_run(path: Path) -> bool:
    # Not a draft, which may lack tables of the whole run if its process was killed; nor the run it was to replace,
    # which may lack any.
    return path.name not in (_DRAFT, _REPLACED) and (path / "_journals.parquet").is_file()


def _check_text(path: Path) -> None:
    """Raise `UserError` for a path that cannot be passed to the reader and writer of Parquet files."""
    if not is_sendable(str(path)):
        raise UserError(str(path), "bytes that are no UTF-8", "a path in UTF-8, for Parquet files")


def lay_out(directory: Path, target: Path) -> Path:
    """Lay out the records of a run, and return its new folder in `target`. Raises `UserError`.

    Works in this process, one file after the other, with one row group of each queue in memory at a time.
    """
    journals, ledgers = record_files(directory)
    with drafted(target) as draft:
        laid_journals = [lay_out_journal(path, number, draft) for number, path in enumerate(journals)]
        count = parts_of(laid_journals)
        laid_ledgers = [lay_out_ledger(path, number, draft, count) for number, path in enumerate(ledgers)]
        return finish(draft, laid_journals, laid_ledgers)


def record_files(directory: Path) -> tuple[Sequence[Path], Sequence[Path]]:
    """The journals and the ledgers of a directory, in the order of their numbers; `UserError` if there is none."""
    check_directory(directory)
    return files_of(directory, "journal"), files_of(directory, "ledger")


@contextmanager
def undisturbed(folder: Path, *, is_written: bool) -> Iterator[None]:
    """While the context lasts, keep other processes from laying out runs in a folder, and, if one `is_written` here,
    from reading runs there.

    Otherwise one process would remove what another has written, or judge files of two runs as one. Does not work on a
    file system without locks, or in a folder that cannot be listed. Raises `UserError` if other processes are there
    already, or the folder cannot be made.
    """
    if is_written:
        with _writing_to(folder):
            folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        with suppress(OSError):
            file = os.open(folder, os.O_RDONLY)
            held.callback(os.close, file)
            try:
                fcntl.flock(file, (fcntl.LOCK_EX if is_written else fcntl.LOCK_SH) | fcntl.LOCK_NB)
            except BlockingIOError:
                found = "another process lays out a run there" + (", or judges one" if is_written else "")
                raise UserError(str(folder), found, "its end, or another folder") from None
        yield


@contextmanager
def drafted(target: Path) -> Iterator[Path]:
    """A new, empty folder in `target` for a run that is being laid out, removed if that fails; raises `UserError`."""
    _check_text(target)
    draft = target / _DRAFT
    with _writing_to(target):
        target.mkdir(parents=True, exist_ok=True)
        for left in (draft, target / _REPLACED):
            shutil.rmtree(left, ignore_errors=True)
        draft.mkdir()
    with ExitStack() as undone:
        undone.callback(shutil.rmtree, draft, ignore_errors=True)
        yield draft
        undone.pop_all()


def lay_out_journal(path: Path, number: int, draft: Path) -> LaidOut:
    """Lay out one member's journal; raises `UserError`."""
    with _ByQueue(number, draft) as parts:
        file = _pour("journal", path, number, parts, lambda queues: queues)
    return LaidOut(
        row=pa.Table.from_pylist([file.row(JOURNALS)], JOURNALS),
        owners=pa.Table.from_batches(file.batches["owner"], OWNERS),
        stripes=pa.Table.from_batches(file.batches["stripes"], STRIPES),
    )


def lay_out_ledger(path: Path, number: int, draft: Path, parts: int) -> LaidOut:
    """Lay out one publisher's ledger; `parts` is `parts_of` all journals. Raises `UserError`."""
    with _ByQueue(number, draft) as written:
        file = _pour("ledger", path, number, written, lambda shards: shards % parts)
    row = pa.Table.from_pylist([file.row(LEDGERS)], LEDGERS)
    return LaidOut(row, OWNERS.empty_table(), STRIPES.empty_table())


def parts_of(journals: Sequence[LaidOut]) -> int:
    """Into how many parts the run may be cut, each of which can be judged by itself."""
    rows = pa.concat_tables([JOURNALS.empty_table(), *(laid.row for laid in journals)])
    return part_count(rows, pa.concat_tables([STRIPES.empty_table(), *(laid.stripes for laid in journals)]))


def finish(draft: Path, journals: Sequence[LaidOut], ledgers: Sequence[LaidOut]) -> Path:
    """Write the tables of the whole run and give the folder its name; an older one of that name is replaced.

    Raises `UserError`.
    """
    tables = {
        "journals": [laid.row for laid in journals],
        "ledgers": [laid.row for laid in ledgers],
        "owners": [laid.owners for laid in journals],
        "stripes": [laid.stripes for laid in journals],
    }
    names = {name for table in tables["journals"] for name in table.column("run_id").to_pylist() if name}
    folder = draft.with_name(_RUN + (_as_file_name(min(names)) if names else "unnamed"))
    with _writing_to(draft):
        for name, schema in _WHOLE.items():
            table = pa.concat_tables([schema.empty_table(), *tables[name]])
            pq.write_table(table, draft / f"_{name}.parquet", write_page_checksum=True)
        note_footers(draft)
        replaced = draft.with_name(_REPLACED)
        # Renamed first: if this process is killed as it removes the old folder, a part of that must not be left as the
        # run.
        with suppress(FileNotFoundError):
            folder.rename(replaced)
        try:
            laid = draft.rename(folder)
        except OSError:
            with suppress(OSError):
                replaced.rename(folder)
            raise
    shutil.rmtree(replaced, ignore_errors=True)
    return laid


def read_whole(run: Path) -> RunTables:
    """The tables of the whole run, without those of the queues, which are empty here; raises `UserError`."""
    tables = {name: _read_table(run / f"_{name}.parquet", schema) for name, schema in _WHOLE.items()}
    return RunTables(**NO_RECORDS, **tables)


def queues_of(run: Path) -> Sequence[int]:
    """The queues that have a folder, in order; raises `UserError`."""
    names = (name.removeprefix(_QUEUE) for name in names_in(run) if name.startswith(_QUEUE))
    return sorted(int(name) for name in names if name.isdecimal())


def read_part(run: Path, whole: RunTables, queues: Iterable[int]) -> RunTables:
    """The tables of a run with the records of these queues; `whole` is `read_whole` of it."""
    queues = list(queues)
    return replace(whole, **{name: read_records(run, queues, name) for name in NO_RECORDS})


def read_records(run: Path, queues: Sequence[int], name: str) -> pa.Table:
    """The records of one kind of some queues; raises `UserError`."""
    schema = _BY_QUEUE[name]
    found = (_read_table(path, schema) for path, _ in paths_of(run, queues, name))
    return pa.concat_tables([schema.empty_table(), *found])


def paths_of(run: Path, queues: Sequence[int], name: str) -> Sequence[tuple[Path, int]]:
    """The files of one kind of records of some queues, each with the number of the file that it was made from; raises
    `UserError`."""
    form, folders = re.compile(rf"{name}-([0-9]+)\.parquet"), (run / f"{_QUEUE}{queue}" for queue in queues)
    named = ((folder, found) for folder in folders for found in map(form.fullmatch, sorted(names_in(folder))) if found)
    return [(folder / found[0], int(found[1])) for folder, found in named]


def open_table(path: Path, schema: pa.Schema) -> pq.ParquetFile:
    """Open a file of records to read it by row groups; raises `UserError` if it is not one, or of another kind."""
    try:
        # Pages of a run that an older version laid out have no checksums, and are read nevertheless.
        file = pq.ParquetFile(path, page_checksum_verification=True)
        has_its_columns = file.schema_arrow.names == schema.names
    except _DAMAGE as error:
        raise _unreadable(path, error) from None
    if not has_its_columns:
        raise UserError(str(path), "other columns", "a run that this version laid out; lay it out again")
    return file


def read_group(path: Path, file: pq.ParquetFile, group: int, schema: pa.Schema) -> pa.Table:
    """One row group of what `open_table` opened; raises `UserError`."""
    try:
        return file.read_row_group(group).cast(schema)
    except _DAMAGE as error:
        raise _unreadable(path, error) from None


def count_records(run: Path, queues: Sequence[int] | None = None) -> int:
    """How many handlings there are in a run that is laid out, or in some of its queues; raises `UserError`."""
    paths = paths_of(run, queues_of(run) if queues is None else queues, "dispatches")
    return sum(open_table(path, DISPATCHES).metadata.num_rows for path, _ in paths)


def _pour(
    kind: FileKind,
    path: Path,
    number: int,
    parts: "_ByQueue",
    queues_of_column: Callable[[Ints], Ints],
) -> RecordFile:
    """Read a file and write its records as they come, each to the queues that its `RecordKind.part_column` says;
    kinds of records without such a column stay in the file's batches."""

    def divide(file: RecordFile, least: int) -> None:
        for name, each in RECORD_KINDS[kind].items():
            if each.part_column is None or sum(batch.num_rows for batch in file.batches[name]) < least:
                continue
            table = pa.Table.from_batches(file.batches[name], each.schema)
            file.batches[name].clear()
            parts.add(each.table, table, queues_of_column(table.column(each.part_column).to_numpy()))

    try:
        for file in read_blocks(path, kind, number):
            divide(file, _DIVIDED_RECORDS)
    except OSError as error:
        raise UserError(str(path), str(error.strerror), "a readable record file") from error
    divide(file, 0)
    return file


class _ByQueue:
    """Writes the Parquet files made from one file of records; records that wait are written when the context ends
    without an error.

    Raises `UserError` for what cannot be written.
    """

    def __init__(self, number: int, draft: Path) -> None:
        self._number = number
        self._draft = draft
        self._waiting: dict[tuple[str, int], list[pa.Table]] = {}
        self._counts: dict[tuple[str, int], int] = {}
        self._writers: dict[tuple[str, int], pq.ParquetWriter] = {}

    def __enter__(self) -> "_ByQueue":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                for place in list(self._waiting):
                    self._flush(place)
                    # Closed at once, as a run may have more queues than a process may have open files.
                    self._close(place)
                for place in list(self._writers):
                    self._close(place)
        finally:
            # Something has failed already, so nobody needs these files.
            for writer in self._writers.values():
                with suppress(OSError):
                    writer.close()

    def add(self, name: str, table: pa.Table, queues: Ints) -> None:
        """Take records of one kind, each with its queue."""
        if not table.num_rows:
            return
        order = np.argsort(queues, kind="stable")
        found, starts = np.unique(queues[order], return_index=True)
        for queue, rows in zip(found.tolist(), np.split(order, starts[1:]), strict=True):
            place = (name, queue)
            self._waiting.setdefault(place, []).append(table.take(pa.array(rows)))
            self._counts[place] = self._counts.get(place, 0) + len(rows)
            if self._counts[place] >= ROW_GROUP_RECORDS:
                self._flush(place)

    def _flush(self, place: tuple[str, int]) -> None:
        name, queue = place
        writer = self._writers.get(place)
        with _writing_to(self._draft):
            if writer is None:
                folder = self._draft / f"{_QUEUE}{queue}"
                folder.mkdir(exist_ok=True)
                path = folder / f"{name}-{self._number}.parquet"
                writer = self._writers[place] = pq.ParquetWriter(
                    path, _BY_QUEUE[name], compression="zstd", write_page_checksum=True
                )
            # Combines thousands of small chunks into one.
            writer.write_table(pa.concat_tables(self._waiting.pop(place)).combine_chunks())
        self._counts[place] = 0

    def _close(self, place: tuple[str, int]) -> None:
        with _writing_to(self._draft):
            self._writers.pop(place).close()


@contextmanager
def _writing_to(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(str(folder), f"cannot be written: {error.strerror}", "a folder for the run") from error


def _read_table(path: Path, schema: pa.Schema) -> pa.Table:
    file = open_table(path, schema)
    try:
        return file.read().cast(schema)
    except _DAMAGE as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> UserError:
    return UserError(str(path), f"cannot be read: {error}", "a run as `lbg validate` laid it out")


def _as_file_name(text: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in text)[:100]
