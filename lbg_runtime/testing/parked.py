"""What is parked in a test's group, read from its parking queues without a member noticing."""

from lbg_runtime.core.parking.ledger import ParkingLedger
from lbg_runtime.core.parking.records import ParkedMessage, ParkingOwner, RoomKept, decode_entry, parking_queue
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.ids import DeliveryId, QueueName
from lbg_runtime.runtime.parking.parked_queue import name_of_key
from lbg_runtime.testing.group_broker import GroupBroker


def parking_queues(shape: GroupShape) -> list[QueueName]:
    """The names of the group's parking queues, whether they exist or not."""
    return [parking_queue(shape.name, index) for index in range(shape.queue_count)]


def parked_by_queue(broker: GroupBroker, shape: GroupShape, key: str | None) -> dict[QueueName, list[ParkedMessage]]:
    """What is parked of all keys or of this one, in the order of its replay; only queues that have some of it."""
    lane = None if key is None else name_of_key(key)
    found: dict[QueueName, list[ParkedMessage]] = {}
    for queue in parking_queues(shape):
        held = [each for each in _parked_on(broker, queue) if lane in (None, each.lane)]
        if held:
            found[queue] = held
    return found


def _parked_on(broker: GroupBroker, queue: QueueName) -> list[ParkedMessage]:
    # As for an owner: not everything that lies there still counts.
    ledger = ParkingLedger(ParkingOwner(0, ""))
    for place, message in enumerate(broker.left_on(queue)):
        entry = decode_entry(message)
        if not isinstance(entry, RoomKept):
            ledger.take(DeliveryId(place), entry)
    return [each for held in ledger.contents().values() for each in held]
