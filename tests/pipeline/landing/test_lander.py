"""Members that land, on a memory broker: what is settled is on the disk, what is not comes again.

More than 400 lines, as every test disturbs the same trial of landers.
"""

import asyncio
import errno
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from lbg_runtime.core.roles import CountedPlace
from lbg_runtime.model.errors import ConfigError, UserError
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.ids import Epoch, GroupName, QueueName
from lbg_runtime.model.message import PARTITION_KEY_PROPERTY, Message
from lbg_runtime.pipeline.landing import lander as lander_module
from lbg_runtime.pipeline.landing import room
from lbg_runtime.pipeline.landing.lander import Lander, lander_app
from lbg_runtime.pipeline.landing.lane import is_being_written
from lbg_runtime.pipeline.landing.layout import claim_folder
from lbg_runtime.pipeline.landing.log import LandingLog
from lbg_runtime.pipeline.landing.open_lane import FlushLimits, OpenLane
from lbg_runtime.pipeline.landing.segment import INDEX_SUFFIX
from lbg_runtime.runtime.app import App
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.runtime.runners.batch_turns import BatchTurns
from lbg_runtime.transport.memory.transport import MemoryTransport
from tests.pipeline.landing.trial import PATIENCE_S, QUEUES, Trial, settings_of


async def test_what_was_published_is_in_the_log_once_and_in_order(trial: Trial) -> None:
    async with trial.running(trial.lander("a"), trial.lander("b")):
        await trial.land(300)
    trial.assert_all_once_in_order()
    assert trial.rows() == 300


async def test_nothing_is_settled_before_it_is_durable(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    trial.options = replace(trial.options, is_synced=True)
    depths: list[tuple[int, int]] = []
    sync = os.fdatasync

    def watched(file: int) -> None:
        depths.append((trial.depth(), trial.rows()))
        sync(file)

    async with trial.running(trial.lander("a")):
        monkeypatch.setattr(os, "fdatasync", watched)
        await trial.land(40)
    assert len(depths) > 2
    # Whoever is not in the log yet is still on its queue.
    assert all(depth + rows >= 40 for depth, rows in depths[2:])


async def test_a_full_flush_does_not_wait(trial: Trial) -> None:
    trial.options = replace(trial.options, limits=FlushLimits(rows=10, wait_ms=10_000))
    async with trial.running(trial.lander("a")):
        before_s = asyncio.get_running_loop().time()
        await trial.publish(20, keys=20)
        await trial.all_landed()
        assert asyncio.get_running_loop().time() - before_s < 5
    trial.assert_all_once_in_order()


async def test_what_waits_for_a_flush_waits_for_no_others_when_its_member_leaves(trial: Trial) -> None:
    trial.options = replace(trial.options, limits=FlushLimits(wait_ms=10_000))
    async with trial.running(trial.lander("a")):
        await trial.publish(20)
        await asyncio.sleep(0.1)
        assert trial.depth() == 20
        before_s = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - before_s < 5
    assert trial.depth() == 0
    trial.assert_all_once_in_order()


async def test_nor_when_its_shard_is_to_leave_the_queue(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[BatchTurns] = []
    monkeypatch.setattr(BatchTurns, "join", lambda self, _, join=BatchTurns.join: (turns.append(self), join(self, _)))
    trial.options = replace(trial.options, limits=FlushLimits(wait_ms=10_000))
    async with trial.running(trial.lander("a")):
        await trial.publish(8, keys=4)
        await asyncio.sleep(0.1)
        before_s = asyncio.get_running_loop().time()
        for queue in range(QUEUES):
            turns[0].move(QueueName(f"orders/{queue}"), Epoch(1), frozenset(range(4)))
        await trial.publish(4, keys=4)
        await trial.all_landed()
        assert asyncio.get_running_loop().time() - before_s < 5
    trial.assert_all_once_in_order()


async def test_a_member_that_dies_leaves_what_it_had_not_settled_to_others(trial: Trial) -> None:
    first, second = trial.lander("a"), trial.lander("b")
    async with trial.running(first, second):
        for _ in range(4):
            await trial.publish(60)
            trial.sessions["a"].drop_connection(3)
            await asyncio.sleep(2)
        await trial.all_landed()
    trial.assert_all_once_in_order()


async def test_a_disk_that_refuses_costs_time_and_nothing_else(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    refused: list[int] = []

    def full(file: int, content: memoryview) -> int:
        if len(content) > 100 and len(refused) < 3:
            refused.append(len(content))
            # A part of it was written.
            write(file, content[:50])
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, content)

    async with trial.running(trial.lander("a")):
        await trial.land(20)
        monkeypatch.setattr(os, "write", full)
        await trial.land(60)
    assert len(refused) == 3
    trial.assert_all_once_in_order()


@pytest.fixture
def refuse_an_entry(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """From the call on, the disk refuses to sync one entry of an index; the path is in the list once it has."""
    trial.options = replace(trial.options, is_synced=True)
    failed: list[str] = []

    def sync(file: int) -> None:
        # Both queues are written at once, so the turn says nothing: it must be an entry, its data being synced.
        path = os.readlink(f"/proc/self/fd/{file}")
        if path.endswith(INDEX_SUFFIX) and not failed:
            failed.append(path)
            raise OSError(errno.EIO, "Input/output error")

    def begin() -> list[str]:
        monkeypatch.setattr(os, "fdatasync", sync)
        return failed

    return begin


async def test_an_entry_that_is_written_and_not_synced_makes_a_copy_that_no_reader_sees(
    trial: Trial, refuse_an_entry: Callable[[], list[str]]
) -> None:
    async with trial.running(trial.lander("a")):
        await trial.land(20)
        refused = refuse_an_entry()
        await trial.land(20)
    assert len(refused) == 1
    assert trial.rows() > 40
    trial.assert_all_once_in_order()


async def test_nor_is_a_copy_seen_that_it_makes_of_messages_of_other_publishers(
    trial: Trial, refuse_an_entry: Callable[[], list[str]]
) -> None:
    async with trial.running(trial.lander("a")):
        publisher = MemoryTransport(trial.broker, "other")
        await publisher.open()
        await publisher.send(Message("h/1/orders/new", b"before"))
        await trial.all_landed()
        refused = refuse_an_entry()
        bodies = [str(number).encode() for number in range(20)]
        await asyncio.gather(*(publisher.send(Message("h/1/orders/new", body)) for body in bodies))
        await trial.all_landed()
        await publisher.close()
    assert len(refused) == 1
    assert trial.rows() > 21
    log = LandingLog(trial.options.root)
    end = {name: extent.rows for name, extent in log.lanes().items()}
    read = [body for batch in log.read_queue(1, {}, end) for body in batch.column("payload").to_pylist()]
    assert sorted(read) == sorted([b"before", *bodies])


async def test_what_another_handle_lands_again_of_other_publishers_is_there_twice_and_flagged(
    trial: Trial, refuse_an_entry: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it is of the same member, as a message has another number there."""
    monkeypatch.setattr(room, "PAUSE_MIN_S", 60.0)
    async with trial.running(trial.lander("a")):
        publisher = MemoryTransport(trial.broker, "other")
        await publisher.open()
        await publisher.send(Message("h/1/orders/new", b"0"))
        await trial.all_landed()
        refused = refuse_an_entry()
        await publisher.send(Message("h/1/orders/new", b"1"))
        await trial.until(lambda: len(refused) == 1)
        trial.sessions["a"].drop_connection(3)
        await trial.all_landed()
        await publisher.close()
    log = LandingLog(trial.options.root)
    end = {name: extent.rows for name, extent in log.lanes().items()}
    read = [row for batch in log.read_queue(1, {}, end) for row in batch.to_pylist()]
    assert [(row["payload"], row["redelivered"]) for row in read] == [(b"0", False), (b"1", False), (b"1", True)]


async def test_a_full_log_stops_the_intake_until_there_is_room(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    used = [10]
    monkeypatch.setattr(lander_module, "used_bytes", lambda _: used[0])
    trial.options = replace(trial.options, quota_bytes=100)
    async with trial.running(trial.lander("a")):
        used[0] = 100
        await asyncio.sleep(5)
        await trial.publish(50)
        await asyncio.sleep(60)
        assert (trial.depth(), trial.rows()) == (50, 0)
        used[0] = 10
        # Counts what it writes by itself until it looks again.
        await trial.until(lambda: trial.rows() > 0)
        used[0] = 0
        await trial.all_landed()
    trial.assert_all_once_in_order()


async def test_a_member_whose_log_is_full_leaves_without_waiting_for_room(trial: Trial) -> None:
    async with trial.running(trial.lander("a")):
        await trial.land(10)
    trial.options = replace(trial.options, quota_bytes=1)
    app = trial.lander("b")
    async with trial.running(app):
        await trial.publish(50)
        await asyncio.sleep(5)
        before_s = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - before_s < 5
    assert trial.depth() == 50
    trial.options = replace(trial.options, quota_bytes=None)
    async with trial.running(trial.lander("c")):
        await trial.all_landed()
    trial.assert_all_once_in_order()


async def test_a_disk_that_refuses_all_leaves_no_lane_behind(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    refused: list[int] = []

    def full(file: int, content: memoryview) -> int:
        if len(refused) < 6:
            refused.append(len(content))
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, content)

    async with trial.running(trial.lander("a")):
        monkeypatch.setattr(os, "write", full)
        await trial.land(20)
    assert len(refused) == 6
    # One for each queue.
    assert len([name for queue in trial.options.root.glob("queue=*") for name in os.listdir(queue)]) == QUEUES
    trial.assert_all_once_in_order()


async def test_messages_of_other_publishers_land_with_their_headers(trial: Trial) -> None:
    async with trial.running(trial.lander("a")):
        publisher = MemoryTransport(trial.broker, "other")
        await publisher.open()
        properties = {"n": 7, "ok": True, "raw": b"\x01\xff", "none": None, PARTITION_KEY_PROPERTY: "k"}
        for _ in range(2):
            await publisher.send(Message("h/1/orders/new", b"\x00", properties, "same-id"))
        await trial.all_landed()
        await publisher.close()
    log = LandingLog(trial.options.root)
    end = {name: extent.rows for name, extent in log.lanes().items()}
    rows = [row for batch in log.read_queue(1, {}, end) for row in batch.to_pylist()]
    assert len(rows) == len({row["broker_id"] for row in rows}) == 2
    assert dict(rows[0]["headers"]) == {
        "n": "7", "ok": "true", "raw": "01ff", "none": "", PARTITION_KEY_PROPERTY: "k", "lbg_message_id": "same-id",
    }  # fmt: skip
    assert (rows[0]["key"], rows[0]["seq"], rows[0]["t_enqueue"]) == ("k", None, None)


async def test_each_message_is_read_once_also_if_its_publisher_has_stamped_another_key(trial: Trial) -> None:
    group = {"name": "orders", "hash_prefix": "h", "hash_count": 4, "queue_count": QUEUES, "key": "topic_level:1"}
    made = {**group, "provision": "create_missing"}
    async with trial.running(trial.lander("a", group=made), trial.lander("b", group=made)):
        for _ in range(2):
            await trial.publish(20)
            trial.sessions["a"].drop_connection(3)
            await asyncio.sleep(2)
        await trial.all_landed()
    assert trial.rows() > 40
    log = LandingLog(trial.options.root)
    end = {name: extent.rows for name, extent in log.lanes().items()}
    rows = [row for queue in log.queues() for batch in log.read_queue(queue, {}, end) for row in batch.to_pylist()]
    assert len({row["payload"] for row in rows}) == len(rows) == 40
    # Its number counts within the stamped key, which is a header as all else that came.
    assert {(row["key"], row["seq"]) for row in rows} == {("new", None)}
    assert {dict(row["headers"])[PARTITION_KEY_PROPERTY] for row in rows} == {f"k{number}" for number in range(5)}


def _make_others(root: Path) -> None:
    root.mkdir()
    note = '{"group":"others","hash_prefix":"h","hash_count":4,"format":1}'
    (root / "landing.json").write_text(note)


async def test_what_the_settings_say_of_failures_and_keys_keeps_nothing_from_landing(trial: Trial) -> None:
    failure = {"attempts": 1, "then": "park", "timeout": "1s"}
    app = trial.lander(
        "a",
        failure={**failure, "retriable": ["no.such.Error"], "terminal": ["no.such.Error"]},
        dispatch={"missing_key": "error"},
        handlers=["no.such.module"],
    )
    async with trial.running(app):
        publisher = MemoryTransport(trial.broker, "other")
        await publisher.open()
        for _ in range(3):
            await publisher.send(Message("h/1/orders/new", b"without a key", {}))
        await trial.all_landed()
        await publisher.close()
    assert trial.rows() == 3


@pytest.mark.parametrize(
    ("prepare", "problem"),
    [
        (lambda root: (root.mkdir(), (root / "mine.txt").write_text("x")), "not empty, and no landing log"),
        (lambda root: root.write_text("a file"), "no folder; expected"),
        (_make_others, "the log of others, prefix h, 4 shards"),
    ],
)
def test_a_folder_that_is_not_this_groups_is_the_users_mistake(
    trial: Trial, prepare: Callable[[Path], object], problem: str
) -> None:
    prepare(trial.options.root)
    with pytest.raises(UserError, match=problem):
        trial.lander("a")


@pytest.mark.parametrize(
    ("flush_rows", "max_in_flight", "found"),
    [(1_000, 10, 2_000), (10_000, 10, 2_500), (1_000, 3_000, 3_000)],
)
def test_a_flush_is_under_way_while_the_next_one_gathers(
    trial: Trial, flush_rows: int, max_in_flight: int, found: int
) -> None:
    options = replace(trial.options, limits=FlushLimits(rows=flush_rows))
    settings = settings_of(dispatch={"max_in_flight": max_in_flight})
    app, _ = lander_app(settings, options, session=MemoryTransport(trial.broker, "a"))
    assert app.settings.dispatch.max_in_flight == found


@pytest.mark.parametrize(("said", "found"), [("error", "shard"), ("shard", "shard"), ("no_order", "no_order")])
def test_messages_without_a_key_land_in_the_way_that_the_settings_say_unless_they_refuse_them(
    trial: Trial, said: str, found: str
) -> None:
    session = MemoryTransport(trial.broker, "a")
    app, _ = lander_app(settings_of(dispatch={"missing_key": said}), trial.options, session=session)
    assert app.settings.dispatch.missing_key.value == found


def test_a_lander_is_the_member_that_it_is_said_to_be(trial: Trial) -> None:
    counted = settings_of(membership={"mode": "static"})
    app, lander = lander_app(counted, trial.options, member_index=1, member_count=2)
    assert lander.member == app.membership.member == "member-1"
    assert app.membership.place == CountedPlace(1, 2)
    # An application that handles is none of its concern.
    beside = settings_of(sidecar={"application": "http://127.0.0.1:1"})
    _, lander = lander_app(beside, trial.options, member_id="a")
    assert lander.member == "a"


def test_a_partitioned_queue_does_not_land_as_its_keys_come_back_to_a_flow_that_stays_bound(trial: Trial) -> None:
    group = {"name": "orders", "hash_prefix": "h", "hash_count": 4, "queue_count": 4}
    shared = {**group, "backend": "partitioned", "provision": "none"}
    with pytest.raises(ConfigError, match="exclusive"):
        trial.lander("a", group=shared, dispatch={"missing_key": "error"})
    assert not trial.options.root.exists()


@pytest.mark.parametrize("lands", [True, False])
async def test_members_that_do_not_land_into_the_same_log_do_not_go_together(
    trial: Trial, tmp_path: Path, lands: bool
) -> None:
    together = {"membership": {"mode": "discovered"}, "rebind": {"mode": "cooperative"}}
    other = Trial(tmp_path / "other")
    other.broker = trial.broker
    async with trial.running(trial.lander("a", **together)):
        # What it took would be missing from the log.
        with pytest.raises(ConfigError, match=r"landing\.log: .*, as member a has it"):
            async with asyncio.timeout(PATIENCE_S):
                await (other.lander("b", **together) if lands else handling(other, "b", **together)).run()
        await trial.land(20)
    trial.assert_all_once_in_order()


def handling(trial: Trial, name: str, **sections: object) -> App:
    handlers = Handlers()
    handlers.handler(">")(lambda message: None)
    return App(handlers, settings_of(**sections), member_id=name, session=MemoryTransport(trial.broker, name))


async def test_nothing_is_acknowledged_into_a_log_that_is_gone(trial: Trial) -> None:
    root = trial.options.root
    away = root.with_name("away")
    async with trial.running(trial.lander("a")):
        await trial.land(40)
        root.rename(away)
        # As a mount point is when nothing is mounted.
        root.mkdir()
        with capture_logs() as logs:
            await trial.publish(40)
            await trial.until(lambda: sum(each["event"] == "flush_failed" for each in logs) >= 4)
        assert trial.depth() == 40
        assert list(root.iterdir()) == []
        root.rmdir()
        away.rename(root)
        await trial.all_landed()
    trial.assert_all_once_in_order()


async def test_nothing_is_landed_in_another_log(trial: Trial) -> None:
    root = trial.options.root
    away = root.with_name("away")
    async with trial.running(trial.lander("a")):
        root.rename(away)
        claim_folder(root, GroupShape(GroupName("orders"), "h", 4, QUEUES))
        with capture_logs() as logs:
            await trial.publish(40)
            await trial.until(lambda: sum(each["event"] == "flush_failed" for each in logs) >= 4)
        assert trial.depth() == 40
        shutil.rmtree(root)
        away.rename(root)
        await trial.all_landed()
    trial.assert_all_once_in_order()


async def test_a_lane_that_is_taken_away_from_a_living_member_takes_nothing_more_with_it(trial: Trial) -> None:
    root = trial.options.root
    async with trial.running(trial.lander("a")):
        await trial.land(40)
        for number, lane in enumerate(sorted(root.glob("queue=*/lane=*"))):
            lane.rename(root / f"away-{number}")
        await trial.land(40)
        half = {key: list(range(count // 2 + 1, count + 1)) for key, count in trial.numbers.items()}
        assert trial.landed() == half


async def test_the_threads_for_flushes_end_with_a_member_that_is_stopped_while_it_measures(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    measures = asyncio.Event()

    async def measure(_: Lander) -> None:
        measures.set()
        await asyncio.Event().wait()

    def threads() -> list[threading.Thread]:
        return [each for each in threading.enumerate() if each.name.startswith("lbg-landing")]

    monkeypatch.setattr(Lander, "_measure", measure)
    member = asyncio.ensure_future(trial.lander("a").run())
    await measures.wait()
    assert len(threads()) == lander_module.THREADS
    member.cancel()
    await asyncio.wait([member])
    for each in threads():
        each.join(PATIENCE_S)
    assert threads() == []


@pytest.mark.parametrize("is_each_revoked", [True, False])
async def test_who_is_cancelled_while_the_disk_hangs_leaves_no_lane_that_counts_as_written(
    trial: Trial, monkeypatch: pytest.MonkeyPatch, is_each_revoked: bool
) -> None:
    trial.options = replace(trial.options, is_synced=True)
    if not is_each_revoked:
        # Then all are closed by one who waits, at the end: the first of them holds up no other.
        monkeypatch.setattr(Lander, "_close_lane", leave_it)
    sync, close = os.fdatasync, OpenLane.close
    loop, disk, closes = asyncio.get_running_loop(), threading.Event(), asyncio.Event()
    hanging: asyncio.Queue[int] = asyncio.Queue()

    def hang(file: int) -> None:
        if not disk.is_set():
            loop.call_soon_threadsafe(hanging.put_nowait, file)
        disk.wait(PATIENCE_S)
        sync(file)

    async def watched(lane: OpenLane) -> None:
        closes.set()
        await close(lane)

    monkeypatch.setattr(os, "fdatasync", hang)
    monkeypatch.setattr(OpenLane, "close", watched)
    member = asyncio.ensure_future(trial.lander("a").run())
    await trial.publish(20)
    for _ in range(QUEUES):
        await hanging.get()
    member.cancel()
    await closes.wait()
    member.cancel()
    await asyncio.wait([member])
    assert all(is_being_written(lane) for lane in lanes_of(trial))
    disk.set()
    await trial.until(lambda: not any(is_being_written(lane) for lane in lanes_of(trial)))


@pytest.mark.parametrize(("epoch", "left"), [(0, {0, 1}), (1, {1}), (2, {1})])
async def test_a_handle_that_is_revoked_ends_its_lane_and_older_ones_of_its_queue_and_no_other(
    trial: Trial, epoch: int, left: set[int]
) -> None:
    # What waited for its flush in another lane would wait for ever.
    app, lander = lander_app(settings_of(), trial.options, member_id="a", session=MemoryTransport(trial.broker, "a"))
    async with trial.running(app):
        await trial.land(20)
        assert lander.landed_count == 20
        await lander._close_lane(QueueName("orders/0"), Epoch(epoch))
        assert {int(lane.parent.name[-3:]) for lane in lanes_of(trial) if is_being_written(lane)} == left


async def test_a_queue_that_goes_to_another_member_ends_its_lane_so_that_it_can_be_pruned(trial: Trial) -> None:
    second = trial.lander("b")
    async with trial.running(trial.lander("a")):
        await trial.land(20)
        assert [is_being_written(lane) for lane in lanes_of(trial)] == [True, True]
        member = asyncio.ensure_future(second.run())
        await trial.until(lambda: [is_being_written(lane) for lane in lanes_of(trial)].count(False) == 1)
        second.stop()
        await member


async def leave_it(lander: Lander, queue: QueueName, epoch: Epoch) -> None:
    """In the place of the hook that closes a lane."""


def lanes_of(trial: Trial) -> list[Path]:
    return list(trial.options.root.glob("queue=*/lane=*"))
