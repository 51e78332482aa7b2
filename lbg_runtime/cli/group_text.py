"""What `lbg group` shows, as one object for programs and as text for people. Pure: the caller prints."""

from collections.abc import Iterable, Iterator, Sequence

from rich.table import Table

from lbg_runtime.core.group.control_messages import FlowReport, Heartbeat, ReportedFlow
from lbg_runtime.core.group.picture import GroupPicture
from lbg_runtime.model.ids import MemberId, QueueName

LEGEND = "● active, ◐ draining, ○ standby; the number is what is in flight"

_MARKS = {ReportedFlow.ACTIVE: "●", ReportedFlow.DRAINING: "◐", ReportedFlow.STANDBY: "○"}


def picture_as_object(picture: GroupPicture, queues: Sequence[QueueName]) -> dict[str, object]:
    """The picture as values that JSON knows. Keys are stable; more may be added."""
    return {
        "members": [_member_as_object(member, beat, picture) for member, beat in picture.members.items()],
        "queues": {queue: list(picture.owners.get(queue, ())) for queue in _all_queues(picture, queues)},
        "without_owner": _without_owner(picture, queues),
        "suspects": {member: list(by) for member, by in picture.suspects.items()},
        "unheard": {member: list(by) for member, by in picture.unheard.items()},
        "claimed_twice": list(picture.twice),
        "disagreements": [
            {"setting": one.name, "values": [{"value": value, "members": list(by)} for value, by in one.values.items()]}
            for one in picture.disagreements
        ],
    }


def _member_as_object(member: MemberId, beat: Heartbeat, picture: GroupPicture) -> dict[str, object]:
    return {
        "member": member,
        "incarnation": beat.header.life.incarnation,
        "state": beat.state.value,
        "weight": beat.weight,
        "suspect_for": list(picture.suspects.get(member, ())),
        "flows": {
            queue: {"state": flow.state.value, "epoch": flow.epoch, "in_flight": flow.in_flight}
            for queue, flow in sorted(beat.flows.items(), key=lambda pair: natural(pair[0]))
        },
    }


def picture_as_table(picture: GroupPicture, queues: Sequence[QueueName]) -> Table:
    """A row for each queue, a column for each member."""
    members = picture.members
    table = Table()
    table.add_column("queue")
    for member in members:
        table.add_column(member, justify="right")
    for queue in _all_queues(picture, queues):
        table.add_row(queue, *(_cell(beat.flows.get(queue)) for beat in members.values()))
    table.add_section()
    beats = members.values()
    table.add_row("queues", *(str(sum(flow.is_owner for flow in beat.flows.values())) for beat in beats))
    table.add_row("in flight", *(str(sum(flow.in_flight for flow in beat.flows.values())) for beat in beats))
    table.add_row("state", *(beat.state.value for beat in beats))
    table.add_row("weight", *(str(beat.weight) for beat in beats))
    return table


def remarks(picture: GroupPicture, queues: Sequence[QueueName]) -> Iterator[str]:
    """What someone should look at, a line each; none for a group that is well."""
    if lacking := _without_owner(picture, queues):
        yield "no owner: " + ", ".join(lacking)
    for member, by in picture.suspects.items():
        yield f"suspect: {member}, silent for {_names(by)}"
    for member, by in picture.unheard.items():
        yield f"not heard: {member}, a living member to {_names(by)}"
    for member in picture.twice:
        yield f"claimed twice: {member}, by more than one process"
    for one in picture.disagreements:
        values = (f"{_value(value)} ({_names(by)})" for value, by in one.values.items())
        yield f"settings disagree: {one.name}: " + ", ".join(values)


def _all_queues(picture: GroupPicture, queues: Sequence[QueueName]) -> list[QueueName]:
    told = {queue for beat in picture.members.values() for queue in beat.flows}
    return [*queues, *sorted(told.difference(queues), key=natural)]


def _without_owner(picture: GroupPicture, queues: Sequence[QueueName]) -> list[QueueName]:
    owners = picture.owners
    return [queue for queue in _all_queues(picture, queues) if queue not in owners]


def natural(queue: str) -> tuple[str, int, str]:
    """Sorts names by the number they end in."""
    head = queue.rstrip("0123456789")
    tail = queue[len(head) :]
    return head, int(tail or 0), tail


def _cell(flow: FlowReport | None) -> str:
    if flow is None:
        return ""
    return _MARKS[flow.state] if flow.state is ReportedFlow.STANDBY else f"{_MARKS[flow.state]} {flow.in_flight}"


def _names(names: Iterable[str]) -> str:
    return ", ".join(names)


def _value(value: str | None) -> str:
    return "unknown" if value is None else repr(value)
