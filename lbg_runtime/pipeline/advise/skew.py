"""How evenly a load is spread, and how another hash or queue count would have spread it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lbg_runtime.model.errors import UserError
from lbg_runtime.model.hashing import HashFunction, full_hash

Loads = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]

ENOUGH = 0.9
"""A cut that can keep this share of the best one's busy queues busy is as good, with fewer queues."""


@dataclass(frozen=True, slots=True)
class Spread:
    """How evenly some loads are spread."""

    max_over_mean: float
    """1 if all are the same; the busiest has this many times its share."""
    gini: float
    """0 if all are the same, near 1 if one has everything."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How a hash count and a queue count would spread the load."""

    hash_count: int
    queue_count: int
    shards: Spread
    queues: Spread
    busy_queues: float
    """How many queues the load can keep busy at once: the whole load divided by that of the busiest queue."""

    @property
    def is_even(self) -> bool:
        """Whether every queue has the same number of shards."""
        return self.hash_count % self.queue_count == 0


def spread_of(loads: Loads) -> Spread:
    """The spread of loads, none of which is negative; loads of nothing at all count as even."""
    total = float(loads.sum())
    if not total:
        return Spread(1.0, 0.0)
    count = len(loads)
    ranks = np.arange(1, count + 1)
    gini = 2 * float((ranks * np.sort(loads)).sum()) / (count * total) - (count + 1) / count
    return Spread(float(loads.max()) * count / total, max(0.0, gini))


def hashes_of(function: HashFunction, keys: Sequence[str]) -> Numbers:
    """The numbers that are taken modulo the hash count. Raises `UserError` for a key that the function refuses."""
    found = [full_hash(function, key) for key in keys]
    if function is HashFunction.JAVA_STRING:
        found = [abs(value) for value in found]
    if any(not -(1 << 63) <= value < 1 << 63 for value in found):
        raise UserError("key", f"{max(found, key=abs)}", "numbers of at most 64 bits, to be cut anew")
    return np.array(found, np.int64)


def queue_loads(shards: Loads, queue_count: int) -> Loads:
    """The load of each queue, from those of the shards."""
    return loads_by(np.arange(len(shards)) % queue_count, shards, queue_count)


def loads_by(places: Numbers, loads: Loads, count: int) -> Loads:
    """The sum of the loads of each of `count` places."""
    return np.bincount(places, weights=loads, minlength=count).astype(np.float64)


def cuts(hashes: Numbers, loads: Loads, hash_counts: Sequence[int], queue_counts: Sequence[int]) -> list[Cut]:
    """Every possible pair of counts: at least as many shards as queues."""
    found = []
    total = float(loads.sum())
    for hash_count in hash_counts:
        shards = loads_by(hashes % hash_count, loads, hash_count)
        of_shards = spread_of(shards)
        for queue_count in queue_counts:
            if queue_count <= hash_count:
                queues = queue_loads(shards, queue_count)
                busy = total / float(queues.max()) if total else float(queue_count)
                found.append(Cut(hash_count, queue_count, of_shards, spread_of(queues), busy))
    return found


def detect(keys: Mapping[str, int], hash_count: int) -> HashFunction | None:
    """The function that gives these keys these shards; None if none of ours does."""
    for function in HashFunction:
        try:
            hashes = hashes_of(function, list(keys))
        except UserError:
            continue
        if np.array_equal(hashes % hash_count, np.array(list(keys.values()), np.int64)):
            return function
    return None


def best_of(found: Sequence[Cut], least_queues: int, useful_queues: int, hash_count: int) -> Cut:
    """The cut to recommend. Of those, if any, with at least a queue for each member and no more than are useful, it
    considers the ones that can keep `ENOUGH` of the best one's queues busy. Of these it prefers the ones with the
    group's hash count, then the even ones, then the fewest queues, then the smallest hash count.
    """
    wide = [cut for cut in found if cut.queue_count >= least_queues] or list(found)
    wide = [cut for cut in wide if cut.queue_count <= useful_queues] or wide
    best = max(cut.busy_queues for cut in wide)
    good = [cut for cut in wide if cut.busy_queues >= ENOUGH * best]
    # Another hash count needs a new group.
    kept = [cut for cut in good if cut.hash_count == hash_count] or good
    # An uneven cut is chosen only if there is no even one: a shard more or less is itself a skew.
    even = [cut for cut in kept if cut.is_even] or kept
    return min(even, key=lambda cut: (cut.queue_count, cut.hash_count))
