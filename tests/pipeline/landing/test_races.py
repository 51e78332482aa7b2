"""Readers, pruners and those who begin a log that others overtake between two looks at the same lane or folder.

Each race is run by a hook: when a function is called, what the other process does then is done first. More than 400
lines, as all of them are run by it.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lbg_runtime.model.errors import LandingDamaged, LandingRowsPruned
from lbg_runtime.pipeline.landing import lane_view, layout, merge
from lbg_runtime.pipeline.landing import log as log_module
from lbg_runtime.pipeline.landing import prune as prune_module
from lbg_runtime.pipeline.landing.index import ENTRY_BYTES
from lbg_runtime.pipeline.landing.lane import remove_lane
from lbg_runtime.pipeline.landing.lane_view import LaneView, check_unindexed
from lbg_runtime.pipeline.landing.layout import LANE_NOTE, GroupNote, claim_folder
from lbg_runtime.pipeline.landing.log import LandingLog, LaneExtent
from lbg_runtime.pipeline.landing.prune import IDS_KEPT_US, Unpruned, prune
from lbg_runtime.pipeline.landing.pruned_ids import write_pruned
from lbg_runtime.pipeline.landing.segment import DATA_SUFFIX, IDS_SUFFIX, INDEX_SUFFIX, Segment
from lbg_runtime.pipeline.landing.verify import Walked, verify
from tests.pipeline.landing.landed import SHAPE, LogOnDisk, id_of, ids_of, rows

Hook = Callable[..., None]


@pytest.fixture
def before(monkeypatch: pytest.MonkeyPatch) -> Hook:
    """`before(owner, name, act, call=1)`: have `act` done when this function is called for that time.

    What is called within such an act is not counted.
    """
    acting: list[str] = []

    def hook(owner: object, name: str, act: Callable[[], object], call: int = 1) -> None:
        original = getattr(owner, name)
        calls: list[int] = []

        def overtaken(*args: object, **named: object) -> object:
            if not acting:
                calls.append(1)
                if len(calls) == call:
                    acting.append(name)
                    act()
                    acting.clear()
            return original(*args, **named)

        monkeypatch.setattr(owner, name, overtaken)

    return hook


@pytest.fixture
def name(log_on_disk: LogOnDisk) -> str:
    """A lane of three segments of one row, which landed at 100, 200 and 300; its writer has ended."""
    lane = log_on_disk.lane("a", segment_bytes=1, handle="h")
    for number in (1, 2, 3):
        lane.append(rows([id_of("k", number)], t_land=number * 100))
    lane.close()
    return lane.name


def pruned(log: LogOnDisk, before_us: int = 10_000, now_us: int = 1_000) -> list[Unpruned]:
    """Prune what landed before; return the failures."""
    failures: list[Unpruned] = []
    list(prune(log.root, before_us, clock_us=lambda: now_us, failures=failures))
    return failures


# -- two that begin the log


@pytest.mark.parametrize(("owner", "function"), [(Path, "iterdir"), (layout, "alone")], ids=["content", "note"])
def test_of_those_who_claim_an_empty_folder_at_once_the_first_makes_the_log_of_all(
    tmp_path: Path, before: Hook, owner: object, function: str
) -> None:
    """Whoever is refused does not start; and with another id in its note the first would land nothing more."""
    claimed: list[GroupNote] = []
    before(owner, function, lambda: claimed.append(claim_folder(tmp_path, SHAPE)))
    second = claim_folder(tmp_path, SHAPE)
    assert [each.id for each in claimed] == [second.id]


# -- two that prune


@pytest.mark.parametrize(
    ("owner", "function", "call"),
    [
        (prune_module, "is_being_written", 1),
        (Segment, "last_entry", 2),
        (prune_module, "_prune_segment", 1),
        (prune_module, "write_pruned", 1),
        (Path, "unlink", 1),
        (Path, "unlink", 2),
        (prune_module, "_remove_rests", 1),
    ],
    ids=["lane", "entry", "segment", "ids", "index", "data", "rests"],
)
def test_who_is_overtaken_by_another_that_prunes_leaves_the_lane_to_it(
    log_on_disk: LogOnDisk, name: str, before: Hook, owner: object, function: str, call: int
) -> None:
    before(owner, function, lambda: pruned(log_on_disk), call)
    assert pruned(log_on_disk) == []
    log = LandingLog(log_on_disk.root)
    assert log.lanes()[name] == LaneExtent(3, 3)
    kept = [each for part in log.view(name).pruned(0, 1 << 60) for each in part.ids().to_pylist()]
    assert kept == [id_of("k", number) for number in (1, 2, 3)]
    assert {each.suffix for each in (log_on_disk.root / name).iterdir()} == {".json", IDS_SUFFIX}


def test_so_does_who_looks_at_a_segment_of_which_only_the_index_is_read(
    log_on_disk: LogOnDisk, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A data file that is not there is damage only beside its index, which goes first."""
    last_entry = Segment.last_entry

    def overtaken(segment: Segment) -> object:
        found = last_entry(segment)
        monkeypatch.undo()
        assert pruned(log_on_disk) == []
        return found

    log = LandingLog(log_on_disk.root)
    view = log.view(name)
    extent = view.extent()
    monkeypatch.setattr(LaneView, "extent", lambda _: extent)
    monkeypatch.setattr(Segment, "last_entry", overtaken)
    assert pruned(log_on_disk) == []
    assert view.extent() == LaneExtent(3, 3)


@pytest.mark.parametrize("is_data_left", [True, False])
def test_what_two_would_remove_is_removed_by_one(log_on_disk: LogOnDisk, before: Hook, *, is_data_left: bool) -> None:
    lane = log_on_disk.lane(segment_bytes=1)
    for number in (1, 2):
        lane.append(rows([id_of("k", number)], t_land=number * 100))
    data = log_on_disk.root / lane.name / f"000000000000{DATA_SUFFIX}"
    content = data.read_bytes()
    pruned(log_on_disk, 200)
    if is_data_left:
        data.write_bytes(content)
    late_us = IDS_KEPT_US + 1_000
    before(Path, "unlink", lambda: pruned(log_on_disk, 200, late_us))
    assert pruned(log_on_disk, 200, late_us) == []
    assert not data.exists()
    assert list(data.parent.glob(f"*{IDS_SUFFIX}")) == []


def test_a_lane_that_another_removes_as_a_whole_is_no_failure(log_on_disk: LogOnDisk, name: str, before: Hook) -> None:
    before(prune_module, "is_being_written", lambda: remove_lane(log_on_disk.root / name))
    assert pruned(log_on_disk) == []


def test_nor_is_a_draft_that_another_removes(log_on_disk: LogOnDisk, name: str, before: Hook) -> None:
    draft = log_on_disk.root / "queue=003/.lane=x-1.1"
    draft.mkdir()
    os.utime(draft, (0, 0))
    # After it was looked at.
    before(prune_module.time, "time", lambda: shutil.rmtree(draft))
    assert pruned(log_on_disk, 0) == []


def test_who_dies_between_an_index_and_its_data_leaves_rows_that_count_as_pruned(
    log_on_disk: LogOnDisk, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink = Path.unlink

    def refuse(path: Path, *, missing_ok: bool = False) -> None:
        if path.suffix == DATA_SUFFIX:
            raise PermissionError(path)
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    assert [type(each.error) for each in pruned(log_on_disk)] == [PermissionError]
    log = LandingLog(log_on_disk.root)
    assert log.lanes()[name] == LaneExtent(1, 3)
    with pytest.raises(LandingRowsPruned):
        list(log.read(name, 0, 3))
    assert len(ids_of(log.read(name, 1, 3))) == 2


# -- one that reads and one that prunes, or writes


def test_a_segment_that_goes_while_the_end_of_its_lane_is_looked_for(
    log_on_disk: LogOnDisk, name: str, before: Hook
) -> None:
    view = LandingLog(log_on_disk.root).view(name)
    before(Segment, "last_entry", lambda: pruned(log_on_disk))
    assert view.extent() == LaneExtent(3, 3)


def test_data_whose_index_comes_while_it_is_looked_for_is_no_damage(
    log_on_disk: LogOnDisk, name: str, before: Hook
) -> None:
    """The data file is begun first, and has no rows before its index is there."""
    folder = log_on_disk.root / name
    data, index = folder / f"000000000002{DATA_SUFFIX}", folder / f"000000000002{INDEX_SUFFIX}"
    whole = data.read_bytes(), index.read_bytes()
    data.write_bytes(b"")
    index.unlink()

    def write() -> None:
        index.write_bytes(whole[1])
        data.write_bytes(whole[0])

    before(lane_view.os.path, "exists", write, 2)
    check_unindexed(folder, 2)
    check_unindexed(folder, 2)


def test_nor_is_data_of_which_only_the_ids_are_left(log_on_disk: LogOnDisk, name: str, before: Hook) -> None:
    """The ids are there before the index goes, so whoever finds no index looks for them afterwards."""
    folder = log_on_disk.root / name

    def prune_to_the_index() -> None:
        write_pruned(folder, 0, 1, [id_of("k", 1)], 1_000)
        Segment(folder, 0).index_path.unlink()

    before(lane_view.os.path, "exists", prune_to_the_index, 2)
    check_unindexed(folder, 0)
    check_unindexed(folder, 0)


def test_nor_are_rows_that_go_with_their_ids_while_these_are_looked_for(
    log_on_disk: LogOnDisk, name: str, before: Hook
) -> None:
    folder = log_on_disk.root / name

    def go() -> None:
        for suffix in (INDEX_SUFFIX, DATA_SUFFIX):
            (folder / f"000000000000{suffix}").unlink()

    before(lane_view.os.path, "exists", go)
    check_unindexed(folder, 0)


def test_a_lane_without_its_note_has_no_writer_that_would_excuse_its_end(log_on_disk: LogOnDisk) -> None:
    lane = log_on_disk.lane()
    for number in (1, 2, 3):
        lane.append(rows([id_of("k", number)]))
    view = LandingLog(log_on_disk.root).view(lane.name)
    index = Segment(view.folder, 0).index_path
    index.write_bytes(index.read_bytes()[: 2 * ENTRY_BYTES])
    assert view.extent() == LaneExtent(0, 1)
    (view.folder / LANE_NOTE).unlink()
    with pytest.raises(LandingDamaged, match="it has lost its end"):
        view.extent()


def test_rows_that_go_while_they_are_read_are_told_as_pruned_from_where_the_reader_was(
    log_on_disk: LogOnDisk, name: str
) -> None:
    view = LandingLog(log_on_disk.root).view(name)
    view.check(0, 3)
    read, planned = view.read_checked(0, 3), view.all_flushes(0, 3)
    assert (ids_of([next(read)]), next(planned).rows) == ([id_of("k", 1)], 1)
    pruned(log_on_disk)
    for each in (read, planned):
        with pytest.raises(LandingRowsPruned) as caught:
            list(each)
        assert caught.value.row == 1


def test_of_a_segment_that_went_the_rows_that_were_asked_for_are_told(log_on_disk: LogOnDisk) -> None:
    lane = log_on_disk.lane()
    lane.append(rows(id_of("k", number) for number in (1, 2, 3)))
    view = LandingLog(log_on_disk.root).view(lane.name)
    view.extent()
    log_on_disk.close()
    pruned(log_on_disk, 10_000_000)
    with pytest.raises(LandingRowsPruned) as caught:
        list(view.all_flushes(2, 3))
    assert caught.value.row == 2


@pytest.mark.parametrize("goes", [False, True])
def test_rows_that_are_pruned_while_a_time_is_looked_for_lie_before_it(
    log_on_disk: LogOnDisk, name: str, before: Hook, *, goes: bool
) -> None:
    """As when a replay has a `--from`, or a stream begins at a time."""

    def act() -> None:
        pruned(log_on_disk, 150)
        if goes:
            remove_lane(log_on_disk.root / name)

    before(LaneView, "all_flushes", act)
    assert LandingLog(log_on_disk.root).before(3, 250) == ({} if goes else {name: 2})


@pytest.mark.parametrize("before_us", [250, 10_000], ids=["some", "all"])
@pytest.mark.parametrize("call", [1, 2, 3])
@pytest.mark.parametrize("function", ["last_entry", "read"])
def test_verify_finds_no_damage_where_segments_are_pruned_while_it_walks(
    log_on_disk: LogOnDisk, name: str, before: Hook, function: str, call: int, before_us: int
) -> None:
    pruned(log_on_disk, 150)
    lane = log_on_disk.lane("b", segment_bytes=1)
    for number in range(1, 5):
        lane.append(rows([id_of("k", number)], t_land=number * 50))
    before(Segment, function, lambda: pruned(log_on_disk, before_us), call)
    assert list(verify(LandingLog(log_on_disk.root), Walked())) == []


# -- copies in lanes that are being pruned


def copies_of(log: LogOnDisk, handle: str = "") -> str:
    """A younger lane, with copies and one row that is new."""
    lane = log.lane("b", handle=handle)
    lane.append(rows(id_of("k", number) for number in (1, 2, 3, 4)))
    return lane.name


@pytest.mark.parametrize(
    ("owner", "function"),
    [(LaneView, "flushes"), (Segment, "last_entry"), (LaneView, "read"), (LaneView, "pruned")],
    ids=["before", "listed", "found", "read"],
)
@pytest.mark.parametrize("steps", [[10_000], [150, 250, 10_000]], ids=["at_once", "bit_by_bit"])
def test_copies_of_rows_that_go_while_they_are_looked_for_are_left_out(
    log_on_disk: LogOnDisk, name: str, before: Hook, owner: object, function: str, steps: list[int]
) -> None:
    younger = copies_of(log_on_disk)
    log = LandingLog(log_on_disk.root)

    def prune_meanwhile() -> None:
        for call, before_us in enumerate(steps, 1):
            before(owner, function, lambda before_us=before_us: pruned(log_on_disk, before_us), call)

    before(merge._Earlier, "_take", prune_meanwhile)
    assert ids_of(log.read_queue(3, {name: 3}, {name: 3, younger: 4})) == [id_of("k", 4)]


@pytest.mark.parametrize("owner", [LaneView, merge._Earlier], ids=["checked", "merged"])
def test_a_lane_that_was_read_may_go_as_a_whole_while_others_are_read(
    log_on_disk: LogOnDisk, name: str, before: Hook, owner: object
) -> None:
    younger = copies_of(log_on_disk)
    function = "check" if owner is LaneView else "_take"
    before(owner, function, lambda: remove_lane(log_on_disk.root / name))
    log = LandingLog(log_on_disk.root)
    found = ids_of(log.read_queue(3, {name: 3}, {name: 3, younger: 4}))
    # Its ids went long ago, or it would be there.
    assert found == [id_of("k", number) for number in (1, 2, 3, 4)]


def test_a_lane_that_cannot_be_reached_is_not_taken_for_one_that_is_gone(
    log_on_disk: LogOnDisk, name: str, before: Hook
) -> None:
    """Its ids are there: without them the copies would come out."""
    younger, folder = copies_of(log_on_disk), log_on_disk.root / name

    def be_out_of_reach() -> None:
        folder.rename(folder.with_name("away"))
        folder.symlink_to(folder)

    before(merge._Earlier, "_take", be_out_of_reach)
    log = LandingLog(log_on_disk.root)
    with pytest.raises(OSError, match="symbolic links"):
        ids_of(log.read_queue(3, {name: 3}, {name: 3, younger: 4}))


@pytest.mark.parametrize(("is_pruned", "goes"), [(False, False), (False, True), (True, True)])
def test_so_may_an_older_lane_of_the_same_handle(
    log_on_disk: LogOnDisk, name: str, before: Hook, *, is_pruned: bool, goes: bool
) -> None:
    younger = copies_of(log_on_disk, "h")
    if is_pruned:
        pruned(log_on_disk)
    log = LandingLog(log_on_disk.root)

    def act() -> None:
        pruned(log_on_disk)
        if goes:
            remove_lane(log_on_disk.root / name)

    before(merge._Earlier, "take_last", act)
    assert ids_of(log.read_queue(3, {name: 3}, {name: 3, younger: 4})) == [id_of("k", 4)]


# -- one that lists the lanes of a queue while others begin


def test_lanes_are_closed_however_they_are_begun_between_two_listings(
    log_on_disk: LogOnDisk, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    second, third = log_on_disk.lane("b").name, log_on_disk.lane("c").name
    # A listing is not of one moment: of two lanes, it may have the younger one alone.
    listings = [[second], [name, second, third], [third], [name], [third], [third], [third]]
    monkeypatch.setattr(log_module, "lane_names", lambda *_: listings.pop(0))
    log = LandingLog(log_on_disk.root)
    found = [list(log.lanes(3)) for _ in range(4)]
    # The same once more need not be listed twice.
    assert found == [[name, second], [name], [third], [third]]
    assert listings == []


def test_a_lane_that_was_away_while_the_lanes_were_listed_is_there_again(
    log_on_disk: LogOnDisk, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    younger = copies_of(log_on_disk)
    monkeypatch.setattr(log_module, "lane_names", lambda *_: [name, younger])
    log = LandingLog(log_on_disk.root)
    folder, away = log_on_disk.root / name, log_on_disk.root / "away"
    folder.rename(away)
    assert list(log.lanes(3)) == [younger]
    away.rename(folder)
    assert list(log.lanes(3)) == [name, younger]
