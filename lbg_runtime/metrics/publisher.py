"""The metrics of a publisher, for the Prometheus registry of the program that it is part of."""

from collections.abc import Iterator
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from lbg_runtime.metrics.durations import DurationsReading
from lbg_runtime.metrics.reading import PublisherCounts


class CountingPublisher(Protocol):
    """A publisher that counts; `HashedPublisher` is one."""

    @property
    def counts(self) -> PublisherCounts:
        """The counts up to now."""
        ...

    @property
    def confirm_durations(self) -> DurationsReading:
        """How long the confirms took, up to now."""
        ...


PUBLISHER_COUNTERS = (
    ("lbg_publisher_sent_total", "sent", "Messages sent."),
    ("lbg_publisher_confirmed_total", "confirmed", "Messages that the broker has confirmed."),
    ("lbg_publisher_refused_total", "refused", "Messages that the broker refused and did not store."),
    ("lbg_publisher_unknown_total", "unknown", "Messages that may or may not be on the broker."),
)
CONFIRM_DURATIONS = (
    "lbg_publisher_confirm_seconds",
    "Time from the sending of a message to its confirm, without the wait for room before it is sent.",
)
UNCONFIRMED = ("lbg_publisher_unconfirmed", "Messages on their way: sent, and not answered by the broker yet.")


class PublisherCollector(Collector):
    """Reads a publisher's figures when the registry is scraped; it costs the publisher nothing in between. One per
    registry."""

    def __init__(self, publisher: CountingPublisher) -> None:
        self._publisher = publisher

    def collect(self) -> Iterator[Metric]:
        counts = self._publisher.counts
        for name, attribute, text in PUBLISHER_COUNTERS:
            yield CounterMetricFamily(name, text, getattr(counts, attribute))
        name, text = UNCONFIRMED
        yield GaugeMetricFamily(name, text, counts.unconfirmed)
        name, text = CONFIRM_DURATIONS
        confirms = self._publisher.confirm_durations
        yield HistogramMetricFamily(name, text, buckets=confirms.cumulative(), sum_value=confirms.sum_s)
