"""What the engine wants done after a call; the front end that holds the connections carries it out, in order."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NewType

from lbg_runtime.model.ids import DeliveryId

ClientId = NewType("ClientId", int)
"""One connection of one client; never reused."""

FlowId = NewType("FlowId", int)
"""One flow, consumer or publisher, unique in the broker and never reused; fits into 32 bits and is used on the wire
too."""


# Not frozen, unlike most others, as that would double the cost of making one: it comes with every message. Only
# `number` is ever set, by the engine, before anybody else has the message.
@dataclass(slots=True)
class Published:
    """A message as the engine keeps it. `content` belongs to the front end; the engine never looks into it."""

    topic: str
    content: object
    size_bytes: int
    spooled_at_s: int | None = None
    """Unix time at which it came; None if the front end does not say."""
    publisher: str = ""
    """Name of the publisher flow on which it came, or of the client if it came in a transaction or directly. Set only
    for messages in queues with groups; empty in a replay."""
    number: int = field(default=0, compare=False)
    """Given when it is accepted, the same on every queue and in a replay, and never reused: later messages have greater
    ones. 0 before that, and for direct messages that no queue took."""


# These two are not frozen, unlike the others, as that would double the cost of making one: there may be one for every
# delivery.
@dataclass(slots=True)
class Deliver:
    """Send a spooled message on a consumer flow."""

    client: ClientId
    flow: FlowId
    delivery_id: DeliveryId
    """Increasing across the whole broker and never reused: a client drops any id it has seen on the flow."""
    previous_id: DeliveryId
    """The delivery before it on this flow, 0 for the first: a client drops a message whose predecessor is wrong."""
    message: Published
    redelivered: bool
    first_property: str | None
    """User property to set to true on the message, which is the first of its group for this flow."""


@dataclass(slots=True)
class DeliverRun:
    """Send spooled messages, at least one, on a consumer flow: in this order, under consecutive ids, alike otherwise.

    One effect for all of them, as making one for each would be a good part of a message's cost.
    """

    client: ClientId
    flow: FlowId
    first_id: DeliveryId
    """As in `Deliver`, for the first; each of the others has the id after that of the one before it."""
    previous_id: DeliveryId
    """As in `Deliver`, for the first."""
    messages: Sequence[Published]
    redelivered: bool
    first_property: str | None = None
    """As in `Deliver`, for each of them."""

    def each(self) -> Iterator[Deliver]:
        """The same, message by message."""
        delivery_id, previous_id = self.first_id, self.previous_id
        for message in self.messages:
            yield Deliver(
                self.client, self.flow, delivery_id, previous_id, message, self.redelivered, self.first_property
            )
            delivery_id, previous_id = DeliveryId(delivery_id + 1), delivery_id

    def after(self, count: int) -> "DeliverRun":
        """The run without its first messages, this many and at least one."""
        first_id = DeliveryId(self.first_id + count)
        return replace(self, first_id=first_id, previous_id=DeliveryId(first_id - 1), messages=self.messages[count:])


@dataclass(frozen=True, slots=True)
class DeliverDirect:
    """Send a direct message to a client that subscribes to its topic."""

    client: ClientId
    message: Published


@dataclass(frozen=True, slots=True)
class ActivityChanged:
    """Tell the client that the broker now feeds this flow, or no longer does."""

    client: ClientId
    flow: FlowId
    active: bool


@dataclass(frozen=True, slots=True)
class FlowEnded:
    """Tell the client that the broker ended its flow, with 503 and the wire's text (`Queue Deleted`, ...)."""

    client: ClientId
    flow: FlowId
    text: str


@dataclass(frozen=True, slots=True)
class ClientEnded:
    """Close the client's connection (its name was taken over, or an operator asked for it)."""

    client: ClientId
    text: str


Effect = DeliverRun | DeliverDirect | ActivityChanged | FlowEnded | ClientEnded
SingleEffect = Deliver | DeliverDirect | ActivityChanged | FlowEnded | ClientEnded

CarryOut = Callable[[Iterable[Effect]], None]
"""Hands effects to the connections that they are for, in order; must not call the engine."""


def one_by_one(effects: Iterable[Effect]) -> Iterator[SingleEffect]:
    """The same effects in the same order, each message by itself: for a front end that has no more than a few."""
    for effect in effects:
        if isinstance(effect, DeliverRun):
            yield from effect.each()
        else:
            yield effect
