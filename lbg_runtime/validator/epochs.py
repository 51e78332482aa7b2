"""Flow epochs and tenures of a run: what each flow handle lived through, and what a fault may have undone in it.

An epoch is one flow handle of one member's life on one queue. A tenure is one period of being fed within an epoch: from
an `active` record to the next one after an interruption. Nearly always there is one tenure in an epoch, or none (a
standby). An `active` record without an interruption before it means that a drain was given up.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lbg_runtime.model.connection import LONGEST_SILENCE_MS
from lbg_runtime.validator.arrow import ints, is_one_of, texts
from lbg_runtime.validator.columns import Handlings, Lives
from lbg_runtime.validator.schema import LOSSES
from lbg_runtime.validator.segments import FAR_FUTURE, FAR_PAST, Flags, Ints, dense, preceding

SILENCE_NS = LONGEST_SILENCE_MS * 1_000_000

BUFFERED_NS = 50_000_000
"""For how long a member that is cut off goes on receiving what had come before: it lies in front of the end of its
connection. Measured at evictions under load: some milliseconds."""

_LONGEST_STANDSTILL_NS = 120_000_000_000
"""How long a life from which nothing comes is waited for."""


@dataclass(frozen=True, slots=True)
class Epochs:
    """One row per epoch, sorted by journal, queue and epoch number."""

    journal: Ints
    queue: Ints
    number: Ints
    of_handling: Ints
    """Per handling, the row of its epoch."""
    flows: pa.Table
    """The flow records."""
    of_flow: Ints
    """Per flow record, the row of its epoch."""
    flow_ns: Ints
    """Per flow record, its moment on the common clock."""
    over_ns: Ints
    """First `released` or `down` record, or the first activity of a later epoch of the same life and queue, whichever
    is earlier; no settlement may follow. `FAR_FUTURE` while neither is on record."""
    draining_ns: Ints
    """Last `draining` record; `FAR_PAST` without one."""
    released: Flags
    broken: Flags
    """It has an `inactive` or `down` record: the broker or the connection took the flow away."""

    def flow_is(self, *events: str) -> Flags:
        """Per flow record, whether it is of one of these events."""
        return is_one_of(self.flows, "event", *events)


@dataclass(frozen=True, slots=True)
class Tenures:
    """One row per tenure, and one for each epoch that handled something without an `active` record."""

    epoch: Ints
    start_ns: Ints
    """The `active` record, or the first handling if there is none."""
    fed_until_ns: Ints
    """Last moment for which there is proof that the broker fed this flow: `last_fed_ns`, or when it announced its
    drain. If the flow was released in good order, it was also not to be given away while handling, so the end of its
    last handling counts. What a member merely believed while cut off from the broker proves nothing; so if the flow was
    lost, what it received last proves that it was fed `BUFFERED_NS` earlier."""
    first_start_ns: Ints
    """`FAR_FUTURE` where nothing was handled."""
    last_done_ns: Ints
    """`FAR_PAST` where nothing was handled."""
    last_receive_ns: Ints
    """`FAR_PAST` where nothing was handled."""
    last_fed_ns: Ints
    """As `last_receive_ns`, of unflagged messages only: a parked message is received again, flagged, when it is
    replayed, and may have come from the broker long ago."""
    of_handling: Ints
    """Per handling, the row of its tenure."""


def read_epochs(handlings: Handlings, flows: pa.Table, lives: Lives) -> Epochs:
    """Collect the epochs that handlings and flow records name."""
    flow_journal = ints(flows, "journal")
    flow_ns = ints(flows, "mono_ns") + lives.offset_ns[flow_journal]
    journal = np.concatenate([handlings.journal, flow_journal])
    queue = np.concatenate([handlings.queue, ints(flows, "queue")])
    number = np.concatenate([handlings.bind_epoch, ints(flows, "bind_epoch")])
    code = dense(journal, queue, number)
    _, sample = np.unique(code, return_index=True)
    count = len(sample)
    of_handling, of_flow = np.split(code, [len(handlings.journal)])
    journal, queue, number = journal[sample], queue[sample], number[sample]

    def earliest(*events: str) -> Ints:
        chosen = is_one_of(flows, "event", *events)
        moments = np.full(count, FAR_FUTURE, dtype=np.int64)
        np.minimum.at(moments, of_flow[chosen], flow_ns[chosen])
        return moments

    def ever(*events: str) -> Flags:
        happened = np.zeros(count, dtype=np.bool_)
        happened[of_flow[is_one_of(flows, "event", *events)]] = True
        return happened

    draining = is_one_of(flows, "event", "draining")
    draining_ns = np.full(count, FAR_PAST, dtype=np.int64)
    np.maximum.at(draining_ns, of_flow[draining], flow_ns[draining])
    over = np.minimum(earliest("released", "down"), _next_activity(journal, queue, earliest("active")))
    return Epochs(
        journal=journal,
        queue=queue,
        number=number,
        of_handling=of_handling,
        flows=flows,
        of_flow=of_flow,
        flow_ns=flow_ns,
        over_ns=over,
        draining_ns=draining_ns,
        released=ever("released"),
        broken=ever(*LOSSES),
    )


def _next_activity(journal: Ints, queue: Ints, first_active: Ints) -> Ints:
    """Per epoch, the earliest activity among later epochs of the same life and queue."""
    moments = np.full(len(journal), FAR_FUTURE, dtype=np.int64)
    for row in range(len(journal) - 2, -1, -1):
        if journal[row] == journal[row + 1] and queue[row] == queue[row + 1]:
            moments[row] = min(moments[row + 1], first_active[row + 1])
    return moments


def exposed_handlings(
    handlings: Handlings, epochs: Epochs, tenures: Tenures, lives: Lives, ack_window_ns: int
) -> Flags:
    """Marks handlings of which the broker may never have learned, because of a fault on record.

    Either (a) the life ended uncleanly before the epoch was released, or (b) the epoch was broken; and the settlement
    was never sent, or was sent at most the acknowledgement window before the connection may have been dead. A network
    that went silent is noticed late, by `SILENCE_NS` at most. If a life simply ended, what its flow received last shows
    that the network was not silent yet; if the flow was broken, that shows nothing, as one direction may live without
    the other. A life that stood still noticed nothing and sent nothing meanwhile: that time does not count.
    """
    epoch = epochs.of_handling
    cut_off = (lives.ended_uncleanly[epochs.journal] & ~epochs.released)[epoch]
    end_ns = lives.last_ns[handlings.journal]
    heard_ns = np.maximum(tenures.start_ns, tenures.last_receive_ns)[tenures.of_handling]
    journal = handlings.journal
    alive_ns = np.minimum(end_ns, np.maximum(heard_ns, lives.before(journal, end_ns, SILENCE_NS)))
    # A settlement that was not sent counts as sent in the far future.
    exposed: Flags = cut_off & (handlings.settle_ns >= lives.before(journal, alive_ns, ack_window_ns))
    broken_rows = np.flatnonzero(epochs.broken[epoch])
    if len(broken_rows):
        exposed[broken_rows] |= _broken_before_confirmed(broken_rows, handlings, epochs, lives, ack_window_ns)
    exposed &= handlings.complete
    return exposed


def exposed_since(lives: Lives, until_ns: int, ack_window_ns: int) -> Ints:
    """Per life, the moment since which its settlements may still turn out to be in vain, while the run goes on."""
    until_ns = max(until_ns, 0)
    # A life from which nothing comes may be standing still, and record that when it goes on.
    seen_ns = np.clip(lives.last_ns, until_ns - _LONGEST_STANDSTILL_NS, until_ns)
    seen_ns = np.where(lives.ended_uncleanly, seen_ns, until_ns)
    return lives.before(np.arange(len(seen_ns)), seen_ns, SILENCE_NS + ack_window_ns)


def _broken_before_confirmed(
    rows: Ints, handlings: Handlings, epochs: Epochs, lives: Lives, ack_window_ns: int
) -> Flags:
    """For handlings in broken epochs: was the settlement unsent, sent while cut off, or sent too shortly before?

    A handle can outlive several interruptions, so each settlement is compared with the interruption that followed it.
    """
    exposed: Flags = handlings.settle_ns[rows] == FAR_FUTURE
    breaks, turns = epochs.flow_is(*LOSSES), _turns(epochs)
    of_turn = epochs.of_flow[turns]
    epoch = epochs.of_handling[rows]
    by_epoch = np.argsort(epoch, kind="stable")
    bounds = np.flatnonzero(np.diff(epoch[by_epoch], prepend=-1))
    for group in np.split(by_epoch, bounds[1:]):
        begin, end = np.searchsorted(of_turn, [epoch[group[0]], epoch[group[0]] + 1])
        turn = turns[begin:end]
        break_ns = epochs.flow_ns[turn[breaks[turn]]]
        settle = handlings.settle_ns[rows[group]]
        following = np.searchsorted(break_ns, settle)
        life = np.full(len(break_ns), epochs.journal[epoch[group[0]]])
        since_ns = lives.before(life, break_ns, SILENCE_NS + ack_window_ns)
        shortly = (following < len(break_ns)) & (since_ns[np.minimum(following, len(break_ns) - 1)] <= settle)
        before = np.searchsorted(epochs.flow_ns[turn], settle) - 1
        cut_off = (before >= 0) & breaks[turn[np.maximum(before, 0)]]
        exposed[group] |= shortly | cut_off
    return exposed


def read_tenures(handlings: Handlings, epochs: Epochs) -> Tenures:
    """Collect the tenures; all moments come from flow records and handlings, none is guessed."""
    active = _beginnings(epochs)
    per_epoch = np.bincount(epochs.of_flow[active], minlength=len(epochs.journal))
    rows = np.maximum(per_epoch, 1)
    first_tenure = np.cumsum(rows) - rows
    epoch = np.repeat(np.arange(len(rows)), rows)
    start = np.full(len(epoch), FAR_FUTURE, dtype=np.int64)
    start[per_epoch[epoch] > 0] = epochs.flow_ns[active]

    of_handling = first_tenure[epochs.of_handling]
    several = np.flatnonzero((per_epoch > 1)[epochs.of_handling])
    begun = preceding(epoch, start, epochs.of_handling[several], handlings.receive_ns[several])
    of_handling[several] = np.maximum(begun, of_handling[several])

    first_start = np.full(len(epoch), FAR_FUTURE, dtype=np.int64)
    last_done = np.full(len(epoch), FAR_PAST, dtype=np.int64)
    last_receive = np.full(len(epoch), FAR_PAST, dtype=np.int64)
    np.minimum.at(first_start, of_handling, handlings.start_ns)
    np.maximum.at(last_done, of_handling, handlings.done_ns)
    np.maximum.at(last_receive, of_handling, handlings.receive_ns)
    last_fed = np.full(len(epoch), FAR_PAST, dtype=np.int64)
    fresh = ~handlings.redelivered
    np.maximum.at(last_fed, of_handling[fresh], handlings.receive_ns[fresh])
    start = np.where(per_epoch[epoch] > 0, start, first_start)
    last_of_epoch = np.arange(len(epoch)) == (first_tenure + rows - 1)[epoch]
    fed_until = np.maximum(start, last_fed)
    fed_until = np.maximum(start, fed_until - BUFFERED_NS * epochs.broken[epoch])
    # A member that was cut off drains what it still runs, while another may have been fed for long.
    announced = last_of_epoch & ~epochs.broken[epoch]
    fed_until = np.where(announced, np.maximum(fed_until, epochs.draining_ns[epoch]), fed_until)
    in_good_order = (epochs.released & ~epochs.broken)[epoch]
    fed_until = np.where(in_good_order, np.maximum(fed_until, last_done), fed_until)
    return Tenures(epoch, start, fed_until, first_start, last_done, last_receive, last_fed, of_handling)


def _beginnings(epochs: Epochs) -> Ints:
    """The `active` records that begin a tenure, sorted by epoch and time."""
    turn = _turns(epochs)
    is_active = epochs.flow_is("active")[turn]
    goes_on = np.zeros(len(turn), dtype=np.bool_)
    goes_on[1:] = is_active[:-1] & (epochs.of_flow[turn][1:] == epochs.of_flow[turn][:-1])
    beginnings: Ints = turn[is_active & ~goes_on]
    return beginnings


def _turns(epochs: Epochs) -> Ints:
    """The records by which activity begins or is interrupted, sorted by epoch and time."""
    turn = np.flatnonzero(epochs.flow_is("active", *LOSSES))
    return turn[np.lexsort((epochs.flow_ns[turn], epochs.of_flow[turn]))]


def release_causes(epochs: Epochs, lives: Lives, wanted: Ints) -> list[str]:
    """Why each wanted epoch ended, by its own records, or `crash` if its life was cut off before it could tell."""
    events, causes = texts(epochs.flows, "event"), texts(epochs.flows, "cause")
    by_epoch: dict[int, list[int]] = {epoch: [] for epoch in wanted.tolist()}
    for row in np.flatnonzero(np.isin(epochs.of_flow, wanted)).tolist():
        by_epoch[int(epochs.of_flow[row])].append(row)
    found = []
    for epoch in wanted.tolist():
        said = {events[row]: causes[row] or "" for row in by_epoch[epoch]}
        if "released" in said:
            found.append(said["released"] or said.get("draining") or "unknown")
        elif "down" in said or "inactive" in said:
            found.append("down" if "down" in said else "inactive")
        elif lives.ended_uncleanly[epochs.journal[epoch]]:
            found.append("crash")
        else:
            found.append(said.get("draining") or "unknown")
    return found
