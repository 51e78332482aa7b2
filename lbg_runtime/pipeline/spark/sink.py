"""`format("lbg")` as a sink: rows become messages of a load-balanced group.

Each task publishes the rows of its partition over its own connection, in the order of the order column, and ends when
all of them are confirmed; otherwise it fails, Spark tries it again, and eventually the batch fails. A message's id is
made of the query, the batch, the partition and its place there, and so are its publisher and number. A task that is run
again over the same rows publishes copies that members can recognise (`Message.fencing_token`, `lbg_runtime.guard`). For
that, the rows must come in the same order, which only `orderColumn` ensures after a shuffle, and in the same partition:
the offsets of our source keep the number of its tasks, and Spark keeps that of a shuffle. The partition cannot be left
out of the publisher's id: if a key is in two partitions, two of its messages would have one token, and a guard would
take the second for a copy, and lose it.

The order of a key is kept if all its rows of a batch are in one partition. If they are not, the batch fails, after the
fact.
"""

import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from lbg_runtime.admin.stored import load_group_settings
from lbg_runtime.model.errors import InvariantViolated, SinkKeySplit
from lbg_runtime.model.hash_vectors import verify_hashing
from lbg_runtime.pipeline.spark.publishing import Destination, publish_rows, sorted_rows
from lbg_runtime.pipeline.spark.run_hashing import (
    DEFAULT_CHECKPOINTS,
    RunHashing,
    default_checkpoint,
    note_hashing,
    noted_hashing,
    run_hashing,
)
from lbg_runtime.pipeline.spark.sink_options import SinkOptions, read_sink_options


@dataclass
class Published(WriterCommitMessage):
    """What a task that published its partition tells the driver."""

    fingerprints: frozenset[int]
    """Those of its keys."""
    hashing: RunHashing | None = None
    """How it hashed them, in a stream."""
    checkpoint: str | None = None
    """That of the stream, as far as it is known."""


class _Writer:
    """What both writers share; created by the driver, then pickled to each task."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        columns = {column.name: column.dataType.typeName() for column in schema.fields}
        self._options: SinkOptions = read_sink_options(options, columns)
        settings = load_group_settings(self._options.config)
        self._destination = Destination(settings.group.shape(), settings.group.hash_function)
        verify_hashing(self._destination.hash_function)

    def _publish(self, batches: Iterator[pa.RecordBatch], job: str) -> Published:
        context = TaskContext.get()
        if context is None:
            raise InvariantViolated("a sink was asked to write outside of a task")
        taken = list(batches)
        if not taken:
            return Published(frozenset())
        rows = sorted_rows(pa.Table.from_batches(taken), self._options)
        publisher_id = f"spark-{job}-{context.partitionId()}"
        return Published(publish_rows(rows, self._options, self._destination, publisher_id))


class LbgStreamCommitter(DataSourceStreamArrowWriter):
    """Ends the batches of a stream; needs only what their tasks tell."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # noqa: ARG002
        """Never called: Spark has another writer for the tasks."""
        raise InvariantViolated("what ends a batch was asked to write")

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Check that no key was published by two tasks, and note how they hashed.

        Raises `SinkKeySplit`, and as `note_hashing`.
        """
        check_keys(messages)
        for each in messages:
            if isinstance(each, Published) and each.hashing is not None:
                # All of them hash as the writer does that was pickled to them.
                note_hashing(each.checkpoint, each.hashing)
                return

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing to undo: what was published stays published, and comes again under the same ids."""


class LbgStreamWriter(_Writer, LbgStreamCommitter):
    """The sink of a stream; Spark makes one for each batch and calls `write` in its tasks."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        super().__init__(options, schema)
        self._checkpoint = options.get("checkpointLocation")
        self._query_name = options.get("queryName")
        self._noted = noted_hashing(self._checkpoint)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Publish one partition of a batch; raises what `RunHashing.check` and `publish_rows` raise."""
        context = TaskContext.get()
        names = ("sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id", DEFAULT_CHECKPOINTS)
        query, batch, run, default = (context.getLocalProperty(name) if context else None for name in names)
        if query is None or batch is None or run is None:
            raise InvariantViolated("Spark does not say which batch of which run of a query a task writes")
        checkpoint, noted = self._checkpoint, self._noted
        if checkpoint is None:
            # Only tasks are told what the session has set.
            checkpoint = default_checkpoint(default, self._query_name)
            noted = noted_hashing(checkpoint)
        hashing = run_hashing(run, self._destination.shape, self._destination.hash_function)
        hashing.check(noted)
        return replace(self._publish(iterator, f"{query}-{batch}"), hashing=hashing, checkpoint=checkpoint)


class LbgBatchWriter(_Writer, DataSourceArrowWriter):
    """The sink of `df.write`; every call of `save` is a separate job with its own ids."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        super().__init__(options, schema)
        self._job = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Publish one partition; raises what `publish_rows` raises."""
        return self._publish(iterator, self._job)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Check that no key was published by two tasks; raises `SinkKeySplit`."""
        check_keys(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Nothing to undo: what was published stays published."""


def check_keys(messages: Sequence[WriterCommitMessage | None]) -> None:
    """Raise `SinkKeySplit` if two tasks of a batch published the same key."""
    seen = Counter[int]()
    for message in messages:
        if isinstance(message, Published):
            seen.update(message.fingerprints)
    if split := sum(count > 1 for count in seen.values()):
        raise SinkKeySplit(split)
