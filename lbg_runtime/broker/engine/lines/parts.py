"""The waiting messages of a queue whose messages belong to parts: partitions, or groups.

Every part has its own order, so that one whose flow takes nothing now does not hold up the others.
"""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from lbg_runtime.broker.engine.effects import FlowId, Published
from lbg_runtime.broker.engine.waiting import SpooledMessage, Waiting
from lbg_runtime.model.errors import InvariantViolated


@dataclass(frozen=True, slots=True)
class PartLost:
    """A flow no longer has a part: what it, or its client after a lost connection, holds of it is no longer its own."""

    part: Hashable
    flow: FlowId
    """It is bound, or gone with its connection."""


class Part(Waiting):
    """The messages of one part. Changed only by its `Parts`, but for `unlist_first`."""

    __slots__ = ("awake_at", "in_flight", "key", "waiting_count")

    def __init__(self, key: Hashable) -> None:
        super().__init__()
        self.key = key
        self.waiting_count = 0
        self.in_flight = 0
        """Messages that a client holds."""
        self.awake_at = 0
        """The place in the queue by which `Parts.next_awake` will visit it; 0 if it sleeps."""

    @property
    def depth(self) -> int:
        """How many messages it has in the queue."""
        return self.waiting_count + self.in_flight


class Parts:
    """The parts of one queue. Its spool reports what happens to messages; its line asks what could be sent."""

    def __init__(self, part_of: Callable[[Published], Hashable], messages: Iterable[SpooledMessage]) -> None:
        """`messages`: those already in the queue, by sequence."""
        self._part_of = part_of
        self._parts: dict[Hashable, Part] = {}
        self._awake: list[tuple[int, Part]] = []
        for message in messages:
            part = message.part = self._part(message.message)
            message.is_listed, message.rank = False, 0
            if message.is_waiting:
                part.waiting_count += 1
                # A message that waits out its redelivery delay comes back later, and may belong behind this one.
                part.insert(message)
                self.wake(part)
            else:
                part.in_flight += 1

    def in_flight(self, key: Hashable) -> int:
        """How many messages of a part a client holds."""
        part = self._parts.get(key)
        return 0 if part is None else part.in_flight

    def depth(self, key: Hashable) -> int:
        """How many messages of a part are in the queue."""
        part = self._parts.get(key)
        return 0 if part is None else part.depth

    # -- called by the spool

    def added(self, message: SpooledMessage) -> None:
        """A message has come, after all others."""
        part = message.part = self._part(message.message)
        part.waiting_count += 1
        part.append(message)
        self.wake(part)

    def handed_out(self, message: SpooledMessage) -> None:
        """A waiting message was handed to a client."""
        part = _part_of(message)
        part.waiting_count -= 1
        part.in_flight += 1

    def came_back(self, message: SpooledMessage) -> None:
        """A message that a client held waits again."""
        part = _part_of(message)
        part.in_flight -= 1
        part.waiting_count += 1
        if not message.is_listed:
            part.insert(message)
        self.wake(part)

    def removed(self, message: SpooledMessage, *, was_waiting: bool) -> None:
        """A message has left permanently."""
        part = _part_of(message)
        if was_waiting:
            part.waiting_count -= 1
            part.compact(part.depth)
        else:
            part.in_flight -= 1
        if not part.depth:
            self._parts.pop(part.key, None)

    # -- called by the line

    def next_awake(self) -> Part | None:
        """Of the parts woken and not visited since that have waiting messages, the one with the earliest."""
        while self._awake:
            place, part = heappop(self._awake)
            if place == part.awake_at:
                part.awake_at = 0
                if part.waiting_count:
                    return part
        return None

    def wake(self, part: Part) -> None:
        """Look at a part again: its flow may take something now."""
        first = part.first
        if first is None or 0 < part.awake_at <= first.sequence:
            return
        part.awake_at = first.sequence
        heappush(self._awake, (first.sequence, part))
        # Nothing is visited while nothing can be sent, and parts may come and go meanwhile, or wake at one place twice.
        if len(self._awake) > 2 * len(self._parts) + 64:
            self._awake = [(each.awake_at, each) for each in self._parts.values() if each.awake_at]
            heapify(self._awake)

    def wake_all(self) -> None:
        """Look at every part again."""
        for part in self._parts.values():
            self.wake(part)

    def _part(self, message: Published) -> Part:
        key = self._part_of(message)
        part = self._parts.get(key)
        if part is None:
            part = self._parts[key] = Part(key)
        return part


def _part_of(message: SpooledMessage) -> Part:
    if message.part is None:
        raise InvariantViolated(f"message {message.sequence} belongs to no part")
    return message.part
