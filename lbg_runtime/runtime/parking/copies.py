"""Copies of messages on their way to a parking queue: each has one number, however often it is sent.

A confirm does not prove that a copy is in the parking queue, so a copy that does not come back is sent again, be it
lost or only late. The owner counts a number once. The next owner could not know that a second copy is of a message that
is done. So when a message that was sent twice is gone from the parking queue, an order is published to drop whatever
else comes with its number.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from lbg_runtime.core.lanes import LaneKey
from lbg_runtime.core.parking.ledger import ParkingLedger
from lbg_runtime.core.parking.orders import LedgerOrder
from lbg_runtime.core.parking.records import DropAsked, encode_entry
from lbg_runtime.model.errors import TransportError
from lbg_runtime.model.ids import QueueName
from lbg_runtime.runtime.clock import now_ms
from lbg_runtime.runtime.parking.room import with_remedy
from lbg_runtime.runtime.runners.handling import Handling
from lbg_runtime.transport.base import Messenger

_log = structlog.get_logger(__name__)

RETRY_S = 1.0
"""The time between two tries to publish an order that the broker did not take."""


@dataclass(slots=True, eq=False)
class Copy:
    """The copy of a message that is being parked, kept between tries."""

    number: int
    came: "asyncio.Future[bool]"
    """Its result is True if the copy is in the parking queue and counts, False if it was given up, so that nothing that
    was sent of it will count."""
    was_sent: bool = False
    """Whether it may be in the parking queue."""

    @property
    def has_come(self) -> bool:
        """Whether it is or was in the parking queue."""
        return self.came.done() and self.came.result()

    @property
    def is_given_up(self) -> bool:
        """Whether nothing that was sent of it will count."""
        return self.came.done() and not self.came.result()


class Copies:
    """The copies of one stay at a parking queue, on the member's loop."""

    def __init__(self, ledger: ParkingLedger) -> None:
        self._ledger = ledger
        self._by_handling: dict[Handling, Copy] = {}
        self._by_number: dict[int, Copy] = {}
        """The same copies, by their numbers."""

    def of(self, handling: Handling, lane: LaneKey) -> Copy:
        """The copy of a message; made if it has none."""
        copy = self._by_handling.get(handling)
        if copy is None:
            copy = Copy(self._ledger.begin_park(lane), asyncio.get_running_loop().create_future())
            self._by_handling[handling] = self._by_number[copy.number] = copy
        return copy

    def has_come(self, handling: Handling) -> bool:
        """Whether the copy of a message is or was in the parking queue."""
        copy = self._by_handling.get(handling)
        return copy is not None and copy.has_come

    def about_to_send(self, copy: Copy) -> None:
        """Note that the copy is sent next; call it before each time."""
        if copy.was_sent:
            self._ledger.sent_again(copy.number)
        copy.was_sent = True

    def refused(self, handling: Handling) -> list[LedgerOrder]:
        """Forget the copy of a message, which is nowhere and will not come; return the orders that follow."""
        copy = self.forget(handling)
        return [] if copy is None else self._ledger.park_refused(copy.number)

    def seen(self, number: int) -> None:
        """Note that the copy with this number is in the parking queue, and counts."""
        copy = self._by_number.get(number)
        if copy is not None and not copy.came.done():
            copy.came.set_result(True)

    def forget(self, handling: Handling) -> Copy | None:
        """Forget the copy of a message that is accepted, or begins afresh. Idempotent."""
        copy = self._by_handling.pop(handling, None)
        if copy is not None:
            del self._by_number[copy.number]
        return copy

    def give_up(self) -> None:
        """Give up copies that were sent until now and have not come back: they no longer count."""
        for handling, copy in list(self._by_handling.items()):
            if not copy.came.done():
                copy.came.set_result(False)
                self.forget(handling)


class CopyDrops:
    """Publishes orders to drop whatever else comes with a number. One per stay, which calls it on the loop."""

    def __init__(self, parking: QueueName, session: Messenger, on_sent: Callable[[], None]) -> None:
        """`on_sent` is called when no order is left to send."""
        self._parking = parking
        self._session = session
        self._on_sent = on_sent
        self._asked: deque[DropAsked] = deque()
        self._sending: asyncio.Task[None] | None = None
        self._is_over = False

    @property
    def are_sent(self) -> bool:
        """Whether the broker has all of them."""
        return not self._asked

    def publish(self, asked: DropAsked, tasks: asyncio.TaskGroup) -> None:
        """Publish an order after the earlier ones, in a task of the stay; does nothing after `end`."""
        if self._is_over:
            return
        self._asked.append(asked)
        if self._sending is None or self._sending.done():
            self._sending = tasks.create_task(self._send_all())

    def end(self) -> None:
        """Stop publishing; call it before the tasks end. Idempotent."""
        self._is_over = True
        if self._sending is not None:
            self._sending.cancel()

    async def _send_all(self) -> None:
        # Ends when all are sent, or is cancelled at the end of the stay. One after another: if the broker takes none,
        # the log says so once, however many wait and however long, and once more when it takes them again.
        refused_since_ms: int | None = None
        while self._asked:
            try:
                await self._session.send(encode_entry(self._asked[0], self._parking))
            except TransportError as error:
                if refused_since_ms is None:
                    refused_since_ms = now_ms()
                    facts = {"waiting": len(self._asked), "reason": str(with_remedy(error))}
                    _log.warning("parking_drop_not_sent", parking=self._parking, **facts)
                await asyncio.sleep(RETRY_S)
                continue
            self._asked.popleft()
            if refused_since_ms is not None:
                stood_ms, refused_since_ms = now_ms() - refused_since_ms, None
                _log.info("parking_drop_sent", parking=self._parking, waiting=len(self._asked), stood_ms=stood_ms)
        self._on_sent()
