"""What a group wishes of a member on a queue. What the broker does is activity; neither is derived from the other."""

from enum import Enum

from lbg_runtime.model.errors import UserError


class Role(Enum):
    """A member's part on one queue. Values are those of the journal."""

    PRIMARY = "primary"
    """Binds and stays."""
    SECONDARY = "secondary"
    """Binds, and while it is active gives way once per rebind cycle, so that the primary comes to its queue."""


def static_role(queue_index: int, member_index: int, member_count: int) -> Role:
    """The role of member `member_index` of `member_count` on a queue: primary where queue mod count = index.

    Source: "sticky load balancing" as Solace describes it. Members need not all be running: a queue whose primary is
    away is held by a secondary. Raises `UserError` for an index that is no member of the count.
    """
    check_membership(member_index, member_count)
    return Role.PRIMARY if queue_index % member_count == member_index else Role.SECONDARY


def check_membership(member_index: int, member_count: int) -> None:
    """Raise `UserError` unless 0 <= member_index < member_count."""
    if member_count < 1:
        raise UserError("membership.count", str(member_count), "at least 1 member")
    if not 0 <= member_index < member_count:
        raise UserError("membership.index", str(member_index), f"0 to {member_count - 1}, for {member_count} members")
