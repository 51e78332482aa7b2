"""What can be said of a queue."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from lbg_runtime.broker.engine.lines.grouping import Grouping


class AccessType(Enum):
    """Who is fed by a queue: the first bound flow, or all of them in turn."""

    EXCLUSIVE = "exclusive"
    NON_EXCLUSIVE = "non-exclusive"


class Permission(Enum):
    """What a client username may do with a queue; each one includes those before it."""

    NO_ACCESS = "no-access"
    READ_ONLY = "read-only"
    """Browse."""
    CONSUME = "consume"
    MODIFY_TOPIC = "modify-topic"
    """Change what the queue attracts."""
    DELETE = "delete"

    def includes(self, wanted: "Permission") -> bool:
        """Whether it is enough for what needs `wanted`."""
        order = tuple(Permission)
        return order.index(self) >= order.index(wanted)


class RejectOnDiscard(Enum):
    """When a publisher is told that a queue did not take its message; where it is not told, the message is dropped."""

    NEVER = "never"
    WHEN_QUEUE_ENABLED = "when-queue-enabled"
    ALWAYS = "always"


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """What can be said of a queue; defaults are those of a queue that a client creates here, open to everybody."""

    access_type: AccessType = AccessType.EXCLUSIVE
    durable: bool = True
    """A queue that is not durable belongs to one connection and goes with it."""
    owner: str | None = None
    """Client username that may do everything with it."""
    permission: Permission = Permission.DELETE
    """What every other client username may do."""
    ingress_enabled: bool = True
    """Whether it takes messages."""
    egress_enabled: bool = True
    """Whether it has flows."""
    reject_on_discard: RejectOnDiscard = RejectOnDiscard.WHEN_QUEUE_ENABLED
    max_unacked_per_flow: int = 10_000
    max_bind_count: int = 1_000
    """Consumer flows at the same time; browsers do not count."""
    quota_bytes: int = 5_000_000_000
    max_message_bytes: int = 10_000_000
    partition_count: int = 0
    """Partitions of a non-exclusive queue; 0 for one that has none."""
    partition_rebalance_delay_ms: int = 5_000
    """From a change of the bound flows to the spreading of the partitions over them."""
    partition_max_handoff_ms: int = 3_000
    """How long a partition waits for the settlements of its old flow before another one has it."""
    grouping: Grouping = field(default_factory=Grouping)
    """How messages are grouped, if they are."""
    dead_message_queue: str = "#DEAD_MSG_QUEUE"
    """Where rejected, expired and worn out messages go; they are discarded where it is not there, or is this one."""
    respect_dead_message_eligible: bool = False
    """Whether messages that are not eligible for a dead message queue are discarded instead."""
    redelivery_enabled: bool = True
    max_redelivery_count: int = 0
    """Deliveries of a message after its first; 0 for as many as it takes."""
    redelivery_delay_enabled: bool = False
    redelivery_delay_initial_ms: int = 1_000
    redelivery_delay_max_ms: int = 64_000
    redelivery_delay_multiplier_percent: int = 200
    respect_time_to_live: bool = False
    max_ttl_s: int = 0
    """The longest life of a message where time to live is respected; 0 for as long as the message says."""
    respect_priority: bool = False
    """Whether messages of a higher priority go first."""
    remarks: Mapping[str, object] = field(default_factory=dict)
    """What an administrator said besides; kept for it and without effect here."""

    @property
    def is_partitioned(self) -> bool:
        """Whether its messages belong to partitions; an exclusive queue has none, whatever their number."""
        return self.partition_count > 0 and self.access_type is AccessType.NON_EXCLUSIVE

    @property
    def groups_messages(self) -> bool:
        """Whether it has message groups; an exclusive queue needs none, and partitions are groups of another kind."""
        return self.grouping.is_enabled and self.access_type is AccessType.NON_EXCLUSIVE and not self.is_partitioned


@dataclass(frozen=True, slots=True)
class ReplayLogSettings:
    """What can be said of a VPN's replay log."""

    name: str
    max_bytes: int
    """Of the messages in it; the oldest go where more come."""
    ingress_enabled: bool = True
    """Whether it takes messages."""
    egress_enabled: bool = True
    """Whether what it has is replayed."""
