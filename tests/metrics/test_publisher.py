from prometheus_client import CollectorRegistry, generate_latest

from lbg_runtime.metrics.durations import Durations, DurationsReading
from lbg_runtime.metrics.publisher import PublisherCollector
from lbg_runtime.metrics.reading import PublisherCounts


class Publisher:
    counts = PublisherCounts(sent=10, confirmed=6, refused=1, unknown=2)

    @property
    def confirm_durations(self) -> DurationsReading:
        durations = Durations()
        for duration_ms in (2, 2, 2, 2, 2, 400):
            durations.count(duration_ms * 1_000_000)
        return durations.read()


def test_a_publisher_is_read_when_it_is_scraped() -> None:
    registry, publisher = CollectorRegistry(), Publisher()
    registry.register(PublisherCollector(publisher))
    lines = generate_latest(registry).decode().splitlines()
    figures = [line for line in lines if not line.startswith("#")]
    assert figures[:5] == [
        "lbg_publisher_sent_total 10.0",
        "lbg_publisher_confirmed_total 6.0",
        "lbg_publisher_refused_total 1.0",
        "lbg_publisher_unknown_total 2.0",
        "lbg_publisher_unconfirmed 1.0",
    ]
    assert {
        'lbg_publisher_confirm_seconds_bucket{le="0.001"} 0.0',
        'lbg_publisher_confirm_seconds_bucket{le="0.0025"} 5.0',
        'lbg_publisher_confirm_seconds_bucket{le="+Inf"} 6.0',
        "lbg_publisher_confirm_seconds_count 6.0",
        "lbg_publisher_confirm_seconds_sum 0.41",
    } < set(figures)
    publisher.counts = PublisherCounts(sent=11, confirmed=6, refused=1, unknown=2)
    assert "lbg_publisher_unconfirmed 2.0" in generate_latest(registry).decode()
