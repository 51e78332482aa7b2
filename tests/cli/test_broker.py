import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lbg_runtime.cli.broker import parse_address
from lbg_runtime.model.errors import UserError

BOUND_S = 20
COMMAND = [sys.executable, "-m", "lbg_runtime.cli", "broker"]


@contextmanager
def running(*options: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """The broker's process and its ready line; killed at the end if it is still there."""
    process = subprocess.Popen([*COMMAND, *options], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        yield process, process.stderr.readline()
    finally:
        process.kill()
        process.wait(BOUND_S)
        process.stderr.close()


@pytest.mark.real_time
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_when_it_is_ready_and_leaves_when_asked(number: signal.Signals) -> None:
    with running("--smf", "127.0.0.1:0") as (process, line):
        start, _, port = line.rpartition(":")
        assert start == "lbg broker ready: smf 127.0.0.1"
        with socket.create_connection(("127.0.0.1", int(port)), BOUND_S):
            process.send_signal(number)
            assert process.wait(BOUND_S) == 0


@pytest.mark.real_time
def test_a_bad_peer_is_logged_in_one_line_of_json() -> None:
    with running("--smf", "127.0.0.1:0") as (process, line):
        with socket.create_connection(("127.0.0.1", int(line.rpartition(":")[2])), BOUND_S) as peer:
            peer.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert peer.recv(100) == b""
        process.terminate()
        assert process.wait(BOUND_S) == 0
        assert process.stderr is not None
        (logged,) = process.stderr.read().splitlines()
        assert '"event": "peer_dropped"' in logged


@pytest.mark.real_time
def test_it_leaves_with_its_parent() -> None:
    parent_code = (
        "import subprocess, sys, time;"
        f"subprocess.Popen({[*COMMAND, '--smf', '127.0.0.1:0', '--exit-with-parent']!r});"
        "time.sleep(60)"
    )
    # The pipe is the broker's standard error too, and ends when nobody holds it any more.
    parent = subprocess.Popen([sys.executable, "-c", parent_code], stderr=subprocess.PIPE)
    assert parent.stderr is not None
    try:
        assert b"ready" in parent.stderr.readline()
        parent.kill()
        parent.wait(BOUND_S)
        deadline_s = time.monotonic() + BOUND_S
        ended = False
        while not ended and time.monotonic() < deadline_s:
            readable, _, _ = select.select([parent.stderr], [], [], 1)
            ended = bool(readable) and os.read(parent.stderr.fileno(), 100) == b""
        assert ended
    finally:
        parent.kill()
        parent.wait(BOUND_S)
        parent.stderr.close()


@pytest.mark.real_time
@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1:x", ":55555", "127.0.0.1:65536", "192.0.2.1:0"])
def test_a_bad_address_is_one_line_and_exit_code_2(address: str) -> None:
    ended = subprocess.run([*COMMAND, "--smf", address], capture_output=True, text=True, timeout=BOUND_S, check=False)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith("lbg: ")
    assert address in line


@pytest.mark.real_time
def test_a_port_in_use_is_one_line_and_exit_code_2() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = subprocess.run(
            [*COMMAND, "--smf", address], capture_output=True, text=True, timeout=BOUND_S, check=False
        )
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line == f"lbg: smf {address}: Address already in use; expected an address of this machine with a free port"


def test_an_address_is_a_host_and_a_port() -> None:
    assert parse_address("127.0.0.1:0") == ("127.0.0.1", 0)
    assert parse_address("[::1]:55555") == ("::1", 55555)
    with pytest.raises(UserError, match="HOST:PORT"):
        parse_address("55555")
