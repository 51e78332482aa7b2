"""What Prometheus is told of a member: read back by the parser of its own library."""

from dataclasses import replace

from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from lbg_runtime.metrics.durations import Durations
from lbg_runtime.metrics.member import DURATION_METRICS, FIGURE_METRICS, STATE_METRICS, ScrapedMember, exposition
from lbg_runtime.metrics.reading import KeysReading, ParkingReading, QueueReading, RestripingReading, SidecarReading
from tests.metrics.readings import member_reading

BOUNDED = {"queue", "event", "cause", "state", "stage", "le", "group", "member", "version", "answer", "fate", "reason"}


def samples(state):
    """Every sample by its name and labels."""
    families = text_string_to_metric_families(exposition(state).decode())
    return {(one.name, *sorted(one.labels.items())): one.value for family in families for one in family.samples}


def test_every_figure_is_told_under_its_name_and_labels() -> None:
    told = samples(ScrapedMember(0, member_reading(restriping=RestripingReading(64, 3))))
    assert told["lbg_messages_handled_total", ("queue", "1")] == 7
    assert told["lbg_messages_in_flight", ("queue", "0")] == 3
    assert told["lbg_queues", ("state", "active")] == 2
    assert (told["lbg_lanes",], told["lbg_lanes_running",], told["lbg_messages_waiting",]) == (5, 2, 4)
    troubles = ("attempts_failed", "messages_moved", "moves_failed", "queues_stopped", "receipts_late")
    assert [told[f"lbg_{name}_total",] for name in troubles] == [8, 9, 10, 11, 12]
    assert told["lbg_journal_records_dropped_total",] == 14
    assert told["lbg_queues_standing_still",] == 1
    assert told["lbg_messages_redelivered_total",] == 1
    assert told["lbg_messages_retried_total",] == 2
    assert told["lbg_settlements_fenced_total",] == 3
    assert told["lbg_messages_returned_total",] == 4
    assert told["lbg_owner_changes_total", ("cause", "elected"), ("event", "taken")] == 6
    assert told["lbg_group_members", ("state", "suspect")] == 1
    assert told["lbg_control_messages_disregarded_total", ("reason", "malformed")] == 13
    assert told["lbg_control_messages_disregarded_total", ("reason", "old_life")] == 0
    assert (told["lbg_restriping_shards", ("stage", "left")], told["lbg_restriping_shards", ("stage", "moving")]) == (
        3,
        61,
    )
    (info,) = (name for name in told if name[0] == "lbg_member_info")
    assert (dict(info[1:])["member"], told[info]) == ("a", 1)
    assert (told["lbg_member_up",], told["lbg_member_started",], told["lbg_member_ready",]) == (1, 1, 1)


def test_keys_that_hold_others_up_and_a_sidecar_are_told() -> None:
    keys, sidecar = KeysReading(1, 2, 3, 4, 5, 6, 7, 8), SidecarReading(True, 9, 10, 11, 12, 13, 14)
    told = samples(ScrapedMember(0, replace(member_reading(), keys=keys, sidecar=sidecar)))
    names = ("keys_hot", "keys_hot_total", "keys_stuck", "keys_stuck_total", "handlers_slow", "handlers_slow_total")
    assert [told[f"lbg_{name}",] for name in names] == [1, 2, 3, 4, 5, 6]
    assert (told["lbg_messages_without_key_total",], told["lbg_bodies_refused_total",]) == (7, 8)
    answers = [told["lbg_sidecar_events_total", ("answer", each)] for each in ("accepted", "dropped", "failed")]
    fates = [told["lbg_sidecar_published_total", ("fate", each)] for each in ("confirmed", "failed")]
    assert (*answers, *fates) == (9, 10, 11, 12, 13)
    assert (told["lbg_sidecar_requests_refused_total",], told["lbg_sidecar_application_ready",]) == (14, 1)
    assert not any(name[0].startswith("lbg_sidecar") for name in samples(ScrapedMember(0, member_reading())))


def test_what_is_parked_is_told_and_what_is_in_flight_only_of_queues_that_are_fed_to_the_member() -> None:
    queues = tuple(QueueReading(index, 5, 3, index == 1) for index in range(3))
    told = samples(ScrapedMember(0, replace(member_reading(), queues=queues, parking=ParkingReading(2, 3, 4))))
    figures = ("lbg_keys_parked", "lbg_messages_parked", "lbg_messages_parked_total")
    assert [told[name,] for name in figures] == [2, 3, 4]
    assert [name for name in told if name[0] == "lbg_messages_in_flight"] == [
        ("lbg_messages_in_flight", ("queue", "1"))
    ]
    assert sum(count for name, count in told.items() if name[0] == "lbg_messages_handled_total") == 15


def test_every_duration_has_a_histogram_of_its_own() -> None:
    reading = member_reading()
    durations = [Durations() for _ in range(4)]
    for count, each in enumerate(durations, 1):
        for _ in range(count):
            each.count(count * 1_000_000_000)
    handling, waiting, drains, pauses = (each.read() for each in durations)
    meters = replace(reading.meters, handling=handling, waiting=waiting, drains=drains, first_handlings=pauses)
    told = samples(ScrapedMember(0, replace(reading, meters=meters)))
    names = ("handling_duration", "queue_wait", "queue_drain", "queue_pause")
    assert [told[f"lbg_{name}_seconds_count",] for name in names] == [1, 2, 3, 4]
    assert [told[f"lbg_{name}_seconds_sum",] for name in names] == [1, 4, 9, 16]


def test_a_member_that_is_not_ready_or_has_not_begun_is_told_as_such() -> None:
    for has_started, is_ready in ((False, False), (True, False)):
        told = samples(ScrapedMember(0, replace(member_reading(), has_started=has_started, is_ready=is_ready)))
        assert (told["lbg_member_started",], told["lbg_member_ready",]) == (has_started, is_ready)


def test_a_histogram_adds_up_and_its_bounds_are_included() -> None:
    told = samples(ScrapedMember(0, member_reading()))
    name = "lbg_handling_duration_seconds_bucket"
    counts = {bound: told[name, ("le", bound)] for bound in ("0.001", "0.0025", "0.005", "30.0", "+Inf")}
    assert counts == {"0.001": 1, "0.0025": 1, "0.005": 2, "30.0": 2, "+Inf": 3}
    assert told["lbg_handling_duration_seconds_count",] == 3
    assert told["lbg_handling_duration_seconds_sum",] == 60.005


def test_a_member_that_does_not_answer_is_told_as_such_and_nothing_else_of_it() -> None:
    blocked = samples(ScrapedMember(2_500, None))
    assert blocked == {
        ("lbg_member_up",): 0, ("lbg_member_loop_blocked_seconds",): 2.5,
        ("lbg_member_started",): 0, ("lbg_member_ready",): 0,
    }  # fmt: skip
    assert samples(ScrapedMember(0, None))["lbg_member_up",] == 1, "it has not begun, but it answers"


def test_a_scrape_grows_with_the_queues_by_two_samples_each() -> None:
    # What it costs is the writing of samples; docs/metrics.md promises how many there are.
    few, many = (len(samples(ScrapedMember(0, member_reading(count)))) for count in (1, 1_000))
    assert many - few == 2 * 999
    assert few < 150


def test_labels_are_bounded_and_metrics_named_as_prometheus_wants_them() -> None:
    for metric in FIGURE_METRICS:
        assert set(metric.labels) <= BOUNDED
        assert metric.name.endswith("_total") == (metric.kind.value == "counter")
    names = [name for name, *_ in STATE_METRICS] + [one.name for one in (*FIGURE_METRICS, *DURATION_METRICS)]
    assert len(set(names)) == len(names)
    assert all(name.startswith("lbg_") for name in names)
    assert {label for name in samples(ScrapedMember(0, member_reading())) for label, _ in name[1:]} <= BOUNDED


def test_members_of_one_process_do_not_meet_in_a_registry() -> None:
    before = list(REGISTRY.collect())
    for member in ("a", "b"):
        (info,) = (
            name for name in samples(ScrapedMember(0, member_reading(member=member))) if name[0] == "lbg_member_info"
        )
        assert dict(info[1:])["member"] == member
    assert {one.name for one in REGISTRY.collect()} == {one.name for one in before}
