"""The fast path on the client itself: what it takes it gives back, whatever ends first; settlements go in ranges."""

import asyncio
import errno
import gc
import json
import os
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable
from ctypes import CFUNCTYPE, c_int, c_void_p, py_object
from functools import cache
from itertools import pairwise
from statistics import median
from typing import Any

import pytest

from lbg_runtime.broker.engine.effects import Published
from lbg_runtime.broker.server.server import BrokerServer
from lbg_runtime.cli.bench.arms.usage import memory_bytes
from lbg_runtime.config.settings import ClientPathChoice
from lbg_runtime.core.flow.events import FlowActive, FlowEvent, FlowInactive, MessageReceived
from lbg_runtime.model.errors import BindFailed
from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.model.message import Message
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.smf.contents import relay_of
from lbg_runtime.smf.message import Relay
from lbg_runtime.testing.flow_recorder import FlowRecorder
from lbg_runtime.transport.base import BoundFlow
from lbg_runtime.transport.solace import paths
from lbg_runtime.transport.solace.fast import compiled
from lbg_runtime.transport.solace.fast.path import PATIENCE_S as LOOP_PATIENCE_S
from lbg_runtime.transport.solace.inbox import FULL
from lbg_runtime.transport.solace.settings import SolaceSettings
from lbg_runtime.transport.solace.transport import SolaceTransport
from tests.transport.solace.conftest import choose_parts
from tests.transport.solace.fast.leaver import WAYS, check_leaving

pytestmark = pytest.mark.real_time

MakeTransport = Callable[..., SolaceTransport]
QUEUE = QueueName("orders/0")
WINDOW = 255


@pytest.fixture(params=["compiled", "interpreted"])
def client_path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ClientPathChoice:
    choose_parts(request.param, monkeypatch)
    return ClientPathChoice.FAST


MESSAGE_CALLBACK = CFUNCTYPE(c_int, c_void_p, c_void_p, py_object)


class Counts:
    """Native messages that were taken and freed, by all paths of a transport."""

    def __init__(self) -> None:
        self.taken = 0
        self.freed = 0
        self.is_broken = False
        """The first message of a flow makes its callback fail."""


@pytest.fixture
def counts(client_path: ClientPathChoice, monkeypatch: pytest.MonkeyPatch) -> Counts:
    counts = Counts()

    class CountingCalls(paths.FastCalls):
        def __init__(self) -> None:
            super().__init__()
            free = self.free

            def count(reference: int) -> int:
                counts.freed += 1
                return int(free(c_void_p(reference)))

            def pin() -> int:
                if counts.is_broken:
                    raise MemoryError("for a test")
                state: int = keep_state()
                return state

            keep_state = self.pin
            self.free, self.pin = CFUNCTYPE(c_int, c_void_p)(count), pin

    class CountingPath(paths.FastPath):
        def _callback(self, receiver: Any) -> Any:
            found = super()._callback(receiver)
            take = MESSAGE_CALLBACK(found) if isinstance(found, int) else found

            def on_message(*call: Any) -> int:
                if counts.is_broken and isinstance(found, int):
                    # Before the loop can have the message.
                    self.broken(MemoryError("for a test"))
                answer: int = take(*call)
                counts.taken += answer
                return answer

            return on_message

    monkeypatch.setattr(paths, "FastCalls", CountingCalls)
    monkeypatch.setattr(paths, "FastPath", CountingPath)
    return counts


@cache
def numbered(number: int) -> Relay:
    return relay_of(Message("orders/new", str(number).encode(), {"JMSXGroupID": "k", "lbg_key_sequence": number}))


def fill(broker: BrokerServer, count: int, first: int = 0) -> None:
    """Put messages on the queue without anybody publishing them."""
    client, _ = broker.engine.connect("default", "default", "", "filler")
    for relay in map(numbered, range(first, first + count)):
        broker.carry_out(broker.engine.publish_direct(client, Published("orders/new", relay, relay.size_bytes)))
    broker.engine.disconnect(client)


class SettlingSink:
    """A flow sink that settles at once, as a handler that does nothing."""

    def __init__(self, by: Callable[[Message], int] = lambda message: int(message.payload)) -> None:
        self.flow: BoundFlow | None = None
        self._number_of = by
        self.numbers: list[int] = []
        self.expected = 0
        self.done = asyncio.Event()

    def __call__(self, event: FlowEvent) -> None:
        if isinstance(event, MessageReceived):
            self.numbers.append(self._number_of(event.delivery.message))
            assert self.flow is not None
            self.flow.settle(event.delivery.delivery_id, Outcome.ACCEPTED)
            if len(self.numbers) == self.expected:
                self.done.set()

    async def until(self, count: int, within_s: float = 30.0) -> None:
        self.expected = count
        if len(self.numbers) < count:
            self.done.clear()
            async with asyncio.timeout(within_s):
                await self.done.wait()


async def bind_settling(transport: SolaceTransport, epoch: int = 1) -> SettlingSink:
    sink = SettlingSink()
    sink.flow = await transport.bind(QUEUE, Epoch(epoch), sink)
    sink.flow.start_intake()
    return sink


async def test_every_message_that_was_taken_is_freed_and_memory_does_not_grow(
    broker: BrokerServer, make_transport: MakeTransport, counts: Counts
) -> None:
    transport = make_transport("first")
    await transport.open()
    total = 0
    held: list[int] = []
    for epoch in range(1, 6):
        fill(broker, 4_000)
        total += 4_000
        sink = await bind_settling(transport, epoch)
        await sink.until(4_000)
        assert sink.numbers == list(range(4_000))
        assert sink.flow is not None
        await sink.flow.unbind()
        assert broker.engine.queue_depth("default", QUEUE) == 0
        gc.collect()
        held.append(memory_bytes())
    assert (counts.taken, counts.freed) == (total, total)
    # A leak is in every round; what other tests of this process have left may move memory in one of them. Of native
    # messages alone it would be 500 bytes a message.
    assert median(later - earlier for earlier, later in pairwise(held)) < 390 * 4_000


async def test_settlements_go_in_ranges(
    broker: BrokerServer, make_transport: MakeTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = 0
    settle = broker.engine.settle

    def count(*call: Any) -> Any:
        nonlocal frames
        frames += 1
        return settle(*call)

    monkeypatch.setattr(broker.engine, "settle", count)
    transport = make_transport("first")
    await transport.open()
    fill(broker, 4_000)
    sink = await bind_settling(transport)
    await sink.until(4_000)
    assert sink.flow is not None
    await sink.flow.unbind()
    assert broker.engine.queue_depth("default", QUEUE) == 0
    assert 0 < frames < 200


async def test_messages_that_nobody_took_from_the_inbox_are_freed_when_the_transport_is_closed(
    broker: BrokerServer, make_transport: MakeTransport, counts: Counts
) -> None:
    transport = make_transport("first")
    await transport.open()
    fill(broker, 2_000)
    recorder = FlowRecorder()
    (await transport.bind(QUEUE, Epoch(1), recorder)).start_intake()
    await recorder.until_received(1)
    await transport.close()
    assert 0 < counts.taken == counts.freed


async def test_messages_of_a_flow_that_was_given_up_in_full_flood_are_freed_and_come_again(
    broker: BrokerServer, make_transport: MakeTransport, counts: Counts
) -> None:
    transport = make_transport("first")
    await transport.open()
    fill(broker, 3_000)
    for epoch in range(1, 6):
        recorder = FlowRecorder()
        flow = await transport.bind(QUEUE, Epoch(epoch), recorder)
        flow.start_intake()
        await recorder.until_received(1)
        await flow.unbind()
    sink = await bind_settling(transport, 9)
    await sink.until(3_000)
    assert sink.numbers == list(range(3_000))
    assert sink.flow is not None
    # The last message may be freed before the callback that took it is back, and so before it counts as taken.
    await sink.flow.unbind()
    assert counts.taken == counts.freed


async def test_a_callback_that_fails_ends_the_flow_and_loses_nothing(
    broker: BrokerServer, make_transport: MakeTransport, counts: Counts
) -> None:
    transport = make_transport("first")
    await transport.open()
    fill(broker, 400)
    told = FlowRecorder()
    counts.is_broken = True
    flow = await transport.bind(QUEUE, Epoch(1), told)
    flow.start_intake()
    assert await told.until_down() == "a message could not be taken: MemoryError('for a test')"
    await flow.unbind()
    assert told.deliveries == []
    counts.is_broken = False
    sink = await bind_settling(transport, 2)
    await sink.until(400)
    assert sink.numbers == list(range(400))
    assert sink.flow is not None
    await sink.flow.unbind()
    gc.collect()
    assert counts.taken == counts.freed >= 400


async def test_a_bind_for_which_no_file_can_be_opened_fails_and_is_no_end(
    broker: BrokerServer, make_transport: MakeTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> tuple[int, int]:
        raise OSError(errno.EMFILE, "Too many open files")

    transport = make_transport("first")
    await transport.open()
    fill(broker, 1)
    if compiled.INTAKE is not None:
        with monkeypatch.context() as poor:
            poor.setattr(os, "pipe", fail)
            with pytest.raises(BindFailed, match=r"no pipe for its messages: .*Too many open files") as refused:
                await transport.bind(QUEUE, Epoch(1), FlowRecorder())
        assert not refused.value.permanent
    await (await bind_settling(transport, 2)).until(1)


async def test_handlers_that_block_the_loop_fill_no_memory_and_cost_nothing_but_time(
    counts: Counts,
) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "lbg_runtime.cli.bench.arms.filled_broker",
        "5000",
        "7",
        stdin=PIPE,
        stdout=PIPE,
        stderr=DEVNULL,
    )
    assert process.stdout is not None
    transport: SolaceTransport | None = None
    try:
        host = json.loads(await process.stdout.readline())["host"]
        transport = SolaceTransport(SolaceSettings(hosts=(host,), client_name="blocked"))
        await transport.open()
        sink = SettlingSink(by=lambda message: int(message.message_id or ""))
        sink.flow = await transport.bind(QueueName("bench/0"), Epoch(1), sink)
        sink.flow.start_intake()
        await sink.until(1)
        taken: list[int] = []

        def block() -> None:
            time.sleep(3 * LOOP_PATIENCE_S)
            taken.append(counts.taken)

        # The next one blocks it as soon as it moves.
        block()
        asyncio.get_running_loop().call_soon(block)
        await asyncio.sleep(0)
        assert taken[0] < FULL + 2 * WINDOW
        # In between it moved for one turn, and had another window come; in Python that takes long enough for two.
        assert taken[1] - taken[0] < 2 * (FULL + 2 * WINDOW)
        await sink.until(5_000)
        assert sink.numbers == list(range(5_000))
    finally:
        if transport is not None:
            await transport.close()
        process.kill()
        await process.communicate()
    assert counts.taken == counts.freed == 5_000


async def test_slow_handlers_get_more_than_the_window_of_the_path(
    broker: BrokerServer, make_transport: MakeTransport
) -> None:
    transport = make_transport("first")
    await transport.open()
    fill(broker, 3_000)
    recorder = FlowRecorder()
    (await transport.bind(QUEUE, Epoch(1), recorder)).start_intake()
    await recorder.until_received(3_000)
    assert recorder.payloads == [str(number).encode() for number in range(3_000)]


async def test_settling_does_not_open_an_intake_that_was_stopped(
    broker: BrokerServer, make_transport: MakeTransport
) -> None:
    broker.create_queue("other", ["other"])
    transport = make_transport("first")
    await transport.open()
    recorder, other = FlowRecorder(), FlowRecorder()
    (await transport.bind(QueueName("other"), Epoch(1), other)).start_intake()
    fill(broker, 400)
    flow = await transport.bind(QUEUE, Epoch(1), recorder)
    flow.start_intake()
    await recorder.until_received(400)
    flow.stop_intake()
    # The markers come over the same connection behind all that the broker sent before.
    await transport.send(Message("other", b"marker"))
    await other.until_received(1)
    for delivery in recorder.deliveries:
        flow.settle(delivery.delivery_id, Outcome.ACCEPTED)
    flow.flush()
    fill(broker, 400, 400)
    await transport.send(Message("other", b"marker"))
    await other.until_received(2)
    assert len(recorder.deliveries) == 400
    flow.start_intake()
    await recorder.until_received(800)


async def test_messages_and_events_of_a_flow_keep_their_order(
    broker: BrokerServer, make_transport: MakeTransport
) -> None:
    transport = make_transport("first")
    await transport.open()
    fill(broker, 50)
    recorder = FlowRecorder()
    (await transport.bind(QUEUE, Epoch(1), recorder)).start_intake()
    await recorder.until_received(50)
    assert broker.faults.drop("first") == 1
    await recorder.until_active(times=2)
    fill(broker, 50, 50)
    await recorder.until_received(100)
    kinds = [type(event) for event in recorder.events]
    assert kinds == [FlowActive, *[MessageReceived] * 50, FlowInactive, FlowActive, *[MessageReceived] * 50]


FLOWING = """
async def work(transport):
    flowing = asyncio.Event()
    def sink(event):
        if isinstance(event, MessageReceived):
            flowing.set()
    (await transport.bind("orders/0", 1, sink)).start_intake()
    await asyncio.wait_for(flowing.wait(), 100)
"""


@pytest.mark.parametrize("how", WAYS)
async def test_the_interpreter_ends_in_good_order_with_flows_that_flow(broker: BrokerServer, how: str) -> None:
    fill(broker, 10_000)
    await check_leaving(FLOWING, broker, how)
