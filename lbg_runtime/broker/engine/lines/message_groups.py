"""Message groups: a queue that keeps each group of messages with one flow, chosen when its first message is sent.

As in ActiveMQ Artemis. The messages with one group id are a group; a group whose flow leaves is pinned to another flow
at its next message. Messages without an id are in no group and go to all flows in turn.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from zlib import crc32

from lbg_runtime.broker.engine.effects import FlowId, Published
from lbg_runtime.broker.engine.surroundings import Surroundings

AUTOMATIC_GROUP = "#auto"
"""Group id with which a producer asks for a group of its own: all that it publishes with this id belongs together."""


class MessageGroups:
    """Which flow has which group; the table of one queue. Called only by its line."""

    def __init__(self, timeout_ms: int | None) -> None:
        self.timeout_ms = timeout_ms
        self._owners: OrderedDict[Hashable, FlowId] = OrderedDict()
        """By group or bucket, the least recently used first."""
        self._used_ms: dict[Hashable, int] = {}

    @property
    def deadline_ms(self) -> int | None:
        """When the first group expires, unless it is used before."""
        if self.timeout_ms is None or not self._owners:
            return None
        return self._used_ms[next(iter(self._owners))] + self.timeout_ms

    def owner_of(self, group: Hashable) -> FlowId | None:
        """The flow that a group is pinned to."""
        return self._owners.get(group)

    def pinned(self) -> tuple[tuple[Hashable, FlowId], ...]:
        return tuple(self._owners.items())

    def use(self, group: Hashable, flow: FlowId, now_ms: int) -> bool:
        """Pin a group to the flow that its message goes to; return whether it was not pinned to it before."""
        is_new = self._owners.get(group) != flow
        self._owners[group] = flow
        if self.timeout_ms is not None:
            self._owners.move_to_end(group)
            self._used_ms[group] = now_ms
        return is_new

    def unpin(self, group: Hashable) -> None:
        """Let the next message of a group go to any flow; no effect if the group is not pinned."""
        self._owners.pop(group, None)
        self._used_ms.pop(group, None)

    def leave(self, flow: FlowId) -> None:
        """A flow has left: unpin its groups."""
        for group in [group for group, owner in self._owners.items() if owner == flow]:
            self.unpin(group)

    def out_of_use(self, now_ms: int) -> list[Hashable]:
        """Groups with nothing sent for the timeout."""
        found: list[Hashable] = []
        if self.timeout_ms is None:
            return found
        for group in self._owners:
            if self._used_ms[group] + self.timeout_ms > now_ms:
                break
            found.append(group)
        return found


def by_group(buckets: int | None, surroundings: Surroundings) -> Callable[[Published], Hashable]:
    """Tells the group, or bucket of groups, that a message belongs to; None for one that is in no group."""

    def group_of(message: Published) -> Hashable:
        group = surroundings.key_of(message)
        if group is None:
            return None
        if group == AUTOMATIC_GROUP:
            group = f"{AUTOMATIC_GROUP}/{message.publisher}"
        return group if buckets is None else crc32(group.encode()) % buckets

    return group_of
