"""Bound flows of one queue: consumers, browsers, and what is remembered of consumers whose connection broke."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from lbg_runtime.broker.engine.changes import QueueJournal
from lbg_runtime.broker.engine.deliveries import Deliveries
from lbg_runtime.broker.engine.effects import ClientId, DeliverRun, FlowId, Published
from lbg_runtime.broker.engine.waiting import NO_DELIVERY, SpooledMessage
from lbg_runtime.model.ids import DeliveryId

LARGEST_ID = DeliveryId((1 << 64) - 1)

Wants = Callable[[Published], bool]
"""Whether a selector matches a message."""


def wants_everything(_: Published) -> bool:
    """The answer for a flow without a selector."""
    return True


class Window:
    """The transport window of one flow: which ids are in transit, and how many more the client takes. Starts closed.

    Only the client's transport acknowledgement moves it; settling does not.
    """

    __slots__ = ("_under_way", "last_sent_id", "received_up_to", "size")

    def __init__(self, received_up_to: DeliveryId, under_way: Iterable[DeliveryId] = ()) -> None:
        self.size = 0
        self.received_up_to = received_up_to
        self.last_sent_id = NO_DELIVERY
        self._under_way = list(under_way)

    @property
    def room(self) -> int:
        """How many more messages may be sent; below 0 if the client made the window smaller than what is in transit."""
        return self.size - len(self._under_way)

    @property
    def used(self) -> int:
        """Messages in transit."""
        return len(self._under_way)

    @property
    def under_way(self) -> tuple[DeliveryId, ...]:
        """Ids that the client may have received but has not acknowledged, in order."""
        return tuple(self._under_way)

    def move(self, received_up_to: DeliveryId, size: int) -> None:
        """The client has received everything up to this id and takes `size` more; an older id changes only the size."""
        self.size = size
        received_count = bisect_right(self._under_way, received_up_to)
        if received_count:
            self.received_up_to = self._under_way[received_count - 1]
            del self._under_way[:received_count]

    def send(self, delivery_ids: Sequence[DeliveryId]) -> DeliveryId:
        """Note that ids, at least one, are in transit; return the id sent before them, 0 if there is none."""
        previous, self.last_sent_id = self.last_sent_id, delivery_ids[-1]
        self._under_way += delivery_ids
        return previous

    def begin_anew(self) -> None:
        """The client has dropped what was in transit and will not acknowledge it: the whole window is free."""
        if self._under_way:
            self.received_up_to = self._under_way[-1]
            self._under_way.clear()
        self.last_sent_id = NO_DELIVERY

    def has_been_received(self, delivery_id: DeliveryId) -> bool:
        """Whether this can be the last id that the client received: the last acknowledged one or one in transit."""
        return delivery_id == self.received_up_to or delivery_id in self._under_way


@dataclass(slots=True, eq=False)
class RememberedFlow:
    """What a client still holds of a flow whose connection broke; lives in the queue until nothing of it is left.

    Its messages wait in the spool and have not been delivered to anyone since; whoever takes one ends the claim on it.
    """

    client_name: str
    window: Window
    deliveries: Deliveries
    is_resumed: bool = False
    """Whether a flow of the same handle is bound again."""


class ConsumerFlow:
    """One consumer in a queue's bind line. Called only by its queue."""

    def __init__(
        self,
        flow: FlowId,
        client: ClientId,
        client_name: str,
        max_unacked: int,
        received_up_to: DeliveryId,
        journal: QueueJournal | None = None,
        wants: Wants = wants_everything,
    ) -> None:
        self.id = flow
        self.client = client
        self.client_name = client_name
        self.window = Window(received_up_to)
        self.unsettled = Deliveries()
        self.remembered_as: FlowId | None = None
        """The handle's previous flow, while that is remembered and its messages wait in the queue."""
        self.max_unacked = max_unacked
        self.partition_group: int | None = None
        """Identifies its share of a partitioned queue, across re-binds."""
        self._journal = journal
        self.wants = wants
        """Whether it takes a message; called only if `is_selective`."""
        self.next_sequence = 0
        """Where it looks next, if any flow of the queue is selective: messages before this that it wants have been sent
        or are held. 0 if it has not looked yet."""
        self.redelivered_count = 0

    @property
    def is_selective(self) -> bool:
        """Whether it takes only some of the messages."""
        return self.wants is not wants_everything

    @property
    def room(self) -> int:
        """How many more messages may be delivered, none if not above 0: as many as the window lets through, with no
        more unacknowledged ones than the queue allows."""
        room = self.window.room
        return min(room, self.max_unacked - len(self.unsettled)) if room > 0 else room

    def deliver(self, delivery_ids: Sequence[DeliveryId], messages: Sequence[SpooledMessage]) -> list[DeliverRun]:
        """Send messages, at least one, under new consecutive ids; they count as unsettled until `unsettled` gives them
        up."""
        flow, kind = self.id, None
        runs: list[DeliverRun] = []
        run: list[Published] = []
        previous_id = self.window.send(delivery_ids)
        self.unsettled.add(delivery_ids, messages)
        for delivery_id, message in zip(delivery_ids, messages, strict=True):
            redelivered, first_property = message.delivery_id != NO_DELIVERY, message.first_property
            if kind != (redelivered, first_property):
                kind, run = (redelivered, first_property), []
                runs.append(DeliverRun(self.client, flow, delivery_id, previous_id, run, redelivered, first_property))
            run.append(message.message)
            message.delivery_id = previous_id = delivery_id
            message.delivery_count += 1
            message.flow = flow
        if self._journal is not None:
            self._journal.delivered(self, messages)
        return runs


class BrowserFlow:
    """Shows every message of a queue once, in order, and takes none. Called only by its queue."""

    def __init__(self, flow: FlowId, client: ClientId, client_name: str, first_sequence: int, wants: Wants) -> None:
        self.id = flow
        self.wants = wants
        """Whether it is shown a message."""
        self.client = client
        self.client_name = client_name
        self.window = Window(NO_DELIVERY)
        self.next_sequence = first_sequence
        self.shown = Deliveries()

    def show(self, delivery_id: DeliveryId, message: SpooledMessage) -> DeliverRun:
        """Send a copy; the client may remove the message by this id."""
        self.next_sequence = message.sequence + 1
        self.shown.add((delivery_id,), (message,))
        redelivered = message.delivery_id != NO_DELIVERY
        previous_id = self.window.send((delivery_id,))
        return DeliverRun(self.client, self.id, delivery_id, previous_id, (message.message,), redelivered)


Flow = ConsumerFlow | BrowserFlow
