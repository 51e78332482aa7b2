"""Keeps room in a parking queue for what empties it: orders to unpark and drop, and the fence of its next owner.

No client can ask a broker how much of a queue's quota is left. So before a client adds to a parking queue, it puts a
filler there, which is settled when nothing more is under way: whatever was accepted beside the filler leaves as much
room as that had taken. A filler has no other meaning. If its sender leaves it behind, the next owner that reads it
settles it, even before its own fence has come.

There are fillers of two sizes. Whoever sends orders uses the smaller one: orders fit into the room that parking leaves,
and leave room for a fence even while nobody reads them. But a message that a client repeats late may come without its
filler, and others can fill a queue or lower its quota: then a fence waits until somebody raises the quota, and the log
says so.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

from lbg_runtime.core.parking.records import RoomKept, encode_entry
from lbg_runtime.model.errors import PublishRefused, TransportError
from lbg_runtime.model.ids import DeliveryId, QueueName
from lbg_runtime.runtime.clock import DeadlineTimer, now_ms
from lbg_runtime.transport.base import Messenger

KEPT_FOR_ORDERS_BYTES = 16_384
"""The room that parking leaves: enough for about a hundred orders, each of which contains its key."""

KEPT_FOR_FENCES_BYTES = 1_024
"""The room that orders leave: enough for several fences."""

LINGER_S = 0.5
"""How long a filler stays after the last message, as the next one may come soon."""

PAUSE_S = 3.0
"""How long nothing is tried after a refusal: otherwise orders would find no room, and readers of the queue no end."""


class ParkingRoom:
    """Keeps a filler in a parking queue while anything is being parked; one per stay there, on the member's loop."""

    def __init__(self, parking: QueueName, session: Messenger, settle: Callable[[Iterable[DeliveryId]], None]) -> None:
        """`settle` accepts deliveries of the parking queue at once, without waiting for the client's ack timer."""
        self._parking = parking
        self._session = session
        self._settle = settle
        self._parking_count = 0
        self._filler: asyncio.Future[None] | None = None
        """Our filler: done when the broker has confirmed it; None again when it is settled or has failed."""
        self._held: dict[DeliveryId, int] = {}
        """The sizes of all fillers, whoever sent them, that have come and are not settled."""
        self._timer = DeadlineTimer(self._release)
        self._is_over = False
        self._refusal: PublishRefused | None = None
        """The last refusal for lack of room."""
        self._refused_until = 0.0
        """Until when nothing is tried, on the loop's clock."""

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Keep a filler in the queue within this context; raises `PublishRefused` if there is no room for it, or
        `PublishFailed`."""
        loop = asyncio.get_running_loop()
        if self._refusal is not None and loop.time() < self._refused_until:
            raise PublishRefused(self._refusal.topic, self._refusal.reason)
        self._timer.cancel()
        self._parking_count += 1
        linger_s = LINGER_S
        try:
            if self._filler is None:
                self._filler = self._session.send(encode_entry(RoomKept(KEPT_FOR_ORDERS_BYTES), self._parking))
                self._filler.add_done_callback(self._answered)
            # Shielded, as it is shared by all messages that are being parked, any of which may be cancelled. No bound,
            # as they have none either.
            await asyncio.shield(self._filler)
            yield
        except PublishRefused as refusal:
            if is_over_quota(refusal):
                self._refusal, self._refused_until, linger_s = refusal, loop.time() + PAUSE_S, 0.0
            raise
        finally:
            self._parking_count -= 1
            if not self._parking_count and not self._is_over:
                self._release_in(linger_s)

    def take(self, delivery_id: DeliveryId, size_bytes: int) -> None:
        """Take a filler that has come: it is settled when nothing is being parked. A mark is settled at once."""
        if size_bytes < KEPT_FOR_FENCES_BYTES:
            # A mark keeps no room, and every reading adds some: if a key is never idle, they would pile up.
            self._settle((delivery_id,))
            return
        self._held[delivery_id] = size_bytes
        if not self._parking_count and not self._timer.is_set:
            self._release()

    def doubt(self) -> None:
        """Have another filler sent unless one has come: a message that was confirmed has not come, so our filler may be
        lost as well."""
        # The filler of an order proves nothing about ours, and is too small to stand in for it.
        if max(self._held.values(), default=0) < KEPT_FOR_ORDERS_BYTES:
            self._filler = None

    def end(self) -> None:
        """End, as the parking queue is being given up. The next owner settles a filler that is still on its way."""
        self._is_over = True
        self._timer.cancel()
        if not self._parking_count:
            self._release()

    def _release_in(self, linger_s: float) -> None:
        if linger_s:
            self._timer.set(now_ms() + int(linger_s * 1_000))
        else:
            self._release()

    def _release(self) -> None:
        # A filler of ours that has not come yet still keeps its room, and may serve again until it comes.
        if self._held:
            self._filler = None
            self._settle(self._held)
            self._held.clear()

    def _answered(self, filler: "asyncio.Future[None]") -> None:
        # Retrieves its exception in any case, as all waiters may have been cancelled.
        has_failed = filler.cancelled() or filler.exception() is not None
        if has_failed and self._filler is filler:
            self._filler = None


def is_over_quota(error: TransportError) -> bool:
    """Whether a queue has no room for what was published."""
    return isinstance(error, PublishRefused) and "over quota" in error.reason.lower()


def with_remedy(error: TransportError) -> TransportError:
    """The same error with advice on the quota if a parking queue has no room; any other error unchanged."""
    if not isinstance(error, PublishRefused) or not is_over_quota(error):
        return error
    quota = f"maxMsgSpoolUsage of queue {error.topic} (by semp.queue_spool_mb and `lbg group apply`, or by hand)"
    remedy = f"raise {quota}, or have some of it replayed or dropped"
    return PublishRefused(error.topic, f"{error.reason}: {remedy}")
