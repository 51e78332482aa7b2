"""The fast publish path on the client itself: nothing lost, nothing twice, nothing out of order, whatever happens."""

import asyncio
import gc
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import Any

import pytest

from lbg_runtime.broker.engine.effects import Deliver, one_by_one
from lbg_runtime.broker.engine.settings import QueueSettings, RejectOnDiscard
from lbg_runtime.broker.server.server import BrokerServer
from lbg_runtime.cli.bench.arms.usage import memory_bytes
from lbg_runtime.config.settings import ClientPathChoice
from lbg_runtime.core.flow.events import FlowEvent, MessageReceived
from lbg_runtime.model.errors import PublishFailed, PublishRefused
from lbg_runtime.model.ids import DeliveryId, Epoch, QueueName
from lbg_runtime.model.message import Message
from lbg_runtime.smf.contents import message_of
from lbg_runtime.smf.frame import ParameterKind, decode_frame
from lbg_runtime.smf.message import Relay
from lbg_runtime.testing.flow_recorder import PATIENCE_S
from lbg_runtime.transport.solace import paths
from lbg_runtime.transport.solace.fast import publish as fast_publish
from lbg_runtime.transport.solace.fast import publish_check
from lbg_runtime.transport.solace.fast.publish_calls import WOULD_BLOCK
from lbg_runtime.transport.solace.library import SOLCLIENT_OK
from lbg_runtime.transport.solace.settings import SolaceSettings
from lbg_runtime.transport.solace.transport import SolaceTransport
from tests.transport.solace.fast.leaver import WAYS, check_leaving

pytestmark = pytest.mark.real_time

MakeTransport = Callable[..., SolaceTransport]
QUEUE = QueueName("orders/0")
OF_THE_CHECK = 1
"""Native messages that are made and freed before there is a session."""


@pytest.fixture
def client_path() -> ClientPathChoice:
    return ClientPathChoice.FAST


class Counts:
    """What all publishers of the test asked of the library."""

    def __init__(self) -> None:
        self.allocated = 0
        self.freed = 0
        self.codes: list[int] = []


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counts:
    counts = Counts()

    class CountingCalls(paths.PublishCalls):
        def __init__(self) -> None:
            super().__init__()
            alloc, free, send = self.alloc, self.free, self.send

            def count_alloc(reference: Any) -> Any:
                counts.allocated += 1
                return alloc(reference)

            def count_free(reference: Any) -> Any:
                counts.freed += 1
                return free(reference)

            def note_send(*call: Any) -> Any:
                counts.codes.append(send(*call))
                return counts.codes[-1]

            self.alloc, self.free, self.send = count_alloc, count_free, note_send

    monkeypatch.setattr(paths, "PublishCalls", CountingCalls)
    monkeypatch.setattr(publish_check, "PublishCalls", CountingCalls)
    return counts


def relays_on(broker: BrokerServer, queue: QueueName = QUEUE) -> list[tuple[str, Relay]]:
    """What lies on a queue, in order; nothing is taken out."""
    engine = broker.engine
    client, _ = engine.connect("default", "default", "", "looker")
    browser, _ = engine.bind(client, queue, browser=True)
    effects = engine.open_window(browser.flow, DeliveryId(0), engine.queue_depth("default", queue))
    engine.disconnect(client)
    found = []
    for effect in one_by_one(effects):
        assert isinstance(effect, Deliver)
        assert isinstance(effect.message.content, Relay)
        found.append((effect.message.topic, effect.message.content))
    return found


def numbers_on(broker: BrokerServer, queue: QueueName = QUEUE) -> list[int]:
    return [int(message_of(topic, relay).payload) for topic, relay in relays_on(broker, queue)]


def numbered(number: int, topic: str = "orders/new") -> Message:
    return Message(topic, str(number).encode(), {"JMSXGroupID": f"key-{number % 7}"}, f"id-{number}")


async def publish_by_tasks(
    transport: SolaceTransport, count: int, on_confirmed: Callable[[int], object], tasks: int = 64
) -> None:
    """As many tasks, each awaiting its message before it takes the next number."""
    numbers: Iterator[int] = iter(range(count))

    async def publish_on() -> None:
        for number in numbers:
            await transport.send(numbered(number))
            on_confirmed(number)

    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        for _ in range(tasks):
            group.create_task(publish_on())


async def test_both_paths_put_the_same_on_the_wire(broker: BrokerServer, make_transport: MakeTransport) -> None:
    messages = [
        Message("orders/ä", bytes(range(256)), {"JMSXGroupID": "k", "lbg_key_sequence": 1 << 40}, "id-ß", 17),
        Message("orders/1", b""),
        Message("orders/2", b"\x1c\x04a\0", {"yes": True, "no": False, "large": 2**64 - 1, "small": -(2**63)}),
        Message("orders/3", b"x", {"ratio": 0.1, "nothing": None, "raw": b"\0a", "empty": "", "ü": "ö"}, ""),
        Message("orders/4", b"y" * 70_000, {"lbg_publisher": "p"}, sent_at_ms=0),
    ]
    for path in (ClientPathChoice.FAST, ClientPathChoice.PUBLIC):
        address = broker.url
        transport = SolaceTransport(SolaceSettings((address,), client_name=path.value, client_path=path))
        await transport.open()
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*map(transport.send, messages))
        await transport.close()
    found = relays_on(broker)
    assert [message_of(topic, relay) for topic, relay in found] == 2 * messages
    frames = [decode_frame(relay.direct_prefix() + relay.carried + relay.body) for _, relay in found]
    # The broker numbers its publishers.
    alike = [
        replace(frame, parameters=tuple(each for each in frame.parameters if each.kind != ParameterKind.PUBLISHER_ID))
        for frame in frames
    ]
    assert alike[: len(messages)] == alike[len(messages) :]


async def test_a_connection_that_is_cut_again_and_again_loses_repeats_and_reorders_nothing(
    broker: BrokerServer, make_transport: MakeTransport
) -> None:
    transport = make_transport("first")
    await transport.open()
    count, confirmed, cuts = 6_000, list[int](), 0

    def look_and_cut(number: int) -> None:
        nonlocal cuts
        confirmed.append(number)
        # What is confirmed is there already, as they come in order.
        assert broker.engine.queue_depth("default", QUEUE) > number
        if cuts < 5 and len(confirmed) > (cuts + 1) * 1_000:
            cuts += broker.faults.drop("first")

    await publish_by_tasks(transport, count, look_and_cut)
    assert cuts == 5
    assert sorted(confirmed) == list(range(count))
    assert numbers_on(broker) == list(range(count))


async def test_what_is_sent_in_an_outage_beyond_the_window_arrives_once_and_in_order(
    broker: BrokerServer, make_transport: MakeTransport
) -> None:
    transport = make_transport("first")
    await transport.open()
    futures = [transport.send(numbered(number)) for number in range(500)]
    await broker.stop()
    futures += [transport.send(numbered(number)) for number in range(500, 1_500)]
    for number in range(1_500, 2_000):
        futures.append(transport.send(numbered(number)))
        if not number % 50:
            await asyncio.sleep(0.001)
    assert not all(future.done() for future in futures)
    await broker.start()
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*futures)
    assert numbers_on(broker) == list(range(2_000))


async def test_a_library_that_would_block_is_waited_for(
    broker: BrokerServer, make_transport: MakeTransport, counts: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    # More than the library keeps, which therefore says so.
    monkeypatch.setattr(fast_publish, "WINDOW", 2_000)
    transport = make_transport("first")
    await transport.open()
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*(transport.send(numbered(number)) for number in range(5_000)))
    assert set(counts.codes) == {SOLCLIENT_OK, WOULD_BLOCK}
    assert numbers_on(broker) == list(range(5_000))


async def test_the_window_is_not_more_than_the_library_keeps(make_transport: MakeTransport, counts: Counts) -> None:
    transport = make_transport("first")
    await transport.open()
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*(transport.send(numbered(number)) for number in range(5_000)))
    assert set(counts.codes) == {SOLCLIENT_OK}
    assert sum(1 for _ in counts.codes) < 5_000 / 10


async def test_messages_larger_than_any_buffer_arrive(broker: BrokerServer, make_transport: MakeTransport) -> None:
    transport = make_transport("first")
    await transport.open()
    payloads = [bytes((number,)) * 1_000_000 for number in range(40)]
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*(transport.send(Message("orders/new", payload)) for payload in payloads))
    assert [relay.body for _, relay in relays_on(broker)] == payloads


@pytest.mark.parametrize("reason", ["quota", "ingress", "size"])
async def test_refusals_reach_exactly_their_own_futures(
    broker: BrokerServer, make_transport: MakeTransport, reason: str
) -> None:
    refusing = {
        "quota": QueueSettings(quota_bytes=0),
        "ingress": QueueSettings(ingress_enabled=False, reject_on_discard=RejectOnDiscard.ALWAYS),
        "size": QueueSettings(max_message_bytes=0),
    }[reason]
    broker.create_queue("refusing", ["refused"], settings=refusing)
    transport = make_transport("first")
    await transport.open()
    futures = [transport.send(numbered(n, "orders/new" if n % 3 else "refused")) for n in range(900)]
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.wait(futures)
    for number, future in enumerate(futures):
        error = future.exception()
        assert (error is None) == bool(number % 3), number
        assert error is None or isinstance(error, PublishRefused)
        assert error is None or error.topic == "refused"
    assert numbers_on(broker) == [number for number in range(900) if number % 3]
    assert broker.engine.queue_depth("default", QueueName("refusing")) == 0


async def test_refusals_and_cuts_together_leave_no_future_and_no_message_behind(
    broker: BrokerServer, make_transport: MakeTransport
) -> None:
    broker.create_queue("small", ["small"], settings=QueueSettings(max_message_bytes=0))
    transport = make_transport("first")
    await transport.open()
    futures = []
    for number in range(3_000):
        futures.append(transport.send(numbered(number, "small" if number % 10 == 0 else "orders/new")))
        if number % 500 == 250:
            await asyncio.sleep(0.01)
            broker.faults.drop("first")
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.wait(futures)
    for number, future in enumerate(futures):
        assert isinstance(future.exception(), PublishRefused) == (number % 10 == 0), number
    assert numbers_on(broker) == [number for number in range(3_000) if number % 10]


async def test_closing_with_unconfirmed_messages_fails_them_and_frees_everything(
    broker: BrokerServer, make_transport: MakeTransport, counts: Counts
) -> None:
    transport = make_transport("first")
    await transport.open()
    futures = [transport.send(numbered(number)) for number in range(1_000)]
    # Some are with the library, some here, some answers on their way.
    await futures[100]
    await transport.close()
    assert all(future.done() for future in futures)
    failed = [number for number, future in enumerate(futures) if future.exception() is not None]
    assert {type(futures[number].exception()) for number in failed} == {PublishFailed}
    # Whatever was confirmed is there; what is there is the beginning of what was sent.
    there = numbers_on(broker)
    assert there == list(range(len(there)))
    assert set(range(1_000)) - set(failed) <= set(there)
    assert counts.allocated == counts.freed > 0


async def test_a_session_that_ended_for_good_fails_what_was_under_way_and_the_next_one_publishes(
    broker: BrokerServer, make_transport: MakeTransport, counts: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = SolaceSettings.properties
    no_reconnects = {"solace.messaging.transport.reconnection-attempts": 0}
    monkeypatch.setattr(SolaceSettings, "properties", lambda *its: properties(*its) | no_reconnects)
    transport = make_transport("first")
    await transport.open()
    await asyncio.wait_for(transport.send(numbered(0)), PATIENCE_S)
    # Before the session can have ended: otherwise they wait for the next one.
    broker.faults.stall("first")
    futures = [transport.send(numbered(number)) for number in range(1, 1_000)]
    await broker.stop()
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.wait(futures)
    assert all(isinstance(future.exception(), PublishFailed) for future in futures)
    # Between two sessions, these wait.
    later = [transport.send(numbered(number)) for number in range(1_000, 1_600)]
    broker.faults.clear()
    await broker.start()
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*later)
    assert numbers_on(broker) == [0, *range(1_000, 1_600)]
    await transport.close()
    assert counts.allocated == counts.freed == OF_THE_CHECK + 2 * fast_publish.BATCH


async def test_receiving_and_publishing_of_one_session_do_not_wait_for_each_other(
    broker: BrokerServer, make_transport: MakeTransport
) -> None:
    """What comes in is published on, by the same loop and the same network thread of the client."""
    broker.create_queue("onward", ["onward"])
    transport = make_transport("first")
    await transport.open()
    forwarded: list[asyncio.Future[None]] = []

    def forward(event: FlowEvent) -> None:
        if isinstance(event, MessageReceived):
            message = event.delivery.message
            forwarded.append(transport.send(Message("onward", message.payload, message.properties)))

    flow = await transport.bind(QUEUE, Epoch(1), forward)
    flow.start_intake()
    count = 3_000
    await publish_by_tasks(transport, count, lambda _: None)
    async with asyncio.timeout(PATIENCE_S):
        while len(forwarded) < count:  # noqa: ASYNC110 - a sink has no event to wait for
            await asyncio.sleep(0.005)
        await asyncio.gather(*forwarded)
    assert numbers_on(broker, QueueName("onward")) == list(range(count))


async def test_memory_does_not_grow_with_what_is_published(
    broker: BrokerServer, make_transport: MakeTransport, counts: Counts
) -> None:
    transport = make_transport("first")
    await transport.open()
    held: list[int] = []
    for _ in range(4):
        await publish_by_tasks(transport, 4_000, lambda _: None)
        broker.carry_out(broker.engine.administration.delete_messages("default", QUEUE))
        gc.collect()
        held.append(memory_bytes())
    # A leak is in every round; what other tests of this process have left may move memory in one of them.
    assert median(later - earlier for earlier, later in pairwise(held)) < 350 * 4_000
    await transport.close()
    assert counts.allocated == counts.freed == OF_THE_CHECK + fast_publish.BATCH


PUBLISHING = """
async def work(transport):
    futures = [transport.send(Message("orders/new", b"x" * 256, {"JMSXGroupID": "k"})) for _ in range(5_000)]
    await asyncio.wait_for(futures[1_000], 100)
    assert not futures[-1].done()
"""


@pytest.mark.parametrize("how", WAYS)
async def test_the_interpreter_ends_in_good_order_with_unconfirmed_messages(broker: BrokerServer, how: str) -> None:
    await check_leaving(PUBLISHING, broker, how)
