"""What happened in a run, in order: all that the laws look at.

Written by the model of the world (broker front end, clients, handlers), never by the machines under test.
"""

from dataclasses import dataclass
from enum import Enum
from typing import NewType

from lbg_runtime.broker.engine.effects import FlowId
from lbg_runtime.core.flow.events import ReleaseCause
from lbg_runtime.core.group.control_messages import MoveMessage
from lbg_runtime.model.ids import DeliveryId, Epoch, QueueName
from lbg_runtime.model.outcome import Outcome

Life = NewType("Life", str)
"""One process of one member, from its start to its end."""


def member_of(life: Life) -> str:
    """The name of the member that a life belongs to."""
    return life.split("#")[0]


@dataclass(frozen=True, slots=True, order=True)
class Stamp:
    """Identifies a message; passes through the broker as its content."""

    publisher: str
    key: str
    sequence: int
    """Within publisher and key, from 1."""


@dataclass(frozen=True, slots=True)
class Handle:
    """One flow handle of a client, across all its reconnects."""

    life: Life
    queue: QueueName
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Confirmed:
    """A publisher knows that the broker has the message."""

    at_ms: int
    stamp: Stamp


@dataclass(frozen=True, slots=True)
class SpoolSeen:
    """What is spooled in a queue, as seen by a browser, each time something was settled."""

    at_ms: int
    queue: QueueName
    stamps: tuple[Stamp, ...]


@dataclass(frozen=True, slots=True)
class Delivered:
    """The broker sent a message on a flow. Delivery ids are unique in the broker."""

    at_ms: int
    queue: QueueName
    flow: FlowId
    handle: Handle
    delivery_id: DeliveryId
    stamp: Stamp
    redelivered: bool


@dataclass(frozen=True, slots=True)
class FlowClosed:
    """A flow ended at the broker."""

    at_ms: int
    queue: QueueName
    flow: FlowId
    cut_ms: int | None
    """When its connection broke, or the broker ended it; None if the client unbound it."""


@dataclass(frozen=True, slots=True)
class FlowFed:
    """The broker chose this flow of a queue: from now on this one is fed."""

    at_ms: int
    queue: QueueName
    flow: FlowId
    handle: Handle


@dataclass(frozen=True, slots=True)
class HandleBound:
    """A client learned for the first time that a handle is bound."""

    at_ms: int
    handle: Handle


@dataclass(frozen=True, slots=True)
class MessageDropped:
    """A client dropped a message without showing it, as the official one does for a wrong predecessor or a seen id."""

    at_ms: int
    handle: Handle
    delivery_id: DeliveryId


@dataclass(frozen=True, slots=True)
class ActivityLost:
    """A member was told that a handle is no longer fed."""

    at_ms: int
    handle: Handle


@dataclass(frozen=True, slots=True)
class HandleLost:
    """A member was told that a handle is dead."""

    at_ms: int
    handle: Handle


@dataclass(frozen=True, slots=True)
class IntakeStarted:
    """A member asked for messages on a handle."""

    at_ms: int
    handle: Handle


@dataclass(frozen=True, slots=True)
class IntakeStopped:
    """A member asked for no more messages on a handle."""

    at_ms: int
    handle: Handle


@dataclass(frozen=True, slots=True)
class UnbindOrdered:
    """A member gives a handle up."""

    at_ms: int
    handle: Handle
    cause: ReleaseCause


@dataclass(frozen=True, slots=True)
class Dispatched:
    """A delivery was put in its key's lane."""

    at_ms: int
    handle: Handle
    delivery_id: DeliveryId
    stamp: Stamp


class Result(Enum):
    """How one attempt of a handler ended."""

    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class HandlingStarted:
    """One attempt of a handler began."""

    at_ms: int
    handle: Handle
    delivery_id: DeliveryId
    stamp: Stamp
    attempt: int


@dataclass(frozen=True, slots=True)
class HandlingEnded:
    """That attempt ended. What a killed process was handling ends with its life instead."""

    at_ms: int
    handle: Handle
    delivery_id: DeliveryId
    stamp: Stamp
    result: Result


@dataclass(frozen=True, slots=True)
class Answered:
    """A dispatched delivery left the lanes."""

    at_ms: int
    handle: Handle
    delivery_id: DeliveryId
    outcome: Outcome | None


@dataclass(frozen=True, slots=True)
class SettleOrdered:
    """A member told its client how a delivery ended."""

    at_ms: int
    handle: Handle
    delivery_id: DeliveryId
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class LifeStarted:
    """A member's process began."""

    at_ms: int
    life: Life


@dataclass(frozen=True, slots=True)
class LeaveBegan:
    """A member was asked to stop."""

    at_ms: int
    life: Life


@dataclass(frozen=True, slots=True)
class Said:
    """A member said this on the control topic, which does not mean that anybody heard it."""

    at_ms: int
    life: Life
    message: MoveMessage


@dataclass(frozen=True, slots=True)
class HandBackAsked:
    """A member's control plane wants a queue given up."""

    at_ms: int
    life: Life
    queue: QueueName
    move_id: str


@dataclass(frozen=True, slots=True)
class LifePaused:
    """A member's process stands still until a time."""

    at_ms: int
    life: Life
    until_ms: int


@dataclass(frozen=True, slots=True)
class LoopHung:
    """A member's event loop stands still, and the client's threads go on; until a time, or until the process ends."""

    at_ms: int
    life: Life
    until_ms: int
    keeps_settlements: bool
    """Whether what was settled waits in the client meanwhile. Our transport flushes it from the loop; the client's own
    timer, the only one left then, was seen to take more than two seconds (docs/protocol.md)."""


@dataclass(frozen=True, slots=True)
class TwinStarted:
    """A process began with the id of a live member."""

    at_ms: int
    life: Life
    twin_of: Life


@dataclass(frozen=True, slots=True)
class StoodAside:
    """A member heard of a newer life of its id: it gives up every queue permanently."""

    at_ms: int
    life: Life


@dataclass(frozen=True, slots=True)
class LifeEnded:
    """A member's process is gone."""

    at_ms: int
    life: Life
    killed: bool


@dataclass(frozen=True, slots=True)
class Stalled:
    """The run did not end in time."""

    at_ms: int
    what: str


@dataclass(frozen=True, slots=True)
class CalmBegan:
    """Faults and messages are over, and the time that cooperative members have to agree has passed."""

    at_ms: int
    queues: tuple[QueueName, ...]
    homes: tuple[tuple[Life, tuple[str | None, ...]], ...]
    """For every current life, in the order of `queues`: the member that it considers the queue's home."""


@dataclass(frozen=True, slots=True)
class CalmEnded:
    """From here on members are stopped."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class CopySettled:
    """A member told its client that it is done with a delivery that it did not handle: a copy of a message that another
    queue has, or a record of a re-striping."""

    at_ms: int
    handle: Handle
    delivery_id: DeliveryId


Happening = (
    Confirmed
    | SpoolSeen
    | Delivered
    | FlowClosed
    | FlowFed
    | HandleBound
    | MessageDropped
    | ActivityLost
    | HandleLost
    | IntakeStarted
    | IntakeStopped
    | UnbindOrdered
    | Dispatched
    | HandlingStarted
    | HandlingEnded
    | Answered
    | SettleOrdered
    | CopySettled
    | LifeStarted
    | LeaveBegan
    | Said
    | HandBackAsked
    | LifePaused
    | LoopHung
    | TwinStarted
    | StoodAside
    | LifeEnded
    | Stalled
    | CalmBegan
    | CalmEnded
)
