"""Makes the publisher of a group from its settings, with a ledger if the caller wants one, and its id."""

import os
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from lbg_runtime.config.settings import GroupSettings
from lbg_runtime.model.keys import KeySource
from lbg_runtime.publisher.hashed import HashedPublisher
from lbg_runtime.publisher.ledger import open_ledger, wall_clock_us
from lbg_runtime.transport.base import Messenger

if TYPE_CHECKING:
    from lbg_runtime.metrics.spans import MessageSpans


def new_publisher_id() -> str:
    """An id unique across hosts, processes and time: `<host>-<process>-<start, microseconds, hex>`.

    Key sequences start at 1 with every life of a publisher, so two lives must never share an id.
    """
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname()) or "host"
    return f"{host}-{os.getpid()}-{wall_clock_us():x}"


def publisher_of(
    group: GroupSettings,
    messenger: Messenger,
    ledger_folder: Path | None,
    *,
    publisher_id: str,
    key_source: KeySource | None = None,
    spans: "MessageSpans | None" = None,
) -> HashedPublisher:
    """A publisher with its ledger, which is begun, if a folder is given. The other arguments are those of
    `HashedPublisher`.

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
