"""A disk that refuses any one operation, in any way: what is said to have landed is there, once and in order."""

import asyncio
import itertools
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from lbg_runtime.model.errors import LandingError, UserError
from lbg_runtime.pipeline.landing import prune as prune_module
from lbg_runtime.pipeline.landing.lane import LaneWriter
from lbg_runtime.pipeline.landing.layout import claim_folder
from lbg_runtime.pipeline.landing.log import LandingLog
from lbg_runtime.pipeline.landing.prune import IDS_KEPT_US, Unpruned, prune
from lbg_runtime.pipeline.landing.removed import RemovedLane, read_removed, removed_end
from lbg_runtime.pipeline.landing.verify import Grade, Walked, verify
from tests.failing_disk import FAULTS, FailingDisk, Fault, each_operation
from tests.open_files import open_below
from tests.pipeline.landing.disk import Disk
from tests.pipeline.landing.landed import SHAPE, id_of, ids_of, rows
from tests.pipeline.landing.trial import Trial


def land(root: Path, left: list[str], tick: Callable[[], int], attempts: int) -> None:
    """Land what is left, each row in a flush and a segment of its own, as a lander does: in a new lane after each
    failure."""
    lane: LaneWriter | None = None
    while left and attempts:
        try:
            if lane is None:
                claimed = claim_folder(root, SHAPE)
                lane = LaneWriter(root, 3, "m", 1, clock_us=tick, segment_bytes=1, claimed=claimed)
            lane.append(rows(left[:1]))
        except (LandingError, UserError):
            attempts -= 1
            if lane is not None:
                lane.close()
            lane = None
        else:
            left.pop(0)
    if lane is not None:
        lane.close()


def landed(root: Path) -> list[str]:
    log = LandingLog(root)
    return ids_of(log.read_queue(3, {}, {name: extent.rows for name, extent in log.lanes().items()}))


def is_undamaged(root: Path) -> bool:
    return not [each for each in verify(LandingLog(root), Walked()) if each.grade is Grade.DAMAGE]


@pytest.mark.parametrize("fault", FAULTS, ids=attrgetter("name"))
def test_rows_are_landed_once_and_in_order_by_whoever_tries_again(tmp_path: Path, fault: Fault) -> None:
    wanted = [id_of("k", 1), id_of("k", 2)]
    for top, disk in each_operation(tmp_path, fault):
        root, tick, left = top / "log", itertools.count(1).__next__, list(wanted)
        with disk.ill():
            land(root, left, tick, attempts=2)
        assert open_below(top) == []
        land(root, left, tick, attempts=1)
        assert left == []
        assert is_undamaged(root)
        assert landed(root) == wanted


@pytest.mark.parametrize("fault", FAULTS, ids=attrgetter("name"))
def test_a_power_cut_after_it_takes_no_row_that_is_said_to_have_landed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    wanted = [id_of("k", 1), id_of("k", 2)]
    plug = Disk()
    monkeypatch.setattr(os, "fsync", plug.sync)
    monkeypatch.setattr(os, "fdatasync", plug.sync)
    for top, disk in each_operation(tmp_path, fault, 3):
        root, tick, left = top / "log", itertools.count(1).__next__, list(wanted)
        with disk.ill():
            land(root, left, tick, attempts=2)
        plug.cut_power(top)
        if len(left) < len(wanted):
            assert is_undamaged(root)
            assert landed(root)[: len(wanted) - len(left)] == wanted[: len(wanted) - len(left)]
        land(root, left, tick, attempts=1)
        assert landed(root) == wanted
        assert is_undamaged(root)


@pytest.mark.parametrize("fault", FAULTS, ids=attrgetter("name"))
def test_a_lane_that_is_pruned_and_removed_is_there_or_noted_at_any_time_and_goes_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    for top, disk in each_operation(tmp_path, fault, 5):
        root = top / "log"
        lane = LaneWriter(root, 3, "m", 1, clock_us=int, segment_bytes=1, claimed=claim_folder(root, SHAPE))
        for number in (1, 2):
            lane.append(rows([id_of("k", number)], t_land=100))
        lane.close()
        failures: list[Unpruned] = []
        with disk.ill():
            for now_us in (200, IDS_KEPT_US + 200):
                # A log that cannot be listed is not pruned.
                with suppress(OSError):
                    list(prune(root, 150, clock_us=lambda now_us=now_us: now_us, failures=failures))
        assert open_below(top) == []
        assert is_undamaged(root)
        extents = [extent.rows for extent in LandingLog(root).lanes().values()]
        noted = read_removed(root, 3, 0, removed_end(root, 3))
        aside = [name for name in os.listdir(root / "queue=003") if name.startswith(".gone-")]
        assert (extents == [2] and not noted) or noted == [RemovedLane(lane.name, 2)] or (not extents and aside)
        monkeypatch.setattr(prune_module, "DRAFT_KEPT_S", -60.0)
        for now_us in (IDS_KEPT_US + 300, 2 * IDS_KEPT_US + 400):
            list(prune(root, 150, clock_us=lambda now_us=now_us: now_us))
        assert read_removed(root, 3, 0, removed_end(root, 3)) == [RemovedLane(lane.name, 2)]
        assert os.listdir(root / "queue=003") == ["removed.lanes"]


@pytest.mark.parametrize("at", [7, 31])
@pytest.mark.parametrize("fault", FAULTS, ids=attrgetter("name"))
async def test_a_lander_goes_on_and_settles_nothing_that_has_not_landed(
    trial: Trial, tmp_path: Path, fault: Fault, at: int
) -> None:
    trial.options = replace(trial.options, is_synced=True, quota_bytes=1 << 30, segment_bytes=1_500)
    disk = FailingDisk(tmp_path, fault, at)
    with capture_logs() as logs:
        async with trial.running(trial.lander("a")):
            with disk.ill():
                await trial.publish(20)
                await asyncio.sleep(3)
            await trial.land(10)
    assert disk.count > at
    trial.assert_all_once_in_order()
    assert open_below(tmp_path) == []
    # Of each flush that failed one line, however many messages waited for it.
    told = [log["event"] for log in logs if log["log_level"] in ("warning", "error")]
    assert set(told) <= {"flush_failed", "landing_not_measured"}
    assert len(told) < 20
