"""A blocked event loop ends its member; slowness, a stop of the process and an end in good order do not."""

import asyncio
import json
import signal
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from structlog.testing import capture_logs

from lbg_runtime.broker.server.server import BrokerServer
from lbg_runtime.model.errors import ConfigError
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.runtime import watchdog as watchdog_module
from lbg_runtime.runtime.handlers.batches import Batch
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.runtime.suspension import STOPPED_FOR_NS
from lbg_runtime.runtime.watchdog import EXIT_CODE, BlockedTime, _tell, watched_loop
from tests.patience import PATIENCE_S

LIMIT_MS = 1_500
"""Above what the loop of a member that starts is kept waiting on a busy machine."""
DEAD_WITHIN_S = 60
"""The limit, two looks more, a line of the log, and a busy machine; half of what the handler blocks it for."""

MEMBER = """
import asyncio, sys, time
from lbg_runtime import App, Handlers
from lbg_runtime.cli.log import configure_log
from lbg_runtime.config.load import parse_settings

configure_log(as_json=True)
name, address, work, watchdog = sys.argv[1:]
handlers = Handlers()

@handlers.handler("orders/>")
async def handle(message):
    print("started", message.key_sequence, flush=True)
    if work == "block":
        time.sleep(120)
    elif work == "log":
        # The loop's thread holds the lock of the log, as when nobody reads it.
        import structlog
        structlog._output._get_lock_for_file(sys.stderr).acquire()
        time.sleep(120)
    elif work == "slow":
        await asyncio.sleep(2)
    elif work == "until told":
        await asyncio.to_thread(sys.stdin.readline)
    print("handled", message.key_sequence, flush=True)

settings = parse_settings({
    "connection": {"transport": "solace", "host": address},
    "group": {"name": "orders", "hash_prefix": "h", "hash_count": 1, "queue_count": 1, "provision": "create_missing"},
    "membership": {"settle": "200ms", "heartbeat": "200ms"},
    "ops": {"watchdog": watchdog},
    "handlers": [],
}, "test", {})
sys.exit(App(handlers, settings, member_id=name).run_sync().exit_code)
"""


def test_time_is_counted_from_the_last_sign_of_life():
    blocked = BlockedTime(tick_ms=100)
    answers = [True, False, False, True, False]
    assert [blocked.count(100, has_answered=answer, at="a") for answer in answers] == [0, 100, 200, 0, 100]


def test_a_loop_that_goes_on_to_the_next_task_gives_a_sign_of_life():
    blocked = BlockedTime(tick_ms=100)
    tasks = ["a", "a", "b", "b", "b", None, None]
    assert [blocked.count(100, has_answered=False, at=task) for task in tasks] == [0, 100, 0, 100, 200, 0, 100]


def test_the_time_for_which_the_process_was_stopped_does_not_count():
    blocked = BlockedTime(tick_ms=100)
    blocked.count(100, has_answered=False, at=None)
    assert blocked.count(3_600_000, has_answered=False, at=None) == 300
    assert blocked.count(100, has_answered=True, at=None) == 0


def watchdog_count():
    """Threads of earlier tests may end at any time."""
    return sum(thread.name == "lbg-watchdog" for thread in threading.enumerate())


async def test_a_thread_that_the_system_refuses_is_refused_in_one_line(monkeypatch):
    """The start of the member ended with a traceback."""

    def refuse(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with (
        pytest.raises(ConfigError, match="no thread for it: can't start"),
        watched_loop(60_000),
    ):
        pass


async def test_without_a_limit_there_is_no_thread():
    with watched_loop(None):
        assert watchdog_count() == 0


@pytest.mark.real_time
async def test_the_thread_is_gone_when_nobody_is_watched_any_more():
    with watched_loop(60_000):
        assert watchdog_count() == 1
    assert watchdog_count() == 0


@pytest.mark.real_time
async def test_that_the_host_slept_is_seen_although_the_monotonic_clock_stood_still(monkeypatch):
    """The member went on with what others had handled while it slept, until its client told it of the connection."""
    slept_ns = 0
    monkeypatch.setattr(watchdog_module, "since_boot_ns", lambda: time.monotonic_ns() + slept_ns)
    with watched_loop(60_000) as suspension:
        began_ns = watchdog_module.since_boot_ns()
        assert not suspension.was_since(began_ns, watchdog_module.since_boot_ns())
        slept_ns = 3_600 * 10**9
        assert suspension.was_since(began_ns, watchdog_module.since_boot_ns())


@pytest.mark.real_time
async def test_the_tasks_are_told_apart_that_block_one_after_the_other_in_one_step_of_the_loop(monkeypatch):
    seen, looks = [], threading.Semaphore(0)

    class Seen(BlockedTime):
        def count(self, elapsed_ms, *, has_answered, at):
            seen.append((has_answered, at))
            looks.release()
            return super().count(elapsed_ms, has_answered=has_answered, at=at)

    async def block():
        for _ in range(2):
            assert looks.acquire(timeout=PATIENCE_S)

    monkeypatch.setattr(watchdog_module, "BlockedTime", Seen)
    with watched_loop(1_000):
        blocked = [asyncio.create_task(block()) for _ in range(2)]
        await asyncio.gather(*blocked)
    assert {(False, each) for each in blocked} <= set(seen)


# -- which messages the line names


def told():
    """The line that another thread writes while the loop's is blocked, here."""
    with capture_logs() as logs, ThreadPoolExecutor(1) as thread:
        thread.submit(_tell, 1_600, 1_500, asyncio.get_running_loop(), None).result()
    return logs[0]


async def handle_all(rig, delivery, handlers, keys):
    made = rig(handlers=handlers)
    async with made.running():
        for number, key in enumerate(keys, 1):
            made.dispatcher.dispatch(delivery(number, key))
        await made.until_ended(len(keys))
    assert made.outcomes() == dict.fromkeys(range(1, len(keys) + 1), Outcome.ACCEPTED)


@pytest.mark.parametrize("is_subtask", [False, True])
async def test_the_message_is_named_whose_handler_blocks_and_no_other(rig, delivery, is_subtask):
    handlers, lines = Handlers(), []

    @handlers.handler("orders/>")
    async def handle(message):
        if message.key == "waiting":
            await asyncio.sleep(10)
        elif is_subtask:
            await asyncio.create_task(block())
        else:
            await block()

    async def block():
        lines.append(told())

    await handle_all(rig, delivery, handlers, ["waiting", "blocking"])
    (line,) = lines
    assert (line["queue"], line["epoch"], line["delivery_id"], line["key"]) == ("orders/0", 1, 2, "blocking")
    assert (line["topic"], line["attempts"], line["message_id"]) == ("orders/new", 1, None)


async def test_of_a_batch_those_are_named_that_are_not_settled_up_to_ten(rig, delivery):
    handlers, lines = Handlers(), []

    @handlers.batch_handler("orders/>", max_count=20, max_wait="10ms")
    async def handle(batch: Batch[str]):
        batch[0].accept()
        lines.append(told())

    await handle_all(rig, delivery, handlers, [f"k{number}" for number in range(20)])
    assert lines[0]["batch_count"] == 19
    assert [each["key"] for each in lines[0]["batch"]] == [f"k{number}" for number in range(1, 11)]


async def test_a_loop_that_is_blocked_outside_of_handlers_names_no_message(rig, delivery):
    handlers = Handlers()
    handlers.handler("orders/>")(lambda message: None)
    assert "key" not in told()
    await handle_all(rig, delivery, handlers, ["k"])
    called = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(lambda: called.set_result(told()))
    assert "key" not in await called


async def test_a_message_that_was_handled_is_not_named_for_what_its_handler_has_left_behind(rig, delivery):
    handlers, left = Handlers(), []

    async def block_later():
        await asyncio.sleep(1)
        return told()

    @handlers.handler("orders/>")
    async def handle(message):
        left.append(asyncio.create_task(block_later()))

    await handle_all(rig, delivery, handlers, ["k"])
    assert "key" not in await left[0]


# -- real processes on a broker of their own


@pytest.fixture
def members(warm, lbg, tmp_path):
    """Starts members by name and kind of work on one broker; and `publish`."""
    script = tmp_path / "member.py"
    script.write_text(MEMBER)
    # Of a file, so that there are lines to show.
    program = f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')"
    started = {}

    class Members:
        def __init__(self, address):
            self.address = address

        def start(self, name, work, watchdog=f"{LIMIT_MS}ms"):
            with (tmp_path / f"{name}.log").open("wb") as log:
                streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}
                process = warm.running(program, name, self.address, work, watchdog, **streams)
                started[name] = ending.enter_context(process)
            return started[name]

        def log(self, name):
            # A line that is still being written has no end yet; the client's own warnings are no JSON.
            lines = (tmp_path / f"{name}.log").read_text().splitlines(keepends=True)
            return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]

        async def until_logged(self, name, event, **facts):
            async with asyncio.timeout(PATIENCE_S):
                while not any(entry["event"] == event and facts.items() <= entry.items() for entry in self.log(name)):
                    assert started[name].poll() is None, self.log(name)
                    await asyncio.sleep(0.05)

        async def line(self, name):
            async with asyncio.timeout(PATIENCE_S):
                return (await asyncio.to_thread(started[name].stdout.readline)).strip()

        async def publish(self, count=1):
            config = tmp_path / "config.yaml"
            group = {"name": "orders", "hash_prefix": "h", "hash_count": 1, "queue_count": 1}
            settings = {"connection": {"transport": "solace", "host": self.address}, "group": group}
            config.write_text(json.dumps(settings))
            options = ("--topic", "orders/new", "--count", count, "--keys", 1)
            assert (await asyncio.to_thread(lbg, tmp_path, "publish", *options)).returncode == 0

        async def wait(self, name):
            return await asyncio.to_thread(started[name].wait, PATIENCE_S)

    with ExitStack() as ending:
        yield Members


@pytest.mark.real_time
@pytest.mark.end_to_end
async def test_a_blocked_member_is_ended_and_another_handles_its_message_once(members):
    async with BrokerServer(port=0) as broker:
        group = members(f"tcp://127.0.0.1:{broker.port}")
        group.start("a", "block")
        await group.until_logged("a", "flow_changed", change="active")
        other = group.start("b", "quick")
        await group.until_logged("b", "flow_changed", change="bound")
        await group.publish()
        assert await group.line("a") == "started 1"
        blocked_s = time.monotonic()
        assert await group.wait("a") == EXIT_CODE
        # The handler may have been blocked before its publisher had ended: the log says how long it was, at least.
        assert time.monotonic() - blocked_s < DEAD_WITHIN_S
        assert [await group.line("b"), await group.line("b")] == ["started 1", "handled 1"]
        (entry,) = [entry for entry in group.log("a") if entry["event"] == "event_loop_blocked"]
        assert entry["blocked_ms"] > LIMIT_MS
        assert "time.sleep(120)" in entry["stack"]
        handled = ("queue", "epoch", "delivery_id", "topic", "attempts")
        assert [entry[name] for name in handled] == ["orders/0", 1, 1, "orders/new", 1]
        assert entry["key"]
        other.send_signal(signal.SIGTERM)
        assert await group.wait("b") == 0
        assert await group.line("b") == "", "once, and not again"


@pytest.mark.real_time
@pytest.mark.end_to_end
async def test_a_member_whose_log_is_blocked_is_ended_as_well(members):
    async with BrokerServer(port=0) as broker:
        group = members(f"tcp://127.0.0.1:{broker.port}")
        group.start("a", "log")
        await group.until_logged("a", "flow_changed", change="active")
        await group.publish()
        assert await group.line("a") == "started 1"
        assert await group.wait("a") == EXIT_CODE


@pytest.mark.real_time
@pytest.mark.end_to_end
async def test_a_slow_handler_and_a_stopped_process_are_left_alone(members):
    async with BrokerServer(port=0) as broker:
        group = members(f"tcp://127.0.0.1:{broker.port}")
        process = group.start("a", "slow")
        await group.until_logged("a", "flow_changed", change="active")
        await group.publish()
        assert await group.line("a") == "started 1"
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(3 * LIMIT_MS / 1_000)
        process.send_signal(signal.SIGCONT)
        assert await group.line("a") == "handled 1"
        process.send_signal(signal.SIGTERM)
        assert await group.wait("a") == 0
        assert not any(entry["event"] == "event_loop_blocked" for entry in group.log("a"))


@pytest.mark.real_time
@pytest.mark.end_to_end
async def test_a_member_that_was_stopped_starts_nothing_of_what_another_has_handled_meanwhile(members):
    async with BrokerServer(port=0) as broker:
        group = members(f"tcp://127.0.0.1:{broker.port}")
        process = group.start("a", "until told", "60s")
        await group.until_logged("a", "flow_changed", change="active")
        other = group.start("b", "quick")
        await group.until_logged("b", "flow_changed", change="bound")
        await group.publish(count=3)
        assert await group.line("a") == "started 1"
        process.send_signal(signal.SIGSTOP)
        stopped_s = time.monotonic()
        # As a broker does with a client that is silent for too long.
        assert broker.faults.drop(f"orders/a/{socket.gethostname()}/{process.pid}") == 1
        for number in (1, 2, 3):
            assert [await group.line("b"), await group.line("b")] == [f"started {number}", f"handled {number}"]
        await asyncio.sleep(stopped_s + 1.2 * STOPPED_FOR_NS / 1e9 - time.monotonic())
        # The handler can end as soon as the process goes on, before anybody else has noticed the stop.
        process.stdin.write("\n")
        process.stdin.flush()
        process.send_signal(signal.SIGCONT)
        assert await group.line("a") == "handled 1"
        await group.until_logged("a", "process_was_stopped")
        for name, member in (("a", process), ("b", other)):
            member.send_signal(signal.SIGTERM)
            assert await group.wait(name) == 0
            assert await group.line(name) == ""
