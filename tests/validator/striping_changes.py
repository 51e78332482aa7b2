"""Single changes to a correct run with re-stripings: what a move of a shard can do wrong."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from lbg_runtime.model.record import DispatchRecord, StripesRecord
from lbg_runtime.validator.findings import Law
from tests.validator.changes import Change, all_handlings, handled_once, resendable_messages
from tests.validator.run_files import Journal, Run, wall_us


@dataclass(frozen=True)
class ShardMove:
    """The last handling of a key before its shard left a queue, and the first in the queue that it went to."""

    left: StripesRecord
    """The earliest record of it."""
    giver: Journal
    before: DispatchRecord
    taker: Journal
    after: DispatchRecord


def _moves(run: Run) -> Iterator[ShardMove]:
    """Where both were handled once, by flows that were fed from before the leaving until after the first handling."""
    resendable, once = resendable_messages(run), [record for _, _, record in handled_once(run)]
    earliest: dict[tuple[int, int | None], StripesRecord] = {}
    for record in sorted((r for j in run.journals for r in j.stripes), key=lambda r: r.mono_ns):
        if record.event == "left":
            earliest.setdefault((record.generation, record.shard), record)
    for left in earliest.values():
        handlings = [item for item in all_handlings(run) if item[2].shard == left.shard]
        for key in sorted({str(record.key) for _, _, record in handlings}):
            of_key = [(journal, record) for journal, _, record in handlings if record.key == key]
            earlier = [item for item in of_key if item[1].start_mono_ns < left.mono_ns]
            later = [item for item in of_key if item[1].start_mono_ns > left.mono_ns]
            if not earlier or not later:
                continue
            (giver, before), (taker, after) = earlier[-1], later[0]
            is_plain = before in once and after in once and before.outcome == after.outcome == "accepted"
            is_plain = is_plain and not {(r.publisher, r.key, r.seq) for r in (before, after)} & resendable
            went_on = (left.shard or 0) % left.to_count
            is_plain = is_plain and (before.queue, after.queue) == (left.queue, went_on)
            span = (before.start_mono_ns, after.done_mono_ns)
            if is_plain and _is_fed(giver, before, *span) and _is_fed(taker, after, *span):
                yield ShardMove(left, giver, before, taker, after)


def _is_fed(journal: Journal, record: DispatchRecord, from_ns: int, to_ns: int) -> bool:
    flows = [flow for flow in journal.flows if (flow.queue, flow.bind_epoch) == (record.queue, record.bind_epoch)]
    began = [flow.mono_ns for flow in flows if flow.event == "active"]
    ended = [flow.mono_ns for flow in flows if flow.event not in ("bound", "active")]
    return journal.close is not None and min(began) < from_ns and min(ended) > to_ns


def _put(journal: Journal, old: DispatchRecord, new: DispatchRecord) -> None:
    journal.records[journal.records.index(old)] = new


def _timed(record: DispatchRecord, start_ns: int, done_ns: int) -> DispatchRecord:
    return replace(
        record,
        receive_mono_ns=start_ns,
        start_mono_ns=start_ns,
        done_mono_ns=done_ns,
        t_done=wall_us(done_ns),
        t_settle=wall_us(done_ns),
    )


def lose_in_the_move(run: Run) -> bool:
    """The first message behind a marker is handled by nobody."""
    for move in _moves(run):
        is_confirmed = any(
            (ledger.header.publisher, entry.key) == (move.after.publisher, move.after.key)
            and entry.first_seq <= (move.after.seq or 0) <= entry.last_seq
            for ledger in run.ledgers
            for entry in ledger.confirmed
        )
        if is_confirmed:
            move.taker.records.remove(move.after)
            return True
    return False


def handle_in_both_queues(run: Run) -> bool:
    """The new queue's owner handles its copy of a message before the marker; nobody was given that copy before."""
    for move in _moves(run):
        begin = move.after.start_mono_ns
        copy = replace(move.after, publisher=move.before.publisher, seq=move.before.seq, redelivered=False)
        move.taker.records.append(_timed(copy, begin - 30, begin - 20))
        return True
    return False


def handle_redelivered_in_both_queues(run: Run) -> bool:
    """The same with a copy that somebody was given before."""
    for move in _moves(run):
        begin = move.after.start_mono_ns
        copy = replace(move.after, publisher=move.before.publisher, seq=move.before.seq, redelivered=True)
        move.taker.records.append(_timed(copy, begin - 30, begin - 20))
        return True
    return False


def handle_before_leaving(run: Run) -> bool:
    """The new queue's owner does not wait until it hears that the old one is done, although it is."""
    for move in _moves(run):
        if move.before.done_mono_ns < move.left.mono_ns - 1000:
            _put(move.taker, move.after, _timed(move.after, move.left.mono_ns - 10, move.left.mono_ns - 5))
            return True
    return False


def handle_before_predecessor(run: Run) -> bool:
    """The new queue's owner handles what is behind the marker before the old one has begun with what is before it."""
    for move in _moves(run):
        begin = move.before.start_mono_ns
        of_key = [record for _, _, record in all_handlings(run) if record.key == move.before.key]
        is_free = not any(begin - 30 <= record.done_mono_ns < begin for record in of_key)
        if move.after.publisher == move.before.publisher and is_free:
            _put(move.taker, move.after, _timed(move.after, begin - 30, begin - 20))
            return True
    return False


def handle_after_leaving(run: Run) -> bool:
    """The old queue's owner handles one more when it has said that the shard has left."""
    for move in _moves(run):
        if move.left.mono_ns + 30 < move.after.start_mono_ns:
            _put(move.giver, move.before, _timed(move.before, move.left.mono_ns + 10, move.left.mono_ns + 20))
            return True
    return False


def overlap_across_queues(run: Run) -> bool:
    """The old queue's owner still handles the key, on another member, when the new one begins."""
    for move in _moves(run):
        if move.giver is not move.taker:
            begin = move.before.start_mono_ns
            _put(move.giver, move.before, _timed(move.before, begin, move.after.start_mono_ns + 1))
            return True
    return False


def come_through_no_layout(run: Run) -> bool:
    """A message comes through a queue that holds its shard by none of the queue counts."""
    for journal, place, record in handled_once(run):
        journal.records[place] = replace(record, queue=99)
        return True
    return False


BREAKING_MOVES: list[tuple[set[Law], Change]] = [
    ({Law.LOSS}, lose_in_the_move),
    ({Law.DUPLICATE_WITHOUT_FAULT, Law.DUPLICATE_UNFLAGGED}, handle_in_both_queues),
    ({Law.DUPLICATE_WITHOUT_FAULT}, handle_redelivered_in_both_queues),
    ({Law.SHARD_HANDLED_BEFORE_ARRIVING}, handle_before_leaving),
    ({Law.SHARD_HANDLED_BEFORE_ARRIVING, Law.ORDER}, handle_before_predecessor),
    ({Law.SHARD_HANDLED_AFTER_LEAVING}, handle_after_leaving),
    ({Law.OVERLAP_ACROSS_PROCESSES}, overlap_across_queues),
    ({Law.SHARD_IN_WRONG_QUEUE}, come_through_no_layout),
]
"""Each with the laws that it breaks, and no other."""
