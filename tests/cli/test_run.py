"""`lbg run` as shipped: the embedded broker, the official client, the example handlers, from start to a clean end."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import running

pytestmark = [pytest.mark.real_time, pytest.mark.end_to_end]

ROOT = Path(__file__).parents[2]


@pytest.fixture
def member(tmp_path):
    """`lbg run` on the settings as shipped but for the port; yields the process and the address of its broker."""
    command = [sys.executable, "-m", "lbg_runtime.cli", "run"]
    with running(
        [*command, "--journal", tmp_path, "--member-id", "member-0", "--json"],
        cwd=ROOT, env={**os.environ, "LBG_HOST": "tcp://127.0.0.1:0"}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        yield process, _until(process, "embedded_broker_started")["host"]


def _until(process: subprocess.Popen[str], event: str, times: int = 1) -> dict[str, object]:
    """Read the member's log up to an event; the test's own time limit is the bound."""
    for line in process.stderr:
        entry = json.loads(line)
        if entry["event"] == event:
            times -= 1
            if times == 0:
                return entry
    raise AssertionError(f"it ended with {process.wait()} before {event}")


def test_it_handles_what_another_process_publishes_and_leaves_clean(member, tmp_path):
    process, host = member
    _until(process, "member_started")  # only now every queue is there
    publish = subprocess.run(
        [sys.executable, "-m", "lbg_runtime.cli", "publish", "--topic", "orders/new", "--count", "20", "--keys", "4"],
        cwd=ROOT, env={**os.environ, "LBG_HOST": host, "LBG_TRANSPORT": "solace"},
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert publish.returncode == 0, publish.stderr
    _until(process, "order_handled", times=20)
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    assert json.loads(output) == {"member": "member-0", "clean": True, "left_behind": 0, "still_bound": 0}
    (journal,) = tmp_path.glob("member-0-*.member.jsonl")
    records = [json.loads(line) for line in journal.read_text().splitlines()]
    handled = [(record["key"], record["seq"]) for record in records if record["kind"] == "dispatch"]
    assert len(handled) == 20
    for key in {key for key, _ in handled}:
        numbers = [number for of_key, number in handled if of_key == key]
        assert numbers == list(range(1, len(numbers) + 1))
    assert records[-1]["clean"] is True
