"""The vendor's trace context goes both ways, by each path; messages and contexts are made by the official client."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from structlog.testing import capture_logs

from lbg_runtime.broker.server.server import BrokerServer
from lbg_runtime.config.settings import ClientPathChoice
from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.model.message import Message, PropertyValue
from lbg_runtime.testing.flow_recorder import PATIENCE_S, FlowRecorder
from lbg_runtime.transport.solace import trace_context
from lbg_runtime.transport.solace.inbox import Inbox
from lbg_runtime.transport.solace.paths import choose_paths
from lbg_runtime.transport.solace.trace_context import TraceContexts
from lbg_runtime.transport.solace.transport import SolaceTransport
from tests.foreign_client import Context, ForeignClient
from tests.transport.solace.fast.surprises import WithoutFunctions

MakeTransport = Callable[..., SolaceTransport]
CREATION: Context = (b"\xc1" * 16, b"\xc2" * 8, True, "created=1")
TRANSPORT: Context = (b"\xc1" * 16, b"\xb2" * 8, True, "broker=1")
CREATION_PROPERTIES = {"traceparent": f"00-{'c1' * 16}-{'c2' * 8}-01", "tracestate": "created=1"}
TRANSPORT_PROPERTIES = {"traceparent": f"00-{'c1' * 16}-{'b2' * 8}-01", "tracestate": "broker=1"}
BOTH_PROPERTIES = {**TRANSPORT_PROPERTIES, "tracestate": "broker=1,created=1"}
OTHER_PROPERTIES = {"traceparent": f"00-{'d1' * 16}-{'d2' * 8}-00", "tracestate": "other=1"}
LONG_PROPERTIES = {"traceparent": OTHER_PROPERTIES["traceparent"], "tracestate": "a=" + "1" * 600}


@pytest.fixture(scope="module")
def maker() -> ForeignClient:
    """Makes messages, without a connection."""
    return ForeignClient("tcp://127.0.0.1:1")


@pytest.fixture
async def client(broker: BrokerServer) -> AsyncIterator[ForeignClient]:
    made = ForeignClient(broker.url)
    await asyncio.to_thread(made.service.connect)
    yield made
    await asyncio.to_thread(made.service.disconnect)


CONTEXTS: dict[str, tuple[Context | None, Context | None, dict[str, str], dict[str, str]]] = {
    "none": (None, None, {}, {}),
    "the publisher's": (CREATION, None, {}, CREATION_PROPERTIES),
    "the broker's": (None, TRANSPORT, {}, TRANSPORT_PROPERTIES),
    "the broker's newer one": (CREATION, TRANSPORT, {}, BOTH_PROPERTIES),
    "one of another trace on the way": (
        CREATION,
        (b"\xb1" * 16, *TRANSPORT[1:]),
        {},
        {"traceparent": f"00-{'b1' * 16}-{'b2' * 8}-01", "tracestate": "broker=1"},
    ),
    "states with the same entry": (
        (*CREATION[:3], "created=1, broker=0"),
        (*TRANSPORT[:3], "broker=1, ,route=2"),
        {},
        {**TRANSPORT_PROPERTIES, "tracestate": "broker=1,route=2,created=1"},
    ),
    "states that are too long together": ((*CREATION[:3], "a=" + "1" * 507), TRANSPORT, {}, TRANSPORT_PROPERTIES),
    "not sampled, without a state": (
        (CREATION[0], CREATION[1], False, None),
        None,
        {},
        {"traceparent": f"00-{'c1' * 16}-{'c2' * 8}-00"},
    ),
    "a state of zero bytes": ((*CREATION[:3], ""), None, {}, {"traceparent": CREATION_PROPERTIES["traceparent"]}),
    "ids of zeros": ((bytes(16), bytes(8), True, None), None, {}, {}),
    "a creation whose transport has ids of zeros": (
        CREATION,
        (bytes(16), bytes(8), False, None),
        {},
        CREATION_PROPERTIES,
    ),
    "properties": (None, None, OTHER_PROPERTIES, OTHER_PROPERTIES),
    "properties with a state that is too long for a context": (None, None, LONG_PROPERTIES, LONG_PROPERTIES),
    "those, and the publisher's": (CREATION, None, LONG_PROPERTIES, LONG_PROPERTIES),
    "those, and the broker's of another trace": (None, TRANSPORT, LONG_PROPERTIES, LONG_PROPERTIES),
    "properties, and the publisher's of another trace": (CREATION, None, OTHER_PROPERTIES, OTHER_PROPERTIES),
    "properties, and the broker's of another trace": (None, TRANSPORT, OTHER_PROPERTIES, OTHER_PROPERTIES),
    "properties, and the broker's of their trace": (CREATION, TRANSPORT, CREATION_PROPERTIES, BOTH_PROPERTIES),
    "properties, and the broker's of their trace without a state": (
        CREATION,
        (*TRANSPORT[:3], None),
        CREATION_PROPERTIES,
        {**TRANSPORT_PROPERTIES, "tracestate": "created=1"},
    ),
    "properties without a state, and the broker's of their trace": (
        None,
        (*TRANSPORT[:3], None),
        {"traceparent": CREATION_PROPERTIES["traceparent"]},
        {"traceparent": TRANSPORT_PROPERTIES["traceparent"]},
    ),
    "properties that are no context": (
        CREATION,
        None,
        {"traceparent": "none", "tracestate": "a=1"},
        CREATION_PROPERTIES,
    ),
}
"""The publisher's, the broker's, the properties; and what the properties are for whoever reads the message."""


@pytest.mark.parametrize("case", CONTEXTS)
def test_a_context_is_found_among_the_properties(maker: ForeignClient, case: str) -> None:
    creation, transport, said, expected = CONTEXTS[case]
    message, properties = maker.message(creation, transport), dict[str, PropertyValue](said)
    TraceContexts().add_to(properties, message.solace_message.msg_p)
    assert properties == expected


def _misreading(self: TraceContexts, native: object, kind: object) -> dict[str, str]:
    return OTHER_PROPERTIES


@pytest.mark.parametrize(
    ("where", "name", "instead", "reason"),
    [
        (
            trace_context,
            "PyDLL",
            WithoutFunctions,
            "the client lacks a function: undefined symbol: solClient_msg_tracing_getSpanIdByte",
        ),
        (TraceContexts, "_read", _misreading, "a context was read as something else"),
    ],
    ids=["missing function", "misread"],
)
@pytest.mark.parametrize("choice", [ClientPathChoice.FAST, ClientPathChoice.PUBLIC])
async def test_a_client_that_does_otherwise_carries_none_and_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, choice: ClientPathChoice, where: object, name: str, instead: object, reason: str
) -> None:
    monkeypatch.setattr(where, name, instead)
    with capture_logs() as log:
        _, _, make_publisher = choose_paths(choice, carries_traces=True)
    assert [(line["event"], line["log_level"], line["reason"]) for line in log] == [
        ("vendor_traces_ignored", "warning", reason)
    ]
    assert make_publisher(Inbox(asyncio.get_running_loop()))._traces is None


def test_nothing_is_tried_where_no_traces_are_carried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_context, "PyDLL", WithoutFunctions)
    with capture_logs() as log:
        choose_paths(ClientPathChoice.FAST)
    assert log == []


@pytest.mark.parametrize(
    ("properties", "creation"),
    [
        (CREATION_PROPERTIES, CREATION),
        (OTHER_PROPERTIES, (b"\xd1" * 16, b"\xd2" * 8, False, "other=1")),
        ({"traceparent": CREATION_PROPERTIES["traceparent"]}, (*CREATION[:3], None)),
        ({"traceparent": f"01-{'c1' * 16}-{'c2' * 8}-03-more"}, (*CREATION[:3], None)),
        ({"tracestate": "created=1"}, (None, None, None, None)),
        ({"traceparent": "none"}, (None, None, None, None)),
        ({"traceparent": 1}, (None, None, None, None)),
        ({"traceparent": CREATION_PROPERTIES["traceparent"], "tracestate": "ä=1"}, (*CREATION[:3], None)),
        ({}, (None, None, None, None)),
    ],
)
def test_a_context_among_the_properties_is_written_as_that_of_the_creation(
    maker: ForeignClient, properties: dict[str, PropertyValue], creation: tuple[object, ...]
) -> None:
    message = maker.message()
    TraceContexts().write(message.solace_message.msg_p, properties)
    assert message.get_creation_trace_context() == creation
    assert message.get_transport_trace_context() == (None, None, None, None)


@pytest.mark.real_time
@pytest.mark.parametrize("case", CONTEXTS)
async def test_a_message_comes_with_its_context(
    make_transport: MakeTransport, client: ForeignClient, case: str
) -> None:
    creation, transport, said, expected = CONTEXTS[case]
    receiving = make_transport("first", carries_traces=True)
    await receiving.open()
    recorder = FlowRecorder()
    (await receiving.bind(QueueName("orders/0"), Epoch(1), recorder)).start_intake()
    order = client.message(creation, transport, {"colour": "red", **said})
    await asyncio.to_thread(client.publish, "orders/new", order)
    [delivery] = await recorder.until_received(1)
    assert delivery.message.properties == {"colour": "red", **expected}
    assert (delivery.message.payload, delivery.message.topic) == (b"x", "orders/new")


@pytest.mark.real_time
async def test_who_carries_no_traces_gets_a_message_as_it_was_sent(
    make_transport: MakeTransport, client: ForeignClient
) -> None:
    receiving = make_transport("first")
    await receiving.open()
    recorder = FlowRecorder()
    (await receiving.bind(QueueName("orders/0"), Epoch(1), recorder)).start_intake()
    await asyncio.to_thread(client.publish, "orders/new", client.message(CREATION, TRANSPORT, {"colour": "red"}))
    [delivery] = await recorder.until_received(1)
    assert delivery.message.properties == {"colour": "red"}


@pytest.mark.real_time
@pytest.mark.parametrize("together", [False, True], ids=["alone", "together"])
async def test_a_published_message_has_the_context_of_its_properties_and_of_no_other_message(
    make_transport: MakeTransport, client: ForeignClient, together: bool
) -> None:
    sending = make_transport("first", carries_traces=True)
    await sending.open()
    cases: tuple[tuple[dict[str, PropertyValue], tuple[object, ...]], ...] = (
        ({**CREATION_PROPERTIES}, CREATION),
        ({"colour": "red"}, (None, None, None, None)),
        # One that the part in C leaves to Python.
        ({**CREATION_PROPERTIES, "is": True}, CREATION),
    )
    for properties, creation in cases:
        message = Message("orders/new", b"x", properties)
        async with asyncio.timeout(PATIENCE_S):
            await (sending.send_together([message]) if together else sending.send(message))
        taken = await asyncio.to_thread(client.take, "orders/0")
        assert taken.get_creation_trace_context() == creation
        assert taken.get_transport_trace_context() == (None, None, None, None)
        assert taken.get_properties() == properties


@pytest.mark.real_time
async def test_who_carries_no_traces_publishes_none(make_transport: MakeTransport, client: ForeignClient) -> None:
    sending = make_transport("first")
    await sending.open()
    async with asyncio.timeout(PATIENCE_S):
        await sending.send(Message("orders/new", b"x", CREATION_PROPERTIES))
    taken = await asyncio.to_thread(client.take, "orders/0")
    assert taken.get_creation_trace_context() == (None, None, None, None)
