"""Assured control as values: what a client asks of publisher flows and queues, and the bodies that answer it."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from lbg_runtime.model.errors import ProtocolError
from lbg_runtime.smf.assured_items import (
    AssuredKind,
    ItemKind,
    Items,
    assured_body,
    decode_assured,
)
from lbg_runtime.smf.endpoint import NO_WISHES, Endpoint, EndpointWishes, endpoint_items, limit_items, read_wishes
from lbg_runtime.smf.text import close_text, text_of

WINDOW = 255
"""The widest window possible."""

BROWSER = 2
"""Flow type of a flow that looks at messages but does not take them."""

DURABLE = 1


class AckOutcome(IntEnum):
    """How a range of an application acknowledgement ended."""

    ACCEPTED = 0
    FAILED = 1
    RELEASED = 2
    REJECTED = 3


@dataclass(frozen=True, slots=True)
class OpenFlow:
    """Open a publisher flow, or resume the one called `name`."""

    name: str
    last_acked_id: int
    window: int
    transacted: bool
    session_id: int = 0
    """The transacted session that it is part of."""


@dataclass(frozen=True, slots=True)
class Bind:
    """Bind a consumer flow or a browser."""

    queue: str
    """Empty if a topic endpoint is requested."""
    window: int
    durable: bool
    browser: bool
    wants_changes: bool
    """The client wants to be told whether the flow is fed."""
    last_received_id: int | None
    """Set when a handle that lives on is bound again."""
    selector: str
    replay: bytes | None
    """Where to start replaying the queue's messages, if at all: a kind, and what it needs."""
    transacted: bool
    session_id: int = 0
    """The transacted session that it is part of."""
    partition_group: int | None = None
    """The one in the answer to the handle's previous bind, if that was to a partitioned queue."""
    no_local: bool = False
    """The flow is not to get what its own client publishes."""
    wishes: EndpointWishes = NO_WISHES
    """For a temporary queue; of a queue that exists, some clients repeat what they were told."""


@dataclass(frozen=True, slots=True)
class AckRange:
    """Ids `first` to `last` of a flow, both included; ids that were never delivered have no effect."""

    first: int
    last: int
    outcome: AckOutcome


@dataclass(frozen=True, slots=True)
class ClientAck:
    """A consumer's acknowledgement: what the library received, what it can take, what the application settled."""

    flow_id: int
    received_id: int | None
    window: int | None
    ranges: tuple[AckRange, ...]


@dataclass(frozen=True, slots=True)
class Unbind:
    """Give up a consumer flow."""

    flow_id: int


@dataclass(frozen=True, slots=True)
class CloseFlow:
    """Give up a publisher flow."""

    flow_id: int


@dataclass(frozen=True, slots=True)
class CreateQueue:
    queue: str
    """Empty if a topic endpoint is requested."""
    durable: bool
    wishes: EndpointWishes = NO_WISHES


@dataclass(frozen=True, slots=True)
class DeleteQueue:
    queue: str
    """Empty if a topic endpoint is requested."""


@dataclass(frozen=True, slots=True)
class FlowChange:
    """Whether the broker feeds a flow; the broker sends this body, and the client answers with the same."""

    flow_id: int
    active: bool


@dataclass(frozen=True, slots=True)
class UnknownRequest:
    """A request that this module does not read."""

    kind: int


AssuredRequest = (
    OpenFlow | Bind | ClientAck | Unbind | CloseFlow | CreateQueue | DeleteQueue | FlowChange | UnknownRequest
)


def read_assured(body: bytes) -> AssuredRequest:
    """Read a client's assured control body; raises `ProtocolError`."""
    message = decode_assured(body)
    reader = _READERS.get(message.kind)
    return UnknownRequest(message.kind) if reader is None else reader(Items(message.items))


def _read_open_flow(items: Items) -> OpenFlow:
    return OpenFlow(
        # Not every client gives it back with its closing zero, or ends an empty one with it.
        name=text_of((items.value(ItemKind.FLOW_NAME) or b"").removesuffix(b"\0")),
        last_acked_id=items.number(ItemKind.LAST_ACKED, 8) or 0,
        window=items.number(ItemKind.WINDOW, 1) or WINDOW,
        transacted=ItemKind.TRANSACTED_SESSION in items,
        session_id=items.number(ItemKind.TRANSACTED_SESSION, 4) or 0,
    )


def _read_bind(items: Items) -> Bind:
    return Bind(
        queue=items.text(ItemKind.QUEUE),
        window=items.number(ItemKind.WINDOW, 1) or 0,
        durable=items.number(ItemKind.DURABILITY, 1) in (None, DURABLE),
        browser=items.number(ItemKind.FLOW_TYPE, 1) == BROWSER,
        wants_changes=bool(items.number(ItemKind.WANTS_CHANGES, 1)),
        last_received_id=items.number(ItemKind.LAST_RECEIVED, 8),
        selector=items.text(ItemKind.SELECTOR),
        replay=items.value(ItemKind.REPLAY_START),
        transacted=ItemKind.TRANSACTED_SESSION in items,
        session_id=items.number(ItemKind.TRANSACTED_SESSION, 4) or 0,
        partition_group=items.number(ItemKind.PARTITION_GROUP, 2),
        no_local=ItemKind.NO_LOCAL in items,
        wishes=read_wishes(items),
    )


def _read_client_ack(items: Items) -> ClientAck:
    return ClientAck(
        flow_id=items.flow_id(),
        received_id=items.number(ItemKind.LAST_ACKED, 8),
        window=items.number(ItemKind.WINDOW, 1),
        ranges=tuple(map(_read_range, items.every(ItemKind.APPLICATION_ACK))),
    )


def _read_range(value: bytes) -> AckRange:
    if len(value) not in (16, 17):
        raise ProtocolError(f"an application acknowledgement of {len(value)} bytes")
    try:
        outcome = AckOutcome(value[16] if len(value) == 17 else 0)
    except ValueError as error:
        raise ProtocolError(f"an application acknowledgement with outcome {value[16]}", 16) from error
    return AckRange(int.from_bytes(value[:8], "big"), int.from_bytes(value[8:16], "big"), outcome)


def _read_create(items: Items) -> CreateQueue:
    return CreateQueue(
        queue=items.text(ItemKind.QUEUE),
        durable=items.number(ItemKind.DURABILITY, 1) in (None, DURABLE),
        wishes=read_wishes(items),
    )


_READERS: dict[int, Callable[[Items], AssuredRequest]] = {
    AssuredKind.OPEN_FLOW: _read_open_flow,
    AssuredKind.CLIENT_ACK: _read_client_ack,
    AssuredKind.BIND: _read_bind,
    AssuredKind.UNBIND: lambda items: Unbind(items.flow_id()),
    AssuredKind.CLOSE_FLOW: lambda items: CloseFlow(items.flow_id()),
    AssuredKind.CREATE: _read_create,
    AssuredKind.DELETE: lambda items: DeleteQueue(items.text(ItemKind.QUEUE)),
    AssuredKind.FLOW_CHANGE: lambda items: FlowChange(items.flow_id(), bool(items.number(ItemKind.ACTIVE, 1))),
}


def opened_flow_body(
    flow_id: int, name: str, last_accepted_id: int, *, session_id: int | None = None, window: int = WINDOW
) -> bytes:
    """The body that answers `OpenFlow`: the flow's number, the name that resumes it, the id after which to resend, and
    the most messages that the client may have unanswered.

    With the `session_id` of the transacted session that the flow is part of; without it, a client waits in vain.
    """
    items = [
        (ItemKind.FLOW_ID, flow_id.to_bytes(4, "big")),
        (ItemKind.LAST_ACKED, last_accepted_id.to_bytes(8, "big")),
        (ItemKind.LAST_SENT, last_accepted_id.to_bytes(8, "big")),
        (ItemKind.WINDOW, bytes((window,))),
        (ItemKind.PUBLISHER_ID, flow_id.to_bytes(4, "big")),
        (ItemKind.FLOW_NAME, close_text(name)),
    ]
    if session_id is not None:
        items.append((ItemKind.TRANSACTED_SESSION, session_id.to_bytes(4, "big")))
    return assured_body(AssuredKind.OPEN_FLOW, *items)


def bound_flow_body(
    flow_id: int,
    endpoint: Endpoint,
    *,
    active: bool | None,
    max_unacked: int,
    spooler: int | None = None,
    partition_group: int | None = None,
) -> bytes:
    """The body that answers `Bind`. No flow name: a client may send it with a later bind to another queue.

    `active`: whether the flow is fed; None for a client that will not be told of changes: it would take nothing from a
    flow that was not fed at first. `spooler`: the 64 bits that precede a message's number: together they identify the
    message to applications; without them, a client has no such id for messages. `partition_group`: 16 bits by which a
    client names its share of a partitioned queue when it binds the handle again.
    """
    items = [
        (ItemKind.FLOW_ID, flow_id.to_bytes(4, "big")),
        *endpoint_items(endpoint),
        (ItemKind.LAST_ACKED, bytes(8)),
        (ItemKind.TRANSPORT_WINDOW, bytes(4)),
        (ItemKind.WINDOW, b"\0"),
        *limit_items(endpoint),
        (ItemKind.ENDPOINT_ID, (1).to_bytes(4, "big")),
        (ItemKind.MAX_UNACKED, max_unacked.to_bytes(4, "big")),
    ]
    if active is not None:
        items.append((ItemKind.ACTIVE, bytes((active,))))
    if spooler is not None:
        items.append((ItemKind.SPOOLER, spooler.to_bytes(8, "big")))
    if partition_group is not None:
        items.append((ItemKind.PARTITION_GROUP, partition_group.to_bytes(2, "big")))
    return assured_body(AssuredKind.BIND, *items)


def publisher_ack_body(flow_id: int, last_id: int, window: int = WINDOW) -> bytes:
    """The body that acknowledges all messages of a publisher flow up to an id, or refuses that id."""
    return assured_body(
        AssuredKind.CLIENT_ACK,
        (ItemKind.FLOW_ID, flow_id.to_bytes(4, "big")),
        (ItemKind.LAST_ACKED, last_id.to_bytes(8, "big")),
        (ItemKind.WINDOW, bytes((window,))),
    )


def flow_body(kind: AssuredKind, flow_id: int) -> bytes:
    """The body that answers or announces the end of a flow."""
    return assured_body(kind, (ItemKind.FLOW_ID, flow_id.to_bytes(4, "big")))


def flow_change_body(change: FlowChange) -> bytes:
    """The body that tells a client whether its flow is fed."""
    return assured_body(
        AssuredKind.FLOW_CHANGE,
        (ItemKind.FLOW_ID, change.flow_id.to_bytes(4, "big")),
        (ItemKind.ACTIVE, bytes((change.active,))),
    )


def created_queue_body(created: Endpoint) -> bytes:
    return assured_body(AssuredKind.CREATE, *endpoint_items(created), *limit_items(created))


def named_queue_body(kind: AssuredKind, queue: str) -> bytes:
    """The body that answers `DeleteQueue`, or refuses that or `CreateQueue`: a client falls over a refusal of a queue's
    name that does not name it."""
    return assured_body(kind, (ItemKind.QUEUE, close_text(queue)))
