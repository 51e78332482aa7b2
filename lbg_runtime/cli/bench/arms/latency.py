"""The processes of `latency`: one that publishes a paced load to several groups, one for each group that takes it.

A receiver binds to a queue with one message on it, prints a first line when it has got that one, and at the end how
long the others were on their way. Each of those carries its number and the time just before it was published, on the
monotonic clock, which all processes of a machine share. The first of them are a warm-up and not in the figures.
"""

import asyncio
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import uvloop

from lbg_runtime.cli.bench.arms.receive import PATIENCE_S, WrongCourse, check_course, member_of, settings_for
from lbg_runtime.cli.bench.arms.shapes import TOPIC, shape_of
from lbg_runtime.cli.lines import say
from lbg_runtime.cli.log import configure_log
from lbg_runtime.cli.quantile import quantile
from lbg_runtime.config.settings import ClientPathChoice
from lbg_runtime.core.flow.events import FlowEvent, MessageReceived
from lbg_runtime.model.hashing import HashFunction
from lbg_runtime.model.ids import Epoch
from lbg_runtime.model.message import Message
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.publisher.hashed import HashedPublisher
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.transport.solace.settings import SolaceSettings
from lbg_runtime.transport.solace.transport import SolaceTransport

ARMS = ("callback", "transport", "member")
"""Each has a group with its name."""
SLICE = 50
"""Messages in a row to one group, before it is the turn of the next."""
WARM_UP = 12 * SLICE
"""Messages to each group before those that count."""
KEYS = 100
QUANTILES = {"p50": 0.5, "p99": 0.99}
_REST = b" " + b"x" * 220


def turns(count: int) -> Iterator[str]:
    """The group of each message: in slices, each time beginning with the next group."""
    for first in range((WARM_UP + count) // SLICE):
        for arm in range(len(ARMS)):
            yield from SLICE * [ARMS[(first + arm) % len(ARMS)]]


class Latencies:
    """How long each message was on its way. Called by one thread."""

    def __init__(self, count: int) -> None:
        self._wanted = WARM_UP + count
        self._numbers: list[str] = []
        self._taken_ns: list[int] = []
        self._is_begun = False

    def take(self, now_ns: int, payload: bytes) -> bool:
        """Note a message that came at this time; return whether it is the last one."""
        if not self._is_begun:
            self._is_begun = True
            say({"is_ready": True})
            return False
        number, sent_ns, _ = payload.split(b" ", 2)
        self._numbers.append(number.decode())
        self._taken_ns.append(now_ns - int(sent_ns))
        return len(self._numbers) == self._wanted

    def tell(self) -> None:
        """Print the figures, in microseconds; raise `WrongCourse` unless all came once and in the order of each key."""
        check_course(self._numbers, self._wanted, KEYS)
        say(quantiles(self._taken_ns[WARM_UP:]))


def take_by_callback(host: str, latencies: Latencies) -> None:
    """The client's public receiver and nothing else; the callback reads what it needs and acknowledges."""
    from lbg_runtime.transport.solace.library import MessageHandler, MessagingService, Queue

    done = threading.Event()
    service = MessagingService.builder().from_properties(_settings("callback", host).properties()).build()
    service.connect()
    builder = service.create_persistent_message_receiver_builder().with_message_client_acknowledgement()
    receiver = builder.build(Queue.durable_exclusive_queue(shape_of("callback").queue_name(0)))

    class Taker(MessageHandler):  # type: ignore[misc]  # the client's classes have no types
        def on_message(self, message: Any) -> None:
            now_ns = time.monotonic_ns()
            is_last = latencies.take(now_ns, bytes(message.get_payload_as_bytes()))
            receiver.ack(message)
            if is_last:
                done.set()

    receiver.start()
    receiver.receive_async(Taker())
    if not done.wait(PATIENCE_S):
        raise WrongCourse("not every message came")
    receiver.terminate(grace_period=0)
    service.disconnect()


async def take_by_transport(host: str, latencies: Latencies) -> None:
    """The transport on the fast path, up to the thread of the event loop, without lanes and runners."""
    done = asyncio.Event()

    def take(event: FlowEvent) -> None:
        now_ns = time.monotonic_ns()
        if isinstance(event, MessageReceived):
            is_last = latencies.take(now_ns, event.delivery.message.payload)
            flow.settle(event.delivery.delivery_id, Outcome.ACCEPTED)
            if is_last:
                done.set()

    transport = SolaceTransport(_settings("transport", host))
    await transport.open()
    flow = await transport.bind(shape_of("transport").queue_name(0), Epoch(1), take)
    flow.start_intake()
    async with asyncio.timeout(PATIENCE_S):
        await done.wait()
    await flow.unbind()
    await transport.close()


async def take_as_member(host: str, latencies: Latencies) -> None:
    """The whole runtime on the fast path; the time is taken when the handler starts."""
    handlers = Handlers()

    @handlers.handler(TOPIC)
    async def handle(message: Message) -> None:
        now_ns = time.monotonic_ns()
        if latencies.take(now_ns, message.payload):
            app.stop()

    app = member_of(shape_of("member"), handlers, _settings("member", host))
    async with asyncio.timeout(PATIENCE_S):
        await app.run()


async def publish(host: str, count: int, rate_per_s: float) -> None:
    """Publish to all groups in turns at an even rate, each message with a call of its own whose confirm is awaited."""
    transport = SolaceTransport(_settings("publisher", host))
    await transport.open()
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        publishers = {
            arm: await stack.enter_async_context(
                HashedPublisher(transport, shape_of(arm), HashFunction.CRC32, publisher_id=f"bench-{arm}")
            )
            for arm in ARMS
        }
        numbers: Counter[str] = Counter()

        async def publish_one(arm: str) -> None:
            number, numbers[arm] = numbers[arm], numbers[arm] + 1
            payload = b"%d %d%b" % (number, time.monotonic_ns(), _REST)
            await publishers[arm].publish(TOPIC, payload, key=f"key-{number % KEYS}")

        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:

            def begin(arm: str) -> None:
                tasks.create_task(publish_one(arm))

            def keep_pace() -> None:
                # In a thread of its own, as the ticks of the loop's clock are as long as the interval.
                start_s = time.monotonic()
                for number, arm in enumerate(turns(count)):
                    time.sleep(max(0.0, start_s + number / rate_per_s - time.monotonic()))
                    loop.call_soon_threadsafe(begin, arm)

            await asyncio.to_thread(keep_pace)
    await transport.close()
    say({arm: publisher.counts.confirmed for arm, publisher in publishers.items()})


def main(arm: str, host: str, count: int, rate_per_s: float) -> None:
    """Be this side of the measurement until all messages have passed."""
    if arm == "publisher":
        uvloop.run(publish(host, count, rate_per_s))
        return
    latencies = Latencies(count)
    match arm:
        case "callback":
            take_by_callback(host, latencies)
        case "transport":
            uvloop.run(take_by_transport(host, latencies))
        case "member":
            uvloop.run(take_as_member(host, latencies))
        case _:
            raise WrongCourse(f"there is no arm {arm!r}")
    latencies.tell()


def quantiles(values_ns: Sequence[int]) -> dict[str, float]:
    """The quantiles by name, in microseconds."""
    return {name: quantile(values_ns, part) / 1_000 for name, part in QUANTILES.items()}


def _settings(client_name: str, host: str) -> SolaceSettings:
    return replace(settings_for(host, ClientPathChoice.FAST), client_name=client_name)


if __name__ == "__main__":
    configure_log()
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
