"""The laws of docs/architecture.md, checked on a run's history alone; the machines under test are not asked.

Legitimate exceptions are modelled here. Handlings of one key in two processes may overlap, and a message may be handled
twice, if the broker had taken the message back from a member that did not know yet: its process was killed, its
connection was cut, or its flow was ended. The number excused is bounded by what was in flight or settled within the ack
timer at that moment, because each excuse is a separate delivery.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from lbg_runtime.core.flow.events import ReleaseCause
from lbg_runtime.model.ids import QueueName
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.sim.control_laws import control_violations
from lbg_runtime.sim.facts import DeliveryFacts, Facts, Handling
from lbg_runtime.sim.history import Delivered, Dispatched, HandlingStarted, Result, SpoolSeen, Stamp
from lbg_runtime.sim.settings import SimSettings
from lbg_runtime.sim.violation import Breach, Violation, violations_of


def check_laws(facts: Facts, settings: SimSettings) -> list[Violation]:
    """Every violation in a run, law by law."""
    violations = [violation for law in LAWS for violation in violations_of(law, facts)]
    violations += violations_of(duplicates_are_excused, facts, settings)
    return violations + control_violations(facts, settings)


def run_ends(facts: Facts) -> Iterator[Breach]:
    """Everything comes to an end: the queues become empty, publishers are confirmed, members stop."""
    for position, stalled in facts.stalled:
        yield facts.at_ms(position), stalled.what


def nothing_is_lost(facts: Facts) -> Iterator[Breach]:
    """What was confirmed to a publisher has been handled, and the broker was told of its end."""
    settled = {delivery.record.stamp for delivery in facts.deliveries.values() if delivery.settles}
    for stamp in facts.confirmed:
        if stamp not in settled:
            yield facts.history[-1].at_ms, f"{stamp} was never settled"


def broker_feeds_one_flow(facts: Facts) -> Iterator[Breach]:
    """L1: a queue is fed to another flow only after the one before it has ended."""
    fed: dict[str, DeliveryFacts] = {}
    for delivery in facts.deliveries.values():
        record = delivery.record
        before = fed.get(record.queue)
        if before is not None and before.record.flow != record.flow:
            closed = facts.closed.get(before.record.flow)
            if closed is None or closed[0] > delivery.delivered:
                yield record.at_ms, f"{record} while {before.record.flow} is bound"
        fed[record.queue] = delivery


def redeliveries_are_flagged(facts: Facts) -> Iterator[Breach]:
    """A message that was sent before from the same queue is flagged."""
    seen: set[tuple[str, Stamp]] = set()
    for delivery in facts.deliveries.values():
        record = delivery.record
        if record.redelivered != ((record.queue, record.stamp) in seen):
            yield record.at_ms, str(record)
        seen.add((record.queue, record.stamp))


def clients_drop_nothing(facts: Facts) -> Iterator[Breach]:
    """What the broker sends is shown: a client that drops a message keeps it unsettled and unseen."""
    for position, dropped in facts.dropped:
        yield facts.at_ms(position), str(dropped)


def standbys_touch_nothing(facts: Facts) -> Iterator[Breach]:
    """A handle is sent nothing before its member asked for messages, and one that steps aside has not asked."""
    for delivery in facts.deliveries.values():
        handle = delivery.record.handle
        asked = facts.intake_starts.get(handle)
        if asked is None or asked > delivery.delivered:
            yield delivery.record.at_ms, f"{delivery.record} unasked"
    for position, unbind in facts.unbinds:
        if unbind.cause is ReleaseCause.HOP and unbind.handle in facts.intake_starts:
            yield facts.at_ms(position), f"{unbind} after asking for messages"


def lane_is_serial(facts: Facts) -> Iterator[Breach]:
    """L2: no two handlings of a key overlap in one process."""
    last: dict[tuple[str, str], Handling] = {}
    for handling in facts.handlings():
        lane = (handling.handle.life, handling.stamp.key)
        before = last.get(lane)
        if before is not None and facts.end_of(before) > handling.start:
            yield facts.at_ms(handling.start), f"{handling} overlaps {before}"
        last[lane] = handling


def processes_overlap_only_when_cut_off(facts: Facts) -> Iterator[Breach]:
    """L5: two processes handle a key at once only if the broker took it from the first, which does not know."""
    open_by_key: dict[str, list[Handling]] = defaultdict(list)
    for handling in facts.handlings():
        still_open = [other for other in open_by_key[handling.stamp.key] if facts.end_of(other) > handling.start]
        for other in still_open:
            if other.handle.life != handling.handle.life and not _one_was_cut_off(facts, handling, other):
                story = f"{handling} overlaps {other}"
                yield facts.at_ms(handling.start), story
        open_by_key[handling.stamp.key] = [*still_open, handling]


def first_handlings_are_in_order(facts: Facts) -> Iterator[Breach]:
    """L3: a message is first handled only after its predecessor of the key has been handled to an end."""
    started: set[Stamp] = set()
    finished: dict[Stamp, int] = {}
    for delivery in facts.deliveries.values():
        for position, answered in delivery.answers:
            if answered.outcome is not None:
                stamp = delivery.record.stamp
                finished[stamp] = min(position, finished.get(stamp, position))
    for handling in facts.handlings():
        stamp = handling.stamp
        if stamp in started:
            continue
        started.add(stamp)
        if stamp.sequence == 1:
            continue
        predecessor = Stamp(stamp.publisher, stamp.key, stamp.sequence - 1)
        if predecessor not in finished or finished[predecessor] > handling.start:
            story = f"{stamp} started by {handling.handle} before {predecessor} was done"
            yield facts.at_ms(handling.start), story


def settled_messages_are_a_prefix(facts: Facts) -> Iterator[Breach]:
    """L3: at every moment, what is left of a key in a queue begins where what is settled ends."""
    first_left: dict[tuple[QueueName, str, str], int] = {}
    last_sent: dict[tuple[QueueName, str, str], int] = {}
    for happening in facts.history:
        match happening:
            case Delivered(_, queue, _, _, _, stamp):
                key = (queue, stamp.publisher, stamp.key)
                last_sent[key] = max(stamp.sequence, last_sent.get(key, 0))
            case SpoolSeen(at_ms, queue, stamps):
                left: dict[tuple[QueueName, str, str], list[int]] = defaultdict(list)
                for stamp in stamps:
                    left[queue, stamp.publisher, stamp.key].append(stamp.sequence)
                for key, sequences in left.items():
                    if sequences[0] < first_left.get(key, 0):
                        yield at_ms, f"{key}: {sequences[0]} is back"
                    first_left[key] = sequences[0]
                    # The last one that was sent may be gone, too, and nothing behind it shows that.
                    if _has_gap(sequences) or sequences[-1] < last_sent.get(key, 0):
                        yield at_ms, f"{key}: {sequences} are left"
            case _:
                pass


def moved_keys_wait(facts: Facts) -> Iterator[Breach]:
    """L3 across a re-striping: a message is started only when those before it that were dispatched from another queue
    have left that one."""
    left: dict[QueueName, dict[tuple[str, str], list[Stamp]]] = defaultdict(lambda: defaultdict(list))
    dispatched: dict[QueueName, set[Stamp]] = defaultdict(set)
    for happening in facts.history:
        match happening:
            case SpoolSeen(_, queue, stamps):
                left[queue] = defaultdict(list)
                for stamp in stamps:
                    left[queue][stamp.publisher, stamp.key].append(stamp)
            case Delivered(_, queue, _, _, _, stamp):
                # Not spooled yet when something was last settled there.
                if stamp not in (of_key := left[queue][stamp.publisher, stamp.key]):
                    of_key.append(stamp)
            case Dispatched(_, handle, _, stamp):
                dispatched[handle.queue].add(stamp)
            case HandlingStarted(at_ms, handle, _, stamp):
                for other, of_keys in left.items():
                    before = of_keys.get((stamp.publisher, stamp.key), ()) if other != handle.queue else ()
                    for each in before:
                        if each.sequence < stamp.sequence and each in dispatched[other]:
                            story = f"{stamp} started by {handle} while {each} is left in {other}"
                            yield at_ms, story
            case _:
                pass


def every_delivery_ends_once(facts: Facts) -> Iterator[Breach]:
    """L8: what was dispatched is answered once, and settled once or, if its handle is gone or it was not handled,
    never; L4: no settlement is dropped while its handle lives."""
    for delivery in facts.deliveries.values():
        record = delivery.record
        life_end = facts.life_ends.get(record.handle.life)
        if len(delivery.dispatched) > 1 or len(delivery.answers) > 1 or len(delivery.settles) > 1:
            yield record.at_ms, f"more than one end: {delivery}"
        elif delivery.dispatched and not delivery.answers and not (life_end is not None and life_end[1].killed):
            yield record.at_ms, f"no end: {record}"
        elif delivery.answers:
            position, answered = delivery.answers[0]
            handle_end = facts.handle_ends.get(record.handle, len(facts.history))
            must_settle = answered.outcome is not None and position < handle_end
            if must_settle and not delivery.settles:
                yield answered.at_ms, f"settlement dropped: {answered}"


def settlements_stay_in_their_epoch(facts: Facts) -> Iterator[Breach]:
    """L4: nothing is settled after its handle has ended."""
    for delivery in facts.deliveries.values():
        for position, order in delivery.settles:
            if facts.handle_ends.get(order.handle, position) < position:
                yield order.at_ms, str(order)


def nothing_starts_after_activity_is_lost(facts: Facts) -> Iterator[Breach]:
    """L4: what a handle held when its member heard of its loss of activity, or of its death, is no longer started."""
    losses = [(position, lost.handle) for position, lost in facts.activity_losses]
    losses += [(position, handle) for handle, position in facts.handle_ends.items()]
    losses_of: dict[object, list[int]] = defaultdict(list)
    for position, handle in losses:
        losses_of[handle].append(position)
    for delivery in facts.deliveries.values():
        if not delivery.dispatched:
            continue
        for handling in delivery.handlings:
            if any(delivery.dispatched[0] < loss < handling.start for loss in losses_of[handling.handle]):
                story = f"{handling} started"
                yield facts.at_ms(handling.start), story


def release_waits_for_what_is_in_flight(facts: Facts) -> Iterator[Breach]:
    """L5: before its member leaves, a handle is given up only when everything dispatched from it has been answered."""
    unbound = {unbind.handle: position for position, unbind in facts.unbinds}
    for delivery in facts.deliveries.values():
        life_end = facts.life_ends.get(delivery.record.handle.life)
        if (
            delivery.dispatched
            and delivery.record.handle not in facts.handle_ends
            and life_end
            and not life_end[1].killed
        ):
            story = f"{delivery.record.handle} bound when its member left"
            yield life_end[1].at_ms, story
        unbind = unbound.get(delivery.record.handle)
        if unbind is None or not delivery.dispatched:
            continue
        if delivery.dispatched[0] > unbind or not delivery.answers or delivery.answers[0][0] > unbind:
            story = f"{delivery.record} in flight at the unbind"
            yield facts.at_ms(unbind), story


def only_success_and_rejection_are_settled(facts: Facts) -> Iterator[Breach]:
    """L6 and L7: no negative acknowledgement in key order, and a cancelled handler settles nothing."""
    for delivery in facts.deliveries.values():
        for position, order in delivery.settles:
            last = delivery.handlings[-1] if delivery.handlings else None
            is_handled = last is not None and last.end is not None and last.end < position
            if order.outcome is Outcome.FAILED or not is_handled or (last and last.result is Result.CANCELLED):
                yield order.at_ms, f"{order} after {last}"


def duplicates_are_excused(facts: Facts, settings: SimSettings) -> Iterator[Breach]:
    """A message is handled again only if the earlier handling could not be settled, for a valid reason."""
    slack_ms = settings.ack_timer_ms + settings.longest_delay_ms
    for stamp, deliveries in facts.handled().items():
        for delivery in deliveries[:-1]:
            if not _is_excused(facts, delivery, slack_ms):
                start = delivery.handlings[0].start
                yield facts.at_ms(start), f"{stamp}: {delivery}"


def _is_excused(facts: Facts, delivery: DeliveryFacts, slack_ms: int) -> bool:
    closed = facts.closed.get(delivery.record.flow)
    if closed is not None and closed[1].cut_ms is not None:
        if not delivery.settles:
            return True
        settled_ms, cut_ms = delivery.settles[0][1].at_ms, closed[1].cut_ms
        # A process that stands still sends no acknowledgements; its timer goes on when the process does. The same is
        # true of a hanging loop if the client's own timer, then the only one, is slow (`LoopHung.keeps_settlements`).
        paused_ms = sum(
            max(0, min(pause.until_ms, cut_ms) - max(pause.at_ms, settled_ms))
            for pause in facts.pauses[delivery.record.handle.life]
        )
        return cut_ms - settled_ms - paused_ms <= slack_ms
    # A graceful move excuses only a handling without success: cancelled at the end of a stop, or failed and not tried
    # again because its flow was being given up.
    is_unhandled = bool(delivery.answers) and delivery.answers[0][1].outcome is None
    return is_unhandled and delivery.handlings[-1].result is not Result.DONE


def _has_gap(sequences: Sequence[int]) -> bool:
    """Whether a message of a key is left although one after it is gone and another after that is left."""
    return sequences[-1] - sequences[0] + 1 != len(sequences)


def _was_cut(facts: Facts, delivery: DeliveryFacts, position: int) -> bool:
    """Whether the broker had, by this position, lost the flow on which it sent the delivery."""
    closed = facts.closed.get(delivery.record.flow)
    return closed is not None and closed[1].cut_ms is not None and closed[0] < position


def _one_was_cut_off(facts: Facts, handling: Handling, other: Handling) -> bool:
    """Whether the earlier of the two deliveries was on a flow that the broker had closed when it sent the later."""
    first, second = sorted(
        (facts.deliveries[handling.delivery_id], facts.deliveries[other.delivery_id]), key=lambda d: d.delivered
    )
    return _was_cut(facts, first, second.delivered)


LAWS: tuple[Callable[[Facts], Iterator[Breach]], ...] = (
    run_ends,
    nothing_is_lost,
    broker_feeds_one_flow,
    redeliveries_are_flagged,
    clients_drop_nothing,
    standbys_touch_nothing,
    lane_is_serial,
    processes_overlap_only_when_cut_off,
    first_handlings_are_in_order,
    settled_messages_are_a_prefix,
    moved_keys_wait,
    every_delivery_ends_once,
    settlements_stay_in_their_epoch,
    nothing_starts_after_activity_is_lost,
    release_waits_for_what_is_in_flight,
    only_success_and_rejection_are_settled,
)
