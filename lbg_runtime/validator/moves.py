"""Every owner change of a run, from both sides: what the giver and the taker recorded, and what the move cost.

Made from the members' `owner` records. Pauses come from the kernel (`Examination.moves`), duplicates are those that the
duplicate laws examine (`messages.group_messages`); nothing is judged here.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lbg_runtime.validator.columns import Lives, read_columns, read_lives
from lbg_runtime.validator.findings import Move
from lbg_runtime.validator.layouts import Layouts
from lbg_runtime.validator.messages import group_messages
from lbg_runtime.validator.schema import RunTables

_Handle = tuple[int, int, int]
"""A flow handle: row of its journal, queue, epoch."""


@dataclass(frozen=True, slots=True)
class OwnerChange:
    """A queue passed to a member's life that did not have it before."""

    t: int
    """When the new owner noticed; wall clock, microseconds."""
    queue: int
    move_id: str | None
    from_member: str | None
    """None for a queue's first owner, and for one that follows a member of which nothing is known. If the records of
    an owner are missing, it is the one before."""
    to_member: str
    cause: str
    """As the old owner recorded it; `crash` if its life was cut off; `first` for a queue's first owner; `unknown` if no
    journal has it."""
    decided_by: str
    """As `OwnerRecord` has it."""
    is_leaving: bool
    """The old owner was leaving."""
    drain_ms: int | None
    """None if the old owner left no record of a drain."""
    pause_ms: int | None
    """End of the old owner's last handling to start of the new owner's first, as `Move.pause_ms`; None if either of
    them handled nothing."""
    duplicates: int
    """Messages that the new owner handled on this handle although they had been handled before."""


@dataclass(frozen=True, slots=True)
class _Side:
    """What one `owner` record says, on the common clock."""

    at_ns: int
    handle: _Handle
    event: str
    move_id: str | None
    from_member: str | None
    to_member: str | None
    cause: str
    decided_by: str
    is_leaving: bool
    drain_ms: int | None
    t: int


_TOLD = ("event", "move_id", "from_member", "to_member", "cause", "decided_by", "is_leaving", "drain_ms", "t")


def find_owner_changes(tables: RunTables, moves: Sequence[Move]) -> list[OwnerChange]:
    """The owner changes in order of time; `moves` are those of an examination of the same tables."""
    lives = read_lives(tables.journals)
    columns = read_columns(tables, lives)
    messages, handlings = group_messages(columns.handlings), columns.handlings
    repeats = messages.repeats
    duplicates: Counter[_Handle] = Counter(
        zip(
            handlings.journal[repeats].tolist(),
            handlings.queue[repeats].tolist(),
            handlings.bind_epoch[repeats].tolist(),
            strict=True,
        )
    )
    pauses = {(move.to_member, move.to_incarnation, move.queue, move.to_epoch): move for move in moves}
    taken, given = _sides(tables.owners, lives)
    found = []
    before: dict[int, _Side] = {}
    for side in taken:
        journal, queue, epoch = side.handle
        old = before.get(queue)
        before[queue] = side
        if old is not None and _was_removed(columns.layouts, queue, old.at_ns, side.at_ns):
            old = None
        if old is not None and old.handle[0] == journal:
            # The same life of a member has the queue again: an interruption, not a change.
            continue
        gift = given.get(old.handle) if old is not None else None
        if old is not None and gift is not None and _was_elsewhere(old, gift, side, lives):
            old = gift = None
        move = pauses.get((lives.member[journal], int(lives.incarnation[journal]), queue, epoch))
        change = _change(side, old, gift, lives, move, duplicates[side.handle])
        found.append(change)
    return found


def _was_elsewhere(old: _Side, gift: _Side, taken: _Side, lives: Lives) -> bool:
    """Whether giver and taker name different moves, each with a third member: the records of that one are missing."""
    if gift.move_id is None or taken.move_id is None or gift.move_id == taken.move_id:
        return False
    giver, taker = lives.member[old.handle[0]], lives.member[taken.handle[0]]
    return gift.to_member != taker and taken.from_member != giver


def _was_removed(layouts: Layouts, queue: int, earlier_ns: int, later_ns: int) -> bool:
    """Whether a re-striping removed the queue between two moments, so that it is a different one now."""
    before, after = layouts.removals(np.full(2, queue), np.array([earlier_ns, later_ns])).tolist()
    return bool(before != after)


def _sides(owners: pa.Table, lives: Lives) -> tuple[list[_Side], dict[_Handle, _Side]]:
    """What was taken, in order of time; and what was given, by its handle."""
    sides = []
    for row in owners.to_pylist():
        handle = (row["journal"], row["queue"], row["bind_epoch"])
        at_ns = row["mono_ns"] + int(lives.offset_ns[row["journal"]])
        sides.append(_Side(at_ns, handle, **{name: row[name] for name in _TOLD}))
    taken = [side for side in sides if side.event == "taken"]
    given = {side.handle: side for side in sides if side.event == "given"}
    return sorted(taken, key=lambda side: (side.at_ns, side.handle)), given


def _change(
    side: _Side, old: _Side | None, gift: _Side | None, lives: Lives, move: Move | None, duplicates: int
) -> OwnerChange:
    # The giver knows why; the taker only that the queue came.
    told = side if gift is None else gift
    if gift is not None:
        cause = gift.cause
    elif old is None:
        cause = "first" if side.from_member is None else "unknown"
    else:
        cause = "crash" if lives.ended_uncleanly[old.handle[0]] else "unknown"
    from_member = lives.member[old.handle[0]] if old is not None else side.from_member
    return OwnerChange(
        t=side.t,
        queue=side.handle[1],
        move_id=told.move_id,
        from_member=from_member,
        to_member=lives.member[side.handle[0]],
        cause=cause,
        # If the giver did not live to keep its offer, the broker made the choice after all.
        decided_by="broker" if gift is None and old is not None else told.decided_by,
        is_leaving=told.is_leaving,
        drain_ms=told.drain_ms,
        pause_ms=move.pause_ms if move is not None and move.from_member == from_member else None,
        duplicates=duplicates,
    )
