import pytest

from lbg_runtime.core.flow.events import ReleaseCause
from lbg_runtime.core.flow.rebind import RebindSettings
from lbg_runtime.core.flow.release import LOOK_EVERY_MS, DrainPhase, Release


def release_of(cause: ReleaseCause, phase: DrainPhase = DrainPhase.FINISH) -> Release:
    return Release(cause, phase, drain_until_ms=1_000, quiet_at_ms=50)


def test_a_drain_ends_when_nothing_is_in_flight_and_nothing_has_come_for_a_while() -> None:
    release = release_of(ReleaseCause.REBIND)
    assert not release.is_drained(in_flight=1, now_ms=60)
    assert not release.is_drained(in_flight=0, now_ms=49)
    assert release.is_drained(in_flight=0, now_ms=50)
    assert release.deadline_ms(in_flight=0) == 50
    assert release.deadline_ms(in_flight=1) == 1_000


def test_a_drain_that_starts_nothing_more_need_not_be_quiet() -> None:
    release = release_of(ReleaseCause.REBIND)
    assert release.lose_activity()
    assert release.is_drained(in_flight=0, now_ms=0)
    assert (release.cause, release.deadline_ms(in_flight=1)) == (ReleaseCause.INACTIVE, None)
    assert not release.lose_activity()


def test_a_stop_takes_a_release_over_and_bounds_it() -> None:
    release = release_of(ReleaseCause.INACTIVE, DrainPhase.WAIT)
    release.stop_at(7_000)
    assert (release.cause, release.deadline_ms(in_flight=3)) == (ReleaseCause.STOP, 7_000)


def test_a_stop_that_loses_activity_keeps_its_bound() -> None:
    release = release_of(ReleaseCause.STOP)
    assert release.lose_activity()
    assert (release.cause, release.deadline_ms(in_flight=1)) == (ReleaseCause.STOP, 1_000)


def test_a_hand_back_looks_from_the_quiet_gap_on_and_later_if_more_has_come() -> None:
    release = release_of(ReleaseCause.HANDBACK)
    release.look_at_ms = 50
    assert not release.begin_look(49)
    release.quiet_at_ms = 60
    assert not release.begin_look(50)
    assert not release.end_stalled(50, has_stopped=False)
    assert release.deadline_ms(in_flight=1) == 60
    assert release.begin_look(60)
    assert not release.begin_look(60 + LOOK_EVERY_MS - 1)
    assert release.end_stalled(60, has_stopped=False)
    assert (release.phase, release.cause) == (DrainPhase.WAIT, ReleaseCause.HANDBACK)
    assert release.deadline_ms(in_flight=1) is None, "no end at which the queue would be kept"
    assert not release.end_stalled(60, has_stopped=False)


@pytest.mark.parametrize("cause", [ReleaseCause.REBIND, ReleaseCause.STOP])
def test_a_drain_of_a_stopped_queue_ends_when_nothing_moves_whatever_it_is_for(cause: ReleaseCause) -> None:
    release = release_of(cause)
    assert not release.end_stalled(50, has_stopped=False)
    assert not release.end_stalled(49, has_stopped=True)
    assert release.end_stalled(50, has_stopped=True)
    assert (release.phase, release.cause) == (DrainPhase.WAIT, cause)
    assert not release.end_stalled(50, has_stopped=True)


@pytest.mark.parametrize(("cause", "drain_until_ms"), [(ReleaseCause.HANDBACK, 120), (ReleaseCause.REBIND, 105)])
def test_a_hand_back_waits_for_the_quiet_gap_however_short_its_timeout_is(
    cause: ReleaseCause, drain_until_ms: int
) -> None:
    """At its timeout a hand-back keeps the queue, so it would never come to its end."""
    settings = RebindSettings(
        interval_ms=30_000,
        jitter=0.0,
        drain_timeout_ms=5,
        bind_backoff_min_ms=100,
        bind_backoff_max_ms=5_000,
        quiet_gap_ms=20,
        rank_delay_ms=100,
    )
    release = Release.draining(cause, settings, 100)
    assert release.drain_until_ms == drain_until_ms
    assert release.is_drained(in_flight=0, now_ms=120)
