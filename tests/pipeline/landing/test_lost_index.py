"""An index that is lost beside rows is damage; what a process that died leaves behind is none."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lbg_runtime.model.errors import LandingDamaged, LandingWriteFailed
from lbg_runtime.pipeline.landing.index import ENTRY_BYTES, FlushEntry, read_entries
from lbg_runtime.pipeline.landing.lane import is_being_written
from lbg_runtime.pipeline.landing.layout import LANE_NOTE
from lbg_runtime.pipeline.landing.log import LandingLog, LaneExtent
from lbg_runtime.pipeline.landing.prune import prune
from lbg_runtime.pipeline.landing.segment import DATA_SUFFIX, INDEX_SUFFIX, Segment, SegmentWriter
from lbg_runtime.pipeline.landing.usage import used_bytes
from lbg_runtime.pipeline.landing.verify import Grade, Walked, verify
from tests.pipeline.landing.landed import LogOnDisk, id_of, ids_of, rows

NUMBERS = (1, 2, 3)


@pytest.fixture
def lane(log_on_disk: LogOnDisk) -> Path:
    """Of three segments with one row each."""
    lane = log_on_disk.lane(segment_bytes=1)
    for number in NUMBERS:
        lane.append(rows([id_of("k", number)], t_land=number * 100))
    return log_on_disk.root / lane.name


def part(lane: Path, first_row: int, suffix: str) -> Path:
    return lane / f"{first_row:012d}{suffix}"


def grades(log: LogOnDisk) -> list[tuple[Grade, str]]:
    return [(each.grade, each.path) for each in verify(LandingLog(log.root), Walked())]


def replayed(log: LogOnDisk, queue: int = 3) -> list[str]:
    """All rows that are not pruned, as `lbg replay` and a stream without a checkpoint read them."""
    read = LandingLog(log.root)
    extents = read.lanes(queue)
    start = {name: extent.first_row for name, extent in extents.items()}
    end = {name: extent.rows for name, extent in extents.items()}
    return ids_of(read.read_queue(queue, start, end))


def empty(path: Path) -> None:
    path.write_bytes(b"")


def zero(path: Path) -> None:
    path.write_bytes(bytes(ENTRY_BYTES))


@pytest.mark.parametrize("first_row", [0, 1, 2])
@pytest.mark.parametrize("lose", [Path.unlink, empty, zero])
def test_an_index_that_is_lost_beside_rows_is_damage(
    log_on_disk: LogOnDisk, lane: Path, lose: Callable[[Path], object], first_row: int
) -> None:
    index = part(lane, first_row, INDEX_SUFFIX)
    lose(index)
    with pytest.raises(LandingDamaged) as caught:
        replayed(log_on_disk)
    assert caught.value.path == str(index)
    assert (Grade.DAMAGE, str(index)) in grades(log_on_disk)


@pytest.mark.parametrize("lose", [Path.unlink, empty, zero])
def test_so_is_that_of_a_lane_with_one_segment(log_on_disk: LogOnDisk, lose: Callable[[Path], object]) -> None:
    lane = log_on_disk.lane()
    lane.append(rows([id_of("k", 1)]))
    index = part(log_on_disk.root / lane.name, 0, INDEX_SUFFIX)
    lose(index)
    with pytest.raises(LandingDamaged):
        replayed(log_on_disk)
    assert grades(log_on_disk) == [(Grade.DAMAGE, str(index))]


@pytest.mark.parametrize("first_row", [0, 1, 2])
@pytest.mark.parametrize("lose", [Path.unlink, empty])
def test_ids_that_are_lost_with_an_index_are_not_taken_for_new_ones(
    log_on_disk: LogOnDisk, lane: Path, lose: Callable[[Path], object], first_row: int
) -> None:
    start = {name: extent.rows for name, extent in LandingLog(log_on_disk.root).lanes().items()}
    other = log_on_disk.lane("other")
    other.append(rows(id_of("k", number) for number in NUMBERS))
    lose(part(lane, first_row, INDEX_SUFFIX))
    with pytest.raises(LandingDamaged):
        list(LandingLog(log_on_disk.root).read_queue(3, start, {**start, other.name: 3}))


@pytest.mark.parametrize("lose", [Path.unlink, empty, zero])
def test_rows_whose_index_is_lost_are_not_pruned(
    log_on_disk: LogOnDisk, lane: Path, lose: Callable[[Path], object]
) -> None:
    lose(part(lane, 1, INDEX_SUFFIX))
    log_on_disk.close()
    with pytest.raises(LandingDamaged):
        list(prune(log_on_disk.root, 10_000, clock_us=lambda: 1_000))
    assert part(lane, 1, DATA_SUFFIX).exists()
    assert part(lane, 2, DATA_SUFFIX).exists()


@pytest.mark.parametrize("header_bytes", [None, 0, 20, ENTRY_BYTES])
def test_a_process_that_died_when_it_began_a_segment_has_done_no_damage(
    log_on_disk: LogOnDisk, lane: Path, header_bytes: int | None
) -> None:
    SegmentWriter(lane, 3, is_synced=False).close()
    index = part(lane, 3, INDEX_SUFFIX)
    if header_bytes is None:
        index.unlink()
    else:
        index.write_bytes(index.read_bytes()[:header_bytes])
    assert replayed(log_on_disk) == [id_of("k", number) for number in NUMBERS]
    assert Grade.DAMAGE not in {grade for grade, _ in grades(log_on_disk)}


def test_a_segment_that_is_begun_and_filled_while_it_is_looked_at_is_no_damage(
    log_on_disk: LogOnDisk, lane: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [name for name in os.listdir(lane) if name != part(lane, 2, INDEX_SUFFIX).name]
    listdir = os.listdir
    # As they were when the data file was there and its index was not.
    monkeypatch.setattr(os, "listdir", lambda path: names if str(path) == str(lane) else listdir(path))
    assert LandingLog(log_on_disk.root).lanes()[f"queue=003/{lane.name}"] == LaneExtent(0, 2)


@pytest.mark.parametrize("is_index_left", [False, True])
def test_a_process_that_died_while_it_pruned_has_done_no_damage(
    log_on_disk: LogOnDisk, lane: Path, is_index_left: bool
) -> None:
    kept = {path: path.read_bytes() for path in (part(lane, 0, DATA_SUFFIX), part(lane, 0, INDEX_SUFFIX))}
    list(prune(log_on_disk.root, 200, clock_us=lambda: 1_000))
    for path, content in kept.items():
        if is_index_left or path.suffix != INDEX_SUFFIX:
            path.write_bytes(content)
    numbers = NUMBERS if is_index_left else NUMBERS[1:]
    assert replayed(log_on_disk) == [id_of("k", number) for number in numbers]
    assert Grade.DAMAGE not in {grade for grade, _ in grades(log_on_disk)}


def test_a_lane_with_segments_and_without_its_note_is_damage(log_on_disk: LogOnDisk, lane: Path) -> None:
    (lane / LANE_NOTE).unlink()
    with pytest.raises(LandingDamaged, match=r"lane\.json: it is missing"):
        replayed(log_on_disk)
    assert grades(log_on_disk) == [(Grade.DAMAGE, str(lane / LANE_NOTE))]


def test_damage_of_one_lane_does_not_hide_that_of_another(log_on_disk: LogOnDisk, lane: Path) -> None:
    other = log_on_disk.lane("other")
    other.append(rows([id_of("q", 1)]))
    data = part(log_on_disk.root / other.name, 0, DATA_SUFFIX)
    data.write_bytes(data.read_bytes()[:-8] + b"\xff" * 8)
    (lane / LANE_NOTE).unlink()
    assert grades(log_on_disk) == [(Grade.DAMAGE, str(lane / LANE_NOTE)), (Grade.DAMAGE, str(data))]


def test_files_and_folders_with_the_names_of_parts_are_passed_over(log_on_disk: LogOnDisk, lane: Path) -> None:
    foreign = [log_on_disk.root / "queue=010", log_on_disk.root / "queue=003/lane=foo"]
    for path in foreign:
        path.write_text("mine")
    hollow = log_on_disk.root / "queue=003/lane=x-1.1"
    hollow.mkdir()
    log = LandingLog(log_on_disk.root)
    assert log.queues() == [3]
    assert list(log.lanes()) == [f"queue=003/{lane.name}"]
    assert dict(log.lanes(10)) == {}
    assert used_bytes(log_on_disk.root) > 0
    assert len(list(prune(log_on_disk.root, 200, clock_us=lambda: 1_000))) == 1
    log_on_disk.lane("next").append(rows([id_of("q", 1)]))
    assert sorted(grades(log_on_disk), key=str) == [(Grade.NOTE, str(path)) for path in sorted([*foreign, hollow])]


def cut(index: Path, entries_left: int, torn_bytes: int = 0) -> None:
    os.truncate(index, (1 + entries_left) * ENTRY_BYTES + torn_bytes)


@pytest.fixture
def index(log_on_disk: LogOnDisk) -> Path:
    """Of a lane of one segment with three flushes."""
    lane = log_on_disk.lane()
    for number in NUMBERS:
        lane.append(rows([id_of("k", number)], t_land=number * 100))
    return part(log_on_disk.root / lane.name, 0, INDEX_SUFFIX)


@pytest.mark.parametrize("torn_bytes", [0, 5])
@pytest.mark.parametrize("entries_left", [0, 1])
def test_an_index_that_has_lost_its_end_is_damage(
    log_on_disk: LogOnDisk, index: Path, entries_left: int, torn_bytes: int
) -> None:
    log_on_disk.close()
    cut(index, entries_left, torn_bytes)
    with pytest.raises(LandingDamaged, match="more than one flush lies behind its entries"):
        replayed(log_on_disk)
    assert (Grade.DAMAGE, str(index)) in grades(log_on_disk)
    with pytest.raises(LandingDamaged):
        list(prune(log_on_disk.root, 10_000, clock_us=lambda: 1_000))


def test_the_last_flush_alone_may_be_one_that_was_not_completed(log_on_disk: LogOnDisk, index: Path) -> None:
    log_on_disk.close()
    cut(index, 2)
    assert replayed(log_on_disk) == [id_of("k", number) for number in NUMBERS[:2]]
    assert grades(log_on_disk) == [(Grade.NOTE, str(index.with_suffix(DATA_SUFFIX)))]


def test_so_may_a_torn_one_whatever_is_left_of_it(log_on_disk: LogOnDisk, index: Path) -> None:
    log_on_disk.close()
    data = index.with_suffix(DATA_SUFFIX)
    begin, whole = int(read_entries(index).table["data_bytes"][1]), data.read_bytes()
    cut(index, 2)
    torn = [whole[:size] for size in range(begin, len(whole), 7)]
    # Pages that never got their content.
    torn += [whole[:size] + bytes(len(whole) - size) for size in range(begin, len(whole), 7)]
    for content in torn:
        data.write_bytes(content)
        assert replayed(log_on_disk) == [id_of("k", number) for number in NUMBERS[:2]]


@pytest.mark.parametrize("is_closed", [False, True])
def test_what_a_writer_does_between_two_looks_is_no_damage(
    log_on_disk: LogOnDisk, index: Path, monkeypatch: pytest.MonkeyPatch, *, is_closed: bool
) -> None:
    is_cut = Segment.is_cut

    def late(segment: Segment, last: FlushEntry | None) -> bool:
        for number in (4, 5):
            log_on_disk.lanes[0].append(rows([id_of("k", number)]))
        if is_closed:
            log_on_disk.close()
        monkeypatch.undo()
        return is_cut(segment, last)

    monkeypatch.setattr(Segment, "is_cut", late)
    log = LandingLog(log_on_disk.root)
    assert [extent.rows for extent in log.lanes(3).values()] == [3]
    assert [extent.rows for extent in log.lanes(3).values()] == [5]


def test_a_lane_that_is_being_written_is_not_called_damaged_for_its_end(log_on_disk: LogOnDisk, index: Path) -> None:
    cut(index, 1)
    assert replayed(log_on_disk) == [id_of("k", 1)]
    # Its writer notices, and ends the lane.
    with pytest.raises(LandingWriteFailed):
        log_on_disk.lanes[0].append(rows([id_of("k", 4)]))
    with pytest.raises(LandingDamaged):
        replayed(log_on_disk)


def test_ids_of_entries_that_a_segment_has_lost_are_not_taken_for_new_ones(log_on_disk: LogOnDisk) -> None:
    lane = log_on_disk.lane(segment_bytes=4_000)
    for number in range(1, 8):
        lane.append(rows([id_of("k", number)]))
    folder = log_on_disk.root / lane.name
    assert len(list(folder.glob(f"*{INDEX_SUFFIX}"))) > 1
    start = {lane.name: 7}
    other = log_on_disk.lane("other")
    other.append(rows(id_of("k", number) for number in range(1, 8)))
    cut(part(folder, 0, INDEX_SUFFIX), 1)
    with pytest.raises(LandingDamaged, match="the segment of row 1 is missing"):
        list(LandingLog(log_on_disk.root).read_queue(3, start, {**start, other.name: 7}))


def test_who_only_looks_at_a_lane_is_not_taken_for_its_writer(log_on_disk: LogOnDisk, lane: Path) -> None:
    """Two readers of a lane that has lost its end must both learn of it."""
    log_on_disk.close()
    asked: list[bool] = []
    flock = fcntl.flock

    def look_twice(file: int, how: int) -> None:
        flock(file, how)
        if not asked:
            asked.append(True)
            asked.append(is_being_written(lane))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(fcntl, "flock", look_twice)
        assert not is_being_written(lane)
    assert asked == [True, False]
