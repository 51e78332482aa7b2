import random
from dataclasses import replace

import pytest

from lbg_runtime.core.flow.rebind import (
    RebindSettings,
    bind_backoff_ms,
    hop_pause_ms,
    rebind_delay_ms,
    rebind_pause_ms,
)
from lbg_runtime.model.errors import InvariantViolated

SETTINGS = RebindSettings(
    interval_ms=30_000,
    jitter=1.0,
    drain_timeout_ms=5_000,
    bind_backoff_min_ms=100,
    bind_backoff_max_ms=5_000,
    quiet_gap_ms=20,
    rank_delay_ms=70,
)


def test_full_jitter_spreads_the_first_deadline_over_the_whole_interval() -> None:
    delays = [rebind_delay_ms(SETTINGS, random.Random(seed)) for seed in range(2_000)]
    assert min(delays) >= 1
    assert max(delays) <= 30_000
    in_each_third = [sum(1 for delay in delays if low < delay <= low + 10_000) for low in (0, 10_000, 20_000)]
    assert all(550 < count < 800 for count in in_each_third)


def test_without_jitter_a_cycle_lasts_the_interval() -> None:
    assert rebind_delay_ms(replace(SETTINGS, jitter=0), random.Random(1)) == 30_000


def test_a_third_of_jitter_keeps_two_thirds_of_the_interval() -> None:
    settings = replace(SETTINGS, jitter=1 / 3)
    delays = [rebind_delay_ms(settings, random.Random(seed)) for seed in range(500)]
    assert min(delays) >= 20_000
    assert max(delays) <= 30_000


def test_backoff_doubles_up_to_the_longest_wait() -> None:
    chance = random.Random(1)
    for failures, ceiling in [(1, 100), (2, 200), (3, 400), (6, 3_200), (7, 5_000), (40, 5_000), (10_000, 5_000)]:
        waits = [bind_backoff_ms(SETTINGS, failures, chance, permanent=False) for _ in range(200)]
        assert ceiling / 2 <= min(waits)
        assert max(waits) <= ceiling


def test_a_permanent_refusal_waits_longest_from_the_first_time() -> None:
    assert bind_backoff_ms(SETTINGS, 1, random.Random(1), permanent=True) >= 2_500


def test_the_pause_between_giving_way_and_binding_is_short_and_never_nothing() -> None:
    pauses = {rebind_pause_ms(SETTINGS, random.Random(seed)) for seed in range(500)}
    assert min(pauses) >= 1
    assert max(pauses) <= 100
    assert len(pauses) > 50


def test_the_pause_after_a_hop_is_never_longer_than_the_delay_between_two_ranks() -> None:
    pauses = {hop_pause_ms(SETTINGS, random.Random(seed)) for seed in range(500)}
    assert min(pauses) >= 1
    assert max(pauses) <= 70
    assert len(pauses) > 40


@pytest.mark.parametrize(
    "change",
    [
        {"interval_ms": 0},
        {"jitter": -0.1},
        {"jitter": 1.1},
        {"drain_timeout_ms": -1},
        {"bind_backoff_min_ms": 0},
        {"bind_backoff_min_ms": 6_000},
        {"quiet_gap_ms": -1},
        {"rank_delay_ms": 0},
    ],
)
def test_settings_that_no_schedule_can_be_made_of_are_refused(change: dict[str, int]) -> None:
    with pytest.raises(InvariantViolated, match="no schedule"):
        replace(SETTINGS, **change)
