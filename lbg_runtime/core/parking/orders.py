"""What the ledger of a parking queue has its owner do; `ParkingStay` carries it out."""

from dataclasses import dataclass

from lbg_runtime.core.lanes import LaneKey
from lbg_runtime.core.parking.records import DropAsked
from lbg_runtime.model.ids import DeliveryId
from lbg_runtime.model.message import Message


@dataclass(frozen=True, slots=True)
class SettleParked:
    """Settle this delivery of the parking queue as accepted."""

    delivery_id: DeliveryId


@dataclass(frozen=True, slots=True)
class ParkedSeen:
    """What this owner has sent under this number is in the queue, and counts."""

    number: int


@dataclass(frozen=True, slots=True)
class Replay:
    """Handle a parked message; answered by `replayed`, `replay_failed` or `replay_returned`."""

    lane: LaneKey
    delivery_id: DeliveryId
    original: Message


@dataclass(frozen=True, slots=True)
class PublishFence:
    """Publish the fence of the ledger's owner, which is another one from now on; its arrival is the answer."""


@dataclass(frozen=True, slots=True)
class ParkingOpened:
    """Everything that was in the queue is known, and this owner may park; what it sent under an earlier fence and has
    not seen does not count."""


@dataclass(frozen=True, slots=True)
class PublishDrop:
    """Publish this order: its message was sent more than once and is gone, and another copy may be on its way, which
    the next owner would take for parked."""

    asked: DropAsked


LedgerOrder = SettleParked | ParkedSeen | Replay | PublishFence | ParkingOpened | PublishDrop
