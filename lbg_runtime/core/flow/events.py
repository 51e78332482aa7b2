"""What a flow machine is told. Transports make the first group, the runtime the second.

All events of one flow reach its machine in one stream, in the order they happened (docs/architecture.md, section 4).
"""

from dataclasses import dataclass
from enum import Enum

from lbg_runtime.core.restripe.striping import Striping
from lbg_runtime.core.roles import Place
from lbg_runtime.model.ids import DeliveryId, Epoch
from lbg_runtime.model.message import Delivery
from lbg_runtime.model.outcome import Outcome


# Not frozen as the others are, which would double what it takes to make one: there is one for every message.
@dataclass(slots=True)
class MessageReceived:
    """The broker delivered a message on this flow handle."""

    delivery: Delivery


@dataclass(frozen=True, slots=True)
class FlowActive:
    """The broker made this flow the one it feeds."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class FlowInactive:
    """The broker feeds this flow no longer, or the connection broke; the handle lives and may become active again."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class FlowDown:
    """The flow handle is dead: nothing more arrives on it and no settlement on it counts."""

    epoch: Epoch
    reason: str


FlowEvent = MessageReceived | FlowActive | FlowInactive | FlowDown
"""What a transport reports of a bound flow."""


@dataclass(frozen=True, slots=True)
class BindSucceeded:
    """The `Bind` of this epoch is done; the flow is a standby until a `FlowActive` says otherwise."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class BindRefused:
    """The `Bind` of this epoch failed; `permanent` when waiting will not help."""

    epoch: Epoch
    reason: str
    permanent: bool


@dataclass(frozen=True, slots=True)
class UnbindFinished:
    """The `Unbind` of this epoch is done: the handle is gone, whatever happened on the way."""

    epoch: Epoch
    is_confirmed: bool = True
    """Whether the broker is known to have taken it, and the settlements before it; for records, not for the machine."""


@dataclass(frozen=True, slots=True)
class HandlingFinished:
    """A dispatched delivery left the lanes. `outcome` None: it was returned unhandled or its handler was cancelled."""

    epoch: Epoch
    delivery_id: DeliveryId
    outcome: Outcome | None


@dataclass(frozen=True, slots=True)
class DeliveriesHeldUp:
    """Dispatched deliveries wait behind so many of their key, or behind one that is going nowhere, that others may come
    past them. Of those that have ended by now nothing is said."""

    epoch: Epoch
    delivery_ids: tuple[DeliveryId, ...]


@dataclass(frozen=True, slots=True)
class SettlementsReached:
    """What was settled on this handle before the probe of this number, the broker has taken."""

    epoch: Epoch
    number: int


class ReleaseCause(Enum):
    """Why a flow is given up."""

    REBIND = "rebind"
    """The rebind cycle came round, on a member that is not at home."""
    HANDBACK = "handback"
    """The queue is handed to another member, which asked for it or was offered it."""
    HOP = "hop"
    """Activity came although somebody else is to have the queue next; nothing was received."""
    UNWANTED = "unwanted"
    """A standby that is not wanted on the queue any more."""
    STOP = "stop"
    """The member is shutting down."""
    INACTIVE = "inactive"
    """The broker took activity away, or the connection broke; the handle is replaced by a new one (law L4)."""
    DOWN = "down"
    """The handle died."""

    @property
    def is_in_good_order(self) -> bool:
        """Whether an active flow drains for it; by any other it is lost."""
        return self in (ReleaseCause.REBIND, ReleaseCause.HANDBACK, ReleaseCause.STOP)


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The member leaves: drain, unbind, do not bind again."""


@dataclass(frozen=True, slots=True)
class PlaceChanged:
    """The group wants something else of this member on the queue."""

    place: Place


@dataclass(frozen=True, slots=True)
class HandBackRequested:
    """Give the queue up to another member, once what has arrived is handled; the queue is kept where that lasts longer
    than the drain timeout. Ignored unless the flow is active."""

    move_id: str
    """For the notes of what became of it."""


@dataclass(frozen=True, slots=True)
class StepAsideRequested:
    """Another member is to have the queue next: should this flow become active before `until_ms`, it lets go at once,
    without receiving anything. Once per request; no effect on a flow that is active."""

    until_ms: int


@dataclass(frozen=True, slots=True)
class StepAsideCancelled:
    """Nobody is stepped aside for any more."""


@dataclass(frozen=True, slots=True)
class StripingLearned:
    """The member knows more of which queue holds which shard."""

    striping: Striping


FlowRequest = (
    StopRequested | PlaceChanged | HandBackRequested | StepAsideRequested | StepAsideCancelled | StripingLearned
)
"""What the member wants of a flow, whichever handle it has; allowed in every state."""

MachineEvent = (
    FlowEvent
    | BindSucceeded
    | BindRefused
    | UnbindFinished
    | HandlingFinished
    | DeliveriesHeldUp
    | SettlementsReached
    | FlowRequest
)
"""Everything a flow machine handles."""
