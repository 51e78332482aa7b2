"""What a `ParkedQueue` and its stays get from the rest of their member."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from lbg_runtime.model.ids import Epoch, MemberId, QueueName
from lbg_runtime.model.message import Delivery
from lbg_runtime.runtime.runners.handling import Handling
from lbg_runtime.runtime.session import Session


@dataclass(frozen=True, slots=True)
class ParkingPorts:
    """One per queue that has a parking queue; all functions are called on the loop."""

    queue: QueueName
    """The queue whose messages are parked."""
    session: Session
    member: MemberId
    dispatch: Callable[[Delivery], object]
    """Handle a parked message; its end is reported to `ParkedQueue.finished`."""
    return_unstarted: Callable[[QueueName, Epoch, bool], None]
    """As `Dispatcher.return_unstarted`; the last argument is `keeps_moved`."""
    flush: Callable[[], "asyncio.Future[None]"]
    """Returns a future that is done when all messages of the queue that were handled by now are settled, and the
    settlements are sent."""
    lost: Callable[[Epoch], None]
    """The parking queue is lost: give up the flow of this epoch."""
    replayed: Callable[[Handling, bool], None]
    """A parked message was handled; called before it is settled, with whether it can be settled."""
    ended: Callable[[Handling], None]
    """A replay has ended, in whatever way; called after everything else."""
    is_restriping: Callable[[], bool]
    patience_s: float
    """How long to wait for running replays when the queue is given up."""
