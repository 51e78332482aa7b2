"""How many bytes a landing log may still get."""

import os
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from lbg_runtime.pipeline.landing.usage import RESERVE_BYTES, DiskSpace, disk_space, lane_bytes

MB = 1 << 20


@pytest.mark.parametrize(
    ("blocks", "space"),
    [
        # Of a small disk, a twentieth.
        (2_000, DiskSpace(1_000 * MB, 100 * MB)),
        (1_000_000, DiskSpace(1_000 * MB, RESERVE_BYTES)),
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
