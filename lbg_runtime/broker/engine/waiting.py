"""A message in a queue, and the order in which those that wait go out."""

from collections import deque
from dataclasses import dataclass
from enum import Enum
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from lbg_runtime.broker.engine.effects import FlowId, Published
from lbg_runtime.model.ids import DeliveryId

if TYPE_CHECKING:
    from lbg_runtime.broker.engine.lines.parts import Part

NO_DELIVERY = DeliveryId(0)


class MessageState(Enum):
    WAITING = "waiting"
    UNACKED = "unacked"
    GONE = "gone"


# Looked up once: before Python 3.12, accessing an enum member costs as much as calling a function.
_WAITING, _UNACKED, _GONE = MessageState.WAITING, MessageState.UNACKED, MessageState.GONE


@dataclass(slots=True, eq=False)
class SpooledMessage:
    """One message in one queue. The spool changes `state`, its order `is_listed`, and the queue the rest."""

    sequence: int
    """Place in the queue, kept through redeliveries."""
    message: Published
    state: MessageState = _WAITING
    is_listed: bool = True
    """Whether the spool's order holds an entry for it, valid or stale."""
    delivery_id: DeliveryId = NO_DELIVERY
    """Id of its latest delivery to a consumer, 0 before the first. Earlier deliveries have no effect."""
    flow: FlowId | None = None
    """The consumer flow of that delivery, bound or not."""
    delivery_count: int = 0
    """How often it was sent to a consumer."""
    is_overdue: bool = False
    """Whether it expired while a consumer held it."""
    rank: int = 0
    """Lower ranks go first if the queue ranks messages; 0 for all if it does not."""
    part: "Part | None" = None
    """The part that it belongs to, if the queue has parts."""
    first_property: str | None = None
    """As in `Deliver`, for its latest delivery."""

    @property
    def is_waiting(self) -> bool:
        """Whether it can be handed out."""
        return self.state is _WAITING

    @property
    def is_gone(self) -> bool:
        """Whether it has left the queue."""
        return self.state is _GONE


class Waiting:
    """Lists the waiting messages of a queue, or of one part of it, in the order in which they go out.

    Messages never handed out are in order of arrival, returned ones in a heap. A returned message was handed out before
    everything that is still fresh, so the heap always goes first; where messages are ranked, all of them are in it. A
    message that stops waiting while listed leaves a stale entry, which is skipped when it comes up.
    """

    __slots__ = ("_fresh", "_returned")

    def __init__(self) -> None:
        self._fresh: deque[SpooledMessage] = deque()
        self._returned: list[tuple[int, SpooledMessage]] = []

    @property
    def first(self) -> SpooledMessage | None:
        while self._returned or self._fresh:
            message = self._returned[0][1] if self._returned else self._fresh[0]
            if message.state is _WAITING:
                return message
            self.unlist_first()
        return None

    def unlist_first(self) -> None:
        """Remove the first entry, which must exist."""
        message = heappop(self._returned)[1] if self._returned else self._fresh.popleft()
        message.is_listed = False

    def take(self, count: int) -> list[SpooledMessage]:
        """Hand out the first messages that still wait; there must be that many."""
        fresh, returned, taken = self._fresh, self._returned, []
        while count:
            message = heappop(returned)[1] if returned else fresh.popleft()
            message.is_listed = False
            if message.state is _WAITING:
                message.state = _UNACKED
                taken.append(message)
                count -= 1
        return taken

    def append(self, message: SpooledMessage) -> None:
        """List a message that has just come."""
        self._fresh.append(message)

    def insert(self, message: SpooledMessage) -> None:
        """List a message in its place, which may be before others."""
        message.is_listed = True
        heappush(self._returned, (message.rank << 48 | message.sequence, message))

    def clear(self) -> None:
        """List nothing."""
        self._fresh.clear()
        self._returned.clear()

    def compact(self, depth: int) -> None:
        """Drop the entries of gone messages, once they outnumber the others; `depth` counts what is not gone.

        Without this, they would keep the content of removed messages alive in a queue that nobody reads.
        """
        if len(self._fresh) + len(self._returned) > 2 * depth + 64:
            self._fresh = deque(message for message in self._fresh if message.state is not _GONE)
            self._returned = [entry for entry in self._returned if entry[1].state is not _GONE]
            heapify(self._returned)
