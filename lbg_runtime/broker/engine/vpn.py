"""One message VPN: its accounts, clients, queues and subscriptions. Names mean nothing outside their VPN."""

from collections.abc import Callable
from dataclasses import dataclass, field

from lbg_runtime.broker.engine.accounts import Account, Accounts
from lbg_runtime.broker.engine.answers import Introduction
from lbg_runtime.broker.engine.effects import ClientId, Effect, FlowId, Published
from lbg_runtime.broker.engine.matching.subscriptions import Subscriptions
from lbg_runtime.broker.engine.publisher_flow import PublisherFlows, PublisherState
from lbg_runtime.broker.engine.queue import Queue
from lbg_runtime.broker.engine.replay.log import ReplayLog
from lbg_runtime.broker.engine.settings import QueueSettings
from lbg_runtime.broker.engine.traits import Traits
from lbg_runtime.model.errors import BrokerRefusal
from lbg_runtime.model.failure import DEAD_MESSAGE_QUEUE, QUEUE_ADDRESS_PREFIX
from lbg_runtime.model.group import LARGEST_QUEUE_NAME, queue_name_fault
from lbg_runtime.model.ids import QueueName

LARGEST_CLIENT_NAME_BYTES = 160
_NOT_IN_CLIENT_NAMES = frozenset("*>\ufffd")
TraitsOf = Callable[[Published], Traits]
_ADDRESS = "#P2P/Q"
"""Prefix of the topic of a message for one queue: for a durable one it is `QUEUE_ADDRESS_PREFIX` and its name, for a
temporary one its name."""


@dataclass(slots=True, eq=False)
class Client:
    """One logged-in connection."""

    id: ClientId
    vpn: "Vpn"
    name: str
    username: str
    account: Account
    """Determines what it may do; several usernames can share one."""
    address: str
    """Its peer's; empty if it is in this process."""
    introduction: Introduction
    connected_ms: int
    """When it logged in."""
    flows: dict[FlowId, Queue] = field(default_factory=dict)
    """Its consumer flows and browsers, in the order of their binds."""
    publishers: dict[FlowId, PublisherState] = field(default_factory=dict)


class Vpn:
    """Called only by the engine."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.accounts = Accounts()
        self.clients: dict[str, Client] = {}
        self.queues: dict[QueueName, Queue] = {}
        self.queue_subscriptions: Subscriptions[Queue] = Subscriptions(lambda queue: queue.name)
        self.client_subscriptions: Subscriptions[Client] = Subscriptions(lambda client: client.name)
        self.publishers = PublisherFlows()
        self.replay_log: ReplayLog | None = None
        """Keeps persistent messages for replay; None if there is no replay log."""

    def log_in(self, username: str, password: str | None, client_name: str, address: str) -> Account:
        """Return the account of a client that may log in; 400 `Client Name Parse Error`, and as `Accounts.log_in`."""
        account = self.accounts.log_in(username, password, address)
        check_client_name(client_name)
        return account

    def queue(self, name: QueueName, client: ClientId | None = None) -> Queue:
        """Find a queue; 503 `Unknown Queue`, 403 `Permission Not Allowed` for another client's temporary queue."""
        queue = self.queues.get(name)
        if queue is None:
            raise BrokerRefusal(503, "Unknown Queue")
        if client is not None and queue.temporary_of not in (None, client):
            raise BrokerRefusal(403, "Permission Not Allowed")
        return queue

    def queues_for(self, topic: str) -> tuple[Queue, ...]:
        """Every queue that gets a message on this topic; 503 `Unknown Queue` for the address of a missing one.

        What PubSub+ answers to such an address has not been observed; that it refuses the message is documented.
        """
        attracted = self.queue_subscriptions.match(topic)
        if not topic.startswith(_ADDRESS):
            return attracted
        addressed = self.queue(QueueName(topic.removeprefix(QUEUE_ADDRESS_PREFIX)))
        return tuple(dict.fromkeys((addressed, *attracted)))

    def add_queue(self, queue: Queue) -> None:
        """Add a queue; 400 `Endpoint Already Exists`."""
        if queue.name in self.queues:
            raise BrokerRefusal(400, "Endpoint Already Exists")
        self.queues[queue.name] = queue
        if queue.journal is not None:
            queue.journal.configured(queue.settings)

    def bury(
        self, name: QueueName, settings: QueueSettings, message: Published, traits_of: TraitsOf
    ) -> list[Effect] | None:
        """Put a message that left a queue into its dead message queue; None if it is discarded."""
        target = self.queues.get(QueueName(settings.dead_message_queue))
        if target is None or target.name == name:
            return None
        if settings.respect_dead_message_eligible and not traits_of(message).may_go_to_dead_messages:
            return None
        if (obstacle := target.obstacle_to(message)) is not None:
            target.count_discard(obstacle)
            return None
        return target.add(message)

    def remove_queue(self, queue: Queue) -> None:
        """Remove a queue and its subscriptions; the caller ends its flows."""
        del self.queues[queue.name]
        self.queue_subscriptions.remove_all(queue)
        queue.deleted()

    def subscribe_queue(self, queue: Queue, subscription: str) -> None:
        """Attract messages into a queue; 400 `Subscription Already Exists`, 400 `Subscription Parse Error`."""
        self.queue_subscriptions.add(queue, subscription)
        if queue.journal is not None:
            queue.journal.subscribed(subscription)

    def unsubscribe_queue(self, queue: Queue, subscription: str) -> None:
        """Undo `subscribe_queue`; 400 `Subscription Not Found`."""
        self.queue_subscriptions.remove(queue, subscription)
        if queue.journal is not None:
            queue.journal.unsubscribed(subscription)


def check_client_name(name: str) -> None:
    """400 `Client Name Parse Error` for a name that no client may have: it becomes part of topics and of log lines."""
    # Unprintable text may not be encodable as UTF-8, so this is checked first.
    is_text = bool(name) and name.isprintable() and _NOT_IN_CLIENT_NAMES.isdisjoint(name)
    if not is_text or len(name.encode()) > LARGEST_CLIENT_NAME_BYTES:
        raise BrokerRefusal(400, "Client Name Parse Error")


def is_queue_name(name: str) -> bool:
    """Whether a client may give a durable queue this name: it becomes part of topics, and administrators use it."""
    is_fit = name == DEAD_MESSAGE_QUEUE or queue_name_fault(name) is None
    return is_fit and len(name) <= LARGEST_QUEUE_NAME
