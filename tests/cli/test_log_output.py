"""Where the lines of a log go: what cannot be written is counted, and nobody waits or fails for it."""

import errno
import io
import json
import os
import select
import socket
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from lbg_runtime.cli import log_output
from lbg_runtime.cli.log_output import LogOutput

pytestmark = pytest.mark.real_time


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


def test_a_line_takes_the_place_of_a_row_that_is_shown_below_the_log():
    stream = io.StringIO()
    output = LogOutput(stream)
    with output.above_row():
        stream.write("half a bar")
        output.write("one\n")
    output.write("two\n")
    assert stream.getvalue() == "half a bar\r\x1b[2Kone\ntwo\n"


def test_what_could_not_be_written_is_told_of_again_where_the_line_that_tells_it_could_not_be_either(monkeypatch):
    stream, is_full = io.StringIO(), iter([True, False, True, False, False])
    output, write = LogOutput(stream), stream.write
    monkeypatch.setattr(stream, "write", lambda text: _FullDisk().write(text) if next(is_full) else write(text))
    report = SimpleNamespace(error=lambda event, count: output.write(f"{event} {count}\n"))
    monkeypatch.setattr(log_output, "_log", report)
    for line in ("one\n", "two\n", "three\n"):
        output.write(line)
    assert stream.getvalue() == "two\nthree\nlog_writes_failed 2\n"


AGAIN = """
import errno, io, sys, structlog
from lbg_runtime.cli.log import configure_log

class Failing:
    def __del__(self):
        raise ValueError("in a finalizer")

class Disk(io.StringIO):
    is_full = True

    def write(self, text):
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        if "two" in text:
            Failing()
        return super().write(text)

disk, stderr = Disk(), sys.stderr
sys.stderr = disk
configure_log(as_json=True)
log = structlog.get_logger()
log.info("one")
disk.is_full = False
log.info("two")
log.info("three")
stderr.write(disk.getvalue())
"""


def test_a_line_that_is_written_while_another_one_is_waits_for_nothing(warm):
    ended = warm.run(AGAIN)
    assert ended.returncode == 0
    told = [json.loads(line)["event"] for line in ended.stderr.splitlines()]
    assert sorted(told) == ["exception_ignored", "log_writes_failed", "three", "two"]


CROSSWISE = """
import logging, sys, threading, structlog
from lbg_runtime.cli.log import configure_log

configure_log(as_json=True)
lock, is_held, is_asked = threading.Lock(), threading.Event(), threading.Event()

class Slow:
    def __str__(self):
        is_asked.set()
        with lock:
            return "slow"

def hold():
    with lock:
        is_held.set()
        is_asked.wait()
        structlog.get_logger().warning("held")

thread = threading.Thread(target=hold)
thread.start()
is_held.wait()
logging.getLogger("somebody").warning("%s", Slow())
thread.join()
"""


def test_a_line_that_is_made_under_a_lock_of_the_users_waits_for_no_line_of_whoever_holds_that(warm):
    ended = warm.run(CROSSWISE)
    assert ended.returncode == 0
    assert [json.loads(line)["event"] for line in ended.stderr.splitlines()] == ["held", "slow"]


@pytest.mark.parametrize("buffering", [-1, 0], ids=["buffered", "unbuffered"])
def test_what_a_pipe_does_not_take_is_counted_and_half_a_line_is_a_line_of_its_own(buffering):
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with os.fdopen(reading, "rb"), os.fdopen(writing, "wb", buffering) as raw, capture_logs() as logs:
        output = LogOutput(io.TextIOWrapper(raw, write_through=not buffering))
        lines = [f"{number}:{'x' * 10_000}\n" for number in range(30)]
        for line in lines:
            output.write(line)
        os.set_blocking(reading, False)
        read = os.read(reading, 1 << 20).decode()
        output.write("whole\n")
        assert logs == [{"event": "log_writes_failed", "log_level": "error", "count": 30 - read.count("\n")}]
        assert read.startswith("".join(lines[: read.count("\n")]))
        assert os.read(reading, 1 << 20) == b"\nwhole\n"


def test_a_reader_that_stopped_reading_holds_up_one_line_for_a_moment_and_none_after_it(monkeypatch):
    monkeypatch.setattr(log_output, "READER_WAIT_MS", 20)
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", 0), os.fdopen(writing, "w") as stream, capture_logs() as logs:
        output = LogOutput(stream)
        for number in range(100):
            output.write(f"{number}:{'x' * 5_000}\n")
        assert logs == []
        read = os.read(reading, 1 << 20)
        output.write("read again\n")
        assert logs == [{"event": "log_writes_failed", "log_level": "error", "count": 100 - read.count(b"\n")}]
        assert os.read(reading, 1 << 20).lstrip(b"\n") == b"read again\n"


class _SlowReader:
    """In the place of `select` and `time`: reads a page from a full pipe each time somebody has waited 900 ms."""

    POLLOUT, PIPE_BUF = select.POLLOUT, select.PIPE_BUF

    def __init__(self, reading):
        self.reading = reading
        self.now_ms = 0

    def poll(self):
        looking = select.poll()
        return SimpleNamespace(register=looking.register, poll=lambda within_ms: self._poll(looking, within_ms))

    def monotonic(self):
        return self.now_ms / 1_000

    def _poll(self, looking, within_ms):
        if (found := looking.poll(0)) or within_ms < 900:
            self.now_ms += 0 if found else within_ms
            return found
        self.now_ms += 900
        os.read(self.reading, 4096)
        return looking.poll(0)


def test_a_line_of_many_pieces_waits_for_a_slow_reader_no_longer_than_one_of_one(monkeypatch):
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", 0), os.fdopen(writing, "w") as stream, capture_logs():
        slow = _SlowReader(reading)
        monkeypatch.setattr(log_output, "select", slow)
        monkeypatch.setattr(log_output, "time", slow)
        output = LogOutput(stream)
        output.write("x" * 200_000)
        assert slow.now_ms == log_output.READER_WAIT_MS


def test_where_others_take_the_room_a_line_waits_for_more_but_no_longer_than_for_a_reader(monkeypatch):
    now_s, refusals, write = [0.0], [2], os.write

    def sleep(seconds):
        now_s[0] += seconds

    def write_or_not(file, data):
        if refusals[0]:
            refusals[0] -= 1
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return write(file, data)

    monkeypatch.setattr(log_output, "time", SimpleNamespace(monotonic=lambda: now_s[0], sleep=sleep))
    monkeypatch.setattr(os, "write", write_or_not)
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", 0), os.fdopen(writing, "w") as stream, capture_logs() as logs:
        output = LogOutput(stream)
        output.write("one\n")
        assert (os.read(reading, 100), logs) == (b"one\n", [])
        refusals[0], began_s = 1_000_000, now_s[0]
        output.write("two\n")
        assert now_s[0] - began_s == pytest.approx(log_output.READER_WAIT_MS / 1_000, abs=0.002)
        began_s = now_s[0]
        output.write("three\n")
        assert now_s[0] == began_s, "nobody waits again for who has not read"
        refusals[0] = 0
        output.write("four\n")
        assert os.read(reading, 100) == b"four\n"
        assert [(line["event"], line["count"]) for line in logs] == [("log_writes_failed", 2)]


ON_A_TERMINAL = """
from lbg_runtime.cli import log_output
import sys
log_output.READER_WAIT_MS = 20
output = log_output.LogOutput(sys.stderr)
for number in range(2_000):
    output.write(f"{number}:{'x' * 200}\\n")
"""


def test_a_terminal_that_nobody_reads_holds_nobody_up(warm):
    """It says that it has room as long as it has any, and keeps whoever writes more until there is more."""
    reading, writing = os.openpty()
    try:
        assert warm.run(ON_A_TERMINAL, stderr=writing).returncode == 0
        assert os.read(reading, 1_000).startswith(b"0:xxx")
    finally:
        os.close(reading)
        os.close(writing)


def test_a_line_for_which_a_pipe_has_room_is_written_in_one_piece_and_no_other_process_breaks_into_it(monkeypatch):
    pieces, write = [], os.write
    monkeypatch.setattr(os, "write", lambda file, data: pieces.append(len(data)) or write(file, data))
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", 0), os.fdopen(writing, "w") as stream:
        output = LogOutput(stream)
        for _ in range(5):
            output.write("x" * 9_999 + "\n")
            output.write("y\n")
        assert pieces == [10_000, 2] * 5
        assert os.get_blocking(writing)  # It is shared with other processes.


def test_a_socket_that_nobody_reads_holds_nobody_up(monkeypatch):
    monkeypatch.setattr(log_output, "READER_WAIT_MS", 50)
    ours, theirs = socket.socketpair()
    with ours, theirs, ours.makefile("w") as stream, capture_logs() as logs:
        output = LogOutput(stream)
        output.write("x" * 1_000_000 + "\n")
        while select.select([theirs], [], [], 0)[0]:
            theirs.recv(1_000_000)
        output.write("next\n")
        assert theirs.recv(100) == b"\nnext\n"
    assert [(line["event"], line["count"]) for line in logs] == [("log_writes_failed", 1)]


def test_a_line_that_can_be_written_is_there_at_once():
    stream = io.StringIO()
    output = LogOutput(stream)
    output.write("one\n")
    assert stream.getvalue() == "one\n"
