"""`lbg check` and the ways in which `lbg run` does not start: one line for each problem, exit code 2, no traceback.

More than 400 lines, as each problem is a row or a few lines here, with the same settings.
"""

import json
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lbg_runtime.cli import log
from lbg_runtime.cli.main import command_line
from lbg_runtime.config.broker_names import check_client_name
from lbg_runtime.model.errors import ConfigError
from lbg_runtime.transport.solace.fast import check as fast_check
from lbg_runtime.transport.solace.fast import compiled
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.real_time

CONFIG = """
connection: {{transport: {transport}, host: "{host}"}}
group: {{name: orders, hash_prefix: h, hash_count: 9, queue_count: 4, provision: {provision}}}
membership: {{mode: static, index: 0, count: 3}}
rebind: {{mode: cycle}}
handlers: [{module}]
"""

GOOD = """
from lbg_runtime import Handlers
handlers = Handlers()

@handlers.handler("orders/>")
async def on_order(message):
    pass
"""


def _lbg(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`lbg` as a shell starts it; the others are copies of a process that has imported it."""
    return subprocess.run(
        [sys.executable, "-m", "lbg_runtime.cli", *arguments],
        cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    """A folder with a handler module and good settings, which can be varied."""
    (tmp_path / "shop.py").write_text(GOOD)

    def write(**values):
        defaults = {"transport": "embedded", "host": "tcp://127.0.0.1:0", "provision": "none", "module": "shop"}
        (tmp_path / "config.yaml").write_text(CONFIG.format(**{**defaults, **values}))
        return tmp_path

    return write


def _only_line(result: subprocess.CompletedProcess[str]) -> str:
    """The one line for the user; log lines are JSON."""
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    lines = [line for line in result.stderr.splitlines() if not line.startswith("{")]
    assert len(lines) == 1, result.stderr
    return lines[0]


def test_a_good_file_is_summed_up_with_its_warnings(lbg, folder):
    result = lbg(folder(), "check", "--json")
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    assert summary["ok"] is True
    assert summary["member"]["primary_queues"] == [0, 3]
    assert [each["subscription"] for each in summary["handlers"]] == ["orders/>"]
    assert summary["hooks"] == []
    assert summary["warnings"] == [
        "9 shards do not divide evenly among 4 queues",
        "4 queues do not divide evenly among 3 members",
    ]


def test_the_summary_is_also_for_people(folder):
    result = _lbg(folder(), "check")
    assert result.returncode == 0
    is_compiled = "yes" if compiled.INTAKE is not None else "no"
    assert (
        f"connection: transport embedded, host tcp://127.0.0.1:0, path fast, compiled {is_compiled}\n" in result.stdout
    )
    assert "handler: orders/> shop:on_order (" in result.stdout
    assert "warning: 9 shards do not divide evenly among 4 queues" in result.stdout


def test_what_a_module_logs_as_it_is_imported_is_no_part_of_the_summary(lbg, folder):
    module = folder() / "shop.py"
    module.write_text(f"{module.read_text()}\nimport structlog\nstructlog.get_logger().info('imported')\n")
    result = lbg(module.parent, "check", "--json")
    assert json.loads(result.stdout)["ok"]
    assert json.loads(result.stderr)["event"] == "imported"


def test_a_subscription_with_the_hash_prefix_is_warned_of(lbg, folder):
    (folder() / "shop.py").write_text(GOOD.replace("orders/>", "h/*/orders/>"))
    result = lbg(folder(), "check")
    assert result.returncode == 0
    assert "takes 'h/*/orders/>', which begins with the group's hash prefix: handlers take original" in result.stdout
    (folder() / "shop.py").write_text(GOOD.replace("orders/>", "*/orders/>"))
    assert "hash prefix:" not in lbg(folder(), "check").stdout


def test_a_subscription_with_wildcards_of_mqtt_is_warned_of(lbg, folder):
    for topic in ("orders/#", "orders/+/new", "+"):
        (folder() / "shop.py").write_text(GOOD.replace("orders/>", topic))
        result = lbg(folder(), "check")
        assert result.returncode == 0
        assert f"takes {topic!r}, and `#` and `+` are no wildcards here: `*` stands for one" in result.stdout
    (folder() / "shop.py").write_text(GOOD.replace("orders/>", "orders/#1/c++/>"))
    assert "no wildcards" not in lbg(folder(), "check").stdout


@pytest.mark.parametrize("command", ["check", "run", "asyncapi"])
def test_a_current_folder_that_was_removed_is_one_line(folder, tmp_path_factory, command):
    """As whoever deploys anew leaves it to a shell that stands in the old one: it was a traceback."""
    removed = tmp_path_factory.mktemp("removed")
    shell = 'rmdir "$PWD" && exec "$@"'
    lbg = [sys.executable, "-m", "lbg_runtime.cli", command, "--config", str(folder() / "config.yaml")]
    result = subprocess.run(
        ["sh", "-c", shell, "sh", *lbg], cwd=removed, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert _only_line(result) == (
        "lbg: the current folder: No such file or directory; "
        "expected a folder that is there, as handler modules are looked up in it"
    )


def test_a_module_is_not_sought_beside_the_settings(lbg, folder, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    line = _only_line(lbg(elsewhere, "check", "--config", str(folder() / "config.yaml")))
    found = "lbg: handlers: shop: ModuleNotFoundError: No module named 'shop'; "
    expected = f"expected a module in the current folder, {elsewhere} (wherever config.yaml is), or an installed one"
    assert line == found + expected


def test_a_member_is_named_as_it_will_be(lbg, folder):
    path = folder() / "config.yaml"
    discovered = path.read_text().replace("{mode: static, index: 0, count: 3}", "{mode: discovered}")
    path.write_text(discovered.replace("rebind: {mode: cycle}", ""))
    named = [lbg(path.parent, "check", *given).stdout for given in ((), ("--member-id", "east-1"))]
    assert f"member: name {socket.gethostname()[:90]}-PID, mode discovered" in named[0]
    assert "member: name east-1, mode discovered" in named[1]
    assert "member id: 'a b'; expected 1 to 100 letters" in _only_line(lbg(path.parent, "check", "--member-id", "a b"))


def test_spans_that_cannot_be_made_are_a_problem(lbg, folder):
    path = folder() / "config.yaml"
    path.write_text(f"{path.read_text()}ops: {{tracing: spans}}\n")
    result = lbg(path.parent, "check", without=("opentelemetry",))
    line = "lbg: ops.tracing: spans, and opentelemetry is not installed; expected pip install 'lbg-runtime[otel]'"
    assert _only_line(result) == line


def test_a_client_that_cannot_be_loaded_is_a_problem(lbg, folder):
    result = lbg(folder(), "check", without=("solace",))
    line = r"lbg: solace-pubsubplus: the client cannot be loaded, .*; expected solace-pubsubplus 1\.11"
    assert re.fullmatch(line, _only_line(result))


@pytest.mark.parametrize(("choice", "code"), [("auto", 0), ("fast", 2), ("public", 0)])
def test_a_client_that_the_fast_path_does_not_know_is_named(folder, monkeypatch, choice, code):
    settings = folder(module="handlers.orders") / "config.yaml"
    settings.write_text(f"{settings.read_text()}transport: {{client_path: {choice}}}\n")
    # In this process, for what is another client only here.
    monkeypatch.setattr(log, "configure_log", lambda: None)
    monkeypatch.setattr(fast_check, "KNOWN_CLIENTS", frozenset())
    result = CliRunner().invoke(command_line("check"), ["check", "--config", str(settings)])
    assert result.exit_code == code
    told = (
        "transport.client_path: fast, and the client is 'pubsubplus-" if choice == "fast" else "path public, compiled"
    )
    assert told in result.output


def test_the_hooks_of_the_handlers_are_listed(lbg, folder):
    hooks = "".join(
        f"\n@handlers.{kind}\nasync def {name}(queue, epoch):\n    pass\n"
        for kind, name in (("on_assigned", "load"), ("on_revoked", "drop"), ("on_drain", "flush"))
    )
    (folder() / "shop.py").write_text(GOOD + hooks)
    found = json.loads(lbg(folder(), "check", "--json").stdout)["hooks"]
    assert [(each["hook"], each["where"].partition(" ")[0]) for each in found] == [
        ("on_assigned", "shop:load"), ("on_revoked", "shop:drop"), ("on_drain", "shop:flush"),
    ]  # fmt: skip
    assert "hook: on_drain shop:flush (" in lbg(folder(), "check").stdout


def test_every_problem_of_a_file_has_its_line(lbg, folder):
    path = folder() / "config.yaml"
    path.write_text(path.read_text().replace("hash_count: 9", "hash_cout: 9\n, queue_cout: 3"))
    result = lbg(path.parent, "check")
    assert result.returncode == 2
    assert result.stderr.count("lbg: config.yaml: group.") == len(result.stderr.splitlines()) == 3
    problems = json.loads(lbg(path.parent, "check", "--json").stdout)["problems"]
    assert {problem["where"] for problem in problems} >= {"config.yaml: group.hash_cout"}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("import nothing_there\n", "lbg: handlers: shop: ModuleNotFoundError: No module named 'nothing_there'"),
        (GOOD + GOOD.partition("Handlers()")[2], "a second handler for 'orders/>'; expected one handler for a topic"),
        (
            GOOD + GOOD.partition("Handlers()")[2].replace("orders/>", "orders/new"),
            "which gets nothing; expected it before",
        ),
        ("", "lbg: handlers: shop: no Handlers object in the module"),
        ("import sys\nsys.exit(0)\n", "lbg: handlers: shop: SystemExit: 0 ("),
        ('raise ValueError("a\\x1b[31mb")\n', r"lbg: handlers: shop: ValueError: a\x1b[31mb ("),
        (
            GOOD.replace("(message)", "(message, pool: State[int])").replace("Handlers\n", "Handlers, State\n", 1),
            "State[int]; expected a lifespan that yields one",
        ),
    ],
)
def test_a_mistake_in_a_handler_module_is_one_line_for_both_commands(lbg, folder, text, line):
    (folder() / "shop.py").write_text(text)
    assert line in _only_line(lbg(folder(), "check"))
    assert line in _only_line(lbg(folder(), "run"))


def test_what_a_lifespan_yields_is_known_only_once_it_runs(lbg, folder):
    with_state = GOOD.replace("(message)", "(message, pool: State[int])").replace("Handlers\n", "Handlers, State\n", 1)
    (folder() / "shop.py").write_text(f"{with_state}\n@handlers.lifespan\nasync def life():\n    yield 1\n")
    ended = lbg(folder(), "check")
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_missing_file_is_one_line(lbg, tmp_path):
    assert _only_line(lbg(tmp_path, "run")) == (
        "lbg: config.yaml: No such file or directory; expected a readable settings file"
    )


def test_a_member_number_that_cannot_be_is_one_line(lbg, folder):
    assert "membership.index: 7; expected 0 to 2" in _only_line(lbg(folder(), "run", "--member-index", "7"))


def test_a_host_that_does_not_answer_is_one_line(lbg, folder):
    with socket.socket() as bound_only:
        # Bound and not listening: nobody else can have the port, and nobody answers.
        bound_only.bind(("127.0.0.1", 0))
        host = f"tcp://127.0.0.1:{bound_only.getsockname()[1]}"
        line = _only_line(lbg(folder(transport="solace", host=host), "run"))
    assert line.startswith(f"lbg: connection.host: {host}: ")
    assert line.endswith(
        "expected a broker that can be reached at its port for clients, "
        "by tcps:// if that speaks TLS and by tcp:// if not"
    )


def test_an_address_that_no_broker_can_listen_on_is_one_line_for_both_commands(lbg, folder):
    path = folder(host="ws://127.0.0.1:55555")
    lines = {_only_line(lbg(path, command)) for command in ("check", "run")}
    assert lines == {
        "lbg: connection.host: 'ws://127.0.0.1:55555'; expected tcp://HOST:PORT to listen on, as transport is embedded"
    }


def test_a_port_in_use_is_one_line(lbg, folder):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        line = _only_line(lbg(folder(host=f"tcp://127.0.0.1:{port}"), "run"))
    assert line.startswith(f"lbg: connection.host: tcp://127.0.0.1:{port}: Address already in use; expected a free")
    assert "connection.transport: solace (LBG_TRANSPORT=solace)" in line


def test_a_port_of_the_status_api_that_is_in_use_is_one_line(lbg, folder):
    path = folder() / "config.yaml"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        path.write_text(f"{path.read_text()}ops: {{status: '{address}'}}\n")
        line = _only_line(lbg(path.parent, "run"))
    expected = "expected an address of this machine with a free port"
    assert line == f"lbg: ops.status: {address}: Address already in use; {expected}"


def test_a_queue_that_does_not_exist_is_one_line(lbg, folder):
    line = _only_line(lbg(folder(), "run"))
    assert line.startswith("lbg: group.name: queue orders/")
    assert "Unknown Queue; expected queues that exist" in line


def test_a_journal_that_cannot_be_written_is_one_line(lbg, folder):
    (folder() / "taken").touch()
    line = _only_line(lbg(folder(), "run", "--journal", "taken/journal"))
    assert line.startswith("lbg: ops.journal.path: taken/journal: Not a directory")


def test_nobody_to_handle_is_one_line_for_both_commands(lbg, folder):
    path = folder() / "config.yaml"
    path.write_text(path.read_text().replace("handlers: [shop]", "handlers: []"))
    line = "lbg: handlers: none; expected at least one function with @handlers.handler(...)"
    assert _only_line(lbg(path.parent, "check")) == line
    assert _only_line(lbg(path.parent, "run")) == line
    (path.parent / "shop.py").write_text("from lbg_runtime import Handlers\nhandlers = Handlers()\n")
    assert _only_line(lbg(folder(), "check")) == line


def test_a_sidecar_needs_no_handlers(lbg, folder):
    path = folder() / "config.yaml"
    path.write_text(path.read_text().replace("handlers: [shop]", "sidecar: {application: 'http://127.0.0.1:1'}"))
    result = lbg(path.parent, "check")
    assert result.returncode == 0, result.stderr
    assert "sidecar: application http://127.0.0.1:1, listen 127.0.0.1:3500, subscriptions none" in result.stdout


def test_parking_from_a_partitioned_queue_is_a_problem(lbg, folder):
    path = folder() / "config.yaml"
    partitioned = path.read_text().replace("provision: none", "backend: partitioned")
    path.write_text(f"{partitioned}dispatch: {{missing_key: error}}\n")
    assert lbg(path.parent, "check").returncode == 0
    (path.parent / "shop.py").write_text(GOOD.replace('"orders/>"', '"orders/>", attempts=2, then="park"'))
    expected = "error_queue, dmq or stop: a partitioned queue has several owners, a parking queue has one"
    assert _only_line(lbg(path.parent, "check")) == f"lbg: failure.then: park; expected {expected}"


@pytest.mark.parametrize(
    ("end", "longest", "queue"), [("park", 187, "parked/<name>/3"), ("error_queue", 189, "errors/<name>")]
)
def test_a_name_that_is_too_long_for_the_queues_of_a_handlers_end_is_a_problem(lbg, folder, end, longest, queue):
    path = folder() / "config.yaml"
    named = path.read_text().replace("connection: {", "connection: {client_name: c, ")
    path.write_text(named.replace("name: orders", f"name: {'n' * 190}"))
    assert lbg(path.parent, "check").returncode == 0
    (path.parent / "shop.py").write_text(GOOD.replace('"orders/>"', f'"orders/>", attempts=2, then="{end}"'))
    expected = f"at most {longest}, as the names of its queues have at most 200, such as lbg-{queue}"
    line = f"lbg: group.name: 190 characters; expected {expected}"
    assert {_only_line(lbg(path.parent, command)) for command in ("check", "run")} == {line}


@pytest.mark.parametrize(
    ("login", "line"),
    [
        (
            "tls: {verify: false}, client_certificate: {certificate: gone.pem}",
            "connection.client_certificate.certificate: gone.pem: No such file or directory; expected a file in PEM",
        ),
        (
            "tls: {verify: false}, oauth: {token_file: gone}",
            "connection.oauth.token_file: gone: No such file or directory; expected a file with an access token",
        ),
        (
            "tls: {trust_store: gone}",
            "connection.tls.trust_store: gone: No such file or directory; "
            "expected a directory with certificates of authorities in PEM",
        ),
    ],
)
def test_a_file_for_the_login_that_is_not_there_is_one_line_for_both_commands(lbg, folder, login, line):
    path = folder(transport="solace", host="tcps://127.0.0.1:9") / "config.yaml"
    path.write_text(path.read_text().replace("connection: {", f"connection: {{{login}, "))
    assert {_only_line(lbg(path.parent, command)) for command in ("check", "run")} == {f"lbg: {line}"}


def test_a_sidecars_subscription_with_wildcards_of_mqtt_is_warned_of(lbg, folder):
    path = folder() / "config.yaml"
    topics = "[{topic: 'orders/#', route: /a}, {topic: 'bills/>', route: /b}]"
    path.write_text(
        path.read_text().replace(
            "handlers: [shop]", f"sidecar: {{subscriptions: {topics}, application: 'http://127.0.0.1:1'}}"
        )
    )
    warnings = [line for line in lbg(path.parent, "check").stdout.splitlines() if "wildcards" in line]
    assert [line.partition(" are ")[0] for line in warnings] == ["warning: 'orders/#': `#` and `+`"]


def test_the_authorities_of_a_sidecars_application_are_looked_at_if_it_is_asked_by_https(lbg, folder):
    path = folder() / "config.yaml"
    sidecar = "sidecar: {application: 'https://127.0.0.1:1', tls: {trust_store: gone}}"
    path.write_text(path.read_text().replace("handlers: [shop]", sidecar))
    line = _only_line(lbg(path.parent, "check"))
    assert line.startswith("lbg: sidecar.tls.trust_store: gone: No such file or directory; expected a file")
    path.write_text(path.read_text().replace("https", "http"))
    assert lbg(path.parent, "check").returncode == 0


def test_a_name_that_makes_the_clients_name_too_long_is_one_line_for_every_command(lbg, folder):
    path = folder() / "config.yaml"
    path.write_text(path.read_text().replace("name: orders", f"name: {'ä' * 80}"))
    for command in (("check",), ("run",), ("land", "--dir", "log")):
        line = _only_line(lbg(path.parent, *command))
        found = re.fullmatch(r"lbg: group\.name: 160 bytes; expected at most ([0-9]+), as the client name .*", line)
        assert found is not None, line
        # Without "/member-0/", the host and the process.
        assert int(found[1]) in range(149 - len(socket.gethostname()) - 8, 149 - len(socket.gethostname()) - 1)
    path.write_text(path.read_text().replace("connection: {", "connection: {client_name: c, "))
    assert lbg(path.parent, "check").returncode == 0


def test_a_member_that_makes_the_clients_name_too_long_is_one_line() -> None:
    with pytest.raises(ConfigError, match=r"^membership\.id: 200 bytes; expected at most [0-9]+, as the client name"):
        check_client_name("orders", "ä" * 100, None)
    check_client_name("orders", "ä" * 10, None)
    check_client_name("orders", "ä" * 100, "c")
