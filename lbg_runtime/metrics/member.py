"""The metrics of a member: one table, from which the answers to Prometheus and docs/metrics.md are made.

Labels are bounded: the index of a queue, an event, a cause, a state. Never a key or a topic. More than 400 lines, as
the table has an entry for each metric.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from lbg_runtime.metrics.durations import DurationsReading
from lbg_runtime.metrics.reading import MemberReading
from lbg_runtime.model.version import VERSION

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
"""The text format of the exposition: every version of Prometheus reads it, and it is faster to write than others."""

Labels = dict[str, str]
Figures = Iterable[tuple[Labels, float]]

_NO_LABELS: Labels = {}


class MetricKind(Enum):
    """What a metric is to Prometheus."""

    COUNTER = "counter"
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True)
class ScrapedMember:
    """What is known of a member when its metrics are scraped."""

    blocked_ms: int
    """For how long, at least, its event loop has not answered; 0 if it answers."""
    reading: MemberReading | None
    """None if the loop does not answer, or the member has not begun."""


@dataclass(frozen=True, slots=True)
class FigureMetric:
    """A counter or a gauge of a member that has begun and answers."""

    name: str
    kind: MetricKind
    text: str
    read: Callable[[MemberReading], Figures]
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DurationMetric:
    """A histogram, in seconds."""

    name: str
    text: str
    read: Callable[[MemberReading], DurationsReading]


def _one(value: float) -> Figures:
    return ((_NO_LABELS, value),)


STATE_METRICS: tuple[tuple[str, str, Callable[[ScrapedMember], float]], ...] = (
    (
        "lbg_member_up",
        "1 if the member's event loop answers. If it is 0, and until the member has begun, only this metric and the "
        "next three are reported.",
        lambda state: not state.blocked_ms,
    ),
    (
        "lbg_member_loop_blocked_seconds",
        "How long the event loop has not answered, at least; 0 if it answers.",
        lambda state: state.blocked_ms / 1_000,
    ),
    (
        "lbg_member_started",
        "1 if the member has learned its place in the group and begun to bind, like /startedz.",
        lambda state: state.reading is not None and state.reading.has_started,
    ),
    (
        "lbg_member_ready",
        "1 if every queue that the member is at home on is fed to it or has another owner, and none that is fed to it "
        "waits for its parking queue, like /readyz.",
        lambda state: state.reading is not None and state.reading.is_ready,
    ),
)
"""Gauges that are reported for every member, even if it does not answer."""

FIGURE_METRICS: tuple[FigureMetric, ...] = (
    FigureMetric(
        "lbg_member_info",
        MetricKind.GAUGE,
        "Always 1; its labels identify the member.",
        lambda one: (({"group": one.group, "member": one.member, "version": VERSION}, 1.0),),
        ("group", "member", "version"),
    ),
    FigureMetric(
        "lbg_messages_handled_total",
        MetricKind.COUNTER,
        "Messages settled as accepted, by queue index: handled successfully, or moved to the error queue or the dead "
        "message queue. Parked messages count when their replay is settled.",
        lambda one: (({"queue": str(queue.queue_index)}, queue.handled) for queue in one.queues),
        ("queue",),
    ),
    FigureMetric(
        "lbg_messages_in_flight",
        MetricKind.GAUGE,
        "Messages received and not settled, by queue index; only for active and draining queues (lbg_queues).",
        lambda one: (({"queue": str(queue.queue_index)}, queue.in_flight) for queue in one.queues if queue.is_owned),
        ("queue",),
    ),
    FigureMetric(
        "lbg_queues",
        MetricKind.GAUGE,
        "Queues of the group, by the state of this member's flow; active ones are fed to this member, draining ones "
        "still are, or are lost while something of them runs.",
        lambda one: (({"state": state}, count) for state, count in one.queue_states.items()),
        ("state",),
    ),
    FigureMetric(
        "lbg_messages_redelivered_total",
        MetricKind.COUNTER,
        "Messages handled and settled that the broker had delivered before, to this member or to another. Replays of "
        "parked messages are among them.",
        lambda one: _one(one.meters.redelivered),
    ),
    FigureMetric(
        "lbg_messages_retried_total",
        MetricKind.COUNTER,
        "Messages handled and settled that took more than one attempt.",
        lambda one: _one(one.meters.retried),
    ),
    FigureMetric(
        "lbg_attempts_failed_total",
        MetricKind.COUNTER,
        "Failed attempts, including the last one of a message, timeouts, and messages for which there is no handler.",
        lambda one: _one(one.troubles.failed_attempts),
    ),
    FigureMetric(
        "lbg_messages_moved_total",
        MetricKind.COUNTER,
        "Messages that failed for good and were moved to the error queue or the dead message queue.",
        lambda one: _one(one.troubles.moved),
    ),
    FigureMetric(
        "lbg_messages_parked_total",
        MetricKind.COUNTER,
        "Messages that this member has parked, including those that follow another message of their key.",
        lambda one: _one(one.parking.parked_total),
    ),
    FigureMetric(
        "lbg_messages_parked",
        MetricKind.GAUGE,
        "Messages that are parked, of the queues that are fed to this member and whose parking queue it has opened.",
        lambda one: _one(one.parking.messages),
    ),
    FigureMetric(
        "lbg_keys_parked",
        MetricKind.GAUGE,
        "Keys that are parked, of the queues that are fed to this member and whose parking queue it has opened.",
        lambda one: _one(one.parking.keys),
    ),
    FigureMetric(
        "lbg_moves_failed_total",
        MetricKind.COUNTER,
        "How often the broker did not confirm that a message was moved or parked. It is tried again; the key waits.",
        lambda one: _one(one.troubles.moves_failed),
    ),
    FigureMetric(
        "lbg_queues_stopped_total",
        MetricKind.COUNTER,
        "Queues that were stopped by a message that failed for good, counted once per flow handle.",
        lambda one: _one(one.troubles.stops),
    ),
    FigureMetric(
        "lbg_queues_standing_still",
        MetricKind.GAUGE,
        "Queues fed to this member from which it starts nothing: a message failed for good, or parking has not been "
        "open for 5 s.",
        lambda one: _one(one.troubles.stopped),
    ),
    FigureMetric(
        "lbg_receipts_late_total",
        MetricKind.COUNTER,
        "Receipts that were settled after their attempt was over, or a second time. This has no effect.",
        lambda one: _one(one.troubles.late_settlements),
    ),
    FigureMetric(
        "lbg_journal_records_dropped_total",
        MetricKind.COUNTER,
        "Records that could not be written to the journal of this life, after journal_write_failed in the log.",
        lambda one: _one(one.troubles.records_dropped),
    ),
    FigureMetric(
        "lbg_settlements_fenced_total",
        MetricKind.COUNTER,
        "Handlings with an outcome that came too late for its flow handle and was not sent; the message comes again.",
        lambda one: _one(one.meters.fenced),
    ),
    FigureMetric(
        "lbg_messages_returned_total",
        MetricKind.COUNTER,
        "Messages that ended without an outcome: given back unhandled, or their handler cancelled. They come again. "
        "Replays that end so are not counted, as their messages stay parked.",
        lambda one: _one(one.meters.returned),
    ),
    FigureMetric(
        "lbg_lanes",
        MetricKind.GAUGE,
        "Keys of which the member holds at least one message.",
        lambda one: _one(one.lanes.lanes),
    ),
    FigureMetric(
        "lbg_lanes_running",
        MetricKind.GAUGE,
        "Keys with a running handler.",
        lambda one: _one(one.lanes.running),
    ),
    FigureMetric(
        "lbg_messages_waiting",
        MetricKind.GAUGE,
        "Messages that the member holds and no handler is working on, including those between two attempts.",
        lambda one: _one(one.lanes.waiting),
    ),
    FigureMetric(
        "lbg_keys_hot",
        MetricKind.GAUGE,
        "Keys of which more messages wait than dispatch.max_waiting_per_key, or a quarter of dispatch.max_in_flight if "
        "that is less, until at most half of that number wait.",
        lambda one: _one(one.keys.hot),
    ),
    FigureMetric(
        "lbg_keys_hot_total",
        MetricKind.COUNTER,
        "How often a key became hot.",
        lambda one: _one(one.keys.hot_total),
    ),
    FigureMetric(
        "lbg_keys_stuck",
        MetricKind.GAUGE,
        "Keys whose next message has been the same one for longer than dispatch.stuck_key.",
        lambda one: _one(one.keys.stuck),
    ),
    FigureMetric(
        "lbg_keys_stuck_total",
        MetricKind.COUNTER,
        "How often a key became stuck.",
        lambda one: _one(one.keys.stuck_total),
    ),
    FigureMetric(
        "lbg_handlers_slow",
        MetricKind.GAUGE,
        "Attempts that have been running for longer than dispatch.slow_handler.",
        lambda one: _one(one.keys.slow),
    ),
    FigureMetric(
        "lbg_handlers_slow_total",
        MetricKind.COUNTER,
        "Attempts that ran for longer than dispatch.slow_handler.",
        lambda one: _one(one.keys.slow_total),
    ),
    FigureMetric(
        "lbg_messages_without_key_total",
        MetricKind.COUNTER,
        "Messages in which the rule of group.key found no key, each time they come or are replayed; "
        "dispatch.missing_key decides what happens to them.",
        lambda one: _one(one.keys.without_key),
    ),
    FigureMetric(
        "lbg_bodies_refused_total",
        MetricKind.COUNTER,
        "Attempts that failed because the payload did not match the handler's annotation.",
        lambda one: _one(one.keys.bodies_refused),
    ),
    FigureMetric(
        "lbg_sidecar_application_ready",
        MetricKind.GAUGE,
        "1 if the application of a sidecar is available, so that events are sent to it.",
        lambda one: () if one.sidecar is None else _one(one.sidecar.is_ready),
    ),
    FigureMetric(
        "lbg_sidecar_events_total",
        MetricKind.COUNTER,
        "Events, by the application's answer: accepted, dropped, or failed. Failed counts attempts.",
        lambda one: (
            ()
            if one.sidecar is None
            else (
                ({"answer": "accepted"}, one.sidecar.accepted),
                ({"answer": "dropped"}, one.sidecar.dropped),
                ({"answer": "failed"}, one.sidecar.failed),
            )
        ),
        ("answer",),
    ),
    FigureMetric(
        "lbg_sidecar_published_total",
        MetricKind.COUNTER,
        "Messages that the application published, by their fate: confirmed, or failed (refused, or not known to be on "
        "the broker).",
        lambda one: (
            ()
            if one.sidecar is None
            else (({"fate": "confirmed"}, one.sidecar.published), ({"fate": "failed"}, one.sidecar.unpublished))
        ),
        ("fate",),
    ),
    FigureMetric(
        "lbg_sidecar_requests_refused_total",
        MetricKind.COUNTER,
        "Requests to the sidecar that were refused: without the token, from a web page, for another host, too large.",
        lambda one: () if one.sidecar is None else _one(one.sidecar.refused),
    ),
    FigureMetric(
        "lbg_owner_changes_total",
        MetricKind.COUNTER,
        "Queues taken or given, by cause; the causes are those of `lbg group moves`.",
        lambda one: (
            ({"event": event, "cause": cause}, count) for (event, cause), count in one.meters.owner_changes.items()
        ),
        ("event", "cause"),
    ),
    FigureMetric(
        "lbg_group_members",
        MetricKind.GAUGE,
        "Living members as this one sees them, itself included, by state, if any are in it; a silent member counts as "
        "suspect.",
        lambda one: (({"state": state}, count) for state, count in one.group_members.items()),
        ("state",),
    ),
    FigureMetric(
        "lbg_control_messages_disregarded_total",
        MetricKind.COUNTER,
        "Messages on the control topic that did not count, by reason, as `control_message_disregarded` in the log has "
        "it; the log has only the first of each member.",
        lambda one: (({"reason": reason}, count) for reason, count in one.disregarded.items()),
        ("reason",),
    ),
    FigureMetric(
        "lbg_restriping_shards",
        MetricKind.GAUGE,
        "While the group is being re-striped: shards that change their queue, by whether they have left the old one.",
        lambda one: (
            ()
            if one.restriping is None
            else (
                ({"stage": "left"}, one.restriping.shards_left),
                ({"stage": "moving"}, one.restriping.shards_moving - one.restriping.shards_left),
            )
        ),
        ("stage",),
    ),
)

DURATION_METRICS: tuple[DurationMetric, ...] = (
    DurationMetric(
        "lbg_handling_duration_seconds",
        "Time from the start of a message's first attempt to the end of its last, including the waits in between, "
        "and the wait for a batch or an application.",
        lambda one: one.meters.handling,
    ),
    DurationMetric(
        "lbg_queue_wait_seconds",
        "Time from the arrival of a message at the member to the start of its first attempt, without the wait "
        "for a batch or an application.",
        lambda one: one.meters.waiting,
    ),
    DurationMetric(
        "lbg_queue_drain_seconds",
        "Time from the order to give a queue up in good order until nothing of it was in flight any more.",
        lambda one: one.meters.drains,
    ),
    DurationMetric(
        "lbg_queue_pause_seconds",
        "Time from the moment a queue is fed to this member to the start of its first handling, including the wait for "
        "a message, without the wait for a batch or an application. Together with the drain at the member that gave "
        "the queue, this is the pause of its move.",
        lambda one: one.meters.first_handlings,
    ),
)


def exposition(state: ScrapedMember) -> bytes:
    """The metrics of one member as Prometheus scrapes them, from a registry of their own."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(state))
    return generate_latest(registry)


class _Collector(Collector):
    def __init__(self, state: ScrapedMember) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        for name, text, read_state in STATE_METRICS:
            yield _family(name, MetricKind.GAUGE, text, _one(read_state(self._state)))
        reading = self._state.reading
        if reading is None:
            return
        for one in FIGURE_METRICS:
            yield _family(one.name, one.kind, one.text, one.read(reading))
        for other in DURATION_METRICS:
            found = other.read(reading)
            yield HistogramMetricFamily(other.name, other.text, buckets=found.cumulative(), sum_value=found.sum_s)


def _family(name: str, kind: MetricKind, text: str, figures: Figures) -> Metric:
    # Filled by hand: the families of the library would make the labels of each sample again, which took half of the
    # time of a scrape.
    family = Metric(name.removesuffix("_total"), text, kind.value)
    family.samples = [Sample(name, labels, value) for labels, value in figures]
    return family
