"""Reads a directory of record files into the tables that the validator reads.

Reads `*.member.jsonl` and `*.ledger.jsonl`, a few megabytes of text at a time; only the Arrow tables grow with the run.
A last line that was cut off is what a crash leaves: the file is torn, and everything before it counts. Any other
deviation from what the writer leaves (a corrupt line in the middle, another schema, no header, a count that does not
match) becomes the file's `defect`: nothing is raised, and the verdict cannot be valid.

More than 400 lines, because everything that a line may be is judged here.
"""

import errno
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeGuard

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from lbg_runtime.journal.facts import FileFacts
from lbg_runtime.model.errors import UserError
from lbg_runtime.model.record import FILE_SUFFIXES, LARGEST_NUMBER, LONGEST_LINE_BYTES, RECORD_SCHEMA, FileKind
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

_WITH_FILES = f"a directory with *{FILE_SUFFIXES['journal']} and *{FILE_SUFFIXES['ledger']}"

_BLOCK_BYTES = 4 << 20


class RecordKind(NamedTuple):
    """A kind of record of which a table is made."""

    table: str
    """As `RunTables` names it."""
    schema: pa.Schema
    part_column: str | None = None
    """By which the records are divided among the parts of a run; None if they belong to the whole run."""
    clocks: tuple[str, str] | None = None
    """The columns, if any, that show the same moment on the wall clock (microseconds) and on the monotonic clock
    (nanoseconds)."""


RECORD_KINDS: Mapping[FileKind, Mapping[str, RecordKind]] = {
    "journal": {
        "dispatch": RecordKind("dispatches", DISPATCHES, "queue", ("t_done", "done_mono_ns")),
        "flow": RecordKind("flows", FLOWS, "queue", ("t", "mono_ns")),
        "owner": RecordKind("owners", OWNERS, clocks=("t", "mono_ns")),
        "stripes": RecordKind("stripes", STRIPES, clocks=("t", "mono_ns")),
    },
    "ledger": {
        "confirmed": RecordKind("confirmed", CONFIRMED, "shard"),
        "unconfirmed": RecordKind("unconfirmed", UNCONFIRMED, "shard"),
    },
}
"""For each kind of file: its kinds of records, as the records name them."""

_TABLE_OF_FILES: Mapping[FileKind, tuple[str, pa.Schema]] = {
    "journal": ("journals", JOURNALS),
    "ledger": ("ledgers", LEDGERS),
}

_TYPES: dict[pa.DataType, set[type]] = {pa.int32(): {int}, pa.int64(): {int}, pa.string(): {str}, pa.bool_(): {bool}}

_ORDERED = (("start_mono_ns", "done_mono_ns"), ("first_seq", "last_seq"))
"""Pairs of columns of which the second is never below the first in a record."""

_LATEST_WALL_US = 1 << 52
"""The latest wall clock that is read, in the year 2112: in nanoseconds, and after any monotonic time is subtracted, it
fits in 64 bits."""

_WALL_CLOCK = {"t", "t_done", "t_settle", "t_first"}

_Row = dict[str, object]


def files_of(directory: Path, kind: FileKind) -> list[Path]:
    """The record files of a kind, in the order of their numbers; none if there is no such directory.

    Raises `UserError` as `names_in`.
    """
    return sorted(directory / name for name in names_in(directory) if name.endswith(FILE_SUFFIXES[kind]))


def names_in(directory: Path) -> Sequence[str]:
    """What is in a directory, in no particular order; nothing if there is none. Raises `UserError` if it cannot be
    listed, of which `Path.glob` says nothing: what is there would be missing from the run."""
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise UserError(str(directory), str(error.strerror), "a directory that can be listed") from None


def kind_of(name: str) -> FileKind:
    return "ledger" if name.endswith(FILE_SUFFIXES["ledger"]) else "journal"


def check_directory(directory: Path, expected: str = _WITH_FILES) -> None:
    """Raise `UserError` unless the directory can be listed and entered: if that is refused, a look for files finds
    none."""
    try:
        os.listdir(directory)
        os.stat(f"{directory}/.")
    except OSError as error:
        raise UserError(str(directory), str(error.strerror), expected) from None


def read_run(directory: Path) -> RunTables:
    """The tables of a run; raises `UserError` if the directory or a file in it cannot be read."""
    check_directory(directory)
    tables: dict[str, pa.Table] = {}
    try:
        for kind in FILE_SUFFIXES:
            files = [read_file(path, kind, number) for number, path in enumerate(files_of(directory, kind))]
            tables |= tables_of(kind, files)
    except OSError as error:
        raise UserError(str(error.filename), str(error.strerror), "a readable record file") from error
    return RunTables(**tables)


def tables_of(kind: FileKind, files: Sequence["RecordFile"]) -> dict[str, pa.Table]:
    """The tables that files of one kind make: those of the records that are in the files' batches, and that of the
    files."""
    tables = {
        each.table: pa.Table.from_batches([batch for file in files for batch in file.batches[name]], each.schema)
        for name, each in RECORD_KINDS[kind].items()
    }
    name, schema = _TABLE_OF_FILES[kind]
    return {**tables, name: pa.Table.from_pylist([file.row(schema) for file in files], schema)}


def read_file(path: Path, kind: FileKind, number: int) -> "RecordFile":
    """A whole journal or ledger; `number` is its row in the table of such files. Raises `OSError`."""
    for file in read_blocks(path, kind, number):
        whole = file
    return whole


def read_blocks(path: Path, kind: FileKind, number: int) -> Iterator["RecordFile"]:
    """Yield a file a few megabytes at a time: the same object each time, with more in its batches. Raises `OSError`.

    A caller that empties the batches in between never has the whole file in memory. Yields at least once, even for an
    empty file.
    """
    file = RecordFile(path.name, kind, number)
    yield file
    for lines in _blocks_of_lines(path):
        if lines is None:
            file.give_up()
        else:
            file.take(lines)
        yield file
        if file.hopeless:
            break


def open_records(path: Path) -> BinaryIO:
    """Open a record file for reading. Raises `OSError`, also for a pipe or a device, which might never end."""
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, "no regular file", str(path))
    # If this is a folder, the system refuses it.
    return path.open("rb")


def open_from(path: Path, place: int) -> BinaryIO:
    """Like `open_records`, to read on where reading has ended before. Raises `OSError`, also if the file has become
    shorter.

    Its writer would then append before that place, and nobody would notice that this is not read.
    """
    stream = open_records(path)
    if os.fstat(stream.fileno()).st_size < place:
        stream.close()
        raise OSError(errno.EIO, "it has become shorter", str(path))
    stream.seek(place)
    return stream


def _blocks_of_lines(path: Path) -> Iterator[list[bytes] | None]:
    """Yield lists of lines without their line ends; the last line may have been cut off. Yields None, and nothing more,
    for a line that is too long."""
    rest = b""
    with open_records(path) as stream:
        while block := stream.read(_BLOCK_BYTES):
            *lines, rest = (rest + block).split(b"\n")
            yield lines
            if len(rest) > LONGEST_LINE_BYTES:
                yield None
                return
    if rest:
        yield [rest]


class RecordFile:
    """One record file while it is read; afterwards its row in the table of files."""

    def __init__(self, name: str, kind: FileKind, number: int) -> None:
        self.hopeless = False
        """Whether the rest is not read: this reader cannot work with the header, or a line is too long."""
        self.batches: dict[str, list[pa.RecordBatch]] = {record_kind: [] for record_kind in RECORD_KINDS[kind]}
        self.facts = FileFacts(name)
        self._kind = kind
        self._number = number
        self._unreadable: int | None = None

    def take(self, lines: Sequence[bytes]) -> None:
        """Read the next lines of the file."""
        if self._unreadable is not None:
            self._blame(self._unreadable, "not a record")
        first_number = self.facts.line_count + 1
        self.facts.line_count += len(lines)
        rows = self._parse(lines, first_number)
        if self.facts.header is None and rows:
            self._take_header(rows.pop(0)[1])
        if not self.hopeless:
            self._sort(rows)

    def go_on(self, line_count: int, header: bytes | None, *, is_closed: bool, ends_unreadable: bool) -> None:
        """Continue after so many lines that were read elsewhere.

        `header` is the first line that is a record, and all that is known of their content; `ends_unreadable` says that
        the last line so far is not a record.
        """
        if header is not None:
            self.take([header])
        self.facts.close = {} if is_closed and not self.hopeless else None
        self.facts.line_count = line_count
        self._unreadable = line_count if ends_unreadable else None

    def give_up(self) -> None:
        """Read no more: what follows was not written by our writers, and must not be taken into memory."""
        self.take([b"", b""])
        self.hopeless = True

    def take_first_line_again(self, line: bytes) -> None:
        """Note the first line again: what it says about missing records may change while the file grows."""
        row = parse_line(line)
        if self.facts.header is not None and isinstance(row, dict) and row.get("is_whole") is False:
            self.facts.note_header({**self.facts.header, "is_whole": False})

    def row(self, schema: pa.Schema) -> _Row:
        """This file's row in the table of files."""
        return self.facts.row(schema)

    def _parse(self, lines: Sequence[bytes], first_number: int) -> list[tuple[int, _Row]]:
        """Line numbers and records of the lines that hold one."""
        try:
            found = orjson.loads(b"[" + b",".join(lines) + b"]")
        except orjson.JSONDecodeError:
            found = []
        if len(found) != len(lines):
            found = [parse_line(line) for line in lines]
        rows = []
        for number, row in enumerate(found, first_number):
            if is_record(row):
                rows.append((number, row))
            elif number < self.facts.line_count:
                self._blame(number, "not a record")
            else:
                # If nothing follows this line, it was cut off; otherwise it is a defect.
                self._unreadable = number
        return rows

    def _take_header(self, row: _Row) -> None:
        wanted = {
            "journal": ("run_id", "group", "hash_prefix", "hash_count", "queue_count", "member", "incarnation", "host"),
            "ledger": ("run_id", "group", "hash_prefix", "hash_count", "publisher"),
        }[self._kind]
        wrong = [name for name in wanted if not _is_usable(name, row.get(name))]
        wrong += ["boot_id"] if type(row.get("boot_id")) not in (str, type(None)) else []
        if row["kind"] != self._kind:
            self.facts.defect = (0, f"the first line is no {self._kind} header")
        elif row.get("schema") != RECORD_SCHEMA:
            self.facts.defect = (0, f"schema {row.get('schema')}, but this version reads schema {RECORD_SCHEMA}")
        elif row.get("backend", "exclusive") not in ("exclusive", "partitioned"):
            self.facts.defect = (0, f"the header has no usable backend: {row['backend']!r}")
        elif wrong:
            self.facts.defect = (0, f"the header has no usable {wrong[0]}")
        else:
            self.facts.note_header(row)
        self.hopeless = self.facts.header is None

    def _sort(self, rows: Sequence[tuple[int, _Row]]) -> None:
        """Turn the records of a block into one batch per kind."""
        chosen: dict[str, list[tuple[int, _Row]]] = {kind: [] for kind in self.batches}
        for number, row in rows:
            kind = row["kind"]
            if self.facts.close is not None:
                self._blame(number, "a record after the close")
            elif kind in chosen:
                chosen[str(kind)].append((number, row))
            elif kind == "close":
                self._take_close(number, row)
            elif kind == "status" and self._kind == "journal":
                self._note_mono(row.get("mono_ns"))
            elif kind == "pause" and self._kind == "journal":
                self._take_pause(number, row)
            else:
                self._blame(number, f"an unexpected record of kind {kind!r}")
        # In the order of their first lines: the first record of a file dates it, however much is read at once.
        for kind, members in sorted(filter(lambda each: each[1], chosen.items()), key=lambda each: each[1][0][0]):
            self._append(kind, members)

    def _take_pause(self, number: int, row: _Row) -> None:
        begin, end = row.get("from_mono_ns"), row.get("to_mono_ns")
        if type(begin) is not int or type(end) is not int or not -LARGEST_NUMBER <= begin <= end <= LARGEST_NUMBER:
            self._blame(number, "a pause record with a missing or impossible value")
            return
        self.facts.pauses.append((begin, end))

    def _take_close(self, number: int, row: _Row) -> None:
        if not is_close(row):
            self._blame(number, "a close without counts")
            return
        self.facts.close = row
        self._note_mono(row.get("mono_ns"))
        if row["written"] != number - 1:
            self.facts.note_defect(number, f"{number - 1} records, but the close counts {row['written']}")

    def _append(self, kind: str, members: Sequence[tuple[int, _Row]]) -> None:
        schema = RECORD_KINDS[self._kind][kind].schema
        batch = _to_batch([row for _, row in members], schema, self._kind, self._number)
        if batch is None and len(members) == 1:
            self._blame(members[0][0], f"a {kind} record with a missing or impossible value")
        elif batch is None:
            # Halved until the bad records are isolated, so that the good ones still count.
            middle = len(members) // 2
            self._append(kind, members[:middle])
            self._append(kind, members[middle:])
        else:
            self.batches[kind].append(batch)
            if kind == "owner":
                for _, row in members:
                    self.facts.note_owner(row)
            self._note_clocks(kind, batch)

    def _note_clocks(self, kind: str, batch: pa.RecordBatch) -> None:
        clocks = RECORD_KINDS[self._kind][kind].clocks
        if clocks is None:
            return
        wall, mono = map(batch.column, clocks)
        self.facts.note_mono(pc.max(mono).as_py())
        if self.facts.wall_offset_ns is None:
            self.facts.wall_offset_ns = wall[0].as_py() * 1000 - mono[0].as_py()

    def _note_mono(self, moment: object) -> None:
        # Older versions wrote no such time; and as no law reads it, an impossible one is not worth a defect.
        if type(moment) is int and abs(moment) <= LARGEST_NUMBER:
            self.facts.note_mono(moment)

    def _blame(self, number: int, what: str) -> None:
        self.facts.note_defect(number, f"line {number}: {what}")


def _is_usable(name: str, value: object) -> bool:
    """Whether a field of a header is usable."""
    match name:
        case "hash_count" | "queue_count":
            # These are divided by, and the tables have 32 bits for each.
            return type(value) is int and 1 <= value < 1 << 31
        case "incarnation":
            return type(value) is int and abs(value) <= LARGEST_NUMBER
        case _:
            return type(value) is str


def is_record(row: object) -> TypeGuard[_Row]:
    """Whether the content of a line is a record of any kind."""
    return isinstance(row, dict) and isinstance(row.get("kind"), str)


def is_close(row: _Row) -> bool:
    """Whether a record closes its file."""
    counts = [row.get(name) for name in ("written", "dropped")]
    return row["kind"] == "close" and all(type(n) is int and 0 <= n <= LARGEST_NUMBER for n in counts)


def parse_line(line: bytes) -> object:
    """The content of a line; None if it is not JSON."""
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return None


def _to_batch(rows: Sequence[_Row], schema: pa.Schema, file_kind: str, file_number: int) -> pa.RecordBatch | None:
    """The records as a batch of the schema, or None if a value is missing or impossible."""
    columns = []
    for field in schema:
        if field.name == file_kind:
            columns.append(pa.repeat(pa.scalar(file_number, field.type), len(rows)))
            continue
        try:
            values = list(map(itemgetter(field.name), rows))
        except KeyError:
            return None
        # Arrow would truncate a float to an integer.
        if not _TYPES[field.type].issuperset(set(map(type, values)) - ({type(None)} if field.nullable else set())):
            return None
        try:
            column = pa.array(values, field.type)
        except (pa.ArrowInvalid, OverflowError):
            return None
        if pa.types.is_integer(field.type) and not _is_sensible(field.name, column):
            return None
        columns.append(column)
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    for low, high in _ORDERED:
        if high in schema.names and not pc.all(pc.less_equal(batch.column(low), batch.column(high))).as_py():
            return None
    return batch


def _is_sensible(name: str, column: pa.Array) -> bool:
    """Whether the kernel can count with these numbers: indices not negative, the others far from the end of 64 bits."""
    bounds = pc.min_max(column).as_py()
    least = 0 if column.type == pa.int32() or name in _WALL_CLOCK else -LARGEST_NUMBER
    most = _LATEST_WALL_US if name in _WALL_CLOCK else LARGEST_NUMBER
    return (bounds["min"] or 0) >= least and (bounds["max"] or 0) <= most
