"""What a flow machine is told. Transports make the first group, the runtime the second.

All events of one flow reach its machine in one stream, in the order they happened (docs/architecture.md, section 4).
"""

from dataclasses import dataclass
from enum import Enum

from lbg_runtime.model.ids import DeliveryId, Epoch
from lbg_runtime.model.message import Delivery
from lbg_runtime.model.outcome import Outcome


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class HandlingFinished:
    """A dispatched delivery left the lanes. `outcome` None: it was returned unhandled or its handler was cancelled."""

    epoch: Epoch
    delivery_id: DeliveryId
    outcome: Outcome | None


class ReleaseCause(Enum):
    """Why a flow is given up."""

    REBIND = "rebind"
    """A secondary's rebind cycle came round."""
    STOP = "stop"
    """The member is shutting down."""
    INACTIVE = "inactive"
    """The broker took activity away, or the connection broke; the handle is replaced by a new one (law L4)."""
    DOWN = "down"
    """The handle died."""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The member leaves: drain, unbind, do not bind again."""


MachineEvent = FlowEvent | BindSucceeded | BindRefused | UnbindFinished | HandlingFinished | StopRequested
"""Everything a flow machine handles."""
