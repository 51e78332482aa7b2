"""What a lander does beside landing: it looks at what the log holds, and prunes it."""

import asyncio
import errno
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from lbg_runtime.pipeline.landing import lander as lander_module
from lbg_runtime.pipeline.landing.log import LandingLog
from tests.pipeline.landing.trial import PATIENCE_S, Trial


async def test_old_rows_are_pruned_while_it_lands(trial: Trial) -> None:
    trial.options = replace(trial.options, retention_ms=0, segment_bytes=1)
    async with trial.running(trial.lander("a")):
        await trial.publish(50)
        await trial.all_landed()
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
        await trial.publish(20)
        await trial.all_landed()
    trial.assert_all_once_in_order()


async def test_a_chore_that_fails_otherwise_ends_the_member(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = iter([0])
    # Has no second figure.
    monkeypatch.setattr(lander_module, "used_bytes", lambda _: {0: 0}[next(figures, 1)])
    trial.options = replace(trial.options, quota_bytes=100)
    with pytest.raises(KeyError):
        async with asyncio.timeout(PATIENCE_S):
            await trial.lander("a").run()
