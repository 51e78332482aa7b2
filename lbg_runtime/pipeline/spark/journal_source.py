"""The record files of a run that goes on as a stream: what they have gained, cut into the parts that are judged apart.

A row is a table of records of one kind, of one part, as Arrow bytes; or what is known of a file, for every part. An
offset says how many bytes of each file were read, so that a batch that is run again reads the same lines.
"""

import os
import pickle
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import orjson
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit
from pyspark.sql.types import StructType

from lbg_runtime.journal.reader import (
    JOURNAL_PATTERN,
    LEDGER_PATTERN,
    MEMBER_KINDS,
    PUBLISHER_KINDS,
    RecordFile,
    open_records,
)
from lbg_runtime.model.errors import UserError
from lbg_runtime.validator.schema import JOURNALS, LEDGERS

FORMAT = "lbg-journals"
COLUMNS = "part int, name string, number int, has_more boolean, payload binary"
"""`name` is a table of `RunTables`; of `journals` and `ledgers` the payload is the row of file `number`."""

WALL = "last_wall_us"
"""In what is known of a file, besides its row: a piece may have no record that says how far the clocks are apart."""

_FILE_BYTES = 32 << 20
"""Read of a file in one batch."""

_ARROW_COLUMNS = pa.schema(
    [
        pa.field("part", pa.int32()),
        pa.field("name", pa.string()),
        pa.field("number", pa.int32()),
        pa.field("has_more", pa.bool_()),
        pa.field("payload", pa.binary()),
    ]
)
_PLACES = {
    "journal": {"dispatch": ("dispatches", "queue"), "flow": ("flows", "queue")},
    "ledger": {"confirmed": ("confirmed", "shard"), "unconfirmed": ("unconfirmed", "shard")},
}
"""Per kind of file and of record the table, and the column that says which part it belongs to."""


class _Lines(NamedTuple):
    """Whole lines of one file, from a byte to another."""

    name: str
    number: int
    begin: int
    end: int
    has_more: bool


class JournalSource(DataSource):
    """Made by Spark; its one option is `path`, the directory with the files."""

    @classmethod
    def name(cls) -> str:
        """As `format` has it."""
        return FORMAT

    def schema(self) -> str:
        """Of the rows."""
        return COLUMNS

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802, ARG002
        """`spark.readStream`."""
        return JournalReader(Path(self.options["path"]))


class JournalReader(DataSourceStreamReader):
    """Offsets are `{"parts": n, "files": {name: [number, bytes]}}`; files are numbered as they are found."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def initialOffset(self) -> dict[str, object]:  # noqa: N802
        """Nothing was read."""
        return {"parts": 0, "files": {}}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """What a batch takes of a file is limited here."""
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:  # noqa: N802, ARG002
        """As far as the files have whole lines; `start` until a member has written who it is."""
        parts = start["parts"] or self._part_count()
        if not parts:
            return start
        files = dict(_files(start))
        for pattern in (JOURNAL_PATTERN, LEDGER_PATTERN):
            for path in sorted(self._directory.glob(pattern)):
                number, begin = files.get(path.name, (len(files), 0))
                end = begin + _whole_lines(path, begin)
                if end > begin:
                    files[path.name] = (number, end)
        return {"parts": parts, "files": {name: list(place) for name, place in files.items()}}

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> Sequence[InputPartition]:
        """The files that have gained something, dealt out to no more tasks than cores: each task has its price."""
        before = _files(start)
        found = []
        for name, (number, last) in _files(end).items():
            begin = before.get(name, (number, 0))[1]
            if last > begin:
                more = (self._directory / name).stat().st_size - last > _FILE_BYTES // 2
                found.append(_Lines(name, number, begin, last, more))
        cores = os.cpu_count() or 1
        return [InputPartition((end["parts"], found[core::cores])) for core in range(min(cores, len(found)))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task's files; raises `UserError` for a group that changes its number of queues."""
        parts, files = partition.value
        for lines in files:
            yield self._read_file(parts, lines)

    def _read_file(self, parts: int, lines: _Lines) -> pa.RecordBatch:
        kind = "ledger" if lines.name.endswith(LEDGER_PATTERN.removeprefix("*")) else "journal"
        path = self._directory / lines.name
        file = _read_lines(path, kind, lines)
        if kind == "journal" and file.batches["stripes"]:
            raise UserError(str(path), "a change of the number of queues", "lbg validate --live without --engine spark")
        rows: list[tuple[int, str, bytes]] = []
        for record, (name, column) in _PLACES[kind].items():
            for batch in file.batches[record]:
                rows += [(part, name, _as_bytes(own)) for part, own in _cut(batch, column, parts)]
        facts = pickle.dumps({**file.row(JOURNALS if kind == "journal" else LEDGERS), WALL: file.last_wall_us})
        rows += [(part, f"{kind}s", facts) for part in range(parts)]
        columns = list(zip(*rows, strict=True))
        return pa.record_batch(
            [columns[0], columns[1], [lines.number] * len(rows), [lines.has_more] * len(rows), columns[2]],
            schema=_ARROW_COLUMNS,
        )

    def _part_count(self) -> int:
        for path in sorted(self._directory.glob(JOURNAL_PATTERN)):
            with open_records(path) as stream:
                header = stream.readline(1 << 16)
            try:
                count = orjson.loads(header)["queue_count"]
            except (orjson.JSONDecodeError, KeyError, TypeError):
                continue
            if isinstance(count, int) and count > 0:
                return count
        return 0


def _files(offset: Mapping[str, object]) -> dict[str, tuple[int, int]]:
    files = offset["files"]
    return {name: (number, place) for name, (number, place) in files.items()} if isinstance(files, dict) else {}


def _whole_lines(path: Path, begin: int) -> int:
    with open_records(path) as stream:
        stream.seek(begin)
        return stream.read(_FILE_BYTES).rfind(b"\n") + 1


def _read_lines(path: Path, kind: str, lines: _Lines) -> RecordFile:
    kinds = MEMBER_KINDS if kind == "journal" else PUBLISHER_KINDS
    file = RecordFile(path.name, kind, lines.number, kinds, is_piece=True)
    with open_records(path) as stream:
        if lines.begin:
            file.take([stream.readline().rstrip(b"\n")])
            stream.seek(lines.begin)
        if not file.hopeless:
            file.take(stream.read(lines.end - lines.begin).removesuffix(b"\n").split(b"\n"))
    return file


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
