"""What a membership machine is told and what it orders. The shell carries the orders out, in the order given."""

from collections.abc import Mapping
from dataclasses import dataclass

from lbg_runtime.core.flow.commands import Note
from lbg_runtime.core.group.control_codec import RefusalReason
from lbg_runtime.core.group.control_messages import ControlMessage, FlowReport, Leave, Life, MoveMessage
from lbg_runtime.core.group.view import GroupView
from lbg_runtime.core.restripe.news import StripesNews
from lbg_runtime.model.ids import MemberId, QueueName


@dataclass(frozen=True, slots=True)
class ControlConnected:
    """The control topic is subscribed and can be published to, for the first time or again."""


@dataclass(frozen=True, slots=True)
class ControlLost:
    """Nothing is heard or said from now on; it says nothing about the other members."""


@dataclass(frozen=True, slots=True)
class ControlMessageReceived:
    """A message of this group arrived, from whomever; our own may come back or not."""

    message: ControlMessage


@dataclass(frozen=True, slots=True)
class ControlMessageDropped:
    """Bytes arrived on the control topic that are no control message of this group."""

    reason: RefusalReason


@dataclass(frozen=True, slots=True)
class OwnFlowsChanged:
    """The flows that this member is bound to, all of them; told whenever one is bound, fed or given up."""

    flows: Mapping[QueueName, FlowReport]


@dataclass(frozen=True, slots=True)
class JoinDone:
    """This member can take queues from now on."""


@dataclass(frozen=True, slots=True)
class DrainStarted:
    """This member gives its queues away and takes none any more."""


@dataclass(frozen=True, slots=True)
class StripesTold:
    """One of our queues has news of a re-striping."""

    queue_index: int
    news: StripesNews


@dataclass(frozen=True, slots=True)
class HeartbeatWanted:
    """Say a heartbeat now: that it comes back proves something."""


@dataclass(frozen=True, slots=True)
class WeightChanged:
    """This member's part of the queues is another one from now on; with 0 it gives away what others can take."""

    weight: int


@dataclass(frozen=True, slots=True)
class LeaveRequested:
    """This member is bound to nothing any more, and goes."""


MembershipEvent = (
    ControlConnected
    | ControlLost
    | ControlMessageReceived
    | ControlMessageDropped
    | OwnFlowsChanged
    | JoinDone
    | DrainStarted
    | StripesTold
    | HeartbeatWanted
    | WeightChanged
    | LeaveRequested
)


@dataclass(frozen=True, slots=True)
class SendHeartbeat:
    """Publish `MembershipMachine.heartbeat(...)` now, made from the flows as they are now."""


@dataclass(frozen=True, slots=True)
class SendStateRequest:
    """Publish a `StateRequest`, its header stamped when it is sent: others take no message out of order."""


@dataclass(frozen=True, slots=True)
class SendLeave:
    """Publish this; it is the last message of this life."""

    message: Leave


@dataclass(frozen=True, slots=True)
class ViewChanged:
    """Somebody came, went, became suspect or changed state: see whether queues should move."""

    view: GroupView


@dataclass(frozen=True, slots=True)
class FlowsReported:
    """A peer's flows are other than before; its counts of what is in flight alone are no news."""

    member: MemberId


@dataclass(frozen=True, slots=True)
class MoveMessageHeard:
    """A living peer said this of a move and it is no old news; whoever decides about moves hears only these."""

    message: MoveMessage


@dataclass(frozen=True, slots=True)
class StripingChanged:
    """More is known of which queue holds which shard (`MembershipMachine.striping`)."""


@dataclass(frozen=True, slots=True)
class DuplicateMemberFound:
    """Another process says it is this member: an operator's mistake, or an earlier life that is not over."""

    other: Life


@dataclass(frozen=True, slots=True)
class StandAside:
    """The other process with our id has the newer life: give up every queue and take none, as long as we live."""


@dataclass(frozen=True, slots=True)
class WinnerGone:
    """The process that we stand aside for said good-bye, or was silent for as long as the dead are."""


@dataclass(frozen=True, slots=True)
class SettingsDisagree:
    """A peer has another value for a setting that must be alike; None: it does not know the setting.

    Its heartbeats count for nothing until it is started with our settings. Told once per member, name and value.
    """

    member: MemberId
    name: str
    ours: str | None
    theirs: str | None


MembershipCommand = (
    SendHeartbeat
    | SendStateRequest
    | SendLeave
    | ViewChanged
    | FlowsReported
    | MoveMessageHeard
    | StripingChanged
    | DuplicateMemberFound
    | StandAside
    | WinnerGone
    | SettingsDisagree
    | Note
)
