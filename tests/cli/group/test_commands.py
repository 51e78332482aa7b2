"""`lbg group` and `lbg why`: their words, their exit codes, and real members that answer.

More than 400 lines, as one picture of a group is told in all of these words.
"""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner

from lbg_runtime.admin.account import open_semp
from lbg_runtime.admin.sight import QueueSight
from lbg_runtime.broker.semp.server import SempServer
from lbg_runtime.cli.group.commands import _fed_members, _show, _watch, tell_nobody_heard
from lbg_runtime.cli.group.moves_text import as_object, as_text
from lbg_runtime.cli.group.text import (
    FedMember,
    natural,
    otherwise_at_members,
    picture_as_object,
    picture_as_table,
    remarks,
    surplus_queues,
)
from lbg_runtime.cli.main import command_line
from lbg_runtime.config.connection_settings import ConnectionSettings
from lbg_runtime.config.load import load_settings, parse_settings
from lbg_runtime.core.group.control_messages import (
    FlowReport,
    GroupAnswer,
    Header,
    Heartbeat,
    Life,
    MemberFacts,
    MemberState,
    QuestionId,
    ReportedFlow,
    SeenMember,
    StoppedQueues,
)
from lbg_runtime.core.group.picture import GroupPicture
from lbg_runtime.core.group.view import GroupView, MemberView
from lbg_runtime.core.restripe.striping import Striping, StripingReport
from lbg_runtime.model.errors import ConfigError, UserError
from lbg_runtime.model.ids import Epoch, GroupName, MemberId, QueueName
from lbg_runtime.runtime.control_reader import OtherVersion
from lbg_runtime.transport.memory.broker import MemoryBroker
from lbg_runtime.validator.moves import OwnerChange
from tests.patience import PATIENCE_S
from tests.processes import until_said
from tests.validator.history import story
from tests.warm import Copy, WarmLbg

app = command_line()

STRIPING = StripingReport(Striping(0, 3), "")

QUEUES = [QueueName(f"orders/{index}") for index in range(3)]
GROUP = {"name": "orders", "hash_prefix": "h", "hash_count": 8, "queue_count": 4}


def picture() -> GroupPicture:
    """Two members that disagree on a setting, one that neither hears, and a queue that nobody has."""
    made = GroupPicture()
    states = (ReportedFlow.ACTIVE, ReportedFlow.STANDBY)
    for name, flow_states, key in (("a", states, "x"), ("b", states[::-1], "y")):
        header = Header(GroupName("orders"), MemberId(name), Life(1, 1), 1)
        flows = {
            queue: FlowReport(state, Epoch(1), 7 if state is ReportedFlow.ACTIVE else 0)
            for queue, state in zip(QUEUES, flow_states, strict=False)
        }
        made.hear(Heartbeat(header, MemberState.ACTIVE, 2, {"group.key": key}, flows, "0", STRIPING))
        made.hear(GroupAnswer(header, QuestionId("q"), (SeenMember(MemberId("c"), True),)))
    return made


def test_what_someone_should_look_at_is_a_line_each() -> None:
    assert list(remarks(picture(), QUEUES, {}, None)) == [
        "no owner: orders/2: no member that was heard is bound to it",
        "suspect: c, silent for a, b",
        "not heard: c, which is alive according to a, b",
        "settings disagree: group.key: 'x' (a), 'y' (b)",
        "homes are not known: members do not agree yet on who is there, or a queue is on its way",
    ]
    assert list(remarks(GroupPicture(), [], {}, None)) == []


def test_of_our_settings_those_are_told_that_members_have_otherwise() -> None:
    ours = {"group.key": "x", "group.hash_count": "8"}
    assert otherwise_at_members(picture(), ours) == {"group.key": {"y": ["b"]}}, "none tells its hash_count"


def test_a_member_that_two_processes_claim_is_named() -> None:
    made = picture()
    beat = made.members[MemberId("b")]
    made.hear(replace(beat, header=replace(beat.header, life=Life(2, 1))))
    assert "claimed twice: b, by more than one process" in list(remarks(made, QUEUES, {}, None))


def test_a_setting_that_an_older_member_does_not_know_is_told_as_unknown() -> None:
    made = GroupPicture()
    for beat, settings in zip(picture().members.values(), ({"group.key": "x"}, {"group.hash_count": "8"}), strict=True):
        made.hear(replace(beat, settings=settings))
    assert [line for line in remarks(made, QUEUES, {}, None) if line.startswith("settings disagree")] == [
        "settings disagree: group.hash_count: unknown (a), '8' (b)",
        "settings disagree: group.key: 'x' (a), unknown (b)",
    ]


def test_queues_that_have_stopped_are_told_in_the_order_of_their_numbers():
    made = picture()
    queues = (QueueName("orders/10"), QueueName("orders/9"))
    made.hear(StoppedQueues(Header(GroupName("orders"), MemberId("a"), Life(1, 1), 2), QuestionId("q"), queues))
    assert [line for line in remarks(made, QUEUES, {}, None) if line.startswith("has stopped")] == [
        "has stopped: orders/9 of a: `queue_stopped` in its log says why",
        "has stopped: orders/10 of a: `queue_stopped` in its log says why",
    ]
    assert picture_as_object(made, QUEUES, 10)["stopped"] == {"orders/9": "a", "orders/10": "a"}


def test_the_versions_of_members_are_told_and_named_where_they_differ():
    """In a rolling update, and after one that has left somebody out."""
    made = picture()
    assert picture_as_object(made, QUEUES, 10)["members"][0]["version"] is None, "older members do not tell it"
    assert list(picture_as_table(made, QUEUES).columns[1].cells)[-1] == "?"
    for name, version, line in (
        ("a", "0.2.0", "versions differ: 0.2.0 (a), not told (b)"),
        ("b", "0.2.0", None),
        ("b", "0.3.0", "versions differ: 0.2.0 (a), 0.3.0 (b)"),
    ):
        header = Header(GroupName("orders"), MemberId(name), Life(1, 1), 2)
        made.hear(MemberFacts(header, QuestionId("q"), version, 0, {}))
        assert [one for one in remarks(made, QUEUES, {}, None) if one.startswith("versions")] == (
            [line] if line else []
        )
    assert [one["version"] for one in picture_as_object(made, QUEUES, 10)["members"]] == ["0.2.0", "0.3.0"]
    assert [list(column.cells)[-1] for column in picture_as_table(made, QUEUES).columns] == [
        "version",
        "0.2.0",
        "0.3.0",
    ]


def test_a_re_striping_is_named_until_it_is_over() -> None:
    """Its conductor may have been killed, and then the group would stay as it is until somebody looks."""
    made = GroupPicture()
    for sequence, name, striping in (
        (1, "a", Striping(7, 3, 5, left=frozenset({4, 5}), finished=frozenset({0}))),
        (1, "b", Striping(0, 3)),
        (2, "a", Striping(7, 5)),
    ):
        header = Header(GroupName("orders"), MemberId(name), Life(1, 1), sequence)
        report = StripingReport(striping, "")
        made.hear(Heartbeat(header, MemberState.ACTIVE, 1, {}, {}, "0", report))
        told = picture_as_object(made, QUEUES, 10)["restriping"]
        lines = [line for line in remarks(made, QUEUES, {}, None) if line.startswith("re-striping")]
        if striping == Striping(7, 5):
            assert (told, lines) == (None, [])
        else:
            # Of queue 0, which has finished, the shards 3, 6 and 9 have left; they need not be told one by one.
            assert told == {"from": 3, "to": 5, "shards_left": 5}
            ends = "if nobody runs it, `lbg group restripe --queues 5` ends it"
            assert lines == [f"re-striping: from 3 to 5 queues is not over: {ends}"]


def test_a_member_that_is_fed_and_not_heard_is_named_with_what_to_do() -> None:
    silent, heard = FedMember(MemberId("c"), "orders/c/vm/7"), FedMember(MemberId("a"), "orders/a/vm/8")
    assert list(remarks(GroupPicture(), QUEUES, {QUEUES[0]: silent, QUEUES[2]: silent}, None)) == [
        "no owner: orders/1: no member that was heard is bound to it",
        "fed to orders/c/vm/7, which is not heard: orders/0, orders/2: `lbg group evict c`",
    ]
    other = FedMember(MemberId("d"), "orders/d/vm/9")
    assert list(remarks(GroupPicture(), QUEUES, dict(zip(QUEUES, (silent, other, silent), strict=True)), None)) == [
        "fed to orders/c/vm/7, which is not heard: orders/0, orders/2: `lbg group evict c`",
        "fed to orders/d/vm/9, which is not heard: orders/1: `lbg group evict d`",
    ]
    assert next(remarks(picture(), QUEUES, {QUEUES[2]: heard}, None)).startswith("no owner: orders/2"), (
        "it says itself what it has"
    )


@pytest.mark.parametrize("mode", ["cooperative", "cycle"])
def test_where_nobody_is_heard_those_that_are_fed_are_named_if_they_should_talk(
    mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A group may have one member, or all may hang."""
    membership = {} if mode == "cooperative" else {"mode": "static", "index": 0, "count": 1}
    told = {"group": GROUP | {"queue_count": 3}, "rebind": {"mode": mode}, "membership": membership}
    sights = {queue: QueueSight(1, 1, "orders/c/vm/7") for queue in QUEUES}
    _show(parse_settings(told, "test", {}), Path("config.yaml"), (GroupPicture(), None, sights))
    named = "fed to orders/c/vm/7, which is not heard: orders/0, orders/1, orders/2: `lbg group evict c`"
    first = capsys.readouterr().out.splitlines()[0]
    assert (first == named) is (mode == "cooperative")


def test_whom_the_broker_feeds_is_a_member_only_by_the_name_of_one() -> None:
    clients = {"orders/0": "orders/a/vm/7", "orders/1": "of-somebody", "orders/2": None}
    sights = {QueueName(queue): QueueSight(1, 1, client) for queue, client in clients.items()}
    assert _fed_members("orders", sights) == {QueueName("orders/0"): FedMember(MemberId("a"), "orders/a/vm/7")}


def test_the_table_has_a_row_for_each_queue_and_a_column_for_each_member() -> None:
    table = picture_as_table(picture(), QUEUES)
    assert [column.header for column in table.columns] == ["queue", "a", "b"]
    cells = list(zip(*(column.cells for column in table.columns), strict=True))
    assert cells == [
        ("orders/0", "● 7", "○"),
        ("orders/1", "○", "● 7"),
        ("orders/2", "", ""),
        ("queues", "1", "1"),
        ("in flight", "7", "7"),
        ("state", "active", "active"),
        ("weight", "2", "2"),
        ("version", "?", "?"),
    ]
    assert [row.end_section for row in table.rows] == [False, False, True, *[False] * 5], "a line before the sums"


def agreed() -> GroupPicture:
    """The same two members when both have the same settings and see each other and nobody else."""
    beats = picture().members
    members = tuple(
        MemberView(member, beat.header.life, beat.state, beat.weight, False, beat.flows)
        for member, beat in beats.items()
    )
    digest = GroupView(members, {QUEUES[0]: MemberId("a"), QUEUES[1]: MemberId("b")}).digest()
    made = GroupPicture()
    for beat in beats.values():
        made.hear(replace(beat, settings={}, view_digest=digest))
    return made


def test_homes_and_standbys_are_marked_where_members_agree_on_them() -> None:
    table = picture_as_table(agreed(), QUEUES)
    cells = list(zip(*(column.cells for column in table.columns), strict=True))
    assert cells[:3] == [
        ("orders/0", "⌂ ● 7", "+1 ○"),
        ("orders/1", "+1 ○", "⌂ ● 7"),
        ("orders/2", "⌂", ""),
    ]
    told = picture_as_object(agreed(), QUEUES, 10)
    assert told["placement"] == {"orders/0": ["a", "b"], "orders/1": ["b", "a"], "orders/2": ["a", "b"]}
    assert list(remarks(agreed(), QUEUES, {}, None)) == ["no owner: orders/2: no member that was heard is bound to it"]


def test_the_object_says_the_same() -> None:
    told = orjson.loads(orjson.dumps(picture_as_object(picture(), QUEUES, 10)))
    assert told["queues"] == {"orders/0": ["a"], "orders/1": ["b"], "orders/2": []}
    assert (told["without_owner"], told["suspects"], told["unheard"]) == (
        ["orders/2"],
        {"c": ["a", "b"]},
        {"c": ["a", "b"]},
    )
    assert told["members"][0]["flows"]["orders/0"] == {"rank": None, "state": "active", "epoch": 1, "in_flight": 7}
    assert told["placement"] is None
    assert told["disagreements"] == [
        {"setting": "group.key", "values": [{"value": "x", "members": ["a"]}, {"value": "y", "members": ["b"]}]}
    ]


def test_a_queue_on_the_broker_that_no_member_names_is_surplus() -> None:
    on_broker = [QueueName(f"orders/{index}") for index in (10, 9, *range(3))]
    assert surplus_queues(picture(), QUEUES[:2], on_broker) == ["orders/9", "orders/10"], "members know of orders/2"
    assert surplus_queues(GroupPicture(), QUEUES, on_broker[2:]) == []


def test_queues_are_sorted_by_their_number() -> None:
    assert sorted(["q/10", "q/9", "q", "p/11"], key=natural) == ["p/11", "q", "q/9", "q/10"]


def test_a_change_is_a_line_with_what_is_known_of_it() -> None:
    change = OwnerChange(1_000_000, 3, "m", "a", "b", "handback", "offer", True, 51, 80, 0)
    bare = OwnerChange(2_500_000, 4, None, None, "b", "first", "broker", False, None, None, 2)
    removed = OwnerChange(3_000_000, 5, None, "a", "b", "handback", "restripe", False, 51, None, 0)
    assert as_text([change, bare, removed]).splitlines() == [
        "00:00:01.000 queue 3: a -> b, handback, decided by a, which left, drain 51 ms, pause 80 ms, duplicates 0",
        "00:00:02.500 queue 4: - -> b, first, decided by the broker, duplicates 2",
        "00:00:03.000 queue 5: a -> b, handback, decided by the re-striping, which removes the queue, drain 51 ms, "
        "duplicates 0",
        "owner changes: 3 (first 1, handback 2)",
    ]
    told = as_object([change])
    assert told["causes"] == {"handback": 1}
    assert told["changes"][0]["from"] == "a"  # type: ignore[index]


def test_the_moves_of_a_folder_are_printed_and_an_empty_folder_is_unknown(tmp_path: Path) -> None:
    story().write(tmp_path)
    result = CliRunner().invoke(app, ["group", "moves", str(tmp_path), "--json"])
    assert (result.exit_code, orjson.loads(result.stdout)) == (0, {"changes": [], "causes": {}})
    (tmp_path / "empty").mkdir()
    result = CliRunner().invoke(app, ["group", "moves", str(tmp_path / "empty")])
    assert result.exit_code == 3
    assert "no member's journal" in result.stderr
    assert isinstance(CliRunner().invoke(app, ["group", "moves", str(tmp_path / "no")]).exception, UserError)


def test_records_that_a_member_could_not_write_are_told(tmp_path: Path) -> None:
    story().write(tmp_path)
    journal = tmp_path / "02.member.jsonl"
    journal.write_text(journal.read_text().replace('"dropped":0', '"dropped":3'))
    result = CliRunner().invoke(app, ["group", "moves", str(tmp_path)])
    told = "lbg: 02.member.jsonl: records were dropped; changes may be missing, and those next to them be wrong\n"
    assert (result.exit_code, result.stderr) == (0, told)


@pytest.mark.parametrize(
    ("other", "told"), [(None, None), (OtherVersion("version 2", 5), {"found": "version 2", "expected": "version 3"})]
)
def test_the_status_says_why_there_may_be_more_members(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: OtherVersion | None, told: dict[str, str] | None
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps({"group": GROUP, "connection": {"transport": "solace"}}))

    async def look(_: object, __: int) -> object:
        return picture(), other, None

    monkeypatch.setattr("lbg_runtime.cli.group.commands._look", look)
    result = CliRunner().invoke(app, ["group", "status", "--json", "--config", str(config)])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["not_understood"] == told


def test_a_watch_goes_on_after_an_error_of_a_later_look_until_it_is_told_to_stop(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = parse_settings({"group": GROUP, "connection": {"transport": "solace"}}, "test", {})
    gone = ConfigError("connection.host", "tcp://b:1: Connection refused", "a broker")
    first, last = (picture(), None, None), (GroupPicture(), None, None)
    looks: list[object] = [first, gone, last]

    async def look(_: object, __: int) -> object:
        if not looks:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()
        looked = looks.pop(0)
        if isinstance(looked, Exception):
            raise looked
        return looked

    monkeypatch.setattr("lbg_runtime.cli.group.commands._look", look)
    shown: list[object] = []
    asyncio.run(_watch(settings, 1, shown.append))  # type: ignore[arg-type]
    assert shown == [first, last]
    nobody = "lbg: nobody on lbg-control/orders answered within 1 ms"
    assert capsys.readouterr().err.splitlines() == [f"lbg: {gone}", nobody]

    async def refused(_: object, __: int) -> object:
        raise gone

    monkeypatch.setattr("lbg_runtime.cli.group.commands._look", refused)
    with pytest.raises(ConfigError):
        asyncio.run(_watch(settings, 1, shown.append))  # type: ignore[arg-type]


def test_where_nobody_answers_the_conductor_the_login_of_the_members_is_tried(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tried = []

    @asynccontextmanager
    async def refuse(connection: ConnectionSettings, *_: object, **__: object) -> AsyncIterator[None]:
        tried.append(connection.username)
        raise ConfigError("connection.host", "tcp://b:1: Unauthorized", "credentials that the broker accepts")
        yield

    monkeypatch.setattr("lbg_runtime.runtime.session.open_session", refuse)
    connection = {"transport": "solace", "username": "members"}
    plain = parse_settings({"group": GROUP, "connection": connection}, "test", {})
    semp = {"url": "https://b:1", "conductor": {"username": "conductor", "password": "p"}}
    with_conductor = parse_settings({"group": GROUP, "connection": connection, "semp": semp}, "test", {})
    nobody = "lbg: nobody on lbg-control/orders answered within 5 ms"
    assert tell_nobody_heard(plain, 5) == 3
    assert (tried, capsys.readouterr().err.splitlines()) == ([], [nobody])
    assert tell_nobody_heard(with_conductor, 5) == 3
    told = capsys.readouterr().err.splitlines()
    assert (tried, told[0]) == (["members"], nobody)
    assert told[1].startswith("lbg: the members' account cannot log in: connection.host: tcp://b:1: Unauthorized")


# -- against real members


@pytest.fixture
def group(tmp_path: Path, lbg: WarmLbg) -> Iterator[Path]:
    """A broker and a member of four queues; yields the settings file. The handler of key `slow` does not end."""
    (tmp_path / "slow_handlers.py").write_text(
        "import asyncio\nfrom lbg_runtime import Handlers\nhandlers = Handlers()\n"
        "@handlers.handler('orders/>')\nasync def handle(message):\n"
        "    await asyncio.sleep(600 if message.key == 'slow' else 0)\n"
    )

    def start(name: str, *arguments: object) -> tuple[Copy, Path]:
        log = tmp_path / f"{name}.log"
        with log.open("wb") as output:
            process = ending.enter_context(lbg.running(tmp_path, *arguments, stdout=output, stderr=output))
        return process, log

    with ExitStack() as ending:
        broker, broker_log = start("broker", "broker", "--smf", "127.0.0.1:0", "--semp", "127.0.0.1:0")
        said = until_said(broker, broker_log, "ready: smf ").partition("ready: smf ")[2].split()
        config = tmp_path / "config.yaml"
        settings = {
            "connection": {"transport": "solace", "host": f"tcp://{said[0].rstrip(',')}"},
            "semp": {"url": f"http://{said[2]}", "password": "admin"},
            "group": {**GROUP, "provision": "create_missing"},
            "membership": {"settle": "100ms", "heartbeat": "200ms"},
            "rebind": {"drain_timeout": "500ms"},
            "failure": {"timeout": "10m"},
            "handlers": ["slow_handlers"],
        }
        config.write_text(json.dumps(settings))
        member, member_log = start("member", "run", "--config", config, "--member-id", "a")
        until_said(member, member_log, '"change": "active"', times=4)
        yield config
        for process in (member, broker):
            process.terminate()
            process.wait(PATIENCE_S)


def with_more_shards(config: Path) -> Path:
    other = config.with_name("other.yaml")
    other.write_text(config.read_text().replace('"hash_count": 8', '"hash_count": 16'))
    return other


@pytest.mark.real_time
@pytest.mark.end_to_end
@pytest.mark.timeout(300)  # A dozen processes, one after another.
async def test_a_running_group_answers_how_it_stands_and_where_a_key_is(group: Path, lbg: WarmLbg) -> None:
    def told_by(*arguments: str) -> tuple[int, str, str]:
        ended = lbg(group.parent, *arguments)
        return ended.returncode, ended.stdout, ended.stderr

    # Longer than by the short heartbeats of these members, for which a busy machine may be too slow.
    config, patiently = ("--config", str(group)), ("--for", "2s")
    for key, count in (("slow", "2"), ("quick", "1")):
        code, _, errors = told_by("publish", *config, "--topic", "orders/x", "--key", key, "--count", count)
        assert code == 0, errors

    code, output, errors = told_by("group", "status", "--json", *config, *patiently)
    assert code == 0, errors
    told = json.loads(output)
    assert told["queues"] == {f"orders/{index}": ["a"] for index in range(4)}
    assert (told["without_owner"], told["suspects"], told["unheard"], told["disagreements"]) == ([], {}, {}, [])
    code, output, _ = told_by("group", "status", *config, *patiently)
    assert code == 0
    assert "orders/3" in output
    assert "not as in" not in output
    other = str(with_more_shards(group))
    code, output, _ = told_by("group", "status", "--config", other, *patiently)
    assert code == 0, output
    assert f"not as in {other}: group.hash_count: 16 there, and 8 (a)" in " ".join(output.split())

    # As a re-striping leaves it for who goes on with a settings file of before.
    async with open_semp(load_settings(group)) as client:
        await client.create(("msgVpns", "default", "queues"), {"queueName": "orders/4", "permission": "consume"})
    code, output, _ = told_by("group", "status", *config, *patiently)
    assert code == 0
    assert "surplus: orders/4, on the broker and named by no member" in output
    code, output, _ = told_by("group", "status", "--json", *config, *patiently)
    told = json.loads(output)
    assert told["broker"]["orders/4"] == {
        "depth": 0, "unacked": 0, "oldest_age_s": None, "redelivered": 0, "rate": 0.0, "flows": 0, "fed": None,
    }  # fmt: skip
    assert (told["surplus"], len(told["broker"])) == (["orders/4"], 5)

    code, output, errors = told_by("why", "slow", *config, *patiently)
    assert code == 0, errors
    assert "owner: a, active" in output
    assert "attempt 1 runs" in output
    assert "waiting in line behind it: 1" in output
    code, output, errors = told_by("why", "quick", "--json", *config, *patiently)
    assert code == 0, errors
    assert json.loads(output)["answers"][0]["last"]["number"] == 1
    code, _, errors = told_by("why", "unpublished", *config, *patiently)
    assert (code, errors) == (
        1,
        "lbg: its owner has no message of key unpublished, and has not handled one lately\n",
    )

    # The standby of a redundant pair has the same queues, and nobody is bound to them.
    standby = MemoryBroker()
    standby.create_queue("orders/0", [])
    async with SempServer(standby.engine, standby.post, port=0) as other:
        words = ("group", "status", "--json", "--config", administered_at(group, other.url), *patiently)
        code, output, errors = await asyncio.to_thread(told_by, *words)
    assert code == 0, errors
    assert errors.startswith(f"lbg: semp.url: {other.url} is of a broker that does not know client lbg-observer-")
    assert "broker" not in json.loads(output)

    for command in (("group", "status"), ("why", "slow")):
        code, _, errors = told_by(*command, "--config", changed(group, name="others"), "--for", "300ms")
        assert (code, errors) == (3, "lbg: nobody on lbg-control/others answered within 300 ms\n")
    code, _, errors = told_by("why", "slow", "--config", changed(group, hash_function="java_string"))
    assert code == 2
    assert errors.startswith("lbg: group: these settings place the key in shard ")


def administered_at(config: Path, url: str) -> str:
    """Another settings file, with the address of another broker's administration."""
    path = config.with_name("other.yaml")
    path.write_text(json.dumps(json.loads(config.read_text()) | {"semp": {"url": url, "password": "admin"}}))
    return str(path)


def changed(config: Path, **settings: str) -> str:
    """Another settings file, with these of the group's settings."""
    path = config.with_name("other.yaml")
    document = json.loads(config.read_text())
    path.write_text(json.dumps({**document, "group": {**document["group"], **settings}}))
    return str(path)
