"""What one VPN's replay log keeps: messages in the order in which they came, the oldest given up for lack of room."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from lbg_runtime.broker.engine.effects import Published
from lbg_runtime.model.errors import BrokerRefusal

NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class FromBeginning:
    """Replay everything that is in the log."""


@dataclass(frozen=True, slots=True)
class FromTime:
    """Replay what came at this time or later."""

    at_ns: int
    """Unix time."""


@dataclass(frozen=True, slots=True)
class AfterMessage:
    """Replay what came after a message, named by its replication group message id."""

    message_id: bytes


ReplayStart = FromBeginning | FromTime | AfterMessage


class ReplayLog:
    """Called by a VPN's publishing and by `Replays` only. Holds the messages themselves, which queues share with it."""

    def __init__(self, max_bytes: int, wall_s: Callable[[], float]) -> None:
        """`wall_s`: Unix time."""
        self.max_bytes = max_bytes
        self.size_bytes = 0
        self._wall_s = wall_s
        # Clients name times in whole seconds, and the second in which the log began is not before it.
        self._began_ns = int(wall_s()) * NS_PER_S
        self._latest_ns = self._began_ns
        self._entries: deque[tuple[int, Published]] = deque()

    @property
    def message_count(self) -> int:
        """How many messages there are."""
        return len(self._entries)

    def add(self, message: Published) -> None:
        """Append a message; as many of the oldest go as must, this one among them where it alone is too large."""
        # A clock that is set back must not put a message before those that came before it.
        self._latest_ns = max(self._latest_ns, int(self._wall_s() * NS_PER_S))
        self._entries.append((self._latest_ns, message))
        self.size_bytes += message.size_bytes
        self._trim()

    def resize(self, max_bytes: int) -> None:
        """Keep so much from now on."""
        self.max_bytes = max_bytes
        self._trim()

    def reaches_back_to(self, start: ReplayStart) -> bool:
        """Whether the log was there at that time; what it had then may be gone."""
        return not isinstance(start, FromTime) or start.at_ns >= self._began_ns

    def since(self, start: ReplayStart) -> list[Published]:
        """The messages from there on, in order; where some of them had to go, from the oldest that is there.

        403 `Replay Start Message Unavailable` for any message: this broker gives messages no such id.
        """
        match start:
            case FromBeginning():
                return [message for _, message in self._entries]
            case FromTime(at_ns):
                return [message for came_ns, message in self._entries if came_ns >= at_ns]
            case AfterMessage():
                raise BrokerRefusal(403, "Replay Start Message Unavailable")
            case _:
                assert_never(start)

    def _trim(self) -> None:
        while self.size_bytes > self.max_bytes:
            self.size_bytes -= self._entries.popleft()[1].size_bytes
