"""A member with a status API, over a real socket: from before it has begun to after it has left."""

import asyncio
import json
import signal
import socket
import subprocess
import threading
from contextlib import ExitStack
from functools import partial

import pytest
from structlog.testing import capture_logs

from lbg_runtime.model.errors import ConfigError
from lbg_runtime.runtime.handlers.registry import Handlers
from tests.addresses import OWN_HOST
from tests.patience import PATIENCE_S
from tests.status import asking

pytestmark = pytest.mark.real_time

QUICK = {"membership": {"heartbeat": "100ms", "settle": "100ms"}}
ON = {"ops": {"status": f"{OWN_HOST}:0"}}

ask = partial(asking.ask, at=OWN_HOST)


async def port_of(log):
    async with asyncio.timeout(PATIENCE_S):
        while True:
            await asyncio.sleep(0)
            for entry in log:
                if entry["event"] == "status_served":
                    return int(entry["address"].rpartition(":")[2])


async def until(port, path, status):
    """Bounded by the test's own limit."""
    while (answer := await ask(port, path)).status != status:
        pass
    return answer.told


async def test_a_member_answers_from_its_beginning_to_its_end(trial):
    app = trial.discovered("a", **QUICK, **ON)
    with capture_logs() as log:
        async with trial.running(app) as (left,):
            port = await port_of(log)
            assert (await ask(port, "/livez")).status == 200
            await until(port, "/startedz", 200)
            await until(port, "/readyz", 200)
            told = (await ask(port, "/v1/status")).told
            assert {queue: flow["state"] for queue, flow in told["flows"].items()} == {
                f"orders/{index}": "active" for index in range(4)
            }
            changes = (await ask(port, "/v1/moves")).told["changes"]
            assert sorted(change["queue"] for change in changes) == [0, 1, 2, 3]
            assert (await ask(port, "/v1/keys/k")).told["owner"] == "a"
            app.stop()
            assert (await left).is_clean
    with pytest.raises(ConnectionRefusedError):
        await ask(port, "/livez")


async def test_a_member_that_waits_for_its_lifespan_says_for_which(trial):
    release, hooks = asyncio.Event(), Handlers()

    @hooks.lifespan
    async def database():
        await release.wait()
        yield

    app = trial.discovered("a", hooks=hooks, **QUICK, **ON)
    with capture_logs() as log:
        async with trial.running(app) as (left,):
            port = await port_of(log)
            async with asyncio.timeout(PATIENCE_S):
                while "database (" not in str((await ask(port, "/readyz")).told):
                    pass
            release.set()
            await until(port, "/readyz", 200)
            app.stop()
            assert (await left).is_clean


async def test_a_member_that_drains_says_so_and_is_not_kept_by_who_asks(trial):
    release = asyncio.Event()

    async def work(_):
        await release.wait()

    app = trial.discovered("a", work=work, **QUICK, **ON)
    with capture_logs() as log:
        async with trial.running(app) as (left,):
            port = await port_of(log)
            await until(port, "/readyz", 200)
            await trial.publish(4)
            app.stop()
            told = await until(port, "/readyz", 503)
            assert told["reasons"][0]["reason"] == "the member is draining"
            assert (await ask(port, "/livez")).status == 200
            # A client that asked and does not go away.
            connection = socket.create_connection((OWN_HOST, port), PATIENCE_S)
            connection.sendall(b"GET /v1/status HTTP/1.1\r\nHost: localhost\r\n")
            release.set()
            assert (await asyncio.wait_for(left, PATIENCE_S)).is_clean
            connection.close()
    assert not [entry for entry in log if entry["event"] == "status_not_ended"]


async def test_a_member_that_is_cut_off_takes_its_port_with_it(trial):
    app = trial.discovered("a", **QUICK, **ON)
    with capture_logs() as log:
        running = asyncio.ensure_future(app.run())
        port = await port_of(log)
        await until(port, "/readyz", 200)
        running.cancel()
        await asyncio.wait([running])
    assert running.cancelled()
    assert not [thread for thread in threading.enumerate() if thread.name == "lbg-status"]
    with pytest.raises(ConnectionRefusedError):
        await ask(port, "/livez")


async def test_a_port_that_is_taken_stops_the_start_before_there_is_a_session(trial):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        app = trial.discovered("a", ops={"status": f"127.0.0.1:{taken.getsockname()[1]}"})
        with pytest.raises(ConfigError, match=r"ops\.status: .* in use"):
            await app.run()
    assert trial.broker.engine.queue_names("default") == ()


MEMBER = """
import sys, time
from lbg_runtime import App, Handlers, Message
from lbg_runtime.cli.log import configure_log
from lbg_runtime.config.load import parse_settings
from lbg_runtime.transport.memory.broker import MemoryBroker
from lbg_runtime.transport.memory.transport import MemoryTransport

configure_log(as_json=True)
handlers = Handlers()

@handlers.handler("orders/>")
async def handle(message):
    time.sleep(600)

class Session(MemoryTransport):
    async def provision(self, queue, subscriptions, **rest):
        await super().provision(queue, subscriptions, **rest)
        if sys.argv[1] == "block":
            self.send(Message("h/0/orders/new", b""))

settings = parse_settings({
    "group": {"name": "orders", "hash_prefix": "h", "hash_count": 1, "queue_count": 1, "provision": "create_missing"},
    "membership": {"mode": "static", "index": 0, "count": 1},
    "rebind": {"mode": "cycle"},
    "ops": {"status": sys.argv[2], "watchdog": "off"},
}, "test", {})
sys.exit(App(handlers, settings, session=Session(MemoryBroker(), "member")).run_sync().exit_code)
"""


@pytest.fixture
def member(warm):
    """Starts a member in a process of its own; returns it and its port."""

    def start(work):
        process = ending.enter_context(warm.running(MEMBER, work, f"{OWN_HOST}:0", stderr=subprocess.PIPE))
        for line in process.stderr:
            entry = json.loads(line)
            if entry["event"] == "status_served":
                return process, int(entry["address"].rpartition(":")[2])
        raise AssertionError(f"it ended with {process.wait()}")

    with ExitStack() as ending:
        yield start


async def test_signals_are_the_members_and_not_the_servers(member):
    process, port = await asyncio.to_thread(member, "rest")
    await until(port, "/readyz", 200)
    process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(process.wait, PATIENCE_S) == 0
    assert '"member_left"' in process.stderr.read()


async def test_a_member_whose_handler_blocks_tells_that_it_is_alive_no_more(member):
    _, port = await asyncio.to_thread(member, "block")
    told = await until(port, "/livez", 503)
    assert told["live"] is False
    assert (await ask(port, "/readyz")).status == 503
    assert (await until(port, "/livez", 503))["blocked_ms"] > told["blocked_ms"]


async def test_a_member_whose_thread_for_it_the_system_refuses_says_so_in_one_line(trial, monkeypatch):
    """Its start ended with a traceback."""

    def refuse(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(ConfigError, match="no thread for it: can't start new thread; expected a limit"):
        await trial.member(**ON).run()
