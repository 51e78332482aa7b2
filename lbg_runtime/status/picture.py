"""What one member shows of itself at one moment, without what others might answer. Values, made on the member's
loop."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from lbg_runtime.core.flow.events import ReleaseCause
from lbg_runtime.core.flow.table import FlowState
from lbg_runtime.core.group.control_messages import AboutKey, FlowReport, KeySight, ParkingWait
from lbg_runtime.core.group.membership import OwnState
from lbg_runtime.core.group.placement import Placement
from lbg_runtime.core.group.view import GroupView
from lbg_runtime.core.roles import Place
from lbg_runtime.model.ids import Epoch, GroupName, MemberId, QueueName

WAIT_IS_LONG_MS = 5_000
"""From when on a wait for a parking queue is shown: unless something is wrong, it is opened much sooner."""


@dataclass(frozen=True, slots=True)
class Standstill:
    """Why nothing is started of a queue that is fed to the member: at least one of two reasons."""

    is_stopped: bool
    """As in `FlowPicture`."""
    parking_wait: ParkingWait | None
    """Only a long wait: every new owner has a short one."""


def standstill_of(wait: ParkingWait | None, *, is_stopped: bool) -> Standstill | None:
    """The standstill of a queue with this wait for its parking queue, if any, and that has stopped or not; None if it
    does not stand still."""
    long_wait = wait if wait is not None and wait.waited_ms >= WAIT_IS_LONG_MS else None
    return Standstill(is_stopped, long_wait) if is_stopped or long_wait is not None else None


@dataclass(frozen=True, slots=True)
class FlowPicture:
    """One queue of the group as this member has it, bound or not."""

    queue: QueueName
    place: Place
    state: FlowState
    epoch: Epoch
    cause: ReleaseCause | None
    """Why its handle is being given up; None if it is not."""
    in_flight: int
    handled: int
    """Deliveries settled as accepted in this life."""
    is_stopped: bool
    """Whether nothing more of its handle is started, because a message has failed permanently."""
    parking_wait: ParkingWait | None
    """Why nothing of it is handled although it is fed to this member: what is parked is not known yet."""
    why_unbound: str | None
    """Why it has no handle: the last bind failed, or the handle was lost; None otherwise."""

    @property
    def standstill(self) -> Standstill | None:
        """Why nothing of it is started although it is fed to this member; None if it does not stand still."""
        return standstill_of(self.parking_wait, is_stopped=self.is_stopped)


@dataclass(frozen=True, slots=True)
class ViewPicture:
    """What the member knows of its group."""

    group: GroupView
    placement: Placement | None
    """None until the group has been seen for long enough."""
    can_hear: bool
    """Whether the control topic is in reach (`ControlPlaneMachine.can_hear`); if it is not, what is known of others is
    old."""
    hears_other_versions: bool
    """Whether members of another version spoke lately; they may own queues, and nothing is known of them."""


@dataclass(frozen=True, slots=True)
class MemberPicture:
    group: GroupName
    member: MemberId
    incarnation: int
    state: OwnState
    weight: int
    flows: tuple[FlowPicture, ...]
    """One for each queue of the group, by index."""
    view: ViewPicture | None
    """None if members do not talk to each other."""
    changed_settings: tuple[str, ...]
    """Settings of the group that by now differ on the broker from those the member was started with, if it looks."""
    is_connected: bool
    """Whether the broker is in reach."""
    why_away: str | None
    """Why the broker is out of reach, if that is known."""
    awaited_lifespan: str | None
    """The lifespan that has yet to reach its `yield` before the member joins; None if there is none."""


@dataclass(frozen=True, slots=True)
class HandledPicture:
    """What a member has handled and parked, and what stands still: no more than is needed by those who ask often."""

    member: MemberId
    incarnation: int
    """The life of the member: counts of different lives cannot be compared."""
    handled: Mapping[int, int] | None
    """Deliveries settled as accepted in this life, by index of the queue, if there are any; None if not told."""
    keys_parked: int | None = None
    """Keys of which messages are parked in the queues that the member owns, as far as it knows; None if not told."""
    standing_still: Mapping[int, Standstill] = field(default_factory=dict)
    """The queues fed to the member of which nothing is started, by index."""


@dataclass(frozen=True, slots=True)
class KeyPicture(AboutKey):
    member: MemberId
    key: str
    shard: int
    queue: QueueName
    owner: MemberId | None
    """The owner of the queue, as far as the member knows."""
    flow: FlowReport | None
    """The member's own flow; None if it is not bound to the queue."""
    sight: KeySight
    wait: ParkingWait | None
    """As in `KeyAnswer`."""
    is_stopped: bool
    """As in `KeyAnswer`."""
