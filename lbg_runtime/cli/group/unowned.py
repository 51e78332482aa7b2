"""Why nobody has a queue, by what members and the broker said when they were asked. Pure."""

from collections.abc import Iterable, Mapping

from lbg_runtime.admin.sight import QueueSight
from lbg_runtime.core.group.control_messages import KeyAnswer, MemberState
from lbg_runtime.core.group.picture import GroupPicture
from lbg_runtime.model.counted import counted
from lbg_runtime.model.ids import QueueName

_ON_THE_WAY = {MemberState.JOINING: "joining", MemberState.DRAINING: "leaving"}


def why_unowned(
    picture: GroupPicture,
    queue: QueueName,
    sights: Mapping[QueueName, QueueSight] | None = None,
    answers: Iterable[KeyAnswer] = (),
) -> str:
    """What keeps a queue from having an owner, as far as it was told.

    `sights` are all queues of the group on the broker, if that was asked; `answers` those about a key of the queue.
    """
    sight = None if sights is None else sights.get(queue)
    if sight is not None and sight.is_shut:
        return "its egress is switched off on the broker (egressEnabled)"
    if sight is not None and sight.fed is not None:
        return f"the broker feeds it to {sight.fed}"
    standbys = {member for member, beat in picture.members.items() if queue in beat.flows}
    standbys.update(answer.header.member for answer in answers if answer.flow is not None)
    if standbys:
        feeds = "none says that the broker feeds it" if sight is None else "the broker feeds nobody"
        return f"bound as standby: {', '.join(sorted(standbys))}; {feeds}"
    if sights is not None and sight is None:
        return "it is not on the broker"
    if sight is not None and not sight.flow_count:
        return f"nobody is bound to it{_on_the_way(picture)}"
    others = "" if sight is None else f", and {counted(sight.flow_count, 'flow')} of others"
    return f"no member that was heard is bound to it{others}{_on_the_way(picture)}"


def _on_the_way(picture: GroupPicture) -> str:
    """What all members do instead, if it is the same."""
    states = {beat.state for beat in picture.members.values()}
    doing = _ON_THE_WAY.get(states.pop()) if len(states) == 1 else None
    return "" if doing is None else f": all members that were heard are {doing}"
