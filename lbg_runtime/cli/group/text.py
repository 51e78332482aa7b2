"""What `lbg group` shows, as one object for programs and as text for people. Pure: the caller prints."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TypeVar

from rich.table import Table

from lbg_runtime.admin.sight import QueueSight
from lbg_runtime.cli.group.homes import derived_placement, group_queues
from lbg_runtime.cli.group.unowned import why_unowned
from lbg_runtime.core.group.control_messages import FlowReport, Heartbeat, ReportedFlow
from lbg_runtime.core.group.picture import GroupPicture
from lbg_runtime.core.group.placement import Placement
from lbg_runtime.model.ids import MemberId, QueueName

LEGEND = "● active, ◐ draining, ○ standby; ⌂ at home, +1 the first standby; the number is what is in flight"

_Told = TypeVar("_Told")

_MARKS = {ReportedFlow.ACTIVE: "●", ReportedFlow.DRAINING: "◐", ReportedFlow.STANDBY: "○"}


@dataclass(frozen=True, slots=True)
class FedMember:
    """The member to which the broker feeds a queue, and the name of its client."""

    member: MemberId
    client: str


def picture_as_object(picture: GroupPicture, queues: Sequence[QueueName], hash_count: int) -> dict[str, object]:
    """The picture as values that JSON knows. Keys are stable; more may be added."""
    placement = _placement(picture, queues)
    return {
        "members": [_member_as_object(member, beat, picture, placement) for member, beat in picture.members.items()],
        "queues": {queue: list(picture.owners.get(queue, ())) for queue in _all_queues(picture, queues)},
        "placement": None if placement is None else {queue: list(ranked) for queue, ranked in placement.ranks.items()},
        "restriping": _restriping_as_object(picture, hash_count),
        "without_owner": _without_owner(picture, queues),
        "parking_waits": {
            queue: {"member": member, **asdict(wait)} for queue, (member, wait) in _by_number(picture.waits).items()
        },
        "stopped": _by_number(picture.stopped),
        "suspects": {member: list(by) for member, by in picture.suspects.items()},
        "unheard": {member: list(by) for member, by in picture.unheard.items()},
        "claimed_twice": list(picture.twice),
        "disagreements": [
            {"setting": one.name, "values": [{"value": value, "members": list(by)} for value, by in one.values.items()]}
            for one in picture.disagreements
        ],
    }


def _restriping_as_object(picture: GroupPicture, hash_count: int) -> dict[str, int] | None:
    striping = picture.striping
    if striping is None or striping.target is None:
        return None
    _, left = striping.moves(hash_count)
    return {"from": striping.queue_count, "to": striping.target, "shards_left": left}


def _member_as_object(
    member: MemberId, beat: Heartbeat, picture: GroupPicture, placement: Placement | None
) -> dict[str, object]:
    return {
        "member": member,
        "incarnation": beat.header.life.incarnation,
        "version": picture.versions.get(member),
        "state": beat.state.value,
        "weight": beat.weight,
        "suspect_for": list(picture.suspects.get(member, ())),
        "flows": {
            queue: {
                "rank": _rank(placement, queue, member),
                "state": flow.state.value,
                "epoch": flow.epoch,
                "in_flight": flow.in_flight,
            }
            for queue, flow in sorted(beat.flows.items(), key=lambda pair: natural(pair[0]))
        },
    }


def picture_as_table(picture: GroupPicture, queues: Sequence[QueueName]) -> Table:
    """A row for each queue, a column for each member."""
    members = picture.members
    placement = _placement(picture, queues)
    table = Table()
    table.add_column("queue")
    for member in members:
        table.add_column(member, justify="right")
    for queue in _all_queues(picture, queues):
        cells = (_cell(beat.flows.get(queue), _rank(placement, queue, one)) for one, beat in members.items())
        table.add_row(queue, *cells)
    table.add_section()
    beats = members.values()
    table.add_row("queues", *(str(sum(flow.is_owner for flow in beat.flows.values())) for beat in beats))
    table.add_row("in flight", *(str(sum(flow.in_flight for flow in beat.flows.values())) for beat in beats))
    table.add_row("state", *(beat.state.value for beat in beats))
    table.add_row("weight", *(str(beat.weight) for beat in beats))
    versions = picture.versions
    table.add_row("version", *(versions.get(member, "?") for member in members))
    return table


def remarks(
    picture: GroupPicture,
    queues: Sequence[QueueName],
    fed: Mapping[QueueName, FedMember],
    sights: Mapping[QueueName, QueueSight] | None,
) -> Iterator[str]:
    """What someone should look at, a line each; none for a group that is well. `fed` is whom the broker feeds, as far
    as that is known; `sights` the group's queues on the broker, if it was asked."""
    if (striping := picture.striping) is not None and (count := striping.target) is not None:
        what = f"re-striping: from {striping.queue_count} to {count} queues is not over"
        yield f"{what}: if nobody runs it, `lbg group restripe --queues {count}` ends it"
    lacking = _without_owner(picture, queues)
    silent = {queue: fed[queue] for queue in lacking if queue in fed and fed[queue].member not in picture.members}
    nobodys: dict[str, list[QueueName]] = {}
    for queue in lacking:
        if queue not in silent:
            nobodys.setdefault(why_unowned(picture, queue, sights), []).append(queue)
    for reason, its_queues in nobodys.items():
        yield f"no owner: {', '.join(its_queues)}: {reason}"
    for whom in dict.fromkeys(silent.values()):
        its = ", ".join(queue for queue, fed_to in silent.items() if fed_to == whom)
        yield f"fed to {whom.client}, which is not heard: {its}: `lbg group evict {whom.member}`"
    for queue, (member, wait) in _by_number(picture.waits).items():
        waited_s = wait.waited_ms / 1_000
        yield f"waits for its parking queue: {queue} of {member}, for {waited_s:.1f} s: {wait.reason}"
    for queue, member in _by_number(picture.stopped).items():
        yield f"has stopped: {queue} of {member}: `queue_stopped` in its log says why"
    for member, by in picture.suspects.items():
        yield f"suspect: {member}, silent for {', '.join(by)}"
    for member, by in picture.unheard.items():
        yield f"not heard: {member}, which is alive according to {', '.join(by)}"
    for member in picture.twice:
        yield f"claimed twice: {member}, by more than one process"
    if len(versions := _members_by_version(picture)) > 1:
        yield "versions differ: " + ", ".join(f"{one} ({', '.join(by)})" for one, by in versions.items())
    for one in picture.disagreements:
        values = (f"{_value(value)} ({', '.join(by)})" for value, by in one.values.items())
        yield f"settings disagree: {one.name}: " + ", ".join(values)
    if picture.members and _placement(picture, queues) is None:
        yield "homes are not known: members do not agree yet on who is there, or a queue is on its way"


def otherwise_at_members(picture: GroupPicture, ours: Mapping[str, str]) -> dict[str, dict[str, list[MemberId]]]:
    """Those of our settings that members have otherwise, by path: each of their values, with who has it."""
    found: dict[str, dict[str, list[MemberId]]] = {}
    for member, beat in picture.members.items():
        for name, value in ours.items():
            if (theirs := beat.settings.get(name, value)) != value:
                found.setdefault(name, {}).setdefault(theirs, []).append(member)
    return found


def surplus_queues(
    picture: GroupPicture, queues: Sequence[QueueName], on_broker: Iterable[QueueName]
) -> list[QueueName]:
    """Those queues on the broker that no member names, sorted by number: nobody binds to them.

    If members do not agree how many queues there are, those that the settings do not name either.
    """
    return sorted(set(on_broker).difference(_all_queues(picture, queues)), key=natural)


def _members_by_version(picture: GroupPicture) -> dict[str, list[MemberId]]:
    found: dict[str, list[MemberId]] = {}
    versions = picture.versions
    for member in picture.members:
        found.setdefault(versions.get(member, "not told"), []).append(member)
    return found


def _by_number(told: Mapping[QueueName, _Told]) -> dict[QueueName, _Told]:
    return dict(sorted(told.items(), key=lambda pair: natural(pair[0])))


def _all_queues(picture: GroupPicture, queues: Sequence[QueueName]) -> list[QueueName]:
    told = {queue for beat in picture.members.values() for queue in beat.flows}
    known = group_queues(picture, queues)
    return [*known, *sorted(told.difference(known), key=natural)]


def _placement(picture: GroupPicture, queues: Sequence[QueueName]) -> Placement | None:
    return derived_placement(picture, group_queues(picture, queues))


def _without_owner(picture: GroupPicture, queues: Sequence[QueueName]) -> list[QueueName]:
    owners = picture.owners
    return [queue for queue in _all_queues(picture, queues) if queue not in owners]


def natural(queue: str) -> tuple[str, int, str]:
    """A key that sorts names by the number they end in."""
    head = queue.rstrip("0123456789")
    tail = queue[len(head) :]
    return head, int(tail or 0), tail


def _rank(placement: Placement | None, queue: QueueName, member: MemberId) -> int | None:
    return None if placement is None else placement.rank(queue, member)


def _cell(flow: FlowReport | None, rank: int | None) -> str:
    if flow is None:
        # A member that merely could stand by is not marked, as every member could.
        return "⌂" if rank == 0 else ""
    facts = [] if rank is None else ["⌂" if rank == 0 else f"+{rank}"]
    facts.append(_MARKS[flow.state])
    facts += [] if flow.state is ReportedFlow.STANDBY else [str(flow.in_flight)]
    return " ".join(facts)


def _value(value: str | None) -> str:
    return "unknown" if value is None else repr(value)
