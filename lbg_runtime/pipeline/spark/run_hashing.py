"""One run of a query, from its start to its end, hashes in one way; the next run may hash in another.

Spark has a writer for every batch, which reads the group's settings anew, and tells it nothing of the query. Only tasks
know their run, and the checkpoint if that is not an option. So the driver passes on what the last batch has noted, each
task compares before it publishes anything, and with the end of a batch the driver notes what its tasks have used. What
failed before that has ended its run.
"""

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from lbg_runtime.model.errors import UserError
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.hashing import HashFunction
from lbg_runtime.pipeline.files import write_whole

NOTE = "lbg_sink"
"""In the checkpoint."""

DEFAULT_CHECKPOINTS = "spark.sql.streaming.checkpointLocation"
"""Spark's own setting: where queries without the option have their checkpoints, each in a folder of its name."""

_FILE_URI = re.compile(r"\Afile:(?://)?(?=/)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RunHashing:
    """How a run sends keys to topics. The number of queues is no part of it: a re-striping may change that."""

    run: str
    hash_prefix: str
    hash_count: int
    hash_function: str

    def check(self, noted: "RunHashing | None") -> None:
        """Raise `UserError` if this run has hashed in another way before: keys would go to other shards than then."""
        if noted is None or noted.run != self.run:
            return
        for setting in ("hash_prefix", "hash_count", "hash_function"):
            ours, before = getattr(self, setting), getattr(noted, setting)
            if ours != before:
                found = f"{ours}, and the query has published with {before}"
                raise UserError(f"group.{setting}", found, "a restart, at which every publisher has the new value")


def run_hashing(run: str, shape: GroupShape, hash_function: HashFunction) -> RunHashing:
    """How a run hashes that publishes to this group."""
    return RunHashing(run, shape.hash_prefix, shape.hash_count, hash_function.value)


def default_checkpoint(checkpoints: str | None, query_name: str | None) -> str | None:
    """Where Spark keeps the checkpoint of a query without the option; None if that has no name: it draws one."""
    return None if checkpoints is None or query_name is None else f"{checkpoints}/{query_name}"


def noted_hashing(checkpoint: str | None) -> RunHashing | None:
    """What the last batch has noted; None if nothing is. Raises `UserError`."""
    if checkpoint is None:
        return None
    note = _folder(checkpoint) / NOTE
    try:
        return RunHashing(**json.loads(note.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        what = error.strerror if isinstance(error, OSError) else "not as it was written"
        raise UserError(str(note), str(what), "the note as it was, or none, when the query is started again") from None


def note_hashing(checkpoint: str | None, used: RunHashing) -> None:
    """Note how a batch was published; durable on return. Raises `UserError`.

    No effect if the checkpoint is not in a folder of this machine.
    """
    if checkpoint is None or not (_folder(checkpoint) / "offsets").is_dir() or noted_hashing(checkpoint) == used:
        return
    note = _folder(checkpoint) / NOTE
    try:
        write_whole(note, json.dumps(asdict(used)).encode())
    except OSError as error:
        raise UserError(str(note), str(error.strerror), "a checkpoint that can be written") from None


def _folder(checkpoint: str) -> Path:
    """A checkpoint as Spark names it, which takes a path or a URI, in which it decodes nothing."""
    return Path(_FILE_URI.sub("", checkpoint))
