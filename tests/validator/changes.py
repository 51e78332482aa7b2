"""Single changes to a correct run: for each law one that breaks it and nothing else, and random noise."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from hypothesis import strategies as st

from lbg_runtime.model.record import ConfirmedRecord, DispatchRecord, FlowRecord, PauseRecord, StripesRecord
from lbg_runtime.validator.findings import Law
from tests.validator.history import HASH_COUNT, QUEUE_COUNT
from tests.validator.run_files import MS, SECOND, Journal, Run, wall_us

Change = Callable[[Run], bool]
"""Alters the run in place; returns whether the run had a place for it."""


def all_handlings(run: Run) -> list[tuple[Journal, int, DispatchRecord]]:
    """Handlings with their places, in order of time."""
    places = [
        (journal, place, record)
        for journal in run.journals
        for place, record in enumerate(journal.records)
        if isinstance(record, DispatchRecord)
    ]
    return sorted(places, key=lambda item: item[2].start_mono_ns)


def _message(record: DispatchRecord) -> tuple[str | None, str | None, int | None]:
    return record.publisher, record.key, record.seq


def handled_once(run: Run) -> list[tuple[Journal, int, DispatchRecord]]:
    every = all_handlings(run)
    messages = [_message(record) for _, _, record in every]
    return [item for item in every if messages.count(_message(item[2])) == 1 and item[2].outcome != "cancelled"]


def resendable_messages(run: Run) -> set[tuple[str | None, str | None, int | None]]:
    """Messages of which the publisher may have sent a second copy: one repeat of each is excused."""
    return {
        (ledger.header.publisher, record.key, record.seq)
        for ledger in run.ledgers
        for record in ledger.unconfirmed
        if record.fate == "unknown"
    }


def _events(journal: Journal, record: DispatchRecord) -> dict[str, FlowRecord]:
    epoch = (record.queue, record.bind_epoch)
    return {flow.event: flow for flow in journal.flows if (flow.queue, flow.bind_epoch) == epoch}


def lose_last_of_key(run: Run) -> bool:
    """The handling of the last message of a key is gone."""
    last = {
        (ledger.header.publisher, record.key): record.last_seq for ledger in run.ledgers for record in ledger.confirmed
    }
    for journal, place, record in handled_once(run):
        if last.get((record.publisher or "", record.key or "")) == record.seq:
            del journal.records[place]
            return True
    return False


def confirm_one_more(run: Run) -> bool:
    """The ledger knows of a message after the last handled one."""
    known = [(record.key, record.last_seq) for record in run.ledgers[0].confirmed]
    known += [(record.key, record.seq) for record in run.ledgers[0].unconfirmed]
    if not known:
        return False
    key = known[0][0]
    last = max(seq for other, seq in known if other == key)
    shard = next(
        record.shard for record in [*run.ledgers[0].confirmed, *run.ledgers[0].unconfirmed] if record.key == key
    )
    run.ledgers[0].confirmed.append(ConfirmedRecord(key, shard, last + 1, last + 1, 0, 0))
    return True


def only_cancel(run: Run) -> bool:
    """A message's only handling was cancelled."""
    for journal, place, record in handled_once(run):
        if any(
            entry.key == record.key and entry.first_seq <= (record.seq or 0) <= entry.last_seq
            for ledger in run.ledgers
            if ledger.header.publisher == record.publisher
            for entry in ledger.confirmed
        ):
            journal.records[place] = replace(record, outcome="cancelled", t_settle=None)
            return True
    return False


def swap_two(run: Run) -> bool:
    """Two messages of a key change places."""
    once = handled_once(run)
    for (one, place, first), (other, other_place, second) in _neighbours(once):
        if first.publisher == second.publisher:
            one.records[place] = replace(first, seq=second.seq)
            other.records[other_place] = replace(second, seq=first.seq)
            return True
    return False


def _neighbours(
    items: list[tuple[Journal, int, DispatchRecord]],
) -> Iterator[tuple[tuple[Journal, int, DispatchRecord], tuple[Journal, int, DispatchRecord]]]:
    """Handlings that follow each other on a key."""
    last: dict[str | None, tuple[Journal, int, DispatchRecord]] = {}
    for item in items:
        key = item[2].key
        if key in last:
            yield last[key], item
        last[key] = item


def run_into_next(run: Run) -> bool:
    """A handling lasts into the next one of its key, in one life and epoch."""
    for (journal, place, first), (other, _, second) in _neighbours(all_handlings(run)):
        if journal is other and first.bind_epoch == second.bind_epoch and first.outcome != "cancelled":
            done = second.start_mono_ns + 1
            settle = None if first.t_settle is None else wall_us(done) + 1
            journal.records[place] = replace(first, done_mono_ns=done, t_done=wall_us(done), t_settle=settle)
            return True
    return False


def outlive_flow(run: Run) -> bool:
    """A cut-off member's handler still runs when the next owner handles the key, and its message never comes again."""
    every = all_handlings(run)
    for (journal, place, first), (other, _, second) in _neighbours(every):
        broken = {"inactive", "down"} & set(_events(journal, first))
        comes_again = any(each is not journal and _message(record) == _message(first) for each, _, record in every)
        if journal is not other and broken and journal.close is not None and not comes_again:
            done = second.start_mono_ns + 1
            journal.records[place] = replace(first, done_mono_ns=done, t_done=wall_us(done), t_settle=None)
            return True
    return False


def repeat_settled(run: Run) -> bool:
    """A message comes again although its settlement had long arrived."""
    resendable = resendable_messages(run)
    for journal, place, record in handled_once(run):
        events = _events(journal, record)
        is_settled = journal.close is not None and "released" in events and not {"inactive", "down"} & set(events)
        if is_settled and _message(record) not in resendable:
            start, done = record.done_mono_ns + 100, record.done_mono_ns + 200
            again = replace(record, start_mono_ns=start, done_mono_ns=done, t_done=wall_us(done), redelivered=True)
            journal.records.insert(place + 1, again)
            return True
    return False


def clear_flag(run: Run) -> bool:
    """A repeat after a crash is not flagged."""
    resendable = resendable_messages(run)
    seen = set()
    for journal, place, record in all_handlings(run):
        message = _message(record)
        if message in seen and message not in resendable and record.redelivered:
            journal.records[place] = replace(record, redelivered=False)
            return True
        if record.outcome != "cancelled":
            seen.add(message)
    return False


def _is_last_of_handle(journal: Journal, record: DispatchRecord) -> bool:
    """Whether no later message of the publisher and key was handled on the same flow handle."""
    lane = (record.queue, record.bind_epoch, record.publisher, record.key)
    same = [r for r in journal.dispatches if (r.queue, r.bind_epoch, r.publisher, r.key) == lane]
    return all(other.start_mono_ns <= record.start_mono_ns for other in same)


def settle_after_release(run: Run) -> bool:
    """A settlement is sent after the flow was released."""
    for journal, place, record in handled_once(run):
        released = _events(journal, record).get("released")
        if released is not None and journal.close is not None and _is_last_of_handle(journal, record):
            journal.records[place] = replace(record, t_settle=released.t + 3)
            return True
    return False


def settle_in_next_epoch(run: Run) -> bool:
    """A settlement is sent after the next epoch of the life became active, and the release record is missing."""
    for journal, place, record in handled_once(run):
        later = [
            flow
            for flow in journal.flows
            if flow.event == "active" and flow.queue == record.queue and flow.bind_epoch > record.bind_epoch
        ]
        events = _events(journal, record)
        is_last = _is_last_of_handle(journal, record)
        if (
            is_last
            and later
            and "released" in events
            and not {"inactive", "down"} & set(events)
            and journal.close is not None
        ):
            journal.records[place] = replace(record, t_settle=later[0].t + 3)
            journal.records.remove(events["released"])
            return True
    return False


def settle_cancelled(run: Run) -> bool:
    """A handling is cancelled and settled all the same, and the message is handled once more."""
    for journal, place, record in handled_once(run):
        done = record.start_mono_ns - 100
        cancelled = replace(record, start_mono_ns=done - 100, done_mono_ns=done, t_done=wall_us(done))
        journal.records.insert(place, replace(cancelled, t_settle=wall_us(done), outcome="cancelled"))
        return True
    return False


def _successors(run: Run) -> Iterator[tuple[Journal, int, DispatchRecord, DispatchRecord]]:
    """Handlings with the next one of their publisher and key, on one flow handle that was released in good order."""
    for (journal, place, first), (other, _, second) in _neighbours(handled_once(run)):
        events = _events(journal, first)
        is_one_handle = journal is other and (first.queue, first.bind_epoch) == (second.queue, second.bind_epoch)
        is_in_order = "released" in events and not {"inactive", "down"} & set(events) and journal.close is not None
        if is_one_handle and is_in_order and first.publisher == second.publisher:
            yield journal, place, first, second


def settle_never(run: Run) -> bool:
    """A handled message is not settled, and the next of its key is, on the same handle."""
    for journal, place, first, _ in _successors(run):
        journal.records[place] = replace(first, t_settle=None)
        return True
    return False


def settle_behind_successor(run: Run) -> bool:
    """A handled message is settled after the next of its key."""
    for journal, place, first, second in _successors(run):
        later = (second.t_settle or 0) + 10
        if later < _events(journal, first)["released"].t:
            journal.records[place] = replace(first, t_settle=later)
            return True
    return False


def start_after_loss(run: Run) -> bool:
    """A flow that was lost starts a message that it had, which the next owner is the first to handle to an end."""
    losses = [
        (journal, flow) for journal in run.journals for flow in journal.flows if flow.event in ("inactive", "down")
    ]
    every, once = all_handlings(run), handled_once(run)
    for journal, flow in losses:
        following = [r for _, _, r in every if r.queue == flow.queue and r.start_mono_ns > flow.mono_ns][:1]
        if following and not following[0].redelivered and any(record is following[0] for _, _, record in once):
            start, done = flow.mono_ns + 5 * MS + 1000, flow.mono_ns + 5 * MS + 2000
            started = replace(following[0], bind_epoch=flow.bind_epoch, receive_mono_ns=flow.mono_ns - 1)
            started = replace(started, start_mono_ns=start, done_mono_ns=done, t_done=wall_us(done))
            journal.records.append(replace(started, t_settle=None, outcome="cancelled"))
            return True
    return False


def activate_early(run: Run) -> bool:
    """The next owner is fed while the last one still is."""
    actives = sorted(
        (
            (flow.queue, flow.mono_ns, flow, journal)
            for journal in run.journals
            for flow in journal.flows
            if flow.event == "active"
        ),
        key=lambda item: item[:2],
    )
    for journal, _, record in handled_once(run):
        following = [item for item in actives if item[0] == record.queue and item[1] > record.start_mono_ns]
        if following and following[0][3] is not journal:
            _, _, flow, other = following[0]
            moment = record.receive_mono_ns - 100
            # What a flow received shortly before it was lost proves nothing.
            if {"inactive", "down"} & set(_events(journal, record)) or _may_have_been_over(other, moment):
                continue
            other.records[other.records.index(flow)] = replace(flow, mono_ns=moment, t=wall_us(moment))
            return True
    return False


def _may_have_been_over(journal: Journal, active_ns: int) -> bool:
    pauses = [record for record in journal.records if isinstance(record, PauseRecord)]
    return any(pause.from_mono_ns <= active_ns <= pause.to_mono_ns + 2 * SECOND for pause in pauses)


def scatter_key(run: Run) -> bool:
    """One publisher puts a key in another shard of the same queue."""
    for ledger in run.ledgers:
        for place, record in enumerate(ledger.confirmed):
            shard = (record.shard + QUEUE_COUNT) % HASH_COUNT
            ledger.confirmed[place] = replace(record, shard=shard)
            return True
    return False


def shift_stripe(run: Run) -> bool:
    """A key's shard lies in a queue that is not its own."""
    if not all_handlings(run):
        return False
    key, shard = all_handlings(run)[0][2].key, (all_handlings(run)[0][2].shard or 0) + 1
    for journal in run.journals:
        journal.records = [
            replace(record, shard=shard) if isinstance(record, DispatchRecord) and record.key == key else record
            for record in journal.records
        ]
    for ledger in run.ledgers:
        ledger.confirmed = [replace(r, shard=shard) if r.key == key else r for r in ledger.confirmed]
        ledger.unconfirmed = [replace(r, shard=shard) if r.key == key else r for r in ledger.unconfirmed]
    return True


BREAKING: list[tuple[Law, Change]] = [
    (Law.LOSS, lose_last_of_key),
    (Law.LOSS, confirm_one_more),
    (Law.LOSS, only_cancel),
    (Law.ORDER, swap_two),
    (Law.OVERLAP_IN_PROCESS, run_into_next),
    (Law.OVERLAP_ACROSS_PROCESSES, outlive_flow),
    (Law.DUPLICATE_WITHOUT_FAULT, repeat_settled),
    (Law.DUPLICATE_UNFLAGGED, clear_flag),
    (Law.SETTLED_AFTER_EPOCH, settle_after_release),
    (Law.SETTLED_AFTER_EPOCH, settle_in_next_epoch),
    (Law.SETTLED_WITHOUT_OUTCOME, settle_cancelled),
    (Law.SETTLED_OUT_OF_ORDER, settle_never),
    (Law.SETTLED_OUT_OF_ORDER, settle_behind_successor),
    (Law.STARTED_AFTER_LOSS, start_after_loss),
    (Law.TWO_ACTIVE, activate_early),
    (Law.KEY_ON_TWO_SHARDS, scatter_key),
    (Law.SHARD_IN_WRONG_QUEUE, shift_stripe),
]


@st.composite
def noise(draw: st.DrawFn, run: Run) -> Run:
    """The run with a few records altered at random, whatever law that breaks."""
    for _ in range(draw(st.integers(1, 6))):
        journal = draw(st.sampled_from(run.journals))
        if not journal.records:
            continue
        place = draw(st.integers(0, len(journal.records) - 1))
        record = journal.records[place]
        shift = draw(st.sampled_from([-3 * SECOND, -5 * MS, -1, 1, 5 * MS, 3 * SECOND]))
        kind = draw(st.sampled_from(["drop", "copy", "time", "fact"]))
        if kind == "drop":
            del journal.records[place]
        elif isinstance(record, FlowRecord | StripesRecord):
            moment = record.mono_ns + shift
            journal.records[place] = replace(record, mono_ns=moment, t=wall_us(moment))
        elif isinstance(record, DispatchRecord):
            if kind == "copy":
                other = draw(st.sampled_from(run.journals))
                other.records.append(_shifted(record, shift))
            elif kind == "time":
                journal.records[place] = _shifted(record, shift)
            else:
                facts = {"seq": 1, "key": "k0", "outcome": "failed", "t_settle": None, "bind_epoch": 1, "queue": 0}
                facts |= {"shard": 5, "publisher": None, "redelivered": not record.redelivered}
                name = draw(st.sampled_from(sorted(facts)))
                journal.records[place] = replace(record, **{name: facts[name]})
    return run


def _shifted(record: DispatchRecord, by_ns: int) -> DispatchRecord:
    return replace(
        record,
        receive_mono_ns=record.receive_mono_ns + by_ns,
        start_mono_ns=record.start_mono_ns + by_ns,
        done_mono_ns=record.done_mono_ns + by_ns,
        t_done=record.t_done + by_ns // 1000,
        t_settle=None if record.t_settle is None else record.t_settle + by_ns // 1000,
    )
