"""Judges from the picture of a member alone whether it has started, and whether it has the queues that it should."""

from dataclasses import dataclass

from lbg_runtime.core.flow.table import FlowState
from lbg_runtime.core.group.membership import OwnState
from lbg_runtime.model.ids import QueueName
from lbg_runtime.status.picture import FlowPicture, MemberPicture


@dataclass(frozen=True, slots=True)
class Lack:
    """One reason why a member is not ready."""

    reason: str
    queue: QueueName | None = None
    """The queue concerned; None for the member as a whole."""
    state: FlowState | None = None
    """The state of the member's flow on the queue."""


def has_started(picture: MemberPicture) -> bool:
    """Whether the member has learned its place in the group and begun to bind.

    Once True it stays so, except that a member without a home, which counts as started, is not between getting its
    first home and its first bind."""
    if any(flow.epoch > 0 for flow in picture.flows):
        return True
    placement = None if picture.view is None else picture.view.placement
    # Only queues at home count: there may be more members than homes, and a standby binds some time after it has its
    # place, which it may get later. Judged by the placement, as flows learn their places after it, if there are many.
    return placement is not None and all(
        not ranked or ranked[0] != picture.member for ranked in placement.ranks.values()
    )


def lacks(picture: MemberPicture) -> tuple[Lack, ...]:
    """Why the member is not ready; empty if every queue that it is at home on is fed to it or has another owner.

    A queue that waits to be handed over, or that the broker still feeds to a secondary, is handled, so its home is
    ready. If no owner can be heard, because members do not talk or some speak another version, it is enough to stand
    by. A standby is ready whatever happens to the queues of others. A member that is fed a queue and cannot open its
    parking queue is not ready, wherever the queue's home is.
    """
    if picture.awaited_lifespan is not None:
        return (Lack(f"the lifespan {picture.awaited_lifespan} has not reached its yield"),)
    if picture.state is not OwnState.ACTIVE:
        return (Lack(f"the member is {picture.state.value}"),)
    if not has_started(picture):
        return (Lack("it has no place in the group yet"),)
    if not picture.is_connected:
        why = "" if picture.why_away is None else f": {picture.why_away}"
        return (Lack(f"the broker is out of reach{why}"),)
    if picture.view is not None and not picture.view.can_hear:
        return (Lack("the control topic is out of reach"),)
    waiting = [
        Lack(f"waits for its parking queue: {still.parking_wait.reason}", flow.queue, flow.state)
        for flow in picture.flows
        if (still := flow.standstill) is not None and still.parking_wait is not None
    ]
    lacking = [
        Lack(_not_fed(picture, flow), flow.queue, flow.state)
        for flow in picture.flows
        if flow.place.rank == 0 and flow.state is not FlowState.ACTIVE and not _has_other_owner(picture, flow)
    ]
    return (*waiting, *lacking)


def _not_fed(picture: MemberPicture, flow: FlowPicture) -> str:
    reason = "neither fed to this member nor known to have another owner"
    if flow.why_unbound is not None:
        reason = f"{reason}; {flow.why_unbound}"
    if picture.view is not None and picture.view.hears_other_versions:
        return f"{reason}, nor standing by; members of another version are not understood"
    return reason


def _has_other_owner(picture: MemberPicture, flow: FlowPicture) -> bool:
    view = picture.view
    if flow.state is FlowState.STANDBY and (view is None or view.hears_other_versions):
        # The owner may not be able to tell us; but if the broker has us stand by, somebody is before us. Otherwise a
        # rolling update that waits for each new member to be ready would stand still at the last old ones.
        return True
    return view is not None and view.group.owners.get(flow.queue, picture.member) != picture.member
