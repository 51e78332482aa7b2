"""What viewers are sent: the whole picture once, then what is new to each of them. Pure.

Every part has the number of the change that it comes from, so that a viewer that is slow, or was away, is sent the
newest state of what changed, and nothing is kept for it meanwhile.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lbg_runtime.core.group.control_messages import ReportedFlow
from lbg_runtime.core.group.placement import Placement
from lbg_runtime.core.restripe.striping import Striping
from lbg_runtime.dashboard.board import GroupBoard, Move
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.ids import MemberId, QueueName

Row = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Figures:
    """What members have told lately when they were asked, put together."""

    rates: Mapping[int, float] | None = None
    """Messages per second, by index of the queue; a queue with none is left out. None if no member's can be told."""
    keys_parked: int | None = None
    """None if no member tells it."""
    is_parked_unknown: bool = False
    """Whether there are queues of which their owner does not know what is parked: it is not in `keys_parked`."""
    standing_still: Mapping[tuple[MemberId, int], tuple[str | None, int | None]] = field(default_factory=dict)
    """The queues that stand still, by the member that says so and their index.

    With each why it waits for its parking queue, and since when; None and None if it has stopped.
    """


NO_FIGURES = Figures()


@dataclass(frozen=True, slots=True)
class Sight:
    """Everything to show at one moment, besides what the board knows."""

    queues: Sequence[QueueName]
    """By index."""
    placement: Placement | None
    """None if members do not agree; the last known one is shown then."""
    depths: Mapping[QueueName, int] | None
    """None if the broker does not tell them."""
    is_connected: bool
    striping: Striping | None
    figures: Figures = NO_FIGURES
    not_understood: str | None = None
    """Why members may be there that are not shown; None if there is no sign of any."""


class Feed:
    """One per page; one task calls `update`, all viewers' tasks call `since`, on one loop.

    Members are named by their position in a list, as names are long and there may be a thousand queues. A member that
    is gone keeps its position as long as a queue or a kept move names it; then the next new member may have it.
    """

    def __init__(self, shape: GroupShape, began_ms: int) -> None:
        """`began_ms`: since when the group is watched."""
        self.version = 0
        """Number of the newest change."""
        self._shape = shape
        self._began_ms = began_ms
        self._meta: tuple[int, dict[str, object]] = (0, {})
        self._positions: dict[MemberId, int] = {}
        self._free: list[int] = []
        """Positions that no member has."""
        self._members: list[tuple[int, Row]] = []
        self._queues: list[tuple[int, Row]] = []
        self._moves: list[tuple[int, Row]] = []
        self._newest_move = 0
        self._placement: Placement | None = None

    def update(self, board: GroupBoard, sight: Sight) -> bool:
        """Take the present state; return whether anything is new."""
        self._placement = sight.placement or self._placement
        version = self.version + 1
        for name in sorted(board.members):
            self._position(name)
        rows = [self._queue_row(board, sight, index, name) for index, name in enumerate(sight.queues)]
        is_new = _replace(self._queues, rows, version)
        is_new |= self._update_moves(board, sight, version)
        # After everything that gives members a position: whose it was before must no longer be told.
        is_new |= self._update_members(board, version)
        self._free_positions(board)
        meta = self._meta_of(sight)
        if meta != self._meta[1]:
            self._meta = (version, meta)
            is_new = True
        if is_new:
            self.version = version
        return is_new

    def since(self, seen: int, now_ms: int) -> dict[str, object]:
        """What is newer than the version `seen`, as JSON values; everything for 0."""
        told: dict[str, object] = {"version": self.version, "now": now_ms, "whole": seen == 0}
        if self._meta[0] > seen:
            told["meta"] = self._meta[1]
        # A viewer that has seen nothing need not be told whose position a free one was.
        left_out = frozenset() if seen else frozenset(self._free)
        for name, rows, without in (("members", self._members, left_out), ("queues", self._queues, frozenset())):
            told[name] = {
                index: row for index, (version, row) in enumerate(rows) if version > seen and index not in without
            }
        told["moves"] = [row for version, row in self._moves if version > seen]
        return told

    def _meta_of(self, sight: Sight) -> dict[str, object]:
        shape, striping, figures = self._shape, sight.striping, sight.figures
        restriping = None
        if striping is not None and striping.target is not None:
            moving, left = striping.moves(shape.hash_count)
            restriping = [striping.queue_count, striping.target, left, moving]
        return {
            "group": shape.name,
            "since": self._began_ms,
            "prefix": shape.hash_prefix,
            "shards": shape.hash_count,
            "queues": len(sight.queues),
            "connected": sight.is_connected,
            "placed": sight.placement is not None,
            "rates": figures.rates is not None,
            "depths": sight.depths is not None,
            "parked": figures.keys_parked,
            "parked_unknown": figures.is_parked_unknown,
            "restriping": restriping,
            "not_understood": sight.not_understood,
        }

    def _update_members(self, board: GroupBoard, version: int) -> bool:
        known = {index: row for index, (_, row) in enumerate(self._members)}
        versions = board.picture.versions
        for name, position in self._positions.items():
            member = board.members.get(name)
            if member is None:
                known[position] = (name, None, 0, 0, None)
            else:
                told = member.presence.value, member.weight, member.since_ms, versions.get(name)
                known[position] = (name, *told)
        return _replace(self._members, [known[position] for position in range(len(known))], version)

    def _free_positions(self, board: GroupBoard) -> None:
        gone = [(name, position) for name, position in self._positions.items() if name not in board.members]
        if not gone:
            return
        # Columns in the row of a queue: its owner and its home; in that of a move: giver and taker.
        named = {row[column] for _, row in self._queues for column in (0, 3)}
        named |= {row[column] for _, row in self._moves for column in (3, 4)}
        for name, position in gone:
            if position not in named:
                del self._positions[name]
                self._free.append(position)

    def _queue_row(self, board: GroupBoard, sight: Sight, index: int, name: QueueName) -> Row:
        queue = board.queues.get(name)
        owner = None if queue is None else queue.owner
        state, since_ms, in_flight = "none", 0 if queue is None else queue.since_ms, 0
        if queue is not None and owner is not None:
            state = "draining" if queue.is_draining else "active"
            report = board.members[owner].flows.get(name) if owner in board.members else None
            in_flight = 0 if report is None else report.in_flight
        ranked, rates = () if self._placement is None else self._placement.ranks.get(name, ()), sight.figures.rates
        standbys = [
            self._position(member)
            for member in (ranked or sorted(board.members))
            if member != owner and member in board.members and _stands_by(board, member, name)
        ]
        return (
            None if owner is None else self._position(owner),
            state,
            in_flight,
            self._position(ranked[0]) if ranked else None,
            standbys,
            since_ms,
            None if rates is None else round(rates.get(index, 0.0), 1),
            None if sight.depths is None else sight.depths.get(name),
            # By its owner: another has given it up since it said so.
            None if owner is None else sight.figures.standing_still.get((owner, index)),
        )

    def _update_moves(self, board: GroupBoard, sight: Sight, version: int) -> bool:
        if not board.moves or board.moves[-1].number <= self._newest_move:
            return False
        fresh = [move for move in board.moves if move.number > self._newest_move]
        self._newest_move = fresh[-1].number
        indexes = {name: index for index, name in enumerate(sight.queues)}
        self._moves += [(version, self._move_row(move, indexes)) for move in fresh if move.queue in indexes]
        del self._moves[: -(board.moves.maxlen or 1)]
        return True

    def _move_row(self, move: Move, indexes: Mapping[QueueName, int]) -> Row:
        giver, taker = self._position(move.giver), self._position(move.taker)
        return (move.number, move.at_ms, indexes[move.queue], giver, taker, move.cause.value, move.gap_ms)

    def _position(self, member: MemberId) -> int:
        if member not in self._positions:
            if self._free:
                position = self._free.pop()
                # Told anew, even if the member had this row before: who came while the position was free lacks it.
                self._members[position] = (0, ())
            else:
                position = len(self._positions)
            self._positions[member] = position
        return self._positions[member]


def _stands_by(board: GroupBoard, member: MemberId, queue: QueueName) -> bool:
    report = board.members[member].flows.get(queue)
    return report is not None and report.state is ReportedFlow.STANDBY


def _replace(known: list[tuple[int, Row]], rows: Sequence[Row], version: int) -> bool:
    """Replace the rows that have changed, under this version; return whether there were any."""
    is_new = len(rows) != len(known)
    del known[len(rows) :]
    for index, row in enumerate(rows):
        if index == len(known):
            known.append((version, row))
        elif known[index][1] != row:
            known[index] = (version, row)
        else:
            continue
        is_new = True
    return is_new
