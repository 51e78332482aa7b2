"""`lbg group create` to `evict`: their words, their exit codes, a broker, and real members on what they have made.

More than 400 lines, as all of it is about one group of commands.
"""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest
from typer.testing import CliRunner, Result

from lbg_runtime.admin.account import open_semp
from lbg_runtime.admin.group import GroupAdmin, Plan
from lbg_runtime.admin.objects import ObjectKind, Ref
from lbg_runtime.admin.plan import Change, Create, Delete
from lbg_runtime.admin.settings import spec_of
from lbg_runtime.admin.sight import QueueSight
from lbg_runtime.admin.spec import StoredGroup
from lbg_runtime.broker.engine.effects import Effect
from lbg_runtime.broker.engine.engine import Engine
from lbg_runtime.broker.semp.server import SempServer
from lbg_runtime.cli.group.admin import _ends_of_handlers, _step_bar
from lbg_runtime.cli.group.plan_text import plan_as_object, plan_lines, sights_as_object, sights_as_table
from lbg_runtime.cli.main import command_line
from lbg_runtime.config.load import parse_settings
from lbg_runtime.model.errors import ConfigError, GroupMissing, UserError
from lbg_runtime.model.ids import QueueName
from tests.addresses import OWN_HOST
from tests.listening import listening
from tests.patience import PATIENCE_S
from tests.processes import until_said
from tests.warm import Copy, WarmLbg

app = command_line()


QUEUE = Ref(ObjectKind.QUEUE, "orders/0")
TOPIC = Ref(ObjectKind.SUBSCRIPTION, "h/0/>", QueueName("orders/0"))
USERNAME = Ref(ObjectKind.CLIENT_USERNAME, "members")


# -- words


def test_a_plan_is_a_line_for_each_object_and_shows_no_secret() -> None:
    steps = (
        Create(USERNAME, {"password": "secret", "enabled": False}),
        Create(TOPIC, {}),
        Create(Ref(ObjectKind.SUBSCRIPTION, "h/2/>", QueueName("orders/0")), {}),
        Delete(Ref(ObjectKind.SUBSCRIPTION, ">", QueueName("orders/0"))),
        Change(QUEUE, {"owner": "members", "ingressEnabled": True}, {"owner": "", "ingressEnabled": False}),
    )
    plan = Plan(steps, (UserError("a", "b", "c"),), ("orders/7",), (), members_create=False)
    assert list(plan_lines(plan)) == [
        "+ client username members: password (not shown), enabled off",
        "+ 2 subscriptions of queue orders/0: h/0/>, h/2/>",
        "- 1 subscription of queue orders/0: >",
        "~ queue orders/0: owner '' -> members, ingressEnabled off -> on (ends its clients or flows)",
        "? queue orders/7 is not among those of the settings, and is left alone",
        "steps: 3 to create, 1 to delete, 1 to change",
    ]
    many = [Create(Ref(ObjectKind.SUBSCRIPTION, f"h/{shard}/>", QueueName("orders/0")), {}) for shard in range(5)]
    assert next(plan_lines(replace(plan, steps=tuple(many)))) == "+ 5 subscriptions of queue orders/0"
    told = json.dumps(plan_as_object(plan))
    assert "secret" not in told
    assert json.loads(told)["steps"][1] == {
        "do": "create",
        "kind": "subscriptions",
        "name": "h/0/>",
        "queue": "orders/0",
        "attributes": {},
    }
    rule = Ref(ObjectKind.PUBLISH_TOPIC, "orders/>", profile="members")
    steps = (Create(rule, {}), Change(QUEUE, {"maxBindCount": 9}, {}), Delete(USERNAME))
    of_profile, change, _ = cast(list[object], plan_as_object(replace(plan, steps=steps))["steps"])
    assert of_profile == {
        "do": "create",
        "kind": "publishTopicExceptions",
        "name": "orders/>",
        "profile": "members",
        "attributes": {},
    }
    assert change == {
        "do": "change",
        "kind": "queues",
        "name": "orders/0",
        "attributes": {"maxBindCount": 9},
        "before": {},
        "interrupts": False,
    }
    assert list(plan_lines(replace(plan, steps=steps, surplus=()))) == [
        "+ allowed publish topic orders/> of ACL profile members",
        "~ queue orders/0: maxBindCount none -> 9",
        "- client username members",
        "steps: 1 to create, 1 to change, 1 to delete",
    ]
    assert list(plan_lines(Plan((), (), (), (), members_create=False))) == ["the broker is as it should be"]
    remarked = Plan((), (), (), (UserError("queue dead", "full", "room"),), members_create=False)
    assert (remarked.is_clean, list(plan_lines(remarked))) == (False, ["? queue dead: full; expected room"])


def test_queues_that_are_missing_or_not_fed_are_seen() -> None:
    queues = [QueueName("orders/0"), QueueName("orders/1"), QueueName("orders/2")]
    sights = {queues[0]: QueueSight(3, 2, "a", 2, 7, 1_000), queues[1]: QueueSight(0, 0, None)}
    assert _cells(queues, sights) == [
        ("queue", "depth", "unacked", "oldest", "redelivered", "flows", "fed client"),
        ("orders/0", "3", "2", "60 s", "7", "2", "a"),
        ("orders/1", "0", "0", "", "0", "0", "none"),
        ("orders/2", "missing", "", "", "", "", ""),
    ]
    # The broker's clock is ahead, and of one queue nobody knows what left it.
    sights = {queues[0]: QueueSight(3, 2, "a", 2, 7, 1_090, 12.34), queues[1]: QueueSight(0, 0, None)}
    assert _cells(queues[:2], sights)[1:] == [
        ("orders/0", "3", "2", "0 s", "7", "12.3", "2", "a"),
        ("orders/1", "0", "0", "", "0", "", "0", "none"),
    ]
    assert sights_as_object(sights, 1_095)["orders/0"] == {
        "depth": 3, "unacked": 2, "oldest_age_s": 5, "redelivered": 7, "rate": 12.3, "flows": 2, "fed": "a",
    }  # fmt: skip


def _cells(queues: list[QueueName], sights: dict[QueueName, QueueSight]) -> list[tuple[object, ...]]:
    columns = sights_as_table(queues, sights, 1_060).columns
    return list(zip(*([column.header, *column.cells] for column in columns), strict=True))


def test_what_may_not_be_deleted_is_told_with_whom_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def delete(*_: object, **__: object) -> list[Ref]:
        return [Ref(ObjectKind.CLIENT_PROFILE, "members")]

    async def stored(_: object) -> list[StoredGroup]:
        return []

    monkeypatch.setattr(GroupAdmin, "delete", delete)
    monkeypatch.setattr(GroupAdmin, "stored_groups", stored)
    config = tmp_path / "config.yaml"
    settings = {
        "semp": {"url": "http://127.0.0.1:9", "username": "ops", "password": "p"},
        "group": {"name": "orders", "hash_prefix": "h", "hash_count": 8, "queue_count": 2},
    }
    config.write_text(json.dumps(settings))

    done = CliRunner().invoke(app, ["group", "delete", "orders", "--config", str(config)], catch_exceptions=False)

    assert (done.exit_code, done.stdout) == (0, "group orders is deleted\n")
    assert done.stderr == "lbg: client profile members is left: ops may not delete it\n"


# -- against a broker


@dataclass
class Stage:
    """A broker's process, the group's settings, and the processes of a test."""

    folder: Path
    settings: dict[str, Any]
    lbg: WarmLbg
    ending: ExitStack

    def start(self, name: str, *arguments: object) -> tuple[Copy, Path]:
        log = self.folder / f"{name}.log"
        with log.open("wb") as output:
            process = self.ending.enter_context(self.lbg.running(self.folder, *arguments, stdout=output, stderr=output))
        return process, log

    def config(self, **sections: Any) -> Path:
        path = self.folder / "config.yaml"
        path.write_text(json.dumps({**self.settings, **sections}))
        return path

    def group(self, *arguments: str, **sections: Any) -> Result:
        return CliRunner().invoke(app, ["group", *arguments, "--config", str(self.config(**sections))])


@pytest.fixture
def stage(tmp_path: Path, lbg: WarmLbg) -> Iterator[Stage]:
    with ExitStack() as ending:
        stage = Stage(tmp_path, {}, lbg, ending)
        broker, log = stage.start("broker", "broker", "--smf", "127.0.0.1:0", "--semp", "127.0.0.1:0")
        said = until_said(broker, log, "\n").split()
        stage.settings = {
            "connection": {"transport": "solace", "host": f"tcp://{said[4].rstrip(',')}", "username": "members"},
            "semp": {"url": f"http://{said[6]}", "password": "admin"},
            "group": {"name": "orders", "hash_prefix": "h", "hash_count": 8, "queue_count": 2},
            "membership": {"settle": "100ms", "heartbeat": "200ms"},
            "handlers": ["quiet_handlers"],
        }
        yield stage
        broker.terminate()
        assert broker.wait(PATIENCE_S) == 0


@pytest.mark.real_time
def test_a_group_from_its_creation_to_its_end(stage: Stage) -> None:
    assert (planned := stage.group("plan")).exit_code == 0
    assert "+ 4 subscriptions of queue orders/1" in planned.stdout
    assert stage.group("verify").exit_code == 1
    assert stage.group("list").stdout == "no groups in VPN default\n"
    assert isinstance(stage.group("show", "orders").exception, GroupMissing)

    created = stage.group("create")
    assert created.exit_code == 0
    assert created.stdout == planned.stdout
    again = stage.group("create")
    assert again.exit_code == 1
    told, refused = again.stderr.splitlines()
    assert told.startswith("lbg: not looked at: which queues handlers need"), "there is no such module here"
    assert refused.startswith("lbg: group orders: is there already; ")

    assert json.loads(stage.group("verify", "--json").stdout)["clean"] is True
    assert json.loads(stage.group("list", "--json").stdout)["groups"][0]["queue_count"] == 2
    assert "orders" in stage.group("list").stdout
    shown = json.loads(stage.group("show", "orders", "--json").stdout)
    assert shown["queues"]["orders/1"] == {
        "depth": 0, "unacked": 0, "oldest_age_s": None, "redelivered": 0, "rate": None, "flows": 0, "fed": None,
    }  # fmt: skip
    assert "orders/1" in stage.group("show", "orders").stdout

    bigger = {**stage.settings["semp"], "queue_spool_mb": 7_000}
    applied = json.loads(stage.group("apply", "--json", semp=bigger).stdout)
    assert applied["done"] is True
    assert [step["name"] for step in applied["steps"]] == ["orders/1", "orders/0", "lbg/orders"]
    changed = {**stage.settings["group"], "hash_count": 9}
    assert stage.group("apply", group=changed).exit_code == 1
    refused = stage.group("plan", "--json", group=changed)
    assert refused.exit_code == 1
    assert json.loads(refused.stdout)["problems"][0]["where"] == "group.hash_count"

    assert isinstance(stage.group("delete", "others").exception, GroupMissing)
    assert json.loads(stage.group("delete", "orders", "--json").stdout) == {
        "group": "orders",
        "deleted": True,
        "kept": [],
    }
    assert isinstance(stage.group("delete", "orders").exception, GroupMissing)
    assert stage.group("create").exit_code == 0
    assert stage.group("delete", "orders").stdout == "group orders is deleted\n"


BOTH_ENDS = """
from lbg_runtime import Handlers
handlers = Handlers()
@handlers.handler("a/>", attempts=3, then="park")
async def a(message): pass
@handlers.handler("b/>", attempts=3, then="error_queue")
async def b(message): pass
@handlers.handler("c/>", attempts=3, then="dmq")
async def c(message): pass
"""


@pytest.mark.real_time
def test_queues_that_only_handlers_ask_for_come_and_go_with_the_group(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(stage.folder)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    (stage.folder / "both_ends.py").write_text(f"print('imported')\n{BOTH_ENDS}")
    stage.settings["failure"] = {"dead_message_queue": "dead"}
    sections = {"handlers": ["both_ends"]}
    created = stage.group("create", **sections)
    assert (created.exit_code, created.stderr) == (0, "imported\n")
    for queue in ("lbg-parked/orders/0", "lbg-parked/orders/1", "lbg-errors/orders"):
        assert f"+ queue {queue}: " in created.stdout
    told = json.loads(stage.group("verify", "--json", **sections).stdout)
    assert (told["steps"], told["problems"]) == ([], [])
    assert [remark["where"] for remark in told["remarks"]] == ["queue dead"]

    without = stage.group("verify")
    assert (without.exit_code, without.stdout) == (0, "the broker is as it should be\n")
    assert "not looked at: which queues handlers need" in without.stderr
    handler = "@handlers.handler('a/>')\nasync def a(message): pass\n"
    (stage.folder / "no_ends.py").write_text(BOTH_ENDS.partition("@")[0] + handler)
    unread = stage.group("verify", handlers=["no_ends"])
    assert (unread.exit_code, unread.stderr) == (1, "")
    assert unread.stdout.startswith("? queue lbg-parked/orders/0: is there, and 1 more like it, and nobody parks")
    assert stage.group("delete", "orders").exit_code == 0
    assert stage.group("create", **sections).stdout == created.stdout, "nothing was left"


def test_what_handlers_ask_for_is_known_only_where_the_settings_name_them_or_a_sidecar() -> None:
    group = {"group": {"name": "orders", "hash_prefix": "h", "hash_count": 5, "queue_count": 2}}
    sidecar = {"sidecar": {"application": "http://127.0.0.1:1", "subscriptions": [{"topic": "a/>", "route": "/a"}]}}
    assert _ends_of_handlers(parse_settings(group, "test")) is None
    assert _ends_of_handlers(parse_settings({**group, **sidecar}, "test")) == frozenset()


@pytest.mark.parametrize(("name", "shown"), [("g[/b]/0", "g[/b]/0"), ("g[red]\x1b/0", "g[red]\\x1b/0")])
def test_a_name_may_have_brackets_where_progress_is_shown(
    name: str, shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for variable, value in (("FORCE_COLOR", "1"), ("TERM", "xterm"), ("COLUMNS", "200")):
        monkeypatch.setenv(variable, value)
    with _step_bar(1) as on_step:
        on_step(Create(Ref(ObjectKind.QUEUE, name), {}))
    assert f"queue {shown}" in capsys.readouterr().err


@pytest.mark.real_time
def test_without_an_administrator_there_is_nothing_to_do(stage: Stage) -> None:
    del stage.settings["semp"]
    for command in (("plan",), ("create",), ("list",), ("delete", "orders"), ("evict", "a")):
        error = stage.group(*command).exception
        assert isinstance(error, ConfigError)
        assert error.where == "semp"


@pytest.mark.real_time
def test_only_the_member_that_is_named_is_evicted(stage: Stage) -> None:
    assert "MEMBER: '*'; expected 1 to 100 letters" in str(stage.group("evict", "*").exception)
    stage.settings["connection"]["client_name"] = "only-me"
    assert "connection.client_name: only-me; expected none" in str(stage.group("evict", "a").exception)


@pytest.mark.real_time
@pytest.mark.end_to_end
def test_members_work_on_what_was_created_and_one_is_evicted(stage: Stage, lbg: WarmLbg) -> None:
    (stage.folder / "quiet_handlers.py").write_text(
        "from lbg_runtime import Handlers\nhandlers = Handlers()\n"
        "@handlers.handler('orders/>')\nasync def handle(message):\n    pass\n"
    )
    stage.settings["failure"] = {"attempts": 1, "then": "park"}
    assert stage.group("create").exit_code == 0
    config = stage.config()
    member, log = stage.start("member", "run", "--config", config, "--member-id", "a")
    until_said(member, log, '"change": "active"', times=2)

    told = lbg(stage.folder, "group", "status", "--json", "--for", "2s", "--config", str(config))
    assert told.returncode == 0, told.stderr
    for sight in json.loads(told.stdout)["broker"].values():
        assert (sight["depth"], sight["flows"]) == (0, 1)
        assert sight["fed"].startswith("orders/a/")
    told = lbg(stage.folder, "group", "status", "--for", "2s", "--config", str(config))
    assert "fed client" in told.stdout

    told = lbg(stage.folder, "parked", "list", "--json", "--config", str(config))
    assert (told.returncode, json.loads(told.stdout)) == (0, {"parked": [], "unread": []}), told.stderr

    assert "still in use" in str(stage.group("delete", "orders").exception)
    assert stage.group("evict", "b").exit_code == 1
    evicted = json.loads(stage.group("evict", "a", "--json").stdout)
    assert [name.rpartition("/")[0] for name in evicted["disconnected"]] == [sight["fed"].rpartition("/")[0]]
    until_said(member, log, '"connection_restored"')

    assert stage.group("delete", "orders", "--force").exit_code == 0
    member.kill()


@pytest.mark.real_time
@pytest.mark.end_to_end
def test_a_management_api_that_does_not_answer_leaves_the_rest_of_the_status(stage: Stage, lbg: WarmLbg) -> None:
    semp = {"url": "http://127.0.0.1:1", "password": "admin"}
    told = lbg(stage.folder, "group", "status", "--for", "300ms", "--config", str(stage.config(semp=semp)))
    assert told.returncode == 3
    assert "no SEMP answer from http://127.0.0.1:1" in told.stderr
    assert "nobody on lbg-control/orders" in told.stderr


# -- killed


class KillingProxy:
    """Passes bytes on; kills a process when the broker has carried out its nth change, before it hears of it."""

    def __init__(self, port: int, number: int) -> None:
        self._port = port
        self._number = number
        self.victim: Copy | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, here = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_on(there, writer))
                # Whom it has killed may leave its end torn off.
                with suppress(ConnectionError):
                    while data := await reader.read(65_536):
                        self._number -= data.startswith((b"POST ", b"PATCH ", b"PUT ", b"DELETE "))
                        here.write(data)
                here.close()
        finally:
            here.close()
            writer.close()
            with suppress(ConnectionError):
                await here.wait_closed()

    async def _pass_on(self, there: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await there.read(65_536):
            if self._number <= 0 and self.victim is not None:
                self.victim.send_signal(signal.SIGKILL)
                return
            writer.write(data)


@pytest.mark.real_time
@pytest.mark.parametrize("number", [1, 5, 9, 13, 18])  # Each of them in one process: tests/admin/test_creation.py.
async def test_a_creation_that_is_killed_is_finished_by_apply(lbg: WarmLbg, tmp_path: Path, number: int) -> None:
    document: dict[str, Any] = {
        "connection": {"username": "members"},
        "group": {"name": "orders", "hash_prefix": "h", "hash_count": 2, "queue_count": 2},
    }
    path = tmp_path / "config.yaml"
    effects = list[Effect]()
    async with SempServer(Engine(), effects.extend, port=0) as server:
        proxy = KillingProxy(server.port, number)
        async with listening(proxy.serve) as port:
            url = f"http://{OWN_HOST}:{port}"
            path.write_text(json.dumps({**document, "semp": {"url": url, "password": "admin"}}))
            silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            with lbg.running(tmp_path, "group", "create", "--config", path, **silent) as process:
                proxy.victim = process
                assert await asyncio.to_thread(process.wait, PATIENCE_S) == -signal.SIGKILL
        settings = parse_settings({**document, "semp": {"url": server.url, "password": "admin"}}, "test")
        spec = spec_of(settings)
        async with open_semp(settings) as client:
            admin = GroupAdmin(client, "default")
            left = await admin.plan(spec)
            assert len(left.steps) == 18 - number
            await admin.apply(left)
            assert (await admin.plan(spec)).is_clean
