"""One delivery on its way through the dispatcher, and what is known of it when it has ended."""

from dataclasses import dataclass

from lbg_runtime.core.lanes import LaneKey
from lbg_runtime.model.ids import DeliveryId, Epoch, QueueName
from lbg_runtime.model.message import Delivery, Message
from lbg_runtime.model.outcome import Outcome

HandlingId = tuple[QueueName, Epoch, DeliveryId]


@dataclass(slots=True)
class Handling:
    """Made when a delivery is dispatched, reported once when it has left the lanes; the dispatcher alone changes it."""

    handling_id: HandlingId
    delivery: Delivery
    message: Message
    """As the handler gets it: that of the delivery, and what only the member knows of it."""
    lane: LaneKey
    key: str | None
    shard: int | None
    topic: str
    """The original one; the full one where the message is none of the group's."""
    attempts: int = 0
    """Times that its handler was started; 0 for one that was returned unhandled."""
    local_seq: int = 0
    """Total order of first starts in this life of the member, from 1."""
    start_mono_ns: int = 0
    done_mono_ns: int = 0
    done_at_us: int = 0
    """Wall clock."""
    outcome: Outcome | None = None
    """None until it has ended, and where it ended without one (L7)."""
