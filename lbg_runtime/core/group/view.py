"""What one member knows about its group at one moment, and how it is presented to `place` (core/group/placement.py)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lbg_runtime.core.group.control_messages import FlowReport, Life, MemberState, digest
from lbg_runtime.core.group.placement import Candidate
from lbg_runtime.model.ids import MemberId, QueueName

Claims = Mapping[QueueName, int]
"""The queues that a member says it owns, each with the local time at which it first said so, in ms."""


@dataclass(frozen=True, slots=True)
class MemberView:
    """One living member, ourselves included, as last heard."""

    member: MemberId
    life: Life
    state: MemberState
    weight: int
    is_suspect: bool
    """Silent for so long that it is given nothing new; never true of ourselves."""
    flows: Mapping[QueueName, FlowReport]

    @property
    def is_target(self) -> bool:
        """Whether queues may be offered to it now."""
        return _takes(self) and not self.is_suspect


@dataclass(frozen=True, slots=True)
class GroupView:
    """The living members, and who owns what according to them. The views of two members may differ."""

    members: tuple[MemberView, ...]
    """In order of ids."""
    owners: Mapping[QueueName, MemberId]
    """If two members claim one queue, the one whose claim we heard last."""

    def find(self, member: MemberId) -> MemberView | None:
        """That member, or None if it is not alive."""
        return next((one for one in self.members if one.member == member), None)

    def candidates(self) -> tuple[Candidate, ...]:
        """For `place`: every active member; a suspect one with weight 0, so that, with `pins`, it keeps what it had."""
        return tuple(Candidate(one.member, 0 if one.is_suspect else one.weight) for one in self.members if _takes(one))

    def pins(self, configured: Mapping[QueueName, MemberId]) -> dict[QueueName, MemberId]:
        """For `place`: the group's own pins, except that a suspect member keeps what it owns and gets nothing else."""
        suspects = {one.member for one in self.members if one.is_suspect and _takes(one)}
        pins = {queue: member for queue, member in configured.items() if member not in suspects}
        return pins | {queue: owner for queue, owner in self.owners.items() if owner in suspects}

    def digest(self) -> str:
        """A digest that is equal for views that lead to equal placements, given equal owners."""
        return digest(
            (one.member, one.life.incarnation, one.life.nonce, one.state.value, one.weight, int(one.is_suspect))
            for one in self.members
        )


def _takes(member: MemberView) -> bool:
    return member.state is MemberState.ACTIVE


def tell_something_else(reports: Mapping[QueueName, FlowReport], before: Mapping[QueueName, FlowReport]) -> bool:
    """Whether a queue, state or epoch is new; counts in flight change with every message and are ignored."""
    if reports.keys() != before.keys():
        return True
    # Usually one flow among a thousand has changed, so nothing is built for the comparison.
    for queue, report in reports.items():
        other = before[queue]
        if report.state is not other.state or report.epoch != other.epoch:
            return True
    return False


def updated_claims(claims: Claims, flows: Mapping[QueueName, FlowReport], now_ms: int) -> Claims:
    """The claims after a report; earlier claims keep their times."""
    return {queue: claims.get(queue, now_ms) for queue, flow in flows.items() if flow.is_owner}


def owners_by_claims(claims: Iterable[tuple[MemberId, Claims]]) -> Mapping[QueueName, MemberId]:
    """The owner of each queue: the newest claim, as the broker feeds only one; at equal times, the lowest member id."""
    newest: dict[QueueName, tuple[int, MemberId]] = {}
    for member, times in sorted(claims, key=lambda pair: pair[0]):
        for queue, claimed_at_ms in times.items():
            if queue not in newest or claimed_at_ms > newest[queue][0]:
                newest[queue] = (claimed_at_ms, member)
    return {queue: member for queue, (_, member) in sorted(newest.items())}
