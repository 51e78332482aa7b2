"""The page docs/metrics.md, made from the tables of the metrics; a test keeps the file current."""

from collections.abc import Iterator

from lbg_runtime.metrics.durations import BOUNDS_S
from lbg_runtime.metrics.member import DURATION_METRICS, FIGURE_METRICS, STATE_METRICS
from lbg_runtime.metrics.publisher import CONFIRM_DURATIONS, PUBLISHER_COUNTERS, UNCONFIRMED

_HEAD = """# Metrics

Made from `lbg_runtime/metrics/`; do not edit. `make docs` writes it anew.

A member with `ops.status` answers `GET /metrics` there, in the text format of Prometheus, under the rules
of the [status API](status-api.md): without `ops.status_token`, anybody on the machine may ask on loopback; with it,
requests must carry the token, on loopback too (`authorization: {credentials_file: ...}` in the scrape job). Counters
begin at 0 with each life of the member. If several members run in one process, each has its own address and reports
only its own metrics. Without `ops.status` nothing is counted.

No label contains a key, a topic or anything else that comes with a message: a member of a group with N queues has at
most 2 N series by queue, and less than 150 others. All figures of one answer were true at the same moment, between two
steps of the member's event loop; the thread of the status server turns them into text.
"""

_SPANS = """With `ops.tracing: spans` a member makes a span for each attempt of a handler, `lbg publish` one for each
message, from the moment it is sent to the broker's answer (`pip install 'lbg-runtime[otel]'`). They form one trace: the
publisher's context travels in the user properties `traceparent` and `tracestate` of the W3C, and the spans of messages
that a handler publishes through a publisher are below the handler's span. Messages that a handler yields or returns get
no span of their own, and carry the context of the handler's. The call of a batch handler has a span besides those of
its messages' attempts: the root of a trace of its own, above what the handler does, with a link to each of
them. The publisher of `open_publisher` makes spans by itself, by the settings that it is given:

```python
from lbg_runtime import open_publisher

async with open_publisher("config.yaml") as publisher:
    await publisher.publish("orders/new", b"an order", key="account-4711")
```

The vendor's own integration with OpenTelemetry (`pubsubplus-opentelemetry-integration`, and those for other languages)
carries the context in a place of its own in the message, where the distributed tracing of PubSub+ has it too, and does
not read these properties. With `ops.tracing`, in a sidecar, and where messages may be moved to an error queue or
parked, a member finds that context: where a message has no `traceparent`, it is among the message's properties as if it
had. It is the one of the last broker that made a span of the message, or else its publisher's. If a message has both,
the properties say which trace it belongs to, and a broker's span of that trace is the nearer parent; a broker that
knows nothing of the properties begins a trace of its own, which is not followed. What is published with the two
properties carries the context in the vendor's place as well, as that of its creation. Baggage is not carried.

Names follow OpenTelemetry's messaging conventions: `messaging.system` is `solace` (the vendor's examples and collector
say `SolacePubSub+`); the destination is the topic in a publisher's span and the queue in a handler's; the partition is
the shard; the client id is the client's name on the broker, the conversation id the message's correlation id; the
server is named if `connection.host` is one. `lbg.epoch`, `lbg.attempt` and `lbg.redelivered` are our own. A handler's
span has the publisher's for its parent, and settlements have none. The key is in a span (as `lbg.key`) only with
`ops.tracing: spans_with_keys`; without that, a topic that contains the key appears as `<hash prefix>/<shard>/{topic}`,
and a correlation id that contains it, or a foreign message's id, not at all.

The program that sets up a tracer provider decides where the spans go: a module of handlers, or, with the package
`opentelemetry-distro`, `opentelemetry-instrument -- lbg run` (without the `--` it takes options of lbg for its own). If
there is none when the first span is made, the warning `spans_not_kept` says that they go nowhere. Without the setting,
nothing of OpenTelemetry is imported. With it, a published message costs some
20 us more and a handled one 30 us. To look for the vendor's context adds less than 0.1 us, or 1 us without the parts in
C, to read one 5 to 9 us, and to write one 2 us.

Log lines that a handler, or a task that it starts, writes with structlog contain `queue`, `epoch` and `key` of its
message (a batch has no single one), and `trace_id` and `span_id` of the current span; the runtime's lines about a
failed attempt those of the attempt's span. In a member without spans they contain the `trace_id` that the message
brought, if it did. A program with a structlog configuration of its own has to add the processor
`lbg_runtime.runtime.log_facts.add_handling`.
"""

_PUBLISHER = """A publisher has no address of its own. Its figures go into the registry of the program that publishes:

```python
from prometheus_client import REGISTRY
from lbg_runtime.metrics.publisher import PublisherCollector

REGISTRY.register(PublisherCollector(publisher))
```

A registry takes one publisher at a time: `unregister` its collector before you register that of the next one, whose
counts begin at 0. What was sent is confirmed, refused, unknown or still on its way; once the publisher is closed,
nothing is on its way any more.
"""

_ALERTS_HEAD = """For a group of 8 queues (change the number with theirs; it is 1 for a partitioned queue). *For* is how
long an expression should hold before somebody is called; where it is not 0, that is longer than a move takes.

| what is wrong | expression | for | then |
|---|---|---|---|"""

ALERTS = (
    (
        "nobody handles some queues",
        "`(count(count by (queue) (lbg_messages_in_flight)) or vector(0)) < 8`",
        "1 min",
        "[a queue nobody has](operations.md#a-queue-nobody-has); if no member is ready, [the "
        "broker](operations.md#the-broker-fails-over-or-restarts)",
    ),
    (
        "no member is ready: mostly an outage of the broker",
        "`max(lbg_member_ready) == 0`",
        "1 min",
        "the log has `connection_lost`; [the broker](operations.md#the-broker-fails-over-or-restarts)",
    ),
    (
        "a member is not ready",
        "`lbg_member_ready == 0`",
        "1 min",
        "its `/readyz` says why ([status-api.md](status-api.md))",
    ),
    (
        "a member's event loop hangs",
        "`lbg_member_up == 0`",
        "1 min",
        "[a member is stuck](operations.md#a-member-is-stuck)",
    ),
    (
        "a process is stopped, or gone",
        "`up == 0` of its scrape job, as nobody answers",
        "1 min",
        "[a member crashed](operations.md#a-member-crashed)",
    ),
    (
        "a queue stands still with all its keys",
        "`lbg_queues_standing_still > 0`",
        "0",
        "the live page and the log say which, and why: [`stop`](failing.md#stop), or "
        "[parking](failing.md#what-it-needs)",
    ),
    (
        "a key stands still",
        "`lbg_keys_stuck > 0`, `lbg_keys_parked > 0`",
        "0",
        "the log says which; [a key stands still](operations.md#a-key-stands-still)",
    ),
    (
        "messages failed for good",
        "`increase(lbg_messages_moved_total[10m]) > 0 or lbg_messages_moved_total > 0 unless "
        "lbg_messages_moved_total offset 10m`, and the same of `lbg_messages_parked_total`",
        "0",
        "the log has `message_moved` or `key_parked`; [publish again](failing.md#publish-again), [parked "
        "keys](failing.md#parked-keys)",
    ),
    (
        "what failed cannot be moved or parked, so its key waits",
        "`increase(lbg_moves_failed_total[10m]) > 0`",
        "10 min",
        "the log has `move_failed` with the reason",
    ),
    (
        "handlers fail",
        "`rate(lbg_attempts_failed_total[5m]) > 0`",
        "5 min",
        "the log has `handling_failed`; [when a handler fails](failing.md)",
    ),
    (
        "a re-striping is stuck",
        '`changes(lbg_restriping_shards{stage="left"}[10m]) == 0`',
        "10 min",
        "[what others have left](restripe.md#what-others-have-left)",
    ),
    (
        "a journal has gaps",
        "`increase(lbg_journal_records_dropped_total[10m]) > 0`",
        "0",
        "[journals](operations.md#journals)",
    ),
)
"""What is wrong, how it is seen, for how long, and where to look."""

_ALERTS_TAIL = """
`increase` and `rate` do not see what a process counted before its first scrape, and a process under a new name begins
with new series. Whatever fails soon after a start is missed by them alone; hence the second half of the expression for
messages that failed for good.
"""

QUESTIONS = (
    (
        "messages per second of the group",
        "`sum(rate(lbg_messages_handled_total[1m]))`",
    ),
    (
        "how busy the members are",
        "`lbg_lanes_running`, of `dispatch.runners`; what waits is in `lbg_messages_waiting`",
    ),
    (
        "p99 of handling",
        "`histogram_quantile(0.99, sum by (le) (rate(lbg_handling_duration_seconds_bucket[5m])))`; 30 s "
        "stands for more, too",
    ),
    (
        "takeovers",
        '`increase(lbg_owner_changes_total{event="taken",cause="elected"}[10m])`, beyond those of a start',
    ),
    (
        "pauses of moves, p99",
        "`histogram_quantile(0.99, sum by (le) (rate(lbg_queue_pause_seconds_bucket[1h])))`, where messages "
        "are always there",
    ),
    (
        "handled again after a crash or a cut",
        "`rate(lbg_messages_redelivered_total[5m])`, replays of parked messages among them",
    ),
    (
        "p99 of confirms",
        "`histogram_quantile(0.99, sum by (le) (rate(lbg_publisher_confirm_seconds_bucket[5m])))`",
    ),
)

_ASK = """All of these are for a Prometheus that knows one group, as only `lbg_member_info` has its name. With several,
give each a scrape job of its own and add `{job="orders"}`, or get the name by
`* on (instance) group_left (group) lbg_member_info`, which leaves out members whose event loop does not answer.

Of the names in OpenTelemetry's messaging conventions, `messaging.client.consumed.messages` is closest to
`lbg_messages_handled_total`, `messaging.process.duration` to `lbg_handling_duration_seconds` (which has all attempts of
a message, and the waits in between), `messaging.client.sent.messages` to `lbg_publisher_sent_total`, and
`messaging.client.operation.duration` to `lbg_publisher_confirm_seconds` (of what was confirmed).
"""


def metrics_page() -> str:
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
            f"Buckets of the histograms, in seconds: {bounds}. Histograms cover the whole member, not single queues.",
            "",
            "## A publisher",
            "",
            _PUBLISHER,
            "| metric | kind | meaning |",
            "|---|---|---|",
            *(f"| `{name}` | counter | {text} |" for name, _, text in PUBLISHER_COUNTERS),
            f"| `{UNCONFIRMED[0]}` | gauge | {UNCONFIRMED[1]} |",
            f"| `{CONFIRM_DURATIONS[0]}` | histogram | {CONFIRM_DURATIONS[1]} |",
            "",
            "## Alerts",
            "",
            _ALERTS_HEAD,
            *(f"| {' | '.join(cells)} |" for cells in ALERTS),
            _ALERTS_TAIL,
            "## Questions",
            "",
            "| question | expression |",
            "|---|---|",
            *(f"| {' | '.join(cells)} |" for cells in QUESTIONS),
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
