"""What the parts of a running verdict have reported, kept next to Spark's checkpoint with every batch.

Spark keeps what each part carries from batch to batch, but what the parts report goes to the driver only once. A
process that goes on with the checkpoint needs that too: a part of which nothing more comes stands as before, and a
driver that died may have told nobody what it had just found.
"""

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from lbg_runtime.model.errors import UserError
from lbg_runtime.pipeline.files import write_whole
from lbg_runtime.pipeline.spark.checkpoint import numbers_in
from lbg_runtime.validator.findings import Finding, Standing

_VERSION = b"4"
"""Of everything that is kept, also by Spark. Version 1 had judged only a part of what it had read of a file, version 2
took the moments of a run of several hosts for later ones, and version 3 did not keep when queues were given and taken.
"""


class Said(NamedTuple):
    """What was reported on the run so far, after one batch."""

    standings: Mapping[int, Standing]
    """By part."""
    findings: tuple[Finding, ...]
    """The earliest of each law."""


class KeptVerdict:
    """Files in a folder of the checkpoint: one names the run, and there is one for each of the last two batches.

    A batch is written before Spark notes it as done, and written again if it is run again: so what is found in a batch
    counts once, whatever dies in between.
    """

    def __init__(self, checkpoint: Path) -> None:
        self._folder = checkpoint / "verdict"
        self._planned = checkpoint / "offsets"
        self._done = checkpoint / "commits"

    def claim(self, directory: Path) -> None:
        """Bind the checkpoint to the run in this directory, if it is not bound to one yet.

        Raises `UserError` if it belongs to another, as its positions would be applied to files of the same name, and
        its verdict would be on both; and if another version made it. Raises `OSError`.
        """
        note, version, asked = self._folder / "directory", self._folder / "version", directory.resolve()
        if not numbers_in(self._planned):
            self._folder.mkdir(parents=True, exist_ok=True)
            write_whole(version, _VERSION)
        elif not version.exists() or version.read_bytes() != _VERSION:
            raise UserError(str(self._folder.parent), "the checkpoint of another version of lbg-runtime", "a new one")
        if not note.exists():
            write_whole(note, os.fsencode(asked))
        known = Path(os.fsdecode(note.read_bytes()))
        if known != asked:
            raise UserError(str(self._folder.parent), f"the checkpoint of {known}", f"that of {asked}, or a new one")

    def load(self) -> Said:
        """As of the last batch that Spark has noted as done. Raises as `before`."""
        return self.before(1 + max(numbers_in(self._done), default=-1))

    def before(self, batch: int) -> Said:
        """As of the last batch before this one. Raises `OSError`, and `UserError` if it is not as it was kept."""
        kept = [number for number in numbers_in(self._folder) if number < batch]
        if not kept:
            return Said({}, ())
        path = self._folder / str(max(kept))
        content = path.read_bytes()
        try:
            said = pickle.loads(content)  # noqa: S301 - written below
        except Exception:  # noqa: BLE001 - a disk that has lost a part of it may have it raise anything
            said = None
        if not isinstance(said, Said):
            raise UserError(str(path), "not as it was written", "a whole checkpoint, or a new one")
        return said

    def keep(self, batch: int, said: Said) -> None:
        """Durable on return. Raises `OSError`."""
        self._folder.mkdir(exist_ok=True)
        write_whole(self._folder / str(batch), pickle.dumps(said))
        # The one before is needed until Spark has noted this one.
        for number in numbers_in(self._folder):
            if number < batch - 1:
                (self._folder / str(number)).unlink()
