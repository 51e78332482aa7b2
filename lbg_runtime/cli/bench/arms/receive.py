"""One way of taking all messages of a filled queue, in a process of its own: run by `receive`.

Reports what it took as one JSON line. Every arm reads the same of a message (payload, key, application message id,
topic, sender's time, redelivered flag, and the id it settles by), and notes its number, which is checked at the end.
"""

import asyncio
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import uvloop

from lbg_runtime.cli.bench.arms.shapes import QUEUE, SHAPE, TOPIC
from lbg_runtime.cli.lines import say
from lbg_runtime.cli.log import configure_log
from lbg_runtime.config.settings import ClientPathChoice, Settings
from lbg_runtime.core.flow.events import FlowEvent, MessageReceived
from lbg_runtime.core.lanes import KeyLanes, Lane
from lbg_runtime.model.errors import LbgError
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.ids import Epoch
from lbg_runtime.model.message import PARTITION_KEY_PROPERTY, Delivery, Message
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.runtime.app import App
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.runtime.runners.pool import RunnerPool
from lbg_runtime.transport.solace.settings import SolaceSettings
from lbg_runtime.transport.solace.transport import SolaceTransport

RUNNERS = 64
PATIENCE_S = 120.0


class WrongCourse(LbgError):
    """Not every message came once, or one came before an earlier one of its key."""


class Clock:
    """From the first to the last message: seconds, and seconds of processor time."""

    def __init__(self) -> None:
        self._start_s = time.perf_counter()
        self._start_cpu_s = time.process_time()

    def read(self) -> dict[str, float]:
        """Both, until now."""
        return {"seconds": time.perf_counter() - self._start_s, "cpu_s": time.process_time() - self._start_cpu_s}


def settings_for(host: str, client_path: ClientPathChoice = ClientPathChoice.PUBLIC) -> SolaceSettings:
    """How every arm connects."""
    return SolaceSettings(hosts=(host,), client_name="bench", client_path=client_path)


def take_by_callback(host: str, count: int) -> tuple[dict[str, float], list[str]]:
    """The client's public receiver and nothing else: a callback reads the message and acknowledges it."""
    from lbg_runtime.transport.solace.library import MessageHandler, MessagingService, Queue

    ids: list[str] = []
    done = threading.Event()
    service = MessagingService.builder().from_properties(settings_for(host).properties()).build()
    service.connect()
    builder = service.create_persistent_message_receiver_builder().with_message_client_acknowledgement()
    receiver = builder.build(Queue.durable_exclusive_queue(QUEUE))

    class Taker(MessageHandler):  # type: ignore[misc]  # the client's classes have no types
        def on_message(self, message: Any) -> None:
            message.get_payload_as_bytes()
            message.get_property(PARTITION_KEY_PROPERTY)
            message.get_destination_name()
            message.get_sender_timestamp()
            message.is_redelivered()
            ids.append(message.get_application_message_id())
            receiver.ack(message)
            if len(ids) == count:
                done.set()

    clock = Clock()
    receiver.start()
    receiver.receive_async(Taker())
    if not done.wait(PATIENCE_S):
        raise WrongCourse(f"{len(ids)} of {count} messages came")
    spent = clock.read()
    receiver.terminate(grace_period=0)
    service.disconnect()
    return spent, ids


async def take_by_lanes(host: str, count: int, client_path: ClientPathChoice) -> tuple[dict[str, float], list[str]]:
    """The transport, a lane for each key, a handler that only notes the message, and a settlement."""
    ids: list[str] = []
    lanes: KeyLanes[Delivery] = KeyLanes()
    done = asyncio.Event()

    async def handle(message: Message) -> None:
        ids.append(message.message_id or "")

    async def take_turn(lane: Lane[Delivery], _: object) -> None:
        delivery = lane.head
        await handle(delivery.message)
        lanes.finish(lane)
        flow.settle(delivery.delivery_id, Outcome.ACCEPTED)
        if len(ids) == count:
            done.set()

    pool = RunnerPool(lanes, RUNNERS, take_turn)  # type: ignore[arg-type]  # it does not look into the lanes

    def receive(event: FlowEvent) -> None:
        if isinstance(event, MessageReceived):
            delivery = event.delivery
            lanes.offer(delivery.message.key or "", delivery)
            pool.wake()

    transport = SolaceTransport(settings_for(host, client_path))
    await transport.open()
    running = asyncio.create_task(pool.run())
    flow = await transport.bind(QUEUE, Epoch(1), receive)
    clock = Clock()
    flow.start_intake()
    async with asyncio.timeout(PATIENCE_S):
        await done.wait()
    spent = clock.read()
    await flow.unbind()
    running.cancel()
    await asyncio.wait([running])
    await transport.close()
    return spent, ids


async def take_as_member(host: str, count: int) -> tuple[dict[str, float], list[str]]:
    """The whole runtime on the fast path: a member of its own group, without a journal."""
    ids: list[str] = []
    handlers = Handlers()
    clocks: list[Clock] = []
    spent: list[dict[str, float]] = []

    @handlers.handler(TOPIC)
    async def handle(message: Message) -> None:
        if not clocks:
            clocks.append(Clock())
        ids.append(message.message_id or "")
        if len(ids) == count:
            spent.append(clocks[0].read())
            app.stop()

    app = member_of(SHAPE, handlers, settings_for(host, ClientPathChoice.FAST))
    async with asyncio.timeout(PATIENCE_S):
        await app.run()
    return spent[0], ids


def member_of(shape: GroupShape, handlers: Handlers, session: SolaceSettings) -> App:
    """The only member of a group."""
    settings = Settings.model_validate(
        {
            "group": asdict(shape),
            "membership": {"mode": "static", "index": 0, "count": 1},
            "dispatch": {"runners": RUNNERS},
        }
    )
    return App(handlers, settings, session=SolaceTransport(session))


def check_course(ids: Sequence[str], count: int, key_count: int) -> None:
    """Raise `WrongCourse` unless every message came exactly once and in the order of its key."""
    last: dict[int, int] = {}
    for number in map(int, ids):
        key = number % key_count
        if last.get(key, -1) >= number:
            raise WrongCourse(f"message {number} came after {last[key]} of the same key")
        last[key] = number
    if len(ids) != count:
        raise WrongCourse(f"{len(ids)} messages came, not {count}")


def main(arm: str, host: str, count: int, key_count: int) -> None:
    """Take all messages by this arm and report what it took."""
    match arm:
        case "callback":
            spent, ids = take_by_callback(host, count)
        case "public":
            spent, ids = uvloop.run(take_by_lanes(host, count, ClientPathChoice.PUBLIC))
        case "fast":
            spent, ids = uvloop.run(take_by_lanes(host, count, ClientPathChoice.FAST))
        case "member":
            spent, ids = uvloop.run(take_as_member(host, count))
        case _:
            raise WrongCourse(f"there is no arm {arm!r}")
    check_course(ids, count, key_count)
    say(spent)


if __name__ == "__main__":
    configure_log()
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
