"""What waits to be written to one client: in order, except that direct messages of a higher class go before others."""

from collections import deque
from dataclasses import dataclass
from enum import Enum

from lbg_runtime.broker.engine.effects import Deliver, DeliverDirect, Published
from lbg_runtime.model.errors import InvariantViolated
from lbg_runtime.smf.contents import with_property
from lbg_runtime.smf.message import HIGHEST_CLASS, Relay

WRITE_BYTES = 256 * 1024
"""The approximate size of one write."""

MAX_DIRECT_BYTES = 8 * 1024 * 1024
"""The most direct messages of one class that may wait for a slow reader; more are lost, and the reader is told."""


@dataclass(frozen=True, slots=True)
class _Direct:
    message: Published
    class_of_service: int
    discarded: bool
    """Messages before it were lost."""


class _Slot(Enum):
    """A place for a direct message: which one leaves from it is decided at that moment."""

    DIRECT = "direct"


class Outbox:
    """Queues answers and deliveries of one connection; deliveries become bytes only when they are taken.

    A waiting delivery from a queue costs little memory of its own: its bytes are the spool's, and the window of its
    flow bounds how many there can be, except for a client that acknowledges what it does not read. Direct messages have
    no window, so they are bounded here, each class of service by itself. Of the waiting ones, the next of the highest
    class takes the first place of any; answers and deliveries keep theirs.
    """

    def __init__(self) -> None:
        self._entries: deque[bytes | Deliver | _Slot] = deque()
        self._classes: tuple[deque[_Direct], ...] = tuple(deque() for _ in range(HIGHEST_CLASS + 1))
        """Direct messages that have a place in the entries, by class of service."""
        self._held: deque[Deliver | _Direct] | None = None
        self._direct_bytes = [0] * (HIGHEST_CLASS + 1)
        """Bytes of the direct messages of each class, held ones included."""
        self._discarded = False
        self.answer_bytes = 0
        """Bytes of waiting answers; grows when a client asks and does not read."""

    def __bool__(self) -> bool:
        return bool(self._entries)

    @property
    def waiting_count(self) -> int:
        """The number of waiting answers and deliveries from queues."""
        return len(self._entries) - sum(map(len, self._classes))

    def put(self, answer: bytes) -> None:
        """Add a whole frame."""
        self._entries.append(answer)
        self.answer_bytes += len(answer)

    def put_delivery(self, delivery: Deliver) -> None:
        """Add a message from a queue."""
        if self._held is None:
            self._entries.append(delivery)
        else:
            self._held.append(delivery)

    def put_direct(self, delivery: DeliverDirect) -> None:
        """Add a direct message, or lose it if too many wait."""
        message = delivery.message
        class_of_service = _relay_of(message).class_of_service
        if self._direct_bytes[class_of_service] + message.size_bytes > MAX_DIRECT_BYTES:
            self._discarded = True
            return
        direct = _Direct(message, class_of_service, self._discarded)
        self._discarded = False
        self._direct_bytes[class_of_service] += message.size_bytes
        if self._held is None:
            self._place(direct)
        else:
            self._held.append(direct)

    def hold_messages(self) -> None:
        """Hold messages back from now on, but not answers. Set by a fault switch."""
        if self._held is None:
            self._held = deque()

    def release_messages(self) -> None:
        """Release the messages held back, in order."""
        if self._held is not None:
            held, self._held = self._held, None
            for entry in held:
                if isinstance(entry, _Direct):
                    self._place(entry)
                else:
                    self._entries.append(entry)

    def take(self) -> list[bytes]:
        """Pieces of about `WRITE_BYTES`, at least one frame if any waits, to be joined into one write."""
        pieces: list[bytes] = []
        size = 0
        entries = self._entries
        while entries and size < WRITE_BYTES:
            entry = entries.popleft()
            if isinstance(entry, Deliver):
                message = entry.message
                relay = _relay_of(message)
                if entry.first_property is not None:
                    relay = with_property(relay, entry.first_property, value=True)
                prefix = relay.delivery_prefix(
                    entry.delivery_id, entry.previous_id, entry.flow, entry.redelivered, message.number
                )
            elif isinstance(entry, bytes):
                pieces.append(entry)
                size += len(entry)
                self.answer_bytes -= len(entry)
                continue
            else:
                direct = self._next_direct()
                message = direct.message
                relay = _relay_of(message)
                prefix = relay.direct_prefix(discarded=direct.discarded)
                self._direct_bytes[direct.class_of_service] -= message.size_bytes
            pieces += (prefix, relay.rest)
            size += message.size_bytes
        return pieces

    def _place(self, direct: _Direct) -> None:
        self._classes[direct.class_of_service].append(direct)
        self._entries.append(_Slot.DIRECT)

    def _next_direct(self) -> _Direct:
        for waiting in reversed(self._classes):
            if waiting:
                return waiting.popleft()
        raise InvariantViolated("a place for a direct message and no direct message")


def _relay_of(message: Published) -> Relay:
    relay = message.content
    if not isinstance(relay, Relay):
        raise TypeError(f"a message of this broker holds a relay, not {type(relay).__name__}")
    return relay
