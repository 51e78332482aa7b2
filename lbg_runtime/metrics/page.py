"""The page docs/metrics.md, made from the tables of the metrics; a test keeps the file current."""

from collections.abc import Iterator

from lbg_runtime.metrics.durations import BOUNDS_S
from lbg_runtime.metrics.member import DURATION_METRICS, FIGURE_METRICS, STATE_METRICS
from lbg_runtime.metrics.publisher import PUBLISHER_COUNTERS, UNCONFIRMED

_HEAD = """# Metrics

Made from `lbg_runtime/metrics/`; do not edit. `make docs` writes it anew.

A member with `ops.status` answers `GET /metrics` there, in the text format of Prometheus, to whoever may ask the
[status API](status-api.md) for facts: on loopback anybody on the machine, elsewhere with the token as
`authorization: {credentials_file: ...}` of the scrape job. Counters begin at 0 with each life of the member. Several
members in one process have an address each, and tell of themselves alone. Without `ops.status` nothing is counted.

No label has a key, a topic or anything else that a message brings: a member of a group with N queues has at most 2 N
series by queue, and less than 150 others. What is told was true at one moment, between two steps of the member's event
loop; it is put into text in the thread of the status server.
"""

_SPANS = """`ops.tracing: spans` has a member make a span for each attempt of a handler, and `lbg publish` one for each
message, from its sending to the broker's answer (`pip install 'lbg-runtime[otel]'`). They are one trace: the
publisher's context travels as the user properties `traceparent` and `tracestate` of the W3C, and what a handler
publishes is below its span. In a program of your own:

```python
from lbg_runtime.metrics.tracing import open_spans

HashedPublisher(messenger, shape, hash_function, publisher_id=new_publisher_id(), spans=open_spans(settings))
```

Names are those of the messaging conventions: `messaging.system` is `solace`, the destination the topic where it is
published and the queue where it is handled, the partition the shard; `lbg.epoch`, `lbg.attempt` and `lbg.redelivered`
are ours. The key is told, as `lbg.key`, with `ops.tracing: spans_with_keys` alone; without it, a topic with the key
in it is told as `<hash prefix>/<shard>/{topic}`. Who keeps the spans is decided by the program that sets up a tracer
provider: a module of handlers, or `opentelemetry-instrument lbg run`. Without the setting nothing of OpenTelemetry is
imported; with it a published message costs some 20 us more, a handled one 30 us.

Log lines that a handler writes with structlog, and those of tasks that it starts, have `queue`, `epoch` and `key` of
its message. A program with a structlog configuration of its own adds the processor
`lbg_runtime.runtime.log_facts.add_handling`.
"""

_PUBLISHER = """A publisher has no address of its own. Its figures go into the registry of the program that publishes:

```python
from prometheus_client import REGISTRY
from lbg_runtime.metrics.publisher import PublisherCollector

REGISTRY.register(PublisherCollector(publisher))
```
"""

_ASK = """| what | expression |
|---|---|
| messages a second, of the group | `sum(rate(lbg_messages_handled_total[1m]))` |
| queues that nobody has | `count(count by (queue) (lbg_messages_in_flight)) < 8`, for a group of 8 |
| a handler in trouble | `rate(lbg_attempts_failed_total[5m]) > 0` |
| p99 of handling | `histogram_quantile(0.99, sum by (le) (rate(lbg_handling_duration_seconds_bucket[5m])))` |
| takeovers | `increase(lbg_owner_changes_total{event="taken",cause="elected"}[10m])`, beyond those of a start |
| a member that is stuck | `lbg_member_up == 0`, or `lbg_member_ready == 0` for longer than a move takes |
"""


def metrics_page() -> str:
    """The whole page."""
    bounds = ", ".join(f"{bound:g}" for bound in BOUNDS_S)
    return "\n".join(
        [
            _HEAD,
            "## A member",
            "",
            "| metric | kind | labels | meaning |",
            "|---|---|---|---|",
            *_member_rows(),
            "",
            f"Buckets of the histograms, in seconds: {bounds}. They are of the member as a whole.",
            "",
            "## A publisher",
            "",
            _PUBLISHER,
            "| metric | kind | meaning |",
            "|---|---|---|",
            *(f"| `{name}` | counter | {text} |" for name, _, text in PUBLISHER_COUNTERS),
            f"| `{UNCONFIRMED[0]}` | gauge | {UNCONFIRMED[1]} |",
            "",
            "## Questions",
            "",
            _ASK,
            "## Spans and log lines",
            "",
            _SPANS.rstrip("\n"),
            "",
        ]
    )


def _member_rows() -> Iterator[str]:
    for name, text, _ in STATE_METRICS:
        yield f"| `{name}` | gauge | | {text} |"
    for one in FIGURE_METRICS:
        yield f"| `{one.name}` | {one.kind.value} | {', '.join(one.labels)} | {one.text} |"
    for other in DURATION_METRICS:
        yield f"| `{other.name}` | histogram | | {other.text} |"
