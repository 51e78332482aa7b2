"""The arguments and results of the engine's calls, except effects."""

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

from lbg_runtime.broker.engine.effects import ClientId, FlowId, Published
from lbg_runtime.broker.engine.intake import Obstacle
from lbg_runtime.broker.engine.lines.partitions import PartitionState
from lbg_runtime.broker.engine.rates import Rates
from lbg_runtime.broker.engine.settings import Permission, QueueSettings
from lbg_runtime.model.ids import DeliveryId, QueueName
from lbg_runtime.model.outcome import Outcome


@dataclass(frozen=True, slots=True)
class BoundQueue:
    flow: FlowId
    active: bool
    """Whether the queue feeds the flow from the start; every flow of a non-exclusive queue and every browser is fed."""
    settings: QueueSettings
    permission: Permission
    """What the client may do with the queue."""
    partition_group: int | None
    """The client gives this back when it binds the handle again, to get its partitions; None if there are none."""


@dataclass(frozen=True, slots=True)
class PublisherFlow:
    """The answer to opening a publisher flow: `name` resumes it later; nothing up to `last_answered_id` need be resent.

    A refused message counts as answered if the client knows of the refusal.
    """

    flow: FlowId
    name: str
    last_answered_id: int


@dataclass(frozen=True, slots=True)
class SettledRange:
    """Ids `first` to `last` of a flow, both included, ended this way; ids never delivered on it have no effect."""

    first: DeliveryId
    last: DeliveryId
    outcome: Outcome


@dataclass(slots=True)
class BindCounts:
    """How binds to a queue ended since it was created or its counts were cleared."""

    requested: int = 0
    succeeded: int = 0
    disabled: int = 0
    """Refused because the queue may have no flows."""
    max_exceeded: int = 0
    other: int = 0
    """Refused for any other reason."""


class Death(Enum):
    """Why a message left a queue, if not because it was accepted."""

    REJECTED = "rejected"
    EXPIRED = "expired"
    WORN_OUT = "worn out"
    """Delivered as often as allowed."""


@dataclass(frozen=True, slots=True)
class DeathCounts:
    """Messages that left a queue otherwise than by being accepted, since it was created or its counts were cleared."""

    buried: Counter[Death] = field(default_factory=Counter)
    """In the dead message queue."""
    discarded: Counter[Death] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class FlowStatus:
    """One bound flow, as an administrator sees it."""

    flow: FlowId
    client_name: str
    active: bool
    browser: bool
    window_size: int
    used_window_size: int
    """Messages sent and not yet known to be received."""
    unacked_count: int
    """Messages held by its client and not settled; 0 for a browser and for a standby."""
    redelivered_count: int
    """Messages sent to it that had been sent before; 0 for a browser."""


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One partition, as an administrator sees it."""

    number: int
    state: PartitionState
    flow: FlowId | None
    """The bound flow that has it."""
    client_name: str | None
    depth: int
    """Messages spooled, unacknowledged ones included."""


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """One message group, or bucket of them, as an administrator sees it."""

    group: str
    flow: FlowId
    """The flow that it is pinned to."""
    client_name: str
    depth: int
    """Messages spooled, unacknowledged ones included."""


class RebalanceState(Enum):
    """What a partitioned queue is doing with its partitions; the words are SEMP's."""

    READY = "ready"
    HOLDDOWN = "holddown"
    """The rebalance delay is running."""
    REBALANCING = "rebalancing"
    """Partitions are moving to another flow."""


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """One queue at one moment, as an administrator sees it."""

    name: QueueName
    settings: QueueSettings
    flows: tuple[FlowStatus, ...]
    """Consumer flows in the order of the bind line, then browsers."""
    active_flow: FlowId | None
    """The one flow that an exclusive queue feeds; None if nothing is bound, and for a non-exclusive queue."""
    depth: int
    """Messages spooled, unacknowledged ones included."""
    spooled_bytes: int
    unacked_count: int
    deaths: DeathCounts
    discards: Counter[Obstacle]
    """Messages that it could not take, whether or not their publishers were told, since it was created or its counts
    were cleared."""
    redelivered_count: int
    """Deliveries of messages that had been delivered before, since the queue was created or its counts were cleared."""
    first_sequence: int
    """That of the first spooled message, or of the next one to come if there is none."""
    last_sequence: int
    """That of the latest message spooled."""
    spooled_count: int
    """Messages spooled since the queue was created or its counts were cleared."""
    binds: BindCounts
    subscriptions: tuple[str, ...]
    rates: Rates
    partitions: tuple[PartitionStatus, ...]
    """By number; empty if the queue is not partitioned."""
    rebalance: RebalanceState | None
    """None if the queue is not partitioned."""


@dataclass(frozen=True, slots=True)
class MessageStatus:
    """One spooled message, as an administrator sees it."""

    sequence: int
    """Its place in the queue, which identifies it there."""
    message: Published
    is_undelivered: bool
    """Whether it was never sent on any flow."""


@dataclass(frozen=True, slots=True)
class Introduction:
    """What a client says of itself when it logs in, for administrators to read; empty where it says nothing."""

    software_version: str = ""
    software_date: str = ""
    platform: str = ""
    user: str = ""
    """Who runs it and where."""
    description: str = ""


NOT_INTRODUCED = Introduction()


@dataclass(frozen=True, slots=True)
class ClientStatus:
    """One client that is logged in, as an administrator sees it."""

    client: ClientId
    name: str
    username: str
    account: str
    """The configured username that determines what it may do."""
    address: str
    subscriptions: tuple[str, ...]
    flows: tuple[tuple[QueueName, FlowStatus], ...]
    """Its consumer flows and browsers, in the order of their binds."""
    publisher_flow_count: int
    introduction: Introduction
    connected_ms: int
    """When it logged in, by the engine's clock."""
