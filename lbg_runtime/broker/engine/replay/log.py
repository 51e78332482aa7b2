"""The replay log of one VPN: messages in order of arrival, the oldest given up when room runs out."""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import assert_never

from lbg_runtime.broker.engine.changes import Changes, MessageLogged, MessageUnlogged, ReplayLogKept
from lbg_runtime.broker.engine.effects import Published
from lbg_runtime.broker.engine.settings import ReplayLogSettings
from lbg_runtime.model.errors import BrokerRefusal

NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class FromBeginning:
    """Replay everything in the log."""


@dataclass(frozen=True, slots=True)
class FromTime:
    """Replay messages that came at this time or later."""

    at_ns: int
    """Unix time."""


@dataclass(frozen=True, slots=True)
class AfterMessage:
    """Replay messages that came after this one."""

    spooler: int
    """The id of the broker that numbered the message."""
    number: int


ReplayStart = FromBeginning | FromTime | AfterMessage


# Not frozen, which would double the cost of making one: there is one for every message.
@dataclass(slots=True)
class LoggedMessage:
    """A message in the log. Never changed."""

    came_ns: int
    """Unix time."""
    message: Published


class ReplayLog:
    """Called only by a VPN's publishing and by `Replays`. Holds the messages themselves, shared with queues."""

    def __init__(
        self,
        vpn: str,
        settings: ReplayLogSettings,
        wall_s: Callable[[], float],
        changes: Changes | None = None,
        began_ns: int | None = None,
        first: int = 0,
    ) -> None:
        """`wall_s`: Unix time. `changes` takes note of all that is to outlive the broker. `began_ns`: when an earlier
        life of the broker made the log; None if it is new. No message below `first` was or will be in it."""
        self._vpn = vpn
        self.settings = settings
        self.size_bytes = 0
        self._wall_s = wall_s
        self._changes = changes
        # Clients name times in whole seconds, and the second in which the log began must not count as before it.
        self.began_ns = int(wall_s()) * NS_PER_S if began_ns is None else began_ns
        self._first = first
        self._latest_ns = self.began_ns
        self._entries: deque[LoggedMessage] = deque()

    @property
    def message_count(self) -> int:
        """How many messages it holds."""
        return len(self._entries)

    @property
    def oldest(self) -> LoggedMessage | None:
        """The message that will be given up next; None if there is none."""
        return self._entries[0] if self._entries else None

    def entries(self, behind: int = 0) -> Iterator[LoggedMessage]:
        """The entries with greater numbers, in order; nothing may change during the iteration."""
        first = bisect_right(self._entries, behind, key=lambda entry: entry.message.number)
        return islice(self._entries, first, None)

    def add(self, message: Published) -> None:
        """Append a numbered message, giving up as many of the oldest as necessary, even this one if it alone is too
        large. No effect if the log accepts none."""
        if not self.settings.ingress_enabled:
            return
        # A clock that is set back must not place a message before earlier ones.
        self._latest_ns = max(self._latest_ns, int(self._wall_s() * NS_PER_S))
        self.restore(self._latest_ns, message)
        if self._changes is not None:
            self._changes.note(MessageLogged(self._vpn, self._latest_ns, message))
        self._trim()

    def restore(self, came_ns: int, message: Published) -> None:
        """Append a message that was in the log in an earlier life of the broker."""
        self._latest_ns = came_ns
        self._entries.append(LoggedMessage(came_ns, message))
        self.size_bytes += message.size_bytes

    def change(self, settings: ReplayLogSettings) -> None:
        """Use these settings from now on."""
        self.settings = settings
        if self._changes is not None:
            self._changes.note(ReplayLogKept(self._vpn, settings, self.began_ns, self._first))
        self._trim()

    def give_up_oldest(self) -> None:
        """Give up the oldest message; there must be one."""
        message = self._entries.popleft().message
        self.size_bytes -= message.size_bytes
        if self._changes is not None:
            self._changes.note(MessageUnlogged(self._vpn, message.number))

    def clear(self) -> None:
        """Give up all messages."""
        while self._entries:
            self.give_up_oldest()

    def reaches_back_to(self, start: ReplayStart) -> bool:
        """Whether the log existed at that time; what it held then may be gone."""
        return not isinstance(start, FromTime) or start.at_ns >= self.began_ns

    def since(self, start: ReplayStart, spooler: int = 0) -> list[Published]:
        """The messages from there on, in order; if some of them are gone, from the oldest that remains.

        403 `Replay Start Message Unavailable` for a message that is not in the log; `spooler` is this broker's own id.
        """
        match start:
            case FromBeginning():
                return [entry.message for entry in self._entries]
            case FromTime(at_ns):
                return [entry.message for entry in self._entries if entry.came_ns >= at_ns]
            case AfterMessage(of, number):
                messages = [entry.message for entry in self._entries]
                place = bisect_left(messages, number, key=lambda message: message.number)
                if of != spooler or place == len(messages) or messages[place].number != number:
                    raise BrokerRefusal(403, "Replay Start Message Unavailable")
                return messages[place + 1 :]
            case _:
                assert_never(start)

    def _trim(self) -> None:
        while self.size_bytes > self.settings.max_bytes:
            self.give_up_oldest()
