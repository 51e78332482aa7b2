"""The outputs of a parking ledger: what the owner of the parking queue is to do. `ParkingStay` carries them out."""

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
    """The message that this owner sent under this number is in the parking queue, and counts."""

    number: int


@dataclass(frozen=True, slots=True)
class Replay:
    """Handle a parked message; answered by `replayed`, `replay_failed` or `replay_returned`."""

    lane: LaneKey
    delivery_id: DeliveryId
    original: Message


@dataclass(frozen=True, slots=True)
class PublishFence:
    """Publish a fence of `ParkingLedger.owner`, which has just changed; answered by the arrival of the fence."""


@dataclass(frozen=True, slots=True)
class ParkingOpened:
    """Everything that was in the queue is known, and this owner may park. What it sent under an earlier fence and has
    not seen come back does not count."""


@dataclass(frozen=True, slots=True)
class PublishDrop:
    """Publish this order. Its message was sent more than once and is gone, and a copy may still be on its way, which
    the next owner would take for a parked message."""

    asked: DropAsked


LedgerOrder = SettleParked | ParkedSeen | Replay | PublishFence | ParkingOpened | PublishDrop
