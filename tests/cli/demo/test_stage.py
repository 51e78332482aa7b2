"""`lbg demo` as a process; its whole story is played in tests/end_to_end/test_demo.py."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.processes import running

pytestmark = pytest.mark.real_time


def test_a_demo_that_is_terminated_says_where_its_logs_are(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lbg_runtime.cli", "demo"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with running(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "* start the development broker\n"
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    (folder,) = tmp_path.iterdir()
    assert told.splitlines()[-1] == f"journals and logs: {folder}"
    assert "Traceback" not in told
