"""A group at work with marked passwords and tokens, all that it says and writes, and none of them in it.

Everything that can show something does: an administrator's plans, members by password and by token, a sidecar, a
publisher with its ledger, journals, status pages, metrics, the live page, and each of them refused for a wrong secret.
"""

import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from typer.testing import CliRunner

from lbg_runtime.cli.main import command_line
from tests.certificates import KEY_PASSWORD, Certificates
from tests.patience import PATIENCE_S
from tests.processes import running, until_said

app = command_line()

pytestmark = [pytest.mark.real_time, pytest.mark.end_to_end]

LBG = [sys.executable, "-m", "lbg_runtime.cli"]
MARK = "MaRkEd"


def secret(of: str) -> str:
    return f"{MARK}-{of}-73f1"


BROKER = """
import asyncio, os, pathlib, sys
from lbg_runtime.broker.semp.access import AccessLevel, Administrator
from lbg_runtime.broker.semp.server import SempServer
from lbg_runtime.broker.server.server import BrokerServer
from lbg_runtime.broker.server.tls import TlsFiles
from lbg_runtime.cli.log import configure_log

async def serve():
    files = TlsFiles(*map(pathlib.Path, sys.argv[1:]))
    administrator = Administrator("admin", os.environ["SEMP_PASSWORD"], AccessLevel.ADMIN)
    async with BrokerServer(port=0, tls=files) as broker, SempServer(
        broker.engine, broker.carry_out, port=0, administrators=(administrator,), tls=files.context()
    ) as semp:
        broker.engine.administration.accounts("default").tokens[os.environ["GOOD_TOKEN"]] = "members"
        print(broker.url, semp.url, flush=True)
        await asyncio.Event().wait()

configure_log()
asyncio.run(serve())
"""
"""`lbg broker`, with an administrator's password and a member's token that are not everybody's."""


class Scene:
    """Processes whose output goes to files in a folder, and what else was heard of them."""

    def __init__(self, folder: Path, certificates: Certificates, ending: ExitStack) -> None:
        self.folder = folder
        self.output = folder / "output"
        self.output.mkdir()
        self._secrets = folder / "secrets"
        self._secrets.mkdir()
        self._trusted = {"trust_store": str(certificates.trust_store)}
        self._ending = ending
        self.heard: dict[str, str] = {}
        self.command_lines: dict[str, bytes] = {}
        files = certificates.broker()
        command = [sys.executable, "-c", BROKER, str(files.certificate), str(files.key)]
        broker, log = self._begin("broker", command)
        self._smf_url, self._semp_url = self.until("broker", broker, log, "\n").split()[:2]

    def secret_file(self, of: str) -> str:
        path = self._secrets / of
        path.write_text(secret(of) + "\n")
        return str(path)

    def config(self, name: str, connection: dict[str, Any], **sections: Any) -> Path:
        """Settings that hold no secret themselves, as they are meant to be."""
        document = {
            "connection": {
                "transport": "solace",
                "host": self._smf_url,
                "tls": self._trusted,
                **connection,
            },
            "semp": {
                "url": self._semp_url,
                "password": f"file:{self.secret_file('semp')}",
                "tls": self._trusted,
                "publisher": {"username": "publishers", "password": "${PUBLISHER_PASSWORD}"},
                "conductor": {"username": "conductor", "password": f"file:{self.secret_file('conductor')}"},
            },
            "group": {"name": "orders", "hash_prefix": "h", "hash_count": 8, "queue_count": 2},
            "membership": {"settle": "100ms", "heartbeat": "200ms"},
            "handlers": ["quiet_handlers"],
            **sections,
        }
        path = self.folder / f"{name}.yaml"
        path.write_text(json.dumps(document))
        return path

    @property
    def environment(self) -> dict[str, str]:
        passwords = {name: secret(name) for name in ("MEMBER_PASSWORD", "PUBLISHER_PASSWORD", "STATUS_TOKEN")}
        return {**os.environ, **passwords, "SEMP_PASSWORD": secret("semp"), "GOOD_TOKEN": secret("oauth")}

    def start(self, name: str, *arguments: object) -> tuple["subprocess.Popen[bytes]", Path]:
        return self._begin(name, [*LBG, *map(str, arguments)])

    def _begin(self, name: str, command: list[str]) -> tuple["subprocess.Popen[bytes]", Path]:
        log = self.output / f"{name}.log"
        with log.open("wb") as output:
            process = self._ending.enter_context(
                running(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    cwd=self.folder,
                    env=self.environment,
                )
            )
        return process, log

    def until(self, name: str, process: "subprocess.Popen[bytes]", log: Path, text: str) -> str:
        said = until_said(process, log, text)
        self.command_lines[name] = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        return said

    def command(self, *arguments: object, code: int) -> str:
        """A command in this process, which is quicker; what it said."""
        name = " ".join(map(str, arguments))
        result = CliRunner(env=self.environment).invoke(app, [str(each) for each in arguments])
        self.heard[name] = f"{result.output}\n{result.exception!r}\n{result.exception}"
        # Errors are made exit codes by the program around the commands.
        assert (result.exit_code if code in (0, 1) and not result.exception else code) == code, self.heard[name]
        return result.stdout

    def ask(self, address: str, *paths: str) -> None:
        with httpx.Client(trust_env=False, timeout=PATIENCE_S) as client:
            for path in paths:
                for token in (secret("STATUS_TOKEN"), "guess"):
                    headers = {"authorization": f"Bearer {token}"}
                    with client.stream("GET", f"http://{address}{path}", headers=headers) as answer:
                        body = next(answer.iter_text(), "") if path == "/v1/feed" else "".join(answer.iter_text())
                    self.heard[f"{address}{path} {answer.status_code}"] = f"{answer.headers}{body}"


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    certificates = Certificates(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quiet_handlers.py").write_text(
        "from lbg_runtime import Handlers\nhandlers = Handlers()\n"
        "@handlers.handler('>')\nasync def handle(message):\n    pass\n"
    )
    with ExitStack() as ending:
        yield Scene(tmp_path, certificates, ending)


def forms_of(text: str) -> list[bytes]:
    """A text as it may be written: plain, percent-encoded, and in BASE64 at any offset."""
    plain = text.encode()
    encoded = [base64.b64encode(b"x" * offset + plain)[offset and 4 : -4] for offset in range(3)]
    return [plain, quote(text).encode(), *encoded]


def test_no_secret_is_in_what_a_group_says_and_writes(scene: Scene, capfd: pytest.CaptureFixture[str]) -> None:
    by_password = {"username": "members", "password": "${MEMBER_PASSWORD}"}
    shown = {"status": "127.0.0.1:0", "status_token": "${STATUS_TOKEN}", "tracing": "spans"}
    made = scene.config("group", by_password, ops={**shown, "journal": {"path": "journal"}})

    # -- the administrator
    for arguments, code in (
        (("plan",), 0), (("plan", "--json"), 0), (("create",), 0), (("create", "--json"), 1), (("verify", "--json"), 0),
        (("list", "--json"), 0), (("show", "orders", "--json"), 0), (("show", "orders"), 0),
    ):  # fmt: skip
        scene.command("group", *arguments, "--config", made, code=code)
    scene.command("check", "--config", made, "--json", code=0)

    # -- those who work
    first = scene.start("member", "run", "--config", made, "--member-id", "a", "--json")
    told = scene.until("member", *first, '"change": "active"')
    address = told.split('"address": "')[1].split('"')[0]
    token_file = scene.secret_file("oauth")
    by_token = scene.config("token", {"oauth": {"token_file": token_file}, "username": "members"})
    second = scene.start("member by token", "run", "--config", by_token, "--member-id", "b", "--journal", "journal-b")
    scene.until("member by token", *second, '"view_changed"')
    sidecar = {
        "application": "http://127.0.0.1:1",
        "application_token": f"file:{scene.secret_file('application')}",
        "listen": "127.0.0.1:0",
        "token": f"file:{scene.secret_file('sidecar')}",
    }
    beside = scene.config("sidecar", by_password, handlers=[], sidecar=sidecar)
    third = scene.start("sidecar", "run", "--config", beside, "--member-id", "c")
    scene.until("sidecar", *third, "sidecar_served")
    publishers = scene.config("publisher", {"username": "publishers", "password": "${PUBLISHER_PASSWORD}"})
    load = ("--topic", "orders/new", "--count", 200, "--ledger", "ledger", "--json")
    publishing = scene.start("publisher", "publish", "--config", publishers, *load)
    scene.until("publisher", *publishing, '"confirmed":200')

    # -- those who look
    page = scene.start("dashboard", "dashboard", "--config", made, "--listen", "127.0.0.1:0", "--status", address)
    told = scene.until("dashboard", *page, "http://")
    scene.ask(address, "/v1/status", "/metrics", "/v1/moves", "/v1/handled", "/v1/keys/k-1", "/livez", "/nowhere")
    scene.ask(told.split("http://")[1].split("/")[0], "/", "/dashboard.js", "/v1/feed", "/v1/why?key=k-1")
    scene.command("group", "status", "--config", made, "--json", code=0)
    scene.command("why", "k-1", "--config", made, "--json", code=0)

    # -- those who are refused
    wrong = scene.config("wrong", {"username": "members", "password": f"file:{scene.secret_file('wrong')}"})
    scene.command("run", "--config", wrong, code=2)
    scene.command("publish", "--topic", "a/b", "--count", 1, "--config", wrong, code=2)
    unknown = scene.config("unknown", {"oauth": {"token_file": scene.secret_file("unknown")}})
    scene.command("run", "--config", unknown, code=2)
    both = scene.config("both", {**by_password, "oauth": {"token_file": token_file}})
    scene.command("check", "--config", both, "--json", code=2)
    spaced = scene.config("spaced", by_password, ops={"status": "127.0.0.1:0", "status_token": f"{secret('a')} b"})
    scene.command("check", "--config", spaced, "--json", code=2)
    semp = json.loads(made.read_text())["semp"]
    stranger = scene.config("stranger", by_password, semp={**semp, "password": f"file:{scene.secret_file('guess')}"})
    scene.command("group", "plan", "--config", stranger, code=1)
    certificate = {"certificate": "gone.pem", "key_password": f"{MARK}{KEY_PASSWORD}"}
    scene.command("run", "--config", scene.config("gone", {"client_certificate": certificate}), code=2)

    # -- the end
    for process, _ in (first, second, third, page):
        process.send_signal(signal.SIGTERM)
    for process, log in (first, second, page, publishing):
        assert process.wait(PATIENCE_S) == 0, log.read_text()
    third[0].wait(PATIENCE_S)
    scene.command("group", "delete", "orders", "--config", made, "--force", "--json", code=0)
    captured = capfd.readouterr()
    scene.heard["this process"] = captured.out + captured.err

    files = {
        str(path): path.read_bytes()
        for path in scene.folder.rglob("*")
        if path.is_file() and path.suffix not in (".yaml", ".pem", ".key", ".pyc") and path.parent.name != "secrets"
    }
    assert {"journal", "journal-b", "ledger"} <= {Path(name).parent.name for name in files}
    assert len(scene.command_lines) == 6
    heard = {name: text.encode() for name, text in scene.heard.items()}
    marks = forms_of(MARK)
    for offset in range(9):
        encoded = base64.b64encode(b"." * offset + MARK.encode() + b".")
        assert any(mark in encoded for mark in marks)
    assert all(any(mark in path.read_bytes() for mark in marks) for path in (scene.folder / "secrets").iterdir())
    found = [
        name
        for name, content in {**files, **heard, **scene.command_lines}.items()
        if any(mark in content for mark in marks)
    ]
    assert found == []
    assert sum(map(len, files.values())) > 10_000
    assert any(b"members" in content for content in heard.values())
