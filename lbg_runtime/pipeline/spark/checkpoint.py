"""Whether a stream's checkpoint and its lake belong together; does not import pyspark.

Spark's file sink and `lbg_delta` know a batch that is run again by its number. A checkpoint that is behind its lake
gives the numbers that are there to other rows, which would be taken for copies, and be missing from the lake for ever.
"""

import hashlib
import json
from pathlib import Path

from lbg_runtime.model.errors import LakeWriteFailed, UserError
from lbg_runtime.pipeline.spark.stream_job import Lake, StreamJob

_EXPECTED = "the checkpoint that these were written with, as it was last, or a new checkpoint and a new folder"


def check_checkpoint(job: StreamJob) -> None:
    """Raise `UserError` if the lake has a batch that the checkpoint does not know of, and `LakeWriteFailed`.

    Whatever was killed, a checkpoint that is as old as its lake knows of it: Spark notes a batch before it runs it.
    With a new checkpoint, a Delta table takes the stream for a new one, and a folder of Parquet does not.
    """
    known = max(numbers_in(job.checkpoint / "offsets"), default=None)
    last = _last_in_parquet(job.target) if job.lake is Lake.PARQUET else _last_in_delta(job)
    if last is not None and (known is None or last > known):
        raise checkpoint_behind(job.checkpoint, known, job.target, last)


def checkpoint_behind(checkpoint: Path | str, known: int | None, target: Path, last: int) -> UserError:
    """The error for a checkpoint that ends before its lake does. `known` is its last batch, None if it has none."""
    ends = "has no batch" if known is None else f"ends with batch {known}"
    return UserError(str(checkpoint), f"it {ends}, and {target} has batches up to {last}", _EXPECTED)


def checkpoint_differs(checkpoint: Path | str, batch: int, target: Path) -> UserError:
    """The error for a checkpoint whose last batch is another one than the batch of that number in the lake."""
    return UserError(str(checkpoint), f"its batch {batch} is not the one that {target} has", _EXPECTED)


def digest_of_batch(checkpoint: str | None, batch: int) -> str | None:
    """What distinguishes a batch from any other of its number: where it ends. None if the checkpoint does not tell."""
    if checkpoint is None:
        return None
    try:
        content = (Path(checkpoint) / "offsets" / str(batch)).read_bytes()
    except OSError:
        return None
    # A version, then Spark's own facts, among them the time; then a line for each source.
    ends = content.split(b"\n", 2)[2:]
    return hashlib.blake2b(ends[0].strip(), digest_size=16).hexdigest() if ends else None


def numbers_in(folder: Path) -> list[int]:
    """The numbers that are names of files in a folder; none if there is no such folder. Raises `LakeWriteFailed`."""
    try:
        names = [path.name.removesuffix(".compact") for path in folder.iterdir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise LakeWriteFailed(str(folder), error.strerror or str(error)) from error
    return [int(name) for name in names if name.isdecimal()]


def _last_in_parquet(target: Path) -> int | None:
    return max(numbers_in(target / "_spark_metadata"), default=None)


def _last_in_delta(job: StreamJob) -> int | None:
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        query = json.loads((job.checkpoint / "metadata").read_bytes())["id"]
        return DeltaTable(job.target).transaction_version(query)
    except (FileNotFoundError, TableNotFoundError):
        return None
    except (DeltaError, OSError) as error:
        raise LakeWriteFailed(str(job.target), str(error)) from error
    except (ValueError, KeyError, TypeError):
        raise UserError(str(job.checkpoint), "its metadata cannot be read", "a checkpoint of Spark") from None
