"""Traces of applications with the vendor's integration with OpenTelemetry go on in a member, and a member's in them.

The official client carries the contexts, as the vendor's integration has it do. The spans are those of a member and a
publisher made from settings; the queue after the member is read by an application that knows nothing of ours.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest

from lbg_runtime import App, Handlers, open_publisher
from lbg_runtime.config.load import parse_settings
from lbg_runtime.config.settings import Settings
from lbg_runtime.model.message import Message
from lbg_runtime.testing import BrokerOnPort
from tests.foreign_client import Context, ForeignClient
from tests.metrics.kept_spans import KeptSpans
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.real_time, pytest.mark.end_to_end]

CREATION: Context = (b"\xc1" * 16, b"\xc2" * 8, True, "created=1")
TRANSPORT: Context = (b"\xc1" * 16, b"\xb2" * 8, True, None)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> KeptSpans:
    return KeptSpans.of_process(monkeypatch)


@pytest.fixture
async def client(lbg_broker: BrokerOnPort) -> AsyncIterator[ForeignClient]:
    lbg_broker.create_queue("orders/0", "h/*/>")
    lbg_broker.create_queue("bills", "bills/>")
    made = ForeignClient(lbg_broker.url)
    await asyncio.to_thread(made.service.connect)
    yield made
    await asyncio.to_thread(made.service.disconnect)


PATHS = pytest.mark.parametrize("path", ["fast", "public"])


def settings_at(broker: BrokerOnPort, path: str, tracing: str) -> Settings:
    return parse_settings(
        {
            "connection": {"transport": "solace", "host": broker.url},
            "transport": {"client_path": path},
            "group": {"name": "orders", "hash_prefix": "h", "hash_count": 8, "queue_count": 1, "provision": "none"},
            "membership": {"id": "a", "heartbeat": "200ms", "settle": "300ms"},
            "ops": {"tracing": tracing},
        },
        "test",
        {},
    )


@asynccontextmanager
async def running(handlers: Handlers, settings: Settings) -> AsyncIterator[None]:
    app = App(handlers, settings)
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
        member = tasks.create_task(app.run())
        try:
            yield
        finally:
            app.stop()
            await member


async def handled(
    client: ForeignClient, settings: Settings, properties: dict[str, str] | None = None
) -> tuple[Message, Any]:
    """What a member's handler gets of a foreign message, and what a foreign application gets of the handler's."""
    handlers, got = Handlers(), list[Message]()

    @handlers.handler("orders/*", publishes=True)
    async def bill(message: Message) -> Message:
        got.append(message)
        return Message("bills/new", b"bill")

    async with running(handlers, settings):
        order = client.message(CREATION, TRANSPORT, {"JMSXGroupID": "k", **(properties or {})})
        await asyncio.to_thread(client.publish, "h/3/orders/new", order)
        answer = await asyncio.to_thread(client.take, "bills")
    return got[0], answer


@PATHS
async def test_a_handlers_span_is_below_the_newest_of_the_vendors_and_its_messages_carry_it_on(
    client: ForeignClient, lbg_broker: BrokerOnPort, kept: KeptSpans, path: str
) -> None:
    message, answer = await handled(client, settings_at(lbg_broker, path, "spans"))
    [span] = kept.ended
    trace_id, parent_id, is_sampled, _ = TRANSPORT
    assert span.parent.span_id.to_bytes(8, "big") == parent_id
    assert (span.context.trace_id.to_bytes(16, "big"), span.parent.trace_flags.sampled) == (trace_id, is_sampled)
    assert message.properties["traceparent"] == f"00-{trace_id.hex()}-{parent_id.hex()}-01"
    context = (span.context.trace_id.to_bytes(16, "big"), span.context.span_id.to_bytes(8, "big"), True, "created=1")
    assert answer.get_creation_trace_context() == context
    assert answer.get_transport_trace_context() == (None, None, None, None)


async def test_properties_of_another_trace_win(
    client: ForeignClient, lbg_broker: BrokerOnPort, kept: KeptSpans
) -> None:
    """Brokers that do not read them begin a trace of their own, which nobody else is in."""
    said = {"traceparent": f"00-{'d1' * 16}-{'d2' * 8}-01"}
    await handled(client, settings_at(lbg_broker, "fast", "spans"), said)
    [span] = kept.ended
    assert (span.context.trace_id.to_bytes(16, "big"), span.parent.span_id.to_bytes(8, "big")) == (
        b"\xd1" * 16,
        b"\xd2" * 8,
    )


async def test_without_spans_a_member_leaves_the_vendors_context_where_it_is(
    client: ForeignClient, lbg_broker: BrokerOnPort
) -> None:
    message, answer = await handled(client, settings_at(lbg_broker, "fast", "off"))
    assert message.properties == {"JMSXGroupID": "k"}
    assert answer.get_creation_trace_context() == (None, None, None, None)


@PATHS
@pytest.mark.parametrize(
    ("then", "queue", "count"),
    # The owner's fence comes before what is parked.
    [("error_queue", "lbg-errors/orders", 1), ("park", "lbg-parked/orders/0", 2)],
)
async def test_what_a_member_without_spans_moves_keeps_the_vendors_context(
    client: ForeignClient,
    lbg_broker: BrokerOnPort,
    path: str,
    then: Literal["error_queue", "park"],
    queue: str,
    count: int,
) -> None:
    lbg_broker.create_queue(queue, queue)
    handlers = Handlers()

    @handlers.handler("orders/*", attempts=1, then=then)
    async def fail(_: Message) -> None:
        raise OSError("prices are gone")

    async with running(handlers, settings_at(lbg_broker, path, "off")):
        order = client.message(CREATION, TRANSPORT, {"JMSXGroupID": "k"}, b"order")
        await asyncio.to_thread(client.publish, "h/3/orders/new", order)
        await asyncio.to_thread(lbg_broker.wait_until, "orders/0", lambda seen: not seen.depth)
    moved = await asyncio.to_thread(client.take, queue, count)
    assert moved.get_payload_as_bytes() == b"order"
    trace_id, parent_id, is_sampled, _ = TRANSPORT
    assert moved.get_creation_trace_context() == (trace_id, parent_id, is_sampled, "created=1")


@PATHS
async def test_a_publishers_span_is_where_the_vendors_integration_looks_for_it(
    client: ForeignClient, lbg_broker: BrokerOnPort, kept: KeptSpans, path: str
) -> None:
    async with open_publisher(settings_at(lbg_broker, path, "spans")) as publisher:
        await publisher.publish("orders/new", b"x", key="k")
    [span] = kept.ended
    taken = await asyncio.to_thread(client.take, "orders/0")
    context = (span.context.trace_id.to_bytes(16, "big"), span.context.span_id.to_bytes(8, "big"), True, None)
    assert taken.get_creation_trace_context() == context
    assert taken.get_transport_trace_context() == (None, None, None, None)
