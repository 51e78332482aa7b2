"""Holds what a member tells of itself against what has come in and gone out, between two steps of its loop.

The truth is that of the dispatcher's door, where every delivery comes in and ends, and of the transport, which sees
every settlement and every copy that is sent to a parking queue.
"""

from collections import Counter

from prometheus_client.parser import text_string_to_metric_families

from lbg_runtime.core.flow.events import ReleaseCause
from lbg_runtime.core.flow.table import FlowState
from lbg_runtime.core.group.control_messages import LastOutcome
from lbg_runtime.core.parking.stay_state import HELD
from lbg_runtime.metrics.member import ScrapedMember, exposition
from lbg_runtime.model.failure import Then
from lbg_runtime.runtime.meters import MemberMeters
from lbg_runtime.runtime.runners.handling import Handling

LOOKS_EVERY = 17
"""Steps of the loop. What is told wrong once is told wrong from then on, as counts add up."""

FED = (FlowState.ACTIVE, FlowState.DRAINING)
IN_GOOD_ORDER = frozenset(each.value for each in ReleaseCause if each.is_in_good_order)


class Figures:
    """Of one life of a member; made with its supervisor, and told of each delivery."""

    def __init__(self, supervisor, journal, session):
        journal.meters = self._meters = MemberMeters()
        self._supervisor = supervisor
        self._session = session
        self._dispatcher = supervisor._dispatcher
        self._status = supervisor.status()
        self._held = {}
        """Handlings that have come and not ended."""
        self._unsettled = {}
        """Those that have ended and are not settled, by queue, epoch and delivery id."""
        self._early = set()
        """What was settled before its end was noted here, as a replay is."""
        self._copied = set()
        """Of which a copy was sent to a parking queue."""
        self._came, self._settled, self._gone = Counter(), Counter(), Counter()
        """Deliveries that came, were settled, and ended without an outcome, by queue and epoch."""
        self.handled = Counter()
        """By the index of the queue."""
        self.untried = Counter()
        """The part of it that no handler was called for, by the index of the queue."""
        self._counts = Counter()
        self._starts = {}
        """By the index of the queue and epoch: when the first handling of it began."""
        self._last = {}
        """By key, its newest settled message: number, attempts, and whether it was handled."""
        self._before = {}
        """The counters at the last look."""

    # -- what happens

    def take_in(self, handling):
        self._held[handling] = None
        self._came[handling.queue, handling.epoch] += 1

    def copy(self, message):
        """A copy of a message is sent to its parking queue."""
        same = [each for each in self._held if each.end_report and _identity(each.message) == _identity(message)]
        self._copied.update(same)

    def end(self, handling):
        del self._held[handling]
        name = handling.queue, handling.epoch, handling.delivery.delivery_id
        self._unsettled[name] = handling
        if handling.start_mono_ns:
            place = self._index_of(handling.queue), handling.epoch
            self._starts[place] = min(handling.start_mono_ns, self._starts.get(place, handling.start_mono_ns))
        report = handling.end_report
        if handling.outcome is None:
            self._gone[name[:2]] += 1
            self._counts["may have failed"] += handling.attempts > 0
            self._counts["failed"] += max(0, handling.attempts - 1)
        else:
            self._counts["failed"] += handling.attempts - (report is None)
            self._counts["done"] += report is None
        if handling.outcome is not None and report is not None:
            # What is in the parking queue already when it comes is not parked again.
            self._counts["moved" if report.then is not Then.PARK else "parked"] += (
                report.then is not Then.PARK or handling in self._copied
            )
        if name in self._early:
            self._early.remove(name)
            self.settle(*name)

    def settle(self, queue, epoch, delivery_id):
        name = queue, epoch, delivery_id
        handling = self._unsettled.get(name)
        if handling is None or handling.outcome is None:
            self._early.add(name)
            return
        own = self._own(queue)
        if own != queue and self._dispatcher._parkings[own]._stays[epoch]._state not in HELD:
            # The broker takes it only if the handle is bound again.
            return
        del self._unsettled[name]
        self._settled[queue, epoch] += 1
        if handling.end_report is not None and handling.end_report.then is Then.PARK:
            return
        self.handled[self._index_of(queue)] += 1
        if handling.key is not None:
            is_handled = handling.end_report is None
            self._last[handling.key] = handling.delivery.message.key_sequence, handling.attempts, is_handled
        self.untried[self._index_of(queue)] += not handling.attempts
        self._counts["redelivered"] += handling.delivery.redelivered
        self._counts["retried"] += handling.attempts > 1
        if handling.attempts:
            self._counts["tried"] += 1
            self._counts["handling_ns"] += handling.done_mono_ns - handling.start_mono_ns
            self._counts["waiting_ns"] += handling.start_mono_ns - handling.delivery.received_at_ns

    def _own(self, queue):
        return self._dispatcher._replayed.get(queue, queue)

    def _index_of(self, queue):
        own = self._own(queue)
        return next(each.queue_index for each in self._supervisor.runners if each.machine.queue == own)

    # -- what is told

    def wrong(self):
        """What the member tells that is not so."""
        told = self._status.reading()
        yield from self._wrong_of_queues(told)
        yield from self._wrong_of_lanes(told)
        yield from self._wrong_of_counts(told)
        yield from self._wrong_of_owners(told)
        yield from self._wrong_of_keys()
        counters = dict(_counters(told))
        yield from (
            f"{name} fell from {value} to {counters.get(name)}"
            for name, value in self._before.items()
            if counters.get(name, 0) < value
        )
        self._before = counters

    def _wrong_of_queues(self, told):
        handled = {each.queue_index: each.handled for each in told.queues if each.handled}
        yield from _differing("handled", handled, dict(self.handled))
        yield from _differing("handled, as the live page asks", self._status.handled().handled, handled)
        for parking, stay in self._open_stays():
            lies, untaken = self._session.parked_on(parking.parking, stay.epoch), len(stay._events)
            yield from _outside(f"parked in {parking.parking}", parking.counts[1], lies - untaken, lies)
        for each in told.queues:
            machine = self._supervisor.runners[each.queue_index].machine
            if each.is_owned:
                name = machine.queue, machine.epoch
                most = self._came[name] - self._settled[name]
                yield from _outside(f"in flight on {name}", each.in_flight, most - self._gone[name], most)

    def _open_stays(self):
        for parking in self._dispatcher._parkings.values():
            stay = parking._stay
            if stay is not None and stay.is_open and stay._state in HELD:
                yield parking, stay

    def _wrong_of_lanes(self, told):
        lanes = told.lanes
        yield from _differing("lanes", lanes.lanes, len({each.lane for each in self._held}))
        yield from _differing("running and waiting", lanes.running + lanes.waiting, len(self._held))
        at_work = [
            each
            for each in self._dispatcher.running()
            # An exit of a handler leaves its attempt behind.
            if each in self._held and each.end_report is None and not each.route.attempts.is_put_off(each)
        ]
        yield from _differing("running", lanes.running, len(at_work))
        keys = told.keys
        for now, ever in ((keys.hot, keys.hot_total), (keys.stuck, keys.stuck_total), (keys.slow, keys.slow_total)):
            yield from _outside(f"{keys}", now, 0, ever)

    def _wrong_of_counts(self, told):
        true, meters = self._counts, told.meters
        tried = [each.attempts for each in self._held if each.attempts]
        least = true["failed"] + sum(tried) - len(tried)
        most = least + true["may have failed"] + len(tried)
        yield from _outside("failed attempts", told.troubles.failed_attempts, least, most)
        yield from _differing("moved", told.troubles.moved, true["moved"])
        yield from _differing("parked", told.parking.parked_total, true["parked"])
        yield from _differing("redelivered", meters.redelivered, true["redelivered"])
        yield from _differing("retried", meters.retried, true["retried"])
        for durations, sum_ns in ((meters.handling, true["handling_ns"]), (meters.waiting, true["waiting_ns"])):
            yield from _differing("durations", sum(durations.counts), true["tried"])
            yield from _differing("sum of durations", round(durations.sum_s, 6), round(sum_ns / 1e9, 6))
        # What has ended counts when its flow runner takes it; a replay that goes back is still parked.
        untaken = sum(isinstance(each, Handling) for one in self._supervisor.runners for each in one._events)
        unsettled = [each for each in self._unsettled.values() if self._own(each.queue) == each.queue or each.outcome]
        returned = sum(each.outcome is None for each in unsettled)
        yield from _outside("returned", meters.returned, returned - untaken, returned)
        fenced = len(unsettled) - returned
        yield from _outside("fenced", meters.fenced, fenced - untaken, fenced)

    def _wrong_of_owners(self, told):
        counts = told.meters.owner_changes
        changes = Counter((each.event, each.cause) for each in self._supervisor._recorder.changes)
        yield from _differing("owner changes", {name: count for name, count in counts.items() if count}, dict(changes))
        kept = sum(count if event == "taken" else -count for (event, _), count in counts.items())
        states = Counter(each.machine.state for each in self._supervisor.runners)
        fed = sum(states[state] for state in FED)
        yield from _outside("queues taken and not given", kept, fed, fed + states[FlowState.UNBINDING])
        yield from _differing("states", told.queue_states, {state.value: states[state] for state in FlowState})
        in_good_order = sum(count for (_, cause), count in counts.items() if cause in IN_GOOD_ORDER)
        yield from _outside("drains", sum(told.meters.drains.counts), 0, in_good_order)

    def _wrong_of_keys(self):
        held = Counter(each.key for each in self._held)
        for key in {*held, *self._last} - {None}:
            sight = self._status.key(key).sight
            yield from _differing(f"messages of {key}", sight.waiting + (sight.head is not None), held[key])
            last = sight.last and (sight.last.number, sight.last.attempts, sight.last.outcome is LastOutcome.HANDLED)
            yield from _differing(f"the last of {key}", last, self._last.get(key))

    def wrong_at_end(self):
        """What is left of a life that is over, and what could not be told before."""
        told = self._status.reading()
        yield from self.wrong()
        yield from _differing("lanes at its end", (told.lanes.lanes, told.lanes.running, told.lanes.waiting), (0, 0, 0))
        if told.sidecar is not None:
            answers = told.sidecar.accepted + told.sidecar.dropped
            yield from _differing("events by their answers", answers, self._counts["done"])
            yield from _differing("events that failed", told.sidecar.failed, told.troubles.failed_attempts)
        pauses_ns = [
            self._starts[place] - each.mono_ns
            for each in self._supervisor._recorder.changes
            if each.event == "taken" and (place := (each.queue, each.bind_epoch)) in self._starts
        ]
        pauses = told.meters.first_handlings
        yield from _differing("pauses", sum(pauses.counts), len(pauses_ns))
        yield from _differing("sum of pauses", round(pauses.sum_s, 6), round(sum(pauses_ns) / 1e9, 6))
        page = exposition(ScrapedMember(0, told)).decode()
        scraped = [one for family in text_string_to_metric_families(page) for one in family.samples]
        handled = sum(one.value for one in scraped if one.name == "lbg_messages_handled_total")
        yield from _differing("handled, as Prometheus reads it", handled, self.handled.total())


def differing_from_journals(members, run):
    """What members have counted otherwise than they have written it down."""
    made = [each for each in members if each.figures is not None]
    lives = {(each.supervisor._member, each.supervisor._journal.incarnation): each for each in made}
    settled = Counter(
        (each["journal"], each["queue"]) for each in run.dispatches.to_pylist() if each["t_settle"] is not None
    )
    for number, file in enumerate(run.journals.to_pylist()):
        member = lives.get((file["member"], file["incarnation"]))
        if member is None:
            continue
        if not file["torn"]:
            dropped = member.supervisor._journal.dropped
            yield from _differing(f"{member.name}: dropped records", dropped, file["dropped"])
        if file["dropped"] or file["defect"]:
            continue
        for queue, count in member.figures.handled.items():
            tried = count - member.figures.untried[queue]
            yield from _differing(f"{member.name}: handled of queue {queue}", tried, settled[number, queue])


def _identity(message):
    return message.key, message.key_sequence


def _counters(told):
    """All counters, by name."""
    troubles, meters, keys = told.troubles, told.meters, told.keys
    for name in ("failed_attempts", "moved", "moves_failed", "stops", "late_settlements", "records_dropped"):
        yield name, getattr(troubles, name)
    for name in ("redelivered", "retried", "fenced", "returned"):
        yield name, getattr(meters, name)
    for name in ("hot_total", "stuck_total", "slow_total", "without_key", "bodies_refused"):
        yield name, getattr(keys, name)
    for name in ("handling", "waiting", "drains", "first_handlings"):
        durations = getattr(meters, name)
        yield f"count of {name}", sum(durations.counts)
        yield f"sum of {name}", durations.sum_s
    yield "parked_total", told.parking.parked_total
    for each in told.queues:
        yield f"handled of {each.queue_index}", each.handled
    for change, count in (meters.owner_changes | told.disregarded).items():
        yield f"{change}", count
    if told.sidecar is not None:
        for name in ("accepted", "dropped", "failed", "published", "unpublished", "refused"):
            yield f"sidecar {name}", getattr(told.sidecar, name)


def _differing(what, told, true):
    if told != true:
        yield f"{what}: {told}, and not {true}"


def _outside(what, told, least, most):
    if not least <= told <= most:
        yield f"{what}: {told}, and not {least} to {most}"
