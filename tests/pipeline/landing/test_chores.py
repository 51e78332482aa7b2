"""What a lander does beside landing: it looks at what the log holds, and prunes it."""

import asyncio
import errno
import threading
import time
from collections.abc import Iterator, MutableMapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from lbg_runtime.model.errors import UserError
from lbg_runtime.pipeline.landing import lander as lander_module
from lbg_runtime.pipeline.landing.layout import claim_folder
from lbg_runtime.pipeline.landing.log import LandingLog
from lbg_runtime.pipeline.landing.open_lane import OpenLane
from lbg_runtime.pipeline.landing.prune import Pruned, prune
from lbg_runtime.pipeline.landing.usage import DiskSpace, used_bytes
from lbg_runtime.runtime import clock as clock_module
from lbg_runtime.runtime.clock import wall_us
from tests.pipeline.landing.trial import PATIENCE_S, QUEUES, Trial, settings_of


async def test_old_rows_are_pruned_while_it_lands(trial: Trial) -> None:
    trial.options = replace(trial.options, retention_ms=0, segment_bytes=1)
    async with trial.running(trial.lander("a")):
        await trial.land(50)
        log = LandingLog(trial.options.root)
        await trial.until(lambda: sum(extent.first_row for extent in log.lanes().values()) > 30)
    # The last segment of a lane that lives stays.
    assert all(extent.first_row < extent.rows for extent in log.lanes().values())
    assert trial.rows() == 50


async def test_a_damaged_lane_keeps_no_other_from_being_pruned_while_it_lands(trial: Trial) -> None:
    trial.options = replace(trial.options, retention_ms=0, segment_bytes=1)
    damaged = trial.options.root / "queue=001/lane=dead-1.1"
    with capture_logs() as told:
        async with trial.running(trial.lander("a")):
            damaged.mkdir(parents=True)
            (damaged / "lane.json").write_text("{")
            # Of the other queue, as nothing lands in this one now.
            await trial.publish(50, keys=1)
            await trial.all_landed()
            log = LandingLog(trial.options.root)
            await trial.until(lambda: sum(extent.first_row for extent in log.lanes(0).values()) > 30)
            await trial.until(lambda: any(each["event"] == "prune_failed" for each in told))
    failed = [each for each in told if each["event"] == "prune_failed"]
    assert {(each["lanes"], each["lane"]) for each in failed} == {(1, "queue=001/lane=dead-1.1")}
    assert any(each["event"] == "landing_pruned" for each in told)


async def test_a_pruning_that_the_disk_refuses_is_told_and_the_next_one_prunes(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial.options = replace(trial.options, retention_ms=0, segment_bytes=1)
    refused: list[Path] = []

    def refuse_once(root: Path, before_us: int, **options: Any) -> Iterator[Pruned]:
        if not refused:
            refused.append(root)
            raise OSError(errno.EIO, "Input/output error")
        return prune(root, before_us, **options)

    monkeypatch.setattr(lander_module, "prune", refuse_once)
    with capture_logs() as told:
        async with trial.running(trial.lander("a")):
            await trial.land(20)
            await trial.until(lambda: any(each["event"] == "landing_pruned" for each in told))
    assert [each["reason"] for each in told if each["event"] == "prune_failed"] == ["[Errno 5] Input/output error"]


async def test_a_look_at_the_log_that_fails_is_told_once_and_the_next_one_lets_messages_in(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    quota_bytes = 1 << 30
    trial.options = replace(trial.options, quota_bytes=quota_bytes)
    waiting: list[int] = []
    is_published = threading.Event()

    def look(root: Path) -> int:
        if not is_published.is_set():
            return quota_bytes
        if len(waiting) < 3:
            waiting.append(trial.depth())
            raise OSError(errno.ENOENT, "No such file or directory", str(root))
        return 0

    monkeypatch.setattr(lander_module, "used_bytes", look)
    with capture_logs() as told:
        async with trial.running(trial.lander("a")):
            await trial.publish(50)
            is_published.set()
            await trial.all_landed()
    # With the last figure nothing is taken.
    assert waiting == [50, 50, 50]
    assert [each["event"] for each in told if each["event"].startswith("landing_")] == [
        "landing_quota_reached", "landing_not_measured", "landing_goes_on",
    ]  # fmt: skip
    trial.assert_all_once_in_order()


async def test_a_member_starts_where_the_log_cannot_be_measured(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    def look(root: Path) -> int:
        raise NotADirectoryError(errno.ENOTDIR, "Not a directory", str(root / "queue=010"))

    monkeypatch.setattr(lander_module, "used_bytes", look)
    trial.options = replace(trial.options, quota_bytes=1 << 30)
    async with trial.running(trial.lander("a")):
        await trial.land(20)
    trial.assert_all_once_in_order()


async def test_a_chore_that_fails_otherwise_ends_the_member(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = iter([0])
    # Has no second figure.
    monkeypatch.setattr(lander_module, "used_bytes", lambda _: {0: 0}[next(figures, 1)])
    trial.options = replace(trial.options, quota_bytes=100)
    with pytest.raises(KeyError):
        async with asyncio.timeout(PATIENCE_S):
            await trial.lander("a").run()


async def test_a_log_that_is_full_of_last_segments_goes_on_when_their_rows_are_old(trial: Trial) -> None:
    trial.options = replace(trial.options, retention_ms=0, quota_bytes=60_000)
    with capture_logs() as told:
        async with trial.running(trial.lander("a")):
            # Several times what the quota takes.
            await trial.land(400)
    assert {"landing_quota_reached", "landing_goes_on"} <= {each["event"] for each in told}
    # What one flow handle landed after a pause is in another lane.
    assert len(LandingLog(trial.options.root).lanes(0)) > 1
    assert trial.rows() == 400


async def test_a_full_disk_goes_on_when_the_rows_are_old_as_a_full_log_does(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial.options = replace(trial.options, retention_ms=0)
    monkeypatch.setattr(lander_module, "disk_space", lambda root: DiskSpace(60_000 - used_bytes(root), 0))
    with capture_logs() as told:
        async with trial.running(trial.lander("a")):
            # Several times what the disk takes.
            await trial.land(400)
    assert {"landing_disk_full", "landing_goes_on"} <= {each["event"] for each in told}
    assert trial.rows() == 400


async def test_nothing_lands_on_a_full_disk_until_there_is_room(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    async with trial.running(trial.lander("a")):
        pass
    await trial.publish(50)
    free = [0]
    monkeypatch.setattr(lander_module, "disk_space", lambda _: DiskSpace(free[0], 0))
    # Longer than it takes to be fed, and it finds messages then.
    monkeypatch.setattr(lander_module, "MEASURE_S", 40.0)
    async with trial.running(trial.lander("b")):
        await asyncio.sleep(30)
        assert (trial.depth(), trial.rows()) == (50, 0)
        await asyncio.sleep(30)
        assert (trial.depth(), trial.rows()) == (50, 0)
        free[0] = 1
        # Counts what it writes by itself until it looks again.
        await trial.until(lambda: trial.rows() > 0)
        await trial.until(lambda: trial.depth() > 0)
        free[0] = 1 << 30
        await trial.all_landed()
    trial.assert_all_once_in_order()


async def test_a_lane_of_a_log_that_is_not_full_is_gone_on_with_however_old_it_is(trial: Trial) -> None:
    trial.options = replace(trial.options, retention_ms=0, quota_bytes=1 << 30)
    async with trial.running(trial.lander("a")):
        for _ in range(2):
            await trial.land(10)
            await asyncio.sleep(2 * lander_module.IDLE_MS / 1_000)
    assert len(LandingLog(trial.options.root).lanes()) == QUEUES


async def test_a_lane_of_a_full_log_in_which_something_landed_lately_is_gone_on_with(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = [0]
    monkeypatch.setattr(lander_module, "used_bytes", lambda _: used[0])
    trial.options = replace(trial.options, quota_bytes=1_000_000)
    async with trial.running(trial.lander("a")):
        await asyncio.sleep(lander_module.IDLE_MS / 1_000)
        for _ in range(2):
            await trial.land(10)
            used[0] = 1_000_000
            await asyncio.sleep(lander_module.IDLE_MS / 2_000)
            used[0] = 0
            await asyncio.sleep(2 * lander_module.MEASURE_S)
    assert len(LandingLog(trial.options.root).lanes()) == QUEUES


async def test_a_handle_may_be_revoked_while_idle_lanes_are_let_go(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    used, closed = [0], 0
    monkeypatch.setattr(lander_module, "used_bytes", lambda _: used[0])
    trial.options = replace(trial.options, retention_ms=0, quota_bytes=1_000_000)
    close = OpenLane.close

    async def close_slowly(lane: OpenLane) -> None:
        nonlocal closed
        if not closed:
            trial.sessions["a"].drop_connection(3)
        closed += 1
        await asyncio.sleep(1)
        await close(lane)

    async with trial.running(trial.lander("a")):
        await trial.land(40)
        monkeypatch.setattr(OpenLane, "close", close_slowly)
        used[0] = 1_000_000
        await trial.until(lambda: closed >= QUEUES)
        used[0] = 0
        await trial.land(40)
    assert trial.rows() == 80


async def test_without_a_retention_a_full_log_lets_go_of_its_lanes_for_those_who_prune_it(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lander_module, "IDLE_MS", 0)
    trial.options = replace(trial.options, quota_bytes=60_000)
    async with trial.running(trial.lander("a")), asyncio.timeout(PATIENCE_S):
        await trial.publish(400)
        while trial.depth():
            await asyncio.sleep(10)
            list(prune(trial.options.root, wall_us()))
    assert trial.rows() == 400


async def test_nothing_lands_in_another_log_of_the_same_group(trial: Trial) -> None:
    root = trial.options.root
    with capture_logs() as told:
        async with trial.running(trial.lander("a")):
            root.rename(root.with_name("away"))
            claim_folder(root, settings_of().group.shape())
            await trial.publish(10)
            await trial.until(lambda: any(each["event"] == "flush_failed" for each in told))
            assert trial.rows() == 0
            for path in root.iterdir():
                path.unlink()
            root.rmdir()
            root.with_name("away").rename(root)
            await trial.all_landed()
    trial.assert_all_once_in_order()


class Wall:
    """A clock of the wall that goes with the loop's, until it is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead_s = 0.0
        loop = asyncio.get_running_loop()
        told = SimpleNamespace(
            time_ns=lambda: int((1.8e9 + loop.time() + self.ahead_s) * 1e9),
            time=time.time,
            monotonic_ns=time.monotonic_ns,
        )
        monkeypatch.setattr(clock_module, "time", told)


def events_of(told: list[MutableMapping[str, Any]], name: str) -> int:
    return sum(each["event"] == name for each in told)


def segments_of(trial: Trial) -> int:
    return sum(1 for _ in trial.options.root.glob("queue=*/lane=*/*.index"))


async def test_a_clock_that_jumps_ahead_prunes_nothing_and_is_told_once(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    wall = Wall(monkeypatch)
    trial.options = replace(trial.options, retention_ms=86_400_000, segment_bytes=1)
    with capture_logs() as told:
        async with trial.running(trial.lander("a")):
            await trial.land(20)
            wall.ahead_s = 2 * 86_400
            await asyncio.sleep(300)
            assert events_of(told, "landing_clock_stepped") == 1
            wall.ahead_s = 0
            await asyncio.sleep(300)
    assert events_of(told, "landing_clock_stepped") == 1
    assert all(extent.first_row == 0 for extent in LandingLog(trial.options.root).lanes().values())
    trial.assert_all_once_in_order()


async def test_a_host_that_slept_prunes_what_has_become_old_meanwhile(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To its member the clock had stepped: one that slept each night pruned nothing, ever."""
    wall, asleep_s = Wall(monkeypatch), 0.0
    monkeypatch.setattr("lbg_runtime.runtime.clock.slept_s", lambda: asleep_s)
    trial.options = replace(trial.options, retention_ms=3_600_000, segment_bytes=1)
    with capture_logs() as told:
        async with trial.running(trial.lander("a")):
            await trial.land(20)
            before = segments_of(trial)
            wall.ahead_s = asleep_s = 3 * 3_600
            await trial.until(lambda: events_of(told, "landing_pruned") > 0)
    assert segments_of(trial) < before
    assert events_of(told, "landing_clock_stepped") == 0


async def test_rows_of_a_clock_that_was_ahead_go_when_they_were_seen_for_as_long_as_rows_stay(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    wall = Wall(monkeypatch)
    trial.options = replace(trial.options, retention_ms=100_000, segment_bytes=1)
    async with trial.running(trial.lander("a")):
        wall.ahead_s = 365 * 86_400
        await trial.land(20)
        wall.ahead_s = 0
        landed = segments_of(trial)
        assert landed > 2 * QUEUES
        await asyncio.sleep(90)
        assert segments_of(trial) == landed
        await asyncio.sleep(200)
        # The last segment of a lane that lives stays.
        assert segments_of(trial) == QUEUES


async def test_a_full_log_whose_rows_a_clock_dated_ahead_goes_on(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    wall = Wall(monkeypatch)
    trial.options = replace(trial.options, retention_ms=5_000, quota_bytes=60_000)
    async with trial.running(trial.lander("a")):
        wall.ahead_s = 365 * 86_400
        await trial.publish(200)
        await asyncio.sleep(1)
        wall.ahead_s = 0
        await trial.land(200)
    assert trial.rows() == 400


async def test_threads_that_are_refused_are_refused_at_the_start(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start
    refused: list[str] = []

    def refusing(thread: threading.Thread) -> None:
        if thread.name == "lbg-landing_2" and not refused:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refusing)
    with pytest.raises(UserError, match="can't start new thread; expected 4 for the flushes"):
        async with asyncio.timeout(PATIENCE_S):
            await trial.lander("a").run()
    assert refused
    async with trial.running(trial.lander("b")):
        assert sum(each.name.startswith("lbg-landing") for each in threading.enumerate()) >= 4
        await trial.land(20)
    trial.assert_all_once_in_order()
