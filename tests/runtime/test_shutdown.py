"""Real processes and signals: a member drains, is cut short, or is ended when its handlers will not let it go.

And the stretch of a task that is cut short.

Over 400 lines, as all of them start the one member that is written out here.
"""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from lbg_runtime.runtime.shutdown import Interruption
from tests.patience import PATIENCE_S
from tests.runtime.cancellations import fail, left_by_a_task_group

pytestmark = pytest.mark.real_time


NO_THREADS = """
import sys, threading
from lbg_runtime.runtime.shutdown import end_process

def refuse(self):
    raise RuntimeError("can't start new thread")

threading.Thread.start = refuse
end_process(7, lambda: print("told", flush=True))
"""

# As in Python 3.12 while the interpreter exits.
NO_THREADS_LATER = """
import threading
from lbg_runtime.runtime.shutdown import ExitGuard

def refuse(self):
    raise RuntimeError("can't create new thread at interpreter shutdown")

ExitGuard(7).arm(0.1)
threading.Thread.start = refuse
threading.Event().wait()
"""

CONNECTING_MEMBER = """
import sys
from lbg_runtime import App, Handlers
from lbg_runtime.config.load import parse_settings
from lbg_runtime.transport.solace.settings import SolaceSettings

# Longer than the test waits for the process, however slow that is.
properties, patience = SolaceSettings.properties, {"solace.messaging.transport.connection-attempts-timeout": 600_000}
SolaceSettings.properties = lambda *given: properties(*given) | patience
handlers = Handlers()

@handlers.handler("orders/>")
async def handle(message): ...

settings = parse_settings({
    "connection": {"transport": "solace", "host": f"tcp://127.0.0.1:{sys.argv[1]}"},
    "group": {"name": "orders", "hash_prefix": "h", "hash_count": 1, "queue_count": 1},
    "membership": {"mode": "static", "index": 0, "count": 1},
    "rebind": {"mode": "cycle"},
}, "test", {})
sys.exit(App(handlers, settings).run_sync(ends_process=True).exit_code)
"""

MEMBER = """
import asyncio, contextlib, os, signal, structlog, sys, time
from lbg_runtime import App, Handlers, Message
from lbg_runtime.config.load import parse_settings
from lbg_runtime.runtime import app as app_module, leaving
from lbg_runtime.transport.memory.broker import MemoryBroker
from lbg_runtime.transport.memory.transport import MemoryTransport

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
work = sys.argv[1]
codes = [int(code) for code in work.split()[1:]] if work.startswith("exit") else []
if work in ("stubborn", "stubborn beside an exit", "unread log", "begin on a thread"):
    # Only there: where the process is to end by itself, a slow machine may take its time.
    leaving.TAIL_MS = app_module.TAIL_MS = 200
    app_module.EXIT_GRACE_S = 0.3
handlers = Handlers()

async def exit_late():
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        print("exits as well", flush=True)
        sys.exit(5)

@handlers.handler("orders/>")
async def handle(message):
    if work != "end":
        print("started", flush=True)
    if work == "short":
        await asyncio.sleep(0.3)
    elif work == "until told":
        await asyncio.to_thread(sys.stdin.readline)
    elif work == "end":
        os.kill(os.getpid(), 15)
        return
    elif work == "interrupt":
        raise KeyboardInterrupt
    elif codes:
        other = asyncio.create_task(exit_late())
        await asyncio.sleep(0.01)
        sys.exit(codes.pop(0))
    elif work == "stubborn beside an exit":
        asyncio.get_running_loop().call_later(0.1, sys.exit, 3)
    while work in ("long", "stubborn", "stubborn beside an exit", "unread log"):
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            if work == "unread log":
                # This thread holds the lock of the log, as when nobody reads it.
                structlog._output._get_lock_for_file(sys.stdout).acquire()
                structlog._output._get_lock_for_file(sys.stderr).acquire()
                time.sleep(600)
            if work == "long":
                raise
    print("handled", flush=True)

async def fail():
    raise OSError("away")

@handlers.lifespan
async def life():
    if work == "begin":
        print("started", flush=True)
        await asyncio.sleep(600)
    elif work == "begin on a thread":
        print("started", flush=True)
        await asyncio.to_thread(time.sleep, 600)
    elif work == "cancel":
        with contextlib.suppress(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(fail())
        print("started", flush=True)
        own = asyncio.create_task(asyncio.sleep(600))
        own.cancel()
        await own
    yield
    if work == "end":
        print("started", flush=True)
        await asyncio.sleep(600)
    elif work.startswith("exit"):
        await asyncio.sleep(0.01)
        print("lifespan has ended", flush=True)

class Session(MemoryTransport):
    async def close(self):
        await super().close()
        print("closed", flush=True)

    async def provision(self, queue, subscriptions, **rest):
        await super().provision(queue, subscriptions, **rest)
        self.send(Message("h/0/orders/new", b""))

settings = parse_settings({
    "group": {"name": "orders", "hash_prefix": "h", "hash_count": 1, "queue_count": 1, "provision": "create_missing"},
    "membership": {"mode": "static", "index": 0, "count": 1},
    "rebind": {"mode": "cycle", "drain_timeout": sys.argv[2]},
    "ops": {"watchdog": "off" if work == "unread log" else "30s"},
}, "test", {})

def run():
    parent_pid = os.getppid() if "--exit-with-parent" in sys.argv else None
    return App(handlers, settings, session=Session(MemoryBroker(), "member")).run_sync(parent_pid=parent_pid)

while len(codes) > 1:
    try:
        run()
    except SystemExit as leaving:
        print("left with", leaving.code & 0xFF, flush=True)  # what the system keeps
report = run()
print(report, flush=True)
sys.exit(report.exit_code)
"""


@pytest.fixture
def member(warm):
    """Starts a member with a kind of work and a drain timeout; it is at this work on return."""

    def start(work, drain_timeout):
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        process = ending.enter_context(warm.running(MEMBER, work, drain_timeout, **streams))
        for line in process.stdout:
            if line == "started\n":
                return process
        raise AssertionError(f"it ended with {process.wait()}")

    with ExitStack() as ending:
        yield start


def rest_of(process):
    """What a member says until it ends; one that does not is killed. `communicate` would forget what came together with
    the line that it was read up to."""
    overdue = threading.Timer(PATIENCE_S, process.kill)
    overdue.start()
    try:
        output = process.stdout.read()
        process.wait()
    finally:
        overdue.cancel()
    return output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_handler_finish_and_exits_with_0(member, number):
    process = member("short", "20s")
    process.send_signal(number)
    output = rest_of(process)
    assert process.returncode == 0, output
    assert "handled\n" in output
    assert "left_behind=0, still_bound=0" in output


def test_a_terminal_that_closes_and_says_so_twice_lets_the_handler_finish(member):
    process = member("until told", "60s")
    for _ in range(2):
        process.send_signal(signal.SIGHUP)
        assert any("stop_requested" in line for line in process.stdout)
    process.stdin.write("\n")
    process.stdin.flush()
    output = rest_of(process)
    assert process.returncode == 0, output
    assert "handled\n" in output
    assert "left_behind=0, still_bound=0" in output


def test_a_signal_while_no_broker_answers_exits_with_0_at_once(warm):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(PATIENCE_S)
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        with warm.running(CONNECTING_MEMBER, silent.getsockname()[1], **streams) as process:
            peer, _ = silent.accept()
            with peer:
                process.send_signal(signal.SIGTERM)
                output = rest_of(process)
    assert process.returncode == 0, output
    assert "left_before_start" in output


def test_a_second_signal_cancels_the_handler_and_exits_with_1(member):
    process = member("long", "600s")
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    output = rest_of(process)
    assert process.returncode == 1, output
    assert "left_behind=1, still_bound=0" in output


@pytest.mark.parametrize(
    ("work", "drain_timeout", "code", "said"),
    [
        pytest.param("long", "200ms", 1, "left_behind=1, still_bound=0", id="a handler until the deadline"),
        pytest.param("stubborn", "200ms", 1, "exit_forced", id="a handler that ignores cancellation"),
        pytest.param("begin", "600s", 0, "left_behind=0, still_bound=0", id="a lifespan that still begins"),
        pytest.param("end", "600s", 0, "left_behind=0, still_bound=0", id="a lifespan that still ends"),
        pytest.param(
            "begin on a thread",
            "200ms",
            1,
            "a handler, a lifespan, a thread of theirs or an atexit function had not ended",
            id="a thread of a lifespan",
        ),
    ],
)
def test_nothing_keeps_a_member_that_is_asked_to_leave(member, work, drain_timeout, code, said):
    process = member(work, drain_timeout)
    process.send_signal(signal.SIGTERM)
    output = rest_of(process)
    assert process.returncode == code, output
    assert said in output


def test_a_handler_that_ignores_cancellation_cannot_keep_the_process_that_another_one_exits(member):
    """It kept its queues and handled nothing, until somebody sent a signal."""
    process = member("stubborn beside an exit", "600s")
    output = rest_of(process)
    assert process.returncode == 1, output
    assert "ended_by_handler" in output
    assert "exit_forced" in output


def test_a_log_that_nobody_reads_cannot_keep_the_process(member):
    process = member("unread log", "200ms")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1


def test_the_first_handler_that_exits_gives_its_code_which_never_says_that_all_is_well_or_the_users_mistake(tmp_path):
    """One life after another in one process, the last of which ends it. All exit in two handlers: the log named the
    code of the first, and the process ended with that of the second. No lifespan ended, and no connection."""
    given, expected = [0, 2, 256, 258, -249, 9], [1, 1, 1, 1, 7, 9]
    script = tmp_path / "member.py"
    script.write_text(MEMBER)
    command = [sys.executable, script, f"exit {' '.join(map(str, given))}", "1s"]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE_S)
    assert [*map(int, re.findall(r"left with (.+)\n", ended.stdout)), ended.returncode] == expected, ended.stderr
    told = re.findall(r"ended_by_handler +exit_code=(.+) given=(.+)\n", ended.stdout)
    assert told == [(str(code), str(number)) for code, number in zip(expected, given, strict=True)]
    assert ended.stdout.count("exits as well\n") == len(given)
    assert ended.stdout.count("lifespan has ended\nclosed\n") == len(given)
    assert "lbg-watchdog" not in ended.stderr
    assert "handled\n" not in ended.stdout


def test_a_handlers_own_interrupt_ends_the_member_as_its_exit_does(member):
    """The process ended as if somebody had interrupted it, and no line said why."""
    process = member("interrupt", "1s")
    output = rest_of(process)
    assert process.returncode == 1, output
    assert re.search(r"ended_by_handler +exit_code=1 given=KeyboardInterrupt\n", output), output


def test_a_member_leaves_with_its_parent(tmp_path):
    script, pid_file, output = tmp_path / "member.py", tmp_path / "pid", tmp_path / "output"
    script.write_text(MEMBER)
    parent = f"""
import subprocess, sys, time
child = subprocess.Popen(
    [sys.executable, {str(script)!r}, "short", "5s", "--exit-with-parent"], stdout=open({str(output)!r}, "w"),
    stderr=subprocess.STDOUT)
open({str(pid_file)!r}, "w").write(str(child.pid))
while "\\nstarted" not in open({str(output)!r}).read():
    time.sleep(0.05)
"""
    subprocess.run([sys.executable, "-c", parent], check=True, timeout=PATIENCE_S)
    member_pid = int(pid_file.read_text())
    try:
        _wait_until_gone(member_pid, within_s=PATIENCE_S)
    except AssertionError:
        os.kill(member_pid, signal.SIGKILL)
        raise
    assert "left_behind=0, still_bound=0" in output.read_text()


def test_a_member_says_that_a_lifespan_has_cancelled_it_although_a_task_group_had_failed_in_that(member):
    """Python 3.11 and 3.12 have counted one more by then: it was a traceback, as if of one from elsewhere."""
    process = member("cancel", "1s")
    output = rest_of(process)
    assert process.returncode == 1, output
    # The count of 3.13 is right, so that it is known to be the lifespan's own.
    own = "CancelledError; expected a lifespan that reaches its yield"
    assert (": the member was cancelled by a lifespan: " if sys.version_info < (3, 13) else own) in output, output


async def _for_ever():
    await asyncio.get_running_loop().create_future()


async def test_a_cut_ends_the_stretch_and_nothing_of_it_is_left_to_the_task():
    stretch, reached = Interruption(), []
    asyncio.get_running_loop().call_soon(stretch.cut)
    with stretch:
        await _for_ever()
        reached.append("the end of the stretch")
    await asyncio.sleep(0)
    assert reached == []
    assert asyncio.current_task().cancelling() == 0


async def test_what_is_cut_may_wait_while_it_tidies_up_until_it_is_cut_again():
    stretch, tidying, log = Interruption(), asyncio.Event(), []

    async def cut_twice():
        stretch.cut()
        await tidying.wait()
        log.append("tidying")
        stretch.cut()

    cutting = asyncio.create_task(cut_twice())
    with stretch:
        try:
            await _for_ever()
        finally:
            tidying.set()
            await _for_ever()
    await cutting
    assert log == ["tidying"]
    assert asyncio.current_task().cancelling() == 0


async def test_a_cut_before_and_after_the_stretch_is_nothing():
    stretch = Interruption()
    stretch.cut()
    with stretch:
        await asyncio.sleep(0)
        # It comes too late: the stretch ends before the loop has its turn.
        stretch.cut()
    stretch.cut()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert asyncio.current_task().cancelling() == 0


async def test_what_the_stretch_raises_for_a_cut_is_passed_on():
    stretch = Interruption()

    async def run():
        with stretch:
            try:
                await _for_ever()
            except asyncio.CancelledError:
                raise OSError("half open") from None

    asyncio.get_running_loop().call_soon(stretch.cut)
    with pytest.raises(OSError, match="half open"):
        await run()
    assert asyncio.current_task().cancelling() == 0


async def test_a_cancellation_of_somebody_elses_goes_through_a_stretch_that_is_not_cut():
    stretch, begun = Interruption(), asyncio.Event()

    async def run():
        with stretch:
            begun.set()
            await _for_ever()

    task = asyncio.create_task(run())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_task_that_was_cancelled_goes_on_tidying_up_behind_a_stretch_that_is_cut():
    stretch, reached = Interruption(), []

    async def run():
        try:
            await _for_ever()
        finally:
            with stretch:
                asyncio.get_running_loop().call_soon(stretch.cut)
                await _for_ever()
            reached.append("the rest")

    task = asyncio.create_task(run())
    asyncio.get_running_loop().call_soon(task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert reached == ["the rest"]


async def test_a_cut_ends_a_stretch_in_which_a_task_group_has_failed():
    stretch, reached = Interruption(), []

    async def run():
        with stretch:
            await left_by_a_task_group()
            await left_by_a_task_group()
            asyncio.get_running_loop().call_soon(stretch.cut)
            await _for_ever()
        reached.append("the rest")

    await asyncio.create_task(run())
    assert reached == ["the rest"]


async def test_a_cut_ends_a_stretch_that_awaits_what_it_has_cancelled_although_a_task_group_has_failed():
    stretch, reached = Interruption(), []

    async def run():
        with stretch:
            await left_by_a_task_group()
            own = asyncio.create_task(_for_ever())
            asyncio.get_running_loop().call_soon(stretch.cut)
            try:
                await _for_ever()
            finally:
                own.cancel()
                await own
        reached.append("the rest")

    await asyncio.create_task(run())
    assert reached == ["the rest"]


async def test_a_cut_ends_a_stretch_that_waits_after_the_failure_of_a_task_group_that_was_at_work():
    stretch, reached = Interruption(), []

    async def run():
        with stretch:
            await left_by_a_task_group()
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(fail())
                    await _for_ever()
            except* OSError:
                asyncio.get_running_loop().call_soon(stretch.cut)
                await _for_ever()
        reached.append("the rest")

    await asyncio.create_task(run())
    assert reached == ["the rest"]


def _wait_until_gone(pid: int, within_s: float) -> None:
    deadline_s = time.monotonic() + within_s
    while time.monotonic() < deadline_s:
        status = Path(f"/proc/{pid}/stat")
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        # Nobody may be there to collect it; then it stays as a zombie.
        if status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.05)
    raise AssertionError(f"process {pid} is still there")


def test_a_process_ends_although_no_thread_can_be_started_to_tell_of_it():
    ended = subprocess.run([sys.executable, "-c", NO_THREADS], capture_output=True, check=False, timeout=PATIENCE_S)
    assert (ended.returncode, ended.stdout, ended.stderr) == (7, b"", b"")


def test_a_guard_tells_that_it_ends_the_process_although_no_thread_can_be_started_by_then():
    command = [sys.executable, "-c", NO_THREADS_LATER]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert ended.returncode == 7, ended.stderr
    assert "exit_forced" in ended.stdout + ended.stderr
