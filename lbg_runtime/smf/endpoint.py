"""Queues as parameters of assured control: what a client wishes of one that it creates, and what it is told of one."""

from dataclasses import dataclass

from lbg_runtime.smf.assured_items import ItemKind, Items
from lbg_runtime.smf.text import close_text

EXCLUSIVE = 1
NON_EXCLUSIVE = 2

_DISCARD_SHIFT = 12
_TELL_NOBODY = 1


@dataclass(frozen=True, slots=True)
class EndpointWishes:
    """What a client wishes of a queue that it creates; None where it leaves the choice to the broker."""

    exclusive: bool = True
    others_permissions: int | None = None
    """One bit for each: to browse, to consume, to change subscriptions, to delete."""
    quota_megabytes: int | None = None
    max_message_bytes: int | None = None
    respects_ttl: bool | None = None
    tells_publishers: bool | None = None
    """Whether who publishes is told of what the queue did not take."""
    max_redeliveries: int | None = None


NO_WISHES = EndpointWishes()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What a client is told of a queue that it has bound or created."""

    queue: str
    exclusive: bool
    permissions: int
    """What the client itself may do, in the bits of `EndpointWishes.others_permissions`."""
    others_permissions: int
    quota_megabytes: int
    max_message_bytes: int
    respects_ttl: bool


def read_wishes(items: Items) -> EndpointWishes:
    """Read them from a request; raises `ProtocolError`."""
    respects_ttl = items.number(ItemKind.RESPECT_TTL, 1)
    behavior = items.number(ItemKind.DISCARD_BEHAVIOR, 2)
    discard = None if behavior is None else behavior >> _DISCARD_SHIFT & 3
    return EndpointWishes(
        exclusive=items.number(ItemKind.ACCESS, 1) != NON_EXCLUSIVE,
        others_permissions=items.number(ItemKind.OTHERS_PERMISSIONS, 4),
        quota_megabytes=items.number(ItemKind.QUOTA_MEGABYTES, 4),
        max_message_bytes=items.number(ItemKind.MAX_MESSAGE_BYTES, 4),
        respects_ttl=None if respects_ttl is None else bool(respects_ttl),
        tells_publishers=None if not discard else discard != _TELL_NOBODY,
        max_redeliveries=items.number(ItemKind.MAX_REDELIVERIES, 1),
    )


def endpoint_items(endpoint: Endpoint) -> tuple[tuple[ItemKind, bytes], ...]:
    """The parameters that say which queue it is, and who may do what with it."""
    return (
        (ItemKind.QUEUE, close_text(endpoint.queue)),
        (ItemKind.ACCESS, bytes((EXCLUSIVE if endpoint.exclusive else NON_EXCLUSIVE,))),
        (ItemKind.PERMISSIONS, endpoint.permissions.to_bytes(4, "big")),
        (ItemKind.OTHERS_PERMISSIONS, endpoint.others_permissions.to_bytes(4, "big")),
    )


def limit_items(endpoint: Endpoint) -> tuple[tuple[ItemKind, bytes], ...]:
    """The parameters that say how much it takes, and whether messages expire there."""
    return (
        (ItemKind.RESPECT_TTL, bytes((endpoint.respects_ttl,))),
        (ItemKind.QUOTA_MEGABYTES, endpoint.quota_megabytes.to_bytes(4, "big")),
        (ItemKind.MAX_MESSAGE_BYTES, endpoint.max_message_bytes.to_bytes(4, "big")),
    )
