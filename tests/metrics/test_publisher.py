from prometheus_client import CollectorRegistry, generate_latest

from lbg_runtime.metrics.publisher import PublisherCollector
from lbg_runtime.metrics.reading import PublisherCounts


class Publisher:
    counts = PublisherCounts(sent=10, confirmed=6, refused=1, unknown=2)


def test_a_publisher_is_read_when_it_is_scraped() -> None:
    registry, publisher = CollectorRegistry(), Publisher()
    registry.register(PublisherCollector(publisher))
    lines = generate_latest(registry).decode().splitlines()
    assert [line for line in lines if not line.startswith("#")] == [
        "lbg_publisher_sent_total 10.0",
        "lbg_publisher_confirmed_total 6.0",
        "lbg_publisher_refused_total 1.0",
        "lbg_publisher_unknown_total 2.0",
        "lbg_publisher_unconfirmed 1.0",
    ]
    publisher.counts = PublisherCounts(sent=11, confirmed=6, refused=1, unknown=2)
    assert "lbg_publisher_unconfirmed 2.0" in generate_latest(registry).decode()
