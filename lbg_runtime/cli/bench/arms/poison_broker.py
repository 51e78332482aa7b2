"""The development broker with a group's queues that are full before anybody reads them; a process of its own.

Arguments: how many messages, of how many keys. One of the keys is the poisoned one; nothing tells it from the others
but its name. Says on standard output where it listens, as one JSON line, and what lies where for each line that it
reads.
"""

import gc
import sys
import time
from collections import Counter

import orjson
import uvloop

from lbg_runtime.broker.engine.effects import Published
from lbg_runtime.broker.engine.engine import DEFAULT_VPN, Engine
from lbg_runtime.broker.server.server import BrokerServer
from lbg_runtime.cli.bench.arms.filled_broker import PAYLOAD, TOPIC
from lbg_runtime.cli.lines import read_lines
from lbg_runtime.cli.log import configure_log
from lbg_runtime.core.parking.records import parking_queue
from lbg_runtime.model.failure import ERROR_TOPIC_PREFIX
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.ids import GroupName, QueueName
from lbg_runtime.model.message import (
    KEY_SEQUENCE_PROPERTY,
    PARTITION_KEY_PROPERTY,
    PUBLISHER_PROPERTY,
    Message,
    PropertyValue,
)
from lbg_runtime.smf.contents import relay_of

SHAPE = GroupShape(GroupName("bench"), hash_prefix="bench", hash_count=96, queue_count=4)
POISONED = 0
"""The number of the poisoned key; it lies in the queue of this index, too."""

DEAD = QueueName("#DEAD_MSG_QUEUE")
ERRORS = QueueName(f"{ERROR_TOPIC_PREFIX}{SHAPE.name}")


def fill(server: BrokerServer, message_count: int, key_count: int) -> None:
    """Of each key in turn, as a hashed publisher stamps them; the message id is the number of the message, from 0."""
    server.create_queue(ERRORS, [ERRORS])
    server.create_queue(DEAD)
    for index in range(SHAPE.queue_count):
        server.create_queue(SHAPE.queue_name(index), SHAPE.subscriptions(index))
        parking = parking_queue(SHAPE.name, index)
        server.create_queue(parking, [parking])
    client, _ = server.engine.connect(DEFAULT_VPN, "default", "", "filler")
    numbers: Counter[int] = Counter()
    for index in range(message_count):
        key = index % key_count
        numbers[key] += 1
        stamps: dict[str, PropertyValue] = {
            PARTITION_KEY_PROPERTY: f"key-{key}",
            PUBLISHER_PROPERTY: "bench",
            KEY_SEQUENCE_PROPERTY: numbers[key],
        }
        topic = SHAPE.hashed_topic(key % SHAPE.hash_count, TOPIC)
        relay = relay_of(Message(topic, PAYLOAD, stamps, str(index), 1_700_000_000_000 + index))
        server.carry_out(server.engine.publish_direct(client, Published(topic, relay, relay.size_bytes)))
    server.engine.disconnect(client)


async def _serve(message_count: int, key_count: int) -> None:
    engine = Engine("bench")
    async with BrokerServer(port=0, engine=engine) as server:
        fill(server, message_count, key_count)
        gc.freeze()
        _say({"host": f"tcp://{server.host}:{server.port}"})
        parking = parking_queue(SHAPE.name, POISONED)
        async for _ in read_lines(sys.stdin.fileno()):
            _say(
                {
                    "cpu_s": time.process_time(),
                    "errors": engine.queue_depth(DEFAULT_VPN, ERRORS),
                    "dead": engine.queue_depth(DEFAULT_VPN, DEAD),
                    "parked": engine.queue_depth(DEFAULT_VPN, parking),
                }
            )


def _say(facts: dict[str, object]) -> None:
    print(orjson.dumps(facts).decode(), flush=True)


if __name__ == "__main__":
    configure_log()
    uvloop.run(_serve(int(sys.argv[1]), int(sys.argv[2])))
