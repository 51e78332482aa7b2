"""The record files of a run in progress as a stream: what they have gained, cut into separately judged parts.

A row is a table of records of one kind and one part, as Arrow bytes; or what is known about a file, for every part. An
offset says how many bytes of each file were read, so that a batch that is run again reads the same lines.
"""

import math
import os
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit
from pyspark.sql.types import StructType

from lbg_runtime.journal.facts import FileFacts
from lbg_runtime.journal.pieces import Place, cut_piece, read_piece
from lbg_runtime.journal.reader import RECORD_KINDS, files_of, kind_of, open_records
from lbg_runtime.model.errors import UserError

FORMAT = "lbg-journals"
COLUMNS = "part int, name string, number int, has_more boolean, payload binary"
"""`name` is a table of `RunTables`; for `journals` and `ledgers` the payload is the `FileFacts` of file `number`."""

_MOST_PARTS = 1024
"""Limited because every part is told of every file."""

_ARROW_COLUMNS = pa.schema(
    [
        pa.field("part", pa.int32()),
        pa.field("name", pa.string()),
        pa.field("number", pa.int32()),
        pa.field("has_more", pa.bool_()),
        pa.field("payload", pa.binary()),
    ]
)


class _Piece(NamedTuple):
    """What one file has gained."""

    name: str
    number: int
    begin: Place
    end: Place


class JournalSource(DataSource):
    """Created by Spark; its one option is `path`, the directory with the files."""

    @classmethod
    def name(cls) -> str:
        """The name that `format` takes."""
        return FORMAT

    def schema(self) -> str:
        """The columns of the rows."""
        return COLUMNS

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802, ARG002
        return JournalReader(Path(self.options["path"]))


class JournalReader(DataSourceStreamReader):
    """Offsets are `{"parts": n, "files": {name: [number, *Place]}}`; files are numbered as they are found."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def initialOffset(self) -> dict[str, object]:  # noqa: N802
        """The offset at which nothing has been read."""
        return {"parts": 0, "files": {}}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """All that is available: this reader itself limits what a batch takes of a file."""
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:  # noqa: N802, ARG002
        """As far as the files have whole lines; `start` until a member has written its header.

        A file without any is named as well. Raises `UserError` if a file cannot be read, or is gone.
        """
        files = _files(start)
        there = record_files(self._directory)
        gone = sorted(files.keys() - {path.name for path in there})
        for path in [*there, *(self._directory / name for name in gone)]:
            number, place = files.get(path.name, (len(files), Place()))
            with _told_of(path):
                files[path.name] = (number, cut_piece(path, place))
        parts = start["parts"] or self._part_count(files)
        if not parts:
            return start
        return {"parts": parts, "files": {name: [number, *place] for name, (number, place) in files.items()}}

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> Sequence[InputPartition]:
        """The files that have changed, dealt out to no more tasks than there are cores, as each task has a cost."""
        before = _files(start)
        found = [
            _Piece(name, number, before[name][1] if name in before else Place(), place)
            for name, (number, place) in _files(end).items()
            if before.get(name) != (number, place)
        ]
        cores = os.cpu_count() or 1
        return [InputPartition((end["parts"], found[core::cores])) for core in range(min(cores, len(found)))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task's files; raises `UserError` for a group that changes its queue count."""
        parts, pieces = partition.value
        for piece in pieces:
            yield self._read_piece(parts, piece)

    def _read_piece(self, parts: int, piece: _Piece) -> pa.RecordBatch:
        kind = kind_of(piece.name)
        path = self._directory / piece.name
        with _told_of(path):
            file = read_piece(path, piece.number, piece.begin, piece.end)
        if kind == "journal" and file.batches["stripes"]:
            raise UserError(str(path), "a change of the number of queues", "lbg validate --live without --engine spark")
        count = _queue_count(file.facts)
        if count % parts:
            # With this count, what lies in one queue may lie in two parts.
            file.facts.note_defect(1, f"queue_count {count}, but the run was divided by {parts} when this file came")
        rows: list[tuple[int, str, bytes]] = []
        for name, each in RECORD_KINDS[kind].items():
            if each.part_column is not None:
                for batch in file.batches[name]:
                    cut = _cut(batch, each.part_column, parts)
                    rows += [(part, each.table, _as_bytes(own)) for part, own in cut]
        facts = pickle.dumps(file.facts)
        rows += [(part, f"{kind}s", facts) for part in range(parts)]
        columns = list(zip(*rows, strict=True))
        has_more = piece.end.has_more and not file.hopeless
        return pa.record_batch(
            [columns[0], columns[1], [piece.number] * len(rows), [has_more] * len(rows), columns[2]],
            schema=_ARROW_COLUMNS,
        )

    def _part_count(self, files: Mapping[str, tuple[int, Place]]) -> int:
        """Shards, and queues, that are equal modulo this number are in one part; 0 without a usable header.

        So it divides the queue count, and every one that a header names, as one of them may be damaged.
        """
        counts = []
        for name, (number, place) in files.items():
            if kind_of(name) == "journal" and place.header_at is not None:
                with _told_of(self._directory / name):
                    counts.append(_queue_count(read_piece(self._directory / name, number, place, place).facts))
        count = math.gcd(*counts)
        return next((parts for parts in range(min(count, _MOST_PARTS), 0, -1) if count % parts == 0), 0)


def record_files(directory: Path) -> list[Path]:
    """The journals, then the ledgers."""
    return files_of(directory, "journal") + files_of(directory, "ledger")


def check_files(directory: Path) -> None:
    """Raise `UserError` for the first of the record files that cannot be read."""
    for path in record_files(directory):
        with _told_of(path), open_records(path):
            pass


def places_of(offset: Mapping[str, object]) -> list[Place]:
    """How far an offset is in each file."""
    return [place for _, place in _files(offset).values()]


@contextmanager
def _told_of(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(str(path), str(error.strerror), "a readable record file") from error


def _queue_count(facts: FileFacts) -> int:
    """From the header; 0 without one, and for a ledger."""
    count = (facts.header or {}).get("queue_count")
    return count if isinstance(count, int) else 0


def _files(offset: Mapping[str, object]) -> dict[str, tuple[int, Place]]:
    files = offset["files"]
    if not isinstance(files, dict):
        return {}
    return {name: (number, Place(*place)) for name, (number, *place) in files.items()}


def _cut(batch: pa.RecordBatch, column: str, parts: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    place = batch.column(column).to_numpy() % parts
    for part in sorted(set(place.tolist())):
        yield part, batch.filter(pa.array(place == part))


def _as_bytes(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    content: bytes = sink.getvalue().to_pybytes()
    return content
