"""What is acknowledged is on the disk, with every name that leads to it."""

import errno
import os
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest

from lbg_runtime.model.errors import UserError
from lbg_runtime.pipeline.landing import layout
from lbg_runtime.pipeline.landing.lane import LaneWriter, remove_lane
from lbg_runtime.pipeline.landing.layout import claim_folder
from lbg_runtime.pipeline.landing.prune import IDS_KEPT_US, prune
from lbg_runtime.pipeline.landing.removed import note_removed
from lbg_runtime.pipeline.landing.segment import INDEX_SUFFIX, SegmentWriter
from tests.pipeline.landing.disk import Disk
from tests.pipeline.landing.landed import SHAPE, LogOnDisk, id_of, rows


@pytest.mark.parametrize("is_there", [False, True], ids=["new", "made by another"])
def test_a_power_cut_takes_nothing_that_was_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_there: bool
) -> None:
    """Not even where the folder of the log was made just before: its name, and those above it, were not synced.

    Nor where another process has made it, and has not come to syncing it.
    """
    disk = Disk()
    monkeypatch.setattr(os, "fsync", disk.sync)
    monkeypatch.setattr(os, "fdatasync", disk.sync)
    root = tmp_path / "new" / "log"
    if is_there:
        root.mkdir(parents=True)
    claim_folder(root, SHAPE)
    # Each flush begins a segment.
    lane = LaneWriter(root, 3, "m", 1, clock_us=lambda: 1, segment_bytes=1)
    for number in (1, 2):
        lane.append(rows([id_of("k", number)]))
        assert disk.lost(tmp_path) == []
    lane.close()


def test_a_segment_is_begun_when_the_header_of_its_index_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows come after it: without it, a power cut would leave rows that have lost their index, which is damage."""
    disk = Disk()
    monkeypatch.setattr(os, "fsync", disk.sync)
    monkeypatch.setattr(os, "fdatasync", disk.sync)
    SegmentWriter(tmp_path, 0, is_synced=True).close()
    assert [each for each in disk.lost(tmp_path) if INDEX_SUFFIX in each] == []


def test_a_lane_is_no_lane_any_more_on_the_disk_before_anything_of_it_is_removed(
    log_on_disk: LogOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut it would be one without its note, which is damage."""
    lane = log_on_disk.lane()
    events: list[object] = []
    monkeypatch.setattr(os, "fsync", lambda file: events.append(os.listdir(file)))
    monkeypatch.setattr(shutil, "rmtree", lambda _: events.append("removed"))
    remove_lane(log_on_disk.root / lane.name)
    assert events == [[f".gone-{lane.name.removeprefix('queue=003/')}"], "removed"]


def test_rows_that_were_pruned_are_gone_on_the_disk_before_the_ids_that_say_so(
    log_on_disk: LogOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut they would be rows that have lost their index, which is damage."""
    lane = log_on_disk.lane(segment_bytes=1)
    for number in (1, 2):
        lane.append(rows([id_of("k", number)], t_land=number))
    data = log_on_disk.root / lane.name / "000000000000.arrow"
    left = data.read_bytes()
    list(prune(log_on_disk.root, 2, clock_us=lambda: 5))
    # Of a process that died while it pruned.
    data.write_bytes(left)
    events: list[object] = []
    unlink = Path.unlink
    monkeypatch.setattr(os, "fsync", lambda file: events.append(data.name in os.listdir(file)))
    monkeypatch.setattr(Path, "unlink", lambda path: (events.append(path.suffix), unlink(path)))
    list(prune(log_on_disk.root, 2, clock_us=lambda: IDS_KEPT_US + 5))
    assert events == [".arrow", False, ".ids"]


def test_what_is_noted_of_a_lane_that_is_gone_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk()
    monkeypatch.setattr(os, "fsync", disk.sync)
    queue = tmp_path / "queue=003"
    queue.mkdir()
    for number in (1, 2):
        note_removed(tmp_path, f"queue=003/lane=m-{number}.1", 7)
        assert disk.lost(queue) == []


def test_a_line_that_the_disk_refused_to_sync_is_written_again_before_its_lane_is_taken_for_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system forgets after the refusal that it was to write it: a second sync would succeed without it."""
    queue = tmp_path / "queue=003"
    queue.mkdir()
    unsynced: list[bytes] = []
    write = os.pwrite

    def note(file: int, content: bytes, begin: int) -> int:
        unsynced.append(bytes(content))
        return write(file, content, begin)

    def refuse(file: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pwrite", note)
    note_removed(tmp_path, "queue=003/lane=a-1.1", 7)
    with monkeypatch.context() as ill:
        ill.setattr(os, "fsync", refuse)
        with pytest.raises(OSError, match="Input/output error"):
            note_removed(tmp_path, "queue=003/lane=b-1.1", 9)
    whole = (queue / "removed.lanes").read_bytes()
    unsynced.clear()
    note_removed(tmp_path, "queue=003/lane=b-1.1", 0)
    assert unsynced == [whole.splitlines(keepends=True)[1]]
    assert (queue / "removed.lanes").read_bytes() == whole


@pytest.mark.parametrize(("number", "is_taken"), [(errno.EACCES, True), (errno.EROFS, True), (errno.EIO, False)])
def test_a_log_whose_name_may_not_be_on_the_disk_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, *, is_taken: bool
) -> None:
    """A folder that is not ours to open has been there for long."""

    def refuse(_: Path) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(layout, "sync_folder", refuse)
    with nullcontext() if is_taken else pytest.raises(UserError, match="Input/output error"):
        claim_folder(tmp_path, SHAPE)
    assert (tmp_path / "landing.json").exists() == is_taken
