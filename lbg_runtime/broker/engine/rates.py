"""How many messages a queue takes and sends in a second."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lbg_runtime.broker.engine.effects import Published
from lbg_runtime.broker.engine.surroundings import Surroundings
from lbg_runtime.broker.engine.waiting import SpooledMessage

AVERAGE_S = 60
"""The time over which an average is made."""


class Traffic(NamedTuple):
    """Messages, and the bytes of them."""

    received_count: int = 0
    received_bytes: int = 0
    sent_count: int = 0
    sent_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Rates:
    """What a queue took and sent each second."""

    current: Traffic
    """In the second before this one."""
    average: Traffic
    """Of the minute before this second, rounded."""


class Meter:
    """Part of one queue, called by it: counts from the moment when the queue came, or came back from the store.

    It goes by Unix time, and by the time at which a message came rather than by a clock, which would have to be read
    for each message. If the clock is set back, it begins anew.
    """

    def __init__(self, surroundings: Surroundings) -> None:
        self._surroundings = surroundings
        self._second = 0
        self._received_count = 0
        self._received_bytes = 0
        self._sent_count = 0
        self._sent_bytes = 0
        self._begins: deque[tuple[int, Traffic]] = deque()
        """Seconds in which something was counted, at most those of a minute, and what had been counted before each."""

    def received(self, message: Published) -> None:
        """Count a message that the queue took."""
        came_s = message.spooled_at_s
        second = int(self._surroundings.wall_s()) if came_s is None else came_s
        # Messages of a transaction came earlier than its commit, and count now.
        if second > self._second:
            self._begin(second)
        self._received_count += 1
        self._received_bytes += message.size_bytes

    def sent(self, messages: Sequence[SpooledMessage]) -> None:
        """Count messages that went to a consumer, for the first time or again."""
        second = int(self._surroundings.wall_s())
        if second > self._second:
            self._begin(second)
        self._sent_count += len(messages)
        self._sent_bytes += sum(each.message.size_bytes for each in messages)

    def rates(self) -> Rates:
        """The rates now; only whole seconds count."""
        now = int(self._surroundings.wall_s())
        if now < self._second:
            self._second = 0
            self._begins.clear()
        until = self._before(now)
        second, minute = self._before(now - 1), self._before(now - AVERAGE_S)
        return Rates(
            Traffic(*(end - begin for end, begin in zip(until, second, strict=True))),
            Traffic(*(round((end - begin) / AVERAGE_S) for end, begin in zip(until, minute, strict=True))),
        )

    @property
    def _total(self) -> Traffic:
        return Traffic(self._received_count, self._received_bytes, self._sent_count, self._sent_bytes)

    def _begin(self, second: int) -> None:
        self._second = second
        self._begins.append((second, self._total))
        while self._begins[0][0] < second - AVERAGE_S:
            self._begins.popleft()

    def _before(self, second: int) -> Traffic:
        """What had been counted when a second began."""
        return next((total for begun, total in self._begins if begun >= second), self._total)
