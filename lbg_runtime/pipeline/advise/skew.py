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
"""A cut that can keep so much of the best one's queues busy is as good as it, with fewer queues."""


@dataclass(frozen=True, slots=True)
class Spread:
    """How evenly some loads are."""

    max_over_mean: float
    """1 where all are the same; the busiest has so many times its share."""
    gini: float
    """0 where all are the same, near 1 where one has all."""


@dataclass(frozen=True, slots=True)
class Cut:
    """What a hash and a queue count would make of the load."""

    hash_count: int
    queue_count: int
    shards: Spread
    queues: Spread
    busy_queues: float
    """How many queues the load can keep busy at once: the whole load over that of the busiest queue."""

    @property
    def is_even(self) -> bool:
        """Whether every queue has the same number of shards."""
        return self.hash_count % self.queue_count == 0


def spread_of(loads: Loads) -> Spread:
    """Of loads that are not negative; those of nothing at all are even."""
    total = float(loads.sum())
    if not total:
        return Spread(1.0, 0.0)
    count = len(loads)
    ranks = np.arange(1, count + 1)
    gini = 2 * float((ranks * np.sort(loads)).sum()) / (count * total) - (count + 1) / count
    return Spread(float(loads.max()) * count / total, max(0.0, gini))


def hashes_of(function: HashFunction, keys: Sequence[str]) -> Numbers:
    """What is taken modulo the hash count. Raises `UserError` for a key that the function does not take."""
    found = [full_hash(function, key) for key in keys]
    if function is HashFunction.JAVA_STRING:
        found = [abs(value) for value in found]
    if any(not -(1 << 63) <= value < 1 << 63 for value in found):
        raise UserError("key", f"{max(found, key=abs)}", "numbers of at most 64 bits, to be cut anew")
    return np.array(found, np.int64)


def shard_loads(hashes: Numbers, loads: Loads, hash_count: int) -> Loads:
    """Of each shard."""
    return loads_by(hashes % hash_count, loads, hash_count)


def queue_loads(shards: Loads, queue_count: int) -> Loads:
    """Of each queue, from those of the shards."""
    return loads_by(np.arange(len(shards)) % queue_count, shards, queue_count)


def loads_by(places: Numbers, loads: Loads, count: int) -> Loads:
    """The sum of the loads of each of so many places."""
    return np.bincount(places, weights=loads, minlength=count).astype(np.float64)


def cuts(hashes: Numbers, loads: Loads, hash_counts: Sequence[int], queue_counts: Sequence[int]) -> list[Cut]:
    """Every pair of counts that can be: at least as many shards as queues."""
    found = []
    total = float(loads.sum())
    for hash_count in hash_counts:
        shards = shard_loads(hashes, loads, hash_count)
        of_shards = spread_of(shards)
        for queue_count in queue_counts:
            if queue_count <= hash_count:
                queues = queue_loads(shards, queue_count)
                busy = total / float(queues.max()) if total else float(queue_count)
                found.append(Cut(hash_count, queue_count, of_shards, spread_of(queues), busy))
    return found


def detect(keys: Mapping[str, int], hash_count: int) -> HashFunction | None:
    """The function that gives these keys these shards; None where none of ours does."""
    for function in HashFunction:
        try:
            hashes = hashes_of(function, list(keys))
        except UserError:
            continue
        if np.array_equal(hashes % hash_count, np.array(list(keys.values()), np.int64)):
            return function
    return None


def best_of(found: Sequence[Cut], least_queues: int, useful_queues: int, hash_count: int) -> Cut:
    """The cut to recommend: of those with a queue for each member at least, and no more than are of use, where there
    are such, the fewest queues that can keep `ENOUGH` of the best one's busy; then an even one, the group's hash count,
    the smallest.
    """
    wide = [cut for cut in found if cut.queue_count >= least_queues] or list(found)
    wide = [cut for cut in wide if cut.queue_count <= useful_queues] or wide
    best = max(cut.busy_queues for cut in wide)
    good = [cut for cut in wide if cut.busy_queues >= ENOUGH * best]
    # An uneven cut is only for those who have no even one: a shard more or less is a skew of its own.
    even = [cut for cut in good if cut.is_even] or good
    return min(even, key=lambda cut: (cut.queue_count, cut.hash_count != hash_count, cut.hash_count))
