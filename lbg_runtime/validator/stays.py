"""When shards lay in which queue, layout after layout, as far as the records show."""

from dataclasses import dataclass

import numpy as np

from lbg_runtime.validator.custody import LONGEST_HANDOVER_MS, Hole, earliest_in_hole
from lbg_runtime.validator.layouts import Layouts
from lbg_runtime.validator.segments import FAR_FUTURE, FAR_PAST, Ints


@dataclass(frozen=True, slots=True)
class Stays:
    """Tables with one row per layout of the run and one column per requested shard.

    A shard that a re-striping leaves where it is has the same stay in both layouts.
    """

    queue: Ints
    begin_ns: Ints
    """The earliest moment at which its old queue can have let the shard go, even through a member whose journal is
    missing. `FAR_PAST` if it was there from the start, `FAR_FUTURE` if it cannot have come."""
    recorded_ns: Ints
    """The moment on record at which its old queue let it go: never before `begin_ns`, and nearly always the same."""
    begin_row: Ints
    """The record of that; -1 without one."""
    end_ns: Ints
    """When the shard left, according to the record of that; `FAR_FUTURE` without one."""
    end_row: Ints


def read_stays(layouts: Layouts, shards: Ints, holes: list[Hole]) -> Stays:
    """The stays of shards in a run with re-stripings; `holes` are those of the queues that may have held them."""
    queue = np.stack([shards % count for count in layouts.counts])
    begin, end = np.full(queue.shape, FAR_PAST), np.full(queue.shape, FAR_FUTURE)
    recorded = begin.copy()
    begin_row, end_row = np.full(queue.shape, -1), np.full(queue.shape, -1)
    handover = LONGEST_HANDOVER_MS * 1_000_000
    for new, step in enumerate(layouts.steps, 1):
        old, moves = new - 1, queue[new - 1] != queue[new]
        row = step.rows_of(shards)
        left = np.full(len(shards), FAR_FUTURE)
        left[row >= 0] = layouts.moment_ns[row[row >= 0]]
        if step.is_recorded:
            # Members read the same plan at different moments, though hardly further apart than that.
            unseen = earliest_in_hole(holes, queue[old], step.first_ns - handover)
        else:
            unseen = np.full(len(shards), FAR_PAST)
        begin[new] = np.where(moves, np.minimum(left, unseen), begin[old])
        recorded[new] = np.where(moves, left, recorded[old])
        begin_row[new] = np.where(moves, row, begin_row[old])
        end[old] = np.where(moves, left, FAR_FUTURE)
        end_row[old] = np.where(moves, row, -1)
    for old in range(len(layouts.steps) - 1, -1, -1):
        stays = queue[old] == queue[old + 1]
        end[old] = np.where(stays, end[old + 1], end[old])
        end_row[old] = np.where(stays, end_row[old + 1], end_row[old])
    return Stays(queue, begin, recorded, begin_row, end, end_row)
