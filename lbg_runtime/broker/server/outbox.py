"""What waits to be written to one client: in order, except that direct messages of a higher class go before others."""

from collections import deque
from dataclasses import dataclass
from enum import Enum

from lbg_runtime.broker.engine.effects import DeliverDirect, DeliverRun, Published
from lbg_runtime.model.errors import InvariantViolated
from lbg_runtime.smf.contents import with_property
from lbg_runtime.smf.message import HIGHEST_CLASS, Relay

WRITE_BYTES = 256 * 1024
"""The approximate size of one write."""

MAX_DIRECT_BYTES = 16 * 1024 * 1024
"""The most that direct messages of one class may take while they wait for a slow reader; more are lost, and the reader
is told."""

OVERHEAD_BYTES = 512
"""What a waiting direct message takes besides its bytes."""


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
        self._entries: deque[bytes | DeliverRun | _Slot] = deque()
        self._classes: tuple[deque[_Direct], ...] = tuple(deque() for _ in range(HIGHEST_CLASS + 1))
        """Direct messages that have a place in the entries, by class of service."""
        self._held: deque[DeliverRun | _Direct] | None = None
        self._direct_bytes = [0] * (HIGHEST_CLASS + 1)
        """What the direct messages of each class take, held ones included."""
        self._discarded = False
        self.answer_bytes = 0
        """Bytes of waiting answers; grows when a client asks and does not read."""
        self.waiting_count = 0
        """The number of waiting answers and messages from queues."""

    def __bool__(self) -> bool:
        return bool(self._entries)

    def put(self, answer: bytes) -> None:
        """Add a whole frame."""
        self._entries.append(answer)
        self.waiting_count += 1
        self.answer_bytes += len(answer)

    def put_deliveries(self, run: DeliverRun) -> None:
        """Add messages from a queue."""
        if self._held is None:
            self._entries.append(run)
            self.waiting_count += len(run.messages)
        else:
            self._held.append(run)

    def put_direct(self, delivery: DeliverDirect) -> None:
        """Add a direct message, or lose it if too many wait."""
        message = delivery.message
        class_of_service = _relay_of(message).class_of_service
        taken_bytes = self._direct_bytes[class_of_service] + message.size_bytes + OVERHEAD_BYTES
        if taken_bytes > MAX_DIRECT_BYTES:
            self._discarded = True
            return
        direct = _Direct(message, class_of_service, self._discarded)
        self._discarded = False
        self._direct_bytes[class_of_service] = taken_bytes
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
                    self.put_deliveries(entry)

    def take(self) -> list[bytes]:
        """Pieces of about `WRITE_BYTES`, at least one frame if any waits, to be joined into one write."""
        pieces: list[bytes] = []
        size = 0
        entries = self._entries
        while entries and size < WRITE_BYTES:
            entry = entries.popleft()
            if isinstance(entry, DeliverRun):
                size += self._take_deliveries(entry, WRITE_BYTES - size, pieces)
            elif isinstance(entry, bytes):
                pieces.append(entry)
                size += len(entry)
                self.waiting_count -= 1
                self.answer_bytes -= len(entry)
            else:
                direct = self._next_direct()
                message = direct.message
                relay = _relay_of(message)
                self._direct_bytes[direct.class_of_service] -= message.size_bytes + OVERHEAD_BYTES
                pieces += (relay.direct_prefix(discarded=direct.discarded), relay.rest)
                size += message.size_bytes
        return pieces

    def _take_deliveries(self, run: DeliverRun, room_bytes: int, pieces: list[bytes]) -> int:
        """Take messages of a run until there is no more room; what is left of it comes next."""
        flow, redelivered, first_property = run.flow, run.redelivered, run.first_property
        previous_id: int = run.previous_id
        size = taken_count = 0
        for delivery_id, message in enumerate(run.messages, run.first_id):
            relay = message.content
            if not isinstance(relay, Relay):
                raise _foreign(relay)
            if first_property is not None:
                relay = with_property(relay, first_property, value=True)
            pieces.append(relay.delivery_prefix(delivery_id, previous_id, flow, redelivered, message.number))
            pieces.append(relay.rest)
            previous_id = delivery_id
            size += message.size_bytes
            taken_count += 1
            if size >= room_bytes:
                break
        if taken_count < len(run.messages):
            self._entries.appendleft(run.after(taken_count))
        self.waiting_count -= taken_count
        return size

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
        raise _foreign(relay)
    return relay


def _foreign(content: object) -> TypeError:
    return TypeError(f"a message of this broker holds a relay, not {type(content).__name__}")
