"""The laws once more, as slowly and as plainly as they can be written, for runs on one host.

Reads the records, not the tables, and shares no code with the kernel. Quadratic where that is the plain way.

More than 400 lines, as it is to be read beside the laws as one text.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from math import gcd, inf

from lbg_runtime.model.record import DispatchRecord, FlowRecord, PauseRecord, StripesRecord
from tests.validator.run_files import MS, Journal, Run

ACK_WINDOW_NS = 1500 * MS
SILENCE_NS = 12_000 * MS


@dataclass(frozen=True)
class Handling:
    """A dispatch record and whose it is."""

    life: int
    record: DispatchRecord

    @property
    def start(self) -> int:
        return self.record.start_mono_ns

    @property
    def done(self) -> int:
        return self.record.done_mono_ns

    @property
    def settle(self) -> int | None:
        if self.record.t_settle is None:
            return None
        return self.done + (self.record.t_settle - self.record.t_done) * 1000

    @property
    def is_complete(self) -> bool:
        return self.record.outcome in ("accepted", "rejected")

    @property
    def message(self) -> tuple[str, str, int] | None:
        if self.record.publisher is None or self.record.key is None or self.record.seq is None:
            return None
        return self.record.publisher, self.record.key, self.record.seq

    @property
    def epoch(self) -> tuple[int, int, int]:
        return self.life, self.record.queue, self.record.bind_epoch


def count(run: Run) -> dict[str, int]:
    """The counts that the kernel is to find."""
    handlings = [Handling(life, record) for life, journal in enumerate(run.journals) for record in journal.dispatches]
    flows = [(life, record) for life, journal in enumerate(run.journals) for record in journal.flows]
    by_epoch: dict[tuple[int, int, int], list[FlowRecord]] = defaultdict(list)
    for life, record in flows:
        by_epoch[life, record.queue, record.bind_epoch].append(record)
    part_of = _parts(run)
    by_message: dict[tuple[int, tuple[str, str, int]], list[Handling]] = defaultdict(list)
    for handling in sorted(handlings, key=lambda h: (h.start, h.done)):
        if handling.message is not None:
            by_message[part_of(handling.record.queue), handling.message].append(handling)

    def is_exposed(handling: Handling) -> bool:
        flows, own = by_epoch[handling.epoch], [other for other in handlings if other.epoch == handling.epoch]
        return _is_exposed(run, handling, flows, _heard(run.journals[handling.life], handling, flows, own))

    found = {
        "loss": _count_lost(run, handlings),
        "order": _count_late(by_message),
        "settled_after_epoch": sum(_is_settled_late(h, by_epoch) for h in handlings),
        "settled_without_outcome": sum(not h.is_complete and h.settle is not None for h in handlings),
        "settled_out_of_order": _count_settled_out_of_order(by_message),
        "started_after_loss": sum(_is_lost(h, by_epoch[h.epoch]) for h in handlings),
        "two_active": _count_two_active(run, handlings, by_epoch),
        "shard_in_wrong_queue": sum(
            h.record.shard is not None
            and h.record.queue
            not in {h.record.shard % n for n in [*_layouts(run), run.journals[h.life].header.queue_count]}
            for h in handlings
        ),
        "key_on_two_shards": _count_scattered_keys(run, handlings),
        "published": len(_confirmed(run)),
        "handled_first": sum(any(h.is_complete for h in group) for group in by_message.values()),
        "fenced": sum(h.is_complete and h.settle is None for h in handlings),
        "unnumbered": sum(h.message is None for h in handlings),
    }
    found |= _count_overlaps(run, handlings, part_of, by_epoch)
    found |= _count_duplicates(run, by_message, is_exposed)
    return found


def _layouts(run: Run) -> list[int]:
    """The queue counts one after the other; none without re-stripings."""
    counts: list[int] = []
    for _, before, after in sorted({(r.generation, r.from_count, r.to_count) for j in run.journals for r in j.stripes}):
        counts += [after] if counts[-1:] == [before] else [before, after]
    return counts


def _parts(run: Run) -> Callable[[int], int]:
    divisor = gcd(*_layouts(run))
    return lambda queue: queue % divisor if divisor else queue


def count_untimely(run: Run) -> int:
    """First handlings in a queue that, as far as records say when shards left, did not hold their shard at the time."""
    records = [record for journal in run.journals for record in journal.stripes]
    names = sorted({(record.generation, record.from_count, record.to_count) for record in records})
    done: set[tuple[int, tuple[str, str, int]]] = set()
    part_of, untimely = _parts(run), 0
    every = [Handling(life, record) for life, journal in enumerate(run.journals) for record in journal.dispatches]
    for handling in sorted(every, key=lambda h: (h.start, h.done)):
        record = handling.record
        name = None if handling.message is None else (part_of(record.queue), handling.message)
        is_first = not record.redelivered if name is None else name not in done
        if name is not None and handling.is_complete:
            done.add(name)
        if is_first and record.shard is not None:
            stays = [stay for stay in _stays(records, names, record.shard) if stay[0] == record.queue]
            untimely += bool(stays) and not any(begin <= handling.start <= end for _, begin, end in stays)
    return untimely


def _stays(
    records: list[StripesRecord], names: list[tuple[int, int, int]], shard: int
) -> list[tuple[int, float, float]]:
    """Queues that a shard lay in, one after the other, each with its begin and end."""
    stays: list[tuple[int, float, float]] = []
    last = None
    for generation, before, after in names:
        if last is None:
            stays.append((shard % before, -inf, inf))
        elif last != before and shard % last != shard % before:
            # Nobody knows how it came there.
            stays.append((shard % before, inf, inf))
        last = after
        if shard % before == shard % after:
            continue
        moments = [
            record.mono_ns
            for record in records
            if (record.generation, record.from_count, record.to_count) == (generation, before, after)
            and (record.event, record.shard, record.queue) == ("left", shard, shard % before)
        ]
        moment = min(moments, default=inf)
        stays[-1] = (*stays[-1][:2], moment)
        stays.append((shard % after, moment, inf))
    return stays


def _confirmed(run: Run) -> set[tuple[str, str, int]]:
    return {
        (ledger.header.publisher, record.key, seq)
        for ledger in run.ledgers
        for record in ledger.confirmed
        for seq in range(record.first_seq, record.last_seq + 1)
    }


def _count_lost(run: Run, handlings: list[Handling]) -> int:
    return len(_confirmed(run) - {h.message for h in handlings if h.is_complete and h.message})


def _count_late(by_message: dict[tuple[int, tuple[str, str, int]], list[Handling]]) -> int:
    late = 0
    for (part, (publisher, key, seq)), group in by_message.items():
        complete = [h.start for h in group if h.is_complete]
        if complete:
            late += any(
                other_part == part
                and (other_publisher, other_key) == (publisher, key)
                and other_seq > seq
                and min(h.start for h in other) < min(complete)
                for (other_part, (other_publisher, other_key, other_seq)), other in by_message.items()
            )
    return late


def _count_overlaps(
    run: Run,
    handlings: list[Handling],
    part_of: Callable[[int], int],
    by_epoch: dict[tuple[int, int, int], list[FlowRecord]],
) -> dict[str, int]:
    lanes: dict[tuple[int, str], list[Handling]] = defaultdict(list)
    for handling in sorted(handlings, key=lambda h: (h.start, h.done)):
        if handling.record.key is not None:
            lanes[part_of(handling.record.queue), handling.record.key].append(handling)
    in_process = across = after_loss = 0
    for lane in lanes.values():
        for place, later in enumerate(lane):
            inside = [earlier for earlier in lane[:place] if earlier.done > later.start]
            if any(earlier.life == later.life for earlier in inside):
                in_process += 1
            elif not all(_comes_of(run, earlier, later, lane, by_epoch) for earlier in inside):
                across += 1
            elif inside:
                after_loss += 1
    return {
        "overlap_in_process": in_process,
        "overlap_across_processes": across,
        "overlaps_after_loss": after_loss,
    }


def _comes_of(
    run: Run,
    earlier: Handling,
    later: Handling,
    lane: list[Handling],
    by_epoch: dict[tuple[int, int, int], list[FlowRecord]],
) -> bool:
    """Whether the earlier one ran on where its flow was lost, and the later one is what the broker gave again."""
    flows, journal = by_epoch.get(earlier.epoch, []), run.journals[earlier.life]
    losses = [f.mono_ns for f in flows if f.event in ("inactive", "down") and f.mono_ns >= earlier.start]
    lost = max(earlier.start, min([_earliest(journal, loss) - 50 * MS for loss in losses], default=inf))
    if later.start < lost:
        return False
    if later.record.redelivered and not _is_newer(later, earlier):
        return True
    behind = [h for h in lane if h.life != earlier.life and h.start >= lost and h.record.redelivered]
    return any(other.start < later.start for other in behind if other.message == earlier.message)


def _is_newer(one: Handling, than: Handling) -> bool:
    if one.message is None or than.message is None:
        return False
    return one.record.publisher == than.record.publisher and one.message[2] > than.message[2]


def _pauses(journal: Journal) -> list[tuple[int, int]]:
    records = [record for record in journal.records if isinstance(record, PauseRecord)]
    return sorted((record.from_mono_ns, record.to_mono_ns) for record in records)


def _before(journal: Journal, moment: float, span_ns: int) -> float:
    """The moment so long before, by a clock that stands still with the process."""
    for begin, end in reversed(_pauses(journal)):
        if begin < moment:
            if moment - span_ns >= min(end, moment):
                break
            span_ns -= round(moment - min(end, moment))
            moment = begin
    return moment - span_ns


def _fed(journal: Journal, handling: Handling) -> int:
    """When its message was sent at the latest, as far as is certain."""
    return _earliest(journal, handling.record.receive_mono_ns)


def _earliest(journal: Journal, moment: int) -> int:
    """When that may have happened which was noticed then."""
    behind = 2000 * MS
    for begin, end in reversed(_pauses(journal)):
        if begin < moment:
            ran = max(moment - end, 0)
            if ran > 2000 * MS:
                break
            if ran >= behind:
                return moment - behind
            moment, behind = begin, behind - ran
    return moment


def _heard(journal: Journal, handling: Handling, flows: list[FlowRecord], own: list[Handling]) -> float:
    """When the flow last heard of the broker in the time of being fed in which it received this message."""
    turns = sorted((f.mono_ns, f.event) for f in flows if f.event in ("active", "inactive", "down"))
    begins = [
        moment
        for place, (moment, event) in enumerate(turns)
        if event == "active" and (place == 0 or turns[place - 1][1] != "active")
    ]

    def tenure(other: Handling) -> int:
        return max(0, sum(begin <= _fed(journal, other) for begin in begins) - 1)

    received = [_fed(journal, other) for other in own if tenure(other) == tenure(handling)]
    return max([*received, begins[tenure(handling)] if begins else min(other.start for other in own)])


def _is_exposed(run: Run, handling: Handling, flows: list[FlowRecord], heard: float) -> bool:
    if not handling.is_complete:
        return False
    journal, settle = run.journals[handling.life], handling.settle
    ended_uncleanly = journal.close is None or not journal.close.clean
    if ended_uncleanly and not any(flow.event == "released" for flow in flows):
        last = journal.last_mono_ns
        assert last is not None
        alive = min(last, max(heard, _before(journal, last, SILENCE_NS)))
        if settle is None or settle >= _before(journal, alive, ACK_WINDOW_NS):
            return True
    breaks = [flow.mono_ns for flow in flows if flow.event in ("inactive", "down")]
    if not breaks:
        return False
    if settle is None:
        return True
    following = [moment for moment in breaks if moment >= settle]
    if following and settle >= _before(journal, min(following), SILENCE_NS + ACK_WINDOW_NS):
        return True
    turns = [flow for flow in flows if flow.event in ("active", "inactive", "down") and flow.mono_ns < settle]
    return bool(turns) and max(turns, key=lambda flow: flow.mono_ns).event != "active"


def _count_duplicates(run, by_message, is_exposed) -> dict[str, int]:  # type: ignore[no-untyped-def]
    resendable = {
        (ledger.header.publisher, record.key, record.seq)
        for ledger in run.ledgers
        for record in ledger.unconfirmed
        if record.fate == "unknown"
    }
    total = faultless_total = unflagged_total = unfinished = flagged = 0
    for (_, message), group in by_message.items():
        complete = [place for place, handling in enumerate(group) if handling.is_complete]
        if not complete:
            continue
        repeats = range(complete[0] + 1, len(group))
        total += len(repeats)
        unfinished += sum(not group[place].is_complete for place in repeats)
        flagged += sum(group[place].record.redelivered for place in repeats)
        faultless = 0
        for place in repeats:
            same_queue = [h for h in group[complete[0] : place] if h.record.queue == group[place].record.queue]
            faultless += not same_queue or (same_queue[-1].is_complete and not is_exposed(same_queue[-1]))
        unflagged = sum(not group[place].record.redelivered for place in repeats)
        excuse = 1 if message in resendable else 0
        faultless_total += max(0, faultless - excuse)
        unflagged_total += max(0, unflagged - excuse)
    exposed = sum(is_exposed(handling) for group in by_message.values() for handling in group)
    return {
        "duplicates": total,
        "duplicates_flagged": flagged,
        "duplicate_without_fault": faultless_total,
        "duplicate_unflagged": unflagged_total,
        "duplicate_bound": exposed + unfinished + len(resendable),
    }


def _is_settled_late(handling: Handling, by_epoch: dict[tuple[int, int, int], list[FlowRecord]]) -> bool:
    if handling.settle is None:
        return False
    ends = [flow.mono_ns for flow in by_epoch[handling.epoch] if flow.event in ("released", "down")]
    for (life, queue, number), flows in by_epoch.items():
        if (life, queue) == handling.epoch[:2] and number > handling.record.bind_epoch:
            ends += [flow.mono_ns for flow in flows if flow.event == "active"]
    return any(handling.settle - 1000 > end for end in ends)


def _count_settled_out_of_order(by_message: dict[tuple[int, tuple[str, str, int]], list[Handling]]) -> int:
    lanes: dict[object, list[Handling]] = defaultdict(list)
    for (part, (publisher, key, _)), group in by_message.items():
        for first in [handling for handling in group if handling.is_complete][:1]:
            lanes[part, publisher, key, first.epoch].append(first)
    found = 0
    for lane in lanes.values():
        for handling in lane:
            before = [inf if h.settle is None else h.settle for h in lane if h.start < handling.start]
            found += handling.settle is not None and max(before, default=0) - 5_000 > handling.settle
    return found


def _is_lost(handling: Handling, flows: list[FlowRecord]) -> bool:
    begins = [flow.mono_ns for flow in flows if flow.event == "active" and flow.mono_ns <= handling.start]
    losses = [f.mono_ns for f in flows if f.event in ("inactive", "down", "released") and f.mono_ns < handling.start]
    return not handling.record.redelivered and max(losses, default=-inf) > max(begins, default=-inf)


def _count_two_active(
    run: Run, handlings: list[Handling], by_epoch: dict[tuple[int, int, int], list[FlowRecord]]
) -> int:
    """For runs in which no epoch is active twice."""
    tenures: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for epoch in {*by_epoch, *(h.epoch for h in handlings)}:
        flows, own = by_epoch.get(epoch, []), [h for h in handlings if h.epoch == epoch]
        active = [flow.mono_ns for flow in flows if flow.event == "active"] or [h.start for h in own]
        if not active:
            continue
        start = min(active)
        broken = any(flow.event in ("inactive", "down") for flow in flows)
        buffered = 50 * MS if broken else 0
        proofs = [start] + [_fed(run.journals[h.life], h) - buffered for h in own if not h.record.redelivered]
        if not broken:
            proofs += [flow.mono_ns for flow in flows if flow.event == "draining"]
            if any(flow.event == "released" for flow in flows):
                proofs += [h.done for h in own]
        if max(proofs) > start:
            tenures[epoch[1]].append((start, max(proofs), start))
        else:
            begin = _earliest(run.journals[epoch[0]], start)
            tenures[epoch[1]].append((begin, begin, start))
    found = 0
    for spans in tenures.values():
        ordered = sorted(spans)
        later = {two for one, two in combinations(range(len(ordered)), 2) if ordered[one][1] > ordered[two][2]}
        found += len(later)
    return found


def _count_scattered_keys(run: Run, handlings: list[Handling]) -> int:
    shards: dict[str, set[int]] = defaultdict(set)
    for handling in handlings:
        if handling.record.key is not None and handling.record.shard is not None:
            shards[handling.record.key].add(handling.record.shard)
    for ledger in run.ledgers:
        for record in [*ledger.confirmed, *ledger.unconfirmed]:
            shards[record.key].add(record.shard)
    return sum(len(found) > 1 for found in shards.values())
