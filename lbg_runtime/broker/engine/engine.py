"""The whole broker as one pure object: every call changes state and returns the effects to carry out, in order."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from lbg_runtime.broker.engine.effects import ClientId, Effect, FlowId, Published
from lbg_runtime.model.ids import DeliveryId, QueueName
from lbg_runtime.model.outcome import Outcome


class AccessType(Enum):
    """Who is fed by a queue: the first bound flow, or all of them in turn."""

    EXCLUSIVE = "exclusive"
    NON_EXCLUSIVE = "non-exclusive"


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """What can be said of a queue; defaults are those of a queue that a client creates on PubSub+."""

    access_type: AccessType = AccessType.EXCLUSIVE
    durable: bool = True
    owner: str | None = None
    max_unacked_per_flow: int = 10_000
    max_bind_count: int = 1_000
    quota_bytes: int = 5_000_000_000
    max_message_bytes: int = 10_000_000


@dataclass(frozen=True, slots=True)
class BoundQueue:
    """Answer to a bind."""

    flow: FlowId
    active: bool
    settings: QueueSettings


@dataclass(frozen=True, slots=True)
class PublisherFlow:
    """Answer to opening a publisher flow: `name` resumes it later, up to `last_accepted_id` nothing need be resent."""

    flow: FlowId
    name: str
    last_accepted_id: int


@dataclass(frozen=True, slots=True)
class SettledRange:
    """Ids `first` to `last` of a flow, both included, ended this way; ids never delivered on it count for nothing."""

    first: DeliveryId
    last: DeliveryId
    outcome: Outcome


class Engine:
    """Called by the front ends only, from one thread. Refusals are `BrokerRefusal` with the wire's code and text."""

    # -- administration

    def add_vpn(self, vpn: str) -> None:
        """Add a message VPN; `default` is there from the start."""
        raise NotImplementedError

    def add_user(self, vpn: str, username: str, password: str) -> None:
        """Configure a client username; as soon as a VPN has one, others are refused there."""
        raise NotImplementedError

    def create_queue(self, vpn: str, queue: QueueName, settings: QueueSettings) -> None:
        """Create a queue; 400 `Endpoint Already Exists`."""
        raise NotImplementedError

    def delete_queue(self, vpn: str, queue: QueueName) -> list[Effect]:
        """Delete a queue with its messages; its flows end with 503 `Queue Deleted`."""
        raise NotImplementedError

    # -- clients

    def connect(self, vpn: str, username: str, password: str, client_name: str) -> tuple[ClientId, list[Effect]]:
        """Log a client in. Another connection of the same name is ended. 401 `Unauthorized`, 503/403 for the VPN."""
        raise NotImplementedError

    def disconnect(self, client: ClientId) -> list[Effect]:
        """The connection is gone: its flows leave, their unsettled messages return to the queues flagged, in order."""
        raise NotImplementedError

    def subscribe(self, client: ClientId, subscription: str) -> None:
        """Attract direct messages; 400 `Subscription Already Exists`, 400 `Subscription Parse Error`."""
        raise NotImplementedError

    def unsubscribe(self, client: ClientId, subscription: str) -> None:
        """Undo `subscribe`; 400 `Subscription Not Found`."""
        raise NotImplementedError

    def subscribe_queue(self, client: ClientId, queue: QueueName, subscription: str) -> None:
        """Attract messages into a queue; errors as for `subscribe` and 503 `Unknown Queue`."""
        raise NotImplementedError

    def unsubscribe_queue(self, client: ClientId, queue: QueueName, subscription: str) -> None:
        """Undo `subscribe_queue`."""
        raise NotImplementedError

    def provision(self, client: ClientId, queue: QueueName, settings: QueueSettings) -> None:
        """Create a queue on a client's behalf; it becomes the owner."""
        raise NotImplementedError

    # -- publishing

    def publish_direct(self, client: ClientId, message: Published) -> list[Effect]:
        """Send a direct message to every subscribed client once; queues that subscribe get it too (promotion)."""
        raise NotImplementedError

    def open_publisher(self, client: ClientId, name: str) -> PublisherFlow:
        """Open a publisher flow; `name` empty for a new one, else the one to resume (unknown names start anew)."""
        raise NotImplementedError

    def publish(self, flow: FlowId, message_id: int, message: Published) -> list[Effect]:
        """Spool a persistent message in every queue that attracts it.

        An id at or below the last accepted one of the flow is a resend: nothing happens. A refusal (503 `Spool Over
        Quota`, 400 `Document Is Too Large`, 503 `No Subscription Match` where asked for) also counts as answered, and
        no queue keeps the message.
        """
        raise NotImplementedError

    # -- consuming

    def bind(
        self,
        client: ClientId,
        queue: QueueName,
        *,
        last_received_id: DeliveryId | None = None,
        browser: bool = False,
        create_temporary: bool = False,
    ) -> tuple[BoundQueue, list[Effect]]:
        """Bind a consumer flow with a closed window, last in the queue's bind line.

        `last_received_id` says that the client re-binds a handle that lives on: it still holds what it got up to
        that id and settles it by the old ids, unless it has been settled meanwhile. 503 `Unknown Queue`, 503
        `Max clients exceeded for queue`.
        """
        raise NotImplementedError

    def unbind(self, flow: FlowId) -> list[Effect]:
        """End a flow: unsettled messages return to the queue flagged, in order; the next in line becomes active."""
        raise NotImplementedError

    def open_window(self, flow: FlowId, received_up_to: DeliveryId, window: int) -> list[Effect]:
        """Transport acknowledgement: the client has received up to this id and takes `window` more beyond it."""
        raise NotImplementedError

    def settle(self, flow: FlowId, ranges: Iterable[SettledRange]) -> list[Effect]:
        """End deliveries. ACCEPTED and REJECTED remove; FAILED puts it back in its place, to come again flagged."""
        raise NotImplementedError
