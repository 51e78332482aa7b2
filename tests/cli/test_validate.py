"""`lbg validate` as users run it: exit codes, one object or text, and live against a broker on loopback.

Over 400 lines, as it is one command with many options.
"""

import asyncio
import errno
import io
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from subprocess import PIPE
from typing import IO, Any, Protocol

import orjson
import pytest
from click.testing import Result
from typer.testing import CliRunner

from lbg_runtime.broker.engine.accounts import DEFAULT_NAME
from lbg_runtime.broker.server.server import BrokerServer
from lbg_runtime.cli.main import command_line
from lbg_runtime.config.connection_settings import ConnectionSettings, TransportKind
from lbg_runtime.journal.layout import undisturbed
from lbg_runtime.model.errors import UserError
from lbg_runtime.model.message import Message
from lbg_runtime.model.record import DispatchRecord
from lbg_runtime.runtime.session import Session, open_session
from tests.patience import PATIENCE_S
from tests.transport.rights import let_subscribe
from tests.validator.changes import lose_last_of_key, swap_two
from tests.validator.history import Run, story
from tests.warm import Copy, WarmLbg

app = command_line()

TOPIC = "lbg/notes"


def validate(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["validate", *arguments], catch_exceptions=True)


def written(run: Run, folder: Path) -> str:
    folder.mkdir(exist_ok=True)
    run.write(folder)
    return str(folder)


def test_a_valid_run_exits_with_0_and_prints_text(tmp_path: Path) -> None:
    result = validate(written(story(), tmp_path))

    assert result.exit_code == 0
    assert result.stdout.startswith("verdict: valid\n")


def test_an_invalid_run_exits_with_1_and_prints_one_object(tmp_path: Path) -> None:
    run = story()
    assert lose_last_of_key(run)

    result = validate(written(run, tmp_path), "--json")

    assert result.exit_code == 1
    shown = orjson.loads(result.stdout)
    assert (shown["verdict"], shown["lost"]) == ("invalid", 1)


@pytest.mark.parametrize("is_large", [False, True])
def test_every_lost_message_is_written_however_many_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_large: bool
) -> None:
    if is_large:
        monkeypatch.setattr("lbg_runtime.cli.validate.LARGE_RECORDS", 1)
    run = story()
    for journal in run.journals:
        journal.records = [each for each in journal.records if not isinstance(each, DispatchRecord)]
    wanted = {
        (ledger.header.publisher, each.key, seq)
        for ledger in run.ledgers
        for each in ledger.confirmed
        for seq in range(each.first_seq, each.last_seq + 1)
    }

    result = validate(written(run, tmp_path / "run"), "--lost", str(tmp_path / "lost.jsonl"))

    rows = [orjson.loads(line) for line in (tmp_path / "lost.jsonl").read_bytes().splitlines()]
    assert [set(row) for row in rows] == [{"publisher", "key", "seq"}] * len(rows)
    assert {(row["publisher"], row["key"], row["seq"]) for row in rows} == wanted
    assert len(rows) == len(wanted) > 20
    assert f"\nloss: {len(rows)}" in result.stdout
    assert "more, which lbg validate --lost FILE lists\n" in result.stdout


def test_where_nothing_is_lost_the_file_is_empty(tmp_path: Path) -> None:
    file = tmp_path / "lost.jsonl"
    file.write_text("of an earlier run\n")

    assert validate(written(story(), tmp_path / "run"), "--lost", str(file)).exit_code == 0
    assert file.read_bytes() == b""


def test_a_file_for_the_lost_that_cannot_be_written_is_told_after_the_verdict(tmp_path: Path) -> None:
    result = validate(written(story(), tmp_path), "--lost", str(tmp_path))

    assert result.stdout.startswith("verdict: valid\n")
    assert isinstance(result.exception, UserError)
    assert str(result.exception) == f"--lost: {tmp_path}: Is a directory; expected a file that can be written"


def test_a_file_for_the_lost_without_room_is_not_left_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in it is published again, and a part cannot be told from the whole."""
    file, target = tmp_path / "lost.jsonl", tmp_path / "target"
    file.symlink_to(target)

    def run_out(verdict: object) -> Iterator[dict[str, object]]:
        yield {"publisher": "p", "key": "a", "seq": 1}
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("lbg_runtime.validator.report.lost_messages", run_out)
    result = validate(written(story(), tmp_path / "run"), "--lost", str(file))

    assert str(result.exception) == f"--lost: {file}: No space left on device; expected a file that can be written"
    assert not target.exists()


def test_a_file_for_the_lost_that_the_disk_refuses_when_it_is_closed_is_not_left_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network file system may say only then that it has no room for what it has taken."""

    class Refused(io.FileIO):
        def close(self) -> None:
            super().close()
            raise OSError(errno.EDQUOT, "Disk quota exceeded")

    file, folder, opened = tmp_path / "lost.jsonl", written(story(), tmp_path / "run"), Path.open

    def open_it(path: Path, *given: Any) -> IO[Any]:
        return io.BufferedWriter(Refused(path, "wb")) if path == file else opened(path, *given)

    monkeypatch.setattr(Path, "open", open_it)
    result = validate(folder, "--lost", str(file))

    assert str(result.exception) == f"--lost: {file}: Disk quota exceeded; expected a file that can be written"
    assert not file.exists()


def test_a_journal_that_is_not_there_is_a_users_mistake(tmp_path: Path) -> None:
    folder = written(story(), tmp_path)
    (tmp_path / "m2-1.member.jsonl").symlink_to("nowhere")

    result = validate(folder)

    assert isinstance(result.exception, UserError)
    assert str(result.exception).endswith(
        "m2-1.member.jsonl: No such file or directory; expected a readable record file"
    )


def test_a_run_without_a_ledger_exits_with_3(tmp_path: Path) -> None:
    run = story()
    run.ledgers.clear()

    result = validate(written(run, tmp_path), "--json")

    assert result.exit_code == 3
    assert orjson.loads(result.stdout)["verdict"] == "unknown"


def test_a_smaller_window_allows_fewer_duplicates(tmp_path: Path) -> None:
    folder = written(story(), tmp_path)

    wide = orjson.loads(validate(folder, "--json").stdout)
    narrow = orjson.loads(validate(folder, "--json", "--ack-window", "1ms").stdout)

    assert narrow["duplicate_bound"] < wide["duplicate_bound"]
    assert narrow["verdict"] == "invalid"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["{folder}/nowhere", "--live"],
        ["{folder}/nowhere"],
        ["{folder}", "--ack-window", "5"],
    ],
)
def test_a_users_mistake_is_told_as_one(tmp_path: Path, arguments: list[str]) -> None:
    result = validate(*(argument.format(folder=tmp_path) for argument in arguments))

    assert isinstance(result.exception, UserError)


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["{folder}", "--for", "30s"], "--for"),
        (["{folder}", "--topic", "x"], "--topic"),
        (["{folder}", "--live", "--topic", "x"], "--topic"),
        (["--live", "--lost", "{folder}/p"], "--lost"),
        (["--live", "--layout", "{folder}/p"], "--layout"),
        (["{folder}", "--live", "--layout", "{folder}/p"], "--layout"),
        (["--live", "--engine", "spark"], "--engine spark"),
        (["{folder}", "--checkpoint", "{folder}/c"], "--checkpoint"),
        (["{folder}", "--live", "--checkpoint", "{folder}/c"], "--checkpoint"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(tmp_path: Path, arguments: list[str], option: str) -> None:
    result = validate(*(argument.format(folder=tmp_path) for argument in arguments))

    assert isinstance(result.exception, UserError)
    assert str(result.exception).startswith(f"{option}: of no use here; expected ")


@pytest.mark.parametrize("judged", [["{folder}"], ["{folder}", "--live"], ["--live"]])
def test_an_ack_window_of_centuries_is_refused(tmp_path: Path, judged: list[str]) -> None:
    """No moment in nanoseconds is so far away, which ended the command with a traceback."""
    folder = written(story(), tmp_path)
    result = validate(*(argument.format(folder=folder) for argument in judged), "--ack-window", "9999999h")

    assert isinstance(result.exception, UserError)
    assert str(result.exception) == "--ack-window: '9999999h'; expected 0ms to 168h"


# -- live


def test_the_journals_of_a_run_that_goes_on_are_judged_so_far(tmp_path: Path) -> None:
    run = story()
    assert swap_two(run)

    told = validate("--live", written(run, tmp_path), "--for", "1ms")
    counted = validate("--live", str(tmp_path), "--for", "1ms", "--json")

    assert told.stdout.startswith("order: ")
    assert "\ninvalid: handled" in told.stdout
    assert orjson.loads(counted.stdout)["violations"]["order"] == 1
    assert (told.exit_code, counted.exit_code) == (1, 1)


def test_a_directory_that_lacks_records_is_not_called_invalid_while_the_run_goes_on(tmp_path: Path) -> None:
    run = story()
    assert swap_two(run)
    directory = written(run, tmp_path)
    journal = min(tmp_path.glob("*.member.jsonl"))
    journal.with_name("copy.member.jsonl").write_bytes(journal.read_bytes())

    told = validate("--live", directory, "--for", "1ms")
    counted = orjson.loads(validate("--live", directory, "--for", "1ms", "--json").stdout)

    assert "\nunknown: handled" in told.stdout
    reason = f"2 journals claim incarnation 1 of member a: {journal.name}, copy.member.jsonl"
    assert f"not provable: {reason}" in told.stdout
    assert (told.exit_code, counted["verdict_so_far"]) == (3, "unknown")
    assert "order" in counted["unproven"]
    assert counted["reasons"] == [reason]


def test_what_is_there_is_judged_however_short_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = written(story(), tmp_path)
    at_once = validate("--live", directory, "--for", "1ms", "--json")
    monkeypatch.setattr("lbg_runtime.journal.follow._BLOCK_BYTES", 3000)
    bit_by_bit = validate("--live", directory, "--for", "1ms", "--json")
    assert orjson.loads(bit_by_bit.stdout) == orjson.loads(at_once.stdout)
    assert orjson.loads(at_once.stdout)["handled_first"] > 0


def test_a_folder_in_which_another_run_is_laid_out_is_refused(tmp_path: Path) -> None:
    journals, laid = written(story(), tmp_path / "journals"), tmp_path / "laid"
    assert validate(journals, "--layout", str(laid)).exit_code == 0
    with undisturbed(laid, is_written=True):
        for arguments in ([journals, "--layout", str(laid)], [str(laid / "run=run")]):
            refused = validate(*arguments).exception
            assert isinstance(refused, UserError)
            assert "another process lays out a run there" in str(refused)
    assert validate(str(laid)).exit_code == 0


def test_a_large_run_is_laid_out_and_judged_in_slices_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = written(story(), tmp_path / "run")
    expected = validate(folder).stdout
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    monkeypatch.setattr("lbg_runtime.cli.validate.LARGE_RECORDS", 1)
    monkeypatch.setattr("lbg_runtime.pipeline.parts.SLICE_RECORDS", 3)

    assert validate(folder).stdout == expected
    assert not list((tmp_path / "scratch").iterdir())


def test_a_large_run_is_judged_though_what_was_laid_out_of_it_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = written(story(), tmp_path / "run")
    expected = validate(folder).stdout
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    monkeypatch.setattr("lbg_runtime.cli.validate.LARGE_RECORDS", 1)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as ill:
        for name in ("rmdir", "unlink"):
            ill.setattr(os, name, refuse)
        assert validate(folder).stdout == expected


def test_a_large_run_for_which_there_is_no_temporary_folder_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = written(story(), tmp_path / "run")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    monkeypatch.setattr("lbg_runtime.cli.validate.LARGE_RECORDS", 1)

    result = validate(folder)

    assert isinstance(result.exception, UserError)
    assert str(result.exception) == (
        "temporary folder: No such file or directory; expected room for the records, such as in TMPDIR"
    )


@pytest.fixture
async def broker() -> AsyncIterator[BrokerServer]:
    async with BrokerServer(port=0) as server:
        yield server


@pytest.fixture
async def member(broker: BrokerServer) -> AsyncIterator[Session]:
    """A session that republishes, as members do."""
    settings = ConnectionSettings(transport=TransportKind.SOLACE, host=(f"tcp://127.0.0.1:{broker.port}",))
    async with open_session(settings, "member") as session:
        yield session


def write_config(folder: Path, port: int, **ops: object) -> str:
    path = folder / "config.yaml"
    settings = {
        # An embedded broker is in a member's process; its address is what the validator connects to.
        "connection": {"transport": "embedded", "host": f"tcp://127.0.0.1:{port}", "client_name": "member"},
        "group": {"name": "orders", "hash_prefix": "o", "hash_count": 100, "queue_count": 8},
        "ops": {"journal": ops},
    }
    path.write_bytes(orjson.dumps(settings))
    return str(path)


def note(seq: int, member: str) -> Message:
    fields = {"member": member, "queue": "orders/1", "shard": 1, "key": "k", "seq": seq, "publisher": "p"}
    return Message(TOPIC, orjson.dumps({**fields, "topic": "orders/created", "redelivered": False}))


async def told(process: Copy, words: str) -> None:
    """Return when the command has said this on standard error."""
    assert process.stderr is not None
    async with asyncio.timeout(PATIENCE_S):
        while line := await asyncio.to_thread(process.stderr.readline):
            if words in line:
                return
    raise AssertionError(f"the command ended before it said {words!r}")


class Listening(Protocol):
    """Starts the command, and returns once it listens."""

    async def __call__(self, config: str, *arguments: str) -> Copy: ...


@pytest.fixture
def listen(lbg: WarmLbg, tmp_path: Path) -> Iterator[Listening]:
    async def start(config: str, *arguments: str) -> Copy:
        words = ("validate", "--live", "--config", config, *arguments)
        process = ending.enter_context(lbg.running(tmp_path, *words, stdout=PIPE, stderr=PIPE))
        await told(process, "listening to")
        return process

    with ExitStack() as ending:
        yield start


async def turn_deaf(process: Copy, broker: BrokerServer) -> None:
    """Return when the command has lost its connection, and has been refused its topic on the next one."""
    let_subscribe(broker.engine, DEFAULT_NAME, is_allowed=False)
    assert broker.faults.drop(f"lbg-validate-{socket.gethostname()}-{process.pid}") == 1
    await told(process, "hears nothing")
    await told(process, "control_topic_refused")


async def end(process: Copy) -> tuple[int | None, str]:
    output, _ = await asyncio.to_thread(process.communicate, timeout=PATIENCE_S)
    return process.returncode, output


@pytest.mark.real_time
@pytest.mark.end_to_end
class TestLive:
    """Each test is one process of its own, a copy (`tests.warm`)."""

    async def test_findings_are_printed_as_they_happen_and_sigint_ends_it_with_a_summary(
        self, broker: BrokerServer, member: Session, listen: Listening, tmp_path: Path
    ) -> None:
        process = await listen(write_config(tmp_path, broker.port, republish_topic=TOPIC))
        for each in (note(1, "a"), note(2, "a"), note(4, "a"), note(5, "b")):
            member.send_direct(each)
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            first, second = [await asyncio.to_thread(process.stdout.readline) for _ in range(2)]

        process.send_signal(signal.SIGINT)
        code, rest = await end(process)

        assert first.startswith("sequence error: key k expected 3 got 4")
        assert second.startswith("shard 1 was a, now b")
        assert rest.startswith("notes 4, shard moves 1, sequence errors gap 1")
        assert code == 1

    async def test_where_every_number_was_heard_nothing_is_wrong(
        self, broker: BrokerServer, member: Session, listen: Listening, tmp_path: Path
    ) -> None:
        process = await listen(write_config(tmp_path, broker.port, republish_topic=TOPIC))
        # The move shows that both were heard.
        member.send_direct(note(1, "a"))
        member.send_direct(note(2, "b"))
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            assert (await asyncio.to_thread(process.stdout.readline)).startswith("shard 1 was a, now b")
        process.send_signal(signal.SIGINT)
        code, output = await end(process)

        assert output.startswith("notes 2, shard moves 1, sequence errors gap 0")
        assert code == 0

    async def test_it_ends_by_itself_and_knows_nothing_where_nobody_was_heard(
        self, broker: BrokerServer, listen: Listening, tmp_path: Path
    ) -> None:
        config = write_config(tmp_path, broker.port)
        code, output = await end(await listen(config, "--topic", TOPIC, "--for", "100ms", "--json"))

        assert code == 3
        assert orjson.loads(output)["notes"] == 0

    async def test_a_topic_that_is_refused_at_the_start_is_one_line(
        self, broker: BrokerServer, lbg: WarmLbg, tmp_path: Path
    ) -> None:
        let_subscribe(broker.engine, DEFAULT_NAME, is_allowed=False)
        config = write_config(tmp_path, broker.port, republish_topic=TOPIC)
        ended = await asyncio.to_thread(lbg, tmp_path, "validate", "--live", "--config", config)

        assert ended.stderr.startswith(f"lbg: cannot subscribe to {TOPIC}: Subscription ACL Denied")
        assert len(ended.stderr.splitlines()) == 1
        assert ended.stdout.startswith("notes 0, ")
        assert ended.returncode == 3, "1 would say that a number is missing"

    async def test_a_run_that_was_not_heard_all_the_time_is_not_called_valid_nor_are_missed_numbers_gaps(
        self, broker: BrokerServer, member: Session, listen: Listening, tmp_path: Path
    ) -> None:
        process = await listen(write_config(tmp_path, broker.port, republish_topic=TOPIC), "--json")
        member.send_direct(note(1, "a"))
        member.send_direct(note(2, "b"))
        await told(process, "shard 1 was a, now b")
        await turn_deaf(process, broker)
        member.send_direct(note(3, "b"))
        let_subscribe(broker.engine, DEFAULT_NAME, is_allowed=True)
        await told(process, "listening to")
        member.send_direct(note(4, "a"))
        await told(process, "shard 1 was b, now a")
        process.send_signal(signal.SIGINT)
        code, output = await end(process)

        counts = orjson.loads(output)
        assert (counts["interruptions"], counts["notes"], counts["sequence_errors_gap"]) == (1, 3, 0)
        assert code == 3

    async def test_one_that_is_deaf_at_its_end_knows_nothing(
        self, broker: BrokerServer, member: Session, listen: Listening, tmp_path: Path
    ) -> None:
        process = await listen(write_config(tmp_path, broker.port, republish_topic=TOPIC))
        # The move shows that both were heard.
        member.send_direct(note(1, "a"))
        member.send_direct(note(2, "b"))
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            assert (await asyncio.to_thread(process.stdout.readline)).startswith("shard 1 was a, now b")
        await turn_deaf(process, broker)
        process.send_signal(signal.SIGINT)
        code, output = await end(process)

        assert output.startswith("notes 2, ")
        assert output.endswith("interruptions 1\n")
        assert code == 3


@pytest.mark.real_time
def test_live_without_a_topic_is_the_users_mistake(tmp_path: Path) -> None:
    result = validate("--live", "--config", write_config(tmp_path, 1))

    assert isinstance(result.exception, UserError)
    assert "republish_topic" in str(result.exception)


@pytest.mark.real_time
def test_live_without_a_broker_is_told_in_one_line(tmp_path: Path) -> None:
    result = validate("--live", "--config", write_config(tmp_path, 1), "--topic", TOPIC)

    assert isinstance(result.exception, UserError)
