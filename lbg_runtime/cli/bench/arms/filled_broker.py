"""The development broker with a queue that is full before anybody reads it, in a process of its own.

Arguments: how many messages, of how many keys, and the groups, each with one queue; without any, there is one.

Reports on standard output where it listens, as one JSON line, once the queues are full. Every line on its standard
input is answered by a line with what it has used and done so far; it leaves when its input ends.
"""

import gc
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence

import uvloop

from lbg_runtime.broker.engine.answers import SettledRange
from lbg_runtime.broker.engine.effects import Effect, FlowId, Published
from lbg_runtime.broker.engine.engine import DEFAULT_VPN, Engine
from lbg_runtime.broker.server.server import BrokerServer
from lbg_runtime.cli.bench.arms.answering import answer_lines
from lbg_runtime.cli.bench.arms.shapes import SHAPE, TOPIC, shape_of
from lbg_runtime.cli.log import configure_log
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.message import (
    KEY_SEQUENCE_PROPERTY,
    PARTITION_KEY_PROPERTY,
    PUBLISHER_PROPERTY,
    Message,
    PropertyValue,
)
from lbg_runtime.smf.contents import relay_of

PAYLOAD = bytes(range(256))


class CountingEngine(Engine):
    """Counts the frames with which clients settle."""

    settle_frames = 0

    def settle(self, flow: FlowId, ranges: Iterable[SettledRange]) -> list[Effect]:
        self.settle_frames += 1
        return super().settle(flow, ranges)


def stamped(shape: GroupShape, key: int, of_key: int, number: int) -> Message:
    """A message as a hashed publisher of this project makes it.

    `of_key`: its number within its key, from 1. Its application message id is its number among all, from 0.
    """
    stamps: dict[str, PropertyValue] = {
        PARTITION_KEY_PROPERTY: f"key-{key}",
        PUBLISHER_PROPERTY: "bench",
        KEY_SEQUENCE_PROPERTY: of_key,
    }
    topic = shape.hashed_topic(key % shape.hash_count, TOPIC)
    return Message(topic, PAYLOAD, stamps, str(number), 1_700_000_000_000 + number)


class Filler:
    """Puts messages on the queues of a group, numbered consecutively across all calls."""

    def __init__(self, server: BrokerServer, shape: GroupShape) -> None:
        """Create the queues."""
        self._server = server
        self._shape = shape
        self._number = 0
        self._of_key: Counter[int] = Counter()
        for queue in range(shape.queue_count):
            server.create_queue(shape.queue_name(queue), shape.subscriptions(queue))

    def fill(self, count: int, key_count: int, first_key: int = 0) -> None:
        """Put messages of each key in turn; nothing is sent before all of them are there."""
        server, of_key = self._server, self._of_key
        client, _ = server.engine.connect(DEFAULT_VPN, "default", "", "filler")
        effects = []
        for index in range(count):
            key = first_key + index % key_count
            of_key[key] += 1
            message = stamped(self._shape, key, of_key[key], self._number)
            self._number += 1
            # What the engine takes from a client that publishes this message.
            relay = relay_of(message)
            effects += server.engine.publish_direct(client, Published(message.topic, relay, relay.size_bytes))
        server.engine.disconnect(client)
        server.carry_out(effects)


async def _serve(message_count: int, key_count: int, shapes: Sequence[GroupShape]) -> None:
    engine = CountingEngine("bench")
    async with BrokerServer(engine=engine) as server:
        for shape in shapes:
            Filler(server, shape).fill(message_count, key_count)
        gc.freeze()
        await answer_lines(server.url, lambda _: _facts(engine, shapes))


def _facts(engine: CountingEngine, shapes: Sequence[GroupShape]) -> dict[str, object]:
    depth = sum(engine.queue_depth(DEFAULT_VPN, shape.queue_name(0)) for shape in shapes)
    return {"cpu_s": time.process_time(), "depth": depth, "settle_frames": engine.settle_frames}


if __name__ == "__main__":
    configure_log()
    groups = [shape_of(group) for group in sys.argv[3:]]
    uvloop.run(_serve(int(sys.argv[1]), int(sys.argv[2]), groups or [SHAPE]))
