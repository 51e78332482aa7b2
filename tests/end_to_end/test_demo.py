"""The whole story with real processes, the official client and real signals."""

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import orjson
import pytest

from tests.patience import PATIENCE_S

BOUND_S = 230
"""For the whole story, within the limit of a whole test."""
KEYS = {
    "verdict",
    "published",
    "handled_first",
    "lost",
    "out_of_order",
    "overlaps",
    "duplicates",
    "duplicate_bound",
    "moves",
}

pytestmark = [pytest.mark.real_time, pytest.mark.end_to_end]


def demo_command(*options: str) -> list[str]:
    return [sys.executable, "-m", "lbg_runtime.cli", "demo", *options]


def demo_environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(folder)}


def test_the_demo_ends_with_a_valid_verdict_and_leaves_nothing_behind(tmp_path: Path) -> None:
    ended = subprocess.run(
        demo_command("--json", "--rate", "100"),
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=False,
        env=demo_environment(tmp_path),
    )
    assert ended.returncode == 0, ended.stderr + ended.stdout
    verdict = orjson.loads(ended.stdout)
    assert verdict.keys() >= KEYS
    assert verdict["verdict"] == "valid"
    assert verdict["published"] == verdict["handled_first"] > 1000
    assert (verdict["lost"], verdict["out_of_order"], verdict["overlaps"]) == (0, 0, 0)
    assert verdict["duplicates"] <= verdict["duplicate_bound"]
    causes = {move["cause"] for move in verdict["moves"]}
    assert {"rebind", "crash", "stop"} <= causes
    assert all(move.keys() == {"queue", "from", "to", "cause", "pause_ms"} for move in verdict["moves"])
    assert list(tmp_path.iterdir()) == []


def processes_of_session(session: int) -> set[int]:
    """Pids of all processes of a session, from the process table."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # It may end while it is looked at.
            # After the name, which may hold anything: state, parent, group, session.
            if (process / "stat").read_text().rpartition(")")[2].split()[3] == str(session):
                found.add(int(process.name))
    return found


def wait_until_gone(pids: set[int]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline_s, f"still running: {pids}"
        time.sleep(0.01)  # nobody tells of it
