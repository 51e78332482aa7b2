"""A view that is asked again and again: it remembers what cannot change, and notices all that can."""

import shutil
from pathlib import Path

import pytest

from lbg_runtime.model.errors import LandingDamaged, LandingRowsPruned
from lbg_runtime.pipeline.landing import lane_view
from lbg_runtime.pipeline.landing.index import ENTRY_BYTES, IndexRead
from lbg_runtime.pipeline.landing.lane import LaneWriter, remove_lane
from lbg_runtime.pipeline.landing.lane_view import LaneExtent
from lbg_runtime.pipeline.landing.log import LandingLog
from lbg_runtime.pipeline.landing.prune import prune
from lbg_runtime.pipeline.landing.pruned_ids import PrunedSegment, read_pruned
from lbg_runtime.pipeline.landing.segment import DATA_SUFFIX, IDS_SUFFIX, INDEX_SUFFIX, Segment
from lbg_runtime.pipeline.landing.verify import Grade, Walked, verify
from tests.pipeline.landing.landed import LogOnDisk, id_of, ids_of, rows


def land(lane: LaneWriter, first: int, last: int) -> None:
    """A flush of one row for each number."""
    for number in range(first, last):
        lane.append(rows([id_of("k", number)], t_land=number))


def look(log: LandingLog, lane: LaneWriter) -> LaneExtent:
    """As a planner does: how far the lane goes, and its flushes, so that all that is remembered is in use."""
    extent = log.lanes()[lane.name]
    flushes = log.view(lane.name).all_flushes(extent.first_row, extent.rows)
    assert [each.rows for each in flushes] == list(range(extent.first_row + 1, extent.rows + 1))
    return extent


def only(log: LogOnDisk, lane: LaneWriter, suffix: str) -> Path:
    (found,) = (log.root / lane.name).glob(f"*{suffix}")
    return found


def test_what_is_appended_is_seen(log_on_disk: LogOnDisk) -> None:
    lane, log = log_on_disk.lane(), LandingLog(log_on_disk.root)
    assert look(log, lane) == LaneExtent(0, 0)
    for last in (2, 3, 7):
        land(lane, lane.rows, last)
        assert look(log, lane) == LaneExtent(0, last)


def test_a_new_segment_is_seen(log_on_disk: LogOnDisk) -> None:
    lane, log = log_on_disk.lane(segment_bytes=1), LandingLog(log_on_disk.root)
    for last in range(1, 5):
        land(lane, last - 1, last)
        assert look(log, lane) == LaneExtent(0, last)
    assert ids_of(log.read(lane.name, 0, 4)) == [id_of("k", number) for number in range(4)]


def test_a_new_lane_and_one_that_is_gone_are_seen(log_on_disk: LogOnDisk) -> None:
    first, log = log_on_disk.lane("a"), LandingLog(log_on_disk.root)
    land(first, 0, 1)
    assert list(log.lanes()) == list(log.lanes()) == [first.name]
    second = log_on_disk.lane("b")
    assert list(log.lanes()) == list(log.lanes()) == [first.name, second.name]
    remove_lane(log_on_disk.root / first.name)
    assert list(log.lanes()) == list(log.lanes()) == [second.name]
    with pytest.raises(LandingRowsPruned):
        list(log.read_queue(3, {}, {first.name: 1}))


def test_what_is_pruned_is_seen(log_on_disk: LogOnDisk) -> None:
    lane, log = log_on_disk.lane(segment_bytes=1), LandingLog(log_on_disk.root)
    land(lane, 0, 4)
    assert look(log, lane) == LaneExtent(0, 4)
    list(prune(log_on_disk.root, 2, clock_us=lambda: 1))
    assert look(log, lane) == LaneExtent(2, 4)
    log_on_disk.close()
    list(prune(log_on_disk.root, 100, clock_us=lambda: 1))
    assert look(log, lane) == LaneExtent(4, 4)
    with pytest.raises(LandingRowsPruned, match="row 1 of"):
        log.cut(3, {lane.name: 1}, {lane.name: 4}, 2)


def test_what_is_pruned_after_the_look_is_an_error_with_a_name(log_on_disk: LogOnDisk) -> None:
    lane, log = log_on_disk.lane(segment_bytes=1), LandingLog(log_on_disk.root)
    land(lane, 0, 4)
    end = {name: extent.rows for name, extent in log.lanes().items()}
    list(prune(log_on_disk.root, 2, clock_us=lambda: 1))
    with pytest.raises(LandingRowsPruned, match=r"row 0 of .* is pruned, the first that is left is 2"):
        log.cut(3, {}, end, 4)


def test_an_index_that_is_gone_after_the_look_is_damage(log_on_disk: LogOnDisk) -> None:
    lane, log = log_on_disk.lane(segment_bytes=1), LandingLog(log_on_disk.root)
    land(lane, 0, 4)
    end = {name: extent.rows for name, extent in log.lanes().items()}
    Segment(log_on_disk.root / lane.name, 2).index_path.unlink()
    with pytest.raises(LandingDamaged, match=r"000000000002\.index: it is missing"):
        log.cut(3, {}, end, 4)


def test_an_index_that_is_a_link_to_nowhere_is_damage(log_on_disk: LogOnDisk) -> None:
    """As where a segment was moved to a disk that is not mounted: whoever looked at the lane did so for ever."""
    lane = log_on_disk.lane()
    land(lane, 1, 3)
    index = only(log_on_disk, lane, INDEX_SUFFIX)
    index.rename(log_on_disk.root / "elsewhere")
    index.symlink_to(log_on_disk.root / "not mounted")
    log = LandingLog(log_on_disk.root)
    with pytest.raises(LandingDamaged, match=r"index: it is a link that leads nowhere"):
        log.lanes()
    assert [each.what for each in verify(log, Walked()) if each.grade is Grade.DAMAGE] == ["it is missing"]


def test_a_link_to_nowhere_is_damage_also_where_only_copies_are_looked_for(log_on_disk: LogOnDisk) -> None:
    older, younger = log_on_disk.lane("a", segment_bytes=1), log_on_disk.lane("b")
    land(older, 1, 3)
    land(younger, 1, 4)
    index = log_on_disk.root / older.name / "000000000000.index"
    index.unlink()
    index.symlink_to(log_on_disk.root / "not mounted")
    log = LandingLog(log_on_disk.root)
    with pytest.raises(LandingDamaged, match=r"index: it is a link that leads nowhere"):
        list(log.read_queue(3, {older.name: 2}, {older.name: 2, younger.name: 3}))


def test_so_is_a_link_to_nowhere_in_place_of_ids(log_on_disk: LogOnDisk) -> None:
    """The lane seemed to be gone, so that copies of what was pruned of it came again."""
    lane = log_on_disk.lane()
    land(lane, 1, 3)
    log_on_disk.close()
    assert len(list(prune(log_on_disk.root, 10))) == 1
    ids = only(log_on_disk, lane, IDS_SUFFIX)
    ids.unlink()
    ids.symlink_to(log_on_disk.root / "not mounted")
    log = LandingLog(log_on_disk.root)
    with pytest.raises(LandingDamaged, match=r"ids: it is a link that leads nowhere"):
        log.lanes()
    assert [each.what for each in verify(log, Walked())] == ["it is a link that leads nowhere"]


def test_a_lane_does_not_go_with_ids_that_are_forgotten_while_it_is_looked_at(
    log_on_disk: LogOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = log_on_disk.lane(segment_bytes=1)
    land(lane, 1, 3)
    log_on_disk.close()
    assert len(list(prune(log_on_disk.root, 10))) == 2

    def forget(folder: Path, first_row: int) -> PrunedSegment:
        Segment(folder, 0).ids_path.unlink(missing_ok=True)
        return read_pruned(folder, first_row)

    monkeypatch.setattr(lane_view, "read_pruned", forget)
    assert LandingLog(log_on_disk.root).lanes() == {lane.name: LaneExtent(2, 2)}


@pytest.mark.parametrize("torn", [bytes(ENTRY_BYTES), bytes(ENTRY_BYTES // 2), b"\x01" * 10])
def test_a_torn_end_is_nothing_until_it_is_written_whole(log_on_disk: LogOnDisk, torn: bytes) -> None:
    lane, log = log_on_disk.lane(), LandingLog(log_on_disk.root)
    land(lane, 0, 3)
    index = only(log_on_disk, lane, INDEX_SUFFIX)
    whole = index.read_bytes()
    index.write_bytes(whole[:-ENTRY_BYTES] + torn)
    assert look(log, lane) == look(log, lane) == LaneExtent(0, 2)
    index.write_bytes(whole)
    assert look(log, lane) == LaneExtent(0, 3)


def test_damage_at_the_end_is_told_at_the_next_look(log_on_disk: LogOnDisk) -> None:
    lane, log = log_on_disk.lane(), LandingLog(log_on_disk.root)
    land(lane, 0, 3)
    look(log, lane)
    index = only(log_on_disk, lane, INDEX_SUFFIX)
    index.write_bytes(index.read_bytes()[:-1] + b"\xff")
    with pytest.raises(LandingDamaged, match="entry 3 has a wrong CRC"):
        log.lanes()


@pytest.mark.parametrize("replaced_rows", [2, 5])
def test_files_that_are_replaced_by_those_of_another_log_are_noticed(
    log_on_disk: LogOnDisk, tmp_path: Path, replaced_rows: int
) -> None:
    lane, log = log_on_disk.lane(), LandingLog(log_on_disk.root)
    land(lane, 0, 3)
    assert look(log, lane) == LaneExtent(0, 3)
    other = LogOnDisk(tmp_path / "other")
    other_lane = other.lane()
    other_lane.append(rows(id_of("other", number) for number in range(replaced_rows)))
    other.close()
    for suffix in (DATA_SUFFIX, INDEX_SUFFIX):
        only(log_on_disk, lane, suffix).unlink()
        shutil.copy(only(other, other_lane, suffix), log_on_disk.root / lane.name)
    assert log.lanes()[lane.name] == LaneExtent(0, replaced_rows)
    found = ids_of(log.read(lane.name, 0, replaced_rows))
    assert found == [id_of("other", number) for number in range(replaced_rows)]


@pytest.mark.parametrize("place", ["queue=004/{name}", "queue=003/{name}.bak"])
def test_a_lane_that_lies_elsewhere_than_its_note_says_is_damage(log_on_disk: LogOnDisk, place: str) -> None:
    """Its rows would be there twice, or out of order: it may be a copy, or a lane that somebody meant to take away."""
    lane = log_on_disk.lane()
    land(lane, 0, 3)
    place = place.format(name=lane.name.rpartition("/")[2])
    copy = log_on_disk.root / place
    shutil.copytree(log_on_disk.root / lane.name, copy)
    log, queue = LandingLog(log_on_disk.root), int(place[len("queue=") :][:3])
    with pytest.raises(LandingDamaged, match="bring it back") as caught:
        log.lanes(queue)
    assert (caught.value.path, caught.value.what) == (str(copy), f"its note is of {lane.name}")
    # Whoever has the offset of a time when it was not there, or not looked at, reads on.
    assert ids_of(log.read_queue(3, {}, {lane.name: 3})) == [id_of("k", number) for number in range(3)]
    with pytest.raises(LandingDamaged, match="its note is of"):
        list(log.read_queue(queue, {}, {place: 3}))


def test_an_index_of_other_data_is_noticed_by_who_reads(log_on_disk: LogOnDisk) -> None:
    lane, log = log_on_disk.lane(), LandingLog(log_on_disk.root)
    land(lane, 0, 3)
    look(log, lane)
    data = only(log_on_disk, lane, DATA_SUFFIX)
    data.write_bytes(data.read_bytes()[:-8] + b"\xff" * 8)
    # Planned as it was known; what is read is checked.
    end = log.cut(3, {}, {lane.name: 3}, 3)
    with pytest.raises(LandingDamaged, match=r"rows 2 to 2 .* wrong CRC"):
        list(log.read_queue(3, {}, end))


def count_index_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    read: list[int] = []
    index = Segment.index

    def counted(segment: Segment) -> IndexRead:
        read.append(segment.first_row)
        return index(segment)

    monkeypatch.setattr(Segment, "index", counted)
    return read


def test_an_index_is_read_once_for_all_batches_that_it_knows_of(
    log_on_disk: LogOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane, log = log_on_disk.lane(), LandingLog(log_on_disk.root)
    land(lane, 0, 6)
    read = count_index_reads(monkeypatch)
    at: dict[str, int] = {}
    for _ in range(3):
        end = {name: extent.rows for name, extent in log.lanes().items()}
        at = dict(log.cut(3, at, end, 2))
    assert (at, read) == ({lane.name: 6}, [0])
    land(lane, 6, 7)
    assert log.cut(3, at, {name: extent.rows for name, extent in log.lanes().items()}, 2) == {lane.name: 7}
    assert read == [0, 0]


def test_a_large_index_is_read_again_and_not_kept(log_on_disk: LogOnDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_view, "_KEPT_BYTES", 3 * ENTRY_BYTES)
    lane, log = log_on_disk.lane(), LandingLog(log_on_disk.root)
    land(lane, 0, 6)
    read = count_index_reads(monkeypatch)
    look(log, lane)
    look(log, lane)
    assert read == [0, 0]


def test_of_a_lane_that_is_gone_every_row_is_taken_to_be_left(log_on_disk: LogOnDisk) -> None:
    lane, log = log_on_disk.lane(), LandingLog(log_on_disk.root)
    land(lane, 0, 3)
    view = log.view(lane.name)
    assert view.extent() == LaneExtent(0, 3)
    remove_lane(log_on_disk.root / lane.name)
    assert view.first_left() == 0


def test_what_landed_last_is_what_landed_at_one_time_and_is_not_pruned(log_on_disk: LogOnDisk) -> None:
    lane, log = log_on_disk.lane(segment_bytes=1), LandingLog(log_on_disk.root)
    for number, t_land in enumerate((1, 2, 2)):
        lane.append(rows([id_of("k", number)], t_land=t_land))
    view = log.view(lane.name)
    assert sorted(ids_of(view.read_last_landed(3))) == [id_of("k", 1), id_of("k", 2)]
    assert ids_of(view.read_last_landed(1)) == [id_of("k", 0)]
    # Of what landed together, a part may be gone: the last segment stays while its writer lives.
    list(prune(log_on_disk.root, 3, clock_us=lambda: 5))
    assert ids_of(view.read_last_landed(3)) == [id_of("k", 2)]


def test_rows_that_were_pruned_since_they_were_checked_are_told_as_pruned(log_on_disk: LogOnDisk) -> None:
    lane, log = log_on_disk.lane(segment_bytes=1), LandingLog(log_on_disk.root)
    land(lane, 0, 3)
    view = log.view(lane.name)
    view.check(0, 3)
    list(prune(log_on_disk.root, 1, clock_us=lambda: 5))
    view.extent()
    with pytest.raises(LandingRowsPruned):
        list(view.read_checked(0, 3))
