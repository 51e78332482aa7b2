"""What a member gives to its parking queues."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from lbg_runtime.model.ids import Epoch, MemberId, QueueName
from lbg_runtime.model.message import Delivery
from lbg_runtime.runtime.runners.handling import Handling
from lbg_runtime.runtime.session import Session


@dataclass(frozen=True, slots=True)
class ParkingPorts:
    """What a parking queue needs from the rest of its member."""

    queue: QueueName
    """Whose messages are parked."""
    session: Session
    member: MemberId
    dispatch: Callable[[Delivery], object]
    """Handle a parked message; its end is reported to `ParkedQueue.finished`."""
    return_unstarted: Callable[[QueueName, Epoch, bool], None]
    """The dispatcher's, with whether it keeps what may have been moved."""
    flush: Callable[[], "asyncio.Future[None]"]
    """Done when all messages of the queue handled until now are settled, and the settlements are on their way."""
    lost: Callable[[Epoch], None]
    """The parking queue is lost: the flow of this epoch must be given up."""
    replayed: Callable[[Handling, bool], None]
    """Called when a parked message was handled, before it is settled, with whether it can be."""
    ended: Callable[[Handling], None]
    """Called when a replay has ended, in whatever way, after everything else."""
    is_restriping: Callable[[], bool]
    patience_s: float
    """How long to wait for running replays when the queue is given up."""
