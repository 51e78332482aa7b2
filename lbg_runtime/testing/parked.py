"""What is parked in a test's group, read without a member noticing, and why messages were set aside."""

from collections.abc import Iterator, Sequence

from lbg_runtime.core.parking.records import ParkedMessage, parking_queue
from lbg_runtime.model.failure import (
    ERROR_ATTEMPTS_PROPERTY,
    ERROR_KEY_PROPERTY,
    ERROR_KEY_SEQUENCE_PROPERTY,
    ERROR_PROPERTY,
)
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.ids import QueueName
from lbg_runtime.model.message import Message
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


def why_aside(parked: Sequence[ParkedMessage], moved: Sequence[Message]) -> Iterator[str]:
    """A line for each message that was parked or moved for itself, and not because it followed another one."""
    for each in parked:
        if each.attempts:
            original = each.original
            yield _line(original.key, original.key_sequence, "is parked", each.attempts, each.error)
    for message in moved:
        told = message.properties
        number, attempts = told.get(ERROR_KEY_SEQUENCE_PROPERTY), told.get(ERROR_ATTEMPTS_PROPERTY)
        yield _line(told.get(ERROR_KEY_PROPERTY), number, "was moved away", attempts, told.get(ERROR_PROPERTY))


def _line(key: object, number: object, what: str, attempts: object, error: object) -> str:
    times = "once" if attempts == 1 else f"{attempts} times"
    return f"{key or '(no key)'} #{number or '?'} {what}: it failed {times}, at last with {error}"
