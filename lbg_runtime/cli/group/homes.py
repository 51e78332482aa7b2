"""Where the queues of a group belong, computed from what its members said, as each of them computes it. Pure."""

from collections.abc import Sequence

from lbg_runtime.core.group.picture import GroupPicture
from lbg_runtime.core.group.placement import Placement, place
from lbg_runtime.core.group.view import GroupView, MemberView
from lbg_runtime.model.ids import MemberId, QueueName
from lbg_runtime.model.whole import whole_number
from lbg_runtime.runtime.membership import counted_homes

MAX_QUEUES = 10_000
"""Bound, as whoever speaks on the control topic may claim any number, and a row is printed for each queue."""


def group_queues(picture: GroupPicture, queues: Sequence[QueueName]) -> Sequence[QueueName]:
    """The queues of the group by index: as its members say, as they know of a re-striping; else as our settings say."""
    beats = picture.members.values()
    totals = {beat.striping.striping.queue_total for beat in beats}
    if len(totals) != 1 or (total := totals.pop()) > MAX_QUEUES:
        return queues
    (group,) = {beat.header.group for beat in beats}
    return [QueueName(f"{group}/{index}") for index in range(total)]


def derived_placement(picture: GroupPicture, queues: Sequence[QueueName]) -> Placement | None:
    """The placement that the members compute; None unless all see the members that we heard, and agree on owners.

    `queues` are those of `group_queues`.
    """
    beats = picture.members
    view = GroupView(
        tuple(
            MemberView(member, beat.header.life, beat.state, beat.weight, member in picture.suspects, beat.flows)
            for member, beat in beats.items()
        ),
        {queue: owners[0] for queue, owners in picture.owners.items()},
    )
    told = {queue for beat in beats.values() for queue in beat.flows}
    is_agreed = all(beat.view_digest == view.digest() for beat in beats.values())
    is_settled = all(len(owners) == 1 for owners in picture.owners.values())
    if not beats or not is_agreed or not is_settled or picture.disagreements or not told <= set(queues):
        return None
    return place(queues, view.candidates(), view.owners, view.pins(_configured_pins(picture, queues)))


def _configured_pins(picture: GroupPicture, queues: Sequence[QueueName]) -> dict[QueueName, MemberId]:
    """The pins of counted members, who state their count themselves; the settings of the caller need not have it."""
    counts = {beat.settings.get("membership.count", "") for beat in picture.members.values()}
    count = whole_number(next(iter(counts)), 9)
    return counted_homes(queues, count) if count else {}
