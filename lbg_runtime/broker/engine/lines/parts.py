"""The waiting messages of a queue whose messages belong to parts: partitions, or groups.

Every part has its own order, so that one whose flow takes nothing now does not hold up the others.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from lbg_runtime.broker.engine.effects import FlowId, Published
from lbg_runtime.model.errors import InvariantViolated

if TYPE_CHECKING:
    from lbg_runtime.broker.engine.spool import SpooledMessage


@dataclass(frozen=True, slots=True)
class PartLost:
    """A flow no longer has a part: what it, or its client after a lost connection, holds of it is no longer its own."""

    part: Hashable
    flow: FlowId
    """It is bound, or gone with its connection."""


class Part:
    """The messages of one part. Changed only by its `Parts`.

    Messages never handed out are in order of arrival; returned ones are in a heap that goes first. A message that stops
    waiting while listed leaves a stale entry, as in the spool.
    """

    __slots__ = ("_fresh", "_returned", "awake_at", "in_flight", "key", "waiting_count")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.waiting_count = 0
        self.in_flight = 0
        """Messages that a client holds."""
        self.awake_at = 0
        """The place in the queue by which `Parts.next_awake` will visit it; 0 if it sleeps."""
        self._fresh: deque[SpooledMessage] = deque()
        self._returned: list[tuple[int, SpooledMessage]] = []

    @property
    def is_empty(self) -> bool:
        """Whether it has no message in the queue."""
        return not (self.waiting_count or self.in_flight)

    @property
    def first(self) -> "SpooledMessage | None":
        """The first waiting message."""
        while self._returned:
            message = self._returned[0][1]
            if message.is_waiting:
                return message
            message.is_listed = False
            heappop(self._returned)
        while self._fresh:
            message = self._fresh[0]
            if message.is_waiting:
                return message
            message.is_listed = False
            self._fresh.popleft()
        return None

    def unlist_first(self) -> None:
        """Remove the entry of `first`, which must exist."""
        message = heappop(self._returned)[1] if self._returned else self._fresh.popleft()
        message.is_listed = False

    def append(self, message: "SpooledMessage") -> None:
        """List a message that has just come."""
        self._fresh.append(message)

    def insert(self, message: "SpooledMessage") -> None:
        """List a message that has come back, in its old place."""
        message.is_listed = True
        heappush(self._returned, (message.sequence, message))

    def compact(self) -> None:
        """Drop the entries of gone messages, once they outnumber the others."""
        if len(self._fresh) + len(self._returned) > 2 * (self.waiting_count + self.in_flight) + 64:
            self._fresh = deque(message for message in self._fresh if not message.is_gone)
            self._returned = [entry for entry in self._returned if not entry[1].is_gone]
            heapify(self._returned)


class Parts:
    """The parts of one queue. Its spool reports what happens to messages; its line asks what could be sent."""

    def __init__(self, part_of: Callable[[Published], Hashable], messages: "Iterable[SpooledMessage]") -> None:
        """`messages`: those already in the queue, by sequence."""
        self._part_of = part_of
        self._parts: dict[Hashable, Part] = {}
        self._awake: list[tuple[int, Part]] = []
        for message in messages:
            part = message.part = self._part(message.message)
            message.is_listed = False
            if message.is_waiting:
                part.waiting_count += 1
                # What waits out its delay comes back, and may belong behind it.
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
        return 0 if part is None else part.waiting_count + part.in_flight

    # -- called by the spool

    def added(self, message: "SpooledMessage") -> None:
        """A message has come, after all others."""
        part = message.part = self._part(message.message)
        part.waiting_count += 1
        part.append(message)
        self.wake(part)

    def handed_out(self, message: "SpooledMessage") -> None:
        """A waiting message was handed to a client."""
        part = _part_of(message)
        part.waiting_count -= 1
        part.in_flight += 1

    def came_back(self, message: "SpooledMessage") -> None:
        """A message that a client held waits again."""
        part = _part_of(message)
        part.in_flight -= 1
        part.waiting_count += 1
        if not message.is_listed:
            part.insert(message)
        self.wake(part)

    def removed(self, message: "SpooledMessage", *, was_waiting: bool) -> None:
        """A message has left permanently."""
        part = _part_of(message)
        if was_waiting:
            part.waiting_count -= 1
            part.compact()
        else:
            part.in_flight -= 1
        if part.is_empty:
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


def _part_of(message: "SpooledMessage") -> Part:
    if message.part is None:
        raise InvariantViolated(f"message {message.sequence} belongs to no part")
    return message.part
