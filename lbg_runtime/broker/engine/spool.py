"""The messages of one queue: which wait, which are out with a client, and in what order they go out."""

from collections import deque
from dataclasses import dataclass
from enum import Enum
from heapq import heapify, heappop, heappush

from lbg_runtime.broker.engine.effects import FlowId, Published
from lbg_runtime.model.errors import InvariantViolated
from lbg_runtime.model.ids import DeliveryId

NO_DELIVERY = DeliveryId(0)


class MessageState(Enum):
    """Where a spooled message is."""

    WAITING = "waiting"
    UNACKED = "unacked"
    GONE = "gone"


# Looked up once: until Python 3.12 it takes as long to get at the member of an enumeration as to call a function.
_WAITING, _UNACKED, _GONE = MessageState.WAITING, MessageState.UNACKED, MessageState.GONE


@dataclass(slots=True, eq=False)
class SpooledMessage:
    """One message in one queue. The spool changes `state` and `is_listed`, the queue the rest."""

    sequence: int
    """Place in the queue, kept through redeliveries."""
    message: Published
    state: MessageState = _WAITING
    is_listed: bool = True
    """Whether the spool's order holds an entry for it, valid or stale."""
    delivery_id: DeliveryId = NO_DELIVERY
    """Id of its latest delivery to a consumer, 0 before the first. Earlier deliveries count for nothing."""
    flow: FlowId | None = None
    """The consumer flow of that delivery, bound or not."""

    @property
    def is_gone(self) -> bool:
        """Whether it has been settled for good."""
        return self.state is _GONE


class Spool:
    """Keeps every message from `add` to `remove`, and hands the waiting ones out by sequence. Called by its queue only.

    Two lists make the order: messages never handed out, in order of arrival, and returned ones in a heap. A returned
    message was handed out before everything that is still fresh, so the heap always goes first. A message that
    stops waiting while listed leaves a stale entry, which is skipped when it comes up.
    """

    def __init__(self) -> None:
        self.spooled_bytes = 0
        self.unacked_count = 0
        self.last_sequence = 0
        self._messages: dict[int, SpooledMessage] = {}
        self._fresh: deque[SpooledMessage] = deque()
        self._returned: list[tuple[int, SpooledMessage]] = []

    @property
    def depth(self) -> int:
        """Messages spooled, unacknowledged ones included."""
        return len(self._messages)

    @property
    def first_sequence(self) -> int:
        """Place of the first spooled message; of the next one to come where the spool is empty."""
        return next(iter(self._messages), self.last_sequence + 1)

    @property
    def waiting_count(self) -> int:
        """Messages that could be handed out now."""
        return len(self._messages) - self.unacked_count

    def add(self, message: Published) -> None:
        """Append a message to the queue."""
        self.last_sequence += 1
        spooled = SpooledMessage(self.last_sequence, message)
        self._messages[self.last_sequence] = spooled
        self._fresh.append(spooled)
        self.spooled_bytes += message.size_bytes

    def take_next(self) -> SpooledMessage:
        """Hand out the first waiting message; there must be one."""
        while self._returned or self._fresh:
            message = heappop(self._returned)[1] if self._returned else self._fresh.popleft()
            message.is_listed = False
            if message.state is _WAITING:
                message.state = _UNACKED
                self.unacked_count += 1
                return message
        raise InvariantViolated("no message waits in the spool")

    def hold(self, message: SpooledMessage) -> None:
        """Count a waiting message as handed out although it was not just sent: its client has it already."""
        if message.state is not _WAITING:
            raise InvariantViolated(f"message {message.sequence} is {message.state.value}, not waiting")
        message.state = _UNACKED
        self.unacked_count += 1

    def put_back(self, message: SpooledMessage) -> None:
        """Let a handed-out message wait again in its old place; nothing if it is gone or waits already."""
        if message.state is not _UNACKED:
            return
        message.state = _WAITING
        self.unacked_count -= 1
        # An entry left from before `hold` is right again: the place has not changed.
        if not message.is_listed:
            message.is_listed = True
            heappush(self._returned, (message.sequence, message))

    def remove(self, message: SpooledMessage) -> bool:
        """Remove a message for good, wherever it is; False if it is gone already."""
        if message.state is _GONE:
            return False
        if message.state is _UNACKED:
            self.unacked_count -= 1
        message.state = _GONE
        del self._messages[message.sequence]
        self.spooled_bytes -= message.message.size_bytes
        if message.is_listed:
            self._compact()
        return True

    def next_from(self, sequence: int) -> SpooledMessage | None:
        """The first message at or behind a place, waiting or not.

        Looks at every place from there on once, so a browser that walks the queue pays one look per message.
        """
        for place in range(sequence, self.last_sequence + 1):
            message = self._messages.get(place)
            if message is not None:
                return message
        return None

    def messages(self) -> tuple[SpooledMessage, ...]:
        """Every spooled message, waiting or not, by sequence."""
        return tuple(self._messages.values())

    def _compact(self) -> None:
        # Only removal of waiting messages (a browser's, a remembered flow's) gets here; without it their entries
        # would keep the content of removed messages alive in a queue that nobody reads.
        if len(self._fresh) + len(self._returned) <= 2 * self.depth + 64:
            return
        self._fresh = deque(m for m in self._fresh if m.state is not _GONE)
        self._returned = [entry for entry in self._returned if not entry[1].is_gone]
        heapify(self._returned)
