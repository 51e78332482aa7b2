"""Real processes and signals: a member drains, is cut short, or is ended when its handlers will not let it go."""

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.processes import running

pytestmark = pytest.mark.real_time

MEMBER = """
import asyncio, os, sys
from lbg_runtime import App, Handlers, Message
from lbg_runtime.config.load import parse_settings
from lbg_runtime.runtime import app as app_module, supervisor
from lbg_runtime.transport.memory.broker import MemoryBroker
from lbg_runtime.transport.memory.transport import MemoryTransport

supervisor.TAIL_MS = app_module.TAIL_MS = 200
app_module.EXIT_GRACE_S = 0.3
work = sys.argv[1]
handlers = Handlers()

@handlers.handler("orders/>")
async def handle(message):
    print("started", flush=True)
    if work == "short":
        await asyncio.sleep(0.3)
    elif work.startswith("exit"):
        sys.exit(int(work.removeprefix("exit ")))
    while work in ("long", "stubborn"):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            if work == "long":
                raise
    print("handled", flush=True)

class Session(MemoryTransport):
    async def provision(self, queue, subscriptions):
        await super().provision(queue, subscriptions)
        self.send(Message("h/0/orders/new", b""))

settings = parse_settings({
    "group": {"name": "orders", "hash_prefix": "h", "hash_count": 1, "queue_count": 1, "provision": "create_missing"},
    "membership": {"mode": "static", "index": 0, "count": 1},
    "rebind": {"mode": "cycle", "drain_timeout": sys.argv[2]},
}, "test", {})
report = App(handlers, settings, session=Session(MemoryBroker(), "member")).run_sync(
    parent_pid=os.getppid() if "--exit-with-parent" in sys.argv else None
)
print(report, flush=True)
sys.exit(report.exit_code)
"""


@pytest.fixture
def member(tmp_path):
    """Starts a member with a kind of work and a drain timeout; its first message is being handled on return."""
    script = tmp_path / "member.py"
    script.write_text(MEMBER)

    def start(work, drain_timeout):
        command = [sys.executable, script, work, drain_timeout]
        process = ending.enter_context(running(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        for line in process.stdout:
            if line == "started\n":
                return process
        raise AssertionError(f"it ended with {process.wait()}")

    with ExitStack() as ending:
        yield start


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_handler_finish_and_exits_with_0(member, number):
    process = member("short", "20s")
    process.send_signal(number)
    output, _ = process.communicate(timeout=20)
    assert process.returncode == 0, output
    assert "handled\n" in output
    assert "left_behind=0, still_bound=0" in output


def test_a_second_signal_cancels_the_handler_and_exits_with_1(member):
    process = member("long", "60s")
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=20)
    assert process.returncode == 1, output
    assert "left_behind=1, still_bound=0" in output


def test_the_drain_deadline_cancels_the_handler_and_exits_with_1(member):
    process = member("long", "200ms")
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=20)
    assert process.returncode == 1, output
    assert "left_behind=1, still_bound=0" in output


def test_a_handler_that_ignores_cancellation_cannot_keep_the_process(member):
    process = member("stubborn", "200ms")
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=20)
    assert process.returncode == 1, output
    assert "exit_forced" in output


@pytest.mark.parametrize(("code", "expected"), [(7, 7), (0, 1)])
def test_a_handler_that_exits_ends_the_process_with_its_code_which_never_says_that_all_is_well(
    tmp_path, code, expected
):
    script = tmp_path / "member.py"
    script.write_text(MEMBER)
    ended = subprocess.run(
        [sys.executable, script, f"exit {code}", "1s"], check=False, capture_output=True, text=True, timeout=20
    )
    assert ended.returncode == expected, ended.stderr
    assert "handled\n" not in ended.stdout


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
    subprocess.run([sys.executable, "-c", parent], check=True, timeout=20)
    member_pid = int(pid_file.read_text())
    try:
        _wait_until_gone(member_pid, within_s=20)
    except AssertionError:
        os.kill(member_pid, signal.SIGKILL)
        raise
    assert "left_behind=0, still_bound=0" in output.read_text()


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
