"""The groups whose queues the brokers of the benches fill; shared with the members.

A module of its own, as a member that also imported the broker would take longer to start.
"""

from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.ids import GroupName

_SHARDS = 96


def shape_of(group: str, queue_count: int = 1) -> GroupShape:
    """The group with this name and this many queues."""
    return GroupShape(GroupName(group), group, max(_SHARDS, queue_count), queue_count)


SHAPE = shape_of("bench")
QUEUE = SHAPE.queue_name(0)
TOPIC = "orders/new"

NUMBER_DIGITS = 8
"""Every payload that is published begins with the number of its message, from 0."""
