"""Shows what is parked in a group, and orders its replay or removal: from outside, through the parking queues only.

No member is asked, and none need be running: parked messages are read by browsing, and an order stays in the parking
queue, behind what is there, until the owner of the queue has carried it out (docs/failing.md).
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count

import structlog

from lbg_runtime.config.broker_names import program_name
from lbg_runtime.config.settings import Settings
from lbg_runtime.core.lanes import LaneKey
from lbg_runtime.core.parking.ledger import ParkingLedger
from lbg_runtime.core.parking.records import (
    UNREAD_LANE,
    DropAsked,
    ParkedMessage,
    ParkingOwner,
    RoomKept,
    UnparkAsked,
    UnreadEntry,
    WrittenEntry,
    decode_entry,
    encode_entry,
    parking_queue,
)
from lbg_runtime.model.errors import PublishRefused, TransportError
from lbg_runtime.model.ids import DeliveryId, QueueName
from lbg_runtime.model.message import Message
from lbg_runtime.model.sole_error import sole_error
from lbg_runtime.runtime.parking.reading import Contents, Lookout, read_parking_queue
from lbg_runtime.runtime.parking.room import KEPT_FOR_FENCES_BYTES, is_over_quota, with_remedy
from lbg_runtime.runtime.session import open_session

_log = structlog.get_logger(__name__)

_LOOK = "what is parked there is not fully known: try `lbg group verify`"

TRIES = 3
"""How often an order is tried for which the parking queue has no room: what takes the room may be on its way out."""

RETRY_S = 1.0
"""The time between two tries."""

READ_AT_ONCE = 4
"""How many queues are read at the same time. A reading mostly waits for its pause, so one after the other, many queues
would take minutes; but each reading takes one of the few threads that call the client (`ControlThreads`)."""


@dataclass(frozen=True, slots=True)
class ParkedLane:
    """What is parked of one key, or of one shard for messages without a key, in one queue."""

    lane: LaneKey
    queue: QueueName
    """The parking queue."""
    messages: tuple[ParkedMessage, ...]
    """In the order in which they are replayed."""
    is_replaying: bool
    """Whether its replay was asked for and is not done."""
    unread: tuple[UnreadEntry, ...]
    """What cannot be read of this lane; while there is any, nothing of the lane is replayed. The lane `UNREAD_LANE` has
    what does not even say its lane."""


@dataclass(frozen=True, slots=True)
class Unread:
    """Something of a parking queue that could not be read."""

    what: str
    """What it is, with the name of the queue and the reason."""
    advice: str


class ParkedView:
    """Works on an open session and one event loop."""

    def __init__(self, session: Lookout, settings: Settings) -> None:
        self._session = session
        self._group = settings.group
        self.unread: list[Unread] = []
        """What could not be read when `lanes` was called last."""

    async def lanes(self) -> list[ParkedLane]:
        """Everything that is parked in the group, by queue; without parking queues that cannot be read (`unread`).

        A snapshot of each queue, not of all at once; it comes to an end even while more is being parked
        (`parking/reading.py`). All of it is held in memory, as by the owners. Parking queues beyond those of the
        settings are read too, and logged. Raises `TransportError` if one of those cannot be read.
        """
        self.unread.clear()
        found: list[ParkedLane] = []
        read = await self._read(range(self._group.queue_count))
        for index in count():
            queue = parking_queue(self._group.name, index)
            is_beyond = index >= self._group.queue_count
            # Only a queue that does not exist is the end: one that this user may not read may contain something.
            if is_beyond and not await self._session.has_queue(queue):
                break
            contents = (await self._read([index]))[0] if is_beyond else read[index]
            if isinstance(contents, TransportError):
                if is_beyond:
                    raise contents
                self.unread.append(Unread(str(contents), _LOOK))
                continue
            if is_beyond:
                _log.warning("parking_queue_beyond_settings", parking=queue, queue_count=self._group.queue_count)
            if contents.cut:
                self.unread.append(Unread(contents.cut, _LOOK))
            lanes = lanes_in(queue, contents.messages)
            # Each line once, as there may be many stray messages of one kind.
            self.unread += dict.fromkeys(_told(lane, entry) for lane in lanes for entry in lane.unread)
            found += lanes
        if self.unread and not found and index == self._group.queue_count and not await self._has_any_queue():
            # As in a group that does not park: there is nothing for an administrator to mend.
            what = f"group {self._group.name} has no parking queues"
            self.unread = [Unread(what, "nothing is parked; if its handlers park, `lbg group apply` makes them")]
        return found

    async def _read(self, indices: Sequence[int]) -> list[Contents | TransportError]:
        """What lies in the parking queues with these indices, or why it cannot be read; several at a time."""
        turns = asyncio.Semaphore(READ_AT_ONCE)

        async def read(index: int) -> Contents | TransportError:
            async with turns:
                try:
                    return await read_parking_queue(self._session, parking_queue(self._group.name, index))
                except TransportError as error:
                    return error

        with sole_error():
            async with asyncio.TaskGroup() as tasks:
                reading = [tasks.create_task(read(index)) for index in indices]
        return [each.result() for each in reading]

    async def _has_any_queue(self) -> bool:
        """Whether one of the parking queues of the settings is there, or may be."""
        for index in range(self._group.queue_count):
            try:
                if await self._session.has_queue(parking_queue(self._group.name, index)):
                    return True
            except TransportError:
                return True
        return False

    async def unpark(self, lanes: Sequence[ParkedLane]) -> None:
        """Order the replay of these lanes; when this returns, the broker has the orders. Raises `PublishFailed`; may be
        repeated."""
        await self._ask([(each.queue, UnparkAsked(each.lane)) for each in lanes])

    async def drop(self, lanes: Sequence[ParkedLane], only: tuple[ParkingOwner, int] | None = None) -> None:
        """Order the removal of everything that is parked of these lanes by now, including what cannot be read; or only
        of the message with this owner and number. Otherwise like `unpark`."""
        await self._ask([(each.queue, DropAsked(each.lane, only)) for each in lanes])

    async def _ask(self, orders: Sequence[tuple[QueueName, WrittenEntry]]) -> None:
        # Fillers first (`parking/room.py`); the owner settles them when it reads them.
        for queue in dict.fromkeys(queue for queue, _ in orders):
            await self._send(queue, RoomKept(KEPT_FOR_FENCES_BYTES))
        for queue, order in orders:
            await self._send(queue, order)

    async def _send(self, queue: QueueName, entry: WrittenEntry) -> None:
        for tries_left in reversed(range(TRIES)):
            try:
                await self._session.send(encode_entry(entry, queue))
                return
            except PublishRefused as refusal:
                if not tries_left or not is_over_quota(refusal):
                    raise with_remedy(refusal) from None
            await asyncio.sleep(RETRY_S)


def lanes_in(queue: QueueName, messages: Sequence[Message]) -> list[ParkedLane]:
    """What is parked according to the messages of a parking queue, judged as its owner does: not everything in it
    counts."""
    ledger = ParkingLedger(ParkingOwner(0, ""))
    for place, message in enumerate(messages):
        entry = decode_entry(message)
        if not isinstance(entry, RoomKept):
            ledger.take(DeliveryId(place), entry)
    held, unread = ledger.contents(), ledger.unread()
    return [
        ParkedLane(lane, queue, held.get(lane, ()), ledger.is_replaying(lane), unread.get(lane, ()))
        for lane in dict.fromkeys((*held, *unread))
    ]


def _told(lane: ParkedLane, entry: UnreadEntry) -> Unread:
    number = "" if entry.only is None else f" #{entry.only[1]}"
    what = f"{lane.queue}: this version cannot read{number} of {lane.lane} ({entry.reason})"
    advice = f"{lane.lane} stays parked until a member of the version that wrote it has replayed it, or it is dropped"
    if entry.lane is None:
        what = f"{lane.queue}: this version cannot read something that does not say its key ({entry.reason})"
        harm = "no version of lbg has put it there, and it stops nothing"
        if entry.is_ours:
            harm = "nothing of the queue is handled until a member can read it"
        advice = f"{harm}; `lbg parked drop {UNREAD_LANE} --lane --all` removes it for good"
    return Unread(what, advice)


@asynccontextmanager
async def viewing_parked(settings: Settings) -> AsyncIterator[ParkedView]:
    """A view on a session of its own, which does not come back when its connection is lost.

    Raises `ConfigError` if nobody answers at the broker's address.
    """
    name = program_name("parked")
    # It does not log in again when a mark is refused because a right is missing, as that would end the reading.
    path = settings.transport.client_path
    async with open_session(settings.beside_connection, name, path, reconnects=False) as session:
        yield ParkedView(session, settings)
