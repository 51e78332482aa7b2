"""`lbg dashboard`: what it refuses, and the page of a real group."""

import http.client
import json
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner

from lbg_runtime.cli.main import command_line
from lbg_runtime.model.errors import ConfigError, UserError
from tests.patience import PATIENCE_S
from tests.processes import running

app = command_line()

GROUP = {"name": "orders", "hash_prefix": "h", "hash_count": 8, "queue_count": 4, "provision": "create_missing"}


def written(tmp_path, host="tcp://127.0.0.1:1", **sections):
    path = tmp_path / "config.yaml"
    settings = {"connection": {"transport": "solace", "host": host}, "group": GROUP, **sections}
    path.write_text(json.dumps(settings))
    return str(path)


def refusal(*arguments):
    result = CliRunner().invoke(app, ["dashboard", *arguments])
    assert isinstance(result.exception, UserError), result.output
    return result.exception


@pytest.mark.parametrize("option", ["--listen", "--status"])
def test_an_address_that_is_none_is_told_with_its_option(tmp_path, option) -> None:
    assert str(refusal("--config", written(tmp_path), option, "nowhere")) == (
        f"{option}: 'nowhere'; expected HOST:PORT with a port from 0 to 65535"
    )


def test_beyond_loopback_it_wants_a_token_before_it_does_anything(tmp_path) -> None:
    error = refusal("--config", written(tmp_path), "--listen", "0.0.0.0:8080")
    assert (error.where, error.found) == ("--listen", "0.0.0.0:8080")
    with_token = written(tmp_path, ops={"status_token": "t"})
    assert isinstance(refusal("--config", with_token, "--listen", "0.0.0.0:8080"), ConfigError), "nobody answers there"


@pytest.mark.parametrize(
    ("ops", "options", "asked"),
    [
        ({"status": "127.0.0.1:8080"}, (), ["127.0.0.1:8080"]),
        # Only the member knows where it listens.
        ({"status": "127.0.0.1:0"}, (), []),
        ({}, (), []),
        ({"status": "127.0.0.1:8080"}, ("--status", "a:1", "--status", "b:2"), ["a:1", "b:2"]),
    ],
)
def test_members_are_asked_where_the_options_say_or_else_the_settings(tmp_path, monkeypatch, ops, options, asked):
    found = []

    async def show(settings, address, token, members, parent_pid):
        found.extend(map(str, members))

    monkeypatch.setattr("lbg_runtime.cli.dashboard._show", show)
    result = CliRunner().invoke(app, ["dashboard", "--config", written(tmp_path, ops=ops), *options])
    assert (result.exit_code, found) == (0, asked)


@pytest.mark.real_time
@pytest.mark.end_to_end
def test_a_real_group_is_shown_with_its_rates_and_the_page_leaves_when_asked(lbg, tmp_path):
    def until(process, found):
        for line in process.stderr:
            if found(line):
                return line
        raise AssertionError(f"it ended with {process.wait()}")

    with ExitStack() as ending:
        streams = {"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL}

        def start(*arguments):
            return ending.enter_context(lbg.running(tmp_path, *arguments, **streams))

        ready = until(start("broker", "--smf", "127.0.0.1:0"), lambda line: line.startswith("lbg broker ready: smf "))
        (tmp_path / "kept.py").write_text(
            "from lbg_runtime import Handlers\nhandlers = Handlers()\n\n"
            "@handlers.handler('>')\nasync def keep(message):\n    pass\n"
        )
        config = written(
            tmp_path,
            host=f"tcp://{ready.split()[4].rstrip(',')}",
            handlers=["kept"],
            ops={"status": "127.0.0.1:0"},
            membership={"settle": "100ms"},
        )
        member = start("run", "--config", config, "--member-id", "a")
        status = json.loads(until(member, lambda line: '"status_served"' in line))["address"]
        until(member, lambda line: '"active"' in line)
        command = [sys.executable, "-m", "lbg_runtime.cli", "dashboard", "--config", config, "--status", status]
        page = ending.enter_context(running(command, cwd=tmp_path, text=True, **streams))
        url = until(page, lambda line: line.startswith("lbg dashboard: ")).split()[-1]
        start("publish", "--config", config, "--topic", "orders/new", "--rate", "200", "--keys", "50")
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE_S)
        connection.request("GET", "/v1/feed")
        response = connection.getresponse()
        rates = {}
        while len(rates) < 4:
            line = response.readline()
            assert line, "the feed ended"
            if line.startswith(b"data: "):
                rows = json.loads(line.removeprefix(b"data: "))["queues"]
                rates |= {index: row[6] for index, row in rows.items() if row[0] == 0 and row[6]}
        page.send_signal(signal.SIGTERM)
        assert response.read() is not None
        connection.close()
        assert page.wait(PATIENCE_S) == 0
        assert "Traceback" not in page.stderr.read()


@pytest.mark.real_time
@pytest.mark.end_to_end
def test_an_address_that_is_taken_is_one_line(lbg, tmp_path):
    with (
        lbg.running(tmp_path, "broker", "--smf", "127.0.0.1:0", stderr=subprocess.PIPE) as broker,
        socket.create_server(("127.0.0.1", 0)) as taken,
    ):
        ready = next(line for line in broker.stderr if line.startswith("lbg broker ready: smf "))
        config = written(tmp_path, host=f"tcp://{ready.split()[4].rstrip(',')}")
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = lbg(tmp_path, "dashboard", "--config", config, "--listen", address)
    assert ended.returncode == 2, ended.stderr
    (line,) = [line for line in ended.stderr.splitlines() if not line.startswith("{")]
    assert (
        line
        == f"lbg: --listen: {address}: Address already in use; expected an address of this machine with a free port"
    )
