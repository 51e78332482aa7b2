"""What is left of a lane that was removed, whoever dies while it is."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lbg_runtime.model.errors import LandingDamaged
from lbg_runtime.pipeline.landing import prune as prune_module
from lbg_runtime.pipeline.landing.log import LandingLog
from lbg_runtime.pipeline.landing.prune import IDS_KEPT_US, Unpruned, prune
from lbg_runtime.pipeline.landing.removed import RemovedLane, note_removed, read_removed, removed_end
from lbg_runtime.pipeline.landing.verify import Grade, Walked, verify
from tests.pipeline.landing.landed import LogOnDisk, id_of, rows

ONE, OTHER = "queue=003/lane=a-1.1", "queue=003/lane=b-1.2"


def removed(root: Path) -> list[RemovedLane]:
    return read_removed(root, 3, 0, removed_end(root, 3))


def notes(root: Path) -> Path:
    return root / "queue=003/removed.lanes"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "queue=003").mkdir()
    return tmp_path


def prune_all(log: LogOnDisk) -> list[Unpruned]:
    """Prune a log of lanes that nobody writes, and a week later remove what is left of them."""
    failures: list[Unpruned] = []
    for now_us in (1, IDS_KEPT_US + 1):
        list(prune(log.root, 1 << 60, clock_us=lambda now_us=now_us: now_us, failures=failures))
    return failures


def test_a_reader_goes_on_from_where_it_was(root: Path) -> None:
    assert removed_end(root, 3) == 0
    note_removed(root, ONE, 7)
    end = removed_end(root, 3)
    note_removed(root, OTHER, 9)
    assert removed(root) == [RemovedLane(ONE, 7), RemovedLane(OTHER, 9)]
    assert read_removed(root, 3, end, removed_end(root, 3)) == [RemovedLane(OTHER, 9)]
    known = removed_end(root, 3)
    note_removed(root, "queue=003/lane=c-1.3", 11)
    assert read_removed(root, 3, end, known) == [RemovedLane(OTHER, 9)], "and what came since is for the next time"


def test_a_lane_is_noted_once_by_however_many(root: Path) -> None:
    for _ in range(3):
        note_removed(root, ONE, 7)
    assert removed(root) == [RemovedLane(ONE, 7)]


def test_lanes_are_noted_by_many_at_a_time(root: Path) -> None:
    lanes = [f"queue=003/lane=m-{number}.1" for number in range(40)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda lane: note_removed(root, lane, 7), 2 * lanes))
    assert sorted(removed(root)) == sorted(RemovedLane(lane, 7) for lane in lanes)


def test_a_line_of_which_the_disk_takes_a_part_at_a_time_is_whole(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a lane would be removed that nothing tells of."""
    take = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, content, begin: take(file, content[:9], begin))
    for lane, rows_of_it in ((ONE, 7), (OTHER, 9)):
        note_removed(root, lane, rows_of_it)
    assert removed(root) == [RemovedLane(ONE, 7), RemovedLane(OTHER, 9)]


def test_half_a_line_of_a_process_that_died_is_none(root: Path) -> None:
    note_removed(root, ONE, 7)
    end = removed_end(root, 3)
    with notes(root).open("ab") as file:
        file.write(b'{"lane":"queue=003/lane=a very long name of a lane, longer than the next line')
    assert removed_end(root, 3) == end
    note_removed(root, OTHER, 9)
    assert removed(root) == [RemovedLane(ONE, 7), RemovedLane(OTHER, 9)]


def test_notes_that_are_lost_or_not_as_they_were_written_are_damage(root: Path) -> None:
    note_removed(root, ONE, 7)
    end = removed_end(root, 3)
    with pytest.raises(LandingDamaged, match="no line begins at byte 5"):
        read_removed(root, 3, 5, end)
    with pytest.raises(LandingDamaged, match="it has lost lines"):
        read_removed(root, 3, end + 1, end)
    for wrong in (b"x", b"[1]\n", b'{"lane":"a"}\n', b'{"lane":"a","rows":"many"}\n'):
        notes(root).write_bytes(wrong + b"\n")
        with pytest.raises(LandingDamaged, match="not as it was written"):
            removed(root)


def test_pruning_notes_the_lanes_that_it_removes_and_had_rows(log_on_disk: LogOnDisk) -> None:
    lane = log_on_disk.lane("a", segment_bytes=1)
    for number in range(3):
        lane.append(rows([id_of("k", number)], t_land=100))
    empty = log_on_disk.lane("b")
    log_on_disk.close()
    assert prune_all(log_on_disk) == []
    os.utime(log_on_disk.root / empty.name / "lane.json", (0, 0))
    assert prune_all(log_on_disk) == []
    assert dict(LandingLog(log_on_disk.root).lanes()) == {}
    assert removed(log_on_disk.root) == [RemovedLane(lane.name, 3)]


@pytest.mark.parametrize("step", ["note_removed", "_remove_aside"])
@pytest.mark.parametrize("is_done", [False, True])
def test_what_is_noted_survives_the_death_of_who_removes_a_lane(
    log_on_disk: LogOnDisk, monkeypatch: pytest.MonkeyPatch, step: str, *, is_done: bool
) -> None:
    lane = log_on_disk.lane("a")
    lane.append(rows([id_of("k", 1), id_of("k", 2)], t_land=100))
    log_on_disk.close()
    take = getattr(prune_module, step)

    def die(*given: object) -> None:
        if is_done:
            take(*given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(prune_module, step, die)
        with pytest.raises(KeyboardInterrupt):
            prune_all(log_on_disk)
    assert dict(LandingLog(log_on_disk.root).lanes()) == {}
    for left in (log_on_disk.root / "queue=003").glob(".gone-*"):
        os.utime(left, (0, 0))
    assert prune_all(log_on_disk) == []
    assert removed(log_on_disk.root) == [RemovedLane(lane.name, 2)]
    assert list((log_on_disk.root / "queue=003").glob(".gone-*")) == []


def test_a_lane_that_cannot_be_noted_is_not_removed(log_on_disk: LogOnDisk) -> None:
    lane = log_on_disk.lane("a")
    lane.append(rows([id_of("k", 1)], t_land=100))
    log_on_disk.close()
    notes(log_on_disk.root).write_bytes(b"nonsense\n")
    (failure, *_) = prune_all(log_on_disk)
    assert (failure.lane, type(failure.error)) == (lane.name, LandingDamaged)
    (left,) = (log_on_disk.root / "queue=003").glob(".gone-*")
    os.utime(left, (0, 0))
    assert [each.lane for each in prune_all(log_on_disk)] == [lane.name] * 2
    notes(log_on_disk.root).unlink()
    assert prune_all(log_on_disk) == []
    assert removed(log_on_disk.root) == [RemovedLane(lane.name, 1)]


def test_verify_knows_the_notes(log_on_disk: LogOnDisk) -> None:
    lane = log_on_disk.lane("a")
    lane.append(rows([id_of("k", 1)], t_land=100))
    log_on_disk.close()
    prune_all(log_on_disk)
    assert list(verify(LandingLog(log_on_disk.root), Walked())) == []
    notes(log_on_disk.root).write_bytes(b"nonsense\n")
    (finding,) = verify(LandingLog(log_on_disk.root), Walked())
    assert (finding.grade, finding.path) == (Grade.DAMAGE, str(notes(log_on_disk.root)))


def test_every_flipped_bit_of_a_note_is_noticed(root: Path) -> None:
    note_removed(root, ONE, 7)
    note_removed(root, OTHER, 9)
    whole, sound = notes(root).read_bytes(), removed(root)
    for offset in range(len(whole) - 1):
        notes(root).write_bytes(whole[:offset] + bytes([whole[offset] ^ 1]) + whole[offset + 1 :])
        try:
            found = removed(root)
        except LandingDamaged:
            continue
        # Only in the name of the CRC, beside which all is as it was.
        assert found == sound


def test_lines_of_before_there_were_crcs_are_read_among_others(root: Path) -> None:
    notes(root).write_bytes(b'{"lane":"queue=003/lane=old-1.1","rows":5}\n')
    end = removed_end(root, 3)
    note_removed(root, ONE, 7)
    assert removed(root) == [RemovedLane("queue=003/lane=old-1.1", 5), RemovedLane(ONE, 7)]
    assert read_removed(root, 3, end, removed_end(root, 3)) == [RemovedLane(ONE, 7)]
