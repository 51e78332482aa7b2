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


def test_prometheus_gets_cumulative_buckets() -> None:
    durations = Durations()
    for duration_s in (0.0001, 0.002, 0.002, 3600):
        durations.count(round(duration_s * 1e9))
    assert durations.read().cumulative() == [
        ("0.001", 1),
        *((str(bound_s), 3) for bound_s in BOUNDS_S[1:]),
        ("+Inf", 4),
    ]
