"""Makes spans of OpenTelemetry: a message is one trace, from its publisher to the end of its handler.

The context of the publisher's span travels as the user properties of the W3C trace context (`traceparent`,
`tracestate`), so that consumers in other languages find it too. Names are those of OpenTelemetry's conventions for
messaging; attributes for which these have no name begin with `lbg.`. The program decides by its tracer provider which
spans are kept and where they go; if it has none, nothing is kept, and the first span warns of that (`spans_not_kept`).

This is the only module that imports `opentelemetry`. It is itself imported only if `ops.tracing` asks for spans.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import replace

import structlog
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from lbg_runtime.model.errors import PublishFailed
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.message import Headers, Message, PropertyValue
from lbg_runtime.model.trace_context import STATE
from lbg_runtime.model.version import VERSION

SYSTEM = "solace"

_log = structlog.get_logger(__name__)
_propagator = TraceContextTextMapPropagator()


class MessageSpans:
    """Makes the spans of one group's messages; one per member and publisher, used on its loop."""

    def __init__(
        self,
        shape: GroupShape,
        *,
        has_keys: bool,
        client: Mapping[str, AttributeValue] | None = None,
        provider: TracerProvider | None = None,
    ) -> None:
        """`has_keys`: whether spans contain keys of messages, which may be personal data. `client`: the attributes of
        every span about the client and its broker. `provider`: None for the global one."""
        self._group = shape.name
        self._hashed_topic = shape.hashed_topic
        # Names of spans must be few, so this is not the topic but what all topics have in common.
        self._template = f"{shape.hash_prefix}/{{shard}}/{{topic}}"
        self._has_keys = has_keys
        self._client = {"messaging.system": SYSTEM, **(client or {})}
        self._tracer = trace.get_tracer("lbg_runtime", VERSION, provider)
        self._is_looked_after = provider is not None

    def begin_publish(
        self,
        topic: str,
        *,
        key: str,
        shard: int,
        message_id: str,
        headers: Headers,
        size_bytes: int,
        properties: dict[str, PropertyValue],
    ) -> Span:
        """A span for a message that is about to be sent, below the current span; its context is added to `properties`.

        `topic` is the full topic. If spans must not contain keys and the part after the shard does, that is left out.
        The caller ends the span with `end_publish`.
        """
        self._look_for_a_provider()
        is_told = self._may_tell(topic, key)
        span = self._tracer.start_span(
            f"publish {self._template}",
            kind=SpanKind.PRODUCER,
            attributes={
                **self._attributes("publish", "send", message_id, headers, size_bytes, key, shard),
                "messaging.destination.name": topic if is_told else self._hashed_topic(shard, "{topic}"),
                "messaging.destination.template": self._template,
            },
        )
        _put_context(properties, trace.set_span_in_context(span, Context()))
        return span

    @contextmanager
    def handling(
        self,
        message: Message,
        *,
        queue: str,
        key: str | None,
        shard: int | None,
        epoch: int,
        attempt: int,
        is_redelivered: bool,
        overdue: Callable[[], Exception | None],
    ) -> Iterator[Span]:
        """A context in which the span of one attempt to handle the message is the current one; it is below the
        publisher's, if there is one.

        An exception that is raised inside, or a cancellation, ends the span as failed, and is passed on. If `overdue`,
        which is asked at the end, returns the failure of an attempt that took too long, the span gets that, whatever
        else the handler did.
        """
        self._look_for_a_provider()
        message_id, headers, size_bytes = message.message_id, message.headers, len(message.payload)
        # The id of a publisher of ours has no key in it, except by chance.
        if message_id is not None and message.publisher_id is None and not self._may_tell(message_id, key):
            message_id = None
        with self._tracer.start_as_current_span(
            f"process {queue}",
            _propagator.extract(message.properties, Context(), getter=_PROPERTIES),
            kind=SpanKind.CONSUMER,
            attributes={
                **self._attributes("process", "process", message_id, headers, size_bytes, key, shard),
                "messaging.destination.name": queue,
                "messaging.consumer.group.name": self._group,
                "lbg.epoch": epoch,
                "lbg.attempt": attempt,
                "lbg.redelivered": is_redelivered,
            },
            # If making the text of an error raises, the library would raise that instead of the error.
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield span
            except BaseException as error:
                _mark_failed(span, overdue() or error)
                raise
            if (late := overdue()) is not None:
                _mark_failed(span, late)

    def link(self) -> Link:
        """A link to the current span, for the batch that its message becomes part of."""
        return Link(trace.get_current_span().get_span_context())

    @contextmanager
    def handling_batch(self, queues: Set[str], links: Sequence[Link]) -> Iterator[None]:
        """A context in which the span of one call with several messages is the current one.

        The span begins a trace, as it could have many parents, and has a link to the span of each message's attempt,
        which goes on meanwhile. `queues`: where the messages came from.
        """
        queue = next(iter(queues)) if len(queues) == 1 else None
        with self._tracer.start_as_current_span(
            "process" if queue is None else f"process {queue}",
            Context(),
            kind=SpanKind.CONSUMER,
            attributes={
                **self._client,
                "messaging.operation.name": "process",
                "messaging.operation.type": "process",
                "messaging.consumer.group.name": self._group,
                "messaging.batch.message_count": len(links),
                **({} if queue is None else {"messaging.destination.name": queue}),
            },
            links=links,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except BaseException as error:
                _mark_failed(span, error)
                raise

    def continued(self, message: Message) -> Message:
        """The message, or a copy of it, with the context of the current span instead of any other."""
        properties = {**message.properties}
        return replace(message, properties=properties) if _put_context(properties) else message

    def _look_for_a_provider(self) -> None:
        """Warn once if nobody takes the spans.

        Only at the first span: a lifespan, or a program that has opened its publisher, may set a provider late.
        """
        if self._is_looked_after:
            return
        self._is_looked_after = True
        # Only this type means that nobody has set a provider: one that does nothing on purpose has another.
        if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            _log.warning("spans_not_kept", expected="a tracer provider of OpenTelemetry, or ops.tracing: off")

    def _may_tell(self, text: str, key: str | None) -> bool:
        return self._has_keys or key is None or key not in text

    def _attributes(
        self,
        name: str,
        kind: str,
        message_id: str | None,
        headers: Headers,
        size_bytes: int,
        key: str | None,
        shard: int | None,
    ) -> dict[str, AttributeValue]:
        attributes: dict[str, AttributeValue] = {
            **self._client,
            "messaging.operation.name": name,
            "messaging.operation.type": kind,
            "messaging.message.body.size": size_bytes,
        }
        if message_id is not None:
            attributes["messaging.message.id"] = message_id
        # If no type checker has seen the headers, they may be anything; the transport will refuse them.
        correlation_id: object = getattr(headers, "correlation_id", None)
        if isinstance(correlation_id, str) and self._may_tell(correlation_id, key):
            attributes["messaging.message.conversation_id"] = correlation_id
        if shard is not None:
            attributes["messaging.destination.partition.id"] = str(shard)
        if self._has_keys and key is not None:
            attributes["lbg.key"] = key
        return attributes


def _put_context(properties: dict[str, PropertyValue], context: Context | None = None) -> bool:
    """Put the context of the current span, or that in `context`, into the properties instead of any other, whose state
    must not stay; return False if there is none."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, context)
    if carrier:
        properties.pop(STATE, None)
        properties.update(carrier)
    return bool(carrier)


def ids_of(other: Span | None) -> tuple[str, str] | None:
    """The trace id and span id of the current span or, if there is none, of `other`; None if that has none either."""
    context = trace.get_current_span().get_span_context()
    if not context.is_valid and other is not None:
        context = other.get_span_context()
    if not context.is_valid:
        return None
    return trace.format_trace_id(context.trace_id), trace.format_span_id(context.span_id)


def end_publish(span: Span, error: BaseException | None) -> None:
    """End the span of a message: the broker has answered, or never will. `error` is None if the broker has taken the
    message over."""
    if error is not None:
        name = type(error).__qualname__
        span.set_attribute("error.type", name)
        span.set_status(Status(StatusCode.ERROR, _reason(error) or name))
    span.end()


def _mark_failed(span: Span, error: BaseException) -> None:
    name = type(error).__qualname__
    span.set_attribute("error.type", name)
    if not isinstance(error, Exception):
        span.set_status(Status(StatusCode.ERROR, "cancelled"))
        return
    try:
        span.record_exception(error)
        span.set_status(Status(StatusCode.ERROR, f"{name}: {error}"))
    except Exception:  # noqa: BLE001 - code of the user: the text of the error
        span.set_status(Status(StatusCode.ERROR, name))


def _reason(error: BaseException) -> str:
    """Why a message was not taken; empty if the reason quotes the topic, which may contain the key."""
    if not isinstance(error, PublishFailed):
        return ""
    hashed = "/".join(error.topic.split("/")[:2])
    return "" if hashed in error.reason else error.reason


class _PropertiesGetter(Getter[Mapping[str, PropertyValue]]):
    """Reads user properties, which may have any type and any name."""

    def get(self, carrier: Mapping[str, PropertyValue], key: str) -> list[str] | None:
        value = carrier.get(key)
        return [value] if isinstance(value, str) else None

    def keys(self, carrier: Mapping[str, PropertyValue]) -> list[str]:
        return list(carrier)


_PROPERTIES = _PropertiesGetter()
