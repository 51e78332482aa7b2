"""`lbg run` as the first process of a container: in a process namespace of its own, where it is number 1.

Not there where the machine makes no such namespaces (conftest.py).
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.docker.files import ROOT
from tests.patience import PATIENCE_S
from tests.processes import running, until_line

pytestmark = [pytest.mark.real_time, pytest.mark.end_to_end, pytest.mark.timeout(300)]

LBG = [sys.executable, "-m", "lbg_runtime.cli"]
NAMESPACE = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"]
HANDLERS = """
from lbg_runtime import Handlers

handlers = Handlers()

@handlers.handler("orders/>")
async def keep(message):
    pass
"""


def below(pid: int) -> list[int]:
    """Its child processes."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    """The address of a broker for all tests, each of which has a group of its own on it."""
    with running([*LBG, "broker", "--smf", "127.0.0.1:0"], stderr=subprocess.PIPE, text=True) as process:
        yield until_line(process, "lbg broker ready: ").split()[4].rstrip(",")


@contextmanager
def container(broker: str, group: str, folder: Path, *options: str):
    """`lbg run`; the process outside of the namespace, and the first one in it."""
    (folder / "work.py").write_text(HANDLERS)
    settings = {
        "connection": {"transport": "solace", "host": f"tcp://{broker}"},
        "group": {
            "name": group,
            "hash_prefix": group,
            "hash_count": 8,
            "queue_count": 2,
            "provision": "create_missing",
        },
        "handlers": ["work"],
        "membership": {"settle": "100ms", "heartbeat": "200ms"},
    }
    (folder / "config.yaml").write_text(json.dumps(settings))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with running(
        [*NAMESPACE, *LBG, "run", *options], cwd=folder, env=environment, stderr=subprocess.PIPE, text=True
    ) as outside:
        yield outside


def test_members_that_it_started_are_stopped_in_order_and_reaped(broker: str, tmp_path: Path) -> None:
    with container(broker, "several", tmp_path, "--processes", "2") as outside:
        until_line(outside, '"member_started"', times=2)
        (first,) = below(outside.pid)
        assert Path(f"/proc/{first}/status").read_text().count("\nNSpid:\t") == 1
        assert len(below(first)) == 2
        os.kill(first, signal.SIGTERM)
        until_line(outside, '"member_left"', times=2)
        assert outside.wait(PATIENCE_S) == 0


def test_one_member_drains_and_its_exit_code_is_the_containers(broker: str, tmp_path: Path) -> None:
    with container(broker, "one", tmp_path) as outside:
        until_line(outside, '"change": "active"', times=2)
        (first,) = below(outside.pid)
        os.kill(first, signal.SIGTERM)
        until_line(outside, '"left_behind": 0')
        assert outside.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_when_it_is_asked_to_while_it_still_imports(number: signal.Signals) -> None:
    """The kernel drops what the first process has no handler for, and it went on, until it was killed."""
    asked = f"""
import os, sys
import lbg_runtime.cli.__main__
class Asker:
    def find_spec(self, name, *_):
        if name == "lbg_runtime.cli.main":
            os.kill(os.getpid(), {int(number)})
sys.meta_path.insert(0, Asker())
sys.argv[1:] = ["--version"]
lbg_runtime.cli.__main__.main()
"""
    ended = subprocess.run([*NAMESPACE, sys.executable, "-c", asked], cwd=ROOT, check=False, timeout=PATIENCE_S)
    assert ended.returncode == 128 + number
