"""The inputs and outputs of a membership machine. The shell carries the commands out, in the order given."""

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
    """Nothing can be heard or said from now on; this says nothing about the other members."""


@dataclass(frozen=True, slots=True)
class ControlMessageReceived:
    """A message of this group arrived, from any sender; our own messages may or may not come back."""

    message: ControlMessage


@dataclass(frozen=True, slots=True)
class ControlMessageDropped:
    """Bytes arrived on the control topic that are no control message of this group."""

    reason: RefusalReason


@dataclass(frozen=True, slots=True)
class OwnFlowsChanged:
    """All flows that this member is bound to; sent whenever one is bound, fed or given up."""

    flows: Mapping[QueueName, FlowReport]


@dataclass(frozen=True, slots=True)
class JoinDone:
    """This member can take queues from now on."""


@dataclass(frozen=True, slots=True)
class DrainStarted:
    """This member gives its queues away and no longer takes any."""


@dataclass(frozen=True, slots=True)
class StripesTold:
    """One of our queues has news of a re-striping."""

    queue_index: int
    news: StripesNews


@dataclass(frozen=True, slots=True)
class HeartbeatWanted:
    """Send a heartbeat now: a probe goes with it, which is answered when the heartbeat comes back to us."""


@dataclass(frozen=True, slots=True)
class WeightChanged:
    """This member's share of the queues changes from now on; with 0 it gives away what others can take."""

    weight: int


@dataclass(frozen=True, slots=True)
class LeaveRequested:
    """This member is bound to nothing any more, and leaves the group."""


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
    """Publish `MembershipMachine.heartbeat(...)` now, with the flows as they are now."""


@dataclass(frozen=True, slots=True)
class SendStateRequest:
    """Publish a `StateRequest`; stamp its header when it is sent, as others accept no message out of order."""


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
    """A peer's flows have changed. Counts in flight alone are no change."""


@dataclass(frozen=True, slots=True)
class MoveMessageHeard:
    """A living peer said this about a move, and it is not outdated. The rebalance machine hears no other messages."""

    message: MoveMessage


@dataclass(frozen=True, slots=True)
class StripingChanged:
    """More is known about which queue holds which shard (`MembershipMachine.striping`)."""


@dataclass(frozen=True, slots=True)
class DuplicateMemberFound:
    """Another process claims to be this member: an operator's mistake, or an earlier life that is not over."""

    other: Life


@dataclass(frozen=True, slots=True)
class StandAside:
    """The other process with our id has the newer life: give up every queue and take none, as long as we live."""


@dataclass(frozen=True, slots=True)
class WinnerGone:
    """The process that we stand aside for said that it leaves, or was silent for long enough to count as dead."""


@dataclass(frozen=True, slots=True)
class SettingsDisagree:
    """A peer has another value for a setting that must be the same everywhere. A value of None means that the setting
    is not known there.

    Its heartbeats count for nothing until it is started with our settings. Reported once per member, name and value.
    """

    member: MemberId
    name: str
    ours: str | None
    theirs: str | None
    is_alone: bool = False
    """Whether the peer is bound to no queue while members with our settings own some: the group's settings are ours."""


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
