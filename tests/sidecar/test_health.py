"""Whether the application is there."""

from lbg_runtime.sidecar.health import ApplicationHealth, ApplicationState


def ready(now_ms=0):
    health = ApplicationHealth(5_000, now_ms)
    health.probe_passed(now_ms)
    return health


def test_nobody_is_taken_to_be_there_before_it_was_seen():
    health = ApplicationHealth(5_000, 7)
    assert health.state is ApplicationState.AWAY
    assert health.deadline_ms == 7
    health.probe_failed(7)
    assert (health.state, health.deadline_ms) == (ApplicationState.AWAY, 507)
    health.probe_passed(507)
    assert (health.state, health.deadline_ms) == (ApplicationState.READY, 5_507)


def test_a_late_probe_or_two_are_forgiven_and_a_third_is_not():
    health = ready()
    for now_ms in (5_000, 10_000):
        health.probe_failed(now_ms)
        assert health.state is ApplicationState.READY
    health.probe_failed(15_000)
    assert (health.state, health.deadline_ms) == (ApplicationState.AWAY, 15_500)


def test_failures_count_in_a_row_only():
    health = ready()
    for now_ms in range(5_000, 60_000, 10_000):
        health.probe_failed(now_ms)
        health.probe_passed(now_ms + 5_000)
    assert health.state is ApplicationState.READY


def test_who_was_away_or_failed_a_probe_may_have_been_started_anew():
    health = ApplicationHealth(5_000, 0)
    assert health.is_in_doubt
    health.probe_passed(0)
    assert not health.is_in_doubt
    health.probe_failed(5_000)
    assert health.is_in_doubt
    health.probe_passed(10_000)
    assert not health.is_in_doubt
    health.not_reached(10_100)
    assert health.is_in_doubt


def test_who_does_not_listen_is_away_at_once():
    health = ready()
    assert health.not_reached(100) is True
    assert (health.state, health.deadline_ms) == (ApplicationState.AWAY, 600)
    assert health.not_reached(200) is False
    assert health.deadline_ms == 600


def test_a_short_interval_is_kept_while_away():
    health = ApplicationHealth(100, 0)
    health.probe_failed(0)
    assert health.deadline_ms == 100
