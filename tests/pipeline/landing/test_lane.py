"""A lane that cannot be begun, or whose first flush fails, leaves nothing behind; one that may have rows stays."""

import errno
import fcntl
import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lbg_runtime.model.errors import LandingWriteFailed
from lbg_runtime.pipeline import files
from lbg_runtime.pipeline.landing import lane as lane_module
from lbg_runtime.pipeline.landing.layout import LANE_NOTE, claim_folder, read_lane_note
from lbg_runtime.pipeline.landing.log import LandingLog, LaneExtent
from lbg_runtime.pipeline.landing.prune import prune
from tests.open_files import open_below
from tests.pipeline.landing.landed import SHAPE, LogOnDisk, id_of, ids_of, rows


def refuse(*_: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def names_in(log: LogOnDisk) -> list[str]:
    """Of all that lies in the folder of the queue."""
    return sorted(os.listdir(log.root / "queue=003"))


@pytest.mark.parametrize(
    ("place", "what"), [(files, "sync_folder"), (lane_module, "_lock"), (lane_module, "write_note")]
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
    assert open_below(log_on_disk.root) == []


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
    assert open_below(log_on_disk.root) == []


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


def test_a_lane_stays_of_which_nobody_can_tell_whether_it_has_rows(
    log_on_disk: LogOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = log_on_disk.lane()
    look = Path.stat

    def refuse_index(path: Path, **options: bool) -> os.stat_result:
        if path.suffix == ".index":
            raise OSError(errno.EIO, "Input/output error")
        return look(path, **options)

    monkeypatch.setattr(Path, "stat", refuse_index)
    with pytest.raises(LandingWriteFailed, match="Input/output error"):
        lane.append(rows([id_of("k", 1)]))
    assert names_in(log_on_disk) == [lane.name.removeprefix("queue=003/")]


def test_a_lane_that_has_rows_stays_when_a_flush_fails(log_on_disk: LogOnDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    lane = log_on_disk.lane(segment_bytes=1)
    lane.append(rows([id_of("k", 1)]))
    monkeypatch.setattr(os, "write", refuse)
    with pytest.raises(LandingWriteFailed):
        lane.append(rows([id_of("k", 2)]))
    log = LandingLog(log_on_disk.root)
    assert dict(log.lanes()) == {lane.name: LaneExtent(0, 1)}
    assert ids_of(log.read(lane.name, 0, 1)) == [id_of("k", 1)]


def test_so_does_one_of_which_only_later_rows_are_left(log_on_disk: LogOnDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    lane = log_on_disk.lane(segment_bytes=1)
    for number in (1, 2):
        lane.append(rows([id_of("k", number)], t_land=number))
    assert len(list(prune(log_on_disk.root, 2, clock_us=lambda: 3))) == 1
    monkeypatch.setattr(os, "write", refuse)
    with pytest.raises(LandingWriteFailed):
        lane.append(rows([id_of("k", 3)]))
    assert ids_of(LandingLog(log_on_disk.root).read(lane.name, 1, 2)) == [id_of("k", 2)]


def test_a_lane_keeps_no_segment_open_but_its_last(log_on_disk: LogOnDisk) -> None:
    lane = log_on_disk.lane(segment_bytes=1)
    lane.append(rows([id_of("k", 1)]))
    open_count = len(open_below(log_on_disk.root))
    for number in range(2, 6):
        lane.append(rows([id_of("k", number)]))
    assert len(open_below(log_on_disk.root)) == open_count > 0
    lane.close()
    assert open_below(log_on_disk.root) == []


def test_whoever_looks_whether_a_lane_is_being_written_keeps_nothing_open(log_on_disk: LogOnDisk) -> None:
    lane = log_on_disk.lane()
    folder = log_on_disk.root / lane.name
    before = open_below(log_on_disk.root)
    assert lane_module.is_being_written(folder)
    assert open_below(log_on_disk.root) == before
    lane.close()
    assert not lane_module.is_being_written(folder)
    assert open_below(log_on_disk.root) == []


def test_a_lane_that_cannot_be_locked_leaves_nothing_behind(
    log_on_disk: LogOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse_lock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse_lock)
    with pytest.raises(LandingWriteFailed, match="No locks available"):
        log_on_disk.lane()
    assert open_below(log_on_disk.root) == []
    assert names_in(log_on_disk) == []


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


def order_of(log: LogOnDisk, lane: lane_module.LaneWriter) -> int:
    return read_lane_note(log.root / lane.name).order


def lose(note: Path) -> None:
    note.unlink()


def damage(note: Path) -> None:
    note.write_bytes(b"{")


def make_folder(note: Path) -> None:
    note.unlink()
    note.mkdir()


@pytest.mark.parametrize("spoil", [lose, damage, make_folder])
def test_a_lane_whose_note_cannot_be_read_stops_no_landing_and_keeps_its_place(
    log_on_disk: LogOnDisk, spoil: Callable[[Path], None]
) -> None:
    # Of two lanes with the same order the name would tell.
    first, second = log_on_disk.lane("a"), log_on_disk.lane("z")
    first.append(rows([id_of("k", 1)]))
    second.append(rows([id_of("k", 2)]))
    note = log_on_disk.root / second.name / LANE_NOTE
    kept = note.read_bytes()
    spoil(note)
    for number in (3, 4):
        log_on_disk.lane("c", number).append(rows([id_of("k", number)]))
    if note.is_dir():
        note.rmdir()
    note.write_bytes(kept)
    log = LandingLog(log_on_disk.root)
    end = {name: extent.rows for name, extent in log.lanes(3).items()}
    assert ids_of(log.read_queue(3, {}, end)) == [id_of("k", number) for number in (1, 2, 3, 4)]


def test_a_lane_that_is_put_back_comes_before_those_that_were_begun_since(log_on_disk: LogOnDisk) -> None:
    first = log_on_disk.lane("z")
    first.append(rows([id_of("k", 1)]))
    away = log_on_disk.root / "away"
    (log_on_disk.root / first.name).rename(away)
    second = log_on_disk.lane("a")
    second.append(rows([id_of("k", 2)]))
    away.rename(log_on_disk.root / first.name)
    assert list(LandingLog(log_on_disk.root).lanes(3)) == [first.name, second.name]


def test_a_lane_is_behind_all_that_are_there_whatever_the_clock_says(log_on_disk: LogOnDisk) -> None:
    first = log_on_disk.lane("a")
    log_on_disk.ticks = itertools.count(1_000)
    second = log_on_disk.lane("b")
    log_on_disk.ticks = itertools.count(5)
    third = log_on_disk.lane("c")
    assert [order_of(log_on_disk, each) for each in (first, second, third)] == [1, 1_000, 1_001]


def move(lane: Path) -> None:
    lane.rename(lane.parent.parent / "away")


def replace_files(lane: Path) -> None:
    move(lane)
    shutil.copytree(lane.parent.parent / "away", lane)


def remove_queue(lane: Path) -> None:
    shutil.rmtree(lane.parent)


def move_log(lane: Path) -> None:
    lane.parent.parent.rename(lane.parent.parent.with_name("away"))


def replace_note(lane: Path) -> None:
    content = (lane / LANE_NOTE).read_bytes()
    (lane / "draft").write_bytes(content)
    (lane / "draft").rename(lane / LANE_NOTE)


@pytest.mark.parametrize("segment_bytes", [1, 1 << 20])
@pytest.mark.parametrize("take", [shutil.rmtree, move, replace_files, remove_queue, move_log, replace_note])
def test_nothing_is_landed_in_a_lane_that_is_not_in_its_place(
    log_on_disk: LogOnDisk, take: Callable[[Path], None], segment_bytes: int
) -> None:
    lane = log_on_disk.lane(segment_bytes=segment_bytes)
    lane.append(rows([id_of("k", 1)]))
    take(log_on_disk.root / lane.name)
    with pytest.raises(LandingWriteFailed):
        lane.append(rows([id_of("k", 2)]))
    assert lane.rows == 1


def test_nor_in_one_that_goes_while_the_data_is_written(
    log_on_disk: LogOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = lane_module.LaneWriter(log_on_disk.root, 3, "m", 1, clock_us=lambda: 1, is_synced=True)
    log_on_disk.lanes.append(lane)
    lane.append(rows([id_of("k", 1)]))
    folder = log_on_disk.root / lane.name
    away = log_on_disk.root / "away"
    monkeypatch.setattr(os, "fdatasync", lambda _: folder.exists() and folder.rename(away))
    with pytest.raises(LandingWriteFailed):
        lane.append(rows([id_of("k", 2)]))
    away.rename(folder)
    # Put back, it has no row that was not acknowledged.
    assert dict(LandingLog(log_on_disk.root).lanes()) == {lane.name: LaneExtent(0, 1)}


def test_no_lane_is_begun_where_the_log_is_not(log_on_disk: LogOnDisk) -> None:
    log_on_disk.root.rename(log_on_disk.root.with_name("away"))
    log_on_disk.root.mkdir()
    with pytest.raises(LandingWriteFailed, match=r"no landing\.json in it"):
        log_on_disk.lane()
    # As in a bare mount point.
    assert list(log_on_disk.root.iterdir()) == []


def test_nor_in_another_log(log_on_disk: LogOnDisk) -> None:
    claimed = claim_folder(log_on_disk.root, SHAPE)

    def begin() -> lane_module.LaneWriter:
        lane = lane_module.LaneWriter(log_on_disk.root, 3, "m", 1, clock_us=lambda: 1, claimed=claimed)
        log_on_disk.lanes.append(lane)
        return lane

    away = log_on_disk.root.with_name("away")
    log_on_disk.root.rename(away)
    claim_folder(log_on_disk.root, SHAPE)
    with pytest.raises(LandingWriteFailed, match="it is another log, of group orders"):
        begin()
    assert [path.name for path in log_on_disk.root.iterdir()] == ["landing.json"]
    shutil.rmtree(log_on_disk.root)
    away.rename(log_on_disk.root)
    begin().append(rows([id_of("k", 1)]))
