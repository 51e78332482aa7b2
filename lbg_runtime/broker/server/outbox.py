"""What waits to be written to one client, in order."""

from collections import deque
from dataclasses import dataclass

from lbg_runtime.broker.engine.effects import Deliver, DeliverDirect, Published
from lbg_runtime.smf.contents import with_property
from lbg_runtime.smf.message import Relay

WRITE_BYTES = 256 * 1024
"""About how much one write takes."""

MAX_DIRECT_BYTES = 8 * 1024 * 1024
"""Direct messages that may wait for a slow reader; the ones above are lost and the reader is told."""


@dataclass(frozen=True, slots=True)
class _Direct:
    message: Published
    discarded: bool
    """Messages before it were lost."""


class Outbox:
    """Queues answers and deliveries of one connection; deliveries become bytes only when they are taken.

    A delivery from a queue costs no memory of its own while it waits: its bytes are the spool's, and the window of
    its flow bounds how many there can be. Direct messages have no window, so they are bounded here.
    """

    def __init__(self) -> None:
        self._entries: deque[bytes | Deliver | _Direct] = deque()
        self._held: deque[Deliver | _Direct] | None = None
        self._direct_bytes = 0
        self._discarded = False
        self.answer_bytes = 0
        """Answers that wait; grows when a client asks and does not read."""

    def __bool__(self) -> bool:
        return bool(self._entries)

    def put(self, answer: bytes) -> None:
        """Add a whole frame."""
        self._entries.append(answer)
        self.answer_bytes += len(answer)

    def put_delivery(self, delivery: Deliver) -> None:
        """Add a message of a queue."""
        (self._entries if self._held is None else self._held).append(delivery)

    def put_direct(self, delivery: DeliverDirect) -> None:
        """Add a direct message, or lose it when too many wait."""
        if self._direct_bytes + delivery.message.size_bytes > MAX_DIRECT_BYTES:
            self._discarded = True
            return
        direct = _Direct(delivery.message, self._discarded)
        (self._entries if self._held is None else self._held).append(direct)
        self._discarded = False
        self._direct_bytes += delivery.message.size_bytes

    def hold_messages(self) -> None:
        """Keep messages back from now on; answers go on. Ordered by a fault switch."""
        if self._held is None:
            self._held = deque()

    def release_messages(self) -> None:
        """Let go of them, in their order."""
        if self._held is not None:
            self._entries.extend(self._held)
            self._held = None

    def take(self) -> list[bytes]:
        """Pieces of about `WRITE_BYTES`, at least one frame if any waits, to be joined into one write."""
        pieces: list[bytes] = []
        size = 0
        entries = self._entries
        while entries and size < WRITE_BYTES:
            entry = entries.popleft()
            if isinstance(entry, bytes):
                pieces.append(entry)
                size += len(entry)
                self.answer_bytes -= len(entry)
                continue
            relay = _relay_of(entry.message)
            if isinstance(entry, Deliver):
                if entry.first_property is not None:
                    relay = with_property(relay, entry.first_property, value=True)
                prefix = relay.delivery_prefix(
                    entry.delivery_id, entry.previous_id, entry.flow, redelivered=entry.redelivered
                )
            else:
                prefix = relay.direct_prefix(discarded=entry.discarded)
                self._direct_bytes -= entry.message.size_bytes
            pieces += (prefix, relay.carried, relay.body)
            size += relay.size_bytes
        return pieces


def _relay_of(message: Published) -> Relay:
    relay = message.content
    if not isinstance(relay, Relay):
        raise TypeError(f"a message of this broker holds a relay, not {type(relay).__name__}")
    return relay
