"""What is known about a group's members, from their journals alone: who holds which queue, and every move."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class Cell:
    role: str = ""
    state: str = "unbound"
    in_flight: int = 0
    handled: int = 0


@dataclass(frozen=True, slots=True)
class Move:
    """A queue's first handling by a new owner. `pause_ms` runs from the old owner's last handling to that one."""

    queue: int
    source: str
    target: str
    cause: str
    pause_ms: float


@dataclass(slots=True)
class _Ownership:
    member: str
    incarnation: int
    last_done_ns: int


@dataclass(slots=True)
class Board:
    """Fed with journal records in the order of their monotonic times. Owned by one task."""

    cells: dict[tuple[int, str], Cell] = field(default_factory=dict)
    moves: list[Move] = field(default_factory=list)
    distinct: set[tuple[object, ...]] = field(default_factory=set)
    """Messages that were handled, each once: publisher, key, number within the key."""
    _owners: dict[int, _Ownership] = field(default_factory=dict)
    _ends: dict[tuple[int, str, int], str] = field(default_factory=dict)
    """Why a life of a member last let go of a queue."""

    def apply(self, member: str, incarnation: int, record: Mapping[str, object]) -> None:
        """Take one journal record of this life of a member into the picture."""
        match record["kind"]:
            case "flow":
                self._flow(member, incarnation, record)
            case "dispatch":
                self._dispatch(member, incarnation, record)
            case "status":
                cell = self.cell(_number(record, "queue"), member)
                cell.role = str(record["role"])
                cell.state = str(record["state"])
                cell.in_flight = _number(record, "in_flight")

    def member_gone(self, member: str) -> None:
        """The member's process has ended: none of its flows is bound any more."""
        for (_, name), cell in self.cells.items():
            if name == member:
                cell.state, cell.in_flight = "gone", 0

    def cell(self, queue: int, member: str) -> Cell:
        """The cell of a queue at a member, made when first asked for."""
        return self.cells.setdefault((queue, member), Cell())

    def active_queues(self, member: str) -> set[int]:
        """Queues that the member is being fed from."""
        return {queue for (queue, name), cell in self.cells.items() if name == member and cell.state == "active"}

    def owned_queues(self) -> set[int]:
        """Queues that some member is being fed from."""
        return {queue for (queue, _), cell in self.cells.items() if cell.state == "active"}

    def primaries_at_home(self, member: str) -> bool:
        """Whether the member is fed from every queue of which it is the primary, and has such queues."""
        roles = [cell.state for (_, name), cell in self.cells.items() if name == member and cell.role == "primary"]
        return bool(roles) and all(state == "active" for state in roles)

    def _flow(self, member: str, incarnation: int, record: Mapping[str, object]) -> None:
        queue = _number(record, "queue")
        cell = self.cell(queue, member)
        cell.role = str(record["role"])
        event = str(record["event"])
        stood_by = cell.state == "standby"
        cell.state = {"bound": "standby", "inactive": "draining", "released": "unbound", "down": "unbound"}.get(
            event, event
        )
        # A standby that lets go ends no member's hold on the queue.
        if not stood_by and event in ("inactive", "draining", "released", "down"):
            cause = str(record["cause"]) if event in ("draining", "released") else event
            self._ends[queue, member, incarnation] = cause
        elif event == "active":
            self._ends.pop((queue, member, incarnation), None)

    def _dispatch(self, member: str, incarnation: int, record: Mapping[str, object]) -> None:
        queue = _number(record, "queue")
        self.cell(queue, member).handled += 1
        if record["outcome"] == "accepted":
            self.distinct.add((record["publisher"], record["key"], record["seq"]))
        owner = self._owners.get(queue)
        done_ns = _number(record, "done_mono_ns")
        if owner is None or (owner.member, owner.incarnation) != (member, incarnation):
            if owner is not None:
                pause_ms = (_number(record, "start_mono_ns") - owner.last_done_ns) / 1e6
                # A life that never let go was ended from outside.
                cause = self._ends.get((queue, owner.member, owner.incarnation), "crash")
                self.moves.append(Move(queue, owner.member, member, cause, max(0.0, pause_ms)))
            self._owners[queue] = _Ownership(member, incarnation, done_ns)
        else:
            owner.last_done_ns = max(owner.last_done_ns, done_ns)


def _number(record: Mapping[str, object], name: str) -> int:
    value = record[name]
    if not isinstance(value, int):
        raise TypeError(f"{name} of a {record['kind']} record is {value!r}, not a number")
    return value
