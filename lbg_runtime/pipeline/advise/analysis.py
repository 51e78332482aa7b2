"""Derives advice from the records of a run."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lbg_runtime.model.counted import counted
from lbg_runtime.model.errors import UserError
from lbg_runtime.model.hashing import HashFunction
from lbg_runtime.pipeline.advise.skew import (
    ENOUGH,
    Cut,
    Spread,
    best_of,
    cuts,
    detect,
    hashes_of,
    loads_by,
    queue_loads,
    spread_of,
)
from lbg_runtime.pipeline.advise.timeline import Timeline, timeline_of
from lbg_runtime.validator.arrow import ints
from lbg_runtime.validator.schema import RunTables

HOT_KEYS = 10
"""By messages, and as many by the time of their handlers."""
IDLE_SHARE = 0.1
"""A member that handled less than this share of the mean is idle."""


@dataclass(frozen=True, slots=True)
class HotKey:
    """One of the keys with the most messages, or the most time of handlers."""

    key: str
    shard: int
    queue: int
    messages: int
    share: float
    """Its share of all messages with a key."""
    busy_share: float
    """Its share of the time that handlers took for all of them."""


@dataclass(frozen=True, slots=True)
class MemberLoad:
    """What one member did in all of its lives."""

    member: str
    messages: int
    busy: float
    """Handlers that ran at the same time, on average while it handled anything."""
    queues: int
    """Queues of which it handled something."""
    is_idle: bool
    was_bound: bool
    """Whether it ever was bound to a queue. If not, its start failed, or it had no place: its journal does not say."""


@dataclass(frozen=True, slots=True)
class Advice:
    """How the load is spread, and how other cuts would spread it."""

    group: str
    hash_count: int
    queue_count: int
    function: HashFunction
    messages: int
    without_key: int
    """Messages without a key: they cannot be spread differently, and are left out of `now`."""
    keys: int
    shards: Spread
    queues: Spread
    shard_messages: Sequence[int]
    queue_messages: Sequence[int]
    hot_keys: Sequence[HotKey]
    members: Sequence[MemberLoad]
    useful_queues: int
    """More queues than this cannot be kept busy, whatever the cut: one divided by the share of the hottest key, rounded
    up."""
    now: Cut
    """The group as it is."""
    cuts: Sequence[Cut]
    """Those that were tried, and `now`."""
    best: Cut
    """One of them."""
    recommendations: Sequence[str]
    timeline: Timeline


def analyse(
    tables: RunTables,
    where: str,
    queue_counts: Sequence[int],
    hash_counts: Sequence[int],
    function: HashFunction | None = None,
) -> Advice:
    """Advice from a run. With `hash_counts` empty, those of `likely_hash_counts` are tried.

    With `function` None, the one that gives the keys their shards. Raises `UserError` if the records do not suffice.
    """
    dispatches, journals = tables.dispatches, tables.journals
    shapes = set(zip(journals["group"].to_pylist(), journals["hash_count"].to_pylist(), strict=True)) - {(None, None)}
    if not shapes or not dispatches.num_rows:
        raise UserError(where, "no handled message in the journals", "the journals of members that handled some")
    if len(shapes) > 1:
        raise UserError(where, f"journals of {len(shapes)} groups or hash counts", "those of one run")
    [(group, hash_count)] = shapes
    queue_count = _queue_count(tables)
    keyed = dispatches.filter(pc.and_(pc.is_valid(dispatches["key"]), pc.is_valid(dispatches["shard"])))
    if not keyed.num_rows:
        raise UserError(where, "no message with a key in the journals", "messages that are hashed by key")
    table = _key_table(keyed)
    names, shards = table["key"].to_pylist(), table["shard"].to_pylist()
    counts = ints(table, "messages").astype(np.float64)
    found = function or detect(dict(zip(names[:1_000], shards[:1_000], strict=True)), hash_count)
    if found is None:
        raise UserError(
            where, "keys lie in shards where no hash function puts them", "--hash-function, or our publisher"
        )
    hashes = hashes_of(found, names)
    known = loads_by(np.array(shards), counts, hash_count)
    now_queues = queue_loads(known, queue_count)
    candidates = cuts(hashes, counts, hash_counts or likely_hash_counts(hash_count, queue_counts), queue_counts)
    if not candidates:
        raise UserError("--hash-counts", "fewer shards than queues in all of them", "at least as many shards as queues")
    total = float(counts.sum())
    [now] = cuts(hashes, counts, [hash_count], [queue_count])
    members = _members(tables)
    hot = _hot_keys(table, total, queue_count)
    useful = max(1, math.ceil(total / float(counts.max()) - 1e-9))
    best = best_of(candidates, sum(not each.is_idle for each in members), useful, hash_count)
    if best.busy_queues < ENOUGH * now.busy_queues:
        # More queues than are useful leave a hot key alone in its queue more often, and fewer may be unlucky.
        best = now
    return Advice(
        group=str(group),
        hash_count=hash_count,
        queue_count=queue_count,
        function=found,
        messages=dispatches.num_rows,
        without_key=dispatches.num_rows - keyed.num_rows,
        keys=len(names),
        shards=spread_of(known),
        queues=spread_of(now_queues),
        shard_messages=known.astype(int).tolist(),
        queue_messages=now_queues.astype(int).tolist(),
        hot_keys=hot,
        members=members,
        useful_queues=useful,
        now=now,
        cuts=sorted({*candidates, now}, key=lambda cut: (cut.hash_count, cut.queue_count)),
        best=best,
        recommendations=_recommendations(now, best, useful, hot, members),
        timeline=timeline_of(tables, hash_count),
    )


def _queue_count(tables: RunTables) -> int:
    """That of the last re-striping, if there was one: a journal's header has the count that its member began with."""
    stripes = tables.stripes
    changes = zip(stripes["generation"].to_pylist(), stripes["to_count"].to_pylist(), strict=True)
    last: int = max(changes, default=(0, max(tables.journals["queue_count"].drop_null().to_pylist())))[1]
    return last


def likely_hash_counts(hash_count: int, queue_counts: Sequence[int]) -> list[int]:
    """The group's, twice and four times that, and round ones that are divisible by many queue counts."""
    largest = max(queue_counts)
    return sorted({hash_count, 2 * hash_count, 4 * hash_count, *(n for n in (48, 96, 120, 240, 480) if n >= largest)})


def _key_table(keyed: pa.Table) -> pa.Table:
    busy = pc.subtract(keyed["done_mono_ns"], keyed["start_mono_ns"])
    plain = pa.table({"key": keyed["key"], "shard": keyed["shard"], "busy": busy})
    grouped = plain.group_by("key").aggregate([("key", "count"), ("shard", "max"), ("busy", "sum")])
    named = grouped.rename_columns({"key_count": "messages", "shard_max": "shard", "busy_sum": "busy"})
    return named.sort_by([("messages", "descending"), ("key", "ascending")])


def _hot_keys(table: pa.Table, total: float, queue_count: int) -> list[HotKey]:
    """The larger of the two shares first."""
    busy = float(pc.sum(table["busy"]).as_py() or 1)
    by_time = table.sort_by([("busy", "descending"), ("key", "ascending")])
    rows = {row["key"]: row for each in (table, by_time) for row in each.slice(0, HOT_KEYS).to_pylist()}
    found = [
        HotKey(
            row["key"],
            row["shard"],
            row["shard"] % queue_count,
            row["messages"],
            row["messages"] / total,
            row["busy"] / busy,
        )
        for row in rows.values()
    ]
    return sorted(found, key=lambda each: max(each.share, each.busy_share), reverse=True)


def _members(tables: RunTables) -> list[MemberLoad]:
    names = tables.journals["member"].to_pylist()
    dispatches = tables.dispatches
    journals = ints(dispatches, "journal")
    start, done = ints(dispatches, "start_mono_ns"), ints(dispatches, "done_mono_ns")
    queues = ints(dispatches, "queue")
    found: dict[str, tuple[int, float, float, set[int]]] = {}
    for number, name in enumerate(names):
        if name is None:
            continue
        mine = journals == number
        messages, busy, lasted, seen = found.get(name, (0, 0.0, 0.0, set()))
        if mine.any():
            messages += int(mine.sum())
            busy += float((done[mine] - start[mine]).sum())
            lasted += float(done[mine].max() - start[mine].min())
            seen = seen | set(np.unique(queues[mine]).tolist())
        found[name] = messages, busy, lasted, seen
    told = set[int]().union(*(each["journal"].unique().to_pylist() for each in (tables.flows, dispatches)))
    bound = {names[number] for number in told}
    # A start that failed takes no share of the work, and lowers that of nobody.
    mean = sum(messages for messages, *_ in found.values()) / max(1, len(bound & found.keys()))
    return [
        MemberLoad(
            name,
            messages,
            busy / lasted if lasted else 0.0,
            len(seen),
            is_idle=name not in bound or messages < IDLE_SHARE * mean,
            was_bound=name in bound,
        )
        for name, (messages, busy, lasted, seen) in sorted(found.items())
    ]


def _recommendations(
    now: Cut, best: Cut, useful: int, hot: Sequence[HotKey], members: Sequence[MemberLoad]
) -> list[str]:
    said = []
    if (best.hash_count, best.queue_count) == (now.hash_count, now.queue_count):
        said.append(
            f"Keep {now.queue_count} queues and {now.hash_count} shards: the load keeps {now.busy_queues:.1f} queues "
            "busy."
        )
    else:
        said.append(
            f"group.queue_count: {best.queue_count}, group.hash_count: {best.hash_count}: the load would keep "
            f"{best.busy_queues:.1f} queues busy; it keeps {now.busy_queues:.1f} of {now.queue_count} as it is."
        )
    if best.hash_count != now.hash_count:
        said.append(
            "The hash count stays for the life of a group: another one needs a new group, beside the old one until "
            "that is empty. The queue count can be changed at any time (lbg group restripe)."
        )
    hottest, busiest = max(hot, key=lambda each: each.share), max(hot, key=lambda each: each.busy_share)
    if useful < max(now.queue_count, best.queue_count):
        said.append(
            f"No cut keeps more than {1 / hottest.share:.1f} queues busy: key {hottest.key!r} alone is "
            f"{hottest.share:.1%} of the messages, and one key is handled by one member at a time. Split the key, or "
            "make its handling shorter."
        )
    elif hottest.share > 1 / (2 * now.queue_count):
        said.append(
            f"Key {hottest.key!r} is {hottest.share:.1%} of the messages, more than half of an even queue: watch it."
        )
    if busiest.busy_share > max(1 / (2 * now.queue_count), 2 * busiest.share):
        # Loads are counted in messages, so no cut shows it.
        said.append(
            f"Key {busiest.key!r} is {busiest.share:.1%} of the messages, and takes {busiest.busy_share:.1%} of the "
            f"time of all handlers: by time, no cut keeps more than {1 / busiest.busy_share:.1f} queues busy. Make its "
            "handling shorter, or split the key."
        )
    idle = [each.member for each in members if each.is_idle and each.was_bound]
    if idle:
        active = sum(not each.is_idle for each in members)
        said.append(
            f"Idle: {', '.join(idle)}. {counted(active, 'member')} did the work of this load, with these queues."
        )
    unbound = [each.member for each in members if not each.was_bound]
    if unbound:
        said.append(f"Never bound to a queue: {', '.join(unbound)}. Their starts failed, or they had no place.")
    if not now.is_even:
        said.append(f"{now.hash_count} shards do not divide evenly among {now.queue_count} queues.")
    return said
