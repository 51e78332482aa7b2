"""The changes to a broker's persistent state as data, in order, so that they can be written down.

Replaying the changes of one broker to another (`restoration.py`) brings the second to the state that the first would
have if all its connections broke at once. Temporary queues, clients and counters are not included.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NewType

from lbg_runtime.broker.engine.effects import FlowId, Published
from lbg_runtime.broker.engine.settings import QueueSettings, ReplayLogSettings
from lbg_runtime.model.ids import DeliveryId, QueueName

if TYPE_CHECKING:
    from lbg_runtime.broker.engine.flow import ConsumerFlow, Window
    from lbg_runtime.broker.engine.publisher_flow import PublisherState
    from lbg_runtime.broker.engine.waiting import SpooledMessage

QueueNumber = NewType("QueueNumber", int)
"""One queue from its creation to its deletion; never reused, so a queue that is created again gets a new one."""

NO_FLOW = FlowId(0)


@dataclass(frozen=True, slots=True)
class QueueKept:
    """A queue was created, or its settings changed."""

    queue: QueueNumber
    vpn: str
    name: QueueName
    settings: QueueSettings


@dataclass(frozen=True, slots=True)
class QueueGone:
    """A queue was deleted, with its messages and subscriptions."""

    queue: QueueNumber


@dataclass(frozen=True, slots=True)
class SubscriptionKept:
    """A queue attracts this subscription."""

    queue: QueueNumber
    topic: str


@dataclass(frozen=True, slots=True)
class SubscriptionGone:
    """A queue no longer attracts this subscription."""

    queue: QueueNumber
    topic: str


# The classes from here to `MessageUnlogged` are not frozen, which would double the cost of making one: they come with
# every message.
@dataclass(slots=True)
class MessageKept:
    """A message has come to a queue."""

    queue: QueueNumber
    sequence: int
    message: Published


@dataclass(slots=True)
class MessagesDelivered:
    """Messages were sent to a consumer flow; this replaces what was noted of their earlier deliveries."""

    queue: QueueNumber
    flow: FlowId
    """`NO_FLOW` if the client has given them back."""
    deliveries: Sequence[tuple[int, DeliveryId, int]]
    """For each message its place, the delivery id, and how often it has been delivered by now."""


@dataclass(slots=True)
class MessagesGone:
    """Messages have left a queue permanently."""

    queue: QueueNumber
    sequences: Sequence[int]


@dataclass(slots=True)
class MessageLogged:
    """A message was appended to a VPN's replay log; noted before the changes that put it into queues."""

    vpn: str
    came_ns: int
    """The Unix time by which it is found there."""
    message: Published


@dataclass(slots=True)
class MessageUnlogged:
    """The oldest message of a VPN's replay log, which has this number, has left the log; queues may still have it."""

    vpn: str
    number: int


@dataclass(frozen=True, slots=True)
class ReplayLogKept:
    """A VPN got a replay log, or its settings changed."""

    vpn: str
    settings: ReplayLogSettings
    began_ns: int
    first: int
    """No message with a lower number was ever in it."""


@dataclass(frozen=True, slots=True)
class ReplayLogGone:
    """A VPN no longer has a replay log. The removal of its messages was noted before."""

    vpn: str


@dataclass(frozen=True, slots=True)
class FlowKept:
    """What a client may come back to after its connection broke: a flow, and which ids it can have received last."""

    queue: QueueNumber
    flow: FlowId
    client_name: str
    received_up_to: DeliveryId
    under_way: tuple[DeliveryId, ...]


@dataclass(frozen=True, slots=True)
class FlowGone:
    """Nobody will come back to a flow; the messages that it held wait in its queue."""

    flow: FlowId


@dataclass(frozen=True, slots=True)
class PublisherKept:
    """How far a publisher flow has come."""

    vpn: str
    name: str
    last_judged_id: int
    refused: tuple[tuple[int, int, str], ...]
    """Id, code and text of refusals that may not have reached the publisher."""


@dataclass(frozen=True, slots=True)
class PublisherGone:
    """A publisher flow is forgotten."""

    vpn: str
    name: str


@dataclass(frozen=True, slots=True)
class DeliveryIdsSkipped:
    """No delivery id and no message number up to this one may be given again."""

    up_to: DeliveryId


Change = (
    QueueKept
    | QueueGone
    | SubscriptionKept
    | SubscriptionGone
    | MessageKept
    | MessagesDelivered
    | MessagesGone
    | MessageLogged
    | MessageUnlogged
    | ReplayLogKept
    | ReplayLogGone
    | FlowKept
    | FlowGone
    | PublisherKept
    | PublisherGone
    | DeliveryIdsSkipped
)


class Changes:
    """Gathers the changes to one engine until they are taken. The engine's parts add them, the shell takes them.

    For flows and publisher flows, which change with every message, only the latest state is kept.
    """

    def __init__(self) -> None:
        self._log: list[Change] = []
        self._flows: dict[FlowId, tuple[QueueNumber, ConsumerFlow]] = {}
        self._publishers: dict[PublisherState, str] = {}

    def __bool__(self) -> bool:
        return bool(self._log or self._flows or self._publishers)

    def note(self, change: Change) -> None:
        """Add a change."""
        self._log.append(change)

    def note_flow(self, queue: QueueNumber, flow: "ConsumerFlow") -> None:
        """A flow's window, or what it holds, has changed."""
        self._flows[flow.id] = (queue, flow)

    def note_flow_gone(self, flow: FlowId) -> None:
        """Nobody will come back to a flow."""
        self._flows.pop(flow, None)
        self._log.append(FlowGone(flow))

    def note_publisher(self, vpn: str, state: "PublisherState") -> None:
        """A publisher flow has advanced."""
        self._publishers[state] = vpn

    def note_publisher_gone(self, vpn: str, state: "PublisherState") -> None:
        """A publisher flow is forgotten."""
        self._publishers.pop(state, None)
        self._log.append(PublisherGone(vpn, state.name))

    def take(self) -> list[Change]:
        """All changes since the last call, in an order in which they can be replayed."""
        log, self._log = self._log, []
        log += self._latest()
        self._flows.clear()
        self._publishers.clear()
        return log

    def _latest(self) -> Iterator[Change]:
        for queue, flow in self._flows.values():
            window = flow.window
            yield FlowKept(queue, flow.id, flow.client_name, window.received_up_to, window.under_way)
        for state, vpn in self._publishers.items():
            yield PublisherKept(vpn, state.name, state.last_judged_id, state.refusals)


class QueueJournal:
    """Notes the changes to one queue. Called by the queue and its parts, and where queues are created and deleted."""

    __slots__ = ("_changes", "_name", "_vpn", "queue")

    def __init__(self, queue: QueueNumber, vpn: str, name: QueueName, changes: Changes) -> None:
        self.queue = queue
        self._vpn = vpn
        self._name = name
        self._changes = changes

    def configured(self, settings: QueueSettings) -> None:
        """The queue was created, or its settings changed."""
        self._changes.note(QueueKept(self.queue, self._vpn, self._name, settings))

    def deleted(self) -> None:
        """The queue was deleted."""
        self._changes.note(QueueGone(self.queue))

    def subscribed(self, topic: str) -> None:
        """The queue attracts this subscription."""
        self._changes.note(SubscriptionKept(self.queue, topic))

    def unsubscribed(self, topic: str) -> None:
        """The queue no longer attracts this subscription."""
        self._changes.note(SubscriptionGone(self.queue, topic))

    def kept(self, sequence: int, message: Published) -> None:
        """A message has come."""
        self._changes.note(MessageKept(self.queue, sequence, message))

    def delivered(self, flow: "ConsumerFlow", messages: "Iterable[SpooledMessage]") -> None:
        """Messages count as delivered on this flow, under their current ids."""
        deliveries = [(message.sequence, message.delivery_id, message.delivery_count) for message in messages]
        self._changes.note(MessagesDelivered(self.queue, flow.id, deliveries))
        self._changes.note_flow(self.queue, flow)

    def flow_renamed(self, flow: FlowId, client_name: str, window: "Window") -> None:
        """The client of a flow, present or lost, has another name, under which it will come back."""
        self._changes.note(FlowKept(self.queue, flow, client_name, window.received_up_to, window.under_way))

    def given_back(self, message: "SpooledMessage") -> None:
        """The client that a message was delivered to no longer holds it."""
        delivery = (message.sequence, message.delivery_id, message.delivery_count)
        self._changes.note(MessagesDelivered(self.queue, NO_FLOW, (delivery,)))

    def gone(self, sequences: Sequence[int]) -> None:
        """The messages in these places have left permanently."""
        self._changes.note(MessagesGone(self.queue, sequences))

    def flow_gone(self, flow: FlowId) -> None:
        """Nobody will come back to a flow."""
        self._changes.note_flow_gone(flow)
