"""Pruning: what is old goes, what is known of it stays, and readers are told.

More than 400 lines, as what is pruned is looked at with those who read it.
"""

import errno
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from lbg_runtime.model.errors import LandingDamaged, LandingRowsPruned
from lbg_runtime.pipeline.landing import lane_view, merge
from lbg_runtime.pipeline.landing import prune as prune_module
from lbg_runtime.pipeline.landing.index import ENTRY_BYTES
from lbg_runtime.pipeline.landing.lane_view import Flush, LaneView
from lbg_runtime.pipeline.landing.log import LandingLog, LaneExtent
from lbg_runtime.pipeline.landing.prune import IDS_KEPT_US, Unpruned, prune
from lbg_runtime.pipeline.landing.segment import SegmentWriter
from tests.pipeline.landing.landed import LogOnDisk, id_of, ids_of, rows


def pruned(log: LogOnDisk, before_us: int, now_us: int = 1_000, *, is_dry: bool = False) -> list[int]:
    """The first rows of the segments that went."""
    return [each.first_row for each in prune(log.root, before_us, clock_us=lambda: now_us, is_dry=is_dry)]


def filled(log: LogOnDisk, member: str = "m", count: int = 5) -> str:
    """A lane of segments of one row, which landed at 100, 200 and so on."""
    lane = log.lane(member, segment_bytes=1)
    for number in range(1, count + 1):
        lane.append(rows([id_of("k", number)], t_land=number * 100))
    return lane.name


def ends(log: LandingLog) -> Mapping[str, int]:
    return {name: extent.rows for name, extent in log.lanes().items()}


def test_segments_go_whose_rows_are_all_older(log_on_disk: LogOnDisk) -> None:
    lane = filled(log_on_disk)
    assert pruned(log_on_disk, 300, is_dry=True) == pruned(log_on_disk, 300) == [0, 1]
    log = LandingLog(log_on_disk.root)
    assert log.lanes()[lane] == LaneExtent(2, 5)
    assert ids_of(log.read(lane, 2, 5)) == [id_of("k", number) for number in (3, 4, 5)]
    assert pruned(log_on_disk, 300) == []


def test_a_damaged_lane_stays_from_its_damage_on_and_keeps_no_other_from_being_pruned(log_on_disk: LogOnDisk) -> None:
    damaged, whole = filled(log_on_disk, "a"), filled(log_on_disk, "b")
    data = log_on_disk.root / damaged / "000000000001.arrow"
    data.write_bytes(data.read_bytes()[:-8] + b"\xff" * 8)
    failures: list[Unpruned] = []
    gone = [(each.lane, each.first_row) for each in prune(log_on_disk.root, 400, clock_us=int, failures=failures)]
    assert gone == [(damaged, 0), (whole, 0), (whole, 1), (whole, 2)]
    assert [(each.lane, type(each.error)) for each in failures] == [(damaged, LandingDamaged)]
    assert data.exists()
    # Without a list the others are pruned too before it is told.
    with pytest.raises(LandingDamaged):
        pruned(log_on_disk, 500)
    assert LandingLog(log_on_disk.root).lanes()[whole].first_row == 4


@pytest.mark.parametrize("before_us", [1, 10_000])
def test_a_segment_whose_index_has_lost_its_end_stays_however_old(log_on_disk: LogOnDisk, before_us: int) -> None:
    lane = filled(log_on_disk)
    index = log_on_disk.root / lane / "000000000000.index"
    index.write_bytes(index.read_bytes()[:-ENTRY_BYTES])
    failures: list[Unpruned] = []
    assert list(prune(log_on_disk.root, before_us, clock_us=int, failures=failures)) == []
    assert [type(each.error) for each in failures] == [LandingDamaged]
    assert index.exists()


def test_the_last_segment_stays_while_its_writer_lives(log_on_disk: LogOnDisk) -> None:
    lane = filled(log_on_disk)
    assert pruned(log_on_disk, 10_000) == [0, 1, 2, 3]
    log_on_disk.lanes[0].append(rows([id_of("k", 6)]))
    log_on_disk.close()
    assert pruned(log_on_disk, 10_000_000) == [4, 5]
    assert LandingLog(log_on_disk.root).lanes()[lane] == LaneExtent(6, 6)


def test_pruned_rows_that_are_asked_for_are_an_error_with_a_name(log_on_disk: LogOnDisk) -> None:
    lane = filled(log_on_disk)
    pruned(log_on_disk, 300)
    log = LandingLog(log_on_disk.root)
    with pytest.raises(LandingRowsPruned, match=r"row 1 of .* is pruned, the first that is left is 2") as caught:
        list(log.read(lane, 1, 5))
    assert (caught.value.lane, caught.value.row, caught.value.first_row) == (lane, 1, 2)
    for start in ({}, {lane: 1}):
        with pytest.raises(LandingRowsPruned):
            list(log.read_queue(3, start, ends(log)))
    assert len(ids_of(log.read_queue(3, {lane: 2}, ends(log)))) == 3


def test_a_copy_that_lands_after_its_message_was_pruned_is_dropped(log_on_disk: LogOnDisk) -> None:
    first = filled(log_on_disk, "a")
    log_on_disk.close()
    assert pruned(log_on_disk, 10_000) == [0, 1, 2, 3, 4]
    start = ends(LandingLog(log_on_disk.root))
    assert start == {first: 5}
    second = log_on_disk.lane("b")
    second.append(rows([id_of("k", number) for number in (4, 5, 6)]))
    log = LandingLog(log_on_disk.root)
    assert ids_of(log.read_queue(3, start, ends(log))) == [id_of("k", 6)]


def test_so_is_a_copy_of_any_of_the_rows_that_were_pruned_together(log_on_disk: LogOnDisk) -> None:
    log_on_disk.lane("a").append(rows([id_of("k", number) for number in (1, 5, 9)]))
    log_on_disk.close()
    start = ends(LandingLog(log_on_disk.root))
    assert pruned(log_on_disk, 10_000_000) == [0]
    for number in (1, 5, 9, 10):
        log_on_disk.lane("b", number).append(rows([id_of("k", number)]))
    log = LandingLog(log_on_disk.root)
    assert ids_of(log.read_queue(3, start, ends(log))) == [id_of("k", 10)]


def test_of_rows_that_were_pruned_together_only_those_before_an_offset_count_as_read(log_on_disk: LogOnDisk) -> None:
    """A member that lost its flow has the oldest lane, and lands on; the first flush of the next is half pruned."""
    old, new = log_on_disk.lane("a"), log_on_disk.lane("b", segment_bytes=1)
    old.append(rows([id_of("k", 1)], t_land=1_000))
    new.append(rows([id_of("k", number) for number in (1, 2, 3, 4)], t_land=100))
    new.append(rows([id_of("k", 5)], t_land=1_000))
    old.append(rows([id_of("k", 2), id_of("k", 3)], t_land=1_000))
    assert pruned(log_on_disk, 500) == [0]
    log = LandingLog(log_on_disk.root)
    found = log.read_queue(3, {old.name: 1, new.name: 2}, ends(log), skips_pruned=True)
    assert ids_of(found) == [id_of("k", 3), id_of("k", 5)]


@pytest.mark.parametrize("content", [b"", b"LBGIDS\0\0", bytes(100)], ids=["nothing", "torn", "zeros"])
def test_what_is_no_file_of_ids_is_damage(log_on_disk: LogOnDisk, content: bytes) -> None:
    lane = filled(log_on_disk)
    pruned(log_on_disk, 200)
    (log_on_disk.root / lane / "000000000000.ids").write_bytes(content)
    log = LandingLog(log_on_disk.root)
    with pytest.raises(LandingDamaged, match="no ids of a pruned segment"):
        list(log.view(lane).pruned(0, 1 << 60))


def test_the_same_offsets_give_the_same_rows_after_pruning(log_on_disk: LogOnDisk) -> None:
    filled(log_on_disk, "a")
    start = ends(LandingLog(log_on_disk.root))
    second = log_on_disk.lane("b")
    second.append(rows([id_of("k", number) for number in (2, 5, 6)], t_land=900))
    log = LandingLog(log_on_disk.root)
    end = ends(log)
    before = ids_of(log.read_queue(3, start, end))
    pruned(log_on_disk, 500)
    assert ids_of(LandingLog(log_on_disk.root).read_queue(3, start, end)) == before == [id_of("k", 6)]


def test_rows_that_are_pruned_while_others_are_read_are_known_all_the_same(
    log_on_disk: LogOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(log_on_disk, "a")
    start = ends(LandingLog(log_on_disk.root))
    log_on_disk.lane("b").append(rows([id_of("k", number) for number in (2, 6)], t_land=900))
    log = LandingLog(log_on_disk.root)
    flushes = lane_view.LaneView.flushes
    calls: list[int] = []

    def pruned_meanwhile(view, *asked):
        found = list(flushes(view, *asked))
        calls.append(len(found))
        if len(calls) == 1:
            pruned(log_on_disk, 500)
        return iter(found)

    monkeypatch.setattr(merge.LaneView, "flushes", pruned_meanwhile)
    assert ids_of(log.read_queue(3, start, ends(log))) == [id_of("k", 6)]
    assert len(calls) == 2


def test_ids_are_forgotten_after_a_week_and_the_lane_with_them(log_on_disk: LogOnDisk) -> None:
    lane = filled(log_on_disk)
    log_on_disk.close()
    pruned(log_on_disk, 10_000, now_us=5)
    pruned(log_on_disk, 10_000, now_us=IDS_KEPT_US + 4)
    log = LandingLog(log_on_disk.root)
    assert log.lanes()[lane] == LaneExtent(5, 5)
    pruned(log_on_disk, 10_000, now_us=IDS_KEPT_US + 5)
    assert dict(log.lanes()) == {}
    assert list(log.read_queue(3, {lane: 5}, {lane: 5})) == []
    # The next one is younger than any that is left.
    assert log_on_disk.lane("b").name.startswith("queue=003/lane=b-1.")


@pytest.mark.parametrize("before_us", [0, 300])
def test_rows_that_are_young_stay_however_old_their_lane_and_what_is_known_of_pruned_ones(
    log_on_disk: LogOnDisk, before_us: int
) -> None:
    folder = log_on_disk.root / filled(log_on_disk)
    log_on_disk.close()
    gone = pruned(log_on_disk, before_us, now_us=5)
    for path in (folder, folder / "lane.json"):
        os.utime(path, (0, 0))
    assert pruned(log_on_disk, before_us, now_us=IDS_KEPT_US + 6) == []
    log = LandingLog(log_on_disk.root)
    [(lane, extent)] = log.lanes().items()
    assert extent == LaneExtent(len(gone), 5)
    assert len(ids_of(log.read(lane, len(gone), 5))) == 5 - len(gone)


def test_whoever_only_asks_what_would_go_removes_nothing(log_on_disk: LogOnDisk) -> None:
    folder = log_on_disk.root / filled(log_on_disk)
    log_on_disk.close()
    copy = (folder / "000000000000.arrow").read_bytes()
    pruned(log_on_disk, 300, now_us=5)
    (folder / "000000000000.arrow").write_bytes(copy)
    for name in (".lane=x-1.1", ".gone-lane=x-1.1"):
        (folder.parent / name).mkdir()
        os.utime(folder.parent / name, (0, 0))
    before = sorted(log_on_disk.root.rglob("*"))
    assert pruned(log_on_disk, 10_000, now_us=IDS_KEPT_US + 6, is_dry=True) == [2, 3, 4]
    assert sorted(log_on_disk.root.rglob("*")) == before


def test_it_stays_known_how_far_a_lane_went_whose_last_rows_were_pruned_by_a_clock_that_was_behind(
    log_on_disk: LogOnDisk,
) -> None:
    lane = filled(log_on_disk, count=2)
    log_on_disk.close()
    pruned(log_on_disk, 200, now_us=1_000)
    pruned(log_on_disk, 300, now_us=500)
    pruned(log_on_disk, 300, now_us=IDS_KEPT_US + 600)
    assert LandingLog(log_on_disk.root).lanes()[lane] == LaneExtent(2, 2)


def test_ids_are_kept_of_the_last_rows_of_a_lane_alone(log_on_disk: LogOnDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prune_module, "IDS_KEPT", 2)
    lane = filled(log_on_disk)
    log_on_disk.close()
    pruned(log_on_disk, 10_000)
    view = LandingLog(log_on_disk.root).view(lane)
    found = [each for part in view.pruned(0, 1 << 60) for each in part.ids().to_pylist()]
    assert found == [id_of("k", 4), id_of("k", 5)]


def test_ids_go_when_their_lane_has_landed_so_many_more_rows(
    log_on_disk: LogOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prune_module, "IDS_KEPT", 2)
    name = filled(log_on_disk, count=3)
    pruned(log_on_disk, 10_000)
    for number in (4, 5):
        log_on_disk.lanes[0].append(rows([id_of("k", number)], t_land=20_000))
    pruned(log_on_disk, 10_000)
    view = LandingLog(log_on_disk.root).view(name)
    # Of the last two rows none is pruned.
    assert list(view.pruned(0, 1 << 60)) == []
    assert ids_of(view.read(3, 5)) == [id_of("k", 4), id_of("k", 5)]


@pytest.mark.parametrize("refusal", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_without_room_for_ids_is_named_with_what_to_do_and_nothing_of_them_stays(
    log_on_disk: LogOnDisk, monkeypatch: pytest.MonkeyPatch, refusal: int
) -> None:
    lane = log_on_disk.root / filled(log_on_disk)
    before = sorted(lane.iterdir())

    def full(file: int) -> None:
        raise OSError(refusal, os.strerror(refusal))

    failures: list[Unpruned] = []
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        assert list(prune(log_on_disk.root, 400, clock_us=int, failures=failures)) == []
    assert sorted(lane.iterdir()) == before
    [failed] = failures
    assert str(failed.error).startswith(f"{lane}/000000000000.ids: {os.strerror(refusal)}; the rows stay")
    assert str(failed.error).endswith("have --quota below what it holds")
    assert pruned(log_on_disk, 400) == [0, 1, 2]


def test_what_a_process_left_that_died_while_it_pruned_is_removed(log_on_disk: LogOnDisk) -> None:
    lane = filled(log_on_disk)
    folder = log_on_disk.root / lane
    copy = (folder / "000000000000.arrow").read_bytes()
    pruned(log_on_disk, 200)
    (folder / "000000000000.arrow").write_bytes(copy)
    draft = log_on_disk.root / "queue=003/.lane=x-1.1"
    draft.mkdir()
    os.utime(draft, (0, 0))
    pruned(log_on_disk, 200)
    assert not (folder / "000000000000.arrow").exists()
    assert not draft.exists()


@pytest.mark.parametrize("name", [".lane=x-1.1", ".gone-lane=x-1.1"])
def test_what_another_process_has_begun_or_set_aside_just_now_is_left_to_it(log_on_disk: LogOnDisk, name: str) -> None:
    filled(log_on_disk)
    folder = log_on_disk.root / "queue=003" / name
    folder.mkdir()
    pruned(log_on_disk, 200)
    assert folder.exists()


def test_a_draft_that_cannot_be_removed_is_told_and_keeps_nothing_from_being_pruned(
    log_on_disk: LogOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(log_on_disk)

    def refuse(_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(shutil, "rmtree", refuse)
    for name in (".lane=x-1.1", ".lane=y-1.1"):
        draft = log_on_disk.root / "queue=003" / name
        draft.mkdir()
        os.utime(draft, (0, 0))
    failures: list[Unpruned] = []
    gone = list(prune(log_on_disk.root, 300, clock_us=lambda: 1_000, failures=failures))
    assert [each.first_row for each in gone] == [0, 1]
    assert sorted(each.lane for each in failures) == ["queue=003/.lane=x-1.1", "queue=003/.lane=y-1.1"]


def test_a_queue_whose_folder_cannot_be_listed_for_drafts_is_told_and_the_others_are_pruned(
    log_on_disk: LogOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(log_on_disk)
    log_on_disk.lane(queue=5, segment_bytes=1)
    log_on_disk.lanes[-1].append(rows([id_of("q", 1)], queue=5, t_land=100))
    log_on_disk.close()
    listed = Path.iterdir

    def refuse(folder: Path) -> Iterator[Path]:
        if folder.name == "queue=003":
            raise OSError(errno.EIO, "Input/output error", str(folder))
        return listed(folder)

    monkeypatch.setattr(Path, "iterdir", refuse)
    failures: list[Unpruned] = []
    gone = list(prune(log_on_disk.root, 200, clock_us=lambda: 1_000, failures=failures))
    assert [each.lane.partition("/")[0] for each in gone] == ["queue=003", "queue=005"]
    assert [each.lane for each in failures] == ["queue=003"]


def test_a_segment_whose_writer_died_before_its_first_flush_goes_with_those_before_it(log_on_disk: LogOnDisk) -> None:
    lane = filled(log_on_disk, count=2)
    SegmentWriter(log_on_disk.root / lane, 2, is_synced=False).close()
    log_on_disk.close()
    assert pruned(log_on_disk, 10_000) == [0, 1, 2]
    assert LandingLog(log_on_disk.root).lanes()[lane] == LaneExtent(2, 2)


@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize("is_live", [True, False])
def test_a_segment_that_is_being_begun_stays_unless_its_writer_is_dead(
    log_on_disk: LogOnDisk, is_live: bool, count: int
) -> None:
    """Its data file is there before its index."""
    folder = log_on_disk.root / filled(log_on_disk, count=count)
    begun = folder / f"{count:012}.arrow"
    begun.write_bytes(b"\xff\xff\xff\xff")
    if not is_live:
        log_on_disk.close()
    pruned(log_on_disk, 50)
    assert begun.exists() == is_live


def test_a_part_that_ends_within_a_lane_passes_over_no_pruned_rows_of_the_next_ones(log_on_disk: LogOnDisk) -> None:
    older, younger = log_on_disk.lane("a"), log_on_disk.lane("b", segment_bytes=1)
    for number in (1, 2):
        older.append(rows([id_of("k", number)], t_land=1_000))
    # The second message landed with the next owner too, and that copy was pruned before anybody read it.
    younger.append(rows([id_of("k", 2)], t_land=100))
    younger.append(rows([id_of("k", 3)], t_land=1_000))
    assert pruned(log_on_disk, 500) == [0]
    log = LandingLog(log_on_disk.root)
    first = log.cut(3, {}, ends(log), 1, skips_pruned=True)
    assert first == {older.name: 1, younger.name: 0}
    parts = [log.read_queue(3, *part, skips_pruned=True) for part in (({}, first), (first, ends(log)))]
    assert [ids_of(part) for part in parts] == [[id_of("k", 1)], [id_of("k", 2), id_of("k", 3)]]


@pytest.mark.parametrize("is_gone", [False, True])
def test_what_is_pruned_while_it_is_read_is_left_out_for_who_skips_that(log_on_disk: LogOnDisk, is_gone: bool) -> None:
    older, younger = log_on_disk.lane("a", segment_bytes=1), log_on_disk.lane("b")
    for number in range(1, 6):
        older.append(rows([id_of("k", number)], t_land=number))
    younger.append(rows([id_of("k", number) for number in (5, 6)], t_land=6))
    log = LandingLog(log_on_disk.root)
    parts = [log.read_queue(3, {}, ends(log), skips_pruned=skips) for skips in (True, False)]
    begun = [ids_of([next(part)]) for part in parts]
    assert begun == [[id_of("k", 1)]] * 2
    if is_gone:
        shutil.rmtree(log_on_disk.root / older.name)
    else:
        pruned(log_on_disk, 4)
    # Of a lane that is gone nothing is known, so the later copy comes.
    assert ids_of(parts[0]) == [id_of("k", number) for number in ([5, 6] if is_gone else [4, 5, 6])]
    with pytest.raises(LandingRowsPruned):
        list(parts[1])


@pytest.mark.parametrize("is_gone", [False, True])
def test_what_is_pruned_just_before_it_is_read_is_left_out_as_well(
    log_on_disk: LogOnDisk, monkeypatch: pytest.MonkeyPatch, is_gone: bool
) -> None:
    older, younger, first_left = filled(log_on_disk), log_on_disk.lane("b"), LaneView.first_left
    younger.append(rows([id_of("k", 6)], t_land=600))
    log = LandingLog(log_on_disk.root)
    end = ends(log)

    def look(view: LaneView) -> int:
        found = first_left(view)
        if is_gone:
            shutil.rmtree(log_on_disk.root / older, ignore_errors=True)
        else:
            pruned(log_on_disk, 400)
        return found

    monkeypatch.setattr(LaneView, "first_left", look)
    left = [id_of("k", number) for number in ([6] if is_gone else [4, 5, 6])]
    assert ids_of(log.read_queue(3, {}, end, skips_pruned=True)) == left


def test_what_is_pruned_while_a_part_is_planned_takes_no_room_of_it(
    log_on_disk: LogOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane, all_flushes = log_on_disk.lane(segment_bytes=1), LaneView.all_flushes
    for number in range(1, 6):
        lane.append(rows([id_of("k", number)], t_land=number))
    log, moments = LandingLog(log_on_disk.root), [3, 5]
    end = ends(log)

    def look(view: LaneView, first: int, until: int) -> Iterator[Flush]:
        if moments:
            pruned(log_on_disk, moments.pop(0))
        return all_flushes(view, first, until)

    monkeypatch.setattr(LaneView, "all_flushes", look)
    with pytest.raises(LandingRowsPruned):
        log.cut(3, {}, end, 1)
    assert log.cut(3, {}, end, 1, skips_pruned=True) == {lane.name: 5}


def test_what_was_pruned_takes_no_room_and_has_no_time(log_on_disk: LogOnDisk) -> None:
    lane = log_on_disk.lane(segment_bytes=1)
    for number, t_land in ((1, 100), (2, 1_000), (3, 1_100)):
        lane.append(rows([id_of("k", number)], t_land=t_land))
    assert pruned(log_on_disk, 500) == [0]
    end = ends(LandingLog(log_on_disk.root))
    for before in ({}, {lane.name: 1}):
        log = LandingLog(log_on_disk.root)
        assert [(piece.rows, piece.t_land) for piece in log.pieces(3, before, end)] == [(1, 1_000), (1, 1_100)]
        assert list(log.pieces(3, before, {lane.name: 1})) == []
