"""`format("lbg_delta")`: appends a stream to a Delta table, each row once, without any jar.

Tasks write Parquet files with new names, which nobody sees. The driver then adds them all to the table in one commit
that also names the query and the batch. A batch that is run again, because the driver died before Spark had noted its
end, finds itself in the table and adds nothing; another batch of its number is an error. A task or a batch that fails
removes its files; those of one whose process was killed lie in the folder, are not part of the table, and are removed
by Delta's `vacuum`.
"""

import json
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from lbg_runtime.model.errors import InvariantViolated, LakeWriteFailed, UserError
from lbg_runtime.pipeline.files import make_folder, sync_folder
from lbg_runtime.pipeline.landing.layout import alone
from lbg_runtime.pipeline.spark.checkpoint import (
    checkpoint_behind,
    checkpoint_differs,
    digest_of_batch,
    lake_behind,
    note_taken,
    taken_with,
)

FORMAT = "lbg_delta"

_BATCH, _DIGEST = "lbgBatch", "lbgBatchEnd"
"""In what a commit says of itself: query and number of its batch, and `digest_of_batch`."""
_COMMITS = 1000
"""So far back a batch is looked for; the last one of a stream is nearly always the table's last commit."""


@dataclass
class _Written(WriterCommitMessage):
    """A file that a task wrote; no path if it had no rows."""

    query: str
    path: str | None = None
    size_bytes: int = 0
    rows: int = 0
    modified_ms: int = 0


class LbgDeltaSource(DataSource):
    """What `format("lbg_delta")` names; only a stream's sink. Option `path`: a folder."""

    @classmethod
    def name(cls) -> str:
        """The name that `format` takes."""
        return FORMAT

    def streamWriter(self, schema: StructType, overwrite: bool) -> "DeltaStreamWriter":  # noqa: N802, ARG002
        """The sink; raises `UserError`."""
        return DeltaStreamWriter(self.options, schema)


class DeltaStreamWriter(DataSourceStreamArrowWriter):
    """Created by the driver and pickled to each task; Spark calls `write` there, then `commit` on the driver."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        """Raises `UserError` if there is a table that the rows do not fit, and `LakeWriteFailed`."""
        path = options.get("path")
        if not path:
            raise UserError("option path", "missing", "the folder of a Delta table")
        self._folder = Path(path)
        self._checkpoint = options.get("checkpointLocation")
        # Delta has no maps of binary and no time zone but UTC; landing rows have neither.
        self._schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        # Before any file is written, not only when it is to be added.
        try:
            self._find_table()
        except (DeltaError, OSError) as error:
            raise LakeWriteFailed(str(self._folder), str(error)) from error

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write a partition of a batch to a file; raises `LakeWriteFailed`."""
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context else None
        if query is None:
            raise InvariantViolated("Spark does not say which query a task writes for")
        name = f"part-{uuid.uuid4().hex}.zstd.parquet"
        path, writer, rows = self._folder / name, None, 0
        try:
            for batch in iterator:
                if not batch.num_rows:
                    continue
                if writer is None:
                    make_folder(self._folder)
                    # Checksums as Spark's own files have them, for readers that look at them.
                    writer = pq.ParquetWriter(path, self._schema, compression="zstd", write_page_checksum=True)
                writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=self._schema))
                rows += batch.num_rows
            if writer is None:
                return _Written(query)
            writer.close()
            with path.open("rb+") as file:
                os.fsync(file.fileno())
            facts = path.stat()
        except BaseException as error:
            # Nobody knows of it yet, and what each try leaves would keep a full disk full; also while it is open.
            with suppress(OSError):
                path.unlink()
            if writer is not None:
                with suppress(OSError):
                    writer.close()
            if not isinstance(error, OSError):
                raise
            raise LakeWriteFailed(str(path), error.strerror or str(error)) from error
        return _Written(query, name, facts.st_size, rows, facts.st_mtime_ns // 1_000_000)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Add the files of a batch to the table, unless the batch is there; durable on return.

        Raises `LakeWriteFailed`, and `UserError` if the table has become one that the rows do not fit, or has a later
        batch of the query, or another one of this number, or no longer has one that it took.
        """
        written = [message for message in messages if isinstance(message, _Written)]
        files: list[AddAction | RemoveAction] = [_add_action(each) for each in written if each.path is not None]
        if not files:
            return
        with self._alone():
            self._check_here(written)
            self._add(files, written[0].query, batchId)

    def _add(self, files: "list[AddAction | RemoveAction]", query: str, batchId: int) -> None:  # noqa: N803
        digest, checkpoint = digest_of_batch(self._checkpoint, batchId), self._checkpoint or "the checkpoint"
        try:
            found = self._find_table()
            last = None if found is None else found.transaction_version(query)
            if last is not None and last > batchId:
                raise checkpoint_behind(checkpoint, batchId, self._folder, last)
            # The table may have been restored from a backup while the stream ran: after this batch, it would not show.
            taken = taken_with(self._checkpoint)
            if taken is not None and (last is None or last < taken):
                raise lake_behind(checkpoint, taken, self._folder, last)
            table = found or DeltaTable.create(self._folder, self._schema, mode="error")
            if last == batchId:
                if digest is not None and _kept_digest(table, query, batchId) not in (digest, None):
                    raise checkpoint_differs(checkpoint, batchId, self._folder)
                # The process that added the batch may have died before it synced and noted it. And if the disk had
                # refused to sync the commit, the system takes it for written, so that a sync alone would succeed.
                self._write_again(table.version())
                self._sync(table.version())
                note_taken(self._checkpoint, batchId)
                return
            before = table.version()
            table.create_write_transaction(
                files,
                mode="append",
                schema=table.schema(),
                commit_properties=CommitProperties(
                    custom_metadata={} if digest is None else {_BATCH: f"{query}/{batchId}", _DIGEST: digest},
                    app_transactions=[Transaction(query, batchId)],
                ),
            )
            table.update_incremental()
            self._sync(*range(before, table.version() + 1))
            note_taken(self._checkpoint, batchId)
        except OSError as error:
            raise LakeWriteFailed(str(error.filename or self._folder), error.strerror or str(error)) from error
        except DeltaError as error:
            raise LakeWriteFailed(str(self._folder), str(error)) from error

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Remove the files of a batch that the table does not have: they would keep a full disk full.

        Raises nothing: what stays is no part of the table.
        """
        written = [each for each in messages if isinstance(each, _Written) and each.path is not None]
        with suppress(OSError, DeltaError, UserError), self._alone() as is_alone:
            if not is_alone or not written:
                return
            found = self._find_table()
            last = None if found is None else found.transaction_version(written[0].query)
            # A commit may have failed when the table already had them.
            if last is None or last < batchId:
                for each in written:
                    (self._folder / str(each.path)).unlink(missing_ok=True)

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        """Keep the end of a batch from being undone while it goes on: Spark does not wait for it if it is stopped.

        False if there is no such folder, or its file system has no locks.
        """
        with ExitStack() as held:
            try:
                held.enter_context(alone(self._folder))
            except OSError:
                yield False
            else:
                yield True

    def _check_here(self, written: Sequence[_Written]) -> None:
        """Raise `LakeWriteFailed` for a file that went to another storage than this: the table would lack its rows."""
        for each in written:
            if each.path is None:
                continue
            path = self._folder / each.path
            if not path.exists() or path.stat().st_size != each.size_bytes:
                reason = "a task has written it, and it is not here; on a cluster the folder has to be shared storage"
                raise LakeWriteFailed(str(path), reason)

    def _sync(self, *versions: int) -> None:
        """Make commits durable: otherwise a power failure could leave Spark's note that a batch is done, without it."""
        log = self._folder / "_delta_log"
        for version in versions:
            # Another writer may have removed an old one by now, when it made a checkpoint of the table.
            with suppress(FileNotFoundError), (log / f"{version:020d}.json").open("rb+") as commit:
                os.fsync(commit.fileno())
        for folder in (log, self._folder):
            sync_folder(folder)

    def _write_again(self, version: int) -> None:
        """Write a commit over itself, which nobody sees who reads it meanwhile."""
        path = self._folder / "_delta_log" / f"{version:020d}.json"
        with suppress(FileNotFoundError), path.open("rb+") as commit:
            content = commit.read()
            commit.seek(0)
            commit.write(content)

    def _find_table(self) -> DeltaTable | None:
        """The table, if there is one; raises `UserError` if a row added to it would be read differently."""
        try:
            table = DeltaTable(self._folder)
        except TableNotFoundError:
            return None
        where, found = str(self._folder), table.schema().fields
        names = [field.name for field in found]
        if names != self._schema.names:
            columns, expected = ", ".join(names), ", ".join(self._schema.names)
            raise UserError(where, f"a table of columns {columns}", f"one of columns {expected}")
        # A reader takes these columns from what the commit says about a file, whatever is in it.
        if partitions := table.metadata().partition_columns:
            raise UserError(where, f"a table partitioned by {', '.join(partitions)}", "one without partitions")
        # A reader looks for other names in our files, or for numbers, and takes what it does not find for nulls.
        mapping = table.metadata().configuration.get("delta.columnMapping.mode", "none")
        if mapping != "none":
            raise UserError(where, f"a table that maps its columns by {mapping}", "one without column mapping")
        for field, ours in zip(found, Schema.from_arrow(self._schema).fields, strict=True):
            if field.type != ours.type:
                what = f"column {field.name} of type {field.type.to_json()}"
                raise UserError(where, what, f"type {ours.type.to_json()}")
            if ours.nullable and not field.nullable:
                raise UserError(where, f"column {field.name} that must not be null", "one that may be")
        return table


def _kept_digest(table: DeltaTable, query: str, batch: int) -> str | None:
    """Of a batch in the table; None if an older version committed it, or it is no longer told."""
    kept = (each.get(_DIGEST) for each in table.history(_COMMITS) if each.get(_BATCH) == f"{query}/{batch}")
    return next(kept, None)


def _add_action(message: _Written) -> AddAction:
    return AddAction(
        path=str(message.path),
        size=message.size_bytes,
        partition_values={},
        modification_time=message.modified_ms,
        data_change=True,
        stats=json.dumps({"numRecords": message.rows}),
    )
