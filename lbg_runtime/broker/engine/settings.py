"""What can be said of a queue."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


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
    remarks: Mapping[str, object] = field(default_factory=dict)
    """What an administrator said besides; kept for it and without effect here."""
