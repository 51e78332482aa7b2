"""Whether a stream's checkpoint and its lake belong together; does not import pyspark.

Spark's file sink and `lbg_delta` know a batch that is run again by its number. A checkpoint that is behind its lake
gives the numbers that are there to other rows, which would be taken for copies, and be missing from the lake for ever.

A Delta table keeps its numbers by query. Spark's file sink does not, so another stream's batches would be taken for
copies too. A folder of Parquet therefore has a note, beside Spark's own, of the one query that writes there.
"""

import fcntl
import hashlib
import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from lbg_runtime.model.errors import LakeWriteFailed, UserError
from lbg_runtime.pipeline.files import write_whole
from lbg_runtime.pipeline.landing.layout import alone, queue_of
from lbg_runtime.pipeline.landing.log import LandingLog
from lbg_runtime.pipeline.spark.offsets import Rows, decode
from lbg_runtime.pipeline.spark.stream_job import Lake, StreamJob

STREAM_NOTE = "_lbg_stream"
"""In a folder of Parquet: which query writes there, in the form of Spark's own note in the checkpoint. Readers pass
over names that begin like this."""

_QUERY_NOTE = "metadata"
"""Spark's own, in the checkpoint."""

_TAKEN_NOTE = "lbg_delta"
"""In the checkpoint of a Delta table: the last batch with rows that the table took."""

_EXPECTED = "the checkpoint that these were written with, as it was last, or a new checkpoint and a new folder"


def claim_lake(job: StreamJob) -> None:
    """Make sure that checkpoint and lake belong together, and, of a folder of Parquet, that they will.

    Called before a stream starts. Raises `UserError` if the lake has a batch that the checkpoint does not know of,
    lacks one that is done, or, if it is Parquet, is another query's or was moved; `LakeWriteFailed`; and for a Delta
    table whose checkpoint has ended a batch after the last one noted, as `LandingLog.read_queue` does, and
    `CheckpointForeign`.

    Whatever was killed, a checkpoint that is as old as its lake passes: Spark notes a batch before it runs it, and that
    it is done when it is in the lake. With a new checkpoint, a Delta table takes the stream for a new one, and a folder
    of Parquet does not. A folder that an older version wrote has no note, and is judged by the numbers alone.
    """
    try:
        known = max(numbers_in(job.checkpoint / "offsets"), default=None)
        _check_whole(job.checkpoint, known)
        last = _last_in_parquet(job.target) if job.lake is Lake.PARQUET else _last_in_delta(job)
        if last is not None and (known is None or last > known):
            raise checkpoint_behind(job.checkpoint, known, job.target, last)
        _check_done(job, last)
        if job.lake is Lake.PARQUET:
            _check_in_place(job.target)
            _claim_folder(job)
    except OSError as error:
        raise LakeWriteFailed(str(error.filename or job.target), error.strerror or str(error)) from error


@contextmanager
def sole_stream(checkpoint: Path) -> Iterator[None]:
    """Keep other streams off a checkpoint, which is made if it is not there. For the whole of a stream.

    The lake takes no batch twice, but what it says of a second stream blames the checkpoint, and would have it put
    back. Raises `UserError` if a stream of this machine runs on it, and `LakeWriteFailed`.
    """
    try:
        checkpoint.mkdir(parents=True, exist_ok=True)
        file = os.open(checkpoint, os.O_RDONLY)
    except OSError as error:
        raise LakeWriteFailed(str(error.filename or checkpoint), error.strerror or str(error)) from error
    try:
        # A file system without locks keeps no stream from running.
        with suppress(OSError):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                found = f"{checkpoint}, on which another stream runs"
                raise UserError("--checkpoint", found, "one of its own, or the end of the other stream") from None
        yield
    finally:
        os.close(file)


def release_lake(job: StreamJob) -> None:
    """Give back a folder of Parquet if the stream has never begun a batch, so that another checkpoint can have it.

    Called when the query has ended. No effect if it is not this stream's, or the note cannot be removed.
    """
    note = job.target / STREAM_NOTE
    with suppress(OSError, UserError):
        if job.lake is Lake.DELTA or numbers_in(job.checkpoint / "offsets"):
            return
        with alone(job.target):
            if _last_in_parquet(job.target) is None and _query_in(note) == _query_in(job.checkpoint / _QUERY_NOTE):
                note.unlink()


def checkpoint_behind(checkpoint: Path | str, known: int | None, target: Path, last: int) -> UserError:
    """The error for a checkpoint that ends before its lake does. `known` is its last batch, None if it has none."""
    ends = "has no batch" if known is None else f"ends with batch {known}"
    return UserError(str(checkpoint), f"it {ends}, and {target} has batches up to {last}", _EXPECTED)


def lake_behind(checkpoint: Path | str, done: int, target: Path, last: int | None) -> UserError:
    """The error for a lake that lacks batches which the checkpoint has done; `last` is its last one, None if none."""
    ends = "has none" if last is None else f"ends with batch {last}"
    return UserError(str(checkpoint), f"its batch {done} is done, and {target} {ends}", _EXPECTED)


def checkpoint_differs(checkpoint: Path | str, batch: int, target: Path) -> UserError:
    """The error for a checkpoint whose last batch is another one than the batch of that number in the lake."""
    return UserError(str(checkpoint), f"its batch {batch} is not the one that {target} has", _EXPECTED)


def digest_of_batch(checkpoint: str | None, batch: int) -> str | None:
    """What distinguishes a batch from any other of its number: where it ends. None if the checkpoint does not tell."""
    if checkpoint is None:
        return None
    try:
        end = _end_of_batch(Path(checkpoint), batch)
    except OSError:
        return None
    return hashlib.blake2b(end.strip(), digest_size=16).hexdigest() if end else None


def numbers_in(folder: Path) -> list[int]:
    """The numbers that are names of files in a folder; none if there is no such folder. Raises `OSError`."""
    try:
        names = [path.name.removesuffix(".compact") for path in folder.iterdir()]
    except FileNotFoundError:
        return []
    return [int(name) for name in names if name.isdecimal()]


def note_taken(checkpoint: str | None, batch: int) -> None:
    """Note that a Delta table has taken a batch with rows; called when that is durable. Raises `OSError`.

    No effect if the checkpoint is not in a folder of this machine.
    """
    if checkpoint is not None and (Path(checkpoint) / "offsets").is_dir():
        write_whole(Path(checkpoint) / _TAKEN_NOTE, json.dumps({"batch": batch}).encode())


def taken_with(checkpoint: str | None) -> int | None:
    """The last batch with rows that a Delta table has taken, as the checkpoint notes it; None if it does not.

    Raises `UserError` if that note is damaged, and `OSError`.
    """
    taken = None if checkpoint is None else _noted(Path(checkpoint) / _TAKEN_NOTE, "batch", "batch")
    return taken if isinstance(taken, int) else None


def _check_whole(checkpoint: Path, known: int | None) -> None:
    """Raise `UserError` if a checkpoint has no end of a batch before its last one, as in a copy of a running stream.

    Spark runs only the last one again, so the others would be missing. Raises `OSError`.
    """
    done = max(numbers_in(checkpoint / "commits"), default=-1)
    if known is not None and known - 1 > done:
        what = (
            f"it begins batch {known}, and has ended none after batch {done}" if done >= 0 else "it has ended no batch"
        )
        raise UserError(
            str(checkpoint), what, "a whole checkpoint, copied while no stream ran; or a new one and a new folder"
        )


def _check_done(job: StreamJob, last: int | None) -> None:
    """Raise `UserError` if a lake that ends with batch `last` lacks one that is done. Raises `OSError`.

    A folder of Parquet has every batch, also one without rows. A Delta table has none of these, so what it must have is
    noted beside. An older version, and a stream to Parquet, have noted nothing, perhaps behind a note that was there
    before: so of the batches after the note, the log is asked for the rows.
    """
    done = max(numbers_in(job.checkpoint / "commits"), default=None)
    if job.lake is Lake.DELTA:
        taken = taken_with(str(job.checkpoint))
        if done is None or (taken is not None and taken >= done) or not _has_rows(job, last, done):
            done = taken
    if done is not None and (last is None or last < done):
        raise lake_behind(job.checkpoint, done, job.target, last)


def _has_rows(job: StreamJob, last: int | None, done: int) -> bool:
    """Whether the log still has rows of the batches after `last`, up to `done`; from the first one if there is none.

    Those of which Spark has removed the offset do not count. Raises `OSError`, `UserError`, `CheckpointForeign`, and as
    `LandingLog.read_queue`.
    """
    first = 0 if last is None else last
    kept = sorted(number for number in numbers_in(job.checkpoint / "offsets") if first <= number <= done)
    if not kept:
        return False
    log = LandingLog(job.landing)
    start: Rows = {} if last is None else _rows_read(job, log, kept[0])
    end = _rows_read(job, log, kept[-1])
    queues = sorted({queue for lane in end if (queue := queue_of(lane)) is not None})
    parts = (log.read_queue(queue, start, end, skips_pruned=True) for queue in queues)
    return any(batch.num_rows for part in parts for batch in part)


def _rows_read(job: StreamJob, log: LandingLog, batch: int) -> Rows:
    """Rows read up to the end of a batch, by lane. Raises `OSError`, `UserError` and `CheckpointForeign`."""
    try:
        offset = json.loads(_end_of_batch(job.checkpoint, batch))
    except ValueError:
        raise UserError(str(job.checkpoint / "offsets" / str(batch)), "not what Spark has written", _EXPECTED) from None
    return decode(offset, str(job.landing), job.group, log.group.id).rows


def _end_of_batch(checkpoint: Path, batch: int) -> bytes:
    """The offset at which a batch ends, as Spark has noted it; empty if it is cut short. Raises `OSError`."""
    # A version, then Spark's own facts, among them the time; then a line for each source, of which there is one.
    lines = (checkpoint / "offsets" / str(batch)).read_bytes().split(b"\n", 2)
    return lines[2] if len(lines) == 3 else b""


def _claim_folder(job: StreamJob) -> None:
    """Note whose a folder of Parquet is, before Spark writes there.

    Raises `UserError` if it is another query's, and `OSError`.
    """
    note, query_note = job.target / STREAM_NOTE, job.checkpoint / _QUERY_NOTE
    for folder in (job.checkpoint, job.target):
        folder.mkdir(parents=True, exist_ok=True)
    # If two streams begin here at once, one of them is refused.
    with alone(job.target):
        owner, query = _query_in(note), _query_in(query_note)
        if query is None and owner is None:
            # Spark makes one if there is none, but only when it starts the query.
            query = str(uuid.uuid4())
            write_whole(query_note, json.dumps({"id": query}).encode())
        if owner is None:
            write_whole(note, json.dumps({"id": query}).encode())
        elif owner != query:
            raise UserError(str(job.checkpoint), f"{job.target} is the folder of another checkpoint", _EXPECTED)


def _query_in(note: Path) -> str | None:
    """Which query a note names, ours or Spark's; None if there is none. Raises `UserError` and `OSError`."""
    query = _noted(note, "id", "query")
    return None if query is None else str(query)


def _noted(note: Path, field: str, what: str) -> object:
    try:
        return json.loads(note.read_bytes())[field]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        raise UserError(str(note), f"it names no {what}", _EXPECTED) from None


def _last_in_parquet(target: Path) -> int | None:
    """The last batch of which Spark has noted the files; raises `UserError` if that note is torn, and `OSError`."""
    last = max(numbers_in(target / "_spark_metadata"), default=None)
    if last is not None:
        _files_noted(target, last)
    return last


def _files_noted(target: Path, batch: int) -> list[str]:
    """What Spark has noted of the files of a batch, and, where it has put notes together, of those before.

    Raises `UserError` if a note is torn, and `OSError`.
    """
    notes, found = target / "_spark_metadata", []
    # Spark would only fail at the next time that it puts them together, and readers at once.
    for note in (path for path in (notes / str(batch), notes / f"{batch}.compact") if path.exists()):
        version, *files = note.read_bytes().splitlines() or [b""]
        try:
            found += [str(json.loads(line)["path"]) for line in files]
            is_whole = version == b"v1"
        except (ValueError, KeyError, TypeError):
            is_whole = False
        if not is_whole:
            raise UserError(str(note), "not what Spark has written, perhaps torn by a power failure", _EXPECTED)
    return found


def _check_in_place(target: Path) -> None:
    """Raise `UserError` if a folder of Parquet was moved: Spark's notes have the full paths of its files.

    Readers would look for them where they were. Raises `OSError`.
    """
    batches = sorted(numbers_in(target / "_spark_metadata"), reverse=True)
    newest = next((files[-1] for batch in batches if (files := _files_noted(target, batch))), "")
    uri = urlsplit(newest)
    folder = Path(unquote(uri.path)).parent
    if uri.scheme == "file" and not (folder.exists() and folder.samefile(target)):
        expected = "it there, or a link to it in that place, as Spark's reader takes files from where the notes say"
        raise UserError(str(target), f"moved: by its notes, its files are in {folder}", expected)


def _last_in_delta(job: StreamJob) -> int | None:
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    query = _query_in(job.checkpoint / _QUERY_NOTE)
    try:
        return None if query is None else DeltaTable(job.target).transaction_version(query)
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        raise LakeWriteFailed(str(job.target), str(error)) from error
