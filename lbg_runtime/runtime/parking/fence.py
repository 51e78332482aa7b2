"""The fence with which a stay at a parking queue begins: published until it comes back.

A confirm does not prove that it is in the queue: brokers confirm even messages that no queue attracts, and a parking
queue can be without its subscription for a while. So it is published again if it does not come. If it comes twice, the
owner that reads the second one settles that.
"""

import asyncio

import structlog

from lbg_runtime.core.parking.ledger import ParkingLedger
from lbg_runtime.core.parking.records import SHOWN_UNSETTLED, OwnerFence, encode_entry
from lbg_runtime.model.errors import TransportError
from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.runtime.clock import DeadlineTimer, now_ms
from lbg_runtime.runtime.parking.room import with_remedy
from lbg_runtime.transport.base import Messenger

_log = structlog.get_logger(__name__)

RETRY_S = 1.0
"""The time between two tries to publish a fence that the broker did not take."""

FENCE_PATIENCE_S = 10.0
"""Each time this passes without the fence, the log says what may be wrong, and the fence is published again."""


class StayFence:
    """The fence of one stay, which calls it on the member's loop."""

    def __init__(
        self, queue: QueueName, parking: QueueName, epoch: Epoch, ledger: ParkingLedger, session: Messenger
    ) -> None:
        """`queue` is the queue whose messages are parked in `parking`."""
        self._queue = queue
        self._parking = parking
        self._epoch = epoch
        self._ledger = ledger
        """Knows whose fence this is, and whether it has come."""
        self._session = session
        self._tasks: asyncio.TaskGroup | None = None
        self._sending: asyncio.Task[None] | None = None
        """The newest publication; None until the parking queue is fed to us, as no fence may be published before."""
        self._error: TransportError | None = None
        """Why the fence could not be published; None again once it was."""
        self.trouble: str | None = None
        """Why the queue still waits for the fence; None unless the fence should have come by now."""
        self._timer = DeadlineTimer(self._has_not_come)

    def await_it(self) -> None:
        """From now on, report that the fence has not come. Idempotent."""
        self._timer.set(now_ms() + int(FENCE_PATIENCE_S * 1_000))

    def publish(self, tasks: asyncio.TaskGroup) -> None:
        """Publish the fence of the ledger's present owner in a task of the stay. Call it when the queue is fed."""
        if self._sending is not None:
            self._sending.cancel()
        else:
            # The trouble was that the parking queue was not fed to us; now it is.
            self.trouble = None
        self._tasks = tasks
        self._sending = tasks.create_task(self._send())
        self.await_it()

    def end(self) -> None:
        """Stop publishing and reporting; call it before the tasks end. Idempotent."""
        self._timer.cancel()
        if self._sending is not None:
            self._sending.cancel()

    async def _send(self) -> None:
        # Ends when the fence is sent, or is cancelled at the end of the stay: without a fence nothing is handled.
        fence = encode_entry(OwnerFence(self._ledger.owner), self._parking)
        while True:
            try:
                await self._session.send(fence)
                self._error = None
                return
            except TransportError as error:
                if self._error is None:
                    # Logged once; while it lasts, `parking_queue_silent` gives the reason.
                    reason = str(with_remedy(error))
                    _log.warning("parking_fence_not_sent", queue=self._queue, parking=self._parking, reason=reason)
                self._error = with_remedy(error)
                self.trouble = str(self._error)
            await asyncio.sleep(RETRY_S)

    def _has_not_come(self) -> None:
        if self._ledger.is_fenced:
            return
        reason = f"its own fence has not come for {FENCE_PATIENCE_S:g} s"
        expected = (
            f"the queue to be fed to this member alone, to subscribe to {self._parking}, and to show it all that lies "
            f"there: a maxDeliveredUnackedMsgsPerFlow of {SHOWN_UNSETTLED}"
        )
        if self._sending is None:
            reason = f"it has not been fed to this member for {FENCE_PATIENCE_S:g} s: somebody else is bound to it"
            expected = "it to be fed to this member alone: until then no key of the queue is handled"
        elif self._error is not None:
            reason, expected = str(self._error), "its fence to be taken: until then no key of the queue is handled"
        self.trouble = reason
        where = {"queue": self._queue, "parking": self._parking, "epoch": self._epoch}
        _log.error("parking_queue_silent", **where, reason=reason, expected=expected)
        if self._tasks is not None and self._sending is not None and self._sending.done():
            self.publish(self._tasks)
        else:
            self.await_it()
