"""Commands that SIGTERM ends as an interrupt: nothing of what they have made or started is left."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.processes import running, until_line

pytestmark = pytest.mark.real_time

WAITING = """
import sys
from tempfile import TemporaryDirectory
from lbg_runtime.cli.interrupt import interrupted_when_asked
with interrupted_when_asked(), TemporaryDirectory():
    print("ready", file=sys.stderr, flush=True)
    {wait}
"""
WAITS = {
    "without a loop": "while True: pass",  # where `signal.pause` may miss what comes just before it
    "on asyncio's loop": "import asyncio; asyncio.run(asyncio.Event().wait())",
    "on uvloop": "import asyncio, uvloop; uvloop.run(asyncio.Event().wait())",
}


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(folder)}


@pytest.mark.parametrize("shell", ["exec", "trap '' INT; exec"], ids=["", "started in the background"])
@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_what_is_asked_to_leave_leaves_no_folder(tmp_path: Path, wait: str, shell: str) -> None:
    command = ["sh", "-c", f'{shell} "$@"', "sh", sys.executable, "-c", WAITING.format(wait=wait)]
    with running(command, stderr=subprocess.PIPE, text=True, env=environment(tmp_path)) as process:
        until_line(process, "ready")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode != 0
    assert list(tmp_path.iterdir()) == []


def test_a_verdict_that_is_asked_to_leave_leaves_no_folder(tmp_path: Path) -> None:
    code = """
import os
from lbg_runtime.cli import main
from lbg_runtime.journal import layout

def lay_out(*_):
    os.write(2, b"ready\\n")
    while True:
        pass

layout.lay_out = lay_out
main.main()
"""
    temporary, journals = tmp_path / "temporary", tmp_path / "journals"
    for each in (temporary, journals):
        each.mkdir()
    (journals / "a.member.jsonl").touch()
    command = [sys.executable, "-c", code, "validate", str(journals), "--layout", str(tmp_path / "layout")]
    with running(command, stderr=subprocess.PIPE, text=True, env=environment(temporary)) as process:
        until_line(process, "ready")
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=PATIENCE_S) == (None, "")
    assert process.returncode == 130
    assert list(temporary.iterdir()) == []


def test_a_bench_that_is_asked_to_leave_leaves_neither_folder_nor_process(tmp_path: Path) -> None:
    """Its landers went on, and nobody knew of them."""
    command = [sys.executable, "-m", "lbg_runtime.cli", "bench", "landing"]
    with running(command, stderr=subprocess.DEVNULL, env=environment(tmp_path)) as process:
        while not list(tmp_path.glob("*/group/lander-*.log")):
            assert process.poll() is None
            time.sleep(0.01)  # a file of another process has no event to wait for
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)
    assert process.returncode == 130
    assert list(tmp_path.iterdir()) == []
    assert processes_with(str(tmp_path)) == []


def processes_with(word: str) -> list[str]:
    """The command lines that have this."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended meanwhile
            found.append(file.read_bytes().decode(errors="replace"))
    return [each for each in found if word in each]
