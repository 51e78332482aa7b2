"""How a delivery ends, and the order to tell the broker so."""

from dataclasses import dataclass
from enum import Enum

from lbg_runtime.model.ids import DeliveryId, Epoch, QueueName


class Outcome(Enum):
    """What the broker is told about a delivery. FAILED is never used in key order (law L6)."""

    ACCEPTED = "accepted"
    FAILED = "failed"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class Settlement:
    """The end of one delivery. Made only by the dispatcher, sent only by the flow runner, and only in its own epoch."""

    queue: QueueName
    epoch: Epoch
    delivery_id: DeliveryId
    outcome: Outcome
