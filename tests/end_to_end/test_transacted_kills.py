"""A member that publishes in transactions is killed again and again: what a handler yields is there whole or not."""

import asyncio
import json
import subprocess
from random import Random

import pytest

from lbg_runtime.broker.engine.engine import DEFAULT_VPN
from lbg_runtime.broker.server.server import BrokerServer
from lbg_runtime.cli.bench.arms.publish_broker import queue_content
from lbg_runtime.cli.bench.arms.shapes import QUEUE, SHAPE
from lbg_runtime.model.ids import QueueName
from tests.end_to_end.flood import fill
from tests.patience import PATIENCE_S
from tests.warm import Warm

pytestmark = [pytest.mark.real_time, pytest.mark.end_to_end]

MESSAGES = 800
KEYS = 30
PARTS = 3
KILLS = 3

MEMBER = """
import asyncio, json, sys
from lbg_runtime import App, Handlers, Message
from lbg_runtime.cli.log import configure_log
from lbg_runtime.config.settings import Settings

configure_log(as_json=True)
handlers = Handlers()

@handlers.handler("orders/new", transacted=True)
async def split(message: Message):
    for part in range(int(sys.argv[3])):
        yield Message("parts/new", f"{message.message_id}.{part}".encode())

settings = Settings.model_validate({
    "connection": {"transport": "solace", "host": sys.argv[1], "client_name": "splitter"},
    "group": json.loads(sys.argv[2]),
    "membership": {"mode": "static", "index": 0, "count": 1},
    "ops": {"watchdog": "off"},
})
asyncio.run(App(handlers, settings).run())
"""


async def test_what_a_handler_yields_in_a_transaction_is_there_whole_or_not_at_all(warm: Warm) -> None:
    chance, out = Random(7), QueueName("parts")
    shape = {
        "name": SHAPE.name,
        "hash_prefix": SHAPE.hash_prefix,
        "hash_count": SHAPE.hash_count,
        "queue_count": SHAPE.queue_count,
    }
    async with BrokerServer(port=0) as broker:
        fill(broker, MESSAGES, KEYS)
        broker.create_queue(out, ["parts/>"])
        engine, host = broker.engine, broker.url
        for kill in range(KILLS + 1):
            silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            with warm.running(MEMBER, host, json.dumps(shape), PARTS, **silent) as member:
                aim = engine.queue_depth(DEFAULT_VPN, out) + chance.randrange(1, MESSAGES * PARTS // (2 * KILLS))
                async with asyncio.timeout(PATIENCE_S):
                    # The broker tells nobody; it runs between two looks.
                    while engine.queue_depth(DEFAULT_VPN, QUEUE) and member.poll() is None:
                        if kill < KILLS and engine.queue_depth(DEFAULT_VPN, out) >= aim:
                            member.kill()
                            break
                        await asyncio.sleep(0.002)
        content = [message.payload.decode() for message in queue_content(engine, out)]
    whole = [content[first : first + PARTS] for first in range(0, len(content), PARTS)]
    numbers = [int(parts[0].partition(".")[0]) for parts in whole]
    assert whole == [[f"{number}.{part}" for part in range(PARTS)] for number in numbers]
    # What was handled again after a kill is there again, in the order of its key.
    assert set(numbers) == set(range(MESSAGES))
    first_seen = list(dict.fromkeys(numbers))
    for key in range(KEYS):
        assert [number for number in first_seen if number % KEYS == key] == list(range(key, MESSAGES, KEYS))
