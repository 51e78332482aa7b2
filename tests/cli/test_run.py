"""`lbg run` as shipped: the embedded broker, the official client, the example handlers, from start to a clean end.

And what it starts several processes with, or refuses to.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import types
from pathlib import Path

import pytest
import structlog
import typer
from typer.testing import CliRunner

from lbg_runtime.cli.main import command_line
from lbg_runtime.cli.member import run_member
from lbg_runtime.model.errors import UserError
from lbg_runtime.runtime import siblings
from lbg_runtime.runtime.supervisor import StopReport
from tests.patience import PATIENCE_S
from tests.processes import running, until_line

app = command_line()

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
    """Read the member's log up to an event."""
    entry: dict[str, object] = json.loads(until_line(process, f'"event": "{event}"', times))
    return entry


def test_it_handles_what_another_process_publishes_and_leaves_clean(member, lbg, tmp_path):
    process, host = member
    _until(process, "member_started")  # only now every queue is there
    load = ("--topic", "orders/new", "--count", "20", "--keys", "4")
    publish = lbg(ROOT, "publish", *load, env={**os.environ, "LBG_HOST": host, "LBG_TRANSPORT": "solace"})
    assert publish.returncode == 0, publish.stderr
    assert _until(process, "order_handled", times=20)["member"] == "member-0"
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=PATIENCE_S)
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


class Left:
    """An App that has left at once."""

    membership = types.SimpleNamespace(member="a")

    def __init__(self):
        self.was_run = []

    def run_sync(self, **how):
        self.was_run.append(how)
        return StopReport(left_behind=2, still_bound=0)


def test_nothing_follows_a_member_but_how_it_left(capsys):
    # Or a second signal would make another exit code of it.
    left = Left()
    with pytest.raises(typer.Exit) as ended:
        run_member(left, 7, as_json=True, more=lambda: {"landed": 3})
    assert left.was_run == [{"parent_pid": 7, "ends_process": True}]
    assert ended.value.exit_code == 1
    told = {"member": "a", "clean": False, "left_behind": 2, "still_bound": 0, "landed": 3}
    assert json.loads(capsys.readouterr().out) == told


@pytest.mark.parametrize("option", [("--json",), ("--member-index", "0"), ("--member-count", "2")])
def test_what_is_for_one_process_is_named(siblings_of, option):
    with pytest.raises(UserError, match=rf"^--processes: 2, with {option[0]}; expected 1$"):
        siblings_of("--processes", "2", *option)


SIBLINGS_CONFIG = """
connection: {{transport: {transport}, host: "tcp://127.0.0.1:9"{client_name}}}
group: {{name: orders, hash_prefix: h, hash_count: 9, queue_count: 4}}
ops: {{status: "127.0.0.1:{port}"}}
{more}
"""


@pytest.fixture
def siblings_of(tmp_path, monkeypatch):
    """The commands that `lbg run` with these arguments starts several processes with; raises what refuses them."""
    commands = []

    class Started:
        def __init__(self, given, drain_timeout_ms):
            commands.extend(given)

        async def run(self, *, parent_pid=None, ends_process=False):
            return 0

    monkeypatch.setattr(siblings, "Siblings", Started)
    monkeypatch.setattr("lbg_runtime.cli.log.configure_log", lambda: None)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def start(*arguments, transport="solace", port=8080, client_name="", more="handlers: [shop]"):
        config = tmp_path / "config.yaml"
        config.write_text(SIBLINGS_CONFIG.format(transport=transport, port=port, client_name=client_name, more=more))
        CliRunner().invoke(app, ["run", "--config", str(config), *arguments], catch_exceptions=False)
        return commands

    return start


def _status_ports(commands):
    return [int(command[command.index("--status-port") + 1]) for command in commands]


@pytest.mark.parametrize(
    ("arguments", "ports"),
    [((), [8080, 8081, 8082]), (("--status-port", "9000"), [9000, 9001, 9002]), (("--status-port", "0"), [0, 0, 0])],
)
def test_several_processes_count_up_from_the_status_port_that_was_asked_for(siblings_of, arguments, ports):
    assert _status_ports(siblings_of("--processes", "3", *arguments)) == ports


def test_several_processes_may_use_the_last_status_port(siblings_of):
    assert _status_ports(siblings_of("--processes", "2", "--status-port", "65534")) == [65_534, 65_535]


def test_several_processes_are_refused_where_there_is_no_status_port_for_the_last_one(siblings_of):
    with pytest.raises(UserError) as refused:
        siblings_of("--processes", "2", "--status-port", "65535")
    assert str(refused.value) == (
        "--processes: 2 with status port 65535; "
        "expected a status port up to 65534, as it is increased by one for each process"
    )


def test_several_processes_with_an_embedded_broker_are_refused_by_name(siblings_of):
    with pytest.raises(UserError) as refused:
        siblings_of("--processes", "2", transport="embedded")
    assert str(refused.value) == (
        "--processes: 2 with connection.transport: embedded; expected one, as each would be a broker of its own"
    )


def test_several_processes_with_one_client_name_are_refused_by_name(siblings_of):
    with pytest.raises(UserError) as refused:
        siblings_of("--processes", "2", client_name=", client_name: orders-east")
    assert str(refused.value) == (
        "--processes: 2 with connection.client_name: orders-east; expected one, or each would end the other's session"
    )


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (
            "sidecar: {application: 'http://127.0.0.1:1', subscriptions: [{topic: 'orders/>', route: /orders}]}",
            "2 with a sidecar; expected one, as it has one application and one port",
        ),
        ("membership: {mode: static, index: 0, count: 2}", "2 of mode static; expected membership.mode: discovered"),
    ],
)
def test_several_processes_are_refused_where_each_would_be_the_same_member_or_application(siblings_of, more, told):
    with pytest.raises(UserError) as refused:
        siblings_of("--processes", "2", more=more)
    assert str(refused.value) == f"--processes: {told}"


def test_a_member_that_is_reloaded_is_one_process(siblings_of):
    with pytest.raises(UserError, match=r"^--reload: with 2 processes; expected one$"):
        siblings_of("--processes", "2", "--reload")


def test_each_of_several_processes_is_a_member_of_its_own_that_leaves_with_its_parent(siblings_of, tmp_path):
    config, journal = str(tmp_path / "config.yaml"), str(tmp_path / "journal")
    assert siblings_of("--processes", "2", "--member-id", "a", "--journal", journal, "--status-port", "9000") == [
        [
            sys.executable, "-m", "lbg_runtime.cli", "run", "--config", config, "--exit-with-parent",
            "--member-id", f"a-{number}", "--journal", journal, "--status-port", str(9000 + number),
        ]
        for number in range(2)
    ]  # fmt: skip


@pytest.mark.parametrize("option", [("--processes", "2"), ("--reload",)])
def test_settings_in_a_pipe_are_refused_where_several_processes_read_them(tmp_path, monkeypatch, option):
    """The members said that the file is empty: what the first process has read of a pipe is gone."""
    monkeypatch.setattr("lbg_runtime.cli.log.configure_log", lambda: None)
    monkeypatch.setattr(sys, "path", [*sys.path])
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match=r"^--config: .*pipe; expected a file, with --processes or --reload$"):
        CliRunner().invoke(app, ["run", "--config", str(tmp_path / "pipe"), *option], catch_exceptions=False)


def test_one_process_reads_its_settings_from_a_pipe(tmp_path, monkeypatch):
    monkeypatch.setattr("lbg_runtime.cli.log.configure_log", lambda: None)
    monkeypatch.setattr(sys, "path", [*sys.path])
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    settings = {"group": {"name": "g", "hash_prefix": "h", "hash_count": 1, "queue_count": 1}, "handlers": ["no_such"]}
    writing = threading.Thread(target=pipe.write_text, args=(json.dumps(settings),), daemon=True)
    writing.start()
    with pytest.raises(UserError, match=r"^handlers: no_such: "):
        CliRunner().invoke(app, ["run", "--config", str(pipe)], catch_exceptions=False)
    writing.join()


def test_a_log_that_handlers_have_set_up_and_that_fails_does_not_end_the_member(tmp_path, monkeypatch):
    """Their log was the runtime's as well, which took a closed pipe there for an error of its own."""
    (tmp_path / "with_a_log.py").write_text(
        "import structlog\n"
        "from lbg_runtime import Handlers\n"
        "handlers = Handlers()\n"
        "handlers.handler('orders/>')(lambda message: None)\n"
        "def broken(*_):\n    raise BrokenPipeError\n"
        "structlog.configure(processors=[broken])\n"
    )
    group = "{name: g, hash_prefix: h, hash_count: 1, queue_count: 1}"
    (tmp_path / "config.yaml").write_text(f"group: {group}\nhandlers: [with_a_log]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr("lbg_runtime.cli.log.configure_log", lambda: None)
    monkeypatch.setattr("lbg_runtime.cli.member.run_member", lambda *_, **__: structlog.get_logger().info("at_work"))
    before = structlog.get_config()
    try:
        ran = CliRunner().invoke(app, ["run"])
    finally:
        structlog.configure(**before)
    assert (ran.exception, "at_work" in ran.output) == (None, True)
