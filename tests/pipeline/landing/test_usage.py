"""How many bytes a landing log may still get."""

import os
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from lbg_runtime.pipeline.landing.usage import DiskSpace, disk_space, lane_bytes, used_bytes

MB = 1 << 20


@pytest.mark.parametrize(
    ("blocks", "space"),
    [
        # Of a small disk, a twentieth.
        (2_000, DiskSpace(1_000 * MB, 100 * MB)),
        (1_000_000, DiskSpace(1_000 * MB, 256 * MB)),
        # The file system does not say.
        (0, None),
    ],
    ids=["small", "large", "unknown"],
)
def test_a_reserve_of_the_disk_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocks: int, space: DiskSpace | None
) -> None:
    disk = SimpleNamespace(f_frsize=MB, f_blocks=blocks, f_bavail=1_000)
    monkeypatch.setattr(os, "statvfs", {tmp_path: disk}.__getitem__)
    assert disk_space(tmp_path) == space


def test_files_behind_one_that_is_pruned_while_they_are_counted_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        (tmp_path / str(number)).write_bytes(bytes(10))
    entries = list(os.scandir(tmp_path))
    Path(entries[0].path).unlink()
    monkeypatch.setattr(os, "scandir", lambda _: nullcontext(entries))
    assert lane_bytes(tmp_path) == 20


def test_a_log_holds_the_files_of_all_its_lanes_and_nothing_of_one_that_is_gone(tmp_path: Path) -> None:
    for number, lane in enumerate(("queue=000/lane=a", "queue=000/lane=b", "queue=001/lane=c"), 1):
        (tmp_path / lane).mkdir(parents=True)
        (tmp_path / lane / "lane.json").write_bytes(bytes(number))
    assert used_bytes(tmp_path) == 6
    assert lane_bytes(tmp_path / "queue=001/lane=gone") == 0
