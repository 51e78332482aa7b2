"""When a queue had no owner on record, so that a member whose journal is missing may have had it.

A missing journal leaves only this trace: no known member held the queue, and yet it went on. What is missing from such
a time is not proven to be lost.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from lbg_runtime.validator.columns import Lives
from lbg_runtime.validator.epochs import Epochs, Tenures
from lbg_runtime.validator.layouts import Layouts
from lbg_runtime.validator.schema import ENDS
from lbg_runtime.validator.segments import FAR_FUTURE, FAR_PAST, Flags, Ints

LONGEST_HANDOVER_MS = 100
"""When known members move a queue, it is without an owner for less; if longer, an unknown one may have had it."""

_DEATH_UNSEEN_MS = 1000
"""A member writes its status once a second, so one that was cut off lived on for at most about this long."""


@dataclass(frozen=True, slots=True)
class Hole:
    """A time in which no known life held the queue; the first hole of a queue begins in the far past."""

    queue: int
    from_ns: int
    to_ns: int


def find_holes(epochs: Epochs, tenures: Tenures, lives: Lives, layouts: Layouts) -> list[Hole]:
    """The holes of every queue that anyone held, up to the last moment of any journal."""
    if lives.is_partitioned:
        # Any other member with a flow on a shared queue could have had some of its keys, whatever the known members
        # did.
        return [Hole(queue, FAR_PAST, FAR_FUTURE) for queue in np.unique(epochs.queue).tolist()]
    holdings = sorted(_holdings(epochs, tenures, lives, layouts))
    run_end = max((int(moment) for moment in lives.last_ns), default=0)
    holes = []
    for queue, group in groupby(holdings, key=lambda holding: holding[0]):
        sure, possible = FAR_PAST, FAR_PAST
        for _, start, surely_until, possibly_until in group:
            if start > possible:
                holes.append(Hole(queue, sure, start))
            sure, possible = max(sure, surely_until), max(possible, possibly_until)
        if run_end > possible:
            holes.append(Hole(queue, sure, FAR_FUTURE))
    return holes


def fits_in_hole(holes: list[Hole], queues: Ints, earliest_ns: Ints, latest_ns: Ints) -> Flags:
    """Marks where something that happened to the queue between the two moments may have happened in a hole."""
    # A queue that anyone held has a hole before its first owner; one without holes never had a known owner.
    fits: Flags = ~np.isin(queues, [hole.queue for hole in holes])
    for hole in holes:
        fits |= (queues == hole.queue) & (earliest_ns < hole.to_ns) & (latest_ns > hole.from_ns)
    return fits


def earliest_in_hole(holes: list[Hole], queues: Ints, since_ns: int) -> Ints:
    """Per queue, the first moment from `since_ns` on at which an unknown member may have had it, or `FAR_FUTURE`."""
    distinct, place = np.unique(queues, return_inverse=True)
    moments = np.where(np.isin(distinct, [hole.queue for hole in holes]), FAR_FUTURE, since_ns)
    for hole in holes:
        if hole.to_ns > since_ns:
            moments[distinct == hole.queue] = np.minimum(moments[distinct == hole.queue], max(hole.from_ns, since_ns))
    earliest: Ints = moments[place]
    return earliest


def _holdings(epochs: Epochs, tenures: Tenures, lives: Lives, layouts: Layouts) -> Iterator[tuple[int, int, int, int]]:
    """Per tenure: queue, start, until when it surely and until when it possibly kept an unknown member out.

    The time between the two is what known members take to hand a queue over. If no known member follows, an unknown one
    may have had the queue from the earlier moment on. A tenure without an end on record lasted as long as its life.
    """
    handover = LONGEST_HANDOVER_MS * 1_000_000
    signs = _last_stripes(layouts)
    ends: dict[int, list[int]] = defaultdict(list)
    ended = np.flatnonzero(epochs.flow_is(*ENDS))
    for row in ended[np.argsort(epochs.flow_ns[ended])].tolist():
        ends[int(epochs.of_flow[row])].append(int(epochs.flow_ns[row]))
    for epoch, start in zip(tenures.epoch.tolist(), tenures.start_ns.tolist(), strict=True):
        if start == FAR_FUTURE:
            continue
        queue, journal = int(epochs.queue[epoch]), epochs.journal[epoch]
        place = bisect_left(ends[epoch], start)
        if place < len(ends[epoch]):
            end = ends[epoch][place]
            # The next owner can be fed a little before the end of a release is recorded.
            sign = signs.get((int(journal), queue, int(epochs.number[epoch])), FAR_PAST)
            yield queue, start, max(end - handover, start, min(sign, end)), end + handover
        else:
            last = max(int(lives.last_ns[journal]), start)
            unseen = _DEATH_UNSEEN_MS * 1_000_000 if lives.ended_uncleanly[journal] else 0
            yield queue, start, last, last + unseen + handover


def _last_stripes(layouts: Layouts) -> dict[tuple[int, int, int], int]:
    """Per handle (journal, queue, epoch), its last record of a re-striping: a queue shows that only to its owner."""
    last: dict[tuple[int, int, int], int] = {}
    columns = (layouts.journal, layouts.queue, layouts.bind_epoch, layouts.moment_ns)
    for journal, queue, epoch, moment in zip(*(column.tolist() for column in columns), strict=True):
        last[journal, queue, epoch] = max(moment, last.get((journal, queue, epoch), moment))
    return last
