"""What is parked in a test's group, read from its parking queues without a member noticing."""

from lbg_runtime.core.parking.records import ParkedMessage, parking_queue
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.ids import QueueName
from lbg_runtime.runtime.parking.parked_queue import name_of_key
from lbg_runtime.runtime.parking.view import lanes_in
from lbg_runtime.testing.group_broker import GroupBroker


def parking_queues(shape: GroupShape) -> list[QueueName]:
    """The names of the group's parking queues, whether they exist or not."""
    return [parking_queue(shape.name, index) for index in range(shape.queue_count)]


def parked_by_queue(broker: GroupBroker, shape: GroupShape, key: str | None) -> dict[QueueName, list[ParkedMessage]]:
    """What is parked of all keys or of this one, in the order of its replay; only queues that have some of it."""
    name = None if key is None else name_of_key(key)
    found: dict[QueueName, list[ParkedMessage]] = {}
    for queue in parking_queues(shape):
        lanes = lanes_in(queue, broker.left_on(queue))
        held = [each for lane in lanes if name in (None, lane.lane) for each in lane.messages]
        if held:
            found[queue] = held
    return found
