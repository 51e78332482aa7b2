"""Room in a parking queue for what empties it: orders to unpark and drop, and the fence of its next owner.

No client can ask a broker how much of a queue's quota is left. So whoever adds to a parking queue has a filler lie
there first, which is settled when nothing more is under way: what was taken beside it leaves as much room as it filled.
A filler has no meaning besides. One that its sender left behind is settled by the next owner that reads it, which need
not have its own fence there for that.

Of the two sizes the smaller one is that of orders: they fit into what parking has left, and leave room for a fence also
while nobody reads them. What a client repeats late may come without its filler, and others can fill a queue, or lower
its quota: then a fence waits until somebody raises that, and the log says so.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

from lbg_runtime.core.parking.records import RoomKept, encode_entry
from lbg_runtime.model.errors import PublishRefused, TransportError
from lbg_runtime.model.ids import DeliveryId, QueueName
from lbg_runtime.transport.base import Messenger

KEPT_FOR_ORDERS_BYTES = 16_384
"""What parking leaves: a hundred orders or so, which have their key in them."""

KEPT_FOR_FENCES_BYTES = 1_024
"""What orders leave: several fences."""

LINGER_S = 0.5
"""A filler stays so long behind the last message, as the next one may come at once."""

PAUSE_S = 3.0
"""Nothing is tried for so long where there was no room: else orders would find none, and who reads the queue no end."""


class ParkingRoom:
    """Keeps a filler in a parking queue while anything is being parked; of one stay there, on the member's loop."""

    def __init__(self, parking: QueueName, session: Messenger, settle: Callable[[Iterable[DeliveryId]], None]) -> None:
        """`settle` accepts deliveries of the parking queue, without waiting for the ack timer."""
        self._parking = parking
        self._session = session
        self._settle = settle
        self._parking_count = 0
        self._filler: asyncio.Future[None] | None = None
        """Ends when the broker has it; None again when it is settled, or has failed."""
        self._held: list[DeliveryId] = []
        """Fillers that have come and are not settled, of whoever."""
        self._timer: asyncio.TimerHandle | None = None
        self._refusal: PublishRefused | None = None
        """The last one for want of room."""
        self._refused_until = 0.0
        """On the loop's clock."""

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Within, a filler lies in the queue; raises `PublishRefused` where it has no room, or `PublishFailed`."""
        loop = asyncio.get_running_loop()
        if self._refusal is not None and loop.time() < self._refused_until:
            raise PublishRefused(self._refusal.topic, self._refusal.reason)
        self._stop_timer()
        self._parking_count += 1
        linger_s = LINGER_S
        try:
            if self._filler is None:
                self._filler = self._session.send(encode_entry(RoomKept(KEPT_FOR_ORDERS_BYTES), self._parking))
                self._filler.add_done_callback(self._answered)
            # Shared by all that is being parked, of which one may be cancelled. No bound, as for what is parked.
            await asyncio.shield(self._filler)
            yield
        except PublishRefused as refusal:
            if is_over_quota(refusal):
                self._refusal, self._refused_until, linger_s = refusal, loop.time() + PAUSE_S, 0.0
            raise
        finally:
            self._parking_count -= 1
            if not self._parking_count:
                self._release_in(linger_s)

    def take(self, delivery_id: DeliveryId) -> None:
        """A filler has come; it is settled when nothing is being parked."""
        self._held.append(delivery_id)
        if not self._parking_count and self._timer is None:
            self._release()

    def doubt(self) -> None:
        """Something that was confirmed did not come: a filler that has not come may lie nowhere, and is sent anew."""
        if not self._held:
            self._filler = None

    def end(self) -> None:
        """The parking queue is about to be given up. Where something is on its way there, the next owner settles."""
        self._stop_timer()
        if not self._parking_count:
            self._release()

    def _release_in(self, linger_s: float) -> None:
        if linger_s:
            self._timer = asyncio.get_running_loop().call_later(linger_s, self._release)
        else:
            self._release()

    def _release(self) -> None:
        self._timer = None
        # One that has not come yet still lies there, and may serve again until it comes.
        if self._held:
            self._filler = None
            self._settle(self._held)
            self._held.clear()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _answered(self, filler: "asyncio.Future[None]") -> None:
        # Asked for its error in any case: all who waited for it may have been cancelled.
        has_failed = filler.cancelled() or filler.exception() is not None
        if has_failed and self._filler is filler:
            self._filler = None


def is_over_quota(error: TransportError) -> bool:
    """Whether a queue has no room for what was published."""
    return isinstance(error, PublishRefused) and "over quota" in error.reason.lower()


def with_remedy(error: TransportError) -> TransportError:
    """The same with what to raise and where, if a parking queue has no room; any other error as it is."""
    if not isinstance(error, PublishRefused) or not is_over_quota(error):
        return error
    remedy = f"raise maxMsgSpoolUsage of queue {error.topic}, or have some of it replayed or dropped"
    return PublishRefused(error.topic, f"{error.reason}: {remedy}")
