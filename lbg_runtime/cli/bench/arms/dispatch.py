"""The arms of `lbg bench dispatch`, in the process of the bench."""

import asyncio
import gc
import random
from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter

from lbg_runtime.cli.bench.processes import BenchFailed
from lbg_runtime.config.settings import DispatchSettings, FailureSettings
from lbg_runtime.core.flow.events import FlowActive, MessageReceived
from lbg_runtime.core.flow.machine import FlowMachine
from lbg_runtime.core.flow.rebind import RebindSettings
from lbg_runtime.core.group.control_plane import ProbeAsked
from lbg_runtime.core.lanes import KeyLanes, Lane
from lbg_runtime.core.restripe.gate import StripeGate
from lbg_runtime.core.restripe.news import StripesNews
from lbg_runtime.core.roles import Place
from lbg_runtime.model.errors import BindFailed
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.ids import DeliveryId, Epoch, GroupName, QueueName
from lbg_runtime.model.keys import PARTITION_KEY
from lbg_runtime.model.message import Delivery, Message
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.runtime.dispatch.dispatcher import Dispatcher
from lbg_runtime.runtime.flow.runner import FlowRunner
from lbg_runtime.runtime.handlers.hooks import QueueHooks
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.runtime.journal import MemberJournal
from lbg_runtime.runtime.runners.handling import Handling
from lbg_runtime.runtime.runners.pool import RunnerPool
from lbg_runtime.runtime.turns import Turns
from lbg_runtime.transport.base import FlowSink

BATCH = 256
"""Deliveries that a transport hands over at once."""
MAX_IN_FLIGHT = 1_024
SHAPE = GroupShape(GroupName("bench"), "bench", 100, 1)
QUEUE = SHAPE.queue_name(0)

RUNTIME, LANES, BARE_LOOP, TASK = "runtime", "lanes and runners", "bare loop", "task per message"
GOALS = {BARE_LOOP: 0.3, TASK: 5.0}
Arm = Callable[[Sequence[Message]], Awaitable[float]]


async def repeat(messages: Sequence[Message], rounds: int) -> None:
    for _ in range(rounds):
        await _runtime(messages)


async def measure(message_count: int, rounds: int, key_count: int) -> dict[str, list[float]]:
    """Messages a second in each round, by arm."""
    messages = made_messages(message_count, key_count)
    arms: dict[str, Arm] = {RUNTIME: _runtime, LANES: _lanes, BARE_LOOP: _bare_loop, TASK: _task_per_message}
    rates: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(rounds):
        for name, arm in arms.items():
            gc.collect()
            rates[name].append(message_count / await arm(messages))
    return rates


def made_messages(count: int, key_count: int) -> list[Message]:
    """Messages as a hashed publisher makes them, keys in turn."""
    return [
        Message(
            f"bench/{number % key_count % 100}/orders/new",
            b"x" * 256,
            {"JMSXGroupID": f"key-{number % key_count}", "lbg_key_sequence": number // key_count + 1},
        )
        for number in range(count)
    ]


async def _handle(_: Message) -> None:
    """What every arm awaits."""


async def _bare_loop(messages: Sequence[Message]) -> float:
    began = perf_counter()
    for message in messages:
        await _handle(message)
    return perf_counter() - began


async def _lanes(messages: Sequence[Message]) -> float:
    """Only what keeps keys in order, nothing for a flow and its failures: no machine, no deadline, no settling."""
    lanes: KeyLanes[Delivery] = KeyLanes()
    ended: list[DeliveryId] = []
    progress = asyncio.Event()
    wanted = 0

    async def take_turn(lane: Lane[Delivery], _: object) -> None:
        delivery = lane.head
        await _handle(delivery.message)
        lanes.finish(lane)
        ended.append(delivery.delivery_id)
        if len(ended) == wanted:
            progress.set()

    pool = RunnerPool(lanes, DispatchSettings().runners, take_turn)  # type: ignore[arg-type]  # it does not look inside
    running = asyncio.create_task(pool.run())
    await asyncio.sleep(0)
    deliveries = [_received(number, message).delivery for number, message in enumerate(messages, 1)]
    began = perf_counter()
    for start in range(0, len(deliveries), BATCH):
        for delivery in deliveries[start : start + BATCH]:
            lanes.offer(str(delivery.message.properties["JMSXGroupID"]), delivery)
        wanted = max(0, start + 2 * BATCH - MAX_IN_FLIGHT) if start + BATCH < len(deliveries) else len(deliveries)
        pool.wake()
        while len(ended) < wanted:
            progress.clear()
            await progress.wait()
    taken = perf_counter() - began
    running.cancel()
    await asyncio.wait([running])
    if sorted(ended) != list(range(1, len(deliveries) + 1)):
        raise BenchFailed(LANES, f"{len(ended)} of {len(deliveries)} messages were handled")
    return taken


async def _task_per_message(messages: Sequence[Message]) -> float:
    began = perf_counter()
    for start in range(0, len(messages), BATCH):
        await asyncio.gather(*(asyncio.create_task(_handle(message)) for message in messages[start : start + BATCH]))
    return perf_counter() - began


class _Flow:
    """A flow handle that counts, and wakes its feeder when half of what is in flight has been settled."""

    def __init__(self) -> None:
        self.settled = 0
        self.wanted = 0
        self.is_open = False
        self.progress = asyncio.Event()

    def settle(self, delivery_id: DeliveryId, outcome: Outcome) -> None:  # noqa: ARG002
        self.settled += 1
        if self.settled == self.wanted:
            self.progress.set()

    def flush(self) -> None: ...

    def stop_intake(self) -> None:
        self.is_open = False

    def start_intake(self) -> None:
        self.is_open = True
        self.progress.set()

    async def unbind(self) -> bool:
        return True


class _Transport:
    def __init__(self) -> None:
        self.flow = _Flow()
        self.sink: FlowSink | None = None

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def bind(self, queue: QueueName, epoch: Epoch, sink: FlowSink) -> _Flow:  # noqa: ARG002
        self.sink = sink
        sink(FlowActive(epoch))
        return self.flow

    async def provision(self, queue: QueueName, subscriptions: Sequence[str]) -> None: ...


class _Owner:
    """Wants to know nothing of its flow."""

    def flow_changed(self, runner: FlowRunner) -> None: ...

    def settled(self, runner: FlowRunner, handling: Handling) -> None: ...

    def bind_refused(self, runner: FlowRunner, refusal: BindFailed) -> None: ...

    def stripes_told(self, runner: FlowRunner, news: StripesNews) -> None: ...

    def probe_asked(self, probe: ProbeAsked) -> None: ...


async def _runtime(messages: Sequence[Message]) -> float:
    handlers = Handlers()

    @handlers.handler("orders/>")
    async def handle(message: Message) -> None:
        await _handle(message)

    chance = random.Random(1)
    dispatcher = Dispatcher(handlers, SHAPE, PARTITION_KEY, DispatchSettings(), FailureSettings(), chance)
    rebind = RebindSettings(
        interval_ms=60_000,
        jitter=1.0,
        drain_timeout_ms=10_000,
        bind_backoff_min_ms=100,
        bind_backoff_max_ms=1_000,
        quiet_gap_ms=0,
        rank_delay_ms=1,
    )
    transport = _Transport()
    machine = FlowMachine(
        QUEUE, Place(0, gives_way=False), rebind, MAX_IN_FLIGHT, chance, 0, StripeGate(0, SHAPE, "control/restripe/")
    )
    journal = MemberJournal(None, 1)
    runner = FlowRunner(
        0,
        machine,
        transport,
        dispatcher,
        journal,
        Turns(journal.flush),
        _Owner(),
        QueueHooks((), QUEUE, timeout_ms=1_000),
    )
    flow = transport.flow
    async with asyncio.TaskGroup() as group:
        handling = group.create_task(dispatcher.run())
        running = group.create_task(runner.run())
        await flow.progress.wait()
        sink = transport.sink
        if sink is None:
            raise BenchFailed(RUNTIME, "the flow was not bound")
        # Turning a message into a delivery is the transport's work.
        arrivals = [_received(number, message) for number, message in enumerate(messages, 1)]
        began = perf_counter()
        for start in range(0, len(messages), BATCH):
            batch = arrivals[start : start + BATCH]
            for arrival in batch:
                sink(arrival)
            flow.wanted = start + len(batch)
            if start >= MAX_IN_FLIGHT // 2:
                flow.wanted -= MAX_IN_FLIGHT // 2
            while flow.settled < flow.wanted:
                flow.progress.clear()
                await flow.progress.wait()
        flow.wanted = len(messages)
        while flow.settled < flow.wanted:
            flow.progress.clear()
            await flow.progress.wait()
        taken = perf_counter() - began
        runner.stop()
        await running
        handling.cancel()
    if runner.handled != len(messages):
        raise BenchFailed(RUNTIME, f"{runner.handled} of {len(messages)} messages were handled")
    return taken


def _received(number: int, message: Message) -> MessageReceived:
    return MessageReceived(Delivery(QUEUE, Epoch(1), DeliveryId(number), message, False, 0))
