"""Replays: what is meant is published, once, in the order of each key, and nothing after a failure.

Over 400 lines, as all of them read the one log that is landed here.
"""

import asyncio
import json
import os
import re
import shutil
import signal
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

from lbg_runtime import publishing
from lbg_runtime.admin.stored import Difference
from lbg_runtime.cli import replay as replay_command
from lbg_runtime.cli.main import command_line
from lbg_runtime.model.errors import LandingDamaged, LandingRowsPruned, PublishRefused, UserError
from lbg_runtime.model.hashing import HashFunction
from lbg_runtime.model.message import NO_HEADERS, Headers, Message
from lbg_runtime.pipeline import replay as replay_module
from lbg_runtime.pipeline.landing.lane import remove_lane
from lbg_runtime.pipeline.landing.log import LandingLog, LaneExtent
from lbg_runtime.pipeline.landing.prune import prune
from lbg_runtime.pipeline.landing.schema import LANDING_SCHEMA
from lbg_runtime.pipeline.replay import REPLAY_PROPERTY, LandedMessage, Replayed, Selection, count, replay, selected
from lbg_runtime.pipeline.replay_order import find_moved
from lbg_runtime.publisher.hashed import HashedPublisher
from lbg_runtime.publisher.ledger import Ledger
from lbg_runtime.transport.memory.broker import MemoryBroker
from lbg_runtime.transport.memory.transport import MemoryTransport
from tests.patience import PATIENCE_MS, PATIENCE_S
from tests.pipeline.landing.landed import SHAPE, LogOnDisk, id_of, rows

app = command_line()


@pytest.fixture
def landed(tmp_path: Path) -> Iterator[LogOnDisk]:
    """Three keys in two queues; `k` moves from queue 1 to queue 3 in between, and some of it lands twice."""
    log = LogOnDisk(tmp_path / "log")
    first, second, third = log.lane("a", queue=1), log.lane("b", queue=3), log.lane("c", queue=3)
    first.append(rows([id_of("k", 1), id_of("q", 1)], queue=1, t_land=100))
    second.append(rows([id_of("r", 1)], t_land=150))
    first.append(rows([id_of("k", 2)], queue=1, t_land=200))
    second.append(rows([id_of("k", 3)], t_land=300))
    third.append(rows([id_of("k", 3), id_of("r", 2)], t_land=400))
    third.append(rows([id_of("k", 4)], t_land=500))
    yield log
    log.close()


def found(log: LogOnDisk, **selection: int | str) -> list[str]:
    chosen = selected(LandingLog(log.root), Selection(**selection))  # type: ignore[arg-type]
    return [f"{each.key}{each.row_id.split('.')[1].split('/')[0]}" for each in chosen]


def test_everything_comes_once_as_it_landed(landed: LogOnDisk) -> None:
    assert found(landed) == ["k1", "q1", "r1", "k2", "k3", "r2", "k4"]


def test_a_stretch_of_time_has_its_begin_and_not_its_end(landed: LogOnDisk) -> None:
    assert found(landed, from_us=150, until_us=400) == ["r1", "k2", "k3"]


def test_one_key_comes_in_order_through_its_queues(landed: LogOnDisk) -> None:
    assert found(landed, key="k") == ["k1", "k2", "k3", "k4"]


@pytest.mark.parametrize("ahead_us", [-3_600_000_000, 0, 150, 3_600_000_000])
def test_a_key_that_moved_is_in_order_whatever_the_clocks_of_its_landers(tmp_path: Path, ahead_us: int) -> None:
    """`k` moves from queue 1 to queue 3 and back, `z` the other way; the clock of queue 1 is wrong."""
    log = LogOnDisk(tmp_path / "log")
    one, three = log.lane("a", queue=1), log.lane("b", queue=3)
    base_us = 10_000_000_000

    def land(queue: int, t_us: int, *ids: str) -> None:
        # One shard, whose queue the re-stripings changed.
        batch = rows(ids, queue=1, t_land=base_us + t_us + (ahead_us if queue == 1 else 0))
        (one if queue == 1 else three).append(batch)

    land(1, 100, id_of("k", 1), id_of("k", 2))
    land(3, 110, id_of("z", 1))
    land(3, 200, id_of("k", 3), id_of("k", 4))
    land(1, 210, id_of("z", 2), id_of("z", 3))
    land(1, 300, id_of("k", 5))
    land(3, 310, id_of("z", 4))
    got = found(log)
    log.close()
    assert [each for each in got if each[0] == "k"] == ["k1", "k2", "k3", "k4", "k5"]
    assert [each for each in got if each[0] == "z"] == ["z1", "z2", "z3", "z4"]


class Moving(LandingLog):
    """A log in which something lands while the ends of its queues are looked at: after each queue in turn."""

    def __init__(self, root: Path, landings: Iterator[Callable[[], object]]) -> None:
        super().__init__(root)
        self._landings = landings

    def lanes(self, queue: int | None = None) -> Mapping[str, LaneExtent]:
        found: dict[str, LaneExtent] = {}
        for each in self.queues() if queue is None else [queue]:
            found.update(super().lanes(each))
            next(self._landings, lambda: None)()
        return found


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("looks_before", range(5))
def test_a_key_that_moves_while_the_ends_are_looked_at_has_no_gap(
    tmp_path: Path, key: str | None, looks_before: int
) -> None:
    log = LogOnDisk(tmp_path / "log")
    old, new = log.lane("a", queue=0), log.lane("b", queue=1)
    old.append(rows([id_of("k", 1), id_of("o", 1)], queue=0, t_land=100))
    new.append(rows([id_of("z", 1)], queue=1, t_land=100))

    def move() -> None:
        """Of `k`; and of `z`, the other way."""
        old.append(rows([id_of("k", 2), id_of("o", 2)], queue=0, t_land=200))
        new.append(rows([id_of("k", 3), id_of("z", 2)], queue=1, t_land=300))
        old.append(rows([id_of("z", 3)], queue=0, t_land=400))

    landings = iter([*[lambda: None] * looks_before, move])
    got = [each.row_id for each in selected(Moving(log.root, landings), Selection(key=key))]
    log.close()
    for each, most in {"k": 3, "o": 2, "z": 3}.items():
        of_key = [row_id for row_id in got if row_id.endswith(f"/{each}")]
        assert of_key == [id_of(each, number + 1) for number in range(len(of_key))]
        if key in (None, each):
            # All of what a first look had seen, and of `k` what comes before it.
            assert len(of_key) >= (most if looks_before == 0 and each == "k" else 1)


@pytest.mark.parametrize("queue_count", [1, 2])
@pytest.mark.parametrize("from_us", [3_000, 2_000, None])
def test_what_is_pruned_while_the_log_is_read_is_missed_only_by_who_wants_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, from_us: int | None, queue_count: int
) -> None:
    """A large log is read for longer than its oldest segments have to live."""
    log = LogOnDisk(tmp_path / "log")
    keys = ["k", "z"][:queue_count]
    lanes = [log.lane(key, queue=queue, segment_bytes=1) for queue, key in enumerate(keys)]
    for number in range(1, 6):
        for queue, (key, lane) in enumerate(zip(keys, lanes, strict=True)):
            lane.append(rows([id_of(key, number)], queue=queue, t_land=number * 1_000))

    def pruned_meanwhile(read: Callable[[int], Iterator[pa.RecordBatch]], queues: Collection[int]):
        moved = find_moved(read, queues)
        assert list(prune(log.root, 2_500, clock_us=lambda: 10_000))
        return moved

    monkeypatch.setattr(replay_module, "find_moved", pruned_meanwhile)
    chosen = selected(LandingLog(log.root), Selection(from_us))
    if from_us == 3_000:
        assert [each.payload.decode() for each in chosen] == [id_of(key, each) for each in (3, 4, 5) for key in keys]
    else:
        with pytest.raises(LandingRowsPruned):
            list(chosen)
    log.close()


@pytest.mark.parametrize("is_in_lane", [True, False])
@pytest.mark.parametrize("before_us", [2_500, 3_500])
def test_what_is_pruned_while_a_queue_is_read_is_missed_only_by_who_wants_it(
    tmp_path: Path, before_us: int, *, is_in_lane: bool
) -> None:
    """Within the lane that is read, or in one behind it: to publish the first takes as long as the rate says."""
    log = LogOnDisk(tmp_path / "log")
    older, lane = log.lane("a", segment_bytes=1), log.lane("b", segment_bytes=1)
    (lane if is_in_lane else older).append(rows([id_of("q", 1)], t_land=1_000))
    for number in range(1, 6):
        lane.append(rows([id_of("k", number)], t_land=number * 1_000))

    def pruned_meanwhile() -> bool:
        list(prune(log.root, before_us, clock_us=lambda: 10_000))
        return False

    chosen = selected(LandingLog(log.root), Selection(3_000), pruned_meanwhile)
    if before_us == 2_500:
        assert [each.row_id for each in chosen] == [id_of("k", number) for number in (3, 4, 5)]
    else:
        with pytest.raises(LandingRowsPruned) as raised:
            list(chosen)
        assert raised.value.row == 2 + is_in_lane, "the first that is wanted"
    log.close()


def test_a_lane_that_is_gone_since_and_had_nothing_that_is_wanted_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = LogOnDisk(tmp_path / "log")
    old, new = log.lane("a", queue=1), log.lane("b", queue=1)
    old.append(rows([id_of("k", 1)], queue=1, t_land=1_000))
    old.close()
    new.append(rows([id_of("k", 2)], queue=1, t_land=3_000))

    def removed_meanwhile(read: Callable[[int], Iterator[pa.RecordBatch]], queues: Collection[int]):
        remove_lane(log.root / old.name)
        return find_moved(read, queues)

    monkeypatch.setattr(replay_module, "find_moved", removed_meanwhile)
    assert found(log, from_us=2_000) == ["k2"]
    log.close()


def test_a_replay_that_is_stopped_ends_while_the_log_is_read(landed: LogOnDisk) -> None:
    asked_count = 0

    def is_stopped() -> bool:
        nonlocal asked_count
        asked_count += 1
        return asked_count > 1

    assert list(selected(LandingLog(landed.root), Selection(), is_stopped)) == []
    assert asked_count <= 5, "once for each queue and look, and at the end"


@pytest.mark.parametrize("is_ours", [False, True])
def test_a_replay_that_is_stopped_skips_nothing_of_a_key_that_moved(tmp_path: Path, is_ours: bool) -> None:
    """The rest of its first queue was taken for read, and what the second had next was given."""
    log = LogOnDisk(tmp_path / "log")
    ids = [id_of("k", number) if is_ours else f"{number:013x}.!lane/{number}/k" for number in range(1, 8)]
    lanes = [log.lane("a", queue=0, segment_bytes=1), log.lane("b", queue=1, segment_bytes=1)]
    for place, row_id in enumerate(ids):
        lanes[place >= 4].append(rows([row_id], queue=int(place >= 4), t_land=(place + 1) * 100))
    found: list[str] = []
    messages = selected(LandingLog(log.root), Selection(), lambda: len(found) >= 2)
    # One by one: the replay is stopped when two have come.
    while (message := next(messages, None)) is not None:
        found.append(message.row_id)
    log.close()
    assert found == ids[: len(found)]
    assert len(found) < len(ids)


def test_one_shard_alone(landed: LogOnDisk) -> None:
    assert found(landed, shard=1) == ["k1", "q1", "k2"]


def test_a_message_of_no_shard_and_without_a_key_is_in_no_selection_of_one(tmp_path: Path) -> None:
    log = LogOnDisk(tmp_path / "log")
    lane = log.lane("a", queue=1)
    foreign = rows([id_of("f", 1)], queue=1, t_land=100)
    for name in ("shard", "key"):
        field = LANDING_SCHEMA.field(name)
        foreign = foreign.set_column(LANDING_SCHEMA.get_field_index(name), field, pa.array([None], field.type))
    lane.append(foreign)
    lane.append(rows([id_of("k", 1)], queue=1, t_land=200))
    assert found(log, shard=1) == ["k1"]
    assert found(log, key="k") == ["k1"]
    assert found(log) == ["None1", "k1"]
    log.close()


def test_a_dry_run_counts(landed: LogOnDisk) -> None:
    counted = count(selected(LandingLog(landed.root), Selection(key="k")))
    assert (counted.selected, counted.sent, counted.first_us, counted.last_us) == (4, 0, 100, 500)


@asynccontextmanager
async def on_memory(*_: object, **__: object) -> AsyncIterator[MemoryTransport]:
    """A session on a broker with a queue that takes everything."""
    broker = MemoryBroker()
    broker.create_queue("all", [">"])
    session = MemoryTransport(broker, "replayer")
    await session.open()
    yield session
    await session.close()


@pytest.fixture
async def session() -> AsyncIterator[MemoryTransport]:
    async with on_memory() as session:
        yield session


def publisher_on(session: MemoryTransport) -> HashedPublisher:
    return HashedPublisher(session, SHAPE, HashFunction.CRC32, publisher_id="again")


async def test_what_is_published_has_its_payload_key_and_where_it_is_from(
    landed: LogOnDisk, session: MemoryTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Message] = []
    send = session.send

    def watched(message: Message):
        sent.append(message)
        return send(message)

    monkeypatch.setattr(session, "send", watched)
    replayed = Replayed()
    await replay(selected(LandingLog(landed.root), Selection()), publisher_on(session), "again", None, replayed)
    assert (replayed.selected, replayed.sent, replayed.confirmed, replayed.failure) == (7, 7, 7, None)
    of_k = [message for message in sent if message.key == "k"]
    assert [message.properties[REPLAY_PROPERTY] for message in of_k] == [id_of("k", number) for number in (1, 2, 3, 4)]
    assert [message.key_sequence for message in of_k] == [1, 2, 3, 4]
    assert [message.payload.decode() for message in of_k] == [id_of("k", number) for number in (1, 2, 3, 4)]
    assert {message.topic.split("/", 2)[2] for message in sent} == {"again"}


async def test_what_a_message_said_about_itself_is_said_again(
    session: MemoryTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Message] = []
    send = session.send
    monkeypatch.setattr(session, "send", lambda message: sent.append(message) or send(message))
    entries = {"colour": "red", "lbg_correlation_id": "request-7", "lbg_sequence_number": "3", "lbg_priority": "high"}
    messages = iter([LandedMessage("row", "k", b"x", entries, 1), LandedMessage("next", "k", b"x", {}, 2)])
    await replay(messages, publisher_on(session), "again", None, Replayed())
    assert [message.headers for message in sent] == [Headers("request-7", sequence_number=3), NO_HEADERS]
    own = {name: sent[0].properties.get(name) for name in entries}
    assert own == {"colour": "red", "lbg_correlation_id": None, "lbg_sequence_number": None, "lbg_priority": "high"}


async def test_the_loop_goes_on_while_the_log_is_read_for_the_next_message(
    landed: LogOnDisk, session: MemoryTransport
) -> None:
    loop = asyncio.get_running_loop()

    def messages() -> Iterator[LandedMessage]:
        for message in selected(LandingLog(landed.root), Selection()):
            is_going_on = threading.Event()
            loop.call_soon_threadsafe(is_going_on.set)
            assert is_going_on.wait(10)
            yield message

    replayed = Replayed()
    await replay(messages(), publisher_on(session), "again", None, replayed)
    assert replayed.confirmed == 7


async def test_a_rate_is_kept(landed: LogOnDisk, session: MemoryTransport) -> None:
    began_s = asyncio.get_running_loop().time()
    replayed = Replayed()
    await replay(selected(LandingLog(landed.root), Selection()), publisher_on(session), "again", 2.0, replayed)
    assert replayed.confirmed == 7
    assert 2.5 <= asyncio.get_running_loop().time() - began_s <= 4


@pytest.mark.parametrize("error", [PublishRefused("again", "full"), OSError("unheard of")], ids=["refused", "other"])
async def test_nothing_follows_a_failure(
    landed: LogOnDisk, session: MemoryTransport, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    publisher = publisher_on(session)
    submit = publisher.submit
    calls: list[str | None] = []

    async def refusing(topic: str, payload: bytes, **options: object):
        calls.append(payload.decode())
        if len(calls) == 3:
            answer = asyncio.get_running_loop().create_future()
            answer.set_exception(error)
            return answer
        return await submit(topic, payload, **options)

    monkeypatch.setattr(publisher, "submit", refusing)
    replayed = Replayed()
    await replay(selected(LandingLog(landed.root), Selection()), publisher, "again", 10.0, replayed)
    assert replayed.failure is error
    assert (len(calls), replayed.sent, replayed.confirmed) == (3, 3, 2)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--from", "soon"), "--from: 'soon'; expected a time such as"),
        (("--from", "2026-01-02T00:00:00Z", "--to", "2026-01-01T00:00:00Z"), "a later time"),
        (("--key", "k", "--shard", "1"), "one of the two"),
        (("--shard", "8"), "--shard: 8; expected 0 to 7, as the group of "),
        (("--key", "\udcff"), "--key: '\\udcff'; expected text that UTF-8 can carry"),
        (("--to-topic", ""), "--to-topic: ''; expected 1 to 250 bytes"),
        (("--to-topic", "x" * 251), "expected 1 to 250 bytes"),
        (("--rate", "inf"), "--rate: inf; expected a finite number"),
    ],
)
def test_options_that_cannot_be_are_the_users_mistake(
    landed: LogOnDisk, options: tuple[str, ...], problem: str
) -> None:
    for dry_run in ((), ("--dry-run",)):
        ended = CliRunner().invoke(app, ["replay", str(landed.root), "--to-topic", "again", *options, *dry_run])
        assert isinstance(ended.exception, UserError)
        assert problem in str(ended.exception)


@pytest.fixture
def lbg_replay(landed: LogOnDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """The command, on a memory broker."""
    monkeypatch.setattr(publishing, "open_session", on_memory)
    config = tmp_path / "config.yaml"
    config.write_text("group: {name: orders, hash_prefix: hp, hash_count: 8, queue_count: 4}\n")

    def run(*options: str) -> Result:
        words = ["replay", str(landed.root), "--to-topic", "again", "--config", str(config), *options]
        return CliRunner().invoke(app, words)

    return run


def data_file_of(landed: LogOnDisk, member: str) -> Path:
    [path] = landed.root.glob(f"queue=*/lane={member}-*/*.arrow")
    return path


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_nothing_is_published_from_queues_of_which_one_is_damaged(
    landed: LogOnDisk, lbg_replay: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Numbers behind the damage may be lower than those of another queue.
    monkeypatch.setattr(HashedPublisher, "submit", None)
    damage(data_file_of(landed, "c"))
    ended = lbg_replay()
    assert isinstance(ended.exception, LandingDamaged)


def test_damage_on_the_way_is_told_with_how_far_it_came(landed: LogOnDisk, lbg_replay: Callable[..., Result]) -> None:
    shutil.rmtree(landed.root / "queue=001")
    path = data_file_of(landed, "c")
    damage(path)
    ended = lbg_replay("--json")
    told = json.loads(ended.stdout)
    assert ended.exit_code == 1
    assert told["sent"] == told["confirmed"] == told["selected"] > 0
    assert str(path) in told["failure"]
    ended = lbg_replay()
    assert ended.stdout.startswith(f"{told['confirmed']} of {told['selected']} messages published to again")
    assert str(path) in ended.stderr


class ChangedMeanwhile:
    """A watch that finds another hash count as soon as a message was sent."""

    def __init__(self, sent: asyncio.Event, on_changed: Callable[[tuple[Difference, ...]], None]) -> None:
        self._sent = sent
        self._on_changed = on_changed

    async def run(self) -> None:
        await self._sent.wait()
        self._on_changed((Difference("group.hash_count", "8", "16"),))
        await asyncio.Event().wait()


def test_a_replay_into_a_group_that_hashes_otherwise_by_now_is_stopped(
    landed: LogOnDisk, lbg_replay: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It went on, and sent keys elsewhere than publishers that had started since."""
    sent, submit = asyncio.Event(), HashedPublisher.submit

    async def submitted(*args: Any, **named: Any) -> Any:
        answer = await submit(*args, **named)
        sent.set()
        return answer

    monkeypatch.setattr(HashedPublisher, "submit", submitted)
    monkeypatch.setattr(
        "lbg_runtime.admin.stored.watch_of", lambda _, __, on_changed: ChangedMeanwhile(sent, on_changed)
    )
    ended = lbg_replay("--rate", "1")
    assert ended.exit_code == 1
    # How many are read ahead is a matter of time.
    assert re.match("1 of [0-9]+ messages? published", ended.output)
    assert "group.hash_count: 8, but the group on the broker now has 16; expected " in ended.stderr


def test_what_is_confirmed_is_on_the_ledger(
    landed: LogOnDisk, lbg_replay: Callable[..., Result], tmp_path: Path
) -> None:
    told = json.loads(lbg_replay("--ledger", str(tmp_path / "runs"), "--json").stdout)
    [ledger] = (tmp_path / "runs").glob("*.ledger.jsonl")
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    ranges = [line for line in lines if line["kind"] == "confirmed"]
    assert sum(line["last_seq"] - line["first_seq"] + 1 for line in ranges) == told["confirmed"] > 0
    assert (lines[-1]["clean"], told["ledger_dropped"]) == (True, 0)


class DeafBroker:
    """Confirms nothing; asks this process twice to leave when the third message is sent."""

    def __init__(self) -> None:
        self._sent = 0

    @asynccontextmanager
    async def opened(self, *_: object, **__: object) -> AsyncIterator["DeafBroker"]:
        yield self

    def send(self, _: Message) -> asyncio.Future[None]:
        self._sent += 1
        if self._sent == 3:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
        return asyncio.get_running_loop().create_future()


@pytest.mark.real_time
def test_who_asks_it_twice_to_leave_does_not_wait_for_confirms(
    landed: LogOnDisk, lbg_replay: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "open_session", DeafBroker().opened)
    monkeypatch.setattr(replay_command, "_CONFIRM_TIMEOUT_MS", 2 * PATIENCE_MS)
    ended = lbg_replay("--json")
    told = json.loads(ended.stdout)
    assert (ended.exit_code, told["confirmed"]) == (130, 0)
    assert 3 <= told["sent"] <= 7
    assert "no answer before the publisher was closed" in told["failure"]
    assert told["seconds"] < PATIENCE_S


def test_a_replay_whose_ledger_the_disk_refuses_ends_with_1(
    landed: LogOnDisk, lbg_replay: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Ledger, "dropped", 3)
    ended = lbg_replay("--ledger", str(tmp_path / "runs"))
    assert (ended.exit_code, ended.stderr) == (1, "lbg: 3 lines of the ledger lost\n")


@pytest.mark.parametrize("options", [(), ("--dry-run",)])
def test_what_cannot_be_read_is_told_in_one_line(
    landed: LogOnDisk, lbg_replay: Callable[..., Result], options: tuple[str, ...]
) -> None:
    for member in "ab":
        path = data_file_of(landed, member)
        path.unlink()
        path.mkdir()
    ended = lbg_replay(*options)
    assert isinstance(ended.exception, UserError)
    assert "Is a directory; expected a landing log that can be read" in str(ended.exception)


def test_a_dry_run_needs_no_broker(
    landed: LogOnDisk, lbg_replay: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(publishing, "open_session")
    ended = lbg_replay("--key", "k", "--dry-run")
    assert ended.exit_code == 0
    assert ended.stdout.startswith("4 messages would be published to again, landed 1970-01-01T00:00:00.000+00:00 to")


def test_a_dry_run_does_not_take_a_ledger_and_keep_none(lbg_replay: Callable[..., Result], tmp_path: Path) -> None:
    """The folder was ignored without a word."""
    ended = lbg_replay("--ledger", str(tmp_path / "runs"), "--dry-run")
    assert isinstance(ended.exception, UserError)
    assert str(ended.exception) == "--ledger: given with --dry-run; expected one of the two: a dry run confirms nothing"


@pytest.mark.parametrize("options", [(), ("--dry-run",)])
def test_messages_without_a_key_are_told_by_the_exit_code(
    landed: LogOnDisk, lbg_replay: Callable[..., Result], options: tuple[str, ...]
) -> None:
    keyless = rows([id_of("k", 9)], queue=2)
    column = pa.array([None], pa.string())
    landed.lane("f", 1, 2).append(keyless.set_column(2, LANDING_SCHEMA.field("key"), column))
    ended = lbg_replay(*options)
    assert (ended.exit_code, "lbg: left out for lack of a key: 1 message\n" in ended.stderr) == (1, True)


@pytest.mark.parametrize("dry_run", [(), ("--dry-run",)])
@pytest.mark.parametrize("topic", ["hp/1/x", "x" * 246])
def test_a_dry_run_refuses_the_topics_that_the_replay_refuses(
    lbg_replay: Callable[..., Result], topic: str, dry_run: tuple[str, ...]
) -> None:
    ended = lbg_replay("--to-topic", topic, *dry_run)
    assert isinstance(ended.exception, UserError)
    assert str(ended.exception).startswith("--to-topic: ")


@pytest.mark.parametrize("options", [(), ("--dry-run",)])
def test_what_selects_nothing_says_so_and_where_it_looked(
    landed: LogOnDisk, lbg_replay: Callable[..., Result], options: tuple[str, ...]
) -> None:
    ended = lbg_replay("--key", "K\x1b", "--to", "2026-11-21", *options)
    assert ended.exit_code == 1
    assert (
        f"lbg: nothing in the log matches --to 2026-11-21, --key K\\x1b: looked in {landed.root}, of group "
        in ended.stderr
    )
    as_object = lbg_replay("--key", "K", "--json", *options)
    assert (as_object.exit_code, json.loads(as_object.stdout)["selected"]) == (1, 0)
    # A time in which nothing came is no mistake.
    ended = lbg_replay("--from", "2099-01-01", *options)
    assert (ended.exit_code, "nothing in the log matches --from 2099-01-01" in ended.stderr) == (0, True)


def test_an_empty_log_is_told_as_such(landed: LogOnDisk, lbg_replay: Callable[..., Result]) -> None:
    for each in landed.root.glob("queue=*"):
        shutil.rmtree(each)
    ended = lbg_replay()
    assert ended.exit_code == 0
    assert "lbg: the log is empty: looked in" in ended.stderr
