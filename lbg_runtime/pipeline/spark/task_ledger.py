"""The ledger of one task of the sink, which may be run more than once.

A task that publishes begins with a draft, in a separate folder that no validator looks into; with the last confirm the
draft becomes the ledger. If there was a draft or a ledger already, the same messages may be on the broker from before:
the ledger then also says of each that it may have been sent twice, as the validator requires of a publisher. A batch
that never succeeded leaves only drafts, and the validator finds messages of a publisher without a ledger.
"""

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lbg_runtime.model.errors import UserError
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.hashing import HashFunction
from lbg_runtime.model.record import FILE_SUFFIXES, UnconfirmedRecord
from lbg_runtime.publisher.confirmation import Confirmation
from lbg_runtime.publisher.ledger import Ledger, open_ledger

_DRAFTS = "drafts"


class TaskLedger:
    """What `task_ledger` yields, for one attempt of a task."""

    def __init__(self, ledger: Ledger, *, is_again: bool) -> None:
        self.ledger = ledger
        """Used by the publisher, which closes it."""
        self._is_again = is_again

    def note(self, confirmation: Confirmation, t_us: int) -> None:
        """Record that a message is confirmed; call it before the publisher is closed."""
        if self._is_again:
            reason = "a task that was run again published it"
            key, shard, number = confirmation.key, confirmation.shard, confirmation.key_sequence
            self.ledger.unconfirmed(UnconfirmedRecord(key, shard, number, "unknown", reason, t_us))


@contextmanager
def task_ledger(
    folder: Path | None, shape: GroupShape, hash_function: HashFunction, publisher_id: str
) -> Iterator[TaskLedger | None]:
    """A ledger for what is published within the context; it counts if nothing is raised. None without a folder.

    Raises `UserError` if the folder cannot be written.
    """
    if folder is None:
        yield None
        return
    drafts, final = folder / _DRAFTS / publisher_id, folder / f"{publisher_id}{FILE_SUFFIXES['ledger']}"
    is_again = final.exists() or drafts.exists()
    draft = drafts / uuid.uuid4().hex
    ledger = open_ledger(draft, shape, hash_function, publisher_id=publisher_id)
    try:
        yield TaskLedger(ledger, is_again=is_again)
    finally:
        # A task that could not connect had no publisher to close it, and Spark's Python processes live on.
        ledger.close(clean=False)
    try:
        ledger.path.replace(final)
        shutil.rmtree(drafts, ignore_errors=True)
    except OSError as error:
        raise UserError("option ledger", f"{final}: {error.strerror}", "a folder to write to") from None
