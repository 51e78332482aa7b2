"""What is parked in a group, and asking for its replay or its end: from outside, by the parking queues alone.

No member is asked, and none has to live: what is parked is read by browsing, and what is asked for lies in the parking
queue, behind what is there, until the owner of the queue has done it (docs/failing.md).
"""

import os
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

import structlog

from lbg_runtime.config.connection_settings import TransportKind
from lbg_runtime.config.settings import Settings
from lbg_runtime.core.lanes import LaneKey
from lbg_runtime.core.parking.ledger import ParkingLedger
from lbg_runtime.core.parking.records import (
    DropAsked,
    ParkedMessage,
    ParkingOwner,
    UnparkAsked,
    decode_entry,
    encode_entry,
    parking_queue,
)
from lbg_runtime.model.errors import ParkingEntryRefused
from lbg_runtime.model.ids import DeliveryId, QueueName
from lbg_runtime.runtime.session import open_session
from lbg_runtime.transport.base import Browser, Messenger

_log = structlog.get_logger(__name__)

QUIET_S = 1.0
"""A browsed queue is taken to end where nothing comes for so long."""


class Lookout(Browser, Messenger, Protocol):
    """What the view needs of a session."""


@dataclass(frozen=True, slots=True)
class ParkedLane:
    """What is parked of one key, or of one shard where there are no keys, in one queue."""

    lane: LaneKey
    queue: QueueName
    """The parking queue."""
    messages: tuple[ParkedMessage, ...]
    """In the order in which they are replayed."""
    is_replaying: bool
    """Somebody has asked for its replay, which is not done."""


class ParkedView:
    """On an open session; on one event loop."""

    def __init__(self, session: Lookout, settings: Settings) -> None:
        self._session = session
        self._group = settings.group

    async def lanes(self) -> list[ParkedLane]:
        """All that is parked in the group, by queue; raises `TransportError` where a parking queue cannot be read.

        Of one moment for each queue, not for all.
        """
        found: list[ParkedLane] = []
        for index in range(self._group.queue_count):
            queue = parking_queue(self._group.name, index)
            ledger = ParkingLedger(ParkingOwner(0, ""))
            for place, message in enumerate(await self._session.browse(queue, QUIET_S)):
                try:
                    ledger.take(DeliveryId(place), decode_entry(message))
                except ParkingEntryRefused as refusal:
                    _log.warning("parking_entry_not_read", parking=queue, reason=refusal.what)
            found += [
                ParkedLane(lane, queue, messages, ledger.is_replaying(lane))
                for lane, messages in ledger.contents().items()
            ]
        return found

    async def unpark(self, lanes: Sequence[ParkedLane]) -> None:
        """Ask for their replay; on return the broker has it. Raises `PublishFailed`; may be done again."""
        for each in lanes:
            await self._session.send(encode_entry(UnparkAsked(each.lane), each.queue))

    async def drop(self, lanes: Sequence[ParkedLane], only: ParkedMessage | None = None) -> None:
        """Ask for the removal of all that is parked of them until now, or of one message; as `unpark`."""
        which = None if only is None else (only.owner, only.number)
        for each in lanes:
            await self._session.send(encode_entry(DropAsked(each.lane, which), each.queue))


@asynccontextmanager
async def viewing_parked(settings: Settings) -> AsyncIterator[ParkedView]:
    """A view on a session of its own; raises `ConfigError` where nobody answers at the broker's address."""
    # As an observer of the group: a group with the embedded broker has it in a member's process.
    connection = settings.connection.model_copy(update={"transport": TransportKind.SOLACE, "client_name": None})
    async with open_session(connection, f"lbg-parked-{socket.gethostname()}-{os.getpid()}") as session:
        yield ParkedView(session, settings)
