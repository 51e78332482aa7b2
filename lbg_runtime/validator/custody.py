"""When a queue had no owner on record, and so a member whose journal is missing may have had it.

A journal that is not there leaves no trace but this: nobody known held the queue, and yet it went on. What is missing
from such a time is not proven to be lost.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import pyarrow as pa

from lbg_runtime.validator.columns import Lives, is_one_of
from lbg_runtime.validator.epochs import Epochs, Tenures
from lbg_runtime.validator.segments import FAR_FUTURE, FAR_PAST, Flags, Ints

LONGEST_HANDOVER_MS = 500
"""When known members move a queue it is without an owner for less; longer, and an unknown one may have had it."""

_DEATH_UNSEEN_MS = 1500
"""A life that was cut off wrote its last record, or its status, at most so long before."""


@dataclass(frozen=True, slots=True)
class Hole:
    """A time in which no known life held the queue; the first of a queue begins in the far past."""

    queue: int
    from_ns: int
    to_ns: int


def find_holes(epochs: Epochs, tenures: Tenures, flows: pa.Table, lives: Lives) -> list[Hole]:
    """The holes of every queue that anyone held, up to the last moment of any journal."""
    spans = sorted(_holdings(epochs, tenures, flows, lives))
    if not spans:
        return []
    run_end = int(lives.last_ns.max())
    shortest = LONGEST_HANDOVER_MS * 1_000_000
    holes = []
    for queue, group in groupby(spans, key=lambda span: span[0]):
        reach = FAR_PAST
        for _, start, end in group:
            if reach == FAR_PAST or start - reach > shortest:
                holes.append(Hole(queue, reach, start))
            reach = max(reach, end)
        if run_end - reach > shortest:
            holes.append(Hole(queue, reach, FAR_FUTURE))
    return holes


def fits_in_hole(holes: list[Hole], queues: Ints, earliest_ns: Ints, latest_ns: Ints) -> Flags:
    """Where something of the queue that happened between the two moments may have happened in a hole."""
    fits = np.zeros(len(queues), dtype=np.bool_)
    for hole in holes:
        fits |= (queues == hole.queue) & (earliest_ns < hole.to_ns) & (latest_ns > hole.from_ns)
    return fits


def _holdings(epochs: Epochs, tenures: Tenures, flows: pa.Table, lives: Lives) -> Iterator[tuple[int, int, int]]:
    """Queue, start and end of every tenure; one without an end on record lasted as long as its life."""
    ends: dict[int, list[int]] = defaultdict(list)
    for row in np.flatnonzero(is_one_of(flows, "event", "inactive", "down", "released")).tolist():
        ends[int(epochs.of_flow[row])].append(int(epochs.flow_ns[row]))
    for moments in ends.values():
        moments.sort()
    for epoch, start in zip(tenures.epoch.tolist(), tenures.start_ns.tolist(), strict=True):
        if start == FAR_FUTURE:
            continue
        journal = epochs.journal[epoch]
        last = int(lives.last_ns[journal]) + (_DEATH_UNSEEN_MS * 1_000_000 if lives.ended_uncleanly[journal] else 0)
        following = ends[epoch][bisect_left(ends[epoch], start) :] if epoch in ends else []
        yield int(epochs.queue[epoch]), start, following[0] if following else max(last, start)
