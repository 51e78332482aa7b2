"""The settings of queues and replay logs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from lbg_runtime.model.failure import DEAD_MESSAGE_QUEUE

BYTES_PER_MEGABYTE = 1_000_000
"""As quotas have it."""
LARGEST_QUOTA_MEGABYTES = 6_000_000
LARGEST_MESSAGE_BYTES = 30_000_000
"""The most that a queue may be set to take; it is PubSub+'s largest message."""


class AccessType(Enum):
    """Which flows a queue feeds: the first bound one, or all of them in turn."""

    EXCLUSIVE = "exclusive"
    NON_EXCLUSIVE = "non-exclusive"


class Permission(Enum):
    """What a client username may do with a queue; each one includes those before it."""

    NO_ACCESS = "no-access"
    READ_ONLY = "read-only"
    """May browse."""
    CONSUME = "consume"
    MODIFY_TOPIC = "modify-topic"
    """May change the queue's subscriptions."""
    DELETE = "delete"

    def includes(self, wanted: "Permission") -> bool:
        """Whether it suffices for an action that needs `wanted`."""
        order = tuple(Permission)
        return order.index(self) >= order.index(wanted)


class RejectOnDiscard(Enum):
    """When a publisher is told that a queue did not take its message; otherwise the message is silently dropped."""

    NEVER = "never"
    WHEN_QUEUE_ENABLED = "when-queue-enabled"
    ALWAYS = "always"


@dataclass(frozen=True, slots=True)
class Grouping:
    """How a queue groups messages: the settings of message groups."""

    is_enabled: bool = False
    """Whether it groups; an exclusive or partitioned queue does not in any case."""
    buckets: int | None = None
    """Groups are hashed into this many buckets, each pinned as one, which bounds the table; None: every group by
    itself."""
    timeout_ms: int | None = None
    """A group with nothing sent for this long and nothing in flight is pinned again; None for never."""
    rebalances: bool = False
    """Whether all groups are pinned again when a flow joins. Otherwise it gets only new groups."""
    pauses: bool = False
    """Whether nothing is sent after that until everything in flight is settled; otherwise two flows can have messages
    of one group at the same time."""
    first_property: str | None = None
    """User property set to true on the first message of a group that a flow is sent; None for none."""


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """The settings of a queue; the defaults are those of a queue that a client creates here, open to everybody."""

    access_type: AccessType = AccessType.EXCLUSIVE
    durable: bool = True
    """One that is not belongs to one connection, and ends with its last flow, or a minute after the connection."""
    owner: str | None = None
    """The client username that may do everything with it."""
    permission: Permission = Permission.DELETE
    """What every other client username may do."""
    ingress_enabled: bool = True
    """Whether it accepts messages."""
    egress_enabled: bool = True
    """Whether it may have flows."""
    reject_on_discard: RejectOnDiscard = RejectOnDiscard.WHEN_QUEUE_ENABLED
    max_unacked_per_flow: int = 10_000
    max_bind_count: int = 1_000
    """The most consumer flows at the same time; browsers do not count."""
    quota_bytes: int = 5_000_000_000
    max_message_bytes: int = 10_000_000
    partition_count: int = 0
    """The partitions of a non-exclusive queue; 0 for none."""
    partition_rebalance_delay_ms: int = 5_000
    """The time from a change of the bound flows to spreading the partitions over them."""
    partition_max_handoff_ms: int = 3_000
    """How long a partition waits for the settlements of its old flow before another flow gets it."""
    grouping: Grouping = field(default_factory=Grouping)
    """How messages are grouped, if they are."""
    dead_message_queue: str = DEAD_MESSAGE_QUEUE
    """Where rejected, expired and worn-out messages go; discarded if that queue does not exist or is this one."""
    respect_dead_message_eligible: bool = False
    """Whether messages that are not eligible for a dead message queue are discarded instead."""
    redelivery_enabled: bool = True
    max_redelivery_count: int = 0
    """The most deliveries of a message after its first; 0 for no limit."""
    redelivery_delay_enabled: bool = False
    redelivery_delay_initial_ms: int = 1_000
    redelivery_delay_max_ms: int = 64_000
    redelivery_delay_multiplier_percent: int = 200
    respect_time_to_live: bool = False
    max_ttl_s: int = 0
    """The longest life of a message if time to live is respected; 0 for as long as the message says."""
    respect_priority: bool = False
    """Whether messages with a higher priority go first."""
    remarks: Mapping[str, object] = field(default_factory=dict)
    """An administrator's other settings; kept for reading back, without effect here."""

    @property
    def is_partitioned(self) -> bool:
        """Whether its messages belong to partitions; an exclusive queue has none, whatever `partition_count` says."""
        return self.partition_count > 0 and self.access_type is AccessType.NON_EXCLUSIVE

    @property
    def groups_messages(self) -> bool:
        """Whether it has message groups; an exclusive queue needs none, and partitions take their place."""
        return self.grouping.is_enabled and self.access_type is AccessType.NON_EXCLUSIVE and not self.is_partitioned


@dataclass(frozen=True, slots=True)
class ReplayLogSettings:
    """The settings of a VPN's replay log."""

    name: str
    max_bytes: int
    """The limit for the messages in it; the oldest make room for new ones."""
    ingress_enabled: bool = True
    """Whether it accepts messages."""
    egress_enabled: bool = True
    """Whether its messages may be replayed."""
