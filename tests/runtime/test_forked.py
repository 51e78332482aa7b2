"""Handlers that fork their member, and do not end the new process: it must not go on as the member."""

import subprocess

import pytest

from tests.patience import PATIENCE_S

pytestmark = pytest.mark.real_time

MEMBER = """
import asyncio, os, signal, sys
from lbg_runtime import App, Handlers, Message
from lbg_runtime.config.load import parse_settings
from lbg_runtime.transport.memory.broker import MemoryBroker
from lbg_runtime.transport.memory.transport import MemoryTransport

way = sys.argv[1]
handlers = Handlers()
own = asyncio.Event()

@handlers.lifespan
async def life():
    yield
    print("lifespan has ended", flush=True)

async def forked(message):
    child = os.fork()
    if child:
        print("ended with", os.waitstatus_to_exitcode((await asyncio.to_thread(os.waitpid, child, 0))[1]), flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
    elif way == "waits":
        await asyncio.sleep(0.01)
    elif way == "raises":
        raise OSError("in the child")
    elif way == "exits":
        sys.exit(0)
    elif way == "ends":
        os._exit(7)

def forked_on_a_thread(message):
    child = os.fork()
    if child:
        print("ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        os.kill(os.getpid(), signal.SIGTERM)

handlers.handler("orders/>")(forked_on_a_thread if way == "on a thread" else forked)

class Session(MemoryTransport):
    async def provision(self, queue, subscriptions, **rest):
        await super().provision(queue, subscriptions, **rest)
        self.send(Message("h/0/orders/new", b""))

settings = parse_settings({
    "group": {"name": "orders", "hash_prefix": "h", "hash_count": 1, "queue_count": 1, "provision": "create_missing"},
    "membership": {"mode": "static", "index": 0, "count": 1},
    "rebind": {"mode": "cycle"},
}, "test", {})
sys.exit(App(handlers, settings, session=Session(MemoryBroker(), "member")).run_sync().exit_code)
"""


@pytest.mark.parametrize(
    ("way", "code"), [("returns", 1), ("waits", 1), ("raises", 1), ("exits", 1), ("on a thread", 1), ("ends", 7)]
)
def test_a_process_that_a_handler_forks_does_not_go_on_as_the_member(warm, way, code):
    """Its end closed the loop that it shared with the member, which heard no signal from then on, or it stayed behind
    with the member's connection."""
    with warm.running(MEMBER, way, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, output
    assert f"ended with {code}\n" in output
    assert output.count("forked_process_ended") == (code == 1)
    assert output.count("lifespan has ended\n") == 1
