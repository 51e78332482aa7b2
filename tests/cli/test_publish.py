"""`lbg publish` as users run it: a process, the official client, a broker on loopback.

More than 400 lines, as all of it is about one command.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from subprocess import PIPE
from typing import Protocol

import orjson
import pytest

from lbg_runtime import publishing
from lbg_runtime.broker.server.server import BrokerServer
from lbg_runtime.cli import publish as publish_module
from lbg_runtime.cli.log_output import LogOutput
from lbg_runtime.cli.publish import PublishSummary, _publish
from lbg_runtime.config.load import load_settings
from lbg_runtime.config.settings import ClientPathChoice
from lbg_runtime.model.ids import QueueName
from lbg_runtime.model.message import Message
from lbg_runtime.publisher.load import LoadPlan
from lbg_runtime.transport.solace import paths
from tests.addresses import OWN_HOST
from tests.patience import PATIENCE_MS, PATIENCE_S
from tests.processes import running
from tests.warm import Copy, WarmLbg


@pytest.fixture
async def broker() -> AsyncIterator[BrokerServer]:
    async with BrokerServer(OWN_HOST, 0) as server:
        yield server


def _write_config(folder: Path, port: int, transport: object = None, **group: object) -> Path:
    path = folder / "config.yaml"
    settings = {
        "transport": transport or {},
        "connection": {"transport": "solace", "host": f"tcp://{OWN_HOST}:{port}", "client_name": "member"},
        "group": {"name": "orders", "hash_prefix": "o", "hash_count": 100, "queue_count": 8, **group},
    }
    path.write_bytes(orjson.dumps(settings))
    return path


class Starting(Protocol):
    """Starts `lbg publish` with these settings and options."""

    def __call__(self, config: Path, *arguments: str) -> Copy: ...


@pytest.fixture
def start(lbg: WarmLbg) -> Iterator[Starting]:
    def start_copy(config: Path, *arguments: str) -> Copy:
        words = ("publish", "--config", config, "--topic", "orders/created", *arguments)
        return ending.enter_context(lbg.running(config.parent, *words, stdin=PIPE, stdout=PIPE, stderr=PIPE))

    with ExitStack() as ending:
        yield start_copy


async def _end(process: "Copy | subprocess.Popen[str]", given: str = "") -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    output, errors = await asyncio.to_thread(process.communicate, given, timeout=PATIENCE_S)
    assert process.returncode is not None
    return process.returncode, output, errors


def _shown_on(terminal: int) -> str:
    """All that is shown there, until nobody has it any more."""
    shown = b""
    with suppress(OSError):
        while part := os.read(terminal, 100_000):
            shown += part
    return shown.decode()


def _ledger(folder: Path) -> list[dict[str, object]]:
    (path,) = folder.glob("*.ledger.jsonl")
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


def _confirmed(folder: Path) -> int:
    return sum(
        int(str(line["last_seq"])) - int(str(line["first_seq"])) + 1
        for line in _ledger(folder)
        if line["kind"] == "confirmed"
    )


@pytest.mark.real_time
@pytest.mark.end_to_end
class TestProcess:
    """Each test is one process of its own; but for the first, it is a copy (`tests.warm`)."""

    async def test_a_counted_load_is_confirmed_and_on_the_ledger(self, broker: BrokerServer, tmp_path: Path) -> None:
        config = _write_config(tmp_path, broker.port)
        ledger = tmp_path / "ledger"
        words = ("publish", "--config", config, "--topic", "orders/created", "--count", "500", "--keys", "20")
        command = [sys.executable, "-m", "lbg_runtime.cli", *words, "--ledger", str(ledger), "--json"]
        with running(command, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True) as process:
            code, output, _ = await _end(process)
        summary = orjson.loads(output)
        assert code == 0
        assert (summary["sent"], summary["confirmed"], summary["stopped_by"]) == (500, 500, None)
        assert _confirmed(ledger) == 500
        assert _ledger(ledger)[-1]["clean"] is True

    async def test_what_comes_before_the_first_member_lies_in_queues_that_members_may_make(
        self, broker: BrokerServer, start: Starting, tmp_path: Path
    ) -> None:
        config = _write_config(tmp_path, broker.port, provision="create_missing")
        code, output, _ = await _end(start(config, "--key", "k"), "one\n")
        assert (code, output.partition(" in ")[0]) == (0, "1 of 1 message confirmed")
        depths = [broker.engine.queue_status("default", QueueName(f"orders/{index}")).depth for index in range(8)]
        assert sum(depths) == 1

    async def test_lines_of_standard_input_are_messages_with_keys_of_their_own(
        self, broker: BrokerServer, start: Starting, tmp_path: Path
    ) -> None:
        config = _write_config(tmp_path, broker.port)
        process = start(config, "--key-from", "json:/id", "--ledger", str(tmp_path))
        code, output, _ = await _end(process, '{"id": 1}\n{"id": "b"}\n{"id": 1}\n')
        assert code == 0
        assert output.startswith("3 of 3 messages confirmed")
        ranges = {line["key"]: line["last_seq"] for line in _ledger(tmp_path) if line["kind"] == "confirmed"}
        assert ranges == {"1": 2, "b": 1}

    @pytest.mark.parametrize(("options", "lines"), [(("--count", "9"), ""), (("--key", "k"), '{"id": 1}\n{"id": 2}\n')])
    async def test_a_key_that_is_not_the_one_that_members_find_is_told_once(
        self, broker: BrokerServer, start: Starting, tmp_path: Path, options: tuple[str, ...], lines: str
    ) -> None:
        config = _write_config(tmp_path, broker.port, key="json:/id")
        code, _, errors = await _end(start(config, *options), lines)
        assert code == 0
        assert errors.count("is not the one that members find by group.key (json:/id)") == 1

    async def test_of_keys_that_members_find_nothing_is_told(
        self, broker: BrokerServer, start: Starting, tmp_path: Path
    ) -> None:
        config = _write_config(tmp_path, broker.port, key="json:/key")
        code, _, errors = await _end(start(config, "--count", "9"))
        assert (code, "group.key" in errors) == (0, False)

    async def test_an_empty_standard_input_is_told(self, broker: BrokerServer, start: Starting, tmp_path: Path) -> None:
        code, output, errors = await _end(start(_write_config(tmp_path, broker.port), "--key", "k"), "")
        assert (code, output.partition(" in ")[0]) == (0, "0 of 0 messages confirmed")
        assert "lbg: standard input was empty" in errors

    async def test_the_first_line_without_a_key_ends_it_with_its_number_and_all_before_it_confirmed(
        self, broker: BrokerServer, start: Starting, tmp_path: Path
    ) -> None:
        config = _write_config(tmp_path, broker.port, key="json:/id")
        process = start(config, "--ledger", str(tmp_path), "--json")
        code, output, errors = await _end(process, '{"id": 1}\n{}\n{"id": 3}\n')
        assert code == 2
        assert errors.splitlines()[-1].startswith("lbg: standard input, line 2: no key")
        summary = orjson.loads(output)
        assert (summary["sent"], summary["confirmed"], summary["unknown"]) == (1, 1, 0)
        assert summary["failure"].startswith("standard input, line 2: no key")
        assert "Traceback" not in errors
        assert _confirmed(tmp_path) == 1

    async def test_where_the_very_first_line_has_no_key_there_is_nothing_to_sum_up(
        self, broker: BrokerServer, start: Starting, tmp_path: Path
    ) -> None:
        config = _write_config(tmp_path, broker.port, key="json:/id")
        code, output, errors = await _end(start(config, "--json"), '{}\n{"id": 2}\n')
        assert (code, output) == (2, "")
        assert errors.splitlines()[-1].startswith("lbg: standard input, line 1: no key")

    async def test_on_a_terminal_it_asks_for_lines_and_shows_how_many_are_confirmed(
        self, broker: BrokerServer, lbg: WarmLbg, tmp_path: Path
    ) -> None:
        config = _write_config(tmp_path, broker.port)
        ours, its = os.openpty()
        # Ctrl-D, at the beginning of a line.
        os.write(ours, b"one\ntwo\n\x04")
        showing = asyncio.create_task(asyncio.to_thread(_shown_on, ours))
        words = ("publish", "--config", config, "--topic", "orders/created", "--key", "k")
        try:
            with lbg.running(tmp_path, *words, stdin=its, stdout=PIPE, stderr=its) as process:
                os.close(its)
                code, output, _ = await _end(process)
        finally:
            shown = await showing
            os.close(ours)
        assert (code, output.partition(" in ")[0]) == (0, "2 of 2 messages confirmed")
        assert "lbg publish: each line that you type is a message; Ctrl-D ends\r\n" in shown
        assert "2 confirmed, 0 under way, 0 refused" in shown

    async def test_on_a_terminal_lines_of_the_log_share_no_row_with_what_is_confirmed(
        self, broker: BrokerServer, lbg: WarmLbg, tmp_path: Path
    ) -> None:
        config = _write_config(tmp_path, broker.port)
        ours, its = os.openpty()
        showing = asyncio.create_task(asyncio.to_thread(_shown_on, ours))
        words = ("publish", "--config", config, "--topic", "orders/created", "--rate", "400", "--ledger", str(tmp_path))
        try:
            with lbg.running(tmp_path, *words, stdin=its, stdout=PIPE, stderr=its) as process:
                os.close(its)
                await _until_ledger_grows(tmp_path)
                await broker.stop()
                await broker.start()
                await _until_ledger_grows(tmp_path, beyond=_longest_ledger(tmp_path) + 5)
                process.send_signal(signal.SIGTERM)
                await _end(process)
        finally:
            shown = await showing
            os.close(ours)
        told = [row for row in shown.split("\r\n") if "reconnect" in row]
        assert told
        for row in told:
            assert "confirmed" not in row.rpartition("\x1b[2K")[2], row

    async def test_sigterm_ends_the_load_with_everything_confirmed(
        self, broker: BrokerServer, start: Starting, tmp_path: Path
    ) -> None:
        config = _write_config(tmp_path, broker.port)
        process = start(config, "--rate", "300", "--keys", "5", "--ledger", str(tmp_path), "--json")
        await _until_ledger_grows(tmp_path)
        process.send_signal(signal.SIGTERM)
        code, output, _ = await _end(process)
        summary = orjson.loads(output)
        assert code == 0
        assert summary["stopped_by"] == "SIGTERM"
        assert summary["confirmed"] == summary["sent"] == _confirmed(tmp_path)
        assert _ledger(tmp_path)[-1]["clean"] is True

    async def test_sigint_ends_waiting_for_a_line_with_the_code_of_an_interruption(
        self, broker: BrokerServer, start: Starting, tmp_path: Path
    ) -> None:
        config = _write_config(tmp_path, broker.port)
        process = start(config, "--key", "k", "--ledger", str(tmp_path), "--json")
        assert process.stdin is not None
        process.stdin.write("first\n")
        process.stdin.flush()
        await _until_ledger_grows(tmp_path)
        process.send_signal(signal.SIGINT)
        code, output = await _end_with_open_input(process)
        assert code == 130
        assert orjson.loads(output)["confirmed"] == 1

    async def test_a_lost_connection_costs_no_message(
        self, broker: BrokerServer, start: Starting, tmp_path: Path
    ) -> None:
        config = _write_config(tmp_path, broker.port)
        process = start(config, "--rate", "400", "--keys", "5", "--ledger", str(tmp_path), "--json")
        await _until_ledger_grows(tmp_path)
        await broker.stop()
        await broker.start()
        await _until_ledger_grows(tmp_path, beyond=_longest_ledger(tmp_path) + 5)
        process.send_signal(signal.SIGTERM)
        code, output, _ = await _end(process)
        summary = orjson.loads(output)
        assert code == 0
        assert summary["confirmed"] == summary["sent"] == _confirmed(tmp_path)

    def test_an_unreachable_broker_is_told_in_one_line(self, lbg: WarmLbg, tmp_path: Path) -> None:
        with socket.socket() as bound:
            # Bound and not listening: nobody else can have the port, and every connection is refused.
            bound.bind((OWN_HOST, 0))
            port = bound.getsockname()[1]
            config = _write_config(tmp_path, port)
            ended = lbg(tmp_path, "publish", "--config", str(config), "--topic", "orders/created", "--count", "1")
        assert ended.returncode == 2
        assert "Traceback" not in ended.stderr
        assert ended.stderr.strip().splitlines()[-1].startswith(f"lbg: connection.host: tcp://{OWN_HOST}:{port}")

    async def test_a_ledger_that_cannot_be_written_stops_the_start(
        self, broker: BrokerServer, start: Starting, tmp_path: Path
    ) -> None:
        config = _write_config(tmp_path, broker.port)
        (tmp_path / "file").touch()
        process = start(config, "--count", "1", "--ledger", str(tmp_path / "file" / "folder"))
        code, _, errors = await _end(process)
        assert code == 2
        assert errors.strip().splitlines()[-1].startswith("lbg: ledger:")

    @pytest.mark.parametrize(
        ("options", "named"),
        [
            (("--key", "k", "--key-from", "topic"), "--key-from"),
            (("--key", "k", "--keys", "3"), "--keys"),
            (("--key", ""), "--key"),
            (("--key", "\udcff"), "--key"),
            (("--count", "3", "--key-from", "topic"), "--key-from"),
            (("--key-from", "nonsense"), "--key-from"),
            (("--rate", "inf"), "--rate"),
            (("--duration", "inf"), "--duration"),
        ],
    )
    def test_options_that_contradict_each_other_are_a_usage_error(
        self, lbg: WarmLbg, tmp_path: Path, options: tuple[str, ...], named: str
    ) -> None:
        config = _write_config(tmp_path, 1)
        ended = lbg(tmp_path, "publish", "--config", str(config), "--topic", "orders/created", *options)
        assert ended.returncode == 2
        assert ended.stderr.startswith(f"lbg: {named}:")

    def test_what_the_log_says_while_settings_are_read_is_not_on_standard_output(
        self, lbg: WarmLbg, tmp_path: Path
    ) -> None:
        stored = {"V": 1, "HP": "o", "HC": 8, "QC": 2, "QS": 1, "CU": "default", "HF": "crc32", "KY": "topic"}
        kept = {"group": "orders", "vpn": "default", "marker": orjson.dumps(stored).decode()}
        (tmp_path / "cache").write_bytes(orjson.dumps(kept))
        with socket.socket() as bound:
            bound.bind(("127.0.0.1", 0))
            settings = {
                "connection": {"transport": "solace", "host": "tcp://127.0.0.1:1"},
                "semp": {"url": f"http://127.0.0.1:{bound.getsockname()[1]}"},
                "group": {"name": "orders", "from": "semp", "cache": "cache"},
            }
            (tmp_path / "config.yaml").write_bytes(orjson.dumps(settings))
            ended = lbg(tmp_path, "publish", "--topic", "orders/created", "--key-from", "nonsense")
        assert (ended.returncode, ended.stdout) == (2, "")
        assert "group_settings_from_cache" in ended.stderr


async def _until_ledger_grows(folder: Path, beyond: int = 1) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while _longest_ledger(folder) <= beyond:  # noqa: ASYNC110  # a file of another process has no event to wait for
            await asyncio.sleep(0.05)


def _longest_ledger(folder: Path) -> int:
    return max((len(path.read_bytes().splitlines()) for path in folder.glob("*.ledger.jsonl")), default=0)


async def _end_with_open_input(process: Copy) -> tuple[int, str]:
    """As `_end`, but the pipe to its standard input stays open."""
    code = await asyncio.to_thread(process.wait, PATIENCE_S)
    assert process.stdout is not None
    return code, process.stdout.read()


def _summary(**facts: object) -> PublishSummary:
    values: dict[str, object] = {
        "publisher": "p",
        "sent": 3,
        "confirmed": 3,
        "refused": 0,
        "unknown": 0,
        "seconds": 1.0,
        "per_second": 3,
        "ledger": None,
        "ledger_dropped": 0,
        "stopped_by": None,
        "failure": None,
    }
    return PublishSummary(**{**values, **facts})  # type: ignore[arg-type]  # facts of a test


@pytest.mark.parametrize(
    ("summary", "code"),
    [
        (_summary(), 0),
        (_summary(stopped_by="SIGTERM"), 0),
        (_summary(stopped_by="SIGINT"), 130),
        (_summary(confirmed=2, refused=1), 1),
        (_summary(confirmed=2, unknown=1, stopped_by="SIGINT"), 1),
        (_summary(ledger_dropped=1), 1),
        (_summary(failure="standard input, line 4: no key"), 2),
    ],
)
def test_the_exit_code_is_0_only_where_every_message_is_confirmed(summary: PublishSummary, code: int) -> None:
    assert summary.exit_code == code


def test_the_text_names_what_is_refused_and_unknown() -> None:
    text = _summary(confirmed=1, refused=1, unknown=1).as_text()
    assert text.startswith("1 of 3 messages confirmed")
    assert "1 refused" in text
    assert "1 may or may not be on the broker" in text


@pytest.mark.real_time
@pytest.mark.parametrize("path", [ClientPathChoice.FAST, ClientPathChoice.PUBLIC])
async def test_the_client_path_of_the_settings_is_the_one_it_publishes_by(
    broker: BrokerServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: ClientPathChoice
) -> None:
    chosen: list[ClientPathChoice] = []
    choose = paths.choose_paths

    def choose_and_note(choice: ClientPathChoice, *, carries_traces: bool) -> object:
        chosen.append(choice)
        return choose(choice)

    monkeypatch.setattr(paths, "choose_paths", choose_and_note)
    settings = load_settings(_write_config(tmp_path, broker.port, transport={"client_path": path.value}))
    summary = await _publish(
        settings, LoadPlan("orders/created", ("1",), count=3), None, LogOutput(sys.stderr), parent_pid=None
    )
    assert (summary.confirmed, chosen) == (3, [path])


class _SlowBroker:
    """Asks this process to leave when the first queue is to be made, which takes for ever."""

    def __init__(self, number: signal.Signals) -> None:
        self._number = number
        self.is_closed = False

    @asynccontextmanager
    async def opened(self, *_: object, **__: object) -> AsyncIterator["_SlowBroker"]:
        try:
            yield self
        finally:
            self.is_closed = True

    async def has_queue(self, _: QueueName) -> bool:
        return False

    async def provision(self, _: QueueName, __: Sequence[str]) -> None:
        os.kill(os.getpid(), self._number)
        await asyncio.get_running_loop().create_future()


@pytest.mark.real_time
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
async def test_who_asks_it_to_leave_while_the_queues_are_made_does_not_wait_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int
) -> None:
    broker = _SlowBroker(number)
    monkeypatch.setattr(publishing, "open_session", broker.opened)
    settings = load_settings(_write_config(tmp_path, 1, provision="create_missing"))
    async with asyncio.timeout(PATIENCE_S):
        summary = await _publish(
            settings, LoadPlan("orders/created", ("1",), count=3), tmp_path, LogOutput(sys.stderr), parent_pid=None
        )
    assert (summary.sent, summary.stopped_by, summary.exit_code) == (0, number.name, code)
    assert (summary.ledger, broker.is_closed) == (None, True)


@pytest.mark.real_time
async def test_it_does_not_begin_if_its_parent_has_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = _SlowBroker(signal.SIGTERM)
    monkeypatch.setattr(publishing, "open_session", broker.opened)
    settings = load_settings(_write_config(tmp_path, 1, provision="create_missing"))
    async with asyncio.timeout(PATIENCE_S):
        summary = await _publish(
            settings, LoadPlan("orders/created", ("1",), count=3), None, LogOutput(sys.stderr), parent_pid=-1
        )
    assert (summary.sent, summary.stopped_by, broker.is_closed) == (0, "parent gone", False)


class _DeafBroker:
    """Confirms nothing; asks this process twice to leave when the last message is sent."""

    def __init__(self, count: int) -> None:
        self._left = count

    @asynccontextmanager
    async def opened(self, *_: object, **__: object) -> AsyncIterator["_DeafBroker"]:
        yield self

    def send(self, _: Message) -> asyncio.Future[None]:
        self._left -= 1
        if not self._left:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
        return asyncio.get_running_loop().create_future()


@pytest.mark.real_time
async def test_who_asks_it_twice_to_leave_does_not_wait_for_confirms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "open_session", _DeafBroker(3).opened)
    monkeypatch.setattr(publish_module, "_CONFIRM_TIMEOUT_MS", 10 * PATIENCE_MS)
    settings = load_settings(_write_config(tmp_path, 1))
    async with asyncio.timeout(PATIENCE_S):
        summary = await _publish(
            settings, LoadPlan("orders/created", ("1",), count=3), tmp_path, LogOutput(sys.stderr), parent_pid=None
        )
    assert (summary.sent, summary.unknown, summary.stopped_by, summary.exit_code) == (3, 3, "SIGTERM", 1)
    assert summary.ledger is not None
    with open(summary.ledger) as ledger:  # noqa: ASYNC230 - nothing else is at work on the loop
        assert not orjson.loads(ledger.readlines()[-1])["clean"]
