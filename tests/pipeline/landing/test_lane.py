"""A lane that cannot be begun, or whose first flush fails, leaves nothing behind; one that may have rows stays."""

import errno
import os
from pathlib import Path

import pytest

from lbg_runtime.model.errors import LandingWriteFailed
from lbg_runtime.pipeline.landing import lane as lane_module
from lbg_runtime.pipeline.landing import layout
from lbg_runtime.pipeline.landing.log import LandingLog, LaneExtent
from tests.pipeline.landing.landed import LogOnDisk, id_of, ids_of, rows


def refuse(*_: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def names_in(log: LogOnDisk) -> list[str]:
    """Of all that lies in the folder of the queue."""
    return sorted(os.listdir(log.root / "queue=003"))


@pytest.mark.parametrize(
    ("place", "what"), [(layout, "sync_folder"), (lane_module, "_lock"), (lane_module, "write_note")]
)
def test_a_lane_that_cannot_be_begun_leaves_no_draft(
    log_on_disk: LogOnDisk, monkeypatch: pytest.MonkeyPatch, place: object, what: str
) -> None:
    monkeypatch.setattr(place, what, refuse)
    with pytest.raises(LandingWriteFailed, match="No space left on device"):
        log_on_disk.lane()
    assert names_in(log_on_disk) == []


def test_a_lane_that_has_appeared_and_may_not_last_is_gone_too(
    log_on_disk: LogOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []

    def refuse_once(folder: Path) -> None:
        synced.append(folder)
        if len(synced) == 1:
            refuse()

    monkeypatch.setattr(lane_module, "sync_folder", refuse_once)
    with pytest.raises(LandingWriteFailed):
        log_on_disk.lane()
    assert names_in(log_on_disk) == []


def test_a_lane_of_the_same_name_stays_when_another_cannot_be_begun(log_on_disk: LogOnDisk) -> None:
    lane = log_on_disk.lane()
    lane.append(rows([id_of("k", 1)]))
    log_on_disk.ticks = iter([1])  # type: ignore[assignment]  # the same moment again
    with pytest.raises(LandingWriteFailed):
        log_on_disk.lane()
    assert names_in(log_on_disk) == [lane.name.removeprefix("queue=003/")]
    assert dict(LandingLog(log_on_disk.root).lanes()) == {lane.name: LaneExtent(0, 1)}


@pytest.mark.parametrize("allowed_count", [0, 1, 2])
def test_a_lane_whose_first_flush_failed_is_gone(
    log_on_disk: LogOnDisk, monkeypatch: pytest.MonkeyPatch, allowed_count: int
) -> None:
    lane = log_on_disk.lane()
    write = os.write
    written: list[int] = []

    def full(file: int, content: memoryview) -> int:
        if len(written) == allowed_count:
            # A part of it is on the disk.
            write(file, content[:10])
            refuse()
        written.append(len(content))
        return write(file, content)

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(LandingWriteFailed):
        lane.append(rows([id_of("k", 1)]))
    assert names_in(log_on_disk) == []


def test_a_lane_stays_whose_first_entry_is_written_and_may_not_be_on_the_disk(
    log_on_disk: LogOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = lane_module.LaneWriter(log_on_disk.root, 3, "m", 1, clock_us=lambda: 1, is_synced=True)
    syncs: list[int] = []

    def sync(file: int) -> None:
        syncs.append(file)
        # Schema, header, data; then the entry.
        if len(syncs) == 4:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", sync)
    with pytest.raises(LandingWriteFailed):
        lane.append(rows([id_of("k", 1)]))
    # A reader may have counted it.
    assert dict(LandingLog(log_on_disk.root).lanes()) == {lane.name: LaneExtent(0, 1)}


def test_a_lane_that_has_rows_stays_when_a_flush_fails(log_on_disk: LogOnDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    lane = log_on_disk.lane(segment_bytes=1)
    lane.append(rows([id_of("k", 1)]))
    monkeypatch.setattr(os, "write", refuse)
    with pytest.raises(LandingWriteFailed):
        lane.append(rows([id_of("k", 2)]))
    log = LandingLog(log_on_disk.root)
    assert dict(log.lanes()) == {lane.name: LaneExtent(0, 1)}
    assert ids_of(log.read(lane.name, 0, 1)) == [id_of("k", 1)]


def test_a_lane_that_goes_while_others_are_read_is_no_hindrance(log_on_disk: LogOnDisk) -> None:
    lanes = [log_on_disk.lane(member) for member in "abc"]
    lanes[0].append(rows([id_of("k", 1)]))
    lanes[2].append(rows([id_of("k", 1), id_of("k", 2)]))
    log = LandingLog(log_on_disk.root)
    batches = log.read_queue(3, {}, {name: extent.rows for name, extent in log.lanes().items()})
    assert ids_of([next(batches)]) == [id_of("k", 1)]
    # It had no rows, and its first flush has failed.
    lane_module.remove_lane(log_on_disk.root / lanes[1].name)
    assert ids_of(batches) == [id_of("k", 2)]
