"""The inputs of a flow machine. Transports produce the first group, the runtime the second.

All events of one flow reach its machine in one stream, in the order they happened (docs/architecture.md, section 4).
"""

from dataclasses import dataclass
from enum import Enum

from lbg_runtime.core.restripe.striping import Striping
from lbg_runtime.core.roles import Place
from lbg_runtime.model.ids import DeliveryId, Epoch
from lbg_runtime.model.message import Delivery
from lbg_runtime.model.outcome import Outcome


# Not frozen like the others: there is one for every message, and freezing would double the cost of creating it.
@dataclass(slots=True)
class MessageReceived:
    """The broker delivered a message on this flow handle."""

    delivery: Delivery


@dataclass(frozen=True, slots=True)
class FlowActive:
    """The broker now feeds this flow."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class FlowInactive:
    """The broker no longer feeds this flow, or the connection broke; the handle lives and may become active again."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class FlowDown:
    """The flow handle is dead: nothing more arrives on it and no settlement on it counts."""

    epoch: Epoch
    reason: str


FlowEvent = MessageReceived | FlowActive | FlowInactive | FlowDown
"""What a transport reports about a bound flow."""


@dataclass(frozen=True, slots=True)
class BindSucceeded:
    """The `Bind` of this epoch is done; the flow is a standby until a `FlowActive` says otherwise."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class BindRefused:
    """The `Bind` of this epoch failed; `permanent` if waiting will not help."""

    epoch: Epoch
    reason: str
    permanent: bool


@dataclass(frozen=True, slots=True)
class UnbindFinished:
    """The `Unbind` of this epoch is done: the handle is gone, whatever happened on the way."""

    epoch: Epoch
    is_confirmed: bool = True
    """Whether the broker is known to have processed it, and the settlements before it. For records; the machine ignores
    it."""


@dataclass(frozen=True, slots=True)
class HandlingFinished:
    """A dispatched delivery left the lanes. `outcome` is None if it goes back: it was not started, its handler was
    cancelled, or it failed and may not be tried again here."""

    epoch: Epoch
    delivery_id: DeliveryId
    outcome: Outcome | None


@dataclass(frozen=True, slots=True)
class DeliveriesHeldUp:
    """Dispatched deliveries wait behind too many of their key, or behind one that makes no progress, so that other keys
    may overtake them. Those that have ended by now are ignored."""

    epoch: Epoch
    delivery_ids: tuple[DeliveryId, ...]


@dataclass(frozen=True, slots=True)
class HandlingStalled:
    """Nothing of this handle is running or about to start: all that is in flight waits for another attempt, or behind a
    delivery that does, or was answered just before this."""

    epoch: Epoch
    has_stopped: bool = False
    """Whether the queue has stopped, so that none of it will be tried again on this handle."""


@dataclass(frozen=True, slots=True)
class SettlementsReached:
    """The broker has processed everything that was settled on this handle before the probe with this number."""

    epoch: Epoch
    number: int


class ReleaseCause(Enum):
    """Why a flow is given up."""

    REBIND = "rebind"
    """The rebind cycle came round, on a member that is not at home."""
    HANDBACK = "handback"
    """The queue is handed to another member, which asked for it or was offered it."""
    HOP = "hop"
    """The flow became active although another member is to have the queue next; nothing was received."""
    UNWANTED = "unwanted"
    """The standby is no longer wanted on the queue."""
    STOP = "stop"
    """The member is shutting down."""
    INACTIVE = "inactive"
    """The broker took activity away, or the connection broke; the handle is replaced by a new one (law L4)."""
    DOWN = "down"
    """The handle died."""

    @property
    def is_in_good_order(self) -> bool:
        """Whether an active flow drains for this cause; any other cause takes the queue from it."""
        return self in (ReleaseCause.REBIND, ReleaseCause.HANDBACK, ReleaseCause.STOP)


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The member is leaving: drain, unbind, do not bind again."""


@dataclass(frozen=True, slots=True)
class PlaceChanged:
    """The group has a new place for this member on the queue."""

    place: Place


@dataclass(frozen=True, slots=True)
class HandBackRequested:
    """Give up the queue to another member once everything that has arrived is handled, or can go back as it came; keep
    it if that takes longer than the drain timeout. Ignored unless the flow is active."""

    move_id: str
    """Identifies the request in the notes about its result."""


@dataclass(frozen=True, slots=True)
class StepAsideRequested:
    """Another member is to have the queue next: if this flow becomes active before `until_ms`, it lets go at once,
    without receiving anything. Once per request; no effect on a flow that is already active."""

    until_ms: int


@dataclass(frozen=True, slots=True)
class StepAsideCancelled:
    """There is no longer anybody to step aside for."""


@dataclass(frozen=True, slots=True)
class StripingLearned:
    """The member has learned more about which queue holds which shard."""

    striping: Striping


FlowRequest = (
    StopRequested | PlaceChanged | HandBackRequested | StepAsideRequested | StepAsideCancelled | StripingLearned
)
"""What the member asks of a flow, whichever handle it has; allowed in every state."""

MachineEvent = (
    FlowEvent
    | BindSucceeded
    | BindRefused
    | UnbindFinished
    | HandlingFinished
    | DeliveriesHeldUp
    | HandlingStalled
    | SettlementsReached
    | FlowRequest
)
"""Everything a flow machine handles."""
