"""Room in a parking queue for what empties it: orders to unpark and drop, and the fence of its next owner.

No client can ask a broker how much of a queue's quota is left. So before adding to a parking queue, a client puts a
filler there, which is settled when nothing more is under way: what was accepted next to it leaves as much room as it
filled. A filler has no other meaning. If its sender left it behind, it is settled by the next owner that reads it,
which for that need not have its own fence there.

Orders use the smaller one of the two sizes: they fit into what parking has left, and leave room for a fence even while
nobody reads them. What a client repeats late may come without its filler, and others can fill a queue or lower its
quota: then a fence waits until somebody raises the quota, and the log says so.
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
"""What parking leaves: room for about a hundred orders, each of which contains its key."""

KEPT_FOR_FENCES_BYTES = 1_024
"""What orders leave: room for several fences."""

LINGER_S = 0.5
"""A filler stays this long after the last message, as the next one may come at once."""

PAUSE_S = 3.0
"""After a refusal nothing is tried for this long: else orders would find no room, and readers of the queue no end."""


class ParkingRoom:
    """Keeps a filler in a parking queue while anything is being parked; one per stay there, on the member's loop."""

    def __init__(self, parking: QueueName, session: Messenger, settle: Callable[[Iterable[DeliveryId]], None]) -> None:
        """`settle` accepts deliveries of the parking queue, without waiting for the ack timer."""
        self._parking = parking
        self._session = session
        self._settle = settle
        self._parking_count = 0
        self._filler: asyncio.Future[None] | None = None
        """Done when the broker has it; None again when it is settled or has failed."""
        self._held: dict[DeliveryId, int] = {}
        """Sizes of the fillers of any sender that have come and are not settled."""
        self._timer = DeadlineTimer(self._release)
        self._is_over = False
        self._refusal: PublishRefused | None = None
        """The last refusal for lack of room."""
        self._refused_until = 0.0
        """On the loop's clock."""

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
            # Shared by all messages being parked, any of which may be cancelled. No bound, as for those themselves.
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
        """Take a filler that has come; it is settled when nothing is being parked, and a mark at once."""
        if size_bytes < KEPT_FOR_FENCES_BYTES:
            # It keeps no room, and each reading adds some: where a key is never idle, they would pile up.
            self._settle((delivery_id,))
            return
        self._held[delivery_id] = size_bytes
        if not self._parking_count and not self._timer.is_set:
            self._release()

    def doubt(self) -> None:
        """Have another filler sent if none has come: something confirmed did not come, so it may be lost too."""
        # That of an order says nothing of ours, and is too small to stand in for it.
        if max(self._held.values(), default=0) < KEPT_FOR_ORDERS_BYTES:
            self._filler = None

    def end(self) -> None:
        """End, as the parking queue is being given up. If something is on its way there, the next owner settles."""
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
        # A filler that has not come yet is still there, and may serve again until it comes.
        if self._held:
            self._filler = None
            self._settle(self._held)
            self._held.clear()

    def _answered(self, filler: "asyncio.Future[None]") -> None:
        # Retrieve its exception in any case: all waiters may have been cancelled.
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
