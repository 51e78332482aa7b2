"""The development broker with a group's queues that are full before anybody reads them, in a process of its own.

Arguments: how many messages, of how many keys. One of the keys is the poisoned one, and differs from the others only by
its name. Reports on standard output where it listens, as one JSON line. Each line that it reads names the arm whose
keys count, and is answered by how many messages lie where.
"""

import gc
import sys

import uvloop

from lbg_runtime.broker.engine.engine import DEFAULT_VPN, Engine
from lbg_runtime.broker.server.server import BrokerServer
from lbg_runtime.cli.bench.arms.answering import answer_lines
from lbg_runtime.cli.bench.arms.filled_broker import Filler
from lbg_runtime.cli.bench.arms.publish_broker import queue_content
from lbg_runtime.cli.log import configure_log
from lbg_runtime.core.parking.records import parking_queue
from lbg_runtime.model.failure import DEAD_MESSAGE_QUEUE, ERROR_TOPIC_PREFIX
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.ids import GroupName, QueueName

SHAPE = GroupShape(GroupName("bench"), hash_prefix="bench", hash_count=96, queue_count=4)
POISONED = 0
"""The number of the poisoned key; also the index of the queue that holds it."""

DEAD = QueueName(DEAD_MESSAGE_QUEUE)
ERRORS = QueueName(f"{ERROR_TOPIC_PREFIX}{SHAPE.name}")


def is_measured(arm: str, key: int) -> bool:
    """Whether the messages of a key count: those of other keys, and with `stop`, those of other queues."""
    if arm == "stop":
        return key % SHAPE.hash_count % SHAPE.queue_count != POISONED
    return key != POISONED


def fill(server: BrokerServer, message_count: int, key_count: int) -> None:
    """Put messages on the queues, of each key in turn."""
    server.create_queue(ERRORS, [ERRORS])
    server.create_queue(DEAD)
    for index in range(SHAPE.queue_count):
        parking = parking_queue(SHAPE.name, index)
        server.create_queue(parking, [parking])
    Filler(server, SHAPE).fill(message_count, key_count)


async def _serve(message_count: int, key_count: int) -> None:
    engine = Engine("bench")
    async with BrokerServer(engine=engine) as server:
        fill(server, message_count, key_count)
        gc.freeze()
        await answer_lines(server.url, lambda arm: _facts(engine, arm.decode(), key_count))


def _facts(engine: Engine, arm: str, key_count: int) -> dict[str, object]:
    return {
        "unsettled": unsettled(engine, arm, key_count),
        "errors": engine.queue_depth(DEFAULT_VPN, ERRORS),
        "dead": engine.queue_depth(DEFAULT_VPN, DEAD),
        "parked": engine.queue_depth(DEFAULT_VPN, parking_queue(SHAPE.name, POISONED)),
    }


def unsettled(engine: Engine, arm: str, key_count: int) -> int:
    """How many of the messages that count are on the group's queues."""
    left = (int(each.message_id or 0) for queue in SHAPE.queue_names() for each in queue_content(engine, queue))
    return sum(is_measured(arm, number % key_count) for number in left)


if __name__ == "__main__":
    configure_log()
    uvloop.run(_serve(int(sys.argv[1]), int(sys.argv[2])))
