"""What a command's log shows, and what it must not."""

import errno
import io
import json
import subprocess
import sys

import pytest
from structlog.testing import capture_logs

from lbg_runtime.cli.log import LogOutput

pytestmark = pytest.mark.real_time

SCRIPT = """
import sys, structlog
from lbg_runtime.cli.log import configure_log
configure_log(as_json=sys.argv[1] == "json")

def handle(payload):
    raise ValueError("the order is wrong" + sys.argv[2] * 5_000_000)

try:
    handle("card " + "4711")
except ValueError as error:
    structlog.get_logger().warning("handling_failed", queue="orders/0", exc_info=error)
structlog.get_logger().debug("not_shown")
"""


def _log(form: str, tail: str = "") -> str:
    command = [sys.executable, "-c", SCRIPT, form, tail]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    assert ended.stdout == ""
    return ended.stderr


def test_lines_for_machines_are_json_with_the_traceback_and_no_local_variable():
    (line,) = _log("json").splitlines()
    entry = json.loads(line)
    assert (entry["event"], entry["level"], entry["queue"]) == ("handling_failed", "warning", "orders/0")
    assert entry["exception"][0]["exc_value"] == "the order is wrong"
    assert "card 4711" not in line


@pytest.mark.parametrize("form", ["json", "text"])
def test_an_error_that_quotes_a_whole_payload_makes_no_log_of_its_size(form):
    text = _log(form, "x")
    assert "the order is wrongxxx" in text
    assert "characters)" in text
    assert len(text) < 20_000


def test_lines_for_people_have_the_traceback_and_no_local_variable():
    text = _log("text")
    assert "ValueError: the order is wrong" in text
    assert "card 4711" not in text
    assert "not_shown" not in text


class _FullDisk(io.StringIO):
    def write(self, text):
        raise OSError(errno.ENOSPC, "No space left on device")


class _GoneReader(io.StringIO):
    def flush(self):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


def _closed():
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("make", [_FullDisk, _GoneReader, _closed])
def test_what_cannot_be_written_raises_nothing(make):
    output = LogOutput(make())
    output.write("one\n")
    output.write("two\n")
    output.flush()


def test_what_could_not_be_written_is_told_of_once_when_it_can_be(monkeypatch):
    stream = io.StringIO()
    output = LogOutput(stream)
    with monkeypatch.context() as full, capture_logs() as logs:
        full.setattr(stream, "write", _FullDisk().write)
        output.write("one\n")
        output.write("two\n")
        assert logs == []
        full.undo()
        output.write("three\n")
        output.write("four\n")
    assert stream.getvalue() == "three\nfour\n"
    assert [(line["event"], line["count"]) for line in logs] == [("log_writes_failed", 2)]


def test_a_line_that_can_be_written_is_there_at_once():
    stream = io.StringIO()
    output = LogOutput(stream)
    output.write("one\n")
    assert stream.getvalue() == "one\n"


def test_no_line_of_a_log_on_a_full_disk_raises_whoever_writes_it():
    script = f"""{SCRIPT}
import logging, os
logging.getLogger("somebody").warning("else")
os._exit(7)
"""
    with open("/dev/full", "w") as full:
        for form in ("json", "text"):
            ended = subprocess.run([sys.executable, "-c", script, form, ""], stderr=full, check=False, timeout=30)
            assert ended.returncode == 7
