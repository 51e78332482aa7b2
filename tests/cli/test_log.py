"""What a command's log shows, and what it must not."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.real_time

SCRIPT = """
import sys, structlog
from lbg_runtime.cli.log import configure_log
configure_log(as_json=sys.argv[1] == "json")

def handle(payload):
    raise ValueError("the order is wrong")

try:
    handle("card " + "4711")
except ValueError as error:
    structlog.get_logger().warning("handling_failed", queue="orders/0", exc_info=error)
structlog.get_logger().debug("not_shown")
"""


def _log(form: str) -> str:
    ended = subprocess.run([sys.executable, "-c", SCRIPT, form], capture_output=True, text=True, check=True, timeout=30)
    assert ended.stdout == ""
    return ended.stderr


def test_lines_for_machines_are_json_with_the_traceback_and_no_local_variable():
    (line,) = _log("json").splitlines()
    entry = json.loads(line)
    assert (entry["event"], entry["level"], entry["queue"]) == ("handling_failed", "warning", "orders/0")
    assert entry["exception"][0]["exc_value"] == "the order is wrong"
    assert "card 4711" not in line


def test_lines_for_people_have_the_traceback_and_no_local_variable():
    text = _log("text")
    assert "ValueError: the order is wrong" in text
    assert "card 4711" not in text
    assert "not_shown" not in text
