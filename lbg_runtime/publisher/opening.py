"""The publisher of a group as its settings say, with the ledger that whoever publishes wants."""

from pathlib import Path
from typing import TYPE_CHECKING

from lbg_runtime.config.settings import GroupSettings
from lbg_runtime.model.keys import KeySource
from lbg_runtime.publisher.hashed import HashedPublisher
from lbg_runtime.publisher.ledger import open_ledger
from lbg_runtime.transport.base import Messenger

if TYPE_CHECKING:
    from lbg_runtime.metrics.spans import MessageSpans


def publisher_of(
    group: GroupSettings,
    messenger: Messenger,
    ledger_folder: Path | None,
    *,
    publisher_id: str,
    key_source: KeySource | None = None,
    spans: "MessageSpans | None" = None,
) -> HashedPublisher:
    """A publisher whose ledger, if it is to have one, is begun; the other arguments are as `HashedPublisher` has them.

    Raises `UserError` if the ledger cannot be begun.
    """
    shape, ledger = group.shape(), None
    if ledger_folder is not None:
        ledger = open_ledger(ledger_folder, shape, group.hash_function, publisher_id=publisher_id)
    return HashedPublisher(
        messenger,
        shape,
        group.hash_function,
        publisher_id=publisher_id,
        key_source=key_source,
        ledger=ledger,
        spans=spans,
    )
