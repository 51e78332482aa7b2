"""A development broker that keeps all that is published to it, in a process of its own: run by `publish`.

Reports on standard output where it listens, as one JSON line. Every line on its standard input is answered by a line
with what it has used and what is on its queue, in order; it leaves when its input ends.
"""

import gc
import time

import uvloop

from lbg_runtime.broker.engine.effects import DeliverRun, Published
from lbg_runtime.broker.engine.engine import DEFAULT_VPN, Engine
from lbg_runtime.broker.server.server import BrokerServer
from lbg_runtime.cli.bench.arms.answering import answer_lines
from lbg_runtime.cli.bench.arms.shapes import NUMBER_DIGITS, QUEUE, SHAPE
from lbg_runtime.cli.log import configure_log
from lbg_runtime.model.errors import LbgError
from lbg_runtime.model.ids import DeliveryId, QueueName
from lbg_runtime.model.message import Message
from lbg_runtime.smf.contents import message_of
from lbg_runtime.smf.message import Relay


def queue_content(engine: Engine, queue: QueueName = QUEUE) -> list[Message]:
    """The messages on a queue, in order; none is removed."""
    client, _ = engine.connect(DEFAULT_VPN, "default", "", "looker")
    browser, _ = engine.bind(client, queue, browser=True)
    effects = engine.open_window(browser.flow, DeliveryId(0), engine.queue_depth(DEFAULT_VPN, queue))
    engine.disconnect(client)
    return [_message(message) for effect in effects if isinstance(effect, DeliverRun) for message in effect.messages]


def _message(published: Published) -> Message:
    if not isinstance(published.content, Relay):
        raise LbgError("a message that came in no frame")
    return message_of(published.topic, published.content)


async def _serve() -> None:
    engine = Engine("bench")
    async with BrokerServer(engine=engine) as server:
        server.create_queue(QUEUE, SHAPE.subscriptions(0))
        gc.freeze()
        await answer_lines(server.url, lambda _: _facts(engine))


def _facts(engine: Engine) -> dict[str, object]:
    cpu_s = time.process_time()
    content = queue_content(engine)
    return {
        "cpu_s": cpu_s,
        "numbers": [int(message.payload[:NUMBER_DIGITS]) for message in content],
        "keys": [message.key for message in content],
        "ids": [message.message_id for message in content],
    }


if __name__ == "__main__":
    configure_log()
    uvloop.run(_serve())
