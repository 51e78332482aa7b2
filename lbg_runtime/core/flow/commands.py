"""The outputs of a flow machine. The flow runner carries them out, in the order given."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from lbg_runtime.core.flow.events import ReleaseCause
from lbg_runtime.core.restripe.news import StripesNews
from lbg_runtime.model.ids import DeliveryId, Epoch
from lbg_runtime.model.message import Delivery
from lbg_runtime.model.outcome import Outcome

_NO_FACTS: Mapping[str, str | int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Bind:
    """Bind a new flow handle with its intake closed; answered by `BindSucceeded` or `BindRefused` of the same epoch."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Unbind:
    """Give up the handle after the settlements already ordered have left; answered by `UnbindFinished`."""

    epoch: Epoch
    cause: ReleaseCause


@dataclass(frozen=True, slots=True)
class StopIntake:
    """Ask the broker to send nothing more on this handle; messages already under way still arrive."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class StartIntake:
    """Ask the broker to send, for the first time or again."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Put the delivery in its key's lane; answered by exactly one `HandlingFinished`."""

    delivery: Delivery


@dataclass(frozen=True, slots=True)
class ReturnUnstarted:
    """Take the deliveries of this flow that no handler has started out of the lanes; each is answered by its
    `HandlingFinished` with no outcome."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class LookForStall:
    """After the events that have arrived by now, find out whether everything in flight on this handle waits for another
    attempt, or behind a delivery that does; answered by `HandlingStalled` if so, else not at all."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class CancelHandling:
    """Cancel the running handlers of this epoch; each is answered by its `HandlingFinished` with no outcome (L7)."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Settle:
    """Tell the broker how the delivery ended. Sent only by the flow runner, and only in its own epoch (L4)."""

    epoch: Epoch
    delivery_id: DeliveryId
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class ProbeSettlements:
    """Find out when the broker has processed every settlement ordered so far; answered by `SettlementsReached`, or
    never if the connection or the handle is lost meanwhile."""

    epoch: Epoch
    number: int


@dataclass(frozen=True, slots=True)
class TellStripes:
    """Tell the member about the group's re-striping."""

    news: StripesNews


@dataclass(frozen=True, slots=True)
class Note:
    """Something worth a log line and a counter: an event name in snake_case, past tense, and its facts."""

    name: str
    facts: Mapping[str, str | int] = field(default_factory=lambda: _NO_FACTS)


Command = (
    Bind
    | Unbind
    | StopIntake
    | StartIntake
    | Dispatch
    | ReturnUnstarted
    | LookForStall
    | CancelHandling
    | Settle
    | ProbeSettlements
    | TellStripes
    | Note
)
