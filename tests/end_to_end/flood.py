"""A queue that is full before any member comes."""

from lbg_runtime.broker.engine.effects import Published
from lbg_runtime.broker.engine.engine import DEFAULT_VPN
from lbg_runtime.broker.server.server import BrokerServer
from lbg_runtime.cli.bench.arms.shapes import QUEUE, SHAPE
from lbg_runtime.model.message import PARTITION_KEY_PROPERTY, Message
from lbg_runtime.smf.contents import relay_of


def fill(broker: BrokerServer, messages: int, keys: int) -> None:
    """So many messages to `orders/new` on the one queue of the group `SHAPE`, of the keys in turn.

    The application message id is the number of the message, from 0.
    """
    broker.create_queue(QUEUE, SHAPE.subscriptions(0))
    client, _ = broker.engine.connect(DEFAULT_VPN, "default", "", "filler")
    for number in range(messages):
        key = number % keys
        topic = SHAPE.hashed_topic(key % SHAPE.hash_count, "orders/new")
        relay = relay_of(Message(topic, b"x", {PARTITION_KEY_PROPERTY: f"key-{key}"}, str(number)))
        broker.carry_out(broker.engine.publish_direct(client, Published(topic, relay, relay.size_bytes)))
    broker.engine.disconnect(client)
