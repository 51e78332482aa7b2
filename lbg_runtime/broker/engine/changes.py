"""What outlives a broker that keeps things, told as data: what changed, in order, so that it can be written down.

Replaying the changes of a broker to another one (`restoration.py`) makes the second what the first would be after all
connections broke at once. Temporary queues, clients and counters are not told of.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NewType

from lbg_runtime.broker.engine.effects import FlowId, Published
from lbg_runtime.broker.engine.settings import QueueSettings, ReplayLogSettings
from lbg_runtime.model.ids import DeliveryId, QueueName

if TYPE_CHECKING:
    from lbg_runtime.broker.engine.flow import ConsumerFlow
    from lbg_runtime.broker.engine.publisher_flow import PublisherState
    from lbg_runtime.broker.engine.spool import SpooledMessage

QueueNumber = NewType("QueueNumber", int)
"""One queue from its creation to its deletion; never reused, so a queue that is made again is another one."""

NO_FLOW = FlowId(0)


@dataclass(frozen=True, slots=True)
class QueueKept:
    """A queue is there, or has other settings."""

    queue: QueueNumber
    vpn: str
    name: QueueName
    settings: QueueSettings


@dataclass(frozen=True, slots=True)
class QueueGone:
    """A queue is gone, with its messages and subscriptions."""

    queue: QueueNumber


@dataclass(frozen=True, slots=True)
class SubscriptionKept:
    """A queue attracts this."""

    queue: QueueNumber
    topic: str


@dataclass(frozen=True, slots=True)
class SubscriptionGone:
    """A queue does not attract this any more."""

    queue: QueueNumber
    topic: str


# Those from here to `MessageUnlogged` are not frozen, which would double what it takes to make one: they come with
# every message.
@dataclass(slots=True)
class MessageKept:
    """A message has come to a queue."""

    queue: QueueNumber
    sequence: int
    message: Published


@dataclass(slots=True)
class MessagesDelivered:
    """Messages have gone to a consumer flow; what was told of their deliveries before counts no more."""

    queue: QueueNumber
    flow: FlowId
    """`NO_FLOW` where its client has given them back."""
    deliveries: Sequence[tuple[int, DeliveryId, int]]
    """Of each its place, the id, and how often it was delivered by now."""


@dataclass(slots=True)
class MessagesGone:
    """Messages have left a queue for good."""

    queue: QueueNumber
    sequences: Sequence[int]


@dataclass(slots=True)
class MessageLogged:
    """A message is in a VPN's replay log, behind all that are there; told before queues are said to have it."""

    vpn: str
    came_ns: int
    """Unix time by which it is found there."""
    message: Published


@dataclass(slots=True)
class MessageUnlogged:
    """The oldest message of a VPN's replay log, which has this number, is not in it any more; queues may have it."""

    vpn: str
    number: int


@dataclass(frozen=True, slots=True)
class ReplayLogKept:
    """A VPN has a replay log, or has other settings for it."""

    vpn: str
    settings: ReplayLogSettings
    began_ns: int
    first: int
    """No message of a lower number was ever in it."""


@dataclass(frozen=True, slots=True)
class ReplayLogGone:
    """A VPN has no replay log any more. Its messages were told of before."""

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
    """Nobody comes back to a flow; what it held waits in its queue."""

    flow: FlowId


@dataclass(frozen=True, slots=True)
class PublisherKept:
    """How far a publisher flow has come."""

    vpn: str
    name: str
    last_judged_id: int
    refused: tuple[tuple[int, int, str], ...]
    """Id, code and text of refusals that the publisher may not have heard of."""


@dataclass(frozen=True, slots=True)
class PublisherGone:
    """A publisher flow is forgotten."""

    vpn: str
    name: str


@dataclass(frozen=True, slots=True)
class DeliveryIdsSkipped:
    """No delivery id up to this one may be given again, and no number of a message."""

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
    """Gathers the changes of one engine until somebody takes them. Told by the engine's parts, asked by the shell.

    Of flows and publisher flows, which change with every message, only the latest state is told, once.
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
        """A flow's window has changed, or what it holds."""
        self._flows[flow.id] = (queue, flow)

    def note_flow_gone(self, flow: FlowId) -> None:
        """Nobody comes back to a flow."""
        self._flows.pop(flow, None)
        self._log.append(FlowGone(flow))

    def note_publisher(self, vpn: str, state: "PublisherState") -> None:
        """A publisher flow has come further."""
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
    """Tells the changes of one queue. Called by the queue and its parts, and where queues are made and deleted."""

    __slots__ = ("_changes", "_name", "_vpn", "queue")

    def __init__(self, queue: QueueNumber, vpn: str, name: QueueName, changes: Changes) -> None:
        self.queue = queue
        self._vpn = vpn
        self._name = name
        self._changes = changes

    def configured(self, settings: QueueSettings) -> None:
        """The queue is there, or has other settings."""
        self._changes.note(QueueKept(self.queue, self._vpn, self._name, settings))

    def deleted(self) -> None:
        """The queue is gone."""
        self._changes.note(QueueGone(self.queue))

    def subscribed(self, topic: str) -> None:
        """The queue attracts this."""
        self._changes.note(SubscriptionKept(self.queue, topic))

    def unsubscribed(self, topic: str) -> None:
        """The queue does not attract this any more."""
        self._changes.note(SubscriptionGone(self.queue, topic))

    def kept(self, sequence: int, message: Published) -> None:
        """A message has come."""
        self._changes.note(MessageKept(self.queue, sequence, message))

    def delivered(self, flow: "ConsumerFlow", messages: "Iterable[SpooledMessage]") -> None:
        """Messages count as delivered on this flow, by the ids that they have now."""
        deliveries = [(message.sequence, message.delivery_id, message.delivery_count) for message in messages]
        self._changes.note(MessagesDelivered(self.queue, flow.id, deliveries))
        self._changes.note_flow(self.queue, flow)

    def given_back(self, message: "SpooledMessage") -> None:
        """The client that a message was delivered to does not hold it any more."""
        delivery = (message.sequence, message.delivery_id, message.delivery_count)
        self._changes.note(MessagesDelivered(self.queue, NO_FLOW, (delivery,)))

    def gone(self, sequences: Sequence[int]) -> None:
        """The messages in these places have left for good."""
        self._changes.note(MessagesGone(self.queue, sequences))

    def flow_gone(self, flow: FlowId) -> None:
        """Nobody comes back to a flow."""
        self._changes.note_flow_gone(flow)
