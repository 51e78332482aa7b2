"""The reading side: what is there, what is asked for in vain, and what is said of it.

More than 400 lines, as all of it is asked of the same small log.
"""

import os
import shutil
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import orjson
import pytest

from lbg_runtime.model.errors import LandingDamaged, LandingRowsPruned, LandingVersionUnknown, UserError
from lbg_runtime.pipeline.landing.index import ENTRY_BYTES
from lbg_runtime.pipeline.landing.lane import remove_lane
from lbg_runtime.pipeline.landing.lane_view import Flush, LaneView
from lbg_runtime.pipeline.landing.layout import LANE_NOTE, claim_folder, queue_of
from lbg_runtime.pipeline.landing.log import LandingLog, LaneExtent, Piece
from lbg_runtime.pipeline.landing.prune import prune
from lbg_runtime.pipeline.landing.sealed import seal, unseal
from lbg_runtime.pipeline.landing.segment import INDEX_SUFFIX
from tests.pipeline.landing.landed import SHAPE, LogOnDisk, id_of, ids_of, rows


def test_lanes_are_told_with_how_far_they_go(log_on_disk: LogOnDisk) -> None:
    first, second = log_on_disk.lane("a", 1), log_on_disk.lane("b", 4, queue=1)
    first.append(rows([id_of("k", 1), id_of("k", 2)]))
    second.append(rows([id_of("q", 1)], queue=1))
    log = LandingLog(log_on_disk.root)
    assert log.queues() == [1, 3]
    assert dict(log.lanes()) == {second.name: LaneExtent(0, 1), first.name: LaneExtent(0, 2)}
    assert first.name == "queue=003/lane=a-1.1"
    first.append(rows([id_of("k", 3)]))
    assert dict(log.lanes(3)) == {first.name: LaneExtent(0, 3)}


def test_rows_are_read_across_segments(log_on_disk: LogOnDisk) -> None:
    lane = log_on_disk.lane(segment_bytes=1)
    for number in range(1, 10):
        lane.append(rows([id_of("k", number)]))
    log = LandingLog(log_on_disk.root)
    assert len(list((log_on_disk.root / lane.name).glob(f"*{INDEX_SUFFIX}"))) == 9
    assert ids_of(log.read(lane.name, 3, 7)) == [id_of("k", number) for number in range(4, 8)]


def test_rows_are_read_from_within_a_flush(log_on_disk: LogOnDisk) -> None:
    lane = log_on_disk.lane(segment_bytes=1)
    for numbers in (range(1, 4), range(4, 9)):
        lane.append(rows([id_of("k", number) for number in numbers]))
    assert ids_of(LandingLog(log_on_disk.root).read(lane.name, 4, 6)) == [id_of("k", 5), id_of("k", 6)]


def test_a_lane_that_has_landed_nothing_is_empty(log_on_disk: LogOnDisk) -> None:
    lane = log_on_disk.lane()
    log = LandingLog(log_on_disk.root)
    assert dict(log.lanes()) == {lane.name: LaneExtent(0, 0)}
    assert list(log.read_queue(3, {}, {lane.name: 0})) == []


def test_a_lane_that_has_no_segment_yet_is_no_hindrance(log_on_disk: LogOnDisk) -> None:
    lane, empty = log_on_disk.lane("a"), log_on_disk.lane("b")
    lane.append(rows([id_of("k", 1)]))
    log = LandingLog(log_on_disk.root)
    end = {name: extent.rows for name, extent in log.lanes().items()}
    assert end == {lane.name: 1, empty.name: 0}
    assert ids_of(log.read_queue(3, {}, end)) == [id_of("k", 1)]


def test_offsets_of_other_queues_are_passed_over(log_on_disk: LogOnDisk) -> None:
    lane, other = log_on_disk.lane(), log_on_disk.lane(queue=1)
    lane.append(rows([id_of("k", 1)]))
    other.append(rows([id_of("q", 1)], queue=1))
    log = LandingLog(log_on_disk.root)
    end = {name: extent.rows for name, extent in log.lanes().items()}
    assert ids_of(log.read_queue(1, {}, end)) == [id_of("q", 1)]
    assert set(log.cut(1, {}, end, 10)) == {other.name}


def test_a_message_that_one_member_never_landed_is_not_lost_behind_later_ones(log_on_disk: LogOnDisk) -> None:
    first, second = log_on_disk.lane("a"), log_on_disk.lane("b")
    first.append(rows([id_of("k", 1), id_of("q", 3), id_of("r", 4)]))
    # The member died with the second one of k under way.
    second.append(rows([id_of("k", 2), id_of("r", 4)]))
    log = LandingLog(log_on_disk.root)
    half = {first.name: 3}
    assert ids_of(log.read_queue(3, half, {**half, second.name: 2})) == [id_of("k", 2)]


def test_copies_of_messages_of_other_publishers_are_all_there(log_on_disk: LogOnDisk) -> None:
    lane = log_on_disk.lane()
    ids = [f"{5:013x}.!{lane.name}/1", f"{5:013x}.!{lane.name}/2"]
    lane.append(rows(ids))
    log = LandingLog(log_on_disk.root)
    assert ids_of(log.read_queue(3, {}, {lane.name: 2})) == ids


def test_a_message_that_the_broker_had_twice_comes_twice_however_its_lane_is_cut(log_on_disk: LogOnDisk) -> None:
    lane = log_on_disk.lane()
    for _ in range(2):
        lane.append(rows([id_of("k", 1)]))
    log_on_disk.lane("b").append(rows([id_of("k", 2)]))
    log = LandingLog(log_on_disk.root)
    parts = [log.read_queue(3, {lane.name: start}, {lane.name: start + 1}) for start in (0, 1)]
    assert [ids_of(part) for part in parts] == [[id_of("k", 1)]] * 2
    assert ids_of(log.read_queue(3, {}, {lane.name: 2})) == [id_of("k", 1)] * 2


def test_a_torn_entry_is_as_if_the_flush_had_not_been(log_on_disk: LogOnDisk) -> None:
    lane = log_on_disk.lane()
    lane.append(rows([id_of("k", 1)]))
    index = next((log_on_disk.root / lane.name).glob(f"*{INDEX_SUFFIX}"))
    with index.open("ab") as file:
        file.write(bytes(ENTRY_BYTES - 1))
    assert LandingLog(log_on_disk.root).lanes()[lane.name] == LaneExtent(0, 1)


def test_a_segment_whose_writer_died_when_it_began_it_is_empty(log_on_disk: LogOnDisk) -> None:
    dead, other = log_on_disk.lane("a"), log_on_disk.lane("b")
    dead.append(rows([id_of("k", 0)]))
    for suffix in (".arrow", INDEX_SUFFIX):
        (log_on_disk.root / dead.name / f"000000000001{suffix}").write_bytes(b"")
    other.append(rows([id_of("k", 0), id_of("k", 1)]))
    log = LandingLog(log_on_disk.root)
    end = {name: extent.rows for name, extent in log.lanes().items()}
    assert end == {dead.name: 1, other.name: 2}
    assert ids_of(log.read_queue(3, {}, end)) == [id_of("k", 0), id_of("k", 1)]


def test_more_rows_than_there_are_is_damage(log_on_disk: LogOnDisk) -> None:
    lane = log_on_disk.lane()
    lane.append(rows([id_of("k", 1)]))
    log = LandingLog(log_on_disk.root)
    with pytest.raises(LandingDamaged, match="row 4 is asked for, and it ends with row 0"):
        list(log.read(lane.name, 0, 5))
    with pytest.raises(LandingDamaged, match="the offsets are of another log"):
        list(log.read_queue(3, {lane.name: 5}, {lane.name: 5}))


def test_a_segment_in_the_middle_that_is_gone_is_damage(log_on_disk: LogOnDisk) -> None:
    lane = log_on_disk.lane(segment_bytes=1)
    for number in range(1, 5):
        lane.append(rows([id_of("k", number)]))
    for part in (log_on_disk.root / lane.name).glob("000000000002.*"):
        part.unlink()
    log = LandingLog(log_on_disk.root)
    with pytest.raises(LandingDamaged, match="the segment of row 2 is missing"):
        list(log.read(lane.name, 0, 4))


@pytest.mark.parametrize("suffixes", [(".index",), (".index", ".arrow")])
def test_a_copy_of_a_segment_behind_the_last_one_does_not_hide_that(
    log_on_disk: LogOnDisk, suffixes: tuple[str, ...]
) -> None:
    lane = log_on_disk.lane(segment_bytes=1)
    for number in range(1, 5):
        lane.append(rows([id_of("k", number)]))
    for suffix in suffixes:
        folder = log_on_disk.root / lane.name
        shutil.copy(folder / f"000000000000{suffix}", folder / f"000000001000{suffix}")
    with pytest.raises(LandingDamaged, match="its name is not that of its first row"):
        LandingLog(log_on_disk.root).lanes()


def test_a_gap_that_is_longer_than_a_part_ends_the_parts_with_its_damage(log_on_disk: LogOnDisk) -> None:
    lane = log_on_disk.lane(segment_bytes=1)
    for number in range(1, 8):
        lane.append(rows([id_of("k", number)]))
    for number in range(2, 6):
        for part in (log_on_disk.root / lane.name).glob(f"{number:012d}.*"):
            part.unlink()
    log = LandingLog(log_on_disk.root)
    end = {lane.name: 7}
    before = log.cut(3, {}, end, 3)
    assert ids_of(log.read_queue(3, {}, before)) == [id_of("k", 1), id_of("k", 2)]
    with pytest.raises(LandingDamaged, match="the segment of row 2 is missing"):
        log.cut(3, before, end, 3)


def test_a_lane_that_was_removed_takes_no_memory_of_who_reads_on(log_on_disk: LogOnDisk) -> None:
    first, second = log_on_disk.lane("a"), log_on_disk.lane("b")
    log = LandingLog(log_on_disk.root)
    assert set(log.lanes(3)) == {first.name, second.name}
    view = weakref.ref(log.view(first.name))
    remove_lane(log_on_disk.root / first.name)
    assert set(log.lanes(3)) == {second.name}
    assert view() is None


def test_a_lane_that_is_not_there_is_pruned(log_on_disk: LogOnDisk) -> None:
    log = LandingLog(log_on_disk.root)
    assert list(log.read_queue(3, {"queue=003/lane=x-1.1": 7}, {"queue=003/lane=x-1.1": 7})) == []
    with pytest.raises(LandingRowsPruned) as caught:
        list(log.read_queue(3, {"queue=003/lane=x-1.1": 6}, {"queue=003/lane=x-1.1": 7}))
    assert (caught.value.lane, caught.value.row) == ("queue=003/lane=x-1.1", 6)
    assert list(log.read("queue=003/lane=x-1.1", 7, 7)) == []
    with pytest.raises(LandingRowsPruned) as caught:
        list(log.read("queue=003/lane=x-1.1", 6, 7))
    assert (caught.value.lane, caught.value.row) == ("queue=003/lane=x-1.1", 6)


def test_who_skips_what_is_pruned_reads_on_behind_a_lane_that_is_gone(log_on_disk: LogOnDisk) -> None:
    lane = log_on_disk.lane()
    lane.append(rows([id_of("k", 1)]))
    log = LandingLog(log_on_disk.root)
    end = {"queue=003/lane=x-1.1": 7, lane.name: 1}
    assert ids_of(log.read_queue(3, {}, end, skips_pruned=True)) == [id_of("k", 1)]


def test_a_part_for_who_skips_what_is_pruned_begins_no_earlier_than_it_should(log_on_disk: LogOnDisk) -> None:
    lane = log_on_disk.lane()
    lane.append(rows(id_of("k", number) for number in range(1, 5)))
    log = LandingLog(log_on_disk.root)
    assert log.cut(3, {lane.name: 2}, {lane.name: 4}, 1, skips_pruned=True) == {lane.name: 3}


def test_rows_before_a_time(log_on_disk: LogOnDisk) -> None:
    lane = log_on_disk.lane()
    for number in range(1, 5):
        lane.append(rows([id_of("k", number)], t_land=number * 100))
    log = LandingLog(log_on_disk.root)
    assert [log.before(3, time)[lane.name] for time in (0, 100, 101, 250, 1_000)] == [0, 0, 1, 2, 4]


def test_a_part_is_at_least_one_row_and_at_most_what_was_asked_for(log_on_disk: LogOnDisk) -> None:
    lane = log_on_disk.lane()
    lane.append(rows(id_of("k", number) for number in range(1, 11)))
    log = LandingLog(log_on_disk.root)
    end = {lane.name: 10}
    assert log.cut(3, {}, end, 4) == {lane.name: 4}
    assert log.cut(3, {lane.name: 8}, end, 4) == {lane.name: 10}
    assert log.cut(3, end, end, 4) == end


def test_no_log_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder; expected the folder of a landing log"):
        LandingLog(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"no landing\.json in it"):
        LandingLog(tmp_path)
    (tmp_path / "landing.json").mkdir()
    with pytest.raises(UserError, match=r"landing\.json: Is a directory; expected a file that can be read"):
        LandingLog(tmp_path)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match="no such folder; expected the folder of a landing log"):
        LandingLog(tmp_path / "file")


def test_a_folder_that_may_not_be_written_is_the_users_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match="Not a directory; expected a folder that can be made and written"):
        claim_folder(tmp_path / "file" / "log", SHAPE)
    (tmp_path / "file").unlink()
    monkeypatch.setattr(os, "access", lambda path, mode: (path, mode) != (tmp_path, os.W_OK | os.X_OK))
    with pytest.raises(UserError, match="may not be written; expected a folder that this user may write"):
        claim_folder(tmp_path, SHAPE)


def test_queues_are_told_in_their_order_and_what_is_no_name_of_one_is_none(log_on_disk: LogOnDisk) -> None:
    for name in ("queue=1000", "queue=020", "queue=003", "queue=02", "queue=x20", "queues=020"):
        (log_on_disk.root / name).mkdir()
    assert LandingLog(log_on_disk.root).queues() == [3, 20, 1000]
    assert LandingLog(log_on_disk.root).lanes(7) == {}
    found = {name: queue_of(name) for name in ("queue=020/lane=a-1.1", "queue=1000", "queue=02", "lane=a-1.1")}
    assert list(found.values()) == [20, 1000, None, None]


def test_a_log_has_the_id_of_whoever_was_first_to_claim_its_folder(tmp_path: Path) -> None:
    def claim(_: int) -> str | None:
        claim_folder(tmp_path / "log", SHAPE)
        return LandingLog(tmp_path / "log").group.id

    with ThreadPoolExecutor(8) as threads:
        (found,) = set(threads.map(claim, range(24)))
    claim_folder(tmp_path / "other", SHAPE)
    assert LandingLog(tmp_path / "other").group.id not in (None, found)


def test_a_log_of_before_there_were_ids_stays_without(log_on_disk: LogOnDisk) -> None:
    path = log_on_disk.root / "landing.json"
    note = orjson.loads(path.read_bytes())
    del note["id"], note["crc"]
    path.write_bytes(orjson.dumps(note))
    claim_folder(log_on_disk.root, SHAPE)
    assert LandingLog(log_on_disk.root).group.id is None


def test_a_log_of_another_version_is_told(log_on_disk: LogOnDisk) -> None:
    note = log_on_disk.root / "landing.json"
    note.write_bytes(seal({**unseal(note.read_bytes()), "format": 2}))
    with pytest.raises(LandingVersionUnknown, match=r"landing\.json: format 2"):
        LandingLog(log_on_disk.root)


@pytest.mark.parametrize(
    "content", ["{", "[]", "{}", '{"format": "1"}', '{"format": 1}', '{"format": 1, "queue": "x"}']
)
def test_a_lane_whose_note_is_damaged_is_told(log_on_disk: LogOnDisk, content: str) -> None:
    lane = log_on_disk.lane()
    (log_on_disk.root / lane.name / LANE_NOTE).write_text(content)
    with pytest.raises(LandingDamaged, match="not as it was written"):
        LandingLog(log_on_disk.root).lanes()


@pytest.mark.parametrize(
    "content", ["[]", '{"format": 1}', '{"format": 1, "group": "g", "hash_prefix": "h", "hash_count": "x"}']
)
def test_so_is_a_log_whose_note_is(log_on_disk: LogOnDisk, content: str) -> None:
    (log_on_disk.root / "landing.json").write_text(content)
    with pytest.raises(LandingDamaged, match=r"landing\.json: not as it was written"):
        LandingLog(log_on_disk.root)


def test_what_lies_in_the_folders_besides_is_passed_over(log_on_disk: LogOnDisk) -> None:
    lane = log_on_disk.lane()
    lane.append(rows([id_of("k", 1)]))
    (log_on_disk.root / "queue=3x").mkdir()
    (log_on_disk.root / lane.name / "notes.txt").write_text("mine")
    shutil.copytree(log_on_disk.root / lane.name, log_on_disk.root / "queue=003/.draft")
    assert dict(LandingLog(log_on_disk.root).lanes()) == {lane.name: LaneExtent(0, 1)}


def test_what_lies_between_two_offsets_is_told_flush_by_flush(log_on_disk: LogOnDisk) -> None:
    lane, next_lane, other = log_on_disk.lane(), log_on_disk.lane("n"), log_on_disk.lane(queue=4)
    lane.append(rows((id_of("k", number) for number in range(1, 11)), t_land=100))
    lane.append(rows((id_of("k" * 1_000, number) for number in range(11, 15)), t_land=300))
    next_lane.append(rows([id_of("k", 15)], t_land=250))
    other.append(rows([id_of("k", 1)]))
    log = LandingLog(log_on_disk.root)
    small, large = log.view(lane.name).all_flushes(0, 14)
    (last,) = log.view(next_lane.name).all_flushes(0, 1)
    end = {next_lane.name: 1, lane.name: 14, other.name: 1, "queue=003/lane=gone-1.1": 9}
    whole = [Piece(10, small.bytes // 10, 100), Piece(4, large.bytes // 4, 300), Piece(1, last.bytes, 250)]
    assert list(log.pieces(3, {}, end)) == whole
    part = log.pieces(3, {lane.name: 9}, {lane.name: 12})
    assert [(piece.rows, piece.t_land) for piece in part] == [(1, 100), (2, 300)]
    assert list(log.pieces(3, end, end)) == []


def test_a_backlog_is_looked_at_bit_by_bit(log_on_disk: LogOnDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks for a part of it would else wait for all flushes of each queue to be told."""
    monkeypatch.setattr("lbg_runtime.pipeline.landing.log._FIRST_LOOK_ROWS", 2)
    lane = log_on_disk.lane()
    for number in range(1, 31):
        lane.append(rows([id_of("k", number)] * 3, t_land=number))
    looks, all_flushes = [], LaneView.all_flushes

    def look(view: LaneView, first: int, until: int) -> Iterator[Flush]:
        looks.append((first, until))
        return all_flushes(view, first, until)

    monkeypatch.setattr(LaneView, "all_flushes", look)
    log = LandingLog(log_on_disk.root)
    found = [(piece.rows, piece.t_land) for piece in islice(log.pieces(3, {lane.name: 1}, {lane.name: 90}), 4)]
    assert found == [(2, 1), (3, 2), (1, 3), (2, 3)]
    assert looks == [(1, 3), (3, 7), (7, 15)]
    whole = list(log.pieces(3, {}, {lane.name: 90}))
    assert [sum(piece.rows for piece in whole if piece.t_land == number) for number in range(1, 31)] == [3] * 30


def test_what_goes_while_the_flushes_are_told_is_left_out(log_on_disk: LogOnDisk) -> None:
    old, new = log_on_disk.lane(segment_bytes=1), log_on_disk.lane("n")
    for number in range(1, 61):
        old.append(rows([id_of("k", number)], t_land=number))
    new.append(rows([id_of("k", 61)], t_land=61))
    log = LandingLog(log_on_disk.root)
    told = log.pieces(3, {}, {name: extent.rows for name, extent in log.lanes(3).items()})
    assert [next(told).t_land for _ in range(32)] == list(range(1, 33))
    list(prune(log_on_disk.root, 41))
    assert [piece.t_land for piece in told] == list(range(41, 62))
    told = log.pieces(3, {}, {old.name: 60})
    assert next(told).t_land == 41
    shutil.rmtree(log_on_disk.root / old.name)
    # How many it had looked at before is left to it; the cut tells of the rest.
    assert len(list(told)) < 19


def test_a_part_ends_with_a_flush_where_that_leaves_little_of_its_limit(log_on_disk: LogOnDisk) -> None:
    lane = log_on_disk.lane()
    for first in range(1, 40, 10):
        lane.append(rows([id_of("k", number) for number in range(first, first + 10)]))
    log = LandingLog(log_on_disk.root)
    end = {lane.name: 40}
    assert log.cut(3, {}, end, 24) == {lane.name: 20}
    assert log.cut(3, {lane.name: 4}, end, 21) == {lane.name: 20}
    assert log.cut(3, {}, end, 28) == {lane.name: 28}
    # One that fits whole is taken however little is left.
    lane.append(rows([id_of("k", 41)]))
    assert log.cut(3, {lane.name: 30}, {lane.name: 41}, 11) == {lane.name: 41}


@pytest.mark.parametrize("name", ["landing.json", "queue=003/lane=m-1.1/lane.json"])
def test_every_flipped_bit_of_a_note_is_noticed(log_on_disk: LogOnDisk, name: str) -> None:
    lane = log_on_disk.lane()
    lane.append(rows([id_of("k", 1)]))
    path, sound = log_on_disk.root / name, _notes(log_on_disk.root, lane.name)
    whole = path.read_bytes()
    for offset in range(len(whole)):
        for bit in (1, 4, 0x80):
            path.write_bytes(whole[:offset] + bytes([whole[offset] ^ bit]) + whole[offset + 1 :])
            try:
                found = _notes(log_on_disk.root, lane.name)
            except LandingDamaged:
                continue
            # Only in the name of the CRC, beside which all is as it was, or in the end of the line.
            assert found == sound


def _notes(root: Path, lane: str) -> list[object]:
    log = LandingLog(root)
    return [log.group, log.group.id, log.view(lane).note]


def test_notes_of_before_there_were_crcs_are_read(log_on_disk: LogOnDisk) -> None:
    lane = log_on_disk.lane()
    lane.append(rows([id_of("k", 1)]))
    sound = _notes(log_on_disk.root, lane.name)
    for path in (log_on_disk.root / "landing.json", log_on_disk.root / lane.name / LANE_NOTE):
        path.write_bytes(orjson.dumps(unseal(path.read_bytes())))
    assert _notes(log_on_disk.root, lane.name) == sound


@pytest.mark.parametrize("target", ["nowhere", "log"])
def test_a_link_that_leads_nowhere_is_told_as_one(tmp_path: Path, target: str) -> None:
    (tmp_path / "log").symlink_to(tmp_path / target)
    with pytest.raises(UserError, match="a link that leads to no folder; expected a folder that can be made"):
        claim_folder(tmp_path / "log", SHAPE)
