"""A member whose interpreter or loop ends in the middle of a flood: no crash, and no message is gone unhandled."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE

import pytest

from lbg_runtime.broker.engine.engine import DEFAULT_VPN
from lbg_runtime.broker.server.server import BrokerServer
from lbg_runtime.cli.bench.arms.publish_broker import queue_content
from lbg_runtime.cli.bench.arms.shapes import QUEUE, SHAPE
from tests.end_to_end.flood import fill
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.real_time, pytest.mark.end_to_end]

MESSAGES = 5_000
KEYS = 50

MEMBER = """
import asyncio, json, os, sys, time
import uvloop
from lbg_runtime import App, Handlers, Message
from lbg_runtime.cli.log import configure_log
from lbg_runtime.config.settings import Settings

configure_log(as_json=True)
host, how, shape = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
handled = []
handlers = Handlers()

def leave():
    print(json.dumps(handled), flush=True)
    sys.exit(7)

@handlers.handler("orders/new")
async def on_order(message: Message) -> None:
    if len(handled) == 500:
        if how == "a handler exits":
            leave()
        asyncio.get_running_loop().stop()
        await asyncio.Event().wait()
    handled.append(message.message_id)

settings = Settings.model_validate({
    "connection": {"transport": "solace", "host": host, "client_name": "leaver"},
    "transport": {"client_path": "fast"},
    "group": shape,
    "membership": {"mode": "static", "index": 0, "count": 1},
    "ops": {"watchdog": "off"},
})
loop = uvloop.new_event_loop()
task = loop.create_task(App(handlers, settings).run())
if how == "a handler exits":
    loop.run_until_complete(task)
loop.run_forever()
if how == "the loop is closed":
    loop.close()
    # Long enough for the client to call back into what is closed.
    time.sleep(0.3)
leave()
"""


@pytest.mark.parametrize("how", ["a handler exits", "the loop is stopped", "the loop is closed"])
async def test_a_member_that_ends_in_a_flood_neither_crashes_nor_loses_anything(how: str) -> None:
    async with BrokerServer(port=0) as broker:
        fill(broker, MESSAGES, KEYS)
        shape = {
            "name": SHAPE.name,
            "hash_prefix": SHAPE.hash_prefix,
            "hash_count": SHAPE.hash_count,
            "queue_count": SHAPE.queue_count,
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-W", "ignore", "-c", MEMBER, broker.url, how, json.dumps(shape),
            stdout=PIPE, stderr=PIPE,
        )  # fmt: skip
        try:
            async with asyncio.timeout(PATIENCE_S):
                output, errors = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.communicate()
        assert process.returncode == 7, errors.decode()
        for sign in ("Fatal", "Segmentation", "Aborted", "Exception ignored in sys.unraisablehook"):
            assert sign not in errors.decode()
        handled = [int(number) for number in json.loads(output.splitlines()[0])]
        assert len(handled) == 500
        async with asyncio.timeout(PATIENCE_S):
            while broker.engine.queue_flows(DEFAULT_VPN, QUEUE):  # noqa: ASYNC110 - the broker tells nobody
                await asyncio.sleep(0)
        left = [int(message.message_id or "") for message in queue_content(broker.engine)]
        # Gone from the queue is only what was handled, and of each key only the first ones.
        assert set(range(MESSAGES)) - set(left) <= set(handled)
        assert left == sorted(left)
        left_of = [[number for number in left if number % KEYS == key] for key in range(KEYS)]
        assert all(some == list(range(some[0], MESSAGES, KEYS)) for some in left_of)
