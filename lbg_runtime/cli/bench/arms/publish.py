"""One way of publishing a number of messages, each confirmed, in a process of its own: run by `publish`.

Reports what it took as one JSON line. Every arm publishes the same (payload; key, publisher and number within the key
as user properties; application message id and sender's time), with the same limit on messages under way.
"""

import asyncio
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvloop

from lbg_runtime.cli.bench.arms.receive import Clock, WrongCourse, settings_for
from lbg_runtime.cli.bench.arms.shapes import NUMBER_DIGITS, SHAPE, TOPIC
from lbg_runtime.cli.lines import say
from lbg_runtime.cli.log import configure_log
from lbg_runtime.config.settings import ClientPathChoice
from lbg_runtime.model.hashing import HashFunction
from lbg_runtime.model.message import KEY_SEQUENCE_PROPERTY, PARTITION_KEY_PROPERTY, PUBLISHER_PROPERTY, Message
from lbg_runtime.publisher.hashed import HashedPublisher
from lbg_runtime.publisher.ledger import open_ledger
from lbg_runtime.transport.solace.transport import SolaceTransport

TASKS = 64
"""Messages under way, each awaited by a task; arms without tasks have as many under way."""
KEYS = 100
PUBLISHER = "bench"
PATIENCE_S = 120.0
_MESSAGE_ID = "solace.messaging.message.application-message-id"
_REST = b"x" * (256 - NUMBER_DIGITS)


def payload_of(number: int) -> bytes:
    """256 bytes that contain the number of their message."""
    return b"%0*d" % (NUMBER_DIGITS, number) + _REST


def message_of(number: int) -> Message:
    """A message as the hashed publisher makes it."""
    key = number % KEYS
    return Message(
        f"bench/{key % SHAPE.hash_count}/{TOPIC}",
        payload_of(number),
        {
            PARTITION_KEY_PROPERTY: f"key-{key}",
            PUBLISHER_PROPERTY: PUBLISHER,
            KEY_SEQUENCE_PROPERTY: number // KEYS + 1,
        },
        f"{PUBLISHER}-{number + 1}",
        time.time_ns() // 1_000_000,
    )


class PublicClient:
    """The client's own publisher, used as by an application that knows nothing of this project."""

    def __init__(self, host: str) -> None:
        from lbg_runtime.transport.solace.library import MessagingService, Topic

        self._topic = Topic.of
        self.service = MessagingService.builder().from_properties(settings_for(host).properties()).build()
        self.service.connect()
        self.publisher = self.service.create_persistent_message_publisher_builder().build()
        self.publisher.start()
        self._builder = self.service.message_builder()

    def prepared(self, number: int) -> tuple[Any, Any]:
        """Message and topic."""
        message = message_of(number)
        properties = {**message.properties, _MESSAGE_ID: message.message_id}
        return self._builder.build(bytearray(message.payload), properties), self._topic(message.topic)

    def close(self) -> None:
        """Disconnect."""
        self.publisher.terminate()
        self.service.disconnect()


def publish_with_receipts(host: str, count: int) -> dict[str, float]:
    """A plain thread publishes, and a listener gets the receipts; no event loop in between."""
    from lbg_runtime.transport.solace.library import MessagePublishReceiptListener

    room = threading.Semaphore(TASKS)
    failures: list[BaseException] = []

    class Listener(MessagePublishReceiptListener):  # type: ignore[misc]  # the client's classes have no types
        def on_publish_receipt(self, publish_receipt: Any) -> None:
            if publish_receipt.exception is not None:
                failures.append(publish_receipt.exception)
            room.release()

    client = PublicClient(host)
    client.publisher.set_message_publish_receipt_listener(Listener())
    clock = Clock()
    # At the end take every place once more: then all messages are confirmed.
    for number in range(count + TASKS):
        if not room.acquire(timeout=PATIENCE_S):
            raise WrongCourse(f"{number} messages were sent and then nothing was confirmed")
        if number < count:
            message, topic = client.prepared(number)
            client.publisher.publish(message, topic, user_context=number)
    spent = clock.read()
    client.close()
    if failures:
        raise WrongCourse(f"{len(failures)} messages were refused: {failures[0]}")
    return spent


def publish_and_wait(host: str, count: int) -> dict[str, float]:
    """The client's call that waits for the confirm. One thread: callers on several would take turns inside the call."""
    client = PublicClient(host)
    clock = Clock()
    for number in range(count):
        message, topic = client.prepared(number)
        client.publisher.publish_await_acknowledgement(message, topic)
    spent = clock.read()
    client.close()
    return spent


async def publish_by_tasks(publish: Callable[[int], Awaitable[object]], count: int) -> dict[str, float]:
    """Run as many tasks as messages may be under way; each awaits its message and takes the next number."""
    numbers = iter(range(count))

    async def publish_on() -> None:
        for number in numbers:
            await publish(number)

    clock = Clock()
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
        for _ in range(TASKS):
            tasks.create_task(publish_on())
    return clock.read()


async def publish_by_transport(host: str, count: int, path: ClientPathChoice) -> dict[str, float]:
    """The transport, and a future for each message."""
    transport = SolaceTransport(settings_for(host, path))
    await transport.open()
    spent = await publish_by_tasks(lambda number: transport.send(message_of(number)), count)
    await transport.close()
    return spent


async def publish_hashed(host: str, count: int) -> dict[str, float]:
    """The hashed publisher with its ledger, on the fast path."""
    transport = SolaceTransport(settings_for(host, ClientPathChoice.FAST))
    await transport.open()
    with tempfile.TemporaryDirectory(prefix="lbg-bench-") as folder:
        function = HashFunction.CRC32
        ledger = open_ledger(Path(folder), SHAPE, function, publisher_id=PUBLISHER)
        async with HashedPublisher(transport, SHAPE, function, publisher_id=PUBLISHER, ledger=ledger) as publisher:
            spent = await publish_by_tasks(
                lambda number: publisher.publish(TOPIC, payload_of(number), key=f"key-{number % KEYS}"), count
            )
    await transport.close()
    return spent


def main(arm: str, host: str, count: int) -> None:
    """Publish all messages by this arm and report what it took."""
    match arm:
        case "receipts":
            spent = publish_with_receipts(host, count)
        case "await_ack":
            spent = publish_and_wait(host, count)
        case "public":
            spent = uvloop.run(publish_by_transport(host, count, ClientPathChoice.PUBLIC))
        case "fast":
            spent = uvloop.run(publish_by_transport(host, count, ClientPathChoice.FAST))
        case "hashed":
            spent = uvloop.run(publish_hashed(host, count))
        case _:
            raise WrongCourse(f"there is no arm {arm!r}")
    say(spent)


if __name__ == "__main__":
    configure_log()
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
