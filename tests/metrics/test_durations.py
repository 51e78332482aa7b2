from lbg_runtime.metrics.durations import BOUNDS_S, Durations


def test_a_duration_is_counted_in_the_first_bucket_that_reaches_it() -> None:
    durations = Durations()
    for bound_s in BOUNDS_S:
        durations.count(round(bound_s * 1e9))
        durations.count(round(bound_s * 1e9) + 1)
    assert durations.read().counts == (1, *([2] * (len(BOUNDS_S) - 1)), 1)


def test_a_reading_does_not_change_afterwards() -> None:
    durations = Durations()
    before = durations.read()
    durations.count(2_000_000_000)
    assert (sum(before.counts), before.sum_s) == (0, 0)
    assert (sum(durations.read().counts), durations.read().sum_s) == (1, 2.0)
