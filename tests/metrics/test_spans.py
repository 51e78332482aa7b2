"""Spans of messages: their names, their facts, and the trace that goes from publisher to handler."""

import asyncio
import contextlib

import pytest
import structlog
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

from lbg_runtime.metrics.spans import MessageSpans, end_publish
from lbg_runtime.model.errors import PublishRefused
from lbg_runtime.model.message import NO_HEADERS, Headers, Message
from tests.metrics.kept_spans import SHAPE, KeptSpans

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def begun(spans, properties=None, topic="h/3/orders/new", headers=NO_HEADERS):
    return spans.begin_publish(
        topic, key="k", shard=3, message_id="p-1", headers=headers, size_bytes=5,
        properties={} if properties is None else properties,
    )  # fmt: skip


def handling(spans, properties, headers=NO_HEADERS, **facts):
    message = Message("h/3/orders/new", b"12345", properties, message_id="p-1", headers=headers)
    given = {"queue": "orders/3", "key": "k", "shard": 3, "epoch": 2, "attempt": 1, "is_redelivered": False}
    given |= {"overdue": lambda: None, **facts}
    return spans.handling(message, **given)


def test_a_message_is_one_trace_from_its_publisher_to_its_handler() -> None:
    kept = KeptSpans()
    spans, properties = kept.make(), {"colour": "red"}
    end_publish(begun(spans, properties), None)
    assert properties.keys() == {"colour", "traceparent"}
    with handling(spans, properties):
        inside = trace.get_current_span().get_span_context()
    published, handled = kept.ended
    assert handled.context.span_id == inside.span_id
    assert handled.parent.span_id == published.context.span_id
    assert handled.context.trace_id == published.context.trace_id
    assert properties["traceparent"][:-3] == f"00-{published.context.trace_id:032x}-{published.context.span_id:016x}"


def test_a_publishers_span_is_named_and_described_by_the_messaging_conventions() -> None:
    kept = KeptSpans()
    end_publish(begun(kept.make()), None)
    (span,) = kept.ended
    assert (span.name, span.kind) == ("publish h/{shard}/{topic}", SpanKind.PRODUCER)
    assert span.instrumentation_scope.name == "lbg_runtime"
    assert dict(span.attributes) == {
        "messaging.system": "solace",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": "h/3/orders/new",
        "messaging.destination.template": "h/{shard}/{topic}",
        "messaging.destination.partition.id": "3",
        "messaging.message.id": "p-1",
        "messaging.message.body.size": 5,
    }


def test_a_handlers_span_is_named_and_described_by_the_messaging_conventions() -> None:
    kept = KeptSpans()
    with handling(kept.make(), {}, attempt=2, is_redelivered=True):
        pass
    (span,) = kept.ended
    assert (span.name, span.kind, span.parent) == ("process orders/3", SpanKind.CONSUMER, None)
    assert dict(span.attributes) == {
        "messaging.system": "solace",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders/3",
        "messaging.destination.partition.id": "3",
        "messaging.consumer.group.name": "orders",
        "messaging.message.id": "p-1",
        "messaging.message.body.size": 5,
        "lbg.epoch": 2,
        "lbg.attempt": 2,
        "lbg.redelivered": True,
    }


def test_every_span_says_which_client_it_is_of_and_where_the_broker_is() -> None:
    kept, client = KeptSpans(), {"messaging.client.id": "orders/a", "server.address": "broker", "server.port": 55555}
    spans = MessageSpans(SHAPE, has_keys=False, client=client, provider=kept.provider)
    end_publish(begun(spans), None)
    with handling(spans, {}):
        pass
    assert all(span.attributes.items() >= client.items() for span in kept.ended)


@pytest.mark.parametrize(
    ("has_keys", "correlation_id", "is_told"),
    [(False, "request-7", True), (False, "order of k", False), (True, "order of k", True)],
)
def test_the_conversation_of_a_message_is_told_unless_it_tells_the_key(has_keys, correlation_id, is_told) -> None:
    kept = KeptSpans()
    spans = kept.make(has_keys=has_keys)
    end_publish(begun(spans, headers=Headers(correlation_id)), None)
    with handling(spans, {}, Headers(correlation_id)):
        pass
    with handling(spans, {}, Headers(correlation_id), key=None):
        pass
    told = [span.attributes.get("messaging.message.conversation_id") for span in kept.ended]
    assert told == [correlation_id if is_told else None] * 2 + [correlation_id]


@pytest.mark.parametrize(
    ("has_keys", "properties", "is_told"),
    [(False, {}, False), (True, {}, True), (False, {"lbg_publisher": "p"}, True)],
)
def test_the_id_of_a_foreign_message_is_told_unless_it_tells_the_key(has_keys, properties, is_told) -> None:
    """Ours are made of the publisher's and a number, which may have a short key in them by chance."""
    kept = KeptSpans()
    with handling(kept.make(has_keys=has_keys), properties, key="p-1"):
        pass
    assert ("messaging.message.id" in kept.ended[0].attributes) == is_told


@pytest.mark.parametrize("headers", [None, {"correlation_id": "c"}, Headers(7)])
def test_what_is_no_conversation_is_left_to_the_transport_to_refuse(headers) -> None:
    kept = KeptSpans()
    end_publish(begun(kept.make(), headers=headers), None)
    assert "messaging.message.conversation_id" not in kept.ended[0].attributes


@pytest.mark.parametrize(
    ("queues", "name", "destination"),
    [({"orders/3"}, "process orders/3", "orders/3"), ({"orders/3", "orders/1"}, "process", None)],
)
def test_a_batch_has_the_destination_that_all_its_messages_have(queues, name, destination) -> None:
    kept = KeptSpans()
    spans = kept.make()
    with handling(spans, {"traceparent": TRACEPARENT}):
        link = spans.link()
    with spans.handling_batch(queues, [link]):
        pass
    one, batch = kept.ended
    assert (batch.name, batch.kind, batch.parent) == (name, SpanKind.CONSUMER, None)
    assert [each.context.span_id for each in batch.links] == [one.context.span_id]
    expected = {
        "messaging.system": "solace",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": "orders",
        "messaging.batch.message_count": 1,
    }
    assert dict(batch.attributes) == expected | (
        {} if destination is None else {"messaging.destination.name": destination}
    )


def test_what_a_message_does_not_have_is_not_told(caplog) -> None:
    kept = KeptSpans()
    message = Message("bills/new", b"", {})
    facts = {"queue": "orders/3", "epoch": 1, "attempt": 1, "is_redelivered": False, "overdue": lambda: None}
    with kept.make(has_keys=True).handling(message, key=None, shard=None, **facts):
        pass
    left_out = {
        "messaging.message.id",
        "messaging.message.conversation_id",
        "messaging.destination.partition.id",
        "lbg.key",
    }
    assert left_out.isdisjoint(kept.ended[0].attributes)
    assert caplog.messages == [], "the library complains of attributes without a value"


@pytest.mark.parametrize("has_keys", [False, True])
def test_a_key_is_told_only_where_it_is_wished(has_keys) -> None:
    kept = KeptSpans()
    spans = kept.make(has_keys=has_keys)
    end_publish(begun(spans), None)
    with handling(spans, {}):
        pass
    with handling(spans, {}, key=None, shard=None):
        pass
    assert [span.attributes.get("lbg.key") for span in kept.ended] == (["k", "k", None] if has_keys else [None] * 3)


def test_the_trace_of_a_foreign_publisher_goes_on() -> None:
    kept = KeptSpans()
    with handling(kept.make(), {"traceparent": TRACEPARENT, "tracestate": "vendor=1"}):
        pass
    (span,) = kept.ended
    assert f"{span.context.trace_id:032x}-{span.parent.span_id:016x}" == TRACEPARENT[3:-3]
    assert span.context.trace_state == {"vendor": "1"}


@pytest.mark.parametrize("value", ["", "00-zz", 17, None, b"bytes", True])
def test_a_context_that_is_none_begins_a_trace(value) -> None:
    kept = KeptSpans()
    with handling(kept.make(), {"traceparent": value}):
        pass
    assert kept.ended[0].parent is None


def test_a_message_that_a_handler_publishes_belongs_to_its_trace() -> None:
    kept = KeptSpans()
    spans, properties = kept.make(), {"traceparent": TRACEPARENT}
    with handling(spans, properties):
        end_publish(begun(spans, properties), None)
    published, handled = kept.ended
    assert published.parent.span_id == handled.context.span_id
    assert f"{published.context.span_id:016x}" in properties["traceparent"], "its own in place of the forwarded one"


def test_a_forwarded_state_of_another_trace_goes_with_its_parent() -> None:
    kept, forwarded = KeptSpans(), {"traceparent": TRACEPARENT, "tracestate": "vendor=1", "colour": "red"}
    spans, properties = kept.make(), {**forwarded}
    end_publish(begun(spans, properties), None)
    assert properties.keys() == {"traceparent", "colour"}
    with handling(spans, {}):
        continued = spans.continued(Message("bills/new", b"", forwarded))
    assert continued.properties.keys() == {"traceparent", "colour"}
    with handling(spans, {"traceparent": TRACEPARENT, "tracestate": "vendor=2"}):
        continued = spans.continued(Message("bills/new", b"", forwarded))
    assert continued.properties["tracestate"] == "vendor=2"


def test_what_is_raised_ends_the_span_as_failed_and_is_passed_on() -> None:
    kept = KeptSpans()
    for error, status in ((ValueError("no"), "ValueError: no"), (asyncio.CancelledError(), "cancelled")):
        with pytest.raises(type(error)), handling(kept.make(), {}):
            raise error
        span = kept.ended[-1]
        assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, status)
        assert span.attributes["error.type"] == type(error).__name__
    assert [[event.attributes["exception.message"] for event in span.events] for span in kept.ended] == [["no"], []]


def test_an_error_that_cannot_be_told_fails_its_span_with_its_name_and_is_passed_on() -> None:
    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    kept = KeptSpans()
    with pytest.raises(Unspeakable), handling(kept.make(), {}):
        raise Unspeakable
    assert kept.ended[0].status.description.endswith("Unspeakable")


@pytest.mark.parametrize("raised", [None, asyncio.CancelledError(), ValueError("no")])
def test_an_attempt_that_took_too_long_has_failed_with_that_however_it_ended(raised) -> None:
    kept, late = KeptSpans(), TimeoutError("too long")
    with contextlib.suppress(ValueError, asyncio.CancelledError), handling(kept.make(), {}, overdue=lambda: late):
        if raised is not None:
            raise raised
    (span,) = kept.ended
    assert (span.status.description, span.attributes["error.type"]) == ("TimeoutError: too long", "TimeoutError")


def test_a_message_is_continued_by_the_current_span_and_by_nothing_outside_of_one() -> None:
    spans, message = KeptSpans().make(), Message("bills/new", b"", {"traceparent": "old", "colour": "red"})
    assert spans.continued(message) is message
    with handling(spans, {}):
        inside = trace.get_current_span().get_span_context()
        continued = spans.continued(message)
    assert continued.properties["traceparent"][:-3] == f"00-{inside.trace_id:032x}-{inside.span_id:016x}"
    assert (continued.properties["colour"], message.properties["traceparent"]) == ("red", "old")


def test_a_refused_message_has_a_failed_span() -> None:
    kept = KeptSpans()
    end_publish(begun(kept.make()), PublishRefused("h/3/orders/new", "Spool Over Quota"))
    (span,) = kept.ended
    assert span.status.status_code is StatusCode.ERROR
    assert "Spool Over Quota" in span.status.description
    assert span.attributes["error.type"] == "PublishRefused"


@pytest.mark.parametrize("has_keys", [False, True])
def test_a_topic_with_the_key_in_it_is_told_only_where_keys_are(has_keys) -> None:
    kept = KeptSpans()
    end_publish(begun(kept.make(has_keys=has_keys), topic="h/3/orders/k"), None)
    told = kept.ended[0].attributes["messaging.destination.name"]
    assert told == ("h/3/orders/k" if has_keys else "h/3/{topic}")


def test_nor_does_a_refusal_tell_the_topic() -> None:
    kept = KeptSpans()
    # The client's library keeps 255 bytes of a reason, so that not all of the topic may be in it.
    for reason in (
        "Publish ACL Denied - Topic 'h/3/orders/k",
        "Publish ACL Denied - Topic 'h/3/or",
        "Spool Over Quota",
    ):
        end_publish(begun(kept.make(), topic="h/3/orders/k"), PublishRefused("h/3/orders/k", reason))
    end_publish(begun(kept.make(), topic="h/3/orders/k"), OSError("cannot write h/3/orders/k"))
    descriptions = [span.status.description for span in kept.ended]
    assert descriptions == ["PublishRefused", "PublishRefused", "Spool Over Quota", "OSError"]


def test_spans_that_nobody_takes_are_told_once_and_not_before_there_are_any(monkeypatch) -> None:
    monkeypatch.setattr(trace, "get_tracer_provider", trace.ProxyTracerProvider)
    with structlog.testing.capture_logs() as lines:
        published, handled = MessageSpans(SHAPE, has_keys=False), MessageSpans(SHAPE, has_keys=False)
        assert lines == []
        for _ in range(2):
            end_publish(begun(published), None)
        assert [line["event"] for line in lines] == ["spans_not_kept"]
        for _ in range(2):
            with handling(handled, {}):
                pass
    assert [(line["event"], line["log_level"]) for line in lines] == [("spans_not_kept", "warning")] * 2


def test_a_provider_that_is_set_after_the_spans_were_opened_is_found(monkeypatch) -> None:
    with structlog.testing.capture_logs() as lines:
        spans, own = MessageSpans(SHAPE, has_keys=False), KeptSpans()
        monkeypatch.setattr(trace, "get_tracer_provider", lambda: own.provider)
        end_publish(begun(spans), None)
        end_publish(begun(own.make()), None)
    assert lines == []
