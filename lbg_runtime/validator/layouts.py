"""The layouts of a run: the queue counts that its group had, in turn, and when each shard left its queue.

A *layout* is a queue count: of n queues, queue q holds the shards s with s mod n = q. A re-striping leads from one
layout to the next, shard by shard; a shard has *left* when its old queue has nothing of it left to handle. All this
comes from `stripes` records. A run without them has the one layout that its headers name; `steps` is then empty, and
every queue is a part of its own. A re-striping that is recorded only in missing journals is treated as if there were
none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np
import pyarrow as pa

from lbg_runtime.validator.arrow import ints, is_one_of, present
from lbg_runtime.validator.findings import Restriping
from lbg_runtime.validator.segments import FAR_FUTURE, FAR_PAST, Flags, Ints, changes


@dataclass(frozen=True, slots=True)
class Step:
    """One re-striping, or the gap between two that do not fit together."""

    generation: int
    from_count: int
    to_count: int
    is_recorded: bool
    """False for a gap."""
    first_ns: int
    """Its first record; `FAR_PAST` for a gap."""
    finished_ns: int
    """The first `finished` record; `FAR_FUTURE` without one."""
    left_shard: Ints
    """The shards that left, sorted, each once."""
    left_row: Ints
    """For each, the earliest record that says so."""

    def rows_of(self, shards: Ints) -> Ints:
        """Per shard, the record that it left; -1 if there is none."""
        if not len(self.left_shard):
            return np.full(len(shards), -1, dtype=np.int64)
        place = np.minimum(np.searchsorted(self.left_shard, shards), len(self.left_shard) - 1)
        return np.where(self.left_shard[place] == shards, self.left_row[place], -1)


@dataclass(frozen=True, slots=True)
class Layouts:
    """The re-stripings in order, and the records they are known from, as columns of equal length."""

    steps: Sequence[Step]
    """Each begins with the layout that the one before it ended with."""
    contradictions: tuple[str, ...]
    """Impossible statements in the records; with any, the verdict is not valid."""
    journal: Ints
    queue: Ints
    bind_epoch: Ints
    shard: Ints
    moment_ns: Ints

    @property
    def counts(self) -> tuple[int, ...]:
        """The queue counts, one after the other; empty if nothing was re-striped."""
        return tuple(step.from_count for step in self.steps[:1]) + tuple(step.to_count for step in self.steps)

    @property
    def restripings(self) -> tuple[Restriping, ...]:
        """The re-stripings, for the report."""
        return tuple(
            Restriping(step.generation, step.from_count, step.to_count, len(step.left_shard))
            for step in self.steps
            if step.is_recorded
        )

    def parts_of(self, queues: Ints) -> Ints:
        """Codes of the parts that queues belong to: no shard ever moves from one part to another.

        A shard keeps its remainder modulo every common divisor of the queue counts, and so do the queues that hold it.
        """
        return queues % gcd(*self.counts) if self.steps else queues

    def removals(self, queues: Ints, moments_ns: Ints) -> Ints:
        """How often each queue had been removed by a moment: a queue that is created again is another queue."""
        found = np.zeros(len(queues), dtype=np.int64)
        for step in self.steps:
            is_removed = (queues < step.from_count) & (queues >= step.to_count)
            found += is_removed & (moments_ns >= step.finished_ns)
        return found


def part_count(journals: pa.Table, stripes: pa.Table) -> int:
    """Into how many parts a run may be cut: queues, and shards, that are equal modulo this number belong together.

    `journals` and `stripes` are those of the whole run.
    """
    counts = np.concatenate([ints(stripes, "from_count"), ints(stripes, "to_count")])
    if (counts > 0).any():
        return gcd(*counts[counts > 0].tolist())
    named = ints(journals, "queue_count")[present(journals, "queue_count")]
    return max(1, int(np.median(named))) if len(named) else 1


def read_layouts(stripes: pa.Table, offset_ns: Ints) -> Layouts:
    """Put the re-stripings in order; `offset_ns` is added to the times of each journal."""
    journal, shard = ints(stripes, "journal"), ints(stripes, "shard")
    generation, from_count, to_count = (ints(stripes, name) for name in ("generation", "from_count", "to_count"))
    moment_ns = ints(stripes, "mono_ns") + offset_ns[journal]
    queue = ints(stripes, "queue")
    usable = (from_count > 0) & (to_count > 0)
    contradictions = _some(~usable, "name a layout without queues")

    old, new = shard % np.maximum(from_count, 1), shard % np.maximum(to_count, 1)
    is_left = usable & is_one_of(stripes, "event", "left")
    leaves = is_left & present(stripes, "shard") & (old == queue) & (new != queue)
    contradictions += _some(is_left & ~leaves, "let a shard leave a queue that it does not leave")
    finished = is_one_of(stripes, "event", "finished")

    steps: list[Step] = []
    names = np.stack([generation, from_count, to_count], axis=1)[usable]
    for number, before, after in np.unique(names, axis=0).tolist():
        own = usable & (generation == number) & (from_count == before) & (to_count == after)
        if steps and steps[-1].generation == number:
            contradictions.append(f"re-striping {number} is recorded with several queue counts")
        if steps and steps[-1].to_count != before:
            contradictions.append(
                f"re-striping {number} begins with {before} queues, but the one before it ended with "
                f"{steps[-1].to_count}"
            )
            steps.append(_gap(number, steps[-1].to_count, before))
        left = np.flatnonzero(own & leaves)
        left = left[np.lexsort((moment_ns[left], shard[left]))]
        left = left[changes(shard[left])]
        steps.append(
            Step(
                generation=number,
                from_count=before,
                to_count=after,
                is_recorded=True,
                first_ns=int(moment_ns[own].min()),
                finished_ns=int(moment_ns[own & finished].min(initial=FAR_FUTURE)),
                left_shard=shard[left],
                left_row=left,
            )
        )
    return Layouts(tuple(steps), tuple(contradictions), journal, queue, ints(stripes, "bind_epoch"), shard, moment_ns)


def _gap(generation: int, from_count: int, to_count: int) -> Step:
    nothing = np.zeros(0, dtype=np.int64)
    return Step(generation, from_count, to_count, False, FAR_PAST, FAR_FUTURE, nothing, nothing)


def _some(rows: Flags, what: str) -> list[str]:
    count = int(np.count_nonzero(rows))
    return [f"{count} records of re-stripings {what}"] if count else []
