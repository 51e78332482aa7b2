"""What happened when: which member handled which shard, how much, and how long messages took."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from lbg_runtime.validator.arrow import ints
from lbg_runtime.validator.columns import read_lives
from lbg_runtime.validator.schema import RunTables

BINS = 120


@dataclass(frozen=True, slots=True)
class Timeline:
    """The run in `len(p50_ms)` slices of equal length."""

    begin_us: int
    """Wall clock, microseconds since the epoch, as the members' journals had it where they began."""
    slice_us: int
    members: Sequence[str]
    """The members that handled anything, by name."""
    owner: npt.NDArray[np.int64]
    """By shard and slice: the place in `members` of the member that handled most of it; -1 if nobody did."""
    messages: npt.NDArray[np.int64]
    """Messages handled, by shard and slice."""
    p50_ms: Sequence[float | None]
    """From receipt to the end of handling, over the messages that ended in the slice; None if none did."""
    p95_ms: Sequence[float | None]
    p99_ms: Sequence[float | None]
    overall_ms: tuple[float, float, float]
    """The same three percentiles for the whole run."""


def timeline_of(tables: RunTables, hash_count: int) -> Timeline:
    """The timeline of a run in which something was handled."""
    dispatches, lives = tables.dispatches, read_lives(tables.journals)
    journal, done_ns = ints(dispatches, "journal"), ints(dispatches, "done_mono_ns")
    # Not by the wall clock of each record: it may have been set meanwhile.
    ended = (done_ns + lives.offset_ns[journal] + lives.wall_ns) // 1_000
    begin = int(ended.min())
    slice_us = max(1, -(-(int(ended.max()) - begin + 1) // BINS))
    slices = (ended - begin) // slice_us
    slice_count = int(slices.max()) + 1

    names = tables.journals["member"].to_pylist()
    members = sorted({names[number] for number in np.unique(journal)} - {None})
    place = np.array([members.index(name) if name in members else -1 for name in names], np.int64)
    by = place[journal]

    # Messages without a shard are counted in none.
    shards = ints(dispatches, "shard", -1)
    is_hashed = (shards >= 0) & (shards < hash_count) & (by >= 0)
    size = (max(1, len(members)), hash_count, slice_count)
    flat = np.ravel_multi_index((by[is_hashed], shards[is_hashed], slices[is_hashed]), size)
    counted = np.bincount(flat, minlength=int(np.prod(size))).reshape(size)
    messages = counted.sum(axis=0)
    owner = np.where(messages > 0, counted.argmax(axis=0), -1)

    took_ms = (done_ns - ints(dispatches, "receive_mono_ns")) / 1e6
    order = np.argsort(slices, kind="stable")
    edges = np.searchsorted(slices[order], np.arange(slice_count + 1))
    lines: list[list[float | None]] = [[], [], []]
    for first, last in pairwise(edges):
        found = np.percentile(took_ms[order[first:last]], (50, 95, 99)).tolist() if last > first else [None] * 3
        for line, value in zip(lines, found, strict=True):
            line.append(value)
    overall = np.percentile(took_ms, (50, 95, 99)).tolist()
    p50, p95, p99 = lines
    return Timeline(begin, slice_us, members, owner, messages, p50, p95, p99, (overall[0], overall[1], overall[2]))
